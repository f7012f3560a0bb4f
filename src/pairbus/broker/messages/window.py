"""The part of a mailbox that is in memory, in order.

A queue may have millions of messages on the disk; a window holds the next thousand or so that can
be delivered. The invariant: every available message up to `loaded_upto` is in memory, and all
others are read from the disk when their turn comes. A message that returns to its old place, or
arrives below that mark (dead letters keep their numbers), joins the heap.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from pairbus.broker.message import Message

COUNT_MAX: Final = 1000
BYTES_MAX: Final = 8 * 1024 * 1024
READ_COUNT: Final = 500
TAKE_BYTES: Final = 64 * 1024

Reader = Callable[[int, int, int], list[Message]]
"""(after, upto, count) -> the committed available messages in that range, in order."""


class Window:
    __slots__ = ("_bytes", "_held", "_read", "_ready", "last_committed", "loaded_upto")

    def __init__(self, held: dict[int, Message], read: Reader, *, last_committed: int) -> None:
        self._held = held
        """All messages of the mailbox that are in memory, by number, including locked ones."""
        self._read = read
        self._ready: list[int] = []
        self._bytes = 0
        self.loaded_upto = 0
        self.last_committed = last_committed

    def arrive(self, message: Message, *, wanted: bool) -> None:
        """A message is durable now. `wanted`: there is a receiver that may soon take it."""
        number = message.sequence
        kept = False
        has_room = len(self._ready) < COUNT_MAX and self._bytes < BYTES_MAX
        if number <= self.loaded_upto:
            if has_room:
                kept = self.give_back(message)
            else:
                self._forget_from(number)
        elif self.loaded_upto >= self.last_committed and has_room and wanted:
            self.loaded_upto = number
            kept = self.give_back(message)
        if not kept:
            self._held.pop(number, None)
        if number > self.last_committed:
            self.last_committed = number

    def give_back(self, message: Message) -> bool:
        """The message is available again. False if it is read from the disk when its turn comes:
        it is beyond `loaded_upto`, or there is no room.
        """
        number = message.sequence
        if number <= self.loaded_upto and self._bytes >= BYTES_MAX:
            self._forget_from(number)
        if number > self.loaded_upto:
            # In memory, it would overtake earlier messages that are only on the disk.
            self._held.pop(number, None)
            return False
        if not message.bare:
            try:
                message.bare = self._read(number - 1, number, 1)[0].bare
            except Exception:  # the disk cannot be read: `take` tries again
                self._forget_from(number)
                self._held.pop(number, None)
                return False
        self._held[number] = message
        self._bytes += message.size
        heappush(self._ready, number)
        return True

    def take(self, count: int) -> list[Message]:
        """The first available messages, out of the heap but still held in memory: at most `count`,
        and fewer if they are large.
        """
        taken: list[Message] = []
        size = 0
        while len(taken) < count and size < TAKE_BYTES:
            # Refill only before the first message: if reading from the disk failed later, the
            # messages taken so far would not be delivered.
            if not self._ready and (taken or not self._refill()):
                break
            message = self._held.get(heappop(self._ready))
            # In the meantime it may have expired, been cancelled or deleted, or been locked by
            # number.
            if message is not None:
                self._bytes -= message.size
                # Its number is here twice if the disk has refused to remove it.
                is_next = not taken or taken[-1] is not message
                if is_next and message.lock is None and not message.busy:
                    size += message.size
                    taken.append(message)
        return taken

    def clear(self) -> None:
        """Forget all messages that are not locked or being changed; the disk has them."""
        self._forget_from(0)
        self.loaded_upto = 0

    def _refill(self) -> bool:
        self._bytes = 0  # also of messages that were removed meanwhile
        while not self._ready and self.loaded_upto < self.last_committed:
            messages = self._read(self.loaded_upto, self.last_committed, READ_COUNT)
            self.loaded_upto = messages[-1].sequence if messages else self.last_committed
            for message in messages:
                if message.sequence not in self._held:
                    self._held[message.sequence] = message
                    self._bytes += message.size
                    self._ready.append(message.sequence)  # sorted input is a heap already
        return bool(self._ready)

    def _forget_from(self, number: int) -> None:
        """Forget the messages from `number` on; the disk has them."""
        kept = [other for other in self._ready if other < number]
        for other in self._ready:
            if other >= number and (message := self._held.get(other)) is not None:
                self._bytes -= message.size
                if message.lock is None and not message.busy:
                    del self._held[other]
        heapify(kept)
        self._ready = kept
        self.loaded_upto = min(self.loaded_upto, max(number - 1, 0))
