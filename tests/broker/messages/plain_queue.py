"""A queue in plain Python: dictionaries, no files, no windows, nothing clever.

What `test_queue_model.py` holds the real one against. It obeys the documents and is slow; where the
broker defers work (a sweep, expired locks), so does this, by the same calls.
"""

from dataclasses import dataclass, field, replace

ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2


@dataclass
class Known:
    """A message, identified by its tag."""

    tag: bytes
    state: int
    enqueued_ms: int
    count: int = 0
    ttl_ms: int | None = None
    expires_ms: int | None = None
    due_ms: int | None = None
    reason: str | None = None
    token: bytes | None = None

    def is_expired(self, now_ms):
        return self.expires_ms is not None and self.expires_ms <= now_ms


@dataclass
class Lent:
    box: str
    sequence: int
    until_ms: int


@dataclass
class PlainQueue:
    lock_ms: int
    deliveries_max: int
    ttl_ms: int | None
    dead_letters_expired: bool
    window_ms: int | None
    """None: duplicates are not looked for."""

    boxes: dict[str, dict[int, Known]] = field(default_factory=lambda: {"main": {}, "dead": {}})
    lent: dict[bytes, Lent] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    last: int = 0

    # in

    def send(self, tag, *, ttl_ms, due_ms, message_id, now_ms):
        """The number it gets, whether or not it is kept."""
        self.last += 1
        if self.window_ms is not None and message_id is not None:
            if self.seen.get(message_id, 0) > now_ms:
                return self.last
            self.seen[message_id] = now_ms + self.window_ms
        ttls = [ttl for ttl in (ttl_ms, self.ttl_ms) if ttl is not None]
        message = Known(tag, ACTIVE, now_ms, ttl_ms=min(ttls, default=None))
        if due_ms is not None and due_ms > now_ms:
            message.state, message.due_ms = SCHEDULED, due_ms
        elif message.ttl_ms is not None:
            message.expires_ms = now_ms + message.ttl_ms
        self.boxes["main"][self.last] = message
        return self.last

    # out

    def available(self, box):
        return [
            number
            for number, message in sorted(self.boxes[box].items())
            if message.state == ACTIVE and message.token is None
        ]

    def take(self, box, count, *, now_ms):
        """The numbers that a receiver with so much credit gets; the expired it meets go."""
        found = []
        for number in self.available(box):
            if len(found) == count:
                break
            if self.boxes[box][number].is_expired(now_ms):
                self._expire(box, number)
            else:
                found.append(number)
        return found

    def lend(self, box, number, token, *, now_ms):
        self.boxes[box][number].token = token
        self.lent[token] = Lent(box, number, now_ms + self.lock_ms)

    def holds(self, token, *, now_ms):
        return token in self.lent and self.lent[token].until_ms > now_ms

    def remove(self, box, number):
        del self.boxes[box][number]

    # settling

    def complete(self, token):
        lent = self._unlock(token)
        self.remove(lent.box, lent.sequence)

    def release(self, token):
        self._unlock(token)

    def abandon(self, token):
        lent = self._unlock(token)
        message = self.boxes[lent.box][lent.sequence]
        if (
            message.state == ACTIVE
            and lent.box == "main"
            and message.count + 1 >= self.deliveries_max
        ):
            self._dead_letter(lent.sequence, "MaxDeliveryCountExceeded")
        else:
            message.count += 1

    def defer(self, token):
        lent = self._unlock(token)
        self.boxes[lent.box][lent.sequence].state = DEFERRED

    def dead_letter(self, token, reason):
        """False in the dead-letter queue, where nothing changes."""
        if self.lent[token].box == "dead":
            return False
        self._dead_letter(self._unlock(token).sequence, reason)
        return True

    def renew(self, token, *, now_ms):
        self.lent[token].until_ms = now_ms + self.lock_ms

    def _unlock(self, token):
        lent = self.lent.pop(token)
        self.boxes[lent.box][lent.sequence].token = None
        return lent

    def _dead_letter(self, number, reason):
        message = self.boxes["main"].pop(number)
        self.boxes["dead"][number] = replace(
            message, state=ACTIVE, expires_ms=None, due_ms=None, reason=reason
        )

    # time

    def activate(self, *, now_ms):
        main = self.boxes["main"]
        due = [
            (message.due_ms, number)
            for number, message in main.items()
            if message.state == SCHEDULED and message.due_ms <= now_ms
        ]
        for _, number in sorted(due):
            message = main.pop(number)
            self.last += 1
            expires_ms = None if message.ttl_ms is None else now_ms + message.ttl_ms
            main[self.last] = replace(
                message, state=ACTIVE, due_ms=None, enqueued_ms=now_ms, expires_ms=expires_ms
            )

    def sweep(self, *, now_ms):
        for number, message in sorted(self.boxes["main"].items()):
            if message.token is None and message.is_expired(now_ms):
                self._expire("main", number)

    def expire_locks(self, *, now_ms):
        for token, lent in list(self.lent.items()):
            if lent.until_ms <= now_ms:
                self.abandon(token)

    def _expire(self, box, number):
        if self.dead_letters_expired:
            self._dead_letter(number, "TTLExpiredException")
        else:
            self.remove(box, number)

    # restart

    def restart(self):
        for token in list(self.lent):
            self._unlock(token)
