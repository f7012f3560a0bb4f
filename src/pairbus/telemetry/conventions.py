"""The names of attributes: OpenTelemetry's for messaging, and our own beside them.

In version 1.44 of the conventions those for messaging are still in development, so their names
are spelled here and not taken from the package that has them as constants.
"""

from __future__ import annotations

from typing import Final

from pairbus.telemetry.causes import error_type

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
SERVER_ADDRESS: Final = "server.address"
ERROR_TYPE: Final = "error.type"

NAMESPACE: Final = "pairbus.namespace"
ENTITY: Final = "pairbus.entity"
BACKLOG_QUEUE: Final = "pairbus.backlog_queue"
REASON: Final = "pairbus.reason"
ANSWERED: Final = "pairbus.answered"
CAUSE: Final = "pairbus.cause"
AFTER_SECONDS: Final = "pairbus.after_seconds"

Attributes = dict[str, str | int | float | bool]


def operation(name: str, *, address: str | None) -> Attributes:
    """What is the same in all operations of a kind."""
    attributes: Attributes = {SYSTEM: "servicebus", OPERATION_NAME: name}
    if address is not None:
        attributes[SERVER_ADDRESS] = address
    return attributes


def failure(error: BaseException | None) -> Attributes:
    return {ERROR_TYPE: "_OTHER" if error is None else error_type(error)}
