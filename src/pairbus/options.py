"""The options of a pairing, checked when they are made.

This module knows nothing of the SDK: it recognises the two objects of the secondary namespace by
their methods. An options object belongs to one pairing, and can mark its entities as healthy by
hand (`mark_path_healthy`).
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, get_args

from pairbus.errors import OptionsError
from pairbus.events import Observer

PingMode = Literal["message", "link"]
FailoverScope = Literal["entity", "namespace"]
FailBack = Literal["at_once", "ordered"]
SecondaryConnections = Literal["ready", "lazy"]

MINUTE = timedelta(minutes=1)
GIBIBYTE = 2**30


@dataclass(eq=False, repr=False, kw_only=True)
class PairedNamespaceOptions:
    """The base class of all kinds of pairing. There is one kind:
    `SendAvailabilityPairedNamespaceOptions`.
    """

    primary_namespace_name: str | None = None
    """Default: the first label of the primary's host name. The primary's name in the paths of the
    backlog queues."""

    observers: Iterable[Observer] = ()
    """Default none. Functions that are called with each event."""

    def __post_init__(self) -> None:
        if type(self) is PairedNamespaceOptions:
            raise OptionsError(
                "PairedNamespaceOptions is the base class of all pairings and pairs nothing "
                "itself; use SendAvailabilityPairedNamespaceOptions"
            )
        if self.primary_namespace_name is not None:
            _check_name(self.primary_namespace_name)
        self.observers = _checked_observers(self.observers)
        self._mark_path_healthy: Callable[[str], bool] | None = None
        self._is_free = threading.Lock()

    @property
    def is_paired(self) -> bool:
        """Whether a client has been paired with these options. Options can be used once."""
        return self._mark_path_healthy is not None

    def claim(self) -> bool:
        """Claims the options for a pairing. Returns False if they are in use or have been used."""
        return self._is_free.acquire(blocking=False)

    def release(self) -> None:
        """The pairing failed: the options can be used again."""
        self._is_free.release()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied: it holds clients with open "
            "connections; make the options in the process that pairs with them"
        )


@dataclass(frozen=True)
class Outbox:
    """A durable file on this machine for messages that neither namespace accepts.

    Give each client a file of its own, on a local disk, in a folder that exists.
    """

    path: str | os.PathLike[str]
    """The file. It is created when the first message needs it."""

    max_bytes: int = GIBIBYTE
    """Default 1 GiB. How many bytes of messages the file may hold. A send that would exceed it
    raises `BacklogExhausted`."""

    max_age: timedelta | None = None
    """Default None, no limit. A message that has waited longer is not sent any more: it is held in
    the file until you send or delete it with `pairbus outbox`."""

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
            raise OptionsError(f"the path of an outbox must name a file, not {self.path!r}")
        if isinstance(self.max_bytes, bool) or not isinstance(self.max_bytes, int):
            raise OptionsError(f"max_bytes must be a whole number of bytes, not {self.max_bytes!r}")
        if self.max_bytes < 1:
            raise OptionsError(f"max_bytes must be at least 1, not {self.max_bytes}")
        age = self.max_age
        if age is not None and not (isinstance(age, timedelta) and age > timedelta(0)):
            raise OptionsError(f"max_age must be a timedelta above 0, or None, not {age!r}")
        # The working directory may change later.
        object.__setattr__(self, "path", Path(self.path).expanduser().absolute())


@dataclass(eq=False, repr=False)
class SendAvailabilityPairedNamespaceOptions(PairedNamespaceOptions):
    """Keep sending: while the primary is down, messages go to backlog queues on a secondary
    namespace.

    The first two arguments are enough::

        options = SendAvailabilityPairedNamespaceOptions(manager, secondary)
        primary.pair_namespace(options)
    """

    secondary_namespace_manager: Any
    """The secondary's `ServiceBusAdministrationClient`."""

    messaging_factory: Any
    """The secondary's `ServiceBusClient`."""

    backlog_queue_count: int = 10
    """Default 10. More queues spread the load of an outage; each one costs the syphon 4 receives an
    hour when idle. With 1, there is no other queue to try when it fails. After the pairing: the
    number of queues that were found or created."""

    failover_interval: timedelta = MINUTE
    """Default 1 minute, 0 to 60 minutes. How long an entity may fail before its messages are
    diverted; until then the caller gets the exceptions. With 0, the first failure that counts
    starts the failover, and its message is diverted."""

    enable_syphon: bool = False
    """Default False. With True, this process also brings diverted messages home. Set it in the
    application that receives the messages.
    """

    ping_primary_interval: timedelta = MINUTE
    """Default 1 minute, 1 second to 30 minutes. The time between two pings of a failed-over entity.
    A ping that the primary answers is billed.
    """

    _: KW_ONLY

    failover_scope: FailoverScope = "entity"
    """`entity` (default): each entity fails over by its own failures. `namespace`: when one entity
    fails over because the primary cannot be reached (it refuses or resets connections, or there is
    no route to it), all entities of the client fail over with it."""

    fail_back_pings: int = 1
    """Default 1, 1 to 100. How many pings in a row the primary must answer before an entity fails
    back. With 2 or more, an entity that fails over again within 10 minutes of its failback needs
    twice as many, up to 16 times as many; every 10 minutes without a failover halve that."""

    fail_back: FailBack = "at_once"
    """`at_once` (default): when the primary answers, messages go there at once, and overtake those
    in the backlog. `ordered`: messages are diverted until those that this client has diverted are
    home. Needs the Listen claim on the secondary."""

    fail_back_wait_max: timedelta | None = None
    """Default None, or 1 second to 7 days. With `fail_back="ordered"`: how long to wait for the
    backlog after the primary answers. Then messages go to the primary, and order is not kept. With
    None, the client waits as long as it takes."""

    ping_mode: PingMode = "message"
    """`message` (default) sends an empty message that Service Bus drops. `link` opens a sender link
    and sends nothing: for a service that would deliver the ping."""

    secondary_connections: SecondaryConnections = "ready"
    """`ready` (default) connects to the secondary in advance; `lazy` connects when the first
    message is diverted."""

    send_timeout: timedelta = MINUTE
    """Default 60 seconds, 1 second to 60 minutes. How long a send may take on one namespace if its
    caller gives no timeout. The SDK itself would wait forever for a namespace that does not
    answer."""

    throttle_wait: timedelta = timedelta(seconds=10)
    """Default 10 seconds, 10 seconds to 10 minutes. How long a send waits before it tries again
    when the service is busy."""

    outbox: Outbox | None = None
    """Default None. With an `Outbox`, a message that neither namespace accepts is stored in a file
    on this machine, and sent when a namespace accepts messages again; without one, the send
    raises."""

    syphon: Any = None
    """Default None. Your own syphon, with the methods `start` and `stop`, instead of ours."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.is_asyncio = _checked_clients(self.secondary_namespace_manager, self.messaging_factory)
        _check_count("backlog_queue_count", self.backlog_queue_count)
        _check_count("fail_back_pings", self.fail_back_pings, largest=100)
        for name, (smallest, largest) in _DURATIONS.items():
            _check_duration(name, getattr(self, name), smallest, largest)
        if self.outbox is not None and not isinstance(self.outbox, Outbox):
            raise OptionsError(f"outbox must be an Outbox or None, not {self.outbox!r}")
        for name, words in _WORDS.items():
            _check_word(name, getattr(self, name), words)
        if self.fail_back_wait_max is not None:
            if self.fail_back != "ordered":
                raise OptionsError(
                    'fail_back_wait_max is given, but fail_back is "at_once"; set it to "ordered"'
                )
            _check_duration(
                "fail_back_wait_max",
                self.fail_back_wait_max,
                timedelta(seconds=1),
                timedelta(days=7),
            )
        if not isinstance(self.enable_syphon, bool):
            raise OptionsError(f"enable_syphon must be True or False, not {self.enable_syphon!r}")
        if self.syphon is not None and not self.enable_syphon:
            raise OptionsError("syphon is given, but enable_syphon is False; set it to True")

    def bind(self, mark_path_healthy: Callable[[str], bool], backlog_queue_count: int) -> None:
        """Records that a client has been paired with these options. The first argument is the
        pairing's function.
        """
        self._mark_path_healthy = mark_path_healthy
        self.backlog_queue_count = backlog_queue_count

    def mark_path_healthy(self, path: str) -> bool:
        """Send an entity's messages to the primary again. False if they already go there."""
        if self._mark_path_healthy is None:
            raise OptionsError(
                f"cannot mark {path!r} as healthy: no client has been paired with these options yet"
            )
        return self._mark_path_healthy(path)


