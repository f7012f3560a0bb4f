"""What `pairbus status` does: asks everybody at once, and waits for nobody longer than it was told.

Each question has a thread of its own. One that is not answered in time is left behind, and ends
with the process.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import typer
from rich.console import Console
from rich.live import Live

from pairbus.cli.http import metrics_url, scrape
from pairbus.cli.output import print_json, print_table
from pairbus.cli.pair.status_metrics import Told, together, told_by
from pairbus.cli.pair.status_sources import Backlog, NamespaceState, backlog, probe
from pairbus.cli.pair.status_view import Process, Status, as_form, tables_of
from pairbus.cli.parse import parse_duration
from pairbus.cli.target import Target, parse_target, split_targets
from pairbus.errors import NamespaceError, UsageError

_RATE_SECONDS_MAX: Final = 6.0
_RATE_STEP_SECONDS: Final = 0.25
"""A syphon's round takes about two seconds."""
_FAILED: Final = 1
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    primaries: tuple[str, ...]
    secondary: str | None
    namespaces: tuple[str, ...]
    primary_ca_file: Path | None
    secondary_ca_file: Path | None
    metrics: tuple[str, ...]
    look_at: int
    timeout: str
    watch: str | None
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    targets: dict[str, Target]
    """By what they are to the pair."""
    namespaces: tuple[str, ...] | None
    """The primaries' names in the paths of backlog queues; None: all that there are."""
    urls: tuple[str, ...]
    look_at: int
    seconds: float


def run(wanted: Wanted) -> None:
    plan = _plan(wanted)
    if wanted.watch is None:
        status = _gather(plan, None)
        if status.told.moved is not None and status.left != 0:
            status = replace(status, rate=pace(lambda: _moved(plan), sleep=time.sleep))
        _print(status, as_json=wanted.as_json)
        if not status.is_well:
            raise typer.Exit(_FAILED)
        return
    every = parse_duration(wanted.watch, "--watch").total_seconds()
    if every <= 0:
        raise UsageError(f"--watch {wanted.watch!r}: more than nothing is expected, such as 5s")
    try:
        _watch(plan, every, as_json=wanted.as_json)
    except KeyboardInterrupt:  # that is how it ends
        return


def _plan(wanted: Wanted) -> _Plan:
    primaries = [
        _target("primary", text, wanted.primary_ca_file)
        for texts in wanted.primaries
        for text in split_targets(texts)
    ]
    names = wanted.namespaces or tuple(one.host.split(".")[0] for one in primaries)
    if len(primaries) > 1 and len(names) != len(primaries):
        raise UsageError(
            f"{len(primaries)} primaries and {len(names)} times --namespace: give it once for each"
        )
    roles = [f"primary {name}" for name in names] if len(primaries) > 1 else ["primary"]
    targets = dict(zip(roles, primaries, strict=False))
    if len(targets) < len(primaries):
        raise UsageError(
            f"several primaries are called {names[0]!r}: tell them apart with --namespace"
        )
    if wanted.secondary:
        targets["secondary"] = _target("secondary", wanted.secondary, wanted.secondary_ca_file)
    urls = tuple(metrics_url(url) for text in wanted.metrics for url in text.split())
    if not targets and not urls:
        raise UsageError(
            "which namespaces? Put their connection strings into PAIRBUS_PRIMARY and "
            "PAIRBUS_SECONDARY, or give them with --primary and --secondary"
        )
    seconds = parse_duration(wanted.timeout, "--timeout").total_seconds()
    if seconds <= 0:
        raise UsageError(f"--timeout {wanted.timeout!r}: more than nothing is expected")
    return _Plan(
        targets=targets,
        namespaces=names or None,
        urls=urls,
        look_at=wanted.look_at,
        seconds=seconds,
    )


def _target(role: str, text: str, ca_file: Path | None) -> Target:
    try:
        return parse_target(text, ca_file)
    except UsageError as error:
        raise UsageError(f"the {role}: {error}") from None


# -- asking -------------------------------------------------------------------------------------


