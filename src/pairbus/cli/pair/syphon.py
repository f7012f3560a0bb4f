"""`pairbus syphon`: checks the options, runs the syphon's job on Spark, and shows its progress."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from azure.core.exceptions import AzureError

from pairbus.cli.administration import administration_client, answer_within, explain_answers
from pairbus.cli.pair.syphon_live import make_progress
from pairbus.cli.pair.syphon_progress import (
    COUNT_SECONDS,
    BacklogCounter,
    BacklogCounts,
    Progress,
    Ready,
    dead_letters,
)
from pairbus.cli.pair.targets import (
    PairOptions,
    PairTargets,
    address_of,
    parse_pair,
    some_entities,
)
from pairbus.cli.shared_options import AS_JSON, flag, flatten_options, option, option_group
from pairbus.cli.signals import graceful_stop
from pairbus.cli.target import Target, why_unreachable
from pairbus.errors import MissingExtra, NamespaceError, UsageError
from pairbus.spark.session import check_session, require_spark, syphon_session
from pairbus.syphon.discovery import ListedQueues, backlog_queues, namespace_of
from pairbus.syphon.job import Job
from pairbus.syphon.long_poll import ANSWER_SECONDS
from pairbus.syphon.metrics import SyphonMetrics
from pairbus.syphon.options import SyphonOptions
from pairbus.syphon.receipts import Receipt, RoundEnded
from pairbus.syphon.rights import MissingRight, check_right, destinations_in_backlog
from pairbus.syphon.runner import SparkRunner

if TYPE_CHECKING:
    from pairbus.syphon.ledger import ParquetLedger

COUNT_SECONDS_MAX: Final = 1.0
_MASTER: Final = re.compile(
    r"""local
      | local\[ (\d+|\*) (\s*,\s*\d+)? \]
      | local-cluster\[ .+ \]
      | spark://[^\s,:]+:\d+ (,[^\s,:]+:\d+)*   # several: one of them is the leader
      | yarn
      | k8s://\S+""",
    re.VERBOSE,
)


@option_group
class JobOptions:
    master: str | None = option(
        "URL",
        "Spark's master: the URL of a cluster, or local[N,4] (default: local[5,4], or the "
        "master of spark-submit).",
    )
    once: bool = flag("End when nothing more can be brought home.", "--once")
    ledger: Path | None = option("DIR", "Folder for a ledger of all messages, in Parquet files.")
    ledger_messages: bool = flag(
        "Also write a line for each message to the ledger, before it leaves the backlog.",
        "--ledger-messages",
    )
    keep_ttl_running: bool = flag(
        "Keep the time to live of a message running while it waits in the backlog. "
        "Without this option, it starts again when the message is brought home.",
        "--keep-ttl-running",
    )
    shares: int = option(
        "N",
        "Tasks for each backlog queue (default: 1). With more than one, messages may "
        "arrive out of order.",
        min=1,
        default=1,
    )
    metrics_port: int | None = option(
        "PORT",
        "Serve Prometheus metrics on this port; 0 lets the system choose one.",
        min=0,
        max=65535,
    )
    metrics_host: str = option(
        "ADDRESS",
        "Address for --metrics-port (default: 127.0.0.1); 0.0.0.0 for all addresses.",
        default="127.0.0.1",
    )


@flatten_options
def syphon(pair: PairOptions, job_options: JobOptions, as_json: bool = AS_JSON) -> None:
    """Bring diverted messages home: from the backlog queues to their entities, on Spark.

    It runs until Ctrl-C or SIGTERM, and then ends within a few seconds, with nothing left locked.
    On a terminal it shows live progress; otherwise it logs a line to stderr from time to time. The
    policy of the primary needs Send, that of the secondary Manage and Listen. Give connection
    strings in PAIRBUS_PRIMARY and PAIRBUS_SECONDARY: other users of this machine can see options.

    Exit codes: 0 success, also after a signal, 1 a namespace refused or did not answer, or --once
    left or dead-lettered messages, 2 usage error, 130 interrupted while Spark starts, or twice.

    \b
    Examples:
      pairbus syphon
      pairbus syphon --once --ledger ./ledger
      pairbus syphon --master spark://HOST:7077 --json
    """
    check_master(job_options.master)
    targets = parse_pair(pair)
    secondary = _check(targets)
    if job_options.ledger_messages and job_options.ledger is None:
        raise UsageError("--ledger-messages writes to a ledger: give its folder with --ledger DIR")
    require_spark("the syphon")
    if job_options.metrics_port is not None and find_spec("prometheus_client") is None:
        raise MissingExtra("--metrics-port", package="prometheus_client", extra="prometheus")
    options = SyphonOptions(
        primaries={name: address_of(target) for name, target in targets.primaries.items()},
        secondary=address_of(secondary),
        shares=job_options.shares,
        ttl_keeps_running=job_options.keep_ttl_running,
    )
    _run(options, targets, secondary, job_options, as_json=as_json)


