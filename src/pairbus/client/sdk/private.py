"""Every private part of the official SDK that pairbus uses, all of it and nothing else.

pairbus subclasses the SDK's public classes. What has no public handle is here, each entry with its
reason ("Why") and with what happens when a later SDK lacks it ("Without it"). Where the answer is
"AttributeError", the tests of this module fail first, and pairbus needs a release for that SDK.
"""

from __future__ import annotations

import asyncio
import copy
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final, TypeVar
from weakref import WeakSet

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.exceptions import ServiceBusServerBusyError

# What the SDK assumes before a link has reported its limit: that of the Standard tier.
MESSAGE_BYTES_ASSUMED = 262_144

Adopted = TypeVar("Adopted")

# --- objects that the SDK makes -------------------------------------------------------------------


def adopt(made: Any, kind: type[Adopted]) -> Adopted:
    """Turn an object that the SDK has made into one of our subclass, by setting `__class__`.

    Why: `get_queue_sender` names the class that it makes and takes no other. Repeating its twenty
    arguments here would break with the twenty-first.
    Without it: `__class__` is Python's. A class with `__slots__` would raise TypeError here.
    """
    made.__class__ = kind
    adopted: Adopted = made
    return adopted


class _Handlers(WeakSet[Any]):
    """A set of senders and receivers that can grow while each of them is closed."""

    def __iter__(self) -> Iterator[Any]:
        return iter([*super().__iter__()])


def make_closable(client: Any) -> None:
    """Let a client be closed while another thread makes a sender or a receiver of it.

    Why: `close` iterates over `_handlers`, and a handler that another thread adds meanwhile raises
    "RuntimeError: Set changed size during iteration".
    Without it: the SDK's own set is used, with that race.
    """
    client._handlers = _Handlers(getattr(client, "_handlers", ()))


def with_own_handlers(client: Any) -> Any:
    """The same client with a list of senders of its own.

    Why: the senders of our background must not be closed by the application's `close`, which would
    also raise if the background makes one meanwhile.
    Without it: the application's `close` closes them too, and what they send fails.
    """
    own = copy.copy(client)
    own._handlers = WeakSet()
    return own


# --- values ---------------------------------------------------------------------------------------

TYPE: Final = "TYPE"
VALUE: Final = "VALUE"
"""The keys of a value that names its AMQP type: `{TYPE: "LONG", VALUE: 1}`.

Why: from the Python class alone, the SDK would derive another type, a 32-bit int for example. It is
also faster: the SDK raises and catches an error for each value without a type.
Without it: the value would be sent as a map with these two keys.
"""

# --- senders that report a failure at once --------------------------------------------------------


class PromptFailures:
    """For a subclass of the SDK's blocking sender: it reports a failure at once, with its cause.

    Why `_handle_exception`: the SDK's retry loop asks it what to do. A busy service would be tried
    again after 1.6 seconds, where Service Bus asks for 10; and of a link that the service detached
    the SDK reports no reason.
    Why `_close_handler`: the SDK closes a broken link before it raises, and joins its keep-alive
    thread, which sleeps for up to a second. Here the thread is joined when the sender is closed.
    Why `_create_handler`: the TLS handshake of the SDK's blocking client has no time limit.
    Without them: never called; the SDK behaves as it does without pairbus.
    """

    _released: tuple[threading.Thread, ...] = ()

    @property
    def raises_busy(self) -> bool:
        """Whether "server busy" is raised at once instead of being retried by the SDK."""
        return True

    @property
    def handshake_seconds(self) -> float | None:
        """The time limit of a TLS handshake; None leaves it to the SDK."""
        return None

    def _handle_exception(self, exception: BaseException) -> Any:
        error = super()._handle_exception(detach_error(self, exception))  # type: ignore[misc]
        if isinstance(error, ServiceBusServerBusyError) and self.raises_busy:
            raise error
        return error

    def _create_handler(self, auth: Any) -> None:
        super()._create_handler(auth)  # type: ignore[misc]
        if self.handshake_seconds is not None:
            _share_tls_context(self, self.handshake_seconds)

    def _close_handler(self) -> None:
        thread, sock = _take_keep_alive(self), socket_of(self)
        if thread is not None:
            self._released = (*(each for each in self._released if each.is_alive()), thread)
        try:
            super()._close_handler()  # type: ignore[misc]
        finally:
            close_socket(sock)

    def close(self) -> None:
        super().close()  # type: ignore[misc]
        for thread in self._released:
            thread.join()
        self._released = ()