def _gather(plan: _Plan, before: Status | None) -> Status:
    now = time.time()
    questions: dict[str, Callable[[], Any]] = {}
    for role, target in plan.targets.items():
        questions[role] = _later(probe, role, target, seconds=plan.seconds)
    if "secondary" in plan.targets:
        questions["backlog"] = _later(
            backlog,
            plan.targets["secondary"],
            plan.namespaces,
            look_at=plan.look_at,
            seconds=plan.seconds,
            now=now,
        )
    for url in plan.urls:
        questions[url] = _later(_process, url, plan.seconds)
    answers = ask_all(questions, seconds=plan.seconds)
    status = Status(
        at=now,
        namespaces=tuple(_namespace(role, plan, answers[role]) for role in plan.targets),
        backlog=_answered(answers.get("backlog"), Backlog),
        backlog_why=_why_not(answers.get("backlog"), plan.seconds),
        processes=tuple(_of_process(url, answers[url], plan.seconds) for url in plan.urls),
        told=together(
            found.told
            for found in (_answered(answers[url], Process) for url in plan.urls)
            if found is not None
        ),
    )
    return status if before is None else _rated(before, status)


def _later(call: Callable[..., _Answer], *args: Any, **kwargs: Any) -> Callable[[], _Answer]:
    return lambda: call(*args, **kwargs)


def ask_all(questions: dict[str, Callable[[], Any]], *, seconds: float) -> dict[str, Any]:
    """An answer, the error, or None where there was neither in time."""
    answers: dict[str, Any] = dict.fromkeys(questions)

    def ask(name: str) -> None:
        try:
            answers[name] = questions[name]()
        except Exception as error:
            answers[name] = error

    until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=ask, args=(name,), name=f"pairbus-{name}", daemon=True)
        for name in questions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
    for answer in (taken := dict(answers)).values():
        if isinstance(answer, Exception) and not isinstance(answer, NamespaceError):
            raise answer
    return taken


def _process(url: str, seconds: float) -> Process:
    return Process(url=url, told=told_by(scrape(url, seconds=seconds)))


def _namespace(role: str, plan: _Plan, answer: Any) -> NamespaceState:
    if isinstance(answer, NamespaceState):
        return answer
    return NamespaceState(
        role=role,
        address=plan.targets[role].address,
        is_reachable=False,
        why=_why_not(answer, plan.seconds),
    )


def _of_process(url: str, answer: Any, seconds: float) -> Process:
    if isinstance(answer, Process):
        return answer
    return Process(url=url, why=_why_not(answer, seconds), told=Told())


def _answered(answer: Any, kind: type[_Answer]) -> _Answer | None:
    return answer if isinstance(answer, kind) else None


def _why_not(answer: Any, seconds: float) -> str | None:
    if answer is None:
        return f"no answer within {seconds:g} s"
    return str(answer) if isinstance(answer, Exception) else None


# -- again and again ----------------------------------------------------------------------------


def pace(
    ask: Callable[[], int | None],
    *,
    sleep: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
) -> float | None:
    """Messages a second. A syphon counts at the end of each round: so from one change of its
    number to the next, if both come soon, else over all of the time."""
    began, first = clock(), ask()
    changed: tuple[float, int] | None = None
    last = first
    while first is not None and last is not None and clock() - began < _RATE_SECONDS_MAX:
        sleep(_RATE_STEP_SECONDS)
        now, value = clock(), ask()
        if value is None or value < last:  # gone, or begun anew
            return None
        if value > last:
            if changed is not None:
                return (value - changed[1]) / (now - changed[0])
            changed = (now, value)
        last = value
    if first is None or last is None:
        return None
    return (last - first) / (clock() - began)


def _moved(plan: _Plan) -> int | None:
    """Only what syphons tell is asked for."""
    return _gather(replace(plan, targets={}), None).told.moved


def _rated(before: Status, status: Status) -> Status:
    moved, earlier = status.told.moved, before.told.moved
    seconds = status.at - before.at
    if moved is None or earlier is None or seconds <= 0 or moved < earlier:
        return status  # one of them has begun anew
    return replace(status, rate=(moved - earlier) / seconds)


def _watch(plan: _Plan, every: float, *, as_json: bool) -> None:
    with _screen(as_json=as_json) as show:
        status: Status | None = None
        while True:  # until Ctrl-C
            began = time.monotonic()
            status = _gather(plan, status)
            show(status)
            time.sleep(max(every - (time.monotonic() - began), 0))


@contextmanager
def _screen(*, as_json: bool) -> Iterator[Callable[[Status], None]]:
    console = Console(markup=False, highlight=False)
    if as_json:
        yield lambda status: print(json.dumps(as_form(status), ensure_ascii=False), flush=True)
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda status: live.update(tables_of(status), refresh=True)
    else:
        yield lambda status: _print(status, as_json=False, is_followed=True)


def _print(status: Status, *, as_json: bool, is_followed: bool = False) -> None:
    if as_json:
        print_json(as_form(status))
        return
    print_table(tables_of(status))
    if is_followed:
        print()
        sys.stdout.flush()
