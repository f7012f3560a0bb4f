"""The two ends of a pair, and how a process is asked to measure something of it.

Such a process gets the ends in its arguments, answers one line of JSON, and is ended then: closing
takes the SDK half a second a link, and nobody measures that. The clients here are without TLS,
whose cost would only hide ours. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import inspect
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

import azure.servicebus
import azure.servicebus.aio
from azure.servicebus.aio import management as aio_management
from azure.servicebus.management import ServiceBusAdministrationClient

import ours
import pairbus
import pairbus.aio
import rows
from loop import LoadError

QUEUE = "orders"
"""On both namespaces."""
DISABLED = "disabled"
"""On the primary, where it takes no messages: so that it fails over at once and stays so."""
SHELLS = ("blocking", "asyncio")
AT_ONCE: dict[str, Any] = {
    "failover_interval": timedelta(0),
    "ping_primary_interval": timedelta(minutes=30),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    primary: str
    primary_pid: int
    secondary: str
    primary_ca_file: str
    secondary_ca_file: str

    @classmethod
    def of(cls, primary: ours.Ours, secondary: ours.Ours) -> Ends:
        return cls(
            primary=f"{primary.connection_string};UseDevelopmentEmulator=true",
            primary_pid=primary.pid,
            secondary=f"{secondary.connection_string};UseDevelopmentEmulator=true",
            primary_ca_file=str(primary.ca_file()),
            secondary_ca_file=str(secondary.ca_file()),
        )

    @classmethod
    def given(cls, options: argparse.Namespace) -> Ends:
        return cls(**json.loads(options.ends))

    def with_secondary_port(self, port: int) -> Ends:
        """The same, with another port that leads to the secondary."""
        before = self.secondary.split("/;")[0].rpartition(":")[2]
        return replace(self, secondary=self.secondary.replace(f":{before}/", f":{port}/"))

    # blocking

    def administration(self) -> ServiceBusAdministrationClient:
        """Of the primary."""
        return ServiceBusAdministrationClient.from_connection_string(
            self.primary, connection_verify=self.primary_ca_file
        )

    def plain(self, connection_string: str, **settings: Any) -> azure.servicebus.ServiceBusClient:
        return azure.servicebus.ServiceBusClient.from_connection_string(
            connection_string, **settings
        )

    def unpaired(self, **settings: Any) -> pairbus.ServiceBusClient:
        return pairbus.ServiceBusClient.from_connection_string(self.primary, **settings)

    def options(self, **settings: Any) -> pairbus.SendAvailabilityPairedNamespaceOptions:
        manager = ServiceBusAdministrationClient.from_connection_string(
            self.secondary, connection_verify=self.secondary_ca_file
        )
        return pairbus.SendAvailabilityPairedNamespaceOptions(
            manager, self.plain(self.secondary), **AT_ONCE | settings
        )

    # asyncio

    def aio_plain(
        self, connection_string: str, **settings: Any
    ) -> azure.servicebus.aio.ServiceBusClient:
        return azure.servicebus.aio.ServiceBusClient.from_connection_string(
            connection_string, **settings
        )

    def aio_unpaired(self, **settings: Any) -> pairbus.aio.ServiceBusClient:
        return pairbus.aio.ServiceBusClient.from_connection_string(self.primary, **settings)

    def aio_options(self, **settings: Any) -> pairbus.SendAvailabilityPairedNamespaceOptions:
        manager = aio_management.ServiceBusAdministrationClient.from_connection_string(
            self.secondary, connection_verify=self.secondary_ca_file
        )
        return pairbus.SendAvailabilityPairedNamespaceOptions(
            manager, self.aio_plain(self.secondary), **AT_ONCE | settings
        )

    def shell(self, name: str) -> Shell:
        if name == "asyncio":
            return Shell(self.aio_unpaired, self.aio_plain, self.aio_options)
        return Shell(self.unpaired, self.plain, self.options)


@dataclass(frozen=True, slots=True)
class Shell:
    """How the clients of one shell are made. What their calls return goes through `done`."""

    unpaired: Callable[..., Any]
    plain: Callable[..., Any]
    options: Callable[..., Any]


async def done(answer: Any) -> Any:
    """Awaits the answer of an asyncio client. A blocking client has already answered."""
    return await answer if inspect.isawaitable(answer) else answer


# --- asking and answering -------------------------------------------------------------------------


def ask(script: str, ends: Mapping[str, Ends], arguments: Sequence[Any]) -> dict[str, Any]:
    """What the script answers for each shell, given the ends for that shell. All run at once, so
    who wants figures asks for one at a time."""
    given = [str(argument) for argument in arguments]
    processes: dict[str, subprocess.Popen[str]] = {}
    try:
        for shell, those in ends.items():
            command = [sys.executable, str(rows.HERE / script), *_arguments(shell, those), *given]
            # Ctrl-C while one is started, or just before it is ended, would leave it to nobody: it
            # waits a moment, and whatever still runs at the exit is ended there.
            with _uninterrupted():
                processes[shell] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=ours.environment(),
                    start_new_session=True,
                    text=True,
                )
                atexit.register(_end, processes[shell])
        return {shell: _answered(process, script, shell) for shell, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """By Python's handler and not by a mask: any thread may be the one that gets the signal."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def _arguments(shell: str, ends: Ends) -> list[str]:
    return ["--shell", shell, "--ends", json.dumps(asdict(ends))]


def _answered(process: subprocess.Popen[str], script: str, shell: str) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if line:
        return json.loads(line)
    process.kill()
    _, said = process.communicate()
    raise LoadError(f"{script}, {shell}: {said.strip()[-600:] or 'no answer'}")


def parser(description: str | None) -> argparse.ArgumentParser:
    """With what every such process is given."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--ends", required=True, help="the fields of Ends, as JSON")
    made.add_argument("--shell", choices=SHELLS, required=True)
    return made


def answer(found: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(found), flush=True)
