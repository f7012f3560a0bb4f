"""Certificates in real files, checked by a TLS handshake in memory."""

from __future__ import annotations

import ssl
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pairbus.broker.port.certificates import Certificates
from pairbus.errors import StartError

NAMES = ("localhost", "127.0.0.1", "::1")
DAY = timedelta(days=1).total_seconds()


@pytest.fixture
def now() -> float:
    """The real time, because the handshake in `trusted` uses the system's clock."""
    return time.time()


def trusted(certificates: Certificates, ca_file: Path, name: str, *, now: float) -> bytes:
    """Shake hands as a client that trusts `ca_file` only; returns the server's certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=str(ca_file)).wrap_bio(
        to_client, to_server, server_hostname=name
    )
    server = certificates.context(now=now).wrap_bio(to_server, to_client, server_side=True)
    pending = [client, server]
    for _ in range(10):
        for side in list(pending):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            pending.remove(side)
    assert not pending
    held = client.getpeercert(binary_form=True)
    assert held is not None
    return held


@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_trusts_the_ca_file_trusts_the_server(
    tmp_path: Path, name: str, now: float
) -> None:
    certificates = Certificates(tmp_path / "c", NAMES)

    ca_file = certificates.ca_file(now=now)

    assert ca_file.is_absolute()
    assert trusted(certificates, ca_file, name, now=now)


def test_a_name_that_was_not_asked_for_is_not_trusted(tmp_path: Path, now: float) -> None:
    certificates = Certificates(tmp_path, NAMES)

    with pytest.raises(ssl.SSLCertVerificationError):
        trusted(certificates, certificates.ca_file(now=now), "contoso.net", now=now)


def test_private_keys_are_for_the_owner_alone(tmp_path: Path, now: float) -> None:
    Certificates(tmp_path, NAMES).ca_file(now=now)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}

    assert modes["ca.key"] == modes["server.pem"] == 0o600
    assert b"PRIVATE" not in (tmp_path / "ca.pem").read_bytes()


def test_a_restart_uses_the_same_certificates(tmp_path: Path, now: float) -> None:
    first = Certificates(tmp_path, NAMES)
    ca_file = first.ca_file(now=now)
    held, ca = trusted(first, ca_file, "localhost", now=now), ca_file.read_bytes()

    second = Certificates(tmp_path, NAMES)

    assert trusted(second, second.ca_file(now=now), "localhost", now=now) == held
    assert ca_file.read_bytes() == ca


def test_a_new_name_or_an_old_age_renews_the_server_under_the_same_ca(
    tmp_path: Path, now: float
) -> None:
    first = Certificates(tmp_path, NAMES)
    ca_file = first.ca_file(now=now)
    held, ca = trusted(first, ca_file, "localhost", now=now), ca_file.read_bytes()

    renamed = Certificates(tmp_path, [*NAMES, "bus.example"])
    other = trusted(renamed, renamed.ca_file(now=now), "bus.example", now=now)
    context = renamed.context(now=now)
    in_time = renamed.context(now=now + 366 * DAY)
    later = renamed.context(now=now + 368 * DAY)

    assert other != held
    assert context is in_time is not later
    assert ca_file.read_bytes() == ca


def test_a_ca_that_expires_soon_is_replaced_with_all_it_signed(tmp_path: Path, now: float) -> None:
    ca_file = Certificates(tmp_path, NAMES).ca_file(now=now)
    ca, server = ca_file.read_bytes(), (tmp_path / "server.pem").read_bytes()

    less_than_a_month_before_it_expires = datetime(2999, 12, 20, tzinfo=UTC).timestamp()
    Certificates(tmp_path, NAMES).ca_file(now=less_than_a_month_before_it_expires)

    assert ca_file.read_bytes() != ca
    assert (tmp_path / "server.pem").read_bytes() != server


def test_without_a_folder_they_live_until_close(now: float) -> None:
    certificates = Certificates(None, NAMES)
    ca_file = certificates.ca_file(now=now)
    assert ca_file.exists()

    certificates.close()

    assert not ca_file.parent.exists()


def test_nothing_is_made_before_it_is_needed(tmp_path: Path) -> None:
    Certificates(tmp_path / "c", NAMES).close()

    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ca.pem", b"nonsense"),
        ("ca.key", b"nonsense"),
        ("ca.key", None),
        ("server.pem", b""),
    ],
)
def test_files_that_are_not_ours_are_named_and_left_alone(
    tmp_path: Path, name: str, content: bytes | None, now: float
) -> None:
    Certificates(tmp_path, NAMES).ca_file(now=now)
    other = Certificates(tmp_path / "other", NAMES)
    other.ca_file(now=now)
    if content is None:
        content = (other.folder / name).read_bytes()
    (tmp_path / name).write_bytes(content)

    with pytest.raises(StartError, match="cannot use the certificates in") as error:
        Certificates(tmp_path, NAMES).context(now=now)

    assert str(tmp_path) in str(error.value)
    assert (tmp_path / name).read_bytes() == content


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path, now: float) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StartError, match="file/c"):
        Certificates(tmp_path / "file" / "c", NAMES).context(now=now)


def test_a_host_name_may_hold_letters_of_any_language(tmp_path: Path, now: float) -> None:
    certificates = Certificates(tmp_path, [*NAMES, "bücher.example"])

    ca_file = certificates.ca_file(now=now)

    assert trusted(certificates, ca_file, "bücher.example", now=now)


def test_a_name_that_no_certificate_can_have_is_left_out_with_a_warning(
    tmp_path: Path, now: float, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates(tmp_path, [*NAMES, "my_host", "-", "a..b"])

    assert trusted(certificates, certificates.ca_file(now=now), "localhost", now=now)
    assert "'my_host' is not a valid host name" in caplog.text


@pytest.mark.parametrize("name", ["Bus.Example", "bus.example.", "straße.example", "::0001"])
def test_a_name_in_any_spelling_needs_no_new_certificate(
    tmp_path: Path, name: str, now: float
) -> None:
    first = Certificates(tmp_path, [*NAMES, name])
    held = trusted(first, first.ca_file(now=now), "localhost", now=now)

    second = Certificates(tmp_path, [*NAMES, name])

    assert trusted(second, second.ca_file(now=now), "localhost", now=now) == held


def test_brokers_that_start_at_once_in_one_folder_agree_on_one_ca(
    tmp_path: Path, now: float
) -> None:
    brokers = [Certificates(tmp_path, NAMES) for _ in range(8)]

    with ThreadPoolExecutor(len(brokers)) as pool:
        files = list(pool.map(lambda each: each.ca_file(now=now), brokers))

    held = {trusted(each, files[0], "localhost", now=now) for each in brokers}
    assert len(held) == 1
