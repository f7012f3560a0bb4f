"""The backlog queues of the secondary namespace: found, or created where they are missing.

This uses the SDK's administration client, blocking or asyncio, which the application provides. A
queue that exists is used as it is, whatever its settings; none is ever changed or deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)

from pairbus.client.sdk.failures import UNTRUSTED_HINT, is_untrusted
from pairbus.client.sdk.pairing_errors import PairingError
from pairbus.client.steps import Steps
from pairbus.options import SendAvailabilityPairedNamespaceOptions

FOREVER: Final = "P10675199DT2H48M5.4775807S"
"""The service's longest duration. As text, because a timedelta cannot hold its last 100
nanoseconds, and rounding up by one is refused."""

# A shorter duration than a century counts as a real time limit.
_LONG: Final = timedelta(days=36_500)
# In an outage, the syphon may receive and release a message about once a minute: 69 days.
_DELIVERIES_MIN: Final = 100_000
# How many queues beyond the count are looked up at most.
FURTHER_MAX: Final = 100

SETTINGS: Final[dict[str, Any]] = {
    "max_size_in_megabytes": 5120,
    "max_delivery_count": 2**31 - 1,
    "default_message_time_to_live": FOREVER,
    "auto_delete_on_idle": FOREVER,
    "lock_duration": "PT1M",
    "dead_lettering_on_message_expiration": True,
    "enable_batched_operations": True,
}
"""The settings of a backlog queue that pairbus creates; all others are the service's defaults. A
message waits for as long as it takes, and only the syphon dead-letters it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQueues:
    queues: tuple[str, ...]
    made: tuple[str, ...]
    """Those of them that were missing, and have been created."""
    warnings: tuple[str, ...] = ()
    """What is dangerous about those that existed: they are used as they are."""


def names(namespace: str, count: int) -> tuple[str, ...]:
    """The paths, on the secondary, of the backlog queues for a primary namespace."""
    return tuple(f"{namespace}/x-servicebus-transfer/{index}" for index in range(count))


def _warnings(queue: str, found: Any) -> list[str]:
    """Settings that could lose a message, in a queue that pairbus did not create."""

    def value(name: str) -> Any:
        return getattr(found, name, None)

    deliveries = value("max_delivery_count") or _DELIVERIES_MIN
    dangers = {
        f"dead-letters a message after {deliveries} deliveries (max_delivery_count)": (
            deliveries < _DELIVERIES_MIN
        ),
        "drops a message with a known message id (requires_duplicate_detection)": value(
            "requires_duplicate_detection"
        ),
        "accepts no message without a session (requires_session)": value("requires_session"),
        "forwards messages, so the syphon cannot receive them (forward_to)": value("forward_to"),
        "lets messages expire (default_message_time_to_live)": _ends(
            value("default_message_time_to_live")
        ),
        "deletes itself (auto_delete_on_idle)": _ends(value("auto_delete_on_idle")),
    }
    present = [danger for danger, is_present in dangers.items() if is_present]
    if not present:
        return []
    return [
        f"backlog queue {queue!r} already existed, and messages diverted to it may be lost. It "
        f"{'; it '.join(present)}. Delete the queue when it is empty, and the next pairing creates "
        "it with the right settings"
    ]


def _unread_warning(unread: list[str], *, count: int) -> str:
    more = f" to {unread[-1]!r}" if len(unread) > 1 else ""
    return (
        f"backlog queue {unread[0]!r}{more} exists, but backlog_queue_count is {count}: the syphon "
        "of this client does not bring its messages home. Set backlog_queue_count to "
        f"{count + len(unread)}, or run `pairbus syphon`, which reads all backlog queues"
    )


def _ends(duration: Any) -> bool:
    return isinstance(duration, timedelta) and duration < _LONG


def steps_for(
    namespace: str, options: SendAvailabilityPairedNamespaceOptions
) -> Steps[BacklogQueues]:
    count = options.backlog_queue_count
    further = names(namespace, count + FURTHER_MAX)[count:] if options.enable_syphon else ()
    manager = options.secondary_namespace_manager
    return prepare(manager, names(namespace, count), further=further)


def prepare(
    manager: Any, names: Iterable[str], *, further: Iterable[str] = ()
) -> Steps[BacklogQueues]:
    """Find the queues, or create them: a generator of calls to the administration client, for the
    drivers of `steps.py`. On PairingError, the queues created until then stay, for the next
    attempt.

    `further`: the names of queues beyond the count, which a syphon in this client does not read. If
    they exist, there is a warning.
    """
    queues, made, warnings = tuple(names), [], []
    for queue in queues:
        try:
            warnings += _warnings(queue, (yield partial(manager.get_queue, queue)))
            continue
        except Exception as error:
            if not _is_missing(error):
                raise _refusal(manager, queue, "looked up", error) from error
        try:
            yield partial(manager.create_queue, queue, **SETTINGS)
            made.append(queue)
        except Exception as error:
            # If it exists, another client that pairs at the same time created it first.
            if not _exists(error):
                raise _refusal(manager, queue, "created", error) from error
    unread: list[str] = []
    for queue in further:
        try:
            yield partial(manager.get_queue, queue)
        except Exception:
            break  # usually because it does not exist; the pairing does not depend on it
        unread.append(queue)
    if unread:
        warnings.append(_unread_warning(unread, count=len(queues)))
    return BacklogQueues(queues=queues, made=tuple(made), warnings=tuple(warnings))


_CLAIM: Final = (
    "carry the Manage claim: a policy with Manage, or the role Azure Service Bus Data Owner"
)

# By status as well as by class: the SDK raises a plain HttpResponseError for an answer that it can
# read.


def _is_missing(error: Exception) -> bool:
    return isinstance(error, ResourceNotFoundError) or _status(error) == 404


def _exists(error: Exception) -> bool:
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
            f"must be valid and {_CLAIM}"
        )
    if status == 403:
        return (
            f"the namespace forbids it ({said}); it must have room for the queue, and the "
            f"credentials of secondary_namespace_manager must {_CLAIM}"
        )
    if status is not None and status < 500:
        return f"the namespace refused it ({said}); create the queue by hand, or allow it there"
    if isinstance(error, AttributeError):
        # The SDK's get_queue raises this for a topic.
        return f"another entity, probably a topic, has its name ({said}); rename that entity"
    if is_untrusted(error):
        return (
            f"its certificate is not trusted ({said}); "
            f"{UNTRUSTED_HINT.format('secondary_namespace_manager')}"
        )
    if isinstance(error, AzureError):
        return (
            f"the namespace did not answer as expected ({said}); it must be up when a client is "
            "paired, and reachable over HTTPS"
        )
    return f"{type(error).__name__}: {said}"
