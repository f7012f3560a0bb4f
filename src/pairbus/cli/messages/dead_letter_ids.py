"""Whether an entity would take a message id that it may have seen before.

Duplicate detection acknowledges such a message, and drops it: who then removes the dead letter has
lost it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from pairbus.cli.administration import (
    AccessDenied,
    Administration,
    EntityKind,
    EntityNotFound,
    administration,
)
from pairbus.cli.messages.entity_path import EntityPath
from pairbus.cli.output import format_duration
from pairbus.cli.target import Target
from pairbus.errors import UsageError

_MARGIN_SECONDS: Final = 300.0
"""By which this machine's clock may be ahead of the service's."""


def check_ids(
    target: Target, goal: EntityPath, enqueued: Iterable[float | None], *, now: float
) -> None:
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
            f"{young} messages may be dropped as duplicates: {goal.description} remembers message "
            f"ids for {format_duration(window.total_seconds())}. Use --new-ids, or select older "
            f"messages with --older-than {round(seconds)}s"
        )


def _window(target: Target, goal: EntityPath) -> timedelta | None:
    """For how long ids are remembered; None: not at all."""
    with administration(target) as admin:
        try:
            found = _properties(admin, goal)
        except AccessDenied as error:
            raise UsageError(
                f"cannot check whether {goal.description} has duplicate detection, because policy "
                f"{target.policy_name!r} lacks the Manage right. Use --new-ids, or --keep-ids if "
                "it has none"
            ) from error
    if not found.requires_duplicate_detection:
        return None
    window: timedelta = found.duplicate_detection_history_time_window
    return window


def _properties(admin: Administration, goal: EntityPath) -> Any:
    try:
        return admin.get(EntityKind.QUEUE, (goal.entity,))
    except EntityNotFound:
        pass
    try:
        return admin.get(EntityKind.TOPIC, (goal.entity,))
    except EntityNotFound as error:
        raise EntityNotFound(str(error).replace("topic ", "", 1)) from error
