"""The backlog queues of the secondary namespace: found, or made where they are missing.

Through the SDK's administration client, blocking or asyncio, which the application hands over. A
queue that is there is used as it is, whatever its settings; none is ever changed or deleted. Knows
nothing of who sends to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)

from pairbus.client.sdk.errors import PairingError

FOREVER: Final = "P10675199DT2H48M5.4775807S"
"""The service's longest duration. To its last 100 nanoseconds, which a timedelta cannot hold: one
more is refused."""

# Anything shorter than a century is meant to end.
_LONG: Final = timedelta(days=36_500)

SETTINGS: Final[dict[str, Any]] = {
    "max_size_in_megabytes": 5120,
    "max_delivery_count": 2**31 - 1,
    "default_message_time_to_live": FOREVER,
    "auto_delete_on_idle": FOREVER,
    "lock_duration": "PT1M",
    "dead_lettering_on_message_expiration": True,
    "enable_batched_operations": True,
}
"""Of a backlog queue that is made; all else is as the service has it. So a message waits for as
long as it takes, and nothing but the syphon puts it aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    queues: tuple[str, ...]
    made: tuple[str, ...]
    """Those of them that were missing, and have been made."""
    cautions: tuple[str, ...] = ()
    """What is dangerous about those that were there: they are used as they are."""


def names(namespace: str, count: int) -> tuple[str, ...]:
    """The paths, on the secondary, of the backlog queues for a primary namespace."""
    return tuple(f"{namespace}/x-servicebus-transfer/{index}" for index in range(count))


def _cautions(queue: str, found: Any) -> list[str]:
    """What could cost a message, of a queue that somebody else has made."""
    dangers = {
        "drops a message whose id another one had (requires_duplicate_detection)": bool(
            getattr(found, "requires_duplicate_detection", False)
        ),
        "takes no message without a session (requires_session)": bool(
            getattr(found, "requires_session", False)
        ),
        "passes messages on, away from the syphon (forward_to)": bool(
            getattr(found, "forward_to", None)
        ),
        "lets messages expire (default_message_time_to_live)": _ends(
            getattr(found, "default_message_time_to_live", None)
        ),
        "deletes itself (auto_delete_on_idle)": _ends(getattr(found, "auto_delete_on_idle", None)),
    }
    return [
        f"backlog queue {queue!r} was there already and {danger}: messages diverted to it may be "
        "lost; delete it, and it is made anew as it should be"
        for danger, is_there in dangers.items()
        if is_there
    ]


def _ends(duration: Any) -> bool:
    return isinstance(duration, timedelta) and duration < _LONG


def prepare(manager: Any, names: Iterable[str]) -> Found:
    """Find the queues, or make them. On PairingError, what was made until then stays for the next
    attempt."""
    queues, made, cautions = tuple(names), [], []
    for queue in queues:
        try:
            cautions += _cautions(queue, manager.get_queue(queue))
        except Exception as error:
            if not _is_missing(error):
                raise _refusal(manager, queue, "looked up", error) from error
            if _make(manager, queue):
                made.append(queue)
    return Found(queues=queues, made=tuple(made), cautions=tuple(cautions))


def _make(manager: Any, queue: str) -> bool:
    try:
        manager.create_queue(queue, **SETTINGS)
    except Exception as error:
        if _is_there(error):
            return False  # somebody else pairs at the same time, and was first
        raise _refusal(manager, queue, "made", error) from error
    return True


async def prepare_async(manager: Any, names: Iterable[str]) -> Found:
    """`prepare`, with asyncio's administration client."""
    queues, made, cautions = tuple(names), [], []
    for queue in queues:
        try:
            cautions += _cautions(queue, await manager.get_queue(queue))
        except Exception as error:
            if not _is_missing(error):
                raise _refusal(manager, queue, "looked up", error) from error
            if await _make_async(manager, queue):
                made.append(queue)
    return Found(queues=queues, made=tuple(made), cautions=tuple(cautions))


async def _make_async(manager: Any, queue: str) -> bool:
    try:
        await manager.create_queue(queue, **SETTINGS)
    except Exception as error:
        if _is_there(error):
            return False
        raise _refusal(manager, queue, "made", error) from error
    return True


_CLAIM: Final = (
    "carry the Manage claim: a policy with Manage, or the role Azure Service Bus Data Owner"
)

# The status as well as the class: the SDK makes a plain HttpResponseError of an answer that it can
# read.


def _is_missing(error: Exception) -> bool:
    return isinstance(error, ResourceNotFoundError) or _status(error) == 404


def _is_there(error: Exception) -> bool:
    return isinstance(error, ResourceExistsError) or _status(error) == 409


def _status(error: Exception) -> int | None:
    return error.status_code if isinstance(error, HttpResponseError) else None


def _refusal(manager: Any, queue: str, what: str, error: Exception) -> PairingError:
    namespace = str(getattr(manager, "fully_qualified_namespace", "the secondary"))
    return PairingError(
        f"backlog queue {queue!r} on namespace {namespace!r} could not be {what}: {_reason(error)}",
        namespace=namespace,
        queue=queue,
        error=error,
    )


def _reason(error: Exception) -> str:
    said = str(getattr(error, "message", error)).strip().rstrip(".")
    status = _status(error)
    if isinstance(error, ClientAuthenticationError) or status == 401:
        return (
            f"the namespace refused the credentials of secondary_namespace_manager ({said}); they "
            f"must be right and {_CLAIM}"
        )
    if status == 403:
        return (
            f"the namespace forbids it ({said}); it needs room for the queue, and the credentials "
            f"of secondary_namespace_manager must {_CLAIM}"
        )
    if status is not None and status < 500:
        return f"the namespace refused it ({said}); make the queue by hand, or allow it there"
    if isinstance(error, AttributeError):
        # What the SDK's get_queue says of a topic.
        return f"something that is no queue, probably a topic, has its name ({said}); rename that"
    if isinstance(error, AzureError):
        return (
            f"the namespace did not answer as it should ({said}); it must be up when a client is "
            "paired, and reachable over HTTPS, with a certificate that secondary_namespace_manager "
            "trusts"
        )
    return f"{type(error).__name__}: {said}"
