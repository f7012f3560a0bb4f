"""What `pairbus syphon` does: checks what it was given, and runs the job."""

from __future__ import annotations

import importlib.util
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import AzureError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.cli.connection import why_unreachable
from pairbus.cli.pair.syphon_progress import Left, Show, show_for
from pairbus.cli.target import Target, parse_target
from pairbus.errors import NamespaceError, UsageError
from pairbus.fast.address import Address
from pairbus.spark.cluster import session
from pairbus.spark.needs import require_spark
from pairbus.syphon.discovery import ListedQueues
from pairbus.syphon.job import Job, SyphonError
from pairbus.syphon.metrics import SyphonMetrics
from pairbus.syphon.options import SyphonOptions
from pairbus.syphon.receipts import RoundEnded
from pairbus.syphon.runner import SparkRunner

if TYPE_CHECKING:
    from pairbus.syphon.ledger import ParquetLedger

# A stop waits for the round that runs, and then for Spark: five seconds are for both.
ROUND_SECONDS = 1.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    primaries: tuple[str, ...]
    secondary: str | None
    namespaces: tuple[str, ...]
    primary_ca_files: tuple[Path, ...]
    secondary_ca_file: Path | None
    master: str | None
    once: bool
    ledger: Path | None
    ttl_keeps_running: bool
    shares: int
    metrics_port: int | None
    metrics_host: str
    as_json: bool


def run(wanted: Wanted) -> None:
    primaries = _primaries(wanted)
    secondary = _target(wanted.secondary, wanted.secondary_ca_file, "secondary")
    for primary in primaries.values():
        if primary.address.lower() == secondary.address.lower():
            raise UsageError(f"primary and secondary are the same namespace, {primary.address}")
    require_spark("the syphon runs")
    if wanted.metrics_port is not None and importlib.util.find_spec("prometheus_client") is None:
        raise UsageError("metrics need prometheus-client, not installed: pairbus[prometheus]")
    options = SyphonOptions(
        primaries={name: _address(primary) for name, primary in primaries.items()},
        secondary=_address(secondary),
        round_seconds=ROUND_SECONDS,
        shares=wanted.shares,
        ttl_keeps_running=wanted.ttl_keeps_running,
    )
    ledger = None if wanted.ledger is None else _ledger(wanted.ledger)
    with _manager(secondary) as manager:
        discovery = ListedQueues(manager, *primaries)
        queues = _found(discovery, secondary)
        show = show_for(as_json=wanted.as_json, count=lambda: _left(secondary, tuple(primaries)))
        try:
            with _told(), session(wanted.master) as spark:
                spark.sparkContext.setLogLevel("ERROR")
                watchers: list[Callable[[RoundEnded], None]] = [show.round_ended]

                def progress(ended: RoundEnded) -> None:
                    for watcher in watchers:
                        watcher(ended)

                job = Job(
                    options,
                    SparkRunner(spark),
                    discovery,
                    ledger=ledger,
                    progress=progress,
                    cancel=spark.sparkContext.cancelAllJobs,
                )
                with _metrics(wanted, job, watchers), _stopped_by_signals(job, show):
                    show.begin(tuple(primaries), len(queues), discovery.others)
                    receipts = job.run(once=wanted.once)
            show.end(receipts)
        finally:
            show.close()
        if job.left:
            raise NamespaceError(job.left)


def _ledger(folder: Path) -> ParquetLedger:
    from pairbus.syphon.ledger import ParquetLedger  # which needs pyarrow

    return ParquetLedger(folder)


@contextmanager
def _metrics(
    wanted: Wanted, job: Job, watchers: list[Callable[[RoundEnded], None]]
) -> Iterator[None]:
    if wanted.metrics_port is None:
        yield
        return
    metrics = SyphonMetrics(usage=job.usage)
    host = wanted.metrics_host
    served = metrics.serve(wanted.metrics_port, host=host)
    print(f"metrics: http://{host}:{served}/metrics", file=sys.stderr, flush=True)
    watchers.insert(0, metrics)  # before a line tells of the round: who reads it may ask at once
    try:
        yield
    finally:
        metrics.close()


