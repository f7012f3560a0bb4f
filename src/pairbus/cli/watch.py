"""`--watch`: a command runs until Ctrl-C, even while its namespace does not answer."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pairbus.cli.parse import parse_positive_duration
from pairbus.cli.shared_options import flag, option, option_group
from pairbus.cli.target import Target, cannot_reach, why_unreachable
from pairbus.errors import UsageError

_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 1.0


@option_group
class WatchOptions:
    """For commands that have to ask again. `receive` does not: the service sends it messages."""

    watch: bool = flag("Keep showing what is new, until Ctrl-C.", "--watch")
    interval: str | None = option("DURATION", "How often to look, with --watch (default: 2s).")

    def parse(self) -> float | None:
        """The interval in seconds; None: do not watch. Raises UsageError."""
        if self.interval is None:
            return _SECONDS if self.watch else None
        seconds = parse_positive_duration(self.interval, "--interval")
        if not self.watch:
            raise UsageError("--interval needs --watch")
        return seconds


class Outages:
    """A watching command waits until its namespace answers again, and reports that once."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._has_answered = False
        self._is_out = False

    @contextmanager
    def waited_out(self) -> Iterator[None]:
        """Raises the first error: until the namespace has answered, it may be the wrong one."""
        from azure.core.exceptions import AzureError

        from pairbus.client.sdk.failures import Kind, kind_of

        try:
            yield
        except AzureError as error:
            is_temporary = kind_of(error) in (Kind.OUTAGE, Kind.THROTTLED)
            if not is_temporary or not self._has_answered:
                raise
            if not self._is_out:
                reason = cannot_reach(self._target, why_unreachable(error))
                print(f"{reason}; trying again until it answers", file=sys.stderr)
            self._is_out = True
            time.sleep(_RETRY_SECONDS)
        else:
            self.answered()

    def answered(self) -> None:
        if self._is_out:
            print(f"{self._target.address} answers again", file=sys.stderr)
        self._has_answered, self._is_out = True, False