def check_master(master: str | None) -> None:
    """Spark takes long to start, and then reports an unknown master as an error of Java."""
    if master is not None and not _MASTER.fullmatch(master):
        raise UsageError(
            f"--master {master!r} is not a Spark master: use local[N], spark://HOST:PORT, yarn or "
            "k8s://HOST:PORT"
        )


def _check(targets: PairTargets) -> Target:
    """Returns the secondary."""
    for role, is_missing in (
        ("primary", not targets.primaries),
        ("secondary", targets.secondary is None),
    ):
        if is_missing:
            raise UsageError(
                f"which namespace is the {role}? Put its connection string or host name into "
                f"PAIRBUS_{role.upper()}, or give it with --{role}"
            )
    assert targets.secondary is not None
    return targets.secondary


def _run(
    options: SyphonOptions,
    targets: PairTargets,
    secondary: Target,
    job_options: JobOptions,
    *,
    as_json: bool,
) -> None:
    ledger = None
    if job_options.ledger is not None:
        from pairbus.syphon.ledger import ParquetLedger  # loads pyarrow

        ledger = ParquetLedger(job_options.ledger, messages=job_options.ledger_messages)
    primaries = targets.names
    # py4j logs on the root logger, with tracebacks, that Java has ended or a signal has come. Here,
    # one line says so.
    logging.getLogger().addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
    with administration_client(secondary) as manager:
        list_queues = ListedQueues(manager, *primaries, connect=options.secondary.client)
        queues = _list_once(list_queues, secondary)
        rights = _check_rights(options, targets, queues)
        count_backlog = partial(_count_backlog, secondary, primaries)
        count = BacklogCounter(count_backlog)
        ready = Ready(
            primaries=primaries,
            queues=len(queues),
            others=list_queues.others,
            rights=rights.checked,
        )
        with closing(make_progress(as_json=as_json, count=count)) as progress:
            if job_options.once and _is_empty(options, queues):
                # Spark takes long to start.
                progress.begin(ready)
                if ledger is not None:
                    ledger.close()
                progress.end((), {})
                return
            with (
                _one_line_errors(),
                # Before Spark starts, which takes long: the port may be taken.
                _serve_metrics(job_options, primaries, count) as metrics,
                # While Spark starts or stops, a signal ends the command at once.
                graceful_stop(is_idle=lambda: True) as starting,
                syphon_session(job_options.master) as spark,
            ):
                job = _make_job(spark, options, list_queues, ledger, progress, count, metrics)
                for name, error in rights.unreachable.items():
                    job.primary_lost(name, error)

                def stop() -> None:
                    # On a thread: a signal handler may interrupt a thread that holds the lock.
                    threading.Thread(target=job.stop, daemon=True).start()
                    progress.stopping()

                starting.exit()  # the bridge to Java may have swallowed the exception of a signal
                with graceful_stop(on_request=stop):
                    progress.begin(ready)
                    receipts = job.run(once=job_options.once)
            # A stop must be quick, even if the secondary does not answer.
            left = answer_within(COUNT_SECONDS_MAX, count_backlog)
            progress.end(receipts, left)
        _report_failures(job, receipts, is_once=job_options.once, as_json=as_json)


def _make_job(
    spark: Any,
    options: SyphonOptions,
    list_queues: ListedQueues,
    ledger: ParquetLedger | None,
    progress: Progress,
    count: BacklogCounter,
    metrics: SyphonMetrics | None,
) -> Job:
    spark.sparkContext.setLogLevel("ERROR")
    observers: list[Callable[[RoundEnded], None]] = [count.round_ended, progress.round_ended]
    if metrics is not None:
        # First: a program that reads a progress line may scrape them at once.
        observers.insert(0, metrics)

    def round_ended(ended: RoundEnded) -> None:
        for observer in observers:
            observer(ended)

    job = Job(
        options,
        SparkRunner(spark),
        list_queues,
        ledger=ledger,
        progress=round_ended,
        waiting=progress.waiting,
        cancel=spark.sparkContext.cancelAllJobs,
        check=partial(check_session, spark),
    )
    if metrics is not None:
        metrics.add_usage(job.usage)
    return job


