"""Requests and replies on `$cbs` and `$management`, as the SDKs write them.

Both are AMQP messages with the operation in the application properties and an amqp-value body. They
differ in how the reply spells its status. Ordinary messages do not come here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pairbus.amqp.codec import sections
from pairbus.amqp.codec.types import Described, Int, Long, Symbol
from pairbus.amqp.codec.values import MalformedMessage, decode, encode, encode_list
from pairbus.amqp.outcomes import AmqpError

_TICKS_PER_MS: Final = 10_000
_TICKS_AT_EPOCH: Final = 621_355_968_000_000_000
_SHOWN_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Request:
    message_id: object
    reply_to: str | None
    properties: Mapping[str, Any]
    """The application properties."""
    body: Any

    @property
    def operation(self) -> str:
        return str(self.properties.get("operation", ""))


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    description: str = "OK"
    body: Mapping[str, Any] = field(default_factory=dict)
    error: AmqpError | None = None


# The service's own numbers. Clients use the condition, people the number.
_STATUS: Final = {
    "amqp:not-found": 404,
    "com.microsoft:message-not-found": 404,
    "com.microsoft:message-lock-lost": 410,
    "com.microsoft:session-lock-lost": 410,
    "com.microsoft:session-cannot-be-locked": 409,
    "com.microsoft:entity-already-exists": 409,
    "com.microsoft:entity-disabled": 403,
    "amqp:unauthorized-access": 401,
    "amqp:resource-limit-exceeded": 403,
    "amqp:link:message-size-exceeded": 403,
    "amqp:not-implemented": 501,
    "amqp:internal-error": 500,
    "com.microsoft:timeout": 408,
    "com.microsoft:server-busy": 503,
}


def refusal(error: AmqpError) -> Reply:
    return Reply(_STATUS.get(error.condition, 400), error.description, error=error)


def read_request(data: bytes) -> Request:
    """Raises MalformedMessage."""
    parts = sections.slice_message(data)
    bare = parts.bare
    reply_to = sections.read_property(bare, parts.properties, sections.REPLY_TO)
    return Request(
        message_id=sections.read_property(bare, parts.properties, sections.MESSAGE_ID),
        reply_to=reply_to if isinstance(reply_to, str) else None,
        properties=sections.read_application_properties(bare, parts.application_properties),
        body=_value_of(bare),
    )


def _value_of(bare: bytes) -> Any:
    offset = 0
    while offset < len(bare):
        section, offset = decode(bare, offset)
        names = (sections.VALUE, "amqp:amqp-value:*")
        if isinstance(section, Described) and section.descriptor in names:
            return section.value
    return None


def cbs_reply(request: Request, reply: Reply) -> bytes:
    return _encode(
        request, {"status-code": Int(reply.status), "status-description": reply.description}, None
    )


def management_reply(request: Request, reply: Reply) -> bytes:
    status: dict[str, Any] = {
        "statusCode": Int(reply.status),
        "statusDescription": reply.description,
    }
    if reply.error is not None:
        status["errorCondition"] = Symbol(reply.error.condition)
    return _encode(request, status, dict(reply.body))


def _encode(request: Request, status: Mapping[str, Any], body: Any) -> bytes:
    nothing = encode(None)
    properties = encode_list([nothing] * sections.CORRELATION_ID + [encode(request.message_id)])
    return b"".join(
        (
            sections.encode_section(sections.PROPERTIES, properties),
            sections.encode_section(sections.APPLICATION_PROPERTIES, encode(dict(status))),
            sections.encode_section(sections.VALUE, encode(body)),
        )
    )


def ticks(epoch_ms: int) -> Long:
    """.NET's count of 100 ns since the year 1."""
    return Long(epoch_ms * _TICKS_PER_MS + _TICKS_AT_EPOCH)


def no_entity(namespace: str, name: str) -> AmqpError:
    """The text is fixed: Node's SDK recognises a missing entity by it."""
    shown = name if len(name) <= _SHOWN_MAX else f"{name[:_SHOWN_MAX]}..."
    return AmqpError(
        "amqp:not-found", f"The messaging entity 'sb://{namespace}/{shown}' could not be found."
    )


def malformed(error: MalformedMessage) -> AmqpError:
    return AmqpError("amqp:decode-error", f"the message cannot be read: {error}")
