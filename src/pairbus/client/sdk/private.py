"""Every part of the official SDK that is not public and that pairbus leans on, in one place.

The SDK names its sender's class in `get_queue_sender`, retries where a busy service asked for
patience, and can wait for ever on a silent one. None of that has a public handle. What is used is
looked up with care: where a later SDK lacks it, the answer is the cautious one, and the tests of
this module fail.
"""

from __future__ import annotations

import copy
import ssl
from contextlib import suppress
from functools import cache
from types import FunctionType, MethodType
from typing import Any, Final, TypeVar
from weakref import WeakSet

import azure.servicebus
import certifi
from azure.core.settings import settings
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusServerBusyError

# What the SDK takes a namespace's limit for before a link has told it: that of the Standard tier.
MESSAGE_BYTES_ASSUMED = 262_144

# Whose `send_messages` was read, and is known to do for one message no more than `send` does.
SHORT_WAY_IN: Final = ("7.15.0",)
_SENDERS: Final = (
    "azure.servicebus._servicebus_sender",
    "azure.servicebus.aio._servicebus_sender_async",
)

Sender = TypeVar("Sender")


def adopt(sender: Any, kind: type[Sender]) -> Sender:
    """Makes a sender that the SDK has built one of ours.

    `get_queue_sender` names the class and takes no other. Repeating its twenty arguments here would
    break with the next one that it gets.
    """
    sender.__class__ = kind
    adopted: Sender = sender
    return adopted


def raise_if_busy(error: Any) -> None:
    """For `_handle_exception`, by which the SDK's retry loop asks what to do: it would send again
    after 1.6 seconds, where Service Bus asks for ten."""
    if isinstance(error, ServiceBusServerBusyError):
        raise error


def twin_of(client: Any) -> Any:
    """The same client with a list of senders of its own: the SDK's walks its list when it closes,
    and fails if another thread makes a sender meanwhile."""
    twin = copy.copy(client)
    twin._handlers = WeakSet()
    return twin


def set_retries(sender: Any, retries: int) -> None:
    sender._config.retry_total = retries


def retries_of(client: Any) -> int:
    return int(client._config.retry_total)


def release_keep_alive(sender: Any) -> Any:
    """Before a broken link is closed: the SDK would wait up to a second for its keep-alive thread
    or task, and the failed send with it. That ends by itself; the answer can be joined at leisure.
    """
    handler = getattr(sender, "_handler", None)
    keeping_alive = getattr(handler, "_keep_alive_thread", None)
    if handler is not None and keeping_alive is not None:
        handler._keep_alive_thread = None
    return keeping_alive


def detach_error(sender: Any, exception: BaseException) -> BaseException:
    """Why the link ended, where the SDK only knows that it did: a service that detaches a link
    while a message is under way, say for its size, would look as if its connection were lost."""
    told = getattr(exception, "condition", None) or getattr(exception, "_condition", None)
    if told not in (b"amqp:unknown-error", "amqp:unknown-error"):
        return exception
    link = getattr(getattr(sender, "_handler", None), "_link", None)
    error = getattr(link, "_error", None)
    return error if isinstance(error, BaseException) else exception


def is_not_allowed(error: BaseException) -> bool:
    """Of a backlog queue: that it requires sessions, say, which no diverted message has."""
    return condition_of(error) == "amqp:not-allowed"


def condition_of(error: BaseException) -> str | None:
    """What the service called it, where the error is the service's."""
    return getattr(error, "_condition", None)


def socket_of(sender: Any) -> Any:
    connection = getattr(getattr(sender, "_handler", None), "_connection", None)
    return getattr(getattr(connection, "_transport", None), "sock", None)


def close_socket(sock: Any) -> None:
    """The SDK leaves a socket that was reset to the garbage collector, which warns; and whoever is
    still reading from it, to himself."""
    _shut_down(sock)
    close = getattr(sock, "close", None)
    if close is not None:
        with suppress(OSError):
            close()


