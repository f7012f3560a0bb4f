"""What the background worker of a paired client does, and how a pairing starts, in both shells.

Each task is a generator of functions to call, for the drivers of `steps.py`. A shell's `pairing.py`
has those functions. The pool closes, in the background, what a generator opens: a generator that
ends early cannot wait for it.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from pairbus.client.outbox import drain
from pairbus.client.pairing import PairingCore
from pairbus.client.route.plans import BackgroundTask, Drain, PeekBacklog, Ping
from pairbus.client.sdk import private
from pairbus.client.sdk.failures import UNTRUSTED_HINT, Kind, is_untrusted, kind_of
from pairbus.client.sdk.messages import ping_message
from pairbus.client.sdk.pairing_errors import PairingError
from pairbus.client.steps import Steps
from pairbus.client.timing import PEEK_PAGE

_REACH = "it must be up, and messaging_factory must be able to connect to it"
_HINTS = {
    Kind.SETUP: "check the key and the policy name in messaging_factory, which needs the {claim} "
    "claim, and that the queue is on its namespace",
    Kind.THROTTLED: "it is busy: try again later",
}


def start(pairing: PairingCore) -> Steps[None]:
    """Raises if the secondary accepts no connection. The connection stays open, unless
    `secondary_connections` is `lazy`.
    """
    queue = random.choice(pairing.backlog_queues)
    try:
        yield from _open_connection(pairing, queue, is_kept=pairing.is_ready_mode)
    except Exception as error:
        raise not_connected(pairing, queue, error) from error
    if pairing.is_ordered:
        try:
            yield from _peek_page(pairing, queue, from_sequence=1, count=1)
        except Exception as error:
            raise _not_readable(pairing, queue, error) from error


def not_connected(pairing: PairingCore, queue: str, error: Exception) -> PairingError:
    secondary = pairing.secondary
    tried = f"open a sender link to backlog queue {queue!r} on the secondary {secondary!r}"
    return _refused(secondary, tried, "Send", queue, error)


def _not_readable(pairing: PairingCore, queue: str, error: Exception) -> PairingError:
    tried = (
        f"peek at backlog queue {queue!r} on the secondary {pairing.secondary!r}, which "
        'fail_back="ordered" needs'
    )
    return _refused(pairing.secondary, tried, "Listen", queue, error)


def _refused(secondary: str, tried: str, claim: str, queue: str, error: Exception) -> PairingError:
    hint = _HINTS.get(kind_of(error), _REACH).format(claim=claim)
    if is_untrusted(error):
        hint = UNTRUSTED_HINT.format("messaging_factory")
    text = f"could not {tried}: {str(error).rstrip('.')}; {hint}"
    return PairingError(text, namespace=secondary, queue=queue, error=error)


def steps_of(pairing: PairingCore, task: BackgroundTask) -> Steps[None]:
    if isinstance(task, Ping):
        return _ping(pairing, task)
    if isinstance(task, Drain):
        return _drain(pairing, task)
    if isinstance(task, PeekBacklog):
        return _peek(pairing, task)
    return _probe(pairing, task.queue)


def _ping(pairing: PairingCore, ping: Ping) -> Steps[None]:
    if not pairing.is_wanted(ping):
        return
    seconds = pairing.timing.task_seconds
    sender = pairing.new_sender(pairing.primary_client, ping.path)
    private.set_retries(sender, 0)
    try:
        if pairing.options.ping_mode == "link":
            yield partial(pairing.open_link, sender, seconds, ping.path)
        else:
            send = partial(sender.send_messages, ping_message(), timeout=seconds)
            yield partial(pairing.within, sender, seconds, f"pinging {ping.path!r}", send)
    except Exception as error:
        pairing.ping_ended(ping, error)
    else:
        # Open links for the senders that will send to the primary again, while their messages are
        # still diverted. The failback does not depend on them: the ping was answered.
        yield partial(pairing.open_early, pairing.senders_to_open(ping), ping)
        pairing.ping_ended(ping, None)
    finally:
        pairing.pool.close_soon(sender)


def _peek(pairing: PairingCore, peek: PeekBacklog) -> Steps[None]:
    try:
        messages = yield from _peek_page(pairing, peek.queue, from_sequence=peek.from_sequence)
    except Exception as error:
        pairing.peek_failed(peek, error)
    else:
        pairing.peeked(peek, messages)


def _peek_page(
    pairing: PairingCore, queue: str, *, from_sequence: int, count: int = PEEK_PAGE
) -> Steps[list[Any]]:
    seconds = pairing.timing.task_seconds
    receiver = pairing.new_receiver(queue)
    private.grant_no_credit(receiver)
    private.set_retries(receiver, 0)
    first = max(1, from_sequence)
    peek = partial(receiver.peek_messages, count, sequence_number=first, timeout=seconds)
    try:
        page: list[Any] = yield partial(
            pairing.within, receiver, seconds, f"peeking at {queue!r}", peek
        )
        return page
    finally:
        pairing.pool.close_soon(receiver)


def _probe(pairing: PairingCore, queue: str) -> Steps[None]:
    try:
        yield from _open_connection(pairing, queue)
    except Exception as error:
        pairing.probe_ended(queue, error)
    else:
        pairing.probe_ended(queue, None)


def _open_connection(pairing: PairingCore, queue: str, *, is_kept: bool = True) -> Steps[None]:
    seconds = pairing.timing.task_seconds
    connection = yield partial(pairing.pool.borrow, queue, seconds, is_fresh=True)
    is_open = False
    try:
        private.set_retries(connection.sender, 0)
        yield partial(pairing.open_link, connection.sender, seconds, queue)
        is_open = is_kept
    finally:
        pairing.pool.give_back(connection, is_usable=is_open)


def _drain(pairing: PairingCore, task: Drain) -> Steps[None]:
    assert pairing.outbox is not None
    path = pairing.outbox.file.entities[task.path]
    sender: Any = None
    failure: Exception | None = None
    try:
        # The SDK refuses an entity that is not the one in the client's connection string.
        sender = pairing.new_paired_sender(path)
        yield from drain(pairing.outbox, task, on_disk=pairing.on_disk, send=sender.send_stored)
    except Exception as error:
        failure = error
    finally:
        pairing.outbox.drain_ended(task, failure)
        if sender is not None:
            pairing.pool.close_soon(sender)
