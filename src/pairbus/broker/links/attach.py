"""Handles a client's attach: the link becomes a sender, a receiver, or a link for requests.

Each function makes the link's owner and returns None, or changes nothing and returns the error for
the client.
"""

from __future__ import annotations

from pairbus.amqp.engine import Link
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.policies import Right
from pairbus.broker.faults.kinds import Operation
from pairbus.broker.links import paths
from pairbus.broker.links.host import LinkHost
from pairbus.broker.links.paths import Path
from pairbus.broker.links.receiver_link import SESSION_FILTER, ReceiverLink
from pairbus.broker.links.request_codec import no_entity
from pairbus.broker.links.requests import CbsLink, ManagementLink, ReplyLink
from pairbus.broker.links.sender_link import SenderLink
from pairbus.broker.messages import lifecycle
from pairbus.broker.messages.lifecycle import MailboxKind
from pairbus.broker.messages.queue import Queue
from pairbus.broker.messages.topic import Subscription, Topic


def address_of(link: Link) -> str:
    """The entity that the client names. `link.is_sender`: the broker sends, the client receives."""
    remote = link.remote
    return (remote.source_address if link.is_sender else remote.target_address) or ""


def attach(connection: LinkHost, link: Link, *, now_ms: int) -> AmqpError | None:
    if link.remote.target_is_coordinator:
        return AmqpError("amqp:not-implemented", "this broker does not support transactions")
    address = address_of(link)
    if not address:
        return AmqpError("amqp:invalid-field", "the link names no entity")
    path = paths.parse(address)
    if path.is_cbs:
        if link.is_sender:
            ReplyLink(connection, link, path)
        else:
            CbsLink(connection, link, path)
        return None
    namespace = connection.namespace
    # First of all: without a valid token, a client does not learn which entities exist.
    if connection.credentials.policy_for(path, now_ms=now_ms) is None:
        return AmqpError(
            "amqp:unauthorized-access",
            f"no valid token on this connection covers {path}: send one to $cbs first",
        )
    queue = namespace.find(path.entity)
    if queue is None:
        return no_entity(namespace.name, path.entity)
    if (faults := namespace.active_faults) is not None:
        refused = faults.refusal_of_link(path.entity, receives=False) or faults.refusal(
            path.entity, Operation.ATTACH
        )
        if refused is not None:
            return refused
    if path.is_management:
        return _attach_management(connection, link, path, queue, now_ms)
    if link.is_sender:
        return _attach_receiver(connection, link, path, queue, now_ms)
    return _attach_sender(connection, link, path, queue, now_ms)


def _attach_management(
    connection: LinkHost, link: Link, path: Path, queue: Queue, now_ms: int
) -> AmqpError | None:
    if error := _missing_claim(connection, path, now_ms, Right.SEND, Right.LISTEN):
        return error
    if link.is_sender:
        ReplyLink(connection, link, path)
    else:
        ManagementLink(connection, link, path, queue, queue.mailboxes[path.kind])
    return None


def _attach_sender(
    connection: LinkHost, link: Link, path: Path, queue: Queue, now_ms: int
) -> AmqpError | None:
    if error := _missing_claim(connection, path, now_ms, Right.SEND):
        return error
    if path.kind is not MailboxKind.MAIN or isinstance(queue, Subscription):
        return AmqpError("amqp:not-allowed", f"nothing can be sent to {path}")
    error = lifecycle.refusal_to_send(queue.description)
    if error is None:
        SenderLink(connection, link, queue, path)
    return error


def _attach_receiver(
    connection: LinkHost, link: Link, path: Path, queue: Queue, now_ms: int
) -> AmqpError | None:
    if error := _missing_claim(connection, path, now_ms, Right.LISTEN):
        return error
    if isinstance(queue, Topic):
        return AmqpError(
            "amqp:not-allowed",
            f"nothing can be received from {queue.description}: use a subscription",
        )
    if error := lifecycle.refusal_to_receive(queue.description, path.kind):
        return error
    mailbox = queue.mailboxes[path.kind]
    wants_session = SESSION_FILTER in link.remote.source_filter
    if wants_session != (mailbox.sessions is not None):
        verb = "requires" if mailbox.sessions is not None else "does not support"
        return AmqpError("amqp:not-allowed", f"{path} {verb} sessions")
    session_id = link.remote.source_filter.get(SESSION_FILTER)
    if session_id is not None and not isinstance(session_id, str):
        return AmqpError(
            "com.microsoft:argument-error",
            f"the session id {session_id!r} for {path} is not a string",
        )
    receiver = ReceiverLink(connection, link, queue, mailbox, path)
    if wants_session:
        receiver.open_session(session_id, now_ms=now_ms)
    else:
        receiver.open()
    return None


def _missing_claim(
    connection: LinkHost, path: Path, now_ms: int, *rights: Right
) -> AmqpError | None:
    """One of the rights is enough."""
    credentials = connection.credentials
    if any(credentials.allow(path, right, now_ms=now_ms) for right in rights):
        return None
    claims = " or ".join(right.value for right in rights)
    policy = credentials.policy_for(path, now_ms=now_ms)
    return AmqpError(
        "amqp:unauthorized-access", f"policy {policy!r} does not have the {claims} claim for {path}"
    )
