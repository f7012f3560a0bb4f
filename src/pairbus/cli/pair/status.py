"""`pairbus status`: sends all requests at once, and waits at most --timeout for each answer.

Each request has its own thread. A request without an answer is abandoned; its thread ends with the
process.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, NoReturn

import typer

from pairbus.cli.http import scrape
from pairbus.cli.output import format_duration, print_json, print_json_line, print_table
from pairbus.cli.pair.status_sources import (
    Backlog,
    NamespaceState,
    check_send,
    probe,
    read_backlog,
    read_metrics,
    sum_metrics,
)
from pairbus.cli.pair.status_view import PairSnapshot, Process, to_json, to_tables
from pairbus.cli.pair.targets import SECONDARY, ObservedPair, ObserveOptions, observe, parse_pair
from pairbus.cli.parse import parse_timeout
from pairbus.cli.shared_options import AS_JSON, flatten_options, option
from pairbus.cli.target import Target
from pairbus.cli.watch import WatchOptions
from pairbus.errors import NamespaceError

_RATE_SECONDS_MAX: Final = 6.0
"""How long to wait for two rounds of a syphon, which take about two seconds each."""
_RATE_STEP_SECONDS: Final = 0.25
_FAILED: Final = 1


@flatten_options
def status(
    *,
    pair: ObserveOptions,
    peek: int = option(
        "N",
        "Number of messages to peek at in each backlog queue, to count their destinations "
        "(default: 100).",
        min=0,
        max=100_000,
        default=100,
    ),
    timeout: str = option(
        "DURATION", "How long to wait for an answer (default: 10s).", default="10s"
    ),
    watching: WatchOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Show both namespaces of a pair, the backlog, and what clients and syphons report.

    It changes nothing and locks nothing. "connect" is the time to open an AMQP connection, "round
    trip" the time of an HTTP request. The policy of the primary needs Send, that of the secondary
    Manage and Listen. If a right is missing, the command says so. Only the processes themselves
    know which entities are failed over and how fast a syphon is: give the URLs of their metrics.

    Exit codes: 0 all namespaces answer, 1 a namespace does not answer or a right is missing, 2
    usage error, 130 interrupted.

    \b
    Examples:
      pairbus status
      pairbus status --metrics http://localhost:9100/metrics --watch --interval 5s
      pairbus status --json
    """
    observed = observe(parse_pair(pair), pair)
    ask = partial(_ask, peek=peek, seconds=parse_timeout(timeout))
    if (interval := watching.parse()) is not None:
        _watch(partial(ask, observed), interval, as_json=as_json)
    found = ask(observed)
    if found.metrics.brought_home is not None and found.left != 0:
        processes = replace(observed, targets={})
        rate = measure_rate(lambda: ask(processes).metrics.brought_home)
        found = replace(found, rate=rate)
    if as_json:
        print_json(to_json(found))
    else:
        print_table(*to_tables(found))
    if not found.is_ok:
        raise typer.Exit(_FAILED)


# -- asking -------------------------------------------------------------------------------------


def _ask(pair: ObservedPair, *, peek: int, seconds: float) -> PairSnapshot:
    now = time.time()
    calls: dict[str, Callable[[], Any]] = {}
    for role, target in pair.targets.items():
        calls[role] = partial(probe, role, target, seconds=seconds)
    if (secondary := pair.targets.get(SECONDARY)) is not None:
        calls["backlog"] = partial(
            read_backlog, secondary, pair.primary_names, peek=peek, seconds=seconds, now=now
        )
    for url in pair.urls:
        calls[url] = partial(_read_process, url, seconds)
    answers = call_in_parallel(calls, seconds=seconds)
    answer = answers.get("backlog")
    backlog = answer if isinstance(answer, Backlog) else None
    namespaces = {
        role: _namespace(role, target, answers[role]) for role, target in pair.targets.items()
    }
    processes = tuple(_process(url, answers[url]) for url in pair.urls)
    return PairSnapshot(
        at=now,
        namespaces=tuple(_with_rights(pair, namespaces, backlog, seconds).values()),
        backlog=backlog,
        backlog_error=_error(answer),
        processes=processes,
        metrics=sum_metrics(one.metrics for one in processes if one.metrics is not None),
    )


