"""The broker as a process sees it: namespaces, each on its port, started and stopped together.

`start` either leaves everything running or leaves nothing behind and raises BrokerError with a text
for the user. Runs in the event loop of its caller; threads and signals are the caller's business.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pairbus.broker.entities.options import NamespaceOptions
from pairbus.broker.entities.policies import DEFAULT_KEY, Policy, Right
from pairbus.broker.faults import Faults
from pairbus.broker.namespace import Namespace
from pairbus.broker.port.certificates import FOLDER, Certificates
from pairbus.broker.port.listener import Listener
from pairbus.broker.port.sockets import Host, close_all, listen, look_up
from pairbus.cost.meter import Meter
from pairbus.errors import BrokerError, ConfigError

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 3.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, otherwise asyncio's: uvloop has no build for Windows."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a running namespace is, and how to get in."""

    name: str
    host: str
    port: int
    policies: tuple[Policy, ...]
    is_tls_only: bool
    own_faults: Faults | None = field(default=None, repr=False, compare=False)
    own_meter: Meter | None = field(default=None, repr=False, compare=False)

    @property
    def faults(self) -> Faults:
        """What goes wrong there, on demand."""
        assert self.own_faults is not None, "an endpoint that no server made"
        return self.own_faults

    @property
    def meter(self) -> Meter:
        """What Azure would bill for what is done there: `meter.read()`."""
        assert self.own_meter is not None, "an endpoint that no server made"
        return self.own_meter

    @property
    def connection_string(self) -> str:
        """With a policy that may manage, if there is one."""
        managing = [policy for policy in self.policies if policy.allows(Right.MANAGE)]
        return self._connection_string((managing or list(self.policies))[0])

    def connection_string_for(self, policy_name: str) -> str:
        for policy in self.policies:
            if policy.name == policy_name:
                return self._connection_string(policy)
        names = ", ".join(policy.name for policy in self.policies)
        raise ConfigError(
            f"namespace {self.name!r} has no policy {policy_name!r}; its policies are: {names}"
        )

    def _connection_string(self, policy: Policy) -> str:
        text = (
            f"Endpoint=sb://{self.host}:{self.port};"
            f"SharedAccessKeyName={policy.name};SharedAccessKey={policy.key}"
        )
        # To the SDKs, "emulator" means AMQP without TLS.
        return text if self.is_tls_only else f"{text};UseDevelopmentEmulator=true"


class Server:
    """Namespaces on their ports. Starts once and stops once."""

    def __init__(
        self,
        namespaces: Sequence[NamespaceOptions],
        *,
        host: str = "localhost",
        tls_only: bool | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`tls_only` None: on an address that others can reach, and only there."""
        _check_names(namespaces)
        self._options = tuple(namespaces)
        self._host = look_up(host)
        self._is_tls_only = _is_tls_only(self._host, tls_only)
        _check_keys(self._host, self._options)
        self._clock = clock
        self._namespaces: list[Namespace] = []
        self._listeners: list[Listener] = []
        self._endpoints: dict[str, Endpoint] = {}
        folders = [options.data for options in self._options if options.data is not None]
        folder = folders[0] / FOLDER if folders else None
        self._certificates = Certificates(folder, self._host.certificate_names)

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """By the name of the namespace, in the order given; empty unless it runs."""
        return MappingProxyType(self._endpoints)

    def ca_file(self) -> Path:
        """What TLS clients are to trust; made now if need be, which takes a moment."""
        return self._certificates.ca_file(now=self._clock())

    @property
    def keeps_certificates(self) -> bool:
        """Beside the data, so that their place is known."""
        return any(options.data is not None for options in self._options)

    @property
    def has_certificates(self) -> bool:
        return self._certificates.exist

    async def start(self) -> None:
        try:
            for options in self._options:
                self._listeners.append(self._prepare(options))
            # All is well with each of them: only now is anybody let in.
            for listener in self._listeners:
                listener.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self, *, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        """Let nobody in, say goodbye to all, then keep what must be kept. Bounded in time."""
        for namespace in self._namespaces:
            namespace.faults.close()  # or goodbyes would hang with the rest
        await asyncio.gather(
            *(each.stop(patience_seconds=patience_seconds) for each in self._listeners)
        )
        errors: list[BrokerError] = []
        while self._namespaces:
            try:
                await self._namespaces.pop().close()
            except BrokerError as error:  # the others are still to be closed
                errors.append(error)
        self._listeners.clear()
        self._endpoints.clear()
        self._certificates.close()
        if errors:
            raise errors[0]

    def _prepare(self, options: NamespaceOptions) -> Listener:
        sockets = listen(self._host, options.port, namespace=options.name)
        try:
            namespace = Namespace(options, loop=asyncio.get_running_loop(), clock=self._clock)
            namespace.open()
        except BaseException:
            close_all(sockets)
            raise
        self._namespaces.append(namespace)
        self._endpoints[options.name] = Endpoint(
            name=options.name,
            host=self._host.client_name,
            port=sockets[0].getsockname()[1],
            policies=tuple(options.policies),
            is_tls_only=self._is_tls_only,
            own_faults=Faults(namespace.faults),
            own_meter=namespace.meter,
        )

        listener = Listener(
            sockets,
            namespace=namespace,
            certificates=self._certificates,
            limits=options.limits,
            is_tls_only=self._is_tls_only,
            clock=self._clock,
        )
        namespace.faults.port = listener
        return listener


def _check_names(namespaces: Sequence[NamespaceOptions]) -> None:
    if not namespaces:
        raise ConfigError("a broker needs at least one namespace")
    seen: dict[str, NamespaceOptions] = {}
    for options in namespaces:
        if options.name.lower() in seen:
            raise ConfigError(f"namespace {options.name!r} is defined twice")
        seen[options.name.lower()] = options


def _is_tls_only(host: Host, wish: bool | None) -> bool:
    if wish is False and not host.is_loopback:
        raise ConfigError(
            f"host {host.name!r} can be reached from other machines, and keys and messages would "
            "travel in the clear: leave tls_only on there, or listen on localhost"
        )
    return not host.is_loopback if wish is None else wish


def _check_keys(host: Host, namespaces: Sequence[NamespaceOptions]) -> None:
    if host.is_loopback:
        return
    for options in namespaces:
        if options.accepts_bearer:
            raise ConfigError(
                f"namespace {options.name!r} takes bearer tokens without a check, and host "
                f"{host.name!r} can be reached from other machines: listen on localhost"
            )
        for policy in options.policies:
            if policy.key == DEFAULT_KEY:
                raise ConfigError(
                    f"namespace {options.name!r}: policy {policy.name!r} has the well-known key, "
                    f"and host {host.name!r} can be reached from other machines: give a policy "
                    "with a key of your own, or listen on localhost"
                )
