"""What `pairbus demo` does: plays the play, and clears the stage.

Whatever has been started by the time of a Ctrl-C or SIGTERM is ended, and its folder removed,
before the demo is.
"""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from pairbus.demo.picture import Report, svg
from pairbus.demo.run import Play
from pairbus.demo.view import Show, show_for
from pairbus.spark.needs import require_spark

REVIVE_SECONDS: Final = 10.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    seconds: float
    rate: float
    seed: int
    keep: bool
    as_json: bool
    picture: Path | None


class Interrupted(Exception):
    """Somebody wants the demo to end."""


class Interruptions:
    """Signals are noted, and obeyed between two steps: none can come between starting a process
    and knowing of it."""

    def __init__(self) -> None:
        self.number = 0

    def __enter__(self) -> Interruptions:
        # What nohup, or a shell that runs us in the background, has us ignore, we ignore.
        heeded = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._note) for number in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.number = number

    def check(self) -> None:
        if self.number:
            raise Interrupted


def run(wanted: Wanted) -> int:
    """The exit code: 0, 1 if anything is lost, duplicated or did not happen, 128 and the signal."""
    require_spark()
    # The SDK's loggers tell of each lost connection, on stderr unless somebody takes it.
    logging.getLogger().addHandler(logging.NullHandler())
    show = show_for(as_json=wanted.as_json)
    with Interruptions() as asked:
        try:
            with _folder() as folder:
                play = Play(
                    folder,
                    show,
                    asked.check,
                    seconds=wanted.seconds,
                    rate=wanted.rate,
                    seed=wanted.seed,
                )
                try:
                    report = play.perform()
                    if wanted.keep:
                        report = _keep_playing(play, show, report, asked)
                    moment = play.moment()
                    play.close()
                finally:
                    show.close()
                    play.kill()
        except Interrupted:
            show.note("Interrupted. Nothing is left running.")
            return 128 + asked.number
        show.end(report)
        if wanted.picture is not None:
            wanted.picture.write_text(svg(play.told, moment, report), "utf-8")
    return 0 if report.is_good else 1


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pairbus-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _keep_playing(play: Play, show: Show, report: Report, asked: Interruptions) -> Report:
    """Until Ctrl-C, after which the account is made again; a second one ends it at once."""
    show.end(report)
    show.note(_what_to_try(play))
    play.revives_after = REVIVE_SECONDS
    play.senders.start()
    try:
        while True:
            play.step(0.25)
    except Interrupted:
        asked.number = 0
    show.note("Stopping: what is under way arrives first. Once more to end at once.")
    return play.settle()


def _what_to_try(play: Play) -> str:
    return f"""
It goes on: the senders send, the receiver receives, the syphon waits. Ctrl-C ends it.
In another terminal:

  export PAIRBUS_PRIMARY="{play.primary.connection_string}"
  export PAIRBUS_SECONDARY="{play.secondary.connection_string}"

Then try:

  kill -9 {play.primary.pid}
    The primary once more. It is back after {REVIVE_SECONDS:.0f} s.
  pairbus fault add unreachable --seconds 20 -c "$PAIRBUS_PRIMARY"
    An outage without a death.
  pairbus entities list queue -c "$PAIRBUS_SECONDARY"
    What waits in the backlog meanwhile.
"""
