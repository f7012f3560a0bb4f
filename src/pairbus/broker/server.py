"""The broker's server: namespaces, each on its own port, started and stopped together.

`start` either leaves everything running, or leaves nothing behind and raises BrokerError with a
text for the user. It runs in the caller's event loop; threads and signals are up to the caller.
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

from pairbus.broker.clock import SystemClock
from pairbus.broker.entities.namespace_options import NamespaceOptions
from pairbus.broker.entities.policies import DEFAULT_KEY, Policy, Right
from pairbus.broker.faults import Faults
from pairbus.broker.hosts import HostNames
from pairbus.broker.namespace import Namespace
from pairbus.broker.port.certificates import FOLDER, Certificates
from pairbus.broker.port.listener import Listener
from pairbus.broker.port.sockets import Host, close_all, listen, look_up
from pairbus.cost.meter import Meter
from pairbus.errors import BrokerError, ConfigError, check_broker_installed

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 3.0
_REMEDY: Final = (
    "listen on localhost, or give allow_insecure (--allow-insecure) in a network that you trust"
)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, otherwise asyncio's: uvloop has no build for Windows."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a running namespace, and the connection strings to it."""

    name: str
    host: str
    port: int
    policies: tuple[Policy, ...]
    is_tls_only: bool
    faults: Faults = field(repr=False, compare=False)
    """Faults on demand in this namespace."""
    meter: Meter = field(repr=False, compare=False)
    """The operations in this namespace, as Azure would bill them: `meter.read()`."""

    @property
    def connection_string(self) -> str:
        """With a policy that has the Manage right, if there is one."""
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
    """Namespaces on their ports. It can be started once and stopped once."""

    def __init__(
        self,
        namespaces: Sequence[NamespaceOptions],
        *,
        host: str = "localhost",
        tls_only: bool | None = None,
        allow_insecure: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """With `tls_only` None, TLS is required unless the host is a loopback address.

        With `allow_insecure`, other hosts need neither TLS nor a key of your own.
        """
        check_broker_installed("the local broker")
        _check_names(namespaces)
        self._options = tuple(namespaces)
        self._host = look_up(host)
        if allow_insecure and not self._host.is_loopback:
            self._is_tls_only = bool(tls_only)
            logger.warning(
                "host %s can be reached from other machines, and anyone who reaches it can read "
                "and change all messages: keys of your own and TLS are not required",
                host,
            )
        else:
            self._is_tls_only = _is_tls_only(self._host, tls_only)
            _check_keys(self._host, self._options)
        self._is_real_time = clock is None
        self._clock = time.time if clock is None else clock
        # In a network of containers, the broker has names that only that network knows.
        is_open = allow_insecure and not self._host.is_loopback
        self._hosts = HostNames(None if is_open else self._host.certificate_names)
        self._namespaces: list[Namespace] = []
        self._listeners: list[Listener] = []
        self._endpoints: dict[str, Endpoint] = {}
        folders = [options.data for options in self._options if options.data is not None]
        folder = folders[0] / FOLDER if folders else None
        self._certificates = Certificates(folder, self._host.certificate_names)

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """By the name of the namespace, in the order given. Empty unless the server runs."""
        return MappingProxyType(self._endpoints)

    @property
    def ended_connections(self) -> int:
        """The number of connections that have ended."""
        return sum(listener.connections.ended_count for listener in self._listeners)

    def ca_file(self) -> Path:
        """The certificate authority for TLS clients to trust. Created now if necessary."""
        return self._certificates.ca_file(now=self._clock())

    @property
    def lacks_certificates(self) -> bool:
        """Whether certificates are kept beside the data, and do not exist yet."""
        is_kept = any(options.data is not None for options in self._options)
        return is_kept and not self._certificates.exist

    async def start(self) -> None:
        try:
            for options in self._options:
                self._listeners.append(self._prepare(options))
            # All namespaces are ready: only now accept connections.
            for listener in self._listeners:
                listener.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self, *, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        """Refuse new connections, close the existing ones, then close the data files.

        Clients get `patience_seconds` to leave.
        """
        for namespace in self._namespaces:
            namespace.faults.close()  # otherwise closing would be delayed by them
        await asyncio.gather(
            *(each.stop(patience_seconds=patience_seconds) for each in self._listeners)
        )
        errors: list[BrokerError] = []
        while self._namespaces:
            try:
                await self._namespaces.pop().close()
            except BrokerError as error:  # the others must be closed as well
                errors.append(error)
        self._listeners.clear()
        self._endpoints.clear()
        self._certificates.close()
        if errors:
            raise errors[0]

    def _prepare(self, options: NamespaceOptions) -> Listener:
        sockets = listen(self._host, options.port, namespace=options.name)
        try:
            if options.administration_port is not None:
                second = listen(self._host, options.administration_port, namespace=options.name)
                sockets += second
                logger.info(
                    "namespace %s: administration and health are also on port %d",
                    options.name,
                    second[0].getsockname()[1],
                )
            # Each follows the machine's clock by itself.
            clock = SystemClock() if self._is_real_time else self._clock
            namespace = Namespace(
                options,
                loop=asyncio.get_running_loop(),
                clock=clock,
                hosts=self._hosts.of_namespace(options.name),
            )
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
            faults=Faults(namespace.faults),
            meter=namespace.meter,
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
            f"travel in the clear: leave tls_only on there, or {_REMEDY}"
        )
    return not host.is_loopback if wish is None else wish


def _check_keys(host: Host, namespaces: Sequence[NamespaceOptions]) -> None:
    if host.is_loopback:
        return
    for options in namespaces:
        if options.accepts_bearer:
            raise ConfigError(
                f"namespace {options.name!r} accepts bearer tokens without checking them, and host "
                f"{host.name!r} can be reached from other machines: {_REMEDY}"
            )
        for policy in options.policies:
            if policy.key == DEFAULT_KEY:
                raise ConfigError(
                    f"namespace {options.name!r}: policy {policy.name!r} has the well-known key, "
                    f"and host {host.name!r} can be reached from other machines: give a policy "
                    f"with a key of your own, or {_REMEDY}"
                )
