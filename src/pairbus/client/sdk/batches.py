"""The SDK's batch, with the bytes of its messages made once.

The SDK encodes each message that is added to a batch twice, to learn its size and to add it, and
encoding is most of what a batch costs. The SDK's own `_add` is what runs here all the same: it asks
its transport for both, and is handed one that keeps the bytes in between. Where a later SDK asks
in another way, what was kept is not used, and the SDK encodes again.

A batch that is diverted has the bytes of its messages already. Most messages differ in the backlog
by nothing but the property that names their entity: theirs are those bytes with that put in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

try:
    from azure.servicebus._pyamqp._encode import encode_payload
except ImportError:
    encode_payload = None  # type: ignore[assignment]

from pairbus.client.sdk import private as internals

# The SDK's own implementation of AMQP. Another one's messages would be encoded by its own library.
_KIND: Final = "pyamqp"
# Where in a batch its messages are, each as its bytes.
_DATA: Final = 5
# A message's sections begin with a descriptor of three bytes. Before the
# application's own properties stand header, annotations and properties, in this order.
_BEFORE: Final = (b"\x00\x53\x70", b"\x00\x53\x72", b"\x00\x53\x73")
_SIZE_IN_A_BYTE: Final = (0xC0, 0xC1)  # of a list, of a map
_SIZE_IN_FOUR: Final = (0xD0, 0xD1)
_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"


class EncodedOnce(ServiceBusMessageBatch):
    def _add(self, add_message: Any) -> None:
        transport: Any = self._amqp_transport
        if encode_payload is None or transport.KIND != _KIND:
            super()._add(add_message)
            return
        # For this call only: senders look at whose transport a batch has.
        self._amqp_transport = _Keeping(transport)
        try:
            super()._add(add_message)
        finally:
            self._amqp_transport = transport


def new_batch(sender: Any, size_bytes_max: int) -> EncodedOnce:
    """An empty one for this sender: of another's kind, the SDK would encode it all again."""
    return EncodedOnce(size_bytes_max, amqp_transport=sender._amqp_transport)


class _Keeping:
    """The SDK's transport, but that a message which was measured is added as it was measured."""

    __slots__ = ("_encoded", "_measured", "_transport")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._measured: Any = None
        self._encoded: bytearray | bytes = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def to_outgoing_amqp_message(self, message: Any) -> Any:
        if type(message) is Spliced:
            return message
        return self._transport.to_outgoing_amqp_message(message)

    def get_message_encoded_size(self, message: Any) -> int:
        if type(message) is Spliced:
            self._encoded = message.encoded
        else:
            self._encoded = bytearray()
            encode_payload(self._encoded, message)
        self._measured = message
        return len(self._encoded)

    def add_batch(self, batch: Any, outgoing: Any) -> None:
        if self._measured is None or outgoing._message is not self._measured:
            self._transport.add_batch(batch, outgoing)
            return
        batch._message[_DATA].append(self._encoded)


# --- diverted -------------------------------------------------------------------------------------


class Spliced(AmqpAnnotatedMessage):
    """A diverted message whose bytes are known."""

    encoded: bytes


def splice(batch: ServiceBusMessageBatch, diverted: Sequence[AmqpAnnotatedMessage]) -> None:
    """Where all that a message of the batch got for its envelope is its path, it becomes one whose
    bytes are known. `diverted` are the batch's messages, as they were when they were added."""
    encoded = batch._message[_DATA]
    if encode_payload is None or batch._amqp_transport.KIND != _KIND or internals.is_traced():
        return
    if len(encoded) != len(diverted):
        return
    section: bytes | None = None  # the same for all: their path
    for twin, data in zip(diverted, encoded, strict=True):
        properties = twin.application_properties
        if properties is None or len(properties) != 1:
            continue  # it has some of its own, or what was taken off it is among them
        if section is None:
            section = _section_of(batch, properties)
        at = _place_in(data)
        if at is not None:
            spliced = internals.adopt(twin, Spliced)
            spliced.encoded = b"".join((data[:at], section, data[at:]))


def _section_of(batch: ServiceBusMessageBatch, properties: Any) -> bytes:
    """The application properties, as the SDK encodes them."""
    bare = AmqpAnnotatedMessage(value_body=None, application_properties=properties)
    outgoing = batch._amqp_transport.to_outgoing_amqp_message(bare)
    return bytes(encode_payload(bytearray(), outgoing))


def _place_in(data: bytearray) -> int | None:
    """Where a message's application properties belong; None if it has some."""
    at = 0
    for descriptor in _BEFORE:
        if data.startswith(descriptor, at):
            at += 3
            form = data[at]
            if form in _SIZE_IN_A_BYTE:
                at += 2 + data[at + 1]
            elif form in _SIZE_IN_FOUR:
                at += 5 + int.from_bytes(data[at + 1 : at + 5], "big")
            else:
                return None  # no list or map as the SDK writes it
    return None if data.startswith(_APPLICATION_PROPERTIES, at) else at
