"""`pairbus verify`: sends messages through a pair, and says whether one was lost."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import typer

from pairbus.cli.loading import INTERRUPTED
from pairbus.cli.output import print_json, write_file
from pairbus.cli.pair.targets import PairOptions, parse_pair
from pairbus.cli.parse import parse_duration
from pairbus.cli.shared_options import AS_JSON, flag, flatten_options, option
from pairbus.cli.signals import Interrupted, SignalFlag
from pairbus.cli.target import Target
from pairbus.errors import UsageError, check_broker_installed
from pairbus.spark.session import require_spark
from pairbus.verify.processes import LocalPair
from pairbus.verify.report import to_html, to_json, to_text
from pairbus.verify.run import DELETE_SECONDS_MAX, VerifyRun
from pairbus.verify.worker import Pair

_SECONDS: Final = (5.0, 86_400.0)
_INTERRUPTED_SECONDS: Final = 2.0


@flatten_options
def verify(
    pair: PairOptions,
    local: bool = flag(
        "Start two brokers here, and cause faults: kills, network cuts, and more.", "--local"
    ),
    duration: str = option(
        "DURATION", "How long to send: 5s to 24h (default: 60s).", default="60s"
    ),
    rate: float = option(
        "N", "Messages per second (default: 100).", min=1, max=10_000, default=100
    ),
    senders: int = option(
        "N",
        "Sender processes, with the blocking and the asyncio client in turn (default: 2).",
        min=1,
        max=50,
        default=2,
    ),
    drain: str = option(
        "DURATION",
        "How long to wait at the end until every message is home (default: 5m).",
        default="5m",
    ),
    no_syphon: bool = flag(
        "Start no syphon, because one runs for this pair already.", "--no-syphon"
    ),
    seed: int | None = option(
        "N", "Seed for messages and faults (default: a new one, which is shown)."
    ),
    report: Path | None = option("FILE.html", "Write a page with curves of sends and backlog."),
    as_json: bool = AS_JSON,
) -> None:
    """Certify a pair: send through it, count every message, and say whether one was lost.

    Creates two queues on the primary (which needs the Manage right), sends to them through paired
    clients, receives with the official SDK, drains the backlog, and accounts for every message by
    its id and checksum. It removes the two queues at the end. Try it on your own pair, with one
    primary, while nobody needs it, and cause an outage meanwhile.

    Exit codes: 0 nothing was lost, unexpected or damaged, 1 something was, or the run failed, 2
    usage error, 130 interrupted.

    \b
    Examples:
      pairbus verify --local
      pairbus verify --local --duration 5m --seed 7 --report verify.html
      pairbus verify --primary "$PRIMARY" --secondary "$SECONDARY" --duration 10m
    """
    seconds = parse_duration(duration, "--duration").total_seconds()
    if not _SECONDS[0] <= seconds <= _SECONDS[1]:
        raise UsageError(f"--duration {duration}: must be from 5s to 24h")
    drain_seconds = parse_duration(drain, "--drain").total_seconds()
    if local and pair.primary:
        raise UsageError("--local brings its own pair: leave out --primary and --secondary")
    if report is not None and not os.access(report.parent, os.W_OK):
        raise UsageError(f"--report {report}: cannot write to the folder {report.parent}")
    given = None if local else _given_pair(pair)
    if local:
        check_broker_installed("verify --local", has_syphon=not no_syphon)
    if not no_syphon:
        require_spark("verify")
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    run_name = secrets.token_hex(4)
    logging.getLogger().addHandler(logging.NullHandler())
    note = (lambda text: None) if as_json else _note
    note(f"run {run_name}, seed {seed}")
    with SignalFlag() as signals:
        try:
            with TemporaryDirectory(prefix="pairbus-verify-", ignore_cleanup_errors=True) as name:
                folder = Path(name)
                run = VerifyRun(
                    folder,
                    LocalPair.in_folder(folder) if given is None else given,
                    run=run_name,
                    seconds=seconds,
                    rate=rate,
                    senders=senders,
                    seed=seed,
                    drain_seconds=drain_seconds,
                    has_syphon=not no_syphon,
                    check_interrupt=signals.check,
                    note=note,
                )
                try:
                    result = run.run()
                finally:
                    # After Ctrl-C, nobody wants to wait long for a primary that hangs.
                    wait = _INTERRUPTED_SECONDS if signals.has_arrived else DELETE_SECONDS_MAX
                    for queue in run.close(seconds=wait):
                        _note(
                            f"queue {queue!r} may be left on the primary, which did not answer; "
                            "it is deleted after an hour without use"
                        )
                page = ""
                if report is not None:
                    page = to_html(result, folder, title=f"pairbus verify {run_name}")
        except Interrupted:
            note("interrupted; all processes have ended")
            raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(to_json(result, run=run_name, seed=seed))
    else:
        print(to_text(result))
    if report is not None:
        write_file(report, page, "--report")
    raise typer.Exit(0 if result.verdict.is_valid else 1)


def _given_pair(options: PairOptions) -> Pair:
    targets = parse_pair(options)
    if len(targets.primaries) != 1 or targets.secondary is None:
        raise UsageError(
            "which pair? Put one primary and its secondary into PAIRBUS_PRIMARY and "
            "PAIRBUS_SECONDARY, or give them with --primary and --secondary, or give --local"
        )
    [(name, primary)] = targets.primaries.items()
    secondary = targets.secondary
    return Pair(
        primary=_text(primary),
        secondary=_text(secondary),
        primary_ca_file=None if primary.ca_file is None else str(primary.ca_file),
        secondary_ca_file=None if secondary.ca_file is None else str(secondary.ca_file),
        primary_name=name,
    )


def _text(target: Target) -> str:
    return target.address if target.identity is not None else target.text.reveal()


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