class AsyncPromptFailures:
    """The same for the SDK's asyncio sender, whose handshake has a time limit already.

    Why `_create_handler`: the SDK reads all certificates again for each connection, also without
    TLS, and the event loop waits 30 ms for it. Many tasks open connections at once in an outage.
    Each context needs 0.7 MiB.
    """

    @property
    def raises_busy(self) -> bool:
        return True

    async def _handle_exception(self, exception: BaseException) -> Any:
        cause = detach_error(self, exception)
        error = await super()._handle_exception(cause)  # type: ignore[misc]
        if isinstance(error, ServiceBusServerBusyError) and self.raises_busy:
            raise error
        return error

    def _create_handler(self, auth: Any) -> None:
        super()._create_handler(auth)  # type: ignore[misc]
        _share_tls_context(self)

    async def _close_handler(self) -> None:
        task, writer = _take_keep_alive(self), writer_of(self)
        if task is not None:
            task.cancel()
        try:
            await super()._close_handler()  # type: ignore[misc]
        finally:
            if task is not None:
                await asyncio.wait([task])
            await close_writer(writer)


def _take_keep_alive(sender: Any) -> Any:
    """The keep-alive thread or task of an open link, taken away from the SDK; it ends by itself.

    Why: see `PromptFailures._close_handler`. Without it: None; closing waits up to a second.
    """
    handler = getattr(sender, "_handler", None)
    keep_alive = getattr(handler, "_keep_alive_thread", None)
    if handler is not None and keep_alive is not None:
        handler._keep_alive_thread = None
    return keep_alive


def detach_error(sender: Any, exception: BaseException) -> BaseException:
    """The service's reason for detaching the link, instead of "unknown error".

    Why: a service that detaches a link while a message is on its way, for its size for example,
    would look like a lost connection. Without it: the SDK's own error.
    """
    condition = getattr(exception, "condition", None) or getattr(exception, "_condition", None)
    if condition not in (b"amqp:unknown-error", "amqp:unknown-error"):
        return exception
    link = getattr(getattr(sender, "_handler", None), "_link", None)
    error = getattr(link, "_error", None)
    return error if isinstance(error, BaseException) else exception


class BoundedTls(ssl.SSLContext):
    """A TLS context whose handshake has a time limit."""

    seconds: float = 60.0

    def wrap_socket(self, sock: Any, *args: Any, **kwargs: Any) -> Any:
        if sock.gettimeout() is not None:  # a WebSocket's has a time limit already
            return super().wrap_socket(sock, *args, **kwargs)
        sock.settimeout(self.seconds)
        wrapped = super().wrap_socket(sock, *args, **kwargs)
        wrapped.settimeout(None)
        return wrapped


def _share_tls_context(sender: Any, seconds: float = 60.0) -> None:
    """Hand the SDK a TLS context that trusts the same authorities, shared by all connections. It
    limits the time of a blocking handshake.

    Why: reading the certificates for each connection takes long, and the blocking handshake waits
    forever for a silent peer, and `cut` does not reach it. The public keyword `ssl_context` belongs
    to the application, and to its client. Without it: nothing changes, and opening a connection is
    slower.
    """
    handler = getattr(sender, "_handler", None)
    options = getattr(handler, "_ssl_opts", None)
    if not isinstance(options, dict) or "ca_certs" not in options:
        return  # the application's own context
    try:
        changed_at = os.stat(options["ca_certs"]).st_mtime_ns
        options["context"] = _tls_context(options["ca_certs"], changed_at, seconds)
    except OSError:
        return  # a missing file: the SDK's own error for that is better known
    del options["ca_certs"]


@lru_cache(maxsize=8)  # reading a hundred certificates takes longer than a handshake
def _tls_context(ca_file: str, changed_at: int, seconds: float) -> BoundedTls:
    """`changed_at`: a file that was replaced is read again."""
    context = BoundedTls(ssl.PROTOCOL_TLS_CLIENT)
    context.seconds = seconds
    context.load_verify_locations(ca_file)
    return context


# --- the state of a sender ------------------------------------------------------------------------


def is_running(sender: Any) -> bool:
    """Whether the SDK believes that the link is open. If not, its next call opens it.

    Why: an open link needs no time for opening. Without it: AttributeError.
    """
    return bool(sender._running)


def is_attached(sender: Any) -> bool:
    """Whether the link is open as far as the last incoming frame says.

    Why: one connection per backlog queue is kept open, and replaced when the service closed it.
    Without it: unknown states count as open.
    """
    handler = getattr(sender, "_handler", None)
    if not sender._running or handler is None:
        return False
    link = getattr(getattr(handler, "_link", None), "state", None)
    connection = getattr(getattr(handler, "_connection", None), "state", None)
    return getattr(link, "name", "ATTACHED") == "ATTACHED" and (
        getattr(connection, "name", "OPENED") == "OPENED"
    )


def open_link(sender: Any, seconds: float) -> Any:
    """Open the link, once. asyncio awaits the answer.

    Why: the SDK's public ways retry. Without it: AttributeError, which is logged; the next send
    opens the link.
    """
    return sender._open(seconds)


