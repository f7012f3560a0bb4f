"""What a paired client raises on purpose: ours, and the SDK's, so that existing handlers catch it.

PairbusError, azure.servicebus.exceptions.ServiceBusError
├── PairingError             the client could not be paired; it stays unpaired and usable
│   └── SyphonNotInstalled       ... because the syphon was asked for, and is not there
├── BacklogExhausted         no namespace took it; the caller still owns the message
├── EnvelopeTooLarge         (also MessageSizeExceededError) the message fits, its envelope does not
├── ClientFaulted            the client ended because its partner did; make a new one
└── SequenceNumberUnknown    a diverted schedule cannot be cancelled: nobody knows its number yet

They can be pickled, as errors that cross processes are; of a cause that cannot, class and text
survive. Knows nothing of when they are raised.
"""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

from azure.core.exceptions import AzureError
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from pairbus.errors import PairbusError


class _Paired(PairbusError):
    """Is pickled by its own fields: the SDK's errors hold tracebacks, and take what they like."""

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
        """The namespace that it is about, as its client names it."""
        self.queue = queue
        """The backlog queue that it is about, where it is about one."""
        self.error = error
        """What the SDK said, where it said something."""


class SyphonNotInstalled(PairingError):
    """`enable_syphon` was given where the syphon is not installed."""

    _FIELDS = ("message", "namespace", "extra")

    def __init__(
        self,
        message: str | None = None,
        *,
        namespace: str | None = None,
        extra: str = "spark",
        error: BaseException | None = None,
    ) -> None:
        message = message or (
            "enable_syphon=True asks for the syphon, which is not here: install a version of "
            f"`pairbus[{extra}]` that has it, or pair with enable_syphon=False and run it elsewhere"
        )
        super().__init__(message, namespace=namespace, error=error)
        self.extra = extra
        """What to install, as in `pip install pairbus[extra]`."""


class BacklogExhausted(_Paired, ServiceBusError):
    """Neither the primary nor any backlog queue took a message. It is still the caller's."""

    _FIELDS = ("entity", "diverted_count", "queue_count")
    _CAUSES = ("primary_error", "backlog_error")

    def __init__(
        self,
        *,
        entity: str,
        primary_error: BaseException | None = None,
        backlog_error: BaseException | None = None,
        diverted_count: int = 0,
        queue_count: int | None = None,
    ) -> None:
        super().__init__(
            _exhausted_text(entity, primary_error, backlog_error, diverted_count, queue_count),
            error=backlog_error or primary_error,
        )
        self.entity = entity
        self.primary_error = primary_error
        """Why the primary does not take it; None where that is not known any more."""
        self.backlog_error = backlog_error
        """Why the last backlog queue did not."""
        self.diverted_count = diverted_count
        """How many messages of this very call a backlog queue had taken already, from the first on.
        They are safe: send only the rest again."""
        self.queue_count = queue_count
        """How many backlog queues the pairing has."""


class EnvelopeTooLarge(_Paired, MessageSizeExceededError):
    """The message does not fit the backlog queue, at all or with what is to bring it home."""

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
        grown = "it" if size is None else f"its {size} bytes"
        allowed = "the limit" if limit is None else f"the limit of {limit} bytes"
        why = (
            "what is added to bring it home (path, session id, time to live, schedule) takes "
            f"{grown} over {allowed}"
        )
        if bare_size is not None and limit is not None and bare_size > limit:
            why = f"it has {bare_size} bytes by itself, and {limit} are the most"
        super().__init__(
            message=f"a message for {entity!r}, which is failed over, does not fit backlog queue "
            f"{backlog_queue!r}: {why}. Nothing was lost: send it in smaller parts, "
            "or again when the primary is back.",
            error=error,
        )
        self.entity = entity
        self.backlog_queue = backlog_queue
        self.size = size
        """In bytes, with the envelope; None where only the service measured it."""
        self.limit = limit
        self.bare_size = bare_size
        """In bytes, without it."""
        self.error = error


class ClientFaulted(_Paired, ServiceBusError):
    """This client was ended because its partner had ended and it had not followed."""

    _FIELDS = ("which", "reason")
    _CAUSES = ("error",)

    def __init__(self, *, which: str, reason: str, error: BaseException | None = None) -> None:
        super().__init__(
            f"the {which} client was ended after its partner ({reason}): a pair that has lost one "
            "half brings no message home. Make both clients anew and pair them again.",
            error=error,
        )
        self.which = which
        """`primary` or `secondary`."""
        self.reason = reason
        self.error = error


class SequenceNumberUnknown(_Paired, ServiceBusError):
    """A message whose schedule was diverted cannot be cancelled: it has no number on the primary
    yet."""

    _FIELDS = ("entity", "number")

    def __init__(self, *, entity: str, number: int) -> None:
        queue: str | None = getattr(number, "backlog_queue", None)
        message_id: str | None = getattr(number, "message_id", None)
        message = f"message {message_id!r}" if message_id else "a message"
        where = f"backlog queue {queue!r}" if queue else "a backlog queue"
        super().__init__(
            f"{message} for {entity!r} cannot be cancelled: it was diverted to {where} and gets "
            "its sequence number when it is brought home. Nothing of this call was cancelled; "
            "cancel it then, by the number that peeking the primary shows."
        )
        self.entity = entity
        self.number = number
        """What `schedule_messages` answered in place of a number."""
        self.backlog_queue = queue
        self.message_id = message_id


def _exhausted_text(
    entity: str,
    primary_error: BaseException | None,
    backlog_error: BaseException | None,
    diverted_count: int,
    queue_count: int | None,
) -> str:
    said = (
        f"no namespace took the message for {entity!r}: the primary failed "
        f"({_told(primary_error)}), and so did the backlog ({_told(backlog_error)}). "
        "The message is still yours: send it again later."
    )
    if diverted_count:
        said += (
            f" The first {diverted_count} of this call are safe in the backlog: send only the rest."
        )
    if queue_count == 1:
        said += (
            " There is only one backlog queue, and so no other to turn to: "
            "pair with a backlog_queue_count of 2 or more."
        )
    return said


def _told(error: BaseException | None) -> str:
    return "not known any more" if error is None else f"{type(error).__name__}: {error}".rstrip(".")


# --- across processes -----------------------------------------------------------------------------


_Packed = bytes | tuple[type[AzureError], str]


def _packed(error: BaseException | None) -> _Packed:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # most errors of the SDK get this far and no further
    except Exception:  # whatever a foreign error's pickling may raise
        return type(error) if isinstance(error, AzureError) else ServiceBusError, str(error)
    return data


def _unpacked(kind: type[_Paired], fields: dict[str, Any], causes: dict[str, _Packed]) -> _Paired:
    return kind(**fields, **{name: _cause(packed) for name, packed in causes.items()})


def _cause(packed: _Packed) -> BaseException | None:
    if isinstance(packed, bytes):
        error: BaseException | None = pickle.loads(packed)
        return error
    kind, text = packed
    # Without its own constructor, whose arguments nobody knows any more.
    revived = kind.__new__(kind)
    if isinstance(revived, ServiceBusError):
        ServiceBusError.__init__(revived, text)
    else:
        AzureError.__init__(revived, text)
    return revived
