"""The bytes of messages in a queue, which no SDK shows, because each decodes them.

The peer locks what it reads and leaves without settling, so nothing is removed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from pairbus.amqp.codec.sections import slice_message
from pairbus.amqp.codec.values import decode, skip
from tests.chaos.peers import TRANSFER, Address, Peer, credit
from tests.pairing.namespaces import NamespaceProcess

_MORE = 5
# What a broker writes into a message; the sender's own are beside them.
_BROKERS_OWN = {
    "x-opt-enqueued-time",
    "x-opt-sequence-number",
    "x-opt-enqueue-sequence-number",
    "x-opt-locked-until",
    "x-opt-message-state",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RawMessage:
    """The parts that a sender decides about; the rest is the broker's."""

    durable: bool | None
    priority: int | None
    time_to_live_ms: int | None
    annotations: dict[Any, Any]
    properties: bytes
    application_properties: tuple[tuple[bytes, bytes], ...]
    """Name and value, encoded, in their order."""
    rest: bytes
    """Body and footer."""

    @property
    def property_fields(self) -> list[Any]:
        """Decoded, with their types."""
        if not self.properties:
            return []
        return list(decode(self.properties)[0].value)

    @property
    def aliases(self) -> dict[str, Any]:
        """Those of the application properties that begin with `x-ms-`, decoded."""
        pairs = [(decode(name)[0], decode(value)[0]) for name, value in self.application_properties]
        return {name: value for name, value in pairs if name.startswith("x-ms-")}

    @property
    def own_properties(self) -> tuple[tuple[bytes, bytes], ...]:
        return tuple(
            (name, value)
            for name, value in self.application_properties
            if not decode(name)[0].startswith("x-ms-")
        )


def read(namespace: NamespaceProcess, queue: str, count: int) -> list[RawMessage]:
    """The next messages of a queue without sessions."""
    address = Address(namespace.connection_string(), namespace.ca_file)
    with _Reader(address) as peer:
        peer.attach(queue, receiver=True)
        peer.send(credit(count))
        return [_taken_apart(peer.message()) for _ in range(count)]


class _Reader(Peer):
    def message(self) -> bytes:
        """The payloads of one delivery's transfers."""
        payload, more = b"", True
        while more:
            header = self._take(8)
            assert header, "the broker hung up"
            size, offset, _, _ = struct.unpack(">IBBH", header)
            body = self._take(size - 8)[offset * 4 - 8 :]
            if not body:
                continue
            performative, end = decode(body)
            if int(performative.descriptor) == TRANSFER:
                payload += body[end:]
                fields = performative.value
                more = len(fields) > _MORE and bool(fields[_MORE])
        return payload


def _taken_apart(data: bytes) -> RawMessage:
    parts = slice_message(data)
    spans = [span for span in (parts.properties, parts.application_properties) if span]
    rest = bytearray(parts.bare)
    for start, end in sorted(spans, reverse=True):
        del rest[start:end]
    properties = parts.bare[slice(*parts.properties)] if parts.properties else b""
    pairs: tuple[tuple[bytes, bytes], ...] = ()
    if parts.application_properties:
        pairs = tuple(_pairs(parts.bare[slice(*parts.application_properties)]))
    annotations: dict[Any, Any] = {}
    position = 0
    for _ in range(parts.annotation_count):
        name, position = decode(parts.annotations, position)
        value, position = decode(parts.annotations, position)
        if name not in _BROKERS_OWN:
            annotations[name] = value
    return RawMessage(
        durable=parts.durable,
        priority=parts.priority,
        time_to_live_ms=parts.ttl_ms,
        annotations=annotations,
        properties=properties,
        application_properties=pairs,
        rest=bytes(rest),
    )


def _pairs(section: bytes) -> list[tuple[bytes, bytes]]:
    """Of a described map, each half as it is encoded."""
    constructor = section[3]
    assert constructor in (0xC1, 0xD1), hex(constructor)
    if constructor == 0xC1:
        count, position = section[5], 6
    else:
        (count,), position = struct.unpack_from(">I", section, 8), 12
    values = []
    for _ in range(count):
        end = skip(section, position)
        values.append(section[position:end])
        position = end
    return list(zip(values[::2], values[1::2], strict=True))