def _primaries(wanted: Wanted) -> dict[str, Target]:
    """By the names that their backlog queues have."""
    texts = wanted.primaries or ("",)
    names, files = wanted.namespaces, wanted.primary_ca_files
    if names and len(names) != len(texts):
        raise UsageError(
            f"{len(texts)} primaries and {len(names)} times --namespace: give it once for each "
            "primary, in their order, or not at all"
        )
    if len(files) > 1 and len(files) != len(texts):
        raise UsageError(
            f"{len(texts)} primaries and {len(files)} times --primary-ca-file: give one for all, "
            "or one for each primary, in their order"
        )
    found: dict[str, Target] = {}
    for place, text in enumerate(texts):
        file = files[place] if len(files) > 1 else files[0] if files else None
        target = _target(text, file, "primary")
        name = names[place] if names else target.host.split(".")[0]
        if name.lower() in map(str.lower, found):
            raise UsageError(
                f"two primaries have the name {name!r}, so their backlog queues cannot be told "
                "apart; if they are not the same, --namespace names each"
            )
        found[name] = target
    return found


def _target(text: str | None, ca_file: Path | None, which: str) -> Target:
    if not text:
        raise UsageError(
            f"which namespace is the {which}? Put its connection string into "
            f"PAIRBUS_{which.upper()}, or give it with --{which}"
        )
    try:
        return parse_target(text, ca_file)
    except UsageError as error:
        raise UsageError(f"the {which}: {error}") from None


def _address(target: Target) -> Address:
    return Address.from_connection_string(
        target.text.reveal(),
        ca_file=None if target.ca_file is None else str(target.ca_file.resolve()),
    )


def _manager(secondary: Target) -> ServiceBusAdministrationClient:
    if secondary.verify is False:
        # For all threads and for good: this process is the syphon's own.
        warnings.filterwarnings("ignore", "Unverified HTTPS request")
    return ServiceBusAdministrationClient.from_connection_string(
        secondary.text.reveal(), connection_verify=secondary.verify
    )


def _found(discovery: ListedQueues, secondary: Target) -> list[str]:
    """Before Spark is started, which takes a while: may we, and is anybody there?"""
    try:
        return discovery()
    except AzureError as error:
        raise NamespaceError(
            f"the queues of the secondary {secondary.address} cannot be listed: "
            f"{why_unreachable(error)}"
        ) from error


def _left(secondary: Target, namespaces: tuple[str, ...]) -> Left:
    """What the backlog queues hold now; nothing, if nobody answers. With a client of its own: it is
    called by another thread."""
    left: Left = {}
    with suppress(AzureError), _manager(secondary) as manager:
        for queue in ListedQueues(manager, *namespaces)():
            counts = manager.get_queue_runtime_properties(queue)
            left[queue] = (
                counts.active_message_count or 0,
                counts.dead_letter_message_count or 0,
            )
    return left


@contextmanager
def _told() -> Iterator[None]:
    """What goes wrong beyond us, in one line."""
    try:
        yield
    except (SyphonError, AzureError) as error:
        raise NamespaceError(str(error)) from error
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        raise NamespaceError(f"Spark cannot run the syphon: {_first_words(error)}") from error


def _first_words(error: Exception) -> str:
    """Spark's errors are pages of two languages' tracebacks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling"):
        del lines[0]
    return lines[0].removeprefix(": ")[:500] if lines else type(error).__name__


@contextmanager
def _stopped_by_signals(job: Job, show: Show) -> Iterator[None]:
    """The first one ends it after its round, a second one at once."""
    is_stopping = False

    def handle(*_: Any) -> None:
        nonlocal is_stopping
        if is_stopping:
            raise KeyboardInterrupt
        is_stopping = True
        # Not here: this thread may be just inside of what `stop` needs.
        threading.Thread(target=job.stop, daemon=True).start()
        show.stopping()

    before: dict[signal.Signals, Callable[..., Any] | int | None] = {
        number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
