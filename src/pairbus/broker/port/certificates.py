"""The broker's own certificate authority and server certificate, kept beside the data.

Made when first needed and used again after a restart, so that a client has to be told of the CA
file only once. A server certificate that runs out, or lacks a name, is replaced under the same CA.
Knows files and certificates; it opens no sockets, and who connects is none of its business.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import ssl
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.errors import StartError

if TYPE_CHECKING:
    # Loading `cryptography` takes longer than the rest of a start; plain AMQP never needs it.
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName, KeyUsage, Name

FOLDER: Final = "certificates"
_CA_FILE: Final = "ca.pem"
_CA_KEY_FILE: Final = "ca.key"
_SERVER_FILE: Final = "server.pem"
_CA_LIFE: Final = timedelta(days=3650)
# Systems refuse server certificates that are valid for longer than 825 days.
_SERVER_LIFE: Final = timedelta(days=397)
_RENEW_BEFORE: Final = timedelta(days=30)
# A clock that is a little behind ours must not find the certificate "not yet valid".
_BACKDATE: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class _Signed:
    certificate: Certificate
    key: EllipticCurvePrivateKey


class Certificates:
    """One CA and one server certificate in one folder. Safe to use from several threads."""

    def __init__(self, folder: Path | None, names: Sequence[str]) -> None:
        """`folder` None: a temporary one, removed by `close`. `names`: what clients call us."""
        self._folder = folder
        self._names = tuple(dict.fromkeys(names))
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
        """The file that clients are to trust; it exists when this returns."""
        self.context(now=now)
        return (self.folder / _CA_FILE).absolute()

    @property
    def exist(self) -> bool:
        return self._folder is not None and (self._folder / _CA_FILE).exists()

    def is_ready(self, *, now: float) -> bool:
        """Whether `context` would answer at once."""
        return self._context is not None and now < self._renew_at

    def context(self, *, now: float) -> ssl.SSLContext:
        """What a TLS server needs. Cheap, except at first and when the certificate runs out."""
        with self._lock:
            if not self.is_ready(now=now):
                try:
                    self._prepare(datetime.fromtimestamp(now, UTC))
                except (OSError, ValueError, ssl.SSLError) as error:
                    raise StartError(
                        f"cannot use the certificates in {self.folder}: {error}; "
                        "remove that folder to have new ones made"
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
        with _locked(self.folder):
            ca = _read(self.folder / _CA_FILE, self.folder / _CA_KEY_FILE)
            if ca is None or ca.certificate.not_valid_after_utc <= now + _RENEW_BEFORE:
                ca = _make_ca(now)
                _write(self.folder / _CA_KEY_FILE, _key_pem(ca.key), mode=0o600)
                _write(self.folder / _CA_FILE, _certificate_pem(ca.certificate), mode=0o644)
            server = _read(self.folder / _SERVER_FILE, self.folder / _SERVER_FILE)
            if server is None or not _is_usable(server.certificate, ca, self._names, now):
                server = _make_server(ca, self._names, now)
                # Key and chain in one file, so that they are replaced together.
                text = _key_pem(server.key) + _certificate_pem(server.certificate)
                _write(self.folder / _SERVER_FILE, text, mode=0o600)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(self.folder / _SERVER_FILE)
        self._context = context
        until = server.certificate.not_valid_after_utc
        self._renew_at = min(until, ca.certificate.not_valid_after_utc).timestamp()
        self._renew_at -= _RENEW_BEFORE.total_seconds()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two brokers may share a folder: one makes the certificates, the other finds them."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(path: Path, data: bytes, *, mode: int) -> None:
    """All or nothing, and never readable by others for a moment."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    os.replace(draft, path)


def _read(certificate_file: Path, key_file: Path) -> _Signed | None:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509 import load_pem_x509_certificate

    try:
        certificate = load_pem_x509_certificate(certificate_file.read_bytes())
        key = load_pem_private_key(key_file.read_bytes(), password=None)
    except FileNotFoundError:
        return None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ValueError(f"{key_file.name} holds no key of an elliptic curve")
    if certificate.public_key() != key.public_key():
        raise ValueError(f"{certificate_file.name} and {key_file.name} do not belong together")
    return _Signed(certificate, key)


def _is_usable(certificate: Certificate, ca: _Signed, names: Sequence[str], now: datetime) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.x509 import SubjectAlternativeName

    try:
        certificate.verify_directly_issued_by(ca.certificate)
    except (InvalidSignature, ValueError, TypeError):
        return False
    held = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    return certificate.not_valid_after_utc > now + _RENEW_BEFORE and all(
        name in held for name in map(_general_name, names)
    )


def _general_name(name: str) -> GeneralName:
    from cryptography.x509 import DNSName, IPAddress

    try:
        return IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return DNSName(name.encode("idna").decode())


def _make_ca(now: datetime) -> _Signed:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    # The serial number tells the CAs of several folders apart where their names are shown.
    serial = x509.random_serial_number()
    name = _distinguished_name(f"pairbus local CA {serial % 0x10000:04x}")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _builder(name, name, key, serial=serial, now=now, life=_CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_ca=True), critical=True)
        .add_extension(identifier, critical=False)
    )
    return _Signed(builder.sign(key, hashes.SHA256()), key)


def _make_server(ca: _Signed, names: Sequence[str], now: datetime) -> _Signed:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    issuer = ca.certificate.subject
    subject = _distinguished_name("pairbus broker")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
    serial = x509.random_serial_number()
    builder = (
        _builder(subject, issuer, key, serial=serial, now=now, life=_SERVER_LIFE)
        .add_extension(alternatives, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_ca=False), critical=True)
        .add_extension(usage, critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(authority, critical=False)
    )
    return _Signed(builder.sign(ca.key, hashes.SHA256()), key)


def _builder(
    subject: Name,
    issuer: Name,
    key: EllipticCurvePrivateKey,
    *,
    serial: int,
    now: datetime,
    life: timedelta,
) -> CertificateBuilder:
    from cryptography import x509

    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=serial,
        not_valid_before=now - _BACKDATE,
        not_valid_after=now + life,
    )


def _distinguished_name(text: str) -> Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _key_usage(*, is_ca: bool) -> KeyUsage:
    from cryptography.x509 import KeyUsage

    return KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _certificate_pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)
