"""Messages of a namespace: a client for a command, and what goes wrong with it, in one line.

Whatever is sent, looked at or copied goes as bytes, by the client that the syphon has: the official
SDK has no word for a property's AMQP type, so a copy that it makes is not what was sent. Sessions,
and taking without a lock, are the SDK's. Both raise the SDK's errors, which leave here as
NamespaceError or UsageError, with entity and namespace in the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from azure.core.exceptions import AzureError
from azure.servicebus import exceptions as sdk

from pairbus.cli.messages.entity_path import Place
from pairbus.cli.reasons import why_unreachable
from pairbus.cli.target import Target
from pairbus.errors import NamespaceError, UsageError
from pairbus.fast.address import Address
from pairbus.fast.client import FastClient
from pairbus.fast.rows import UnreadableMessage

ANSWER_SECONDS_MAX: Final = 30.0
_NOT_FOUND: Final = 404


@contextmanager
def quick_client(target: Target, *, seconds: float = ANSWER_SECONDS_MAX) -> Iterator[FastClient]:
    """One that is not connected yet: the first call connects."""
    try:
        address = Address(
            target, None if target.ca_file is None else str(target.ca_file), target.port
        )
        client = address.client(timeout_seconds=seconds)
    except ValueError as error:
        raise UsageError(str(error)) from error
    try:
        yield client
    finally:
        client.close()


def sdk_settings(target: Target) -> dict[str, Any]:
    """For the official client. Without the emulator's word it looks at no port in the string."""
    settings: dict[str, Any] = {}
    if target.is_local:
        settings["retry_total"] = 0  # who makes their own broker fail wants to see it
    if not target.is_emulator:
        if target.port is not None:
            settings["custom_endpoint_address"] = f"sb://{target.address}"
        if target.ca_file is not None:
            settings["connection_verify"] = str(target.ca_file)
    return settings


@contextmanager
def told(target: Target, place: Place, *, needs: str) -> Iterator[None]:
    try:
        yield
    except AzureError as error:
        raise NamespaceError(complaint(error, target, place, needs=needs)) from error
    except UnreadableMessage as error:
        raise NamespaceError(str(error)) from error
    except ValueError as error:  # the SDK's word for an EntityPath that is another's
        if "EntityPath" not in str(error):
            raise
        raise UsageError(" ".join(str(error).split())) from error


def complaint(error: AzureError, target: Target, place: Place, *, needs: str) -> str:
    address = target.address
    error = getattr(error, "error", None) or error  # the first of several, of our own client
    if getattr(getattr(error, "inner_exception", None), "status_code", None) == _NOT_FOUND:
        return _absent(target, place)  # asked for its token already
    match error:
        case sdk.MessagingEntityNotFoundError():
            return _absent(target, place)
        case sdk.ServiceBusAuthorizationError() | sdk.ServiceBusAuthenticationError():
            return (
                f"{address} does not let policy {target.policy_name!r} in, which needs the right "
                f"key and {needs} for {place.spoken}"
            )
        case sdk.SessionCannotBeLockedError():
            return f"the session of {place.spoken} is another receiver's, at {address}"
        case sdk.ServiceBusConnectionError() | sdk.OperationTimeoutError():
            return f"{address} cannot be reached: {why_unreachable(error)}"
    words = _words(error)
    hint = " (--session or --next-session says which)" if "requires session" in words else ""
    return f"{place.spoken}: {address} says: {words}{hint}"


def _absent(target: Target, place: Place) -> str:
    return f"{place.spoken} is not there, at {target.address}{place.hint}"


def _words(error: BaseException) -> str:
    inner = getattr(error, "inner_exception", None)
    said = getattr(inner, "description", None)
    if isinstance(said, bytes):
        said = said.decode("utf-8", "replace")
    return " ".join(str(said or getattr(error, "message", None) or error).split())
