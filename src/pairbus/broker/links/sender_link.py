"""The link of a client that sends: from a transfer to messages in the queue or topic, and from what
the disk says to the outcome.

The sender gets its answer only when the messages are durable.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from pairbus.amqp.codec.batches import BATCH_FORMAT, split_batch
from pairbus.amqp.codec.sections import slice_message
from pairbus.amqp.codec.values import MalformedMessage
from pairbus.amqp.engine import Delivery, Link, Transferred
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.policies import Right
from pairbus.broker.faults.kinds import Operation
from pairbus.broker.links.host import LinkHost
from pairbus.broker.links.paths import Path
from pairbus.broker.links.request_codec import malformed
from pairbus.broker.messages.incoming import IncomingMessage
from pairbus.broker.messages.queue import Queue

_BATCH_SIZE_PROPERTY: Final = "com.microsoft:max-message-batch-size"
_CREDIT: Final = 1000


class SenderLink:
    """The link of a client that sends."""

    right = Right.SEND

    def __init__(self, connection: LinkHost, link: Link, queue: Queue, path: Path) -> None:
        self.connection = connection
        self.link = link
        self.queue = queue
        self.path = path
        self._used_credit = 0
        self._is_waiting = connection.namespace.must_wait(queue)
        self._deferred: deque[Transferred] = deque()
        """What came while it was waiting. Not answered, so nothing is lost with the link."""
        limit = queue.description.max_message_size_in_kilobytes * 1024
        link.context = self
        link.accept(
            properties={_BATCH_SIZE_PROPERTY: limit}, max_message_size=limit, credit=_CREDIT
        )

    def transferred(self, event: Transferred, *, now_ms: int) -> None:
        if self._is_waiting:  # withholding credit would not do: the Python SDK sends without it
            self._deferred.append(event)
            self.connection.hold(len(event.data))
        else:
            self._enqueue(event, now_ms=now_ms)

    def rules_compiled(self) -> None:
        """A topic is not waiting any more."""
        if self._is_waiting and not self.connection.namespace.must_wait(self.queue):
            self.connection.queue_request(self._enqueue_deferred)

    def _enqueue_deferred(self, now_ms: int) -> None:
        """One message per turn of the event loop. Those that come until then are deferred, to keep
        the order.
        """
        if not self._deferred:
            self._is_waiting = False
            return
        event = self._deferred.popleft()
        self._enqueue(event, now_ms=now_ms)
        self.connection.release(len(event.data))
        self.connection.queue_request(self._enqueue_deferred)

    def _enqueue(self, event: Transferred, *, now_ms: int) -> None:
        data, delivery = event.data, event.delivery
        self._used_credit += 1
        if self._used_credit >= _CREDIT // 2:  # one flow frame for many transfers
            self.link.grant(self._used_credit)
            self._used_credit = 0
        refused = self.connection.namespace.fault_refusal(self.path.entity, Operation.SEND)
        if refused is not None:
            delivery.reject(refused)
            return
        try:
            if event.message_format == BATCH_FORMAT:
                batch = [IncomingMessage(slice_message(one), len(one)) for one in split_batch(data)]
            else:
                batch = [IncomingMessage(slice_message(data), len(data))]
        except MalformedMessage as error:
            self._refuse(delivery, malformed(error))
            return
        size = len(data)
        result = self.queue.enqueue(batch, self._enqueued, delivery, size, now_ms=now_ms)
        if isinstance(result, AmqpError):
            self._refuse(delivery, result)
        else:
            self.connection.hold(size)

    def _refuse(self, delivery: Delivery, error: AmqpError) -> None:
        self.connection.log_refusal(error.description, self.path)
        delivery.reject(error)

    def _enqueued(self, error: AmqpError | None, delivery: Delivery, size: int) -> None:
        """The batch is durable, or the disk refused it.

        The sender gets "accepted" only now. If the process dies before, the sender has no answer
        and sends again.
        """
        faults = self.connection.namespace.active_faults
        if faults is not None and error is None and faults.cuts_after_accept(self.path.entity):
            self.connection.cut()
        elif error is None:
            delivery.accept()
        else:
            delivery.reject(error)
        self.connection.release(size)

    def closed(self) -> None:
        """Each message is stored, or was never acknowledged."""
        while self._deferred:
            self.connection.release(len(self._deferred.popleft().data))
