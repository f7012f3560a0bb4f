"""The broker's own certificate authority and server certificate, kept beside the data.

They are made when first needed and used again after a restart, so that a client needs the CA file
only once. A server certificate that expires, or lacks a name, is replaced under the same CA. This
module keeps the certificates in files; trustme makes them. It opens no sockets.
"""

from __future__ import annotations

import fcntl
import ipaddress
import logging
import os
import re
import secrets
import ssl
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pairbus.broker.storage.folder import sync_folder
from pairbus.errors import StartError

logger = logging.getLogger(__name__)

FOLDER: Final = "certificates"
_CA_FILE: Final = "ca.pem"
_CA_KEY_FILE: Final = "ca.key"
_SERVER_FILE: Final = "server.pem"
# Systems refuse server certificates that are valid for longer than 825 days.
_SERVER_LIFE: Final = timedelta(days=397)
_RENEW_BEFORE: Final = timedelta(days=30)
_LABEL: Final = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")


class Certificates:
    """One CA and one server certificate in one folder. Safe to use from several threads."""

    def __init__(self, folder: Path | None, names: Sequence[str]) -> None:
        """`folder` None: a temporary one, which `close` removes. `names`: the hosts of clients."""
        self._folder = folder
        found = {name: _canonical(name) for name in names}
        self._names = tuple(dict.fromkeys(name for name in found.values() if name is not None))
        self._invalid_names = tuple(name for name, canonical in found.items() if canonical is None)
        self._lock = threading.Lock()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._context: ssl.SSLContext | None = None
        self._renew_at = 0.0

    @property
    def folder(self) -> Path:
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="pairbus-")
            self._folder = Path(self._temporary.name)
        return self._folder

    def ca_file(self, *, now: float) -> Path:
        """The file that clients must trust. It exists when this returns."""
        self.context(now=now)
        return (self.folder / _CA_FILE).absolute()

    @property
    def exist(self) -> bool:
        return self._folder is not None and (self._folder / _CA_FILE).exists()

    def is_ready(self, *, now: float) -> bool:
        """Whether `context` returns at once."""
        return self._context is not None and now < self._renew_at

    def context(self, *, now: float) -> ssl.SSLContext:
        """For a TLS server. Cheap, except the first time and when the certificate expires."""
        with self._lock:
            if not self.is_ready(now=now):
                try:
                    self._prepare(datetime.fromtimestamp(now, UTC))
                except (OSError, ValueError, ssl.SSLError) as error:
                    raise StartError(
                        f"cannot use the certificates in {self.folder}: {error}; "
                        "delete that folder to get new ones"
                    ) from error
            assert self._context is not None
            return self._context

    def close(self) -> None:
        with self._lock:
            self._context = None
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = self._folder = None

    def _prepare(self, now: datetime) -> None:
        # Loading trustme takes longer than the rest of a start, and plain AMQP never needs it.
        import trustme

        ca_file, key_file = self.folder / _CA_FILE, self.folder / _CA_KEY_FILE
        server_file = self.folder / _SERVER_FILE
        with _locked(self.folder):
            if _is_pair(ca_file, key_file) and _expiry(ca_file) > now + _RENEW_BEFORE:
                ca = trustme.CA.from_pem(ca_file.read_bytes(), key_file.read_bytes())
            else:
                # The number distinguishes the CAs of several folders where only names are shown.
                ca = trustme.CA(
                    path_length=0,
                    organization_name="pairbus",
                    organization_unit_name=f"local CA {secrets.token_hex(2)}",
                )
                _write(key_file, ca.private_key_pem.bytes(), mode=0o600)
                _write(ca_file, ca.cert_pem.bytes(), mode=0o644)
            for name in self._invalid_names:
                logger.warning(
                    "%r is not a valid host name, so the certificate cannot have it: "
                    "TLS clients must use another name of this machine",
                    name,
                )
            if not _is_usable(server_file, ca_file, self._names, now):
                server = ca.issue_cert(
                    *self._names,
                    organization_name="pairbus",
                    organization_unit_name="broker",
                    not_after=(now + _SERVER_LIFE).replace(tzinfo=None),
                )
                # Key and certificate in one file, so that they are replaced together.
                _write(server_file, server.private_key_and_cert_chain_pem.bytes(), mode=0o600)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(server_file)
            until = min(_expiry(server_file), _expiry(ca_file))
        self._context = context
        self._renew_at = (until - _RENEW_BEFORE).timestamp()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two brokers may share a folder: one makes the certificates, the other uses them."""
    folder.mkdir(parents=True, exist_ok=True)
    sync_folder(folder.parent)
    with open(folder / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(path: Path, data: bytes, *, mode: int) -> None:
    """Writes the file atomically, and so that it outlives a power cut: an empty file would make
    every TLS connection fail. Other users can never read it.
    """
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(path.parent)


def _canonical(name: str) -> str | None:
    """Returns an IP address, or a host name as in a certificate. None if it is not valid."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        text = name.encode("idna").decode().lower()
    except UnicodeError:
        return None
    return text if _HOST_NAME.fullmatch(text) else None


def _is_pair(certificate_file: Path, key_file: Path) -> bool:
    """False if one is missing. Raises SSLError if they do not belong together."""
    if not certificate_file.exists() or not key_file.exists():
        return False
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate_file, key_file)
    return True


def _expiry(certificate_file: Path) -> datetime:
    from cryptography.x509 import load_pem_x509_certificate

    return load_pem_x509_certificate(certificate_file.read_bytes()).not_valid_after_utc


def _is_usable(server_file: Path, ca_file: Path, names: Sequence[str], now: datetime) -> bool:
    """The certificate is of this CA, has all the names, and does not expire soon."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.x509 import (
        DNSName,
        IPAddress,
        SubjectAlternativeName,
        load_pem_x509_certificate,
    )

    if not server_file.exists():
        return False
    certificate = load_pem_x509_certificate(server_file.read_bytes())
    try:
        certificate.verify_directly_issued_by(load_pem_x509_certificate(ca_file.read_bytes()))
    except (InvalidSignature, ValueError, TypeError):
        return False
    held = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    addresses = map(str, held.get_values_for_type(IPAddress))
    return certificate.not_valid_after_utc > now + _RENEW_BEFORE and {
        *held.get_values_for_type(DNSName),
        *addresses,
    }.issuperset(names)
