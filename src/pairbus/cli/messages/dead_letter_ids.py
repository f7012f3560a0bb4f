"""Whether an entity would take a message id that it may have seen before.

Duplicate detection acknowledges such a message, and drops it: who then removes the dead letter has
lost it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from azure.core.exceptions import ClientAuthenticationError, ResourceNotFoundError

from pairbus.cli.administration import Administration, administration
from pairbus.cli.kinds import Kind
from pairbus.cli.messages.entity_path import Place
from pairbus.cli.parse import age_text
from pairbus.cli.target import Target
from pairbus.errors import NamespaceError, UsageError

_MARGIN_SECONDS: Final = 300.0
"""By which this machine's clock may be ahead of the service's."""


def check_ids(target: Target, goal: Place, enqueued: Iterable[float | None], *, now: float) -> None:
    """Raises UsageError if ids are to be kept that `goal` may remember.

    `enqueued` and `now` are seconds since 1970: what was enqueued before the window is forgotten.
    """
    window = _window(target, goal)
    if window is None:
        return
    seconds = window.total_seconds() + _MARGIN_SECONDS
    young = sum(moment is None or now - moment <= seconds for moment in enqueued)
    if young:
        raise UsageError(
            f"{young} of them were enqueued within the {age_text(window.total_seconds())} for "
            f"which {goal.spoken} remembers message ids (and a little more, for clocks that "
            "differ), and would be dropped as duplicates: give them "
            f"new ones with --new-ids, or choose others with --older-than {round(seconds)}s"
        )


def _window(target: Target, goal: Place) -> timedelta | None:
    """For how long ids are remembered; None: not at all."""
    with administration(target) as admin:
        try:
            found = _properties(admin, goal)
        except NamespaceError as error:
            if isinstance(error.__cause__, ClientAuthenticationError):
                raise UsageError(
                    f"it cannot be seen whether {goal.spoken} has duplicate detection, and so "
                    "would drop them: that takes Manage. Say --new-ids, or --keep-ids if it has "
                    "none"
                ) from error
            raise
    if not found.requires_duplicate_detection:
        return None
    window: timedelta = found.duplicate_detection_history_time_window
    return window


def _properties(admin: Administration, goal: Place) -> Any:
    try:
        return admin.get(Kind.QUEUE, (goal.entity,))
    except NamespaceError as error:
        if not isinstance(error.__cause__, ResourceNotFoundError):
            raise
    try:
        return admin.get(Kind.TOPIC, (goal.entity,))
    except NamespaceError as error:
        if not isinstance(error.__cause__, ResourceNotFoundError):
            raise
        raise NamespaceError(str(error).replace("topic ", "", 1)) from error