def close_link(sender: Any) -> Any:
    """Close the link and leave the sender usable. asyncio awaits the answer.

    Why: the public `close` ends the sender. Without it: AttributeError.
    """
    return sender._close_handler()


def set_retries(sender: Any, retries: int) -> None:
    """How often the SDK retries on this sender.

    Why: a ping is sent once, and a backlog queue that fails is left for another one at once; the
    public keyword holds for the whole client. Without it: AttributeError.
    """
    sender._config.retry_total = retries


def grant_no_credit(receiver: Any) -> None:
    """For a receiver that only peeks.

    Why: the SDK grants one credit more than the prefetch count when it opens the link, and the
    service would lock a message for it, which others could overtake. Without it: that happens.
    """
    receiver._prefetch_count = -1


def retries_of(client: Any) -> int:
    """What the application set as `retry_total`.

    Why: the time that a send may take depends on it. Without it: AttributeError.
    """
    return int(client._config.retry_total)


# --- sockets --------------------------------------------------------------------------------------


def socket_of(sender: Any) -> Any:
    """The socket of a blocking sender, or None.

    Why: the SDK reads the first bytes of a new connection without a time limit; only the socket can
    end that. Without it: None; such a read ends when the peer sends something.
    """
    connection = getattr(getattr(sender, "_handler", None), "_connection", None)
    return getattr(getattr(connection, "_transport", None), "sock", None)


def cut(sender: Any) -> None:
    """End whatever a blocking sender waits for, from another thread: its read fails as if the peer
    had gone.

    Why: `close` would wait for the lock that the stuck read holds. Without it: as `socket_of`.
    """
    _shut_down(socket_of(sender))


def close_socket(sock: Any) -> None:
    """Close a socket of the SDK, and free a thread that still reads from it.

    Why: the SDK leaves it to the garbage collector, which warns. Without it: as `socket_of`.
    """
    _shut_down(sock)
    close = getattr(sock, "close", None)
    if close is not None:
        with suppress(OSError):
            close()


def _shut_down(sock: Any) -> None:
    # A WebSocket's own shutdown() closes; the socket inside is what can be woken.
    with suppress(OSError, AttributeError, TypeError):
        getattr(sock, "sock", sock).shutdown(2)


def writer_of(sender: Any) -> Any:
    """The stream writer of an asyncio sender. Why and without it: as `socket_of`."""
    connection = getattr(getattr(sender, "_handler", None), "_connection", None)
    return getattr(getattr(connection, "_transport", None), "writer", None)


def abort(sender: Any) -> None:
    """What `cut` is for a blocking sender."""
    transport = getattr(writer_of(sender), "transport", None)
    if transport is not None:
        transport.abort()


async def close_writer(writer: Any) -> None:
    """What `close_socket` is for a blocking sender."""
    if writer is None or not hasattr(writer, "wait_closed"):
        return
    # Not `close`, which for TLS waits for the peer's close message. The SDK has already sent its
    # own.
    writer.transport.abort()
    with suppress(Exception):  # a lost connection reports that it is lost
        await writer.wait_closed()


# --- sizes ----------------------------------------------------------------------------------------


def link_limits(sender: Any) -> tuple[int, int]:
    """The largest message and the largest batch that the sender's link accepts, in bytes.

    Why: a diverted message is a little larger than the original, and its batch must fit the backlog
    queue. Without it: the limit of the Standard tier.
    """
    message = int(getattr(sender, "_max_message_size_on_link", 0) or MESSAGE_BYTES_ASSUMED)
    batch = int(getattr(sender, "_max_batch_size_on_link", 0) or MESSAGE_BYTES_ASSUMED)
    return message, batch


def knows_limits(sender: Any) -> bool:
    """Whether the sender's link has ever been open, and has reported its limits.

    Why: the SDK opens the link for its first batch, which fails in an outage; and a message that is
    too large for the primary is not stored in the outbox. Without it: no.
    """
    return bool(getattr(sender, "_max_message_size_on_link", 0))


def encoded(sender: Any, message: Any) -> bytes:
    """The bytes of one message on the wire.

    Why: what waits in the outbox must be what would have been sent, and whether a message fits with
    its envelope must be known before anything is sent; the public classes show no bytes. A batch
    measures sizes, too, but starts a trace span for each message.
    Without it: AttributeError, which the caller of a send gets.
    """
    transport = sender._amqp_transport
    outgoing = SimpleNamespace(_message=transport.to_outgoing_amqp_message(message))
    return bytes(transport.encode_message(outgoing))


def encoded_size(sender: Any, message: Any) -> int:
    return len(encoded(sender, message))


