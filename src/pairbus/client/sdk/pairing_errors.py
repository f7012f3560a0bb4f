"""The errors that a paired client raises on purpose.

Each derives from an error of the SDK as well, so that existing handlers catch it.

PairbusError, azure.servicebus.exceptions.ServiceBusError
├── PairingError             the client could not be paired; it stays unpaired and usable
│   └── SyphonNotInstalled       ... because the syphon was asked for and is not installed
├── BacklogExhausted         no namespace accepted the message; the caller still owns it
├── EnvelopeTooLarge         (also MessageSizeExceededError) the message fits, its envelope does not
├── ClientFaulted            the client was ended because its partner ended; make a new one
└── SequenceNumberUnknown    a diverted schedule cannot be cancelled: it has no number yet

They can be pickled, because errors cross processes. If a cause cannot be pickled, its class and
text survive.
"""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

from azure.core.exceptions import AzureError
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from pairbus.errors import PairbusError, one_line


class _Paired(PairbusError):
    """Pickled by its own fields: the SDK's errors hold tracebacks and have various constructors."""

    _FIELDS: ClassVar[tuple[str, ...]] = ()
    _CAUSES: ClassVar[tuple[str, ...]] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in self._FIELDS}
        causes = {name: _packed(getattr(self, name)) for name in self._CAUSES}
        return _unpacked, (type(self), fields, causes)


class PairingError(_Paired, ServiceBusError):
    """A client could not be paired. It stays unpaired, and usable as it was."""

    _FIELDS = ("message", "namespace", "queue")
    _CAUSES = ("error",)

    def __init__(
        self,
        message: str,
        *,
        namespace: str | None = None,
        queue: str | None = None,
        error: BaseException | None = None,
    ) -> None:
        super().__init__(message, error=error)
        self.namespace = namespace
        """The namespace concerned, as its client names it."""
        self.queue = queue
        """The backlog queue concerned, if there is one."""
        self.error = error
        """The error of the SDK, if there was one."""


class SyphonNotInstalled(PairingError):
    """`enable_syphon` was given where the syphon is not installed."""


class BacklogExhausted(_Paired, ServiceBusError):
    """Neither the primary nor any backlog queue accepted the message. The caller still owns it."""

    _FIELDS = ("entity", "diverted_count", "queue_count")
    _CAUSES = ("primary_error", "backlog_error", "outbox_error")

    def __init__(
        self,
        *,
        entity: str,
        primary_error: BaseException | None = None,
        backlog_error: BaseException | None = None,
        diverted_count: int = 0,
        queue_count: int | None = None,
        outbox_error: BaseException | None = None,
    ) -> None:
        super().__init__(
            _exhausted_text(
                entity, primary_error, backlog_error, diverted_count, queue_count, outbox_error
            ),
            error=outbox_error or backlog_error or primary_error,
        )
        self.entity = entity
        self.primary_error = primary_error
        """Why the primary did not accept it; None if that is no longer known."""
        self.backlog_error = backlog_error
        """Why the last backlog queue did not accept it."""
        self.diverted_count = diverted_count
        """The number of messages of this call that are safe in a backlog queue, counted from the
        first one. Send only the rest again."""
        self.queue_count = queue_count
        """The number of backlog queues of the pairing."""
        self.outbox_error = outbox_error
        """Why the outbox did not store it: it is full, for example. None without an outbox."""


class EnvelopeTooLarge(_Paired, MessageSizeExceededError):
    """The message does not fit the backlog queue, by itself or with its envelope."""

    _FIELDS = ("entity", "backlog_queue", "size", "limit", "bare_size")
    _CAUSES = ("error",)

    def __init__(
        self,
        *,
        entity: str,
        backlog_queue: str,
        size: int | None = None,
        limit: int | None = None,
        bare_size: int | None = None,
        error: BaseException | None = None,
    ) -> None:
        grown = "it exceeds" if size is None else f"it has {size} bytes, which exceeds"
        allowed = "the limit" if limit is None else f"the limit of {limit} bytes"
        why = (
            "with the properties that bring it home (path, session id, time to live, schedule) "
            f"{grown} {allowed}"
        )
        later = "or again when the primary is back"
        if bare_size is not None and limit is not None and bare_size > limit:
            why = f"it has {bare_size} bytes by itself, and the limit is {limit}"
            later += ", if its limit is higher"
        super().__init__(
            message=f"a message for {entity!r}, which is failed over, does not fit backlog queue "
            f"{backlog_queue!r}: {why}. Nothing was lost: send it in smaller parts, {later}.",
            error=error,
        )
        self.entity = entity
        self.backlog_queue = backlog_queue
        self.size = size
        """In bytes, with the envelope; None if only the service measured it."""
        self.limit = limit
        self.bare_size = bare_size
        """In bytes, without the envelope."""
        self.error = error