def _with_rights(
    pair: ObservedPair,
    namespaces: dict[str, NamespaceState],
    backlog: Backlog | None,
    seconds: float,
) -> dict[str, NamespaceState]:
    """Checks the right on the primaries. This comes after the backlog, which names entities."""
    primaries = [role for role in namespaces if role != SECONDARY]
    calls: dict[str, Callable[[], Any]] = {}
    for role, name in zip(primaries, pair.primary_names or (), strict=False):
        if namespaces[role].is_reachable:
            destinations = [] if backlog is None else backlog.destinations(name)
            target = pair.targets[role]
            calls[role] = partial(check_send, namespaces[role], target, destinations)
    checked = call_in_parallel(calls, seconds=seconds)
    for role, answer in checked.items():
        if not isinstance(answer, NamespaceState):
            checked[role] = replace(namespaces[role], checked=f"nothing: {answer}")
    return namespaces | checked


def call_in_parallel(calls: dict[str, Callable[[], Any]], *, seconds: float) -> dict[str, Any]:
    """The answer of each call, or a NamespaceError. Raises any other error."""
    answers: dict[str, Any] = {
        name: NamespaceError(f"no answer within {format_duration(seconds)}") for name in calls
    }

    def call(name: str) -> None:
        try:
            answers[name] = calls[name]()
        except Exception as error:
            answers[name] = error

    deadline = time.monotonic() + seconds
    # Daemon threads: a ThreadPoolExecutor would wait for its threads when the process exits.
    threads = [
        threading.Thread(target=call, args=(name,), name=f"pairbus-{name}", daemon=True)
        for name in calls
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    taken = dict(answers)  # a late answer must not change what is read below
    for answer in taken.values():
        if isinstance(answer, Exception) and not isinstance(answer, NamespaceError):
            raise answer
    return taken


def _read_process(url: str, seconds: float) -> Process:
    samples = scrape(url, seconds=seconds)
    try:
        return Process(url=url, metrics=read_metrics(samples))
    except (ValueError, OverflowError) as error:  # it counts NaN or infinitely many messages
        raise NamespaceError(f"one of its metrics is not a number: {error}") from error


def _namespace(role: str, target: Target, answer: Any) -> NamespaceState:
    if isinstance(answer, NamespaceState):
        return answer
    return NamespaceState(
        role=role, address=target.address, is_reachable=False, error=_error(answer)
    )


def _process(url: str, answer: Any) -> Process:
    return answer if isinstance(answer, Process) else Process(url=url, error=_error(answer))


def _error(answer: Any) -> str | None:
    return str(answer) if isinstance(answer, NamespaceError) else None


# -- rates --------------------------------------------------------------------------------------


def measure_rate(
    read: Callable[[], int | None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> float | None:
    """Messages per second. A syphon updates its counter after each round, so the rate is taken
    from one change of the counter to the next, or over the whole time if they do not come."""
    started_at, first = clock(), read()
    changed: tuple[float, int] | None = None
    last = first
    while first is not None and last is not None and clock() - started_at < _RATE_SECONDS_MAX:
        sleep(_RATE_STEP_SECONDS)
        now, value = clock(), read()
        if value is None or value < last:  # the syphon is gone, or it has started again
            return None
        if value > last:
            if changed is not None:
                return (value - changed[1]) / (now - changed[0])
            changed = (now, value)
        last = value
    if first is None or last is None:
        return None
    return (last - first) / (clock() - started_at)


def _with_rate(before: PairSnapshot | None, now: PairSnapshot) -> PairSnapshot:
    if before is None:
        return now
    value, earlier = now.metrics.brought_home, before.metrics.brought_home
    seconds = now.at - before.at
    if value is None or earlier is None or seconds <= 0 or value < earlier:
        return now  # a syphon has started again
    return replace(now, rate=(value - earlier) / seconds)


# -- watching -----------------------------------------------------------------------------------


def _watch(ask: Callable[[], PairSnapshot], interval: float, *, as_json: bool) -> NoReturn:
    """Until Ctrl-C."""
    with _screen(as_json=as_json) as show:
        before: PairSnapshot | None = None
        while True:
            started_at = time.monotonic()
            before = _with_rate(before, ask())
            show(before)
            time.sleep(max(interval - (time.monotonic() - started_at), 0))


@contextmanager
def _screen(*, as_json: bool) -> Iterator[Callable[[PairSnapshot], None]]:
    from rich.console import Console, Group
    from rich.live import Live

    console = Console(markup=False, highlight=False, emoji=False)
    if as_json:
        yield lambda status: print_json_line({"event": "status", **to_json(status)})
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda status: live.update(Group(*to_tables(status)), refresh=True)
    else:
        yield _print_and_flush


def _print_and_flush(status: PairSnapshot) -> None:
    print_table(*to_tables(status))
    print()
    sys.stdout.flush()