async def close_writer(writer: Any) -> None:
    """The same for the asyncio shell."""
    if writer is None or not hasattr(writer, "wait_closed"):
        return
    # Not `close`, which for TLS waits for the peer's last word; the SDK has said its own.
    writer.transport.abort()
    with suppress(Exception):  # of a connection that is lost: that it is
        await writer.wait_closed()


def abort(sender: Any) -> None:
    """What `cut` is for a blocking sender."""
    transport = getattr(writer_of(sender), "transport", None)
    if transport is not None:
        transport.abort()


def writer_of(sender: Any) -> Any:
    connection = getattr(getattr(sender, "_handler", None), "_connection", None)
    return getattr(getattr(connection, "_transport", None), "writer", None)


def is_running(sender: Any) -> bool:
    """Whether the SDK believes that the link is open. If not, its next call opens it."""
    return bool(sender._running)


def open_link(sender: Any, seconds: float) -> Any:
    """Opens it, once, where the SDK's public ways would try again; asyncio awaits the answer."""
    return sender._open(seconds)


def has_link(sender: Any) -> bool:
    """Whether there is one, dead or alive."""
    return sender._handler is not None


def is_usable(sender: Any) -> bool:
    """The same, and nobody has closed the sender."""
    return bool(sender._running) and not sender._shutdown.is_set()


def check_not_shut(sender: Any) -> None:
    """A sender that its client has closed meanwhile would raise a ValueError, for a caller's
    mistake; here it is nobody's who sends."""
    if sender._shutdown.is_set():
        raise ServiceBusConnectionError(message="the connection was closed with its client")


def is_client_closed(client: Any) -> bool:
    """Of our own clients only: the SDK's do not know that they are closed."""
    return bool(getattr(getattr(client, "_state", None), "is_closed", False))


def check_client_open(client: Any) -> None:
    if is_client_closed(client):
        raise ServiceBusConnectionError(message="the client of the secondary has been closed")


def is_attached(sender: Any) -> bool:
    """Whether the link is open as far as the last incoming frame told."""
    handler = getattr(sender, "_handler", None)
    if not sender._running or handler is None:
        return False
    link = getattr(getattr(handler, "_link", None), "state", None)
    connection = getattr(getattr(handler, "_connection", None), "state", None)
    return getattr(link, "name", "ATTACHED") == "ATTACHED" and (
        getattr(connection, "name", "OPENED") == "OPENED"
    )


def cut(sender: Any) -> bool:
    """Ends whatever a blocking sender waits for, from another thread: its read fails as if the peer
    had gone.

    `close` would wait for the lock that the stuck read holds.
    """
    return _shut_down(socket_of(sender))


def _shut_down(sock: Any) -> bool:
    if sock is None:
        return False
    try:
        # A WebSocket's own shutdown() closes; the socket inside is what can be woken.
        getattr(sock, "sock", sock).shutdown(2)
    except (OSError, AttributeError, TypeError):
        return False
    return True


class PatientTls(ssl.SSLContext):
    """A TLS handshake that ends. The SDK's blocking transport lets it wait for ever, out of the
    reach of `cut`."""

    seconds: float = 60.0

    def wrap_socket(self, sock: Any, *args: Any, **kwargs: Any) -> Any:
        if sock.gettimeout() is not None:  # of a WebSocket, which has an end
            return super().wrap_socket(sock, *args, **kwargs)
        sock.settimeout(self.seconds)
        wrapped = super().wrap_socket(sock, *args, **kwargs)
        wrapped.settimeout(None)
        return wrapped


def tls_for(client: Any, seconds: float) -> PatientTls | None:
    """What the SDK would make for each connection, with an end to the handshake. None: the SDK's
    own is right."""
    config = client._config
    if config.ssl_context is not None or not config.use_tls:
        return None
    context = PatientTls(ssl.PROTOCOL_TLS_CLIENT)
    context.seconds = seconds
    try:
        context.load_verify_locations(config.connection_verify or certifi.where())
    except OSError:
        return None  # a file that is not there: the SDK's error for that is better known
    return context


def use_tls(sender: Any, context: PatientTls | None) -> None:
    if context is not None and sender._config.ssl_context is None:
        sender._config.ssl_context = context


