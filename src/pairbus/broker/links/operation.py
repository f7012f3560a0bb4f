"""What the operations of `$management` share: context, right, body, and reply or refusal.

The operations themselves are in `management.py` and `rule_requests.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.policies import Right
from pairbus.broker.links.request_codec import Reply, Request, refusal
from pairbus.broker.messages.mailbox import Mailbox
from pairbus.broker.messages.queue import Queue
from pairbus.broker.messages.sessions import MessageSession
from pairbus.broker.namespace import Namespace

logger = logging.getLogger(__name__)

_VALUES_MAX: Final = 4000
_LONG_MAX: Final = 2**63 - 1

SendReply = Callable[[Reply], None]


class Refused(Exception):
    def __init__(self, error: AmqpError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Context:
    """The entity of a request, and what is known of the client."""

    namespace: Namespace
    queue: Queue
    mailbox: Mailbox
    holder_of: Callable[[MessageSession], bool]
    """Whether the client's connection holds that session."""
    now_ms: int


@dataclass(frozen=True, slots=True)
class ManagementOperation:
    function: Callable[[Context, dict[str, Any], SendReply], None]
    _: KW_ONLY
    right: Right = Right.LISTEN
    billed_as: str | None = None
    """The kind of operation that a request counts as; None: the function counts its messages."""
    receives: bool = False
    """It is a form of receiving, and refused where receiving is."""
    main_only: bool = False
    """It is a form of sending, so it is refused for dead-letter queues."""

    def handle(self, context: Context, request: Request, reply: SendReply) -> None:
        body = request.body if isinstance(request.body, dict) else {}
        try:
            context.queue.accessed_ms = context.now_ms
            self.function(context, body, reply)
            if self.billed_as is not None:
                tally = context.queue.tally
                setattr(tally, self.billed_as, getattr(tally, self.billed_as) + 1)
        except Refused as refused:
            reply(refusal(refused.error))
        except Exception:
            # Without a reply the client would wait until its time-out.
            logger.exception("%s of %s failed", request.operation, context.queue.description)
            reply(refusal(AmqpError("amqp:internal-error", "the broker failed; its log says why")))


def reply_when_durable(context: Context, reply: SendReply, what: str) -> None:
    """Reply when all changes so far are on the disk. `what` names the change in an error."""

    def done(error: Exception | None) -> None:
        failed = AmqpError("amqp:internal-error", f"{what} cannot be stored: {error}")
        reply(Reply(200) if error is None else refusal(failed))

    context.queue.runtime.committer.when_durable(done)


# -- reading a request's body -----------------------------------------------------------------


def wrong(name: str, value: Any, expected: str) -> Refused:
    return Refused(
        AmqpError(
            "com.microsoft:argument-error", f"{name!r} is {value!r:.100}, but must be {expected}"
        )
    )


def integer(body: dict[str, Any], name: str, *, least: int = 0) -> int:
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _LONG_MAX:
        raise wrong(name, value, f"a whole number from {least} to {_LONG_MAX}")
    return int(value)


def text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise wrong(name, value, "a string")
    return str(value)


def optional_text(body: dict[str, Any], name: str) -> str | None:
    return None if body.get(name) is None else text(body, name)


def list_of(body: dict[str, Any], name: str, kind: type) -> list[Any]:
    values = body.get(name)
    if (
        not isinstance(values, list)
        or not 0 < len(values) <= _VALUES_MAX
        or not all(isinstance(value, kind) for value in values)
    ):
        raise wrong(name, values, f"1 to {_VALUES_MAX} values of type {kind.__name__}")
    return values
