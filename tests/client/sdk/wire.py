"""A message of the SDK as its own encoder writes it, cut into pieces that can be compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.amqp.codec.sections import read_application_properties, slice_message
from pairbus.amqp.codec.values import skip

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = range(0x70, 0x75)
DATA, SEQUENCE, VALUE, FOOTER = range(0x75, 0x79)
TTL = 2
"""In the header. The rest: in the properties."""
MESSAGE_ID, ABSOLUTE_EXPIRY, CREATION, GROUP_ID = 0, 8, 9, 10
NULL = b"\x40"


@dataclass
class Wire:
    """Only bytes. A missing section is empty."""

    header: list[bytes] = field(default_factory=list)
    delivery_annotations: list[tuple[bytes, bytes]] = field(default_factory=list)
    annotations: list[tuple[bytes, bytes]] = field(default_factory=list)
    properties: list[bytes] = field(default_factory=list)
    application_properties: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    """All its sections, with their descriptors."""
    footer: list[tuple[bytes, bytes]] = field(default_factory=list)


LISTS = {HEADER: "header", PROPERTIES: "properties"}
MAPS = {
    DELIVERY_ANNOTATIONS: "delivery_annotations",
    ANNOTATIONS: "annotations",
    APPLICATION_PROPERTIES: "application_properties",
    FOOTER: "footer",
}


def encoded(message: ServiceBusMessage | AmqpAnnotatedMessage) -> bytes:
    """As the SDK would send it."""
    raw = getattr(message, "raw_amqp_message", message)
    return bytes(encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(raw)))


def read_properties(message: AmqpAnnotatedMessage) -> dict[str, Any]:
    """The application properties as a receiver reads them. Our codec reads them, because the SDK
    fails on its own decimals.
    """
    parts = slice_message(encoded(message))
    return read_application_properties(parts.bare, parts.application_properties)


def on_the_wire(message: ServiceBusMessage | AmqpAnnotatedMessage) -> Wire:
    data, pos, wire = encoded(message), 0, Wire()
    while pos < len(data):
        assert data[pos : pos + 2] == b"\x00\x53"
        section, start, end = data[pos + 2], pos + 3, skip(data, pos + 3)
        if section in LISTS:
            setattr(wire, LISTS[section], _items(data, start, end))
        elif section in MAPS:
            items = _items(data, start, end)
            setattr(wire, MAPS[section], list(zip(items[::2], items[1::2], strict=True)))
        else:
            wire.body += data[pos:end]
        pos = end
    return wire


def _items(data: bytes, start: int, end: int) -> list[bytes]:
    """Of a list or a map: behind its constructor, size and count, of one byte or of four each."""
    if data[start] == 0x45:
        return []
    pos, items = start + (3 if data[start] in (0xC0, 0xC1) else 9), []
    while pos < end:
        after = skip(data, pos)
        items.append(data[pos:after])
        pos = after
    return items


def string(text: str) -> bytes:
    data = text.encode()
    return b"\xa1" + bytes([len(data)]) + data