class ClientFaulted(_Paired, ServiceBusError):
    """This client was closed because its partner had ended."""

    _FIELDS = ("which", "reason")
    _CAUSES = ("error",)

    def __init__(self, *, which: str, reason: str, error: BaseException | None = None) -> None:
        super().__init__(
            f"the {which} client was ended because its partner ended ({reason}): the syphon needs "
            "both clients. Make two new clients and pair them again.",
            error=error,
        )
        self.which = which
        """`primary` or `secondary`."""
        self.reason = reason
        self.error = error


class SequenceNumberUnknown(_Paired, ServiceBusError):
    """A scheduled message that was diverted cannot be cancelled: it has no number on the primary
    yet."""

    _FIELDS = ("entity", "number")

    def __init__(self, *, entity: str, number: int) -> None:
        queue: str | None = getattr(number, "backlog_queue", None)
        message_id: str | None = getattr(number, "message_id", None)
        message = f"message {message_id!r}" if message_id else "a message"
        super().__init__(
            f"{message} for {entity!r} cannot be cancelled: it {_whereabouts(number)}. Nothing was "
            "cancelled. Peek the primary for the message later, and cancel it by the number that "
            "it has there."
        )
        self.entity = entity
        self.number = number
        """What `schedule_messages` returned in place of a number."""
        self.backlog_queue = queue
        self.message_id = message_id


class UnknownSequenceNumber(int):
    """In place of the sequence number of a diverted message: -1, which no message has.

    The primary numbers the message when it is brought home. To find it then, peek for its message
    id.
    """

    backlog_queue: str | None
    """None if the message was stored in the outbox."""
    message_id: str

    def __new__(cls, *, backlog_queue: str | None, message_id: str) -> UnknownSequenceNumber:
        number = super().__new__(cls, -1)
        number.backlog_queue = backlog_queue
        number.message_id = message_id
        return number

    def __repr__(self) -> str:
        return f"<unknown sequence number (-1): message {self.message_id!r} {_whereabouts(self)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _number, (self.backlog_queue, self.message_id)


def _number(backlog_queue: str | None, message_id: str) -> UnknownSequenceNumber:
    return UnknownSequenceNumber(backlog_queue=backlog_queue, message_id=message_id)


def _whereabouts(number: int) -> str:
    if isinstance(number, UnknownSequenceNumber) and number.backlog_queue is None:
        return "was stored in the outbox and gets its sequence number when the primary has it"
    queue: str | None = getattr(number, "backlog_queue", None)
    where = f"backlog queue {queue!r}" if queue else "a backlog queue"
    return f"was diverted to {where} and gets its sequence number when it is brought home"


def _exhausted_text(
    entity: str,
    primary_error: BaseException | None,
    backlog_error: BaseException | None,
    diverted_count: int,
    queue_count: int | None,
    outbox_error: BaseException | None,
) -> str:
    text = (
        f"no namespace accepted the message for {entity!r}: the primary failed "
        f"({one_line(primary_error)}), and so did the backlog ({one_line(backlog_error)}). "
    )
    if outbox_error is not None:
        text = f"the message for {entity!r} is not in the outbox: {str(outbox_error).rstrip('.')}. "
        if primary_error is not None:
            text += f"The primary failed ({one_line(primary_error)}). "
        if backlog_error is not None:
            text += f"The backlog failed ({one_line(backlog_error)}). "
    text += "The message is still yours: send it again later."
    if diverted_count:
        text += (
            f" The first {diverted_count} of this call are safe in the backlog: send only the rest."
        )
    if queue_count == 1:
        text += (
            " There is only one backlog queue, so there is no other one to try: "
            "pair with a backlog_queue_count of 2 or more."
        )
    return text


# --- across processes -----------------------------------------------------------------------------


_Packed = bytes | tuple[type[AzureError], str]


def _packed(error: BaseException | None) -> _Packed:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # most errors of the SDK can be dumped and not loaded
    except Exception:  # a foreign error may raise anything
        return type(error) if isinstance(error, AzureError) else ServiceBusError, str(error)
    return data


def _unpacked(kind: type[_Paired], fields: dict[str, Any], causes: dict[str, _Packed]) -> _Paired:
    return kind(**fields, **{name: _cause(packed) for name, packed in causes.items()})


def _cause(packed: _Packed) -> BaseException | None:
    if isinstance(packed, bytes):
        error: BaseException | None = pickle.loads(packed)
        return error
    kind, text = packed
    # Without its own constructor, whose arguments are unknown.
    revived = kind.__new__(kind)
    if isinstance(revived, ServiceBusError):
        ServiceBusError.__init__(revived, text)
    else:
        AzureError.__init__(revived, text)
    return revived
