"""`pairbus demo`: runs the demo, shows its result, and removes everything that it started.

Before the demo exits, also after a signal, it stops its processes and removes its folder.
"""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import typer

from pairbus.cli.loading import INTERRUPTED
from pairbus.cli.output import write_file
from pairbus.cli.parse import parse_duration
from pairbus.cli.shared_options import flag, option
from pairbus.cli.signals import Interrupted, SignalFlag
from pairbus.demo.run import DemoRun
from pairbus.demo.view import DemoResult, View, make_view, to_svg
from pairbus.errors import UsageError, check_broker_installed, check_installed
from pairbus.spark.session import require_spark

RESTART_SECONDS: Final = 10.0
_PHASE_SECONDS: Final = (2.0, 20.0)


def demo(
    phase: str = option(
        "DURATION",
        "How long the primary is healthy, and about how long it is down: 2s to 20s "
        "(default: 12s). The demo takes about 20s more, mostly to start Spark.",
        default="12s",
    ),
    rate: float = option(
        "N", "Messages per second, over all entities (default: 40).", min=4, max=200, default=40
    ),
    seed: int = option(
        "N", "Seed for the messages and for the moment of the kill (default: 0).", default=0
    ),
    keep: bool = flag(
        "Keep running after the result, for your own experiments. Ctrl-C ends it.", "--keep"
    ),
    dashboard: bool = flag(
        "Show the demo on a page in your browser, too; prints its address.", "--dashboard"
    ),
    as_json: bool = flag("Print JSON lines; the last one is the ledger.", "--json"),
    svg: Path | None = option("FILE.svg", "Draw the demo into a file.", "--output", hidden=True),
) -> None:
    """Kill a namespace under load and lose nothing: all of pairbus, on this machine.

    Starts two namespaces, paired senders, a receiver with the official SDK, and a syphon on Spark.
    Then it kills the primary, sends fail over, the primary starts again, and the syphon brings the
    diverted messages home. At the end, every message is accounted for by its id. Needs Java 17 or
    later. All processes and files are removed when the demo ends, also after Ctrl-C.

    Exit codes: 0 all messages arrived exactly once, 1 they did not, or PySpark is not installed, 2
    usage error, or Java is missing, 130 interrupted.

    \b
    Examples:
      pairbus demo
      pairbus demo --seed 7 --rate 100
      pairbus demo --keep
      pairbus demo --dashboard --keep
      pairbus demo --json | tail -n 1
    """
    least, most = _PHASE_SECONDS
    seconds = parse_duration(phase, "--phase").total_seconds()
    if not least <= seconds <= most:
        raise UsageError(f"--phase {phase}: must be from {least:g}s to {most:g}s")
    check_broker_installed("the demo", has_syphon=True)
    require_spark("the demo")
    if dashboard:
        check_installed("--dashboard", "dashboard", "nicegui", "uvicorn", "defusedxml")
    # The SDK logs each lost connection, and without a handler that goes to stderr.
    logging.getLogger().addHandler(logging.NullHandler())
    view = make_view(as_json=as_json)
    with SignalFlag() as signals:
        try:
            with TemporaryDirectory(prefix="pairbus-demo-", ignore_cleanup_errors=True) as folder:
                run = DemoRun(
                    Path(folder),
                    view,
                    signals.check,
                    seconds=seconds,
                    rate=rate,
                    seed=seed,
                    dashboard=dashboard,
                )
                try:
                    result = run.run()
                    if keep:
                        result = _keep_running(run, view, result, signals)
                    snapshot = run.snapshot()
                    run.close()
                finally:
                    view.close()
                    run.kill()
        except Interrupted:
            view.note("Interrupted. All processes have ended.")
            raise typer.Exit(INTERRUPTED) from None
        view.end(result)
        if svg is not None:
            write_file(svg, to_svg(run.steps, snapshot, result), "--output")
    raise typer.Exit(0 if result.is_ok else 1)


def _keep_running(run: DemoRun, view: View, result: DemoResult, signals: SignalFlag) -> DemoResult:
    """Runs until Ctrl-C, then counts again. A second Ctrl-C ends it at once."""
    view.end(result)
    view.note(_what_to_try(run))
    run.restart_after_seconds = RESTART_SECONDS
    run.senders.start()
    try:
        while True:
            run.step(0.25)
    except Interrupted:
        signals.has_arrived = False
    view.note("Stopping, after the messages in transit have arrived. Ctrl-C again ends it at once.")
    return run.stop_and_count()


def _what_to_try(run: DemoRun) -> str:
    return f"""
The demo keeps running: senders, receiver and syphon. Ctrl-C ends it.
In another terminal:

  export PAIRBUS_PRIMARY="{run.primary.connection_string}"
  export PAIRBUS_SECONDARY="{run.secondary.connection_string}"

Then try:

  kill -9 {run.primary.pid}
    Kills the primary again. It restarts after {RESTART_SECONDS:.0f}s.
  pairbus fault add unreachable --duration 20s -c "$PAIRBUS_PRIMARY"
    An outage without a crash.
  pairbus entities list queue -c "$PAIRBUS_SECONDARY"
    Shows the messages that wait in the backlog.
"""
