"""The steps of a send, and the two drivers that run them.

`send.py` decides which step comes next; a shell carries each step out. The answer is sent into the
generator, an error is thrown into it. So the decisions are written once, and tested without a
socket, a thread or an event loop.

Other generators yield functions. The driver calls each of them; the asyncio driver awaits the
result.
"""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

Result = TypeVar("Result")


@dataclass(slots=True)
class AcquireLock:
    """Acquire the sender's lock. Answer: whether it had to wait. Error: `SenderBusy`."""

    seconds: float
    holder: object = field(default=None, compare=False)


@dataclass(slots=True)
class ResetLink:
    """Close the sender's link to the primary, so that the next call opens a new one."""

    epoch: int


@dataclass(slots=True)
class CallPrimary:
    """Make the call of the SDK on the primary. Answer: its result."""

    seconds: float
    call: Callable[[float], Any] = field(default=lambda seconds: None, compare=False)
    """Called with the seconds."""
    is_opening: bool = field(default=False, compare=False)
    """It sends nothing: it opens the link, if that is not open."""


@dataclass(slots=True)
class Borrow:
    """Take a connection to a backlog queue out of the pool. Answer: a `BacklogConnection`."""

    queue: str
    seconds: float
    is_fresh: bool
    """A new connection: an idle one has just failed."""
    call: Any = field(default=None, compare=False)
    """The `SendCall`. The shell sets its `connection` before it answers."""


@dataclass(slots=True)
class OpenLink:
    """Open the link of a borrowed connection."""

    connection: Any
    seconds: float


@dataclass(slots=True)
class SendBatch:
    """Send to a backlog queue."""

    connection: Any
    content: AmqpAnnotatedMessage | ServiceBusMessageBatch
    seconds: float


@dataclass(slots=True)
class Wait:
    """Wait for a busy service. Answer: whether the client was closed meanwhile."""

    seconds: float


@dataclass(slots=True)
class StoreInOutbox:
    """Write messages to the file of the outbox. They are on the disk when it is answered. Error:
    `OutboxError`, and then none of them is stored.
    """

    path: str
    messages: Sequence[tuple[str, bytes]]
    """The id and the bytes of each."""


Step = AcquireLock | ResetLink | CallPrimary | Borrow | OpenLink | SendBatch | Wait | StoreInOutbox


Steps = Generator[Any, Any, Result]


def run(steps: Steps[Result], act: Callable[[Any], Any] = operator.call) -> Result:
    """The driver of the blocking shell: `act` carries one step out."""
    try:
        step = next(steps)
        while True:
            try:
                outcome = act(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(outcome)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        # After an interrupt (a BaseException) the generator still has to release what it holds.
        steps.close()


async def run_async(
    steps: Steps[Result], act: Callable[[Any], Awaitable[Any]] = operator.call
) -> Result:
    """The driver of the asyncio shell: the same, with `await`."""
    try:
        step = next(steps)
        while True:
            try:
                outcome = await act(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(outcome)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        steps.close()
