"""What a test of the official SDK uses: its queues, its clients, and the broker's clock."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from azure.servicebus import ServiceBusMessage, TransportType

from pairbus.broker import Broker
from pairbus.broker.entities.policies import Policy, Right, default_policy
from pairbus.testing import ManualClock
from tests.interop.shells import Shell

POLICIES = (
    default_policy(),
    Policy(name="sender", key="c2VuZA==", rights=frozenset({Right.SEND})),
    Policy(name="listener", key="bGlzdGVu", rights=frozenset({Right.LISTEN})),
    Policy(name="manager", key="bWFuYWdl", rights=frozenset({Right.MANAGE})),
)
TCP, TLS, WEBSOCKET, WEBSOCKET_TLS = TRANSPORTS = ("tcp", "tls", "websocket", "websocket-tls")


@contextmanager
def sweeping_up_after_the_sdk() -> Iterator[None]:
    """Where the SDK forgets to close something, collect it here, so that no other test sees it.

    It forgets the socket when its peer has closed first, and aiohttp's session when the server's
    certificate is not trusted.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


def take(receiver: Any, count: int = 1) -> list[Any]:
    """Exactly this number of messages. A receive call of the SDK may return fewer."""
    taken: list[Any] = []
    while len(taken) < count:
        messages = receiver.receive_messages(count - len(taken), max_wait_time=30)
        assert messages, f"only {len(taken)} of {count} messages came"
        taken += messages
    return taken


def receive_one(receiver: Any) -> Any:
    [message] = take(receiver)
    return message


class Bus:
    """One test's view of the broker, through one shell and over one transport.

    By default, clients do not retry, so that an expected failure costs no time.
    Everything that was opened here is closed when the test ends.
    """

    def __init__(
        self,
        *,
        shell: Shell,
        broker: Broker,
        queue: str,
        clock: ManualClock | None = None,
        transport: str = TCP,
    ) -> None:
        self.shell = shell
        self.broker = broker
        self.queue = queue
        self._clock = clock
        self._transport = transport
        self._open = ExitStack()
        self._client: Any = None
        self._senders: dict[str, Any] = {}
        self._peekers: dict[tuple[str, str | None], Any] = {}

    # the broker

    @property
    def clock(self) -> ManualClock:
        """The broker's clock. It runs like the system's, which the SDK uses, but may be ahead."""
        assert self._clock is not None, "this test's broker has the system's clock"
        return self._clock

    def advance(self, seconds: float) -> None:
        """Move the broker's clock forward, and wait until everything that is due has happened."""
        self.clock.advance(seconds)

    @property
    def endpoint(self) -> str:
        """Where the broker's one port is, as host:port."""
        [endpoint] = self.broker.namespaces.values()
        return f"{endpoint.host}:{endpoint.port}"

    def path(self, suffix: str) -> str:
        """The name of the test's queue that `@pytest.mark.queue(suffix)` asked for."""
        return f"{self.queue}.{suffix}"

    def connection_string(self, policy: str | None = None, key: str | None = None) -> str:
        """The broker's connection string with another policy or key, which may be wrong."""
        text = self.broker.connection_string
        keys = {known.name: known.key for known in POLICIES}
        for name, value in (
            ("SharedAccessKeyName", policy),
            ("SharedAccessKey", key or keys.get(policy or "")),
        ):
            if value is not None:
                text = re.sub(f"{name}=[^;]*", f"{name}={value}", text)
        return text

    # the SDK

    def connect(self, connection_string: str | None = None, **options: Any) -> Any:
        """A client of the shell; `test_transports.py` says how it is pointed at the port."""
        text = connection_string or self.broker.connection_string
        if self._transport != TCP:
            # The SDK gives a WebSocket one second to open, which a busy machine may exceed.
            options = {"retry_total": 2, "retry_backoff_factor": 0.1, **options}
            options["custom_endpoint_address"] = f"sb://{self.endpoint}"
            options["transport_type"] = (
                TransportType.Amqp if self._transport == TLS else TransportType.AmqpOverWebsocket
            )
        if self._transport in (TLS, WEBSOCKET_TLS):
            text = re.sub(";?UseDevelopmentEmulator=true", "", text)
            options.setdefault("connection_verify", str(self.broker.ca_file))
        client = self.shell.client(text, **{"retry_total": 0, **options})
        return self.enter(client)

    def connect_with(self, credential: Any) -> Any:
        """A client with a credential object; `use_tls` is what the emulator flag sets."""
        client = self.shell.client_with(self.endpoint, credential, use_tls=False, retry_total=0)
        return self.enter(client)

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = self.connect()
        return self._client

    def sender(self, queue: str | None = None, *, client: Any = None) -> Any:
        chosen = client or self.client
        return self.enter(chosen.get_queue_sender(queue or self.queue))

    def receiver(self, queue: str | None = None, *, client: Any = None, **options: Any) -> Any:
        chosen = client or self.client
        path = queue or self.queue
        receiver = self.enter(chosen.get_queue_receiver(path, **options))
        if client is None and "session_id" not in options:
            self._peekers[path, options.get("sub_queue")] = receiver
        return receiver

    # shortcuts

    def send(self, *messages: Any, queue: str | None = None, **settings: Any) -> None:
        """Texts become messages with these settings. One send each keeps their order."""
        path = queue or self.queue
        if path not in self._senders:
            self._senders[path] = self.sender(path)
        for message in messages:
            if isinstance(message, str | bytes):
                message = ServiceBusMessage(message, **settings)
            self._senders[path].send_messages(message)

    def left(self, queue: str | None = None, sub_queue: str | None = None) -> list[Any]:
        """Peeks at all messages of a queue without sessions, without locks or credit.

        Uses the test's receiver if there is one: the SDK needs half a second to open another.
        """
        path = queue or self.queue
        receiver = self._peekers.get((path, sub_queue))
        if receiver is None or receiver._shutdown.is_set():
            receiver = self.receiver(path, sub_queue=sub_queue)
        return list(receiver.peek_messages(250, sequence_number=1))

    def left_bodies(self, queue: str | None = None, sub_queue: str | None = None) -> list[str]:
        return [str(message) for message in self.left(queue, sub_queue)]

    def enter(self, context: Any) -> Any:
        """Open it for as long as the test lasts."""
        return self._open.enter_context(context)

    def close(self) -> None:
        self._senders.clear()
        self._peekers.clear()
        self._client = None
        self._open.close()