# --- checks ---------------------------------------------------------------------------------------

# By hand and not by a library: the paired client needs no package but the SDK, and each text names
# the option, its value and what would be right.

_MANAGER_METHODS: Final = ("get_queue", "create_queue")
_FACTORY_METHODS: Final = ("get_queue_sender", "close")


def _checked_clients(manager: Any, factory: Any) -> bool:
    """Whether both are asyncio clients. Raises if one is asyncio and the other is not."""
    for name, value, methods, right in (
        (
            "secondary_namespace_manager",
            manager,
            _MANAGER_METHODS,
            "ServiceBusAdministrationClient",
        ),
        ("messaging_factory", factory, _FACTORY_METHODS, "ServiceBusClient"),
    ):
        if not all(callable(getattr(value, method, None)) for method in methods):
            raise OptionsError(
                f"{name} must be the secondary's {right}, not {type(value).__name__}"
            )
    asyncio_manager = inspect.iscoroutinefunction(manager.get_queue)
    asyncio_factory = inspect.iscoroutinefunction(factory.close)
    if asyncio_manager != asyncio_factory:
        wanted = (
            "azure.servicebus.aio.management" if asyncio_factory else "azure.servicebus.management"
        )
        raise OptionsError(
            "secondary_namespace_manager and messaging_factory must both be blocking clients or "
            "both asyncio clients: messaging_factory is "
            f"{'asyncio' if asyncio_factory else 'blocking'}, so import "
            f"ServiceBusAdministrationClient from {wanted}"
        )
    return asyncio_factory


