"""`pairbus broker` once its options are known: run until a signal, then stop cleanly.

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
from typing import Final

from pairbus.broker.entities.options import NamespaceOptions
from pairbus.broker.server import Server
from pairbus.errors import BrokerError

logger = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def run(
    namespaces: Sequence[NamespaceOptions],
    *,
    host: str,
    tls_only: bool | None,
    log_level: str,
) -> None:
    import uvloop

    logging.basicConfig(
        stream=sys.stderr,
        level=log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    server = Server(namespaces, host=host, tls_only=tls_only)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
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
