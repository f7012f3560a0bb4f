"""What an application asked for, in both ways in which it can be done, and how much time it has.

Shared by the two shells: nothing here waits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.client.route.router import Way
from pairbus.client.sdk.errors import SequenceNumberUnknown
from pairbus.client.sdk.messages import UnknownSequenceNumber, id_of, messages_of

# The least time that a backlog queue gets for a send, however little the caller gave: a message
# that the primary did not take in time had better be safe a moment late.
BACKLOG_SECONDS_MIN = 1.0
# The most for one of them, and the least for all together, where the caller gave no timeout.
BACKLOG_SECONDS_EACH = 20.0
BACKLOG_SECONDS_ALL = 60.0
# The same for opening a connection to one, which takes the SDK half a second at best.
OPEN_SECONDS_MIN = 5.0

Attempt = TypeVar("Attempt")
Result = TypeVar("Result")


@dataclass(slots=True, kw_only=True)  # not frozen, which would cost each message a microsecond
class Errand(Generic[Attempt, Result]):
    count: int
    """The number of messages; 0 where nothing is sent, as in opening a link."""

    on_primary: Callable[[float], Attempt]
    """The SDK's own call, given its timeout; an awaitable in the asyncio shell."""

    diverted: Callable[[], list[AmqpAnnotatedMessage]] = list
    """What stands for the messages in the backlog."""

    when_diverted: Callable[[str], Result]
    """What the caller gets if they went to this backlog queue."""

    content: Any = None
    """The messages, by which it is billed; None where nothing is sent."""


@dataclass(slots=True)
class FirstFailure:
    """An attempt that was made at once, without an errand, and failed."""

    way: Way
    error: Exception
    began: float


@dataclass(slots=True)
class Done(Generic[Result]):
    result: Result


DIVERTED: Final = Done(None)


class Patience:
    """How much time a call has left on each of the two namespaces.

    The caller's timeout holds on each of them. Without one, each attempt has the bound of the
    options; on a backlog queue less, for there are others.
    """

    __slots__ = ("_backlog_until", "_bound", "_primary_until", "_timeout")

    def __init__(self, timeout: float | None, bound: float) -> None:
        self._timeout = timeout
        self._bound = bound
        self._primary_until: float | None = None
        self._backlog_until: float | None = None

    def on_primary(self, *, now: float) -> float:
        if self._timeout is None:
            return self._bound
        if self._primary_until is None:
            self._primary_until = now + self._timeout
        return max(0.001, self._primary_until - now)

    def forget_primary(self) -> None:
        """If the call comes back to the primary, it has its time again."""
        self._primary_until = None

    def in_backlog(self, *, now: float, at_least: float = 0.0) -> float:
        limit = self._timeout
        if limit is None:
            limit = max(self._bound, BACKLOG_SECONDS_ALL)
        if self._backlog_until is None:
            self._backlog_until = now + limit
        left = self._backlog_until - now
        if self._timeout is None:
            left = min(left, self._bound, BACKLOG_SECONDS_EACH)
        return max(at_least, left)

    def can_wait(self, seconds: float, *, is_backlog: bool, now: float) -> bool:
        """Whether a throttled call may wait so long: always, unless its caller set a limit."""
        if self._timeout is None:
            return True
        return (self.in_backlog(now=now) if is_backlog else self.on_primary(now=now)) > seconds


class TurnTaken(OperationTimeoutError):
    """Others used the same sender for as long as this call had time."""

    def __init__(self, path: str, timeout: float | None, *, is_stuck: bool) -> None:
        super().__init__(
            message=f"others used this sender of {path!r} for {timeout or 0:g} seconds; "
            "give each thread or task a sender of its own"
        )
        self.is_stuck = is_stuck
        """It was one call of another all the time: so the primary is silent."""


def is_stuck(turns: int, timeout: float | None) -> bool:
    """Whether one call of another, which had the turn all the time, has waited for the primary for
    longer than it takes to open a connection."""
    return turns == 0 and timeout is not None and timeout >= OPEN_SECONDS_MIN


def check_live(sender: Any) -> None:
    sender._client_state.check()
    if sender._shutdown.is_set():
        sender._check_live()  # says so as the SDK does


def check_arguments(sender: Any, timeout: float | None, kwargs: Mapping[str, Any]) -> None:
    """What the SDK checks first, so that a mistake is told alike wherever the message would go."""
    if kwargs:
        warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=3)
    check_live(sender)
    if timeout is not None and timeout <= 0:
        raise ValueError("The timeout must be greater than 0.")


def count_of(message: Any) -> int:
    return len(message) if isinstance(message, (list, ServiceBusMessageBatch)) else 1


def is_single(message: Any) -> bool:
    """One message, of the kind that is sent most."""
    kind = type(message)
    return kind is ServiceBusMessage or kind is AmqpAnnotatedMessage


def unknown_numbers(messages: Any, queue: str) -> list[int]:
    return [
        UnknownSequenceNumber(backlog_queue=queue, message_id=id_of(each))
        for each in messages_of(messages)
    ]


def check_known(entity: str, sequence_numbers: Any) -> None:
    numbers = (
        sequence_numbers if isinstance(sequence_numbers, (list, tuple)) else [sequence_numbers]
    )
    for number in numbers:
        if isinstance(number, UnknownSequenceNumber):
            raise SequenceNumberUnknown(entity=entity, number=number)
