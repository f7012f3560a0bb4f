"""`make chaos`: everything that can go wrong goes wrong, and `pairbus verify` counts the messages.

The same run as `pairbus verify --local`, with brokers on machines that lose power, whose clocks
step and whose disks are full or slow.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pairbus.cli.loading import INTERRUPTED
from pairbus.cli.signals import Interrupted, SignalFlag
from pairbus.errors import PairbusError
from pairbus.verify.nemesis import FaultKind, kinds
from pairbus.verify.processes import LocalPair
from pairbus.verify.report import to_html, to_json, to_text
from pairbus.verify.run import RunResult, VerifyRun
from tests.chaos.machine import KINDS, MachineBroker


def all_kinds(workers: Sequence[str]) -> tuple[FaultKind, ...]:
    return (*kinds(workers), *KINDS)


def run_nemesis(
    folder: Path,
    *,
    seconds: float,
    seed: int,
    rate: float = 100,
    senders: int = 4,
    drain_seconds: float = 300,
    has_syphon: bool = True,
    module: str = "pairbus",
    make_table: Callable[[Sequence[str]], Sequence[FaultKind]] = all_kinds,
    check_interrupt: Callable[[], None] = lambda: None,
    note: Callable[[str], None] = lambda text: None,
) -> RunResult:
    """`module`: what runs as the broker."""
    brokers = [MachineBroker(name, folder, module=module) for name in ("east", "west")]
    run = VerifyRun(
        folder,
        LocalPair(*brokers),
        run=secrets.token_hex(4),
        seconds=seconds,
        rate=rate,
        senders=senders,
        seed=seed,
        drain_seconds=drain_seconds,
        has_syphon=has_syphon,
        check_interrupt=check_interrupt,
        note=note,
        make_table=make_table,
    )
    try:
        return run.run()
    finally:
        run.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--rate", type=float, default=100, help="messages a second")
    parser.add_argument("--senders", type=int, default=4)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--report", type=Path, help="write a page to this file")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pairbus-chaos-"))
    print(f"seed {options.seed}, files in {folder}", file=sys.stderr, flush=True)
    with SignalFlag() as flag:
        try:
            result = run_nemesis(
                folder,
                seconds=options.seconds,
                seed=options.seed,
                rate=options.rate,
                senders=options.senders,
                check_interrupt=flag.check,
                note=lambda text: print(text, file=sys.stderr, flush=True),
            )
        except Interrupted:
            print("interrupted; all processes have ended", file=sys.stderr)
            return INTERRUPTED
        except PairbusError as error:
            print(f"{error}; the files are in {folder}", file=sys.stderr)
            return 1
    if options.json is not None:
        options.json.write_text(json.dumps(to_json(result, seed=options.seed), indent=1))
    if options.report is not None:
        options.report.write_text(to_html(result, folder, title=f"chaos, seed {options.seed}"))
    print(to_text(result))
    if result.verdict.is_valid:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"the journals and data are in {folder}", file=sys.stderr)
    return 0 if result.verdict.is_valid else 1


if __name__ == "__main__":
    sys.exit(main())
