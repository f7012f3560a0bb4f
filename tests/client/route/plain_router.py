"""The rules of failing over, written as plainly as possible, to compare the router with.

Slow and simple on purpose: no laziness, no heap, no cache. It looks at every entity at every step
of time. It does not predict what is drawn at random; the machine checks that instead.
"""

from dataclasses import dataclass, field

HEALTHY, SUSPECT, FAILED_OVER = "healthy", "suspect", "failed over"
COUNTS = ("sent", "diverted", "failures", "throttled", "refused", "pings_sent", "pings_answered")


@dataclass
class PlainEntity:
    state: str = HEALTHY
    first_failure: float | None = None
    failed_over_at: float | None = None
    ways_back: int = 0
    answers: int = 0
    doublings: int = 0
    back_at: float | None = None
    calm_since: float = 0.0
    last_ping_slot: int = 0
    """Intervals since the failover are numbered; each may have one ping, the first has none."""
    is_ping_out: bool = False
    queue: str | None = None
    """Where it was last seen to send, or would; None: it is free to pick."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def back(self, now):
        if self.state == FAILED_OVER:
            self.ways_back += 1
            self.queue = None
            self.back_at = self.calm_since = now
        self.state, self.first_failure, self.failed_over_at = HEALTHY, None, None


class PlainRouter:
    def __init__(self, queues, *, failover, ping, rest, pings=1):
        self.failover, self.ping, self.rest, self.pings = failover, ping, rest, pings
        self.now = 0.0
        self.entities: dict[str, PlainEntity] = {}
        self.resting = {}  # withdrawn queue -> when to look at it, None: somebody is looking
        self.busy = set()  # withdrawn queues that are only busy
        self.queues = list(queues)
        self.generations = dict.fromkeys(queues, 0)
        self.is_closed = False

    @property
    def in_rotation(self):
        return tuple(queue for queue in self.queues if queue not in self.resting)

    def entity(self, path):
        return self.entities.setdefault(path.lower(), PlainEntity())

    def wait(self, seconds):
        self.now += seconds
        self.let_time_pass()

    def let_time_pass(self):
        for entity in self.entities.values():
            if entity.state == SUSPECT and self.now - entity.first_failure >= self.failover:
                entity.state = FAILED_OVER
                entity.failed_over_at = entity.first_failure + self.failover
                entity.last_ping_slot = entity.answers = 0
                was_back_at = -600 if entity.back_at is None else entity.back_at
                if self.pings > 1 and entity.failed_over_at - was_back_at < 600:
                    entity.doublings = min(4, entity.doublings + 1)
            while entity.state == HEALTHY and entity.doublings:
                if self.now < entity.calm_since + 600:
                    break
                entity.doublings -= 1
                entity.calm_since += 600

    def needed(self, entity):
        return self.pings * 2**entity.doublings

    # sends

    def sent_to_primary(self, path):
        entity = self.entity(path)
        if entity.state == SUSPECT:
            entity.back(self.now)
            self.let_time_pass()

    def primary_failed(self, path, ways_back):
        """Returns whether to plan the message again."""
        entity = self.entity(path)
        if ways_back != entity.ways_back:
            return True
        if entity.state == HEALTHY:
            entity.state, entity.first_failure = SUSPECT, self.now
            self.let_time_pass()
        return entity.state == FAILED_OVER

    def backlog_failed(self, queue, generation):
        if generation != self.generations[queue]:
            return
        self.busy.discard(queue)
        self.resting.setdefault(queue, self.now + self.rest)
        if not self.in_rotation:
            for other in self.busy:
                del self.resting[other]
                self.generations[other] += 1
            self.busy.clear()

    def backlog_throttled(self, queue, generation, *, wait):
        is_in = generation == self.generations[queue] and queue not in self.resting
        if is_in and len(self.in_rotation) > 1:
            self.resting[queue] = self.now + wait
            self.busy.add(queue)

    # tasks

    def slot(self, entity):
        return int((self.now - entity.failed_over_at) // self.ping)

    def wants_ping(self, entity):
        return (
            entity.state == FAILED_OVER
            and not entity.is_ping_out
            and self.slot(entity) > entity.last_ping_slot
        )

    def take_due(self):
        """Returns the paths to ping and the queues to probe."""
        if self.is_closed:
            return set(), set()
        paths = {path for path, entity in self.entities.items() if self.wants_ping(entity)}
        for path in paths:
            entity = self.entities[path]
            entity.is_ping_out, entity.last_ping_slot = True, self.slot(entity)
        rested = {q for q, at in self.resting.items() if at is not None and at <= self.now}
        self.resting.update(dict.fromkeys(rested))
        return paths, rested

    def next_due(self):
        if self.is_closed:
            return None
        moments = [at for at in self.resting.values() if at is not None]
        for entity in self.entities.values():
            if entity.state == SUSPECT:
                moments.append(entity.first_failure + self.failover)
            if entity.state == HEALTHY and entity.doublings:
                moments.append(entity.calm_since + 600)
            if entity.state == FAILED_OVER and not entity.is_ping_out:
                moments.append(entity.failed_over_at + (entity.last_ping_slot + 1) * self.ping)
        return min(moments, default=None)

    def ping_ended(self, path, ways_back, *, answered):
        """Returns whether the entity fails back."""
        entity = self.entity(path)
        entity.is_ping_out = False
        if ways_back != entity.ways_back or (answered and self.is_closed):
            return False
        entity.answers = entity.answers + 1 if answered else 0
        is_back = entity.answers >= self.needed(entity)
        if is_back:
            entity.back(self.now)
        return is_back

    def probe_ended(self, queue, *, answered):
        if queue not in self.resting:
            return
        self.busy.discard(queue)
        if answered:
            del self.resting[queue]
            self.generations[queue] += 1
        else:
            self.resting[queue] = self.now + self.rest