def _report_failures(
    job: Job, receipts: Sequence[Receipt], *, is_once: bool, as_json: bool
) -> None:
    """Says what was left or dead-lettered. With --once, that is an error."""
    texts = [job.left] if job.left else []
    if dead := dead_letters(receipts):
        texts.append(
            f"dead-lettered: {'; '.join(dead)}. Remove the cause, and then move them back with "
            "`pairbus dead-letters resubmit`"
        )
    if texts and (is_once or job.left):
        raise NamespaceError("; ".join(texts))
    if texts and not as_json:
        print(texts[0], flush=True)


@contextmanager
def _serve_metrics(
    options: JobOptions, primaries: tuple[str, ...], count: Callable[[], BacklogCounts | None]
) -> Iterator[SyphonMetrics | None]:
    if options.metrics_port is None:
        yield None
        return
    metrics = SyphonMetrics(primaries=primaries)
    port = metrics.serve(options.metrics_port, host=options.metrics_host)
    print(f"metrics: http://{options.metrics_host}:{port}/metrics", file=sys.stderr, flush=True)
    ending = threading.Event()

    def keep_counting() -> None:
        while not ending.is_set():
            metrics.set_backlog(count() or {})
            ending.wait(COUNT_SECONDS)

    # On a thread, not for each scrape: a scrape must not wait for a secondary that is silent.
    threading.Thread(target=keep_counting, daemon=True).start()
    try:
        yield metrics
    finally:
        ending.set()
        metrics.close()


# -- the secondary ------------------------------------------------------------------------------


def _list_once(list_queues: ListedQueues, secondary: Target) -> list[str]:
    """Fails early if the secondary does not answer or refuses: Spark takes long to start."""
    try:
        with explain_answers(secondary, "the list of queues"):
            return list_queues()
    except NamespaceError as error:
        raise NamespaceError(f"the secondary: {error}") from error


def _is_empty(options: SyphonOptions, queues: Sequence[str]) -> bool:
    """Whether all backlog queues are empty. Azure's counts may lag, so this peeks at them."""
    with suppress(AzureError), options.secondary.client(timeout_seconds=ANSWER_SECONDS) as client:
        return not any(client.first_messages(queues))
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rights:
    checked: Mapping[str, str]
    """What was checked, by primary."""
    unreachable: Mapping[str, str]
    """Primaries that do not answer, and why. They may be back later."""


def _check_rights(options: SyphonOptions, targets: PairTargets, queues: Sequence[str]) -> _Rights:
    """Raises NamespaceError if a right is missing. Otherwise the first outage would show it."""
    try:
        check_right(options.secondary, "Listen", lambda: queues, role="the secondary")
    except MissingRight:
        raise
    except AzureError as error:
        raise NamespaceError(f"the secondary does not answer: {why_unreachable(error)}") from error
    checked: dict[str, str] = {}
    unreachable: dict[str, str] = {}
    for name, address in options.primaries.items():

        def entities(name: str = name) -> list[str]:
            own = [queue for queue in queues if (namespace_of(queue) or "").lower() == name.lower()]
            waiting = destinations_in_backlog(options.secondary, own)
            return waiting or some_entities(targets.primaries[name])

        try:
            checked[name] = check_right(address, "Send", entities, role="the primary")
        except MissingRight:
            raise
        except AzureError as error:
            unreachable[name] = why_unreachable(error)
            checked[name] = f"nothing, because the primary cannot be reached: {unreachable[name]}"
    return _Rights(checked=checked, unreachable=unreachable)


def _count_backlog(secondary: Target, primaries: tuple[str, ...]) -> BacklogCounts | None:
    """None if the secondary does not answer. It uses its own client, because it runs on another
    thread.
    """
    counts: BacklogCounts = {}
    with administration_client(secondary) as manager, suppress(AzureError):
        found = {one.name: one for one in manager.list_queues_runtime_properties()}
        for queue in (name for primary in primaries for name in backlog_queues(found, primary)):
            one = found[queue]
            counts[queue] = (one.active_message_count or 0, one.dead_letter_message_count or 0)
        return counts
    return None


# -- errors -------------------------------------------------------------------------------------


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except AzureError as error:
        raise NamespaceError(str(error)) from error
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        raise NamespaceError(f"Spark cannot run the syphon: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """Shortens Spark's errors, which contain the tracebacks of two languages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling"):
        del lines[0]
    return lines[0].removeprefix(": ")[:500] if lines else type(error).__name__
