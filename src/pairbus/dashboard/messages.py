"""Messages for the page: peeks without locks, and changes of dead letters.

Everything here blocks: the page calls it on a thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pairbus.broker.faults.fault_json import to_json
from pairbus.cli.broker.fault import make_fault
from pairbus.cli.broker.fault_client import FaultClient
from pairbus.cli.entity_path import EntityPath, SubQueue, parse_entity_path
from pairbus.cli.message_client import connect, explain_errors, peek_messages
from pairbus.cli.messages.filter import FilterOptions
from pairbus.cli.output import format_count, was_or_were
from pairbus.cli.target import Target
from pairbus.dashboard.bodies import MessagePage, read_message
from pairbus.errors import NamespaceError, UsageError

if TYPE_CHECKING:
    from pairbus.cli.messages.dead_letter_moves import Result

logger = logging.getLogger("pairbus.dashboard")

PAGE_COUNT: Final = 25
SCAN_COUNT_MAX: Final = 5000
"""With a filter, one page looks at no more messages than this."""
_ANSWER_SECONDS_MAX: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekedMessages:
    messages: tuple[MessagePage, ...]
    next_start: int | None
    """The sequence number of the next page; None: this is the last one."""
    scanned: int


def peek_page(target: Target, path: EntityPath, *, start: int, where: str) -> PeekedMessages:
    """Messages from a sequence number on, for which the condition is true.

    Raises NamespaceError and UsageError.
    """
    filter = FilterOptions(where=where.strip() or None).parse()
    found: list[MessagePage] = []
    scanned, next_start, now = 0, start, time.time()
    is_more = False
    with (
        connect(target, seconds=_ANSWER_SECONDS_MAX) as client,
        explain_errors(target, path, right="Listen"),
    ):
        limit = PAGE_COUNT + 1 if filter.matches_everything else SCAN_COUNT_MAX
        for message in peek_messages(client, target, path, start=start, limit=limit):
            if len(found) == PAGE_COUNT:
                is_more = True
                break
            scanned += 1
            number = message.annotation("x-opt-sequence-number")
            next_start = int(number) + 1 if isinstance(number, int) else next_start + 1
            if filter.matches(message, now=now):
                found.append(read_message(message))
    is_more = is_more or scanned == SCAN_COUNT_MAX
    return PeekedMessages(
        messages=tuple(found), next_start=next_start if is_more else None, scanned=scanned
    )


def dead_letter_path(path: str) -> EntityPath:
    return parse_entity_path(path, None, SubQueue.DEAD_LETTER)


class Changes:
    """What the page may change, if the dashboard was started with --allow-changes.

    Each change is checked here, whatever the page shows, and is logged with who asked for it.
    """

    def __init__(self, targets: Mapping[str, Target], *, are_allowed: bool) -> None:
        self._targets = targets
        self.are_allowed = are_allowed

    def resubmit(self, role: str, path: str, numbers: Sequence[int], *, who: str) -> str:
        """Send copies of dead letters to their entity, with new ids where it would drop them."""
        from pairbus.cli.messages import dead_letter_moves as moves  # loads the SDK

        target, source = self._checked(role), dead_letter_path(path)
        _log_begin("resubmitting", source, role, numbers, who)
        destination = EntityPath(entity=source.entity)
        with connect(target) as client:
            new_ids = _needs_new_ids(target, destination)
            result = moves.resubmit(
                client, target, source, destination, set(numbers), new_ids, lambda count: None
            )
        return _log_end("resubmitted", result, source, role, numbers, who)

    def purge(self, role: str, path: str, numbers: Sequence[int], *, who: str) -> str:
        from pairbus.cli.messages import dead_letter_moves as moves  # loads the SDK

        target, source = self._checked(role), dead_letter_path(path)
        _log_begin("purging", source, role, numbers, who)
        with connect(target) as client:
            result = moves.purge(client, target, source, set(numbers), lambda count: None)
        return _log_end("purged", result, source, role, numbers, who)

    def add_fault(self, role: str, kind: str, settings: Mapping[str, Any], *, who: str) -> str:
        target = self._checked_local(role)
        started = FaultClient(target).add(to_json(make_fault(kind, settings)))
        text = f"started fault {started['id']} on the {role}: {kind}"
        logger.info("%s, for %s", text, who)
        return text

    def clear_fault(self, role: str, number: int, *, who: str) -> str:
        FaultClient(self._checked_local(role)).clear(number)
        text = f"ended fault {number} on the {role}"
        logger.info("%s, for %s", text, who)
        return text

    def _checked(self, role: str) -> Target:
        if not self.are_allowed:
            raise UsageError("the dashboard is read-only: start it with --allow-changes")
        return self._targets[role]

    def _checked_local(self, role: str) -> Target:
        target = self._checked(role)
        if not target.is_local:
            raise UsageError(f"the {role} is not a broker on this machine")
        return target


def _needs_new_ids(target: Target, destination: EntityPath) -> bool:
    """Whether the entity might drop copies because it has seen their ids.

    It would acknowledge such a copy and drop it; then the dead letter would be removed, and the
    message would be lost.
    """
    from pairbus.cli.messages import dead_letter_moves as moves

    try:
        moves.check_duplicates(target, destination, [None], now=time.time())
    except UsageError:
        return True
    return False


def _log_begin(
    action: str, source: EntityPath, role: str, numbers: Sequence[int], who: str
) -> None:
    """Before anything is changed: if it fails halfway, the log still says what was asked for."""
    text = f"{action} {format_count(len(numbers))} of {source.description} on the {role}"
    listed = ", ".join(map(str, numbers))
    logger.info("%s, for %s: sequence numbers %s", text, who, listed)


def _log_end(
    action: str, result: Result, source: EntityPath, role: str, numbers: Sequence[int], who: str
) -> str:
    """What was done. Raises NamespaceError if that is not all."""
    text = f"{action} {format_count(result.done)} of {source.description} on the {role}"
    logger.info("%s, for %s", text, who)
    if result.unreadable:
        raise NamespaceError(f"{text}; {format_count(result.unreadable)} cannot be read and stay")
    left = len(numbers) - result.done
    if left:
        raise NamespaceError(
            f"{text}; {format_count(left)} {was_or_were(left)} not: locked by another receiver, or "
            "gone"
        )
    return text
