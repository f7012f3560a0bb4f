"""Messages to test with, and what is compared of diverted ones."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.client.route.envelope import SCHEDULED, SESSION_ID, TIME_TO_LIVE
from tests.client.sdk.wire import encoded

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp()) * 1000
SCHEDULE = b"x-opt-scheduled-enqueue-time"


def annotated(body: Any = b"x", **sections: Any) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(data_body=body, **sections)


def received(**sections: Any) -> ServiceBusReceivedMessage:
    """As a receiver gets it: names and texts are bytes, times are numbers."""
    frame = [None] * 12
    payload = decode_payload(memoryview(encoded(annotated(**sections))))
    return ServiceBusReceivedMessage(payload, frame=frame, receiver=None)


def aliases(message: AmqpAnnotatedMessage) -> dict[str, Any]:
    properties = message.application_properties
    names = (SESSION_ID, TIME_TO_LIVE, SCHEDULED)
    return {name: properties[name] for name in names if name in properties}


def string(value: str) -> dict[str, Any]:
    return {"TYPE": "STRING", "VALUE": value}


def long(value: int) -> dict[str, Any]:
    return {"TYPE": "LONG", "VALUE": value}


def timestamp(value: int) -> dict[str, Any]:
    return {"TYPE": "TIMESTAMP", "VALUE": value}