_DURATIONS: Final = {
    "failover_interval": (timedelta(0), timedelta(minutes=60)),
    "ping_primary_interval": (timedelta(seconds=1), timedelta(minutes=30)),
    "send_timeout": (timedelta(seconds=1), timedelta(minutes=60)),
    "throttle_wait": (timedelta(seconds=10), timedelta(minutes=10)),
}
_WORDS: Final = {
    "fail_back": get_args(FailBack),
    "failover_scope": get_args(FailoverScope),
    "ping_mode": get_args(PingMode),
    "secondary_connections": get_args(SecondaryConnections),
}


def _check_count(name: str, value: Any, *, largest: int | None = None) -> None:
    span = "at least 1" if largest is None else f"from 1 to {largest}"
    if isinstance(value, bool) or not isinstance(value, int):
        which = f"of {span}" if largest is None else span
        raise OptionsError(f"{name} must be a whole number {which}, not {value!r}")
    if value < 1 or (largest is not None and value > largest):
        raise OptionsError(f"{name} must be {span}, not {value}")


def _check_duration(name: str, value: Any, smallest: timedelta, largest: timedelta) -> None:
    span = f"from {smallest} to {largest} (hours:minutes:seconds)"
    if not isinstance(value, timedelta):
        raise OptionsError(f"{name} must be a timedelta {span}, not {value!r}")
    if not smallest <= value <= largest:
        raise OptionsError(f"{name} must be {span}, not {value}")


def _check_word(name: str, value: Any, words: tuple[str, ...]) -> None:
    if value not in words:
        raise OptionsError(f"{name} must be one of {', '.join(map(repr, words))}, not {value!r}")


def _check_name(value: Any) -> None:
    # It becomes a segment of a queue path: NAME/x-servicebus-transfer/N.
    if not isinstance(value, str) or not value or not all(c.isalnum() or c in "-_." for c in value):
        raise OptionsError(
            "primary_namespace_name must be the first label of the primary's host name, "
            f"such as 'contoso' (letters, digits, '-', '_' and '.'), not {value!r}"
        )


def _checked_observers(values: Any) -> tuple[Observer, ...]:
    observers: tuple[Callable[..., Any], ...]
    try:
        observers = tuple(values)
    except TypeError:
        raise OptionsError(f"observers must be a list of callables, not {values!r}") from None
    for observer in observers:
        check_observer(observer)
    return observers


def check_observer(observer: Any) -> None:
    if not callable(observer):
        raise OptionsError(f"an observer must be callable with one event, not {observer!r}")
    call = getattr(observer, "__call__", None)  # noqa: B004
    if inspect.iscoroutinefunction(observer) or inspect.iscoroutinefunction(call):
        raise OptionsError(
            f"an observer must be a plain function, because it is not awaited: {observer!r}; "
            "let it put the event into a queue"
        )