def message_limit(sender: Any) -> int:
    """The largest message that an open sender's link takes, in bytes."""
    limit: int = sender._max_message_size_on_link
    return limit or MESSAGE_BYTES_ASSUMED


def link_limits(sender: Any) -> tuple[int, int]:
    """The largest message and the largest batch that the sender's link takes, in bytes."""
    message = int(getattr(sender, "_max_message_size_on_link", 0) or MESSAGE_BYTES_ASSUMED)
    batch = int(getattr(sender, "_max_batch_size_on_link", 0) or MESSAGE_BYTES_ASSUMED)
    return message, batch


def lend_limits(sender: Any, limits: tuple[int, int]) -> None:
    """Lets a sender make batches before its own link has told it how large they may be."""
    if not sender._max_message_size_on_link:
        sender._max_message_size_on_link, sender._max_batch_size_on_link = limits


def send(by_sdk: Any, message: Any, timeout: float) -> Any:
    """What `by_sdk`, the SDK's `send_messages` bound to its sender, does with a message; and its
    answer, which asyncio awaits.

    For one message without tracing, most of that method finds out that it is one message without
    tracing: a tenth of the whole send. What is left of it then is done here. The method itself is
    called for all else, where the SDK is one that was not looked at, and where somebody has put a
    method of his own in its place.
    """
    outgoing = _outgoing(by_sdk, message)
    if outgoing is None:
        return by_sdk(message, timeout=timeout)
    sender = by_sdk.__self__
    sender._check_live()
    return sender._do_retryable_operation(
        sender._send,
        message=outgoing,
        timeout=timeout,
        operation_requires_timeout=True,
        apply_try_timeout=True,
        require_last_exception=True,
    )


class _Outgoing:
    """What the SDK looks at when it sends a message that is encoded."""

    __slots__ = ("_message",)

    def __init__(self, message: Any) -> None:
        self._message = message


def _outgoing(by_sdk: Any, message: Any) -> Any:
    """A message as the SDK hands it on; None: that is the SDK's own business."""
    kind = type(message)
    if kind is not ServiceBusMessage and kind is not AmqpAnnotatedMessage:
        return None
    if type(by_sdk) is not MethodType or not _is_known(by_sdk.__func__):
        return None
    if is_traced():
        return None
    try:
        sender: Any = by_sdk.__self__
        encode = sender._amqp_transport.to_outgoing_amqp_message
        if kind is ServiceBusMessage:
            message._message = encode(message._raw_amqp_message)
            return message
        return _Outgoing(encode(message))
    except Exception:
        return None  # the SDK comes upon the same, and says so in its own words


def is_traced() -> bool:
    """Whether the SDK would write a trace into what it sends."""
    try:
        return settings.tracing_implementation() is not None
    except Exception:
        return True  # the SDK says what is wrong with it


@cache
def _is_known(function: Any) -> bool:
    return (
        azure.servicebus.__version__ in SHORT_WAY_IN
        and type(function) is FunctionType
        and function.__globals__.get("__name__") in _SENDERS
    )


def encoded_size(sender: Any, message: Any) -> int:
    """The bytes of one message of the SDK on the wire."""
    transport = sender._amqp_transport
    return int(transport.get_message_encoded_size(transport.to_outgoing_amqp_message(message)))


def sizes_in(batch: Any) -> list[int]:
    """The bytes of each message in a batch, encoded."""
    return [len(one) for one in batch._message[5]]


def entity_of(client: Any) -> str | None:
    """The EntityPath of a client's connection string, where it has one."""
    return client._entity_name or None


def credential_of(client: Any) -> Any:
    return client._credential


def uses_tls(client: Any) -> bool:
    return bool(client._config.use_tls)


def ca_file_of(client: Any) -> str | None:
    return client._config.connection_verify or None


def address_of(client: Any) -> tuple[str, str | None]:
    """Where a client connects to: the host, and the way around it that it was told to take."""
    around = client._config.custom_endpoint_address
    return host_of(client).lower(), around and str(around).lower()


def host_of(client: Any) -> str:
    return str(client.fully_qualified_namespace)
