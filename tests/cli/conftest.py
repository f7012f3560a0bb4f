"""The commands as `main` runs them, in this process, which is fast; and a broker for them."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from pairbus.__main__ import main
from pairbus.broker import Broker, QueueDescription


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PAIRBUS_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)


@pytest.fixture
def pairbus(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs one command to its end. Its output is a file, as in `pairbus ... > file`."""

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["pairbus", *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main()
        code = exit_.value.code
        assert isinstance(code, int)
        del exit_
        # The SDK leaves the connection of a refused request open until its exception is forgotten,
        # and a broker that stops waits for its clients.
        if code:
            gc.collect()
        return Done(code, *capfd.readouterr())

    return run


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Broker], Broker]:
    """Makes a broker the one that commands are about."""

    def using(broker: Broker) -> Broker:
        monkeypatch.setenv("PAIRBUS_PRIMARY", broker.connection_string)
        return broker

    return using


@pytest.fixture
def broker(use: Callable[[Broker], Broker]) -> Iterator[Broker]:
    with Broker(queues=["orders"], topics=["events", "events/Subscriptions/audit"]) as running:
        yield use(running)


QUEUES = 80


@pytest.fixture(scope="module")
def namespace() -> Iterator[Broker]:
    """One for all tests of a module, each of which has a queue of its own."""
    sessions = QueueDescription(name="sorted", requires_session=True)
    queues: list[str | QueueDescription] = [f"q{number}" for number in range(QUEUES)]
    with Broker(queues=[*queues, sessions], topics=["events/Subscriptions/audit"]) as running:
        yield running


@pytest.fixture(scope="module")
def unused(namespace: Broker) -> Iterator[str]:
    return (f"q{number}" for number in range(QUEUES))


@pytest.fixture
def queue(namespace: Broker, unused: Iterator[str], use: Callable[[Broker], Broker]) -> str:
    """One that is empty, on the namespace that commands are about."""
    use(namespace)
    return next(unused)


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    """Of an authority that nobody uses."""
    file = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(file)
    return file


@pytest.fixture
def type_on_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes stdin a terminal, on which a person types this line."""
    screen, terminal = os.openpty()
    with open(terminal, encoding="utf-8") as stdin:

        def typing(line: str) -> None:
            os.write(screen, f"{line}\n".encode())
            monkeypatch.setattr(sys, "stdin", stdin)

        yield typing
    os.close(screen)


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """What comes on it."""
    opened = []

    def feed(data: bytes) -> None:
        file = tmp_path / "stdin"
        file.write_bytes(data)
        opened.append(file.open(encoding="utf-8"))
        monkeypatch.setattr(sys, "stdin", opened[-1])

    yield feed
    for file in opened:
        file.close()
