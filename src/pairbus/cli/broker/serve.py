"""`pairbus broker`: run until a signal, then stop cleanly.

stdout belongs to the ready lines, one per namespace, for programs to read; logs go to stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pairbus.errors import BrokerError, UsageError

if TYPE_CHECKING:
    from pairbus.broker.entities.options import NamespaceOptions
    from pairbus.broker.server import Server

logger = logging.getLogger(__name__)

DEFAULT_DATA: Final = Path("pairbus-data")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Sku(StrEnum):
    STANDARD = "Standard"
    PREMIUM = "Premium"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def broker(
    context: typer.Context,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:PORT]",
            help="A namespace and its port; may be repeated. Without a port, or with 0, the system "
            "picks one. Default: local.",
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A queue in every namespace; may be repeated."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A topic in every namespace; may be repeated."),
    ] = None,
    subscription: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC/NAME",
            help="A subscription in every namespace, and its topic; may be repeated.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="Config.json",
            help="Namespaces, queues, topics, subscriptions and rules, in the official emulator's "
            "form.",
        ),
    ] = None,
    sku: Annotated[
        Sku,
        typer.Option(
            case_sensitive=False,
            help="The tier whose message sizes hold: 256 KB, or up to 100 MB.",
        ),
    ] = Sku.STANDARD,
    accept_bearer: Annotated[
        bool,
        typer.Option(
            "--accept-bearer",
            help="Take any bearer token without a check, for applications that log in with "
            "azure-identity; on loopback only.",
        ),
    ] = False,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:KEY:RIGHTS",
            envvar="PAIRBUS_POLICY",
            help="A shared access key and its rights, out of Manage,Send,Listen; may be repeated. "
            "Default: the emulator's well-known key, which others than this machine may not use.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="PAIRBUS_DATA",
            help=f"Where messages and certificates are kept. Default: ./{DEFAULT_DATA}",
        ),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Keep nothing beyond the end of this process.")
    ] = False,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            envvar="PAIRBUS_HOST",
            help="The address to listen on. Others than loopback need --policy and take only TLS.",
        ),
    ] = "localhost",
    tls_only: Annotated[
        bool, typer.Option("--tls-only", help="Refuse connections without TLS, also on loopback.")
    ] = False,
    log_level: Annotated[
        LogLevel, typer.Option(envvar="PAIRBUS_LOG_LEVEL", help="What goes to stderr.")
    ] = LogLevel.INFO,
) -> None:
    """Run a Service Bus in this process, until it is interrupted.

    Prints "NAME ready: CONNECTION STRING" for each namespace, and nothing else on stdout.

    \b
    Examples:
      pairbus broker --queue orders
      pairbus broker --subscription events/audit --subscription events/billing
      pairbus broker --namespace local:5672 --config Config.json
      pairbus broker --namespace east:5672 --namespace west:5673 --memory
      pairbus broker --policy app:s3cret:Send,Listen --policy ops:t0psecret:Manage
    """
    from pairbus.cli.broker.options import gather_namespaces

    data_source = context.get_parameter_source("data")
    if memory and data_source is not None and data_source.name == "COMMANDLINE":
        raise UsageError("--data and --memory exclude each other")
    options = gather_namespaces(
        namespaces=namespace or [],
        queues=queue or [],
        topics=topic or [],
        subscriptions=subscription or [],
        sku=sku.value,
        accepts_bearer=accept_bearer,
        policies=policy or [],
        config=config,
        data=None if memory else data or DEFAULT_DATA,
    )
    run(options, host=host, tls_only=tls_only or None, log_level=log_level.value)


def run(
    namespaces: Sequence[NamespaceOptions],
    *,
    host: str,
    tls_only: bool | None,
    log_level: str,
) -> None:
    from pairbus.broker.server import Server, new_event_loop

    logging.basicConfig(
        stream=sys.stderr,
        level=log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    server = Server(namespaces, host=host, tls_only=tls_only)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(server))


async def _serve(server: Server) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():  # asked twice: somebody is in a hurry, and what is kept is on the disk
            os._exit(128 + number)
        logger.info("%s: stopping", number.name)
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)

    await server.start()
    # Messages are freed by reference counts. The collector only looks for cycles, of which there
    # are few: seldom, and not among all that was loaded so far, it costs a microsecond less each.
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
    try:
        # Making certificates takes as long as all the rest. The first time they are made before
        # "ready", because who reads that may look for the file at once.
        certificates = asyncio.create_task(_tell_ca_file(server))
        if server.keeps_certificates and not server.has_certificates:
            await certificates
        for endpoint in server.endpoints.values():
            _announce(f"{endpoint.name} ready: {endpoint.connection_string}")
        await stop.wait()
        await certificates
    finally:
        await server.stop()


def _announce(line: str) -> None:
    # Whoever started us may have stopped listening; the broker is for its clients.
    with contextlib.suppress(BrokenPipeError):
        print(line, flush=True)


async def _tell_ca_file(server: Server) -> None:
    loop = asyncio.get_running_loop()
    try:
        ca_file = await loop.run_in_executor(None, server.ca_file)
    except BrokerError as error:
        logger.warning("clients cannot use TLS: %s", error)
    else:
        logger.info("TLS clients are to trust %s", ca_file)
