"""What a syphon spends, counted where it speaks to the namespaces: a client that keeps a tally.

By the rules of `docs/cost.md`, as the other end counts: each message that comes, also one that is
put back unread; each that is acknowledged or settled; each poll that ends without any. What nobody
knows, because a connection broke before its answer, is not counted. Counting is by the chunk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any
from uuid import UUID

from pairbus.amqp.client.connection import ReceiverLink
from pairbus.cost.meter import UNIT_BYTES, Meter, Reading, Tally, units_of
from pairbus.fast.address import Address
from pairbus.fast.client import FastClient, Mode
from pairbus.fast.connection import Access
from pairbus.fast.management import Disposition, Management
from pairbus.fast.message import Received
from pairbus.fast.receiver import Receiver
from pairbus.fast.sender import Sender


class Spending:
    """Of one process, or of a syphon in all: a meter for each namespace, by its host.

    For one thread; `readings` is for any.
    """

    def __init__(self, *, since: float) -> None:
        self._since = since
        self._meters: dict[str, Meter] = {}

    def client(self, address: Address, **options: Any) -> MeteredClient:
        """As `address.client`; what it does is counted here."""
        return metered(address, self._of(address.host), **options)

    def add(self, readings: Iterable[Reading]) -> None:
        """What a task has spent."""
        for reading in readings:
            self._of(reading.namespace).add(reading)

    def readings(self) -> tuple[Reading, ...]:
        return tuple(meter.read() for meter in self._meters.copy().values())

    def _of(self, namespace: str) -> Meter:
        known = self._meters.get(namespace)
        if known is None:
            known = self._meters[namespace] = Meter(namespace, since=self._since)
        return known


def metered(address: Address, meter: Meter, **options: Any) -> MeteredClient:
    client = MeteredClient(**address.arguments(), **options)
    client.meter = meter
    return client


class MeteredClient(FastClient):
    meter: Meter

    def receiver(
        self, path: str, *, credit: int, mode: Mode = "peekLock", at_most: int | None = None
    ) -> Receiver:
        management = self.management(path)
        receiver = MeteredReceiver(
            self._access, path, management, credit=credit, mode=mode, at_most=at_most
        )
        receiver.tally = self.meter.of(path)
        self._receivers = [one for one in self._receivers if not one.is_closed]
        self._receivers.append(receiver)
        return receiver

    def sender(self, path: str) -> Sender:
        sender = MeteredSender(self._access, self._checked(path))
        sender.tally = self.meter.of(path)
        return sender

    def management(self, path: str) -> Management:
        known = self._managements.get(self._checked(path))
        if known is None:
            known = MeteredManagement(self._access, path, self.meter.of(path))
            self._managements[path] = known
        return known


class MeteredReceiver(Receiver):
    tally: Tally
    _is_asking = False
    _was_answered = False

    def receive(self, max_count: int, *, max_wait_seconds: float) -> list[Received]:
        taken = super().receive(max_count, max_wait_seconds=max_wait_seconds)
        self._came(taken)
        return taken

    def _stopped(self) -> list[Received]:
        left = super()._stopped()
        self._came(left)  # with receiveAndDelete; else they were given back
        self._poll_over()
        return left

    def _top_up(self, link: ReceiverLink) -> None:
        super()._top_up(link)
        self._is_asking = True

    def _salvage(self) -> None:
        link = self._link
        if link is not None:
            self._was_answered |= bool(link.inbox)
            self._poll_over()
        super()._salvage()

    def _give_back(self, received: list[Received]) -> None:
        self._came(received)
        alive = self._alive()
        here = 0 if alive is None else sum(one.link is alive[1] for one in received)
        super()._give_back(received)
        self.tally.settle += here

    def _has_settled(self, count: int) -> None:
        self.tally.settle += count

    def _came(self, received: Sequence[Received]) -> None:
        if received:
            # Those of a link that is lost have answered that one's poll.
            self._was_answered |= received[-1].link is self._link
            self.tally.receive += _units([len(one.data) for one in received])

    def _poll_over(self) -> None:
        if self._is_asking and not self._was_answered:
            self.tally.empty_receive += 1
        self._is_asking = self._was_answered = False


class MeteredSender(Sender):
    tally: Tally

    def _has_taken(self, messages: Sequence[bytes]) -> None:
        self.tally.send += _units([len(one) for one in messages])


class MeteredManagement(Management):
    def __init__(self, access: Access, path: str, tally: Tally) -> None:
        super().__init__(access, path)
        self._tally = tally

    def peek(self, from_sequence: int, count: int) -> list[bytes]:
        found = super().peek(from_sequence, count)
        self._tally.peek += units_of(sum(map(len, found)))
        return found

    def renew_locks(self, tokens: Sequence[UUID | bytes]) -> list[Any]:
        moments = super().renew_locks(tokens)
        self._tally.renew += len(tokens)
        return moments

    def settle(
        self,
        tokens: Sequence[UUID | bytes],
        disposition: Disposition,
        *,
        reason: str = "",
        description: str = "",
    ) -> None:
        super().settle(tokens, disposition, reason=reason, description=description)
        self._tally.settle += len(tokens)


def _units(sizes: Collection[int]) -> int:
    if not sizes or max(sizes) <= UNIT_BYTES:
        return len(sizes)
    return sum(map(units_of, sizes))