def new_batch(sender: Any, bytes_max: int) -> ServiceBusMessageBatch:
    """An empty batch for this sender.

    Why: the public `create_message_batch` opens the link, and is awaited in asyncio. A batch that
    is made without the transport of an asyncio sender is encoded again when it is sent. Without it:
    TypeError or AttributeError.
    """
    return ServiceBusMessageBatch(bytes_max, amqp_transport=sender._amqp_transport)


def batch_like(made: ServiceBusMessageBatch, kind: type[Adopted]) -> Adopted:
    """An empty batch of our subclass, made as the SDK has made `made`.

    Why: `create_message_batch` takes no class, and objects whose `__class__` was set are slower at
    each step of adding a message. Without it: TypeError or AttributeError.
    """
    settings = {
        "amqp_transport": made._amqp_transport,
        "tracing_attributes": made._tracing_attributes,
    }
    return kind(made.max_size_in_bytes, **settings)  # type: ignore[call-arg]


def replace_content(
    batch: ServiceBusMessageBatch, filled: ServiceBusMessageBatch, **attributes: object
) -> None:
    """Give a batch the messages of another one, and set attributes of ours, all in one step.

    Why: messages of a batch need ids, or a batch that holds copies for the backlog is sent to a
    primary that is back; and the application has the batch already. A Ctrl-C must not leave it with
    a part of its messages. Without it: a class with `__slots__` would raise TypeError here.
    """
    batch.__dict__ = {**vars(batch), **vars(filled), **attributes}


def messages_in(batch: Any) -> list[Any]:
    """The objects that the application has added to a batch.

    Why: it is seen at once whether they have ids; to decode the batch takes longer. Without it:
    AttributeError.
    """
    return batch._messages  # type: ignore[no-any-return]


def encoded_in(batch: Any) -> list[bytearray]:
    """The bytes of each message of a batch.

    Why: a message is billed by its size, and diverted as it was when it was added. Without it: an
    error; each message counts as one operation, and no batch is diverted that was made before its
    entity failed over.
    """
    return list(batch._message[5])


# --- errors ---------------------------------------------------------------------------------------


def condition_of(error: BaseException) -> str | None:
    """The AMQP condition that the service gave.

    Why: the public classes do not distinguish an outage from a refusal. Without it: None; the error
    is judged by its class.
    """
    inner = getattr(error, "inner_exception", None)
    found = getattr(error, "_condition", None) or getattr(inner, "condition", None)
    return found.decode() if isinstance(found, bytes) else found


def class_names(inner: BaseException | None) -> set[str]:
    """The names of the classes of an error that the SDK has wrapped, "AMQPLinkError" for example.

    Why: as `condition_of`; those classes are private, and their names outlive a move to another
    module. Without it: no name matches, and the error counts as an outage.
    """
    return set() if inner is None else {kind.__name__ for kind in type(inner).__mro__}


def wrapped_by(inner: BaseException | None) -> object:
    """What the SDK's AMQP layer has wrapped in its own error: an OSError, for example, or a text.

    Why: as `class_names`. Without it: None; the error is judged by the rest.
    """
    return getattr(inner, "inner_error", None)


def token_status_of(inner: BaseException | None) -> object:
    """The service's answer to a token, in the SDK's TokenAuthFailure. Why: as `class_names`.
    Without it: None; the token counts as refused.
    """
    return getattr(inner, "status_code", None)


ENCODING_FUNCTIONS = frozenset({"encode_payload", "transform_outbound_messages"})
"""The SDK's functions that encode messages: if one of them raises, the message is at fault.

Why: the SDK reports that like a lost connection. Without it: no traceback has such a name, and the
type of the error decides.
"""


def status_of(error: BaseException) -> int | None:
    """The status of an answer of `$management`. Why and without it: as `condition_of`."""
    status: int | None = getattr(error, "_status_code", None)
    return status


# --- what a client was given ----------------------------------------------------------------------


def address_of(client: Any) -> tuple[str, str | None]:
    """Where a client connects to: its host, and a custom endpoint.

    Why: a namespace must not be paired with itself. Without it: AttributeError.
    """
    endpoint = client._config.custom_endpoint_address
    return client.fully_qualified_namespace.lower(), endpoint and str(endpoint).lower()


def entity_of(client: Any) -> str | None:
    """The EntityPath of a client's connection string, if it has one.

    Why: such a client cannot send to backlog queues. Without it: AttributeError.
    """
    return client._entity_name or None


# The syphon makes connections of its own with what the application's clients were given. Without
# these three: AttributeError when a client is paired with enable_syphon=True.


def credential_of(client: Any) -> Any:
    return client._credential


def uses_tls(client: Any) -> bool:
    return bool(client._config.use_tls)


def ca_file_of(client: Any) -> str | None:
    return client._config.connection_verify or None
