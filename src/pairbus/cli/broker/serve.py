"""`pairbus broker`: runs a broker until a signal, then stops it cleanly.

stdout has only the ready lines, one for each namespace, for programs to read. Logs go to stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from pairbus.cli.broker.options import BrokerOptions
from pairbus.cli.loading import interrupt_ends_process
from pairbus.cli.shared_options import flatten_options, is_on_command_line, option
from pairbus.cli.signals import stop_on_signal
from pairbus.errors import BrokerError, DataFileError, UsageError

if TYPE_CHECKING:
    from pairbus.broker.entities.namespace_options import NamespaceOptions
    from pairbus.broker.server import Server

logger = logging.getLogger(__name__)

_FILES: Final = 16_384
_ENDED_CONNECTIONS_MAX: Final = 100


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@flatten_options
def broker(
    context: typer.Context,
    options: BrokerOptions,
    *,
    check: Path | None = option("DIR", "Examine the data files in a folder, and start nothing."),
    log_level: LogLevel = option(
        "debug|info|warning|error",
        "Lowest level of the log lines on stderr (default: info).",
        envvar="PAIRBUS_LOG_LEVEL",
        default=LogLevel.INFO,
    ),
) -> None:
    """Run a Service Bus in this process, until it is interrupted.

    It prints "NAME ready: CONNECTION STRING" for each namespace, and nothing else on stdout.

    Exit codes: 0 ended by Ctrl-C or SIGTERM, 1 the broker cannot start or a data file is damaged,
    2 usage error, 130 interrupted twice, or before it has started.

    \b
    Examples:
      pairbus broker --queue orders
      pairbus broker --subscription events/audit --subscription events/billing
      pairbus broker --config Config.json
      pairbus broker --config Config.json --namespace shop:5673
      pairbus broker --config Config.json --host 0.0.0.0 --allow-insecure
      pairbus broker --namespace east:5672 --namespace west:5673 --memory
      pairbus broker --policy app:s3cret:Send,Listen --policy ops:t0psecret:Manage
      pairbus broker --policy-file policies.txt --host 0.0.0.0
      pairbus broker --queue orders --allow-faults
      pairbus broker --check pairbus-data
    """
    if check is not None:
        check_data_files(check)
        return
    if options.memory and is_on_command_line(context, "data"):
        raise UsageError("--data and --memory cannot be combined")
    with interrupt_ends_process():  # until the loop handles signals: nothing has to be cleaned up
        from pairbus.cli.broker.namespaces import namespaces_from_options

        logging.basicConfig(
            stream=sys.stderr,
            level=log_level.value.upper(),
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
        run(
            namespaces_from_options(options),
            host=options.host,
            tls_only=options.tls_only or None,
            allow_insecure=options.allow_insecure,
            shows_keys=is_on_command_line(context, "policy"),
        )


def check_data_files(folder: Path) -> None:
    from pairbus.broker.storage.schema import examine

    try:
        paths = sorted(folder.glob("*.db"))
    except OSError as error:
        raise UsageError(f"--check {folder}: cannot be read: {error.strerror}") from error
    if not paths:
        raise UsageError(f"--check {folder}: the folder has no data file (NAME.db)")
    damaged = 0
    for path in paths:
        findings = examine(path)
        damaged += bool(findings)
        print(f"{path}: {'; '.join(findings) if findings else 'no damage found'}")
    if damaged:
        raise DataFileError(
            f"{damaged} of {len(paths)} data files in {folder} cannot be trusted: stop the broker "
            "that uses them, and restore them from a backup"
        )


def run(
    namespaces: Sequence[NamespaceOptions],
    *,
    host: str,
    tls_only: bool | None,
    allow_insecure: bool,
    shows_keys: bool,
) -> None:
    from pairbus.broker.server import Server, new_event_loop

    raise_file_limit()
    server = Server(namespaces, host=host, tls_only=tls_only, allow_insecure=allow_insecure)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(server, shows_keys=shows_keys))


def raise_file_limit() -> None:
    """Each connection is a file. The usual limit of 1024 would be less than the broker's own."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(server: Server, *, shows_keys: bool) -> None:
    stop = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        logger.info("%s: stopping", number.name)
        stop.set()

    stop_on_signal(asyncio.get_running_loop(), on_signal)
    await server.start()
    if shows_keys:
        logger.warning(
            "other users of this machine see the keys of --policy in its list of processes: use "
            "--policy-file or PAIRBUS_POLICY"
        )
    # Reference counts free messages; the collector only finds cycles, of which there are few. Less
    # frequent collections, which skip all that is loaded by now, save a microsecond per message.
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
    collecting = asyncio.create_task(collect_connections(server))
    try:
        # Making certificates takes as long as the rest of the start. The first time, they are made
        # before "ready", because a program that reads this line may need the file at once.
        certificates = asyncio.create_task(_log_ca_file(server, stop))
        if server.lacks_certificates:
            await certificates
        for endpoint in server.endpoints.values():
            _announce(f"{endpoint.name} ready: {endpoint.connection_string}")
        await stop.wait()
        await certificates
    finally:
        collecting.cancel()
        await server.stop()


async def collect_connections(server: Server, *, pause_seconds: float = 1.0) -> None:
    """Free what connections leave behind: cycles, with 270 KB of buffers for each one over TLS.
    With the thresholds above, the collector itself would find them after hours.
    """
    collected = 0
    while True:
        await asyncio.sleep(pause_seconds)
        if server.ended_connections >= collected + _ENDED_CONNECTIONS_MAX:
            collected = server.ended_connections
            gc.collect()


def _announce(line: str) -> None:
    # The reader of stdout may be gone. The broker keeps running for its clients.
    with contextlib.suppress(BrokenPipeError):
        print(line, flush=True)


async def _log_ca_file(server: Server, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    try:
        ca_file = await loop.run_in_executor(None, server.ca_file)
    except BrokerError as error:
        logger.warning("clients cannot use TLS: %s", error)
    else:
        if not stop.is_set():
            logger.info("TLS clients must trust %s", ca_file)
