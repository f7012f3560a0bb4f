"""A router driven by a test: a clock that is moved by hand, and a choice that is known."""

from pairbus.client.route.plans import ToBacklog
from pairbus.client.route.router import Router

QUEUES = tuple(f"contoso/x-servicebus-transfer/{index}" for index in range(3))
DOWN = ConnectionError("the primary does not answer")
FULL = OSError("the backlog queue is full")
TOO_BUSY = OSError("the service is busy")


def first(queues):
    return queues[0]


class Client:
    def __init__(
        self,
        *,
        queues=QUEUES,
        failover=10.0,
        ping=60.0,
        rest=30.0,
        choose=first,
        together=False,
        pings=1,
        phase=lambda: 1.0,
        ordered=False,
        wait_max=None,
    ):
        self.router = Router(
            "contoso",
            queues,
            failover_seconds=failover,
            ping_seconds=ping,
            choose=choose,
            rest_seconds=rest,
            fails_over_together=together,
            fail_back_pings=pings,
            phase=phase,
            is_ordered=ordered,
            wait_seconds_max=wait_max,
        )
        self.failover = failover
        self.now = 0.0

    def at(self, now):
        """The same client at another time."""
        assert now >= self.now
        self.now = float(now)
        return self

    # sending

    def plan(self, path="orders"):
        return self.router.plan(path, now=self.now)

    def ok(self, path="orders", plan=None, *, count=1, seconds=0.0):
        plan = plan or self.plan(path)
        self.router.sent(path, plan, count=count, now=self.now, seconds=seconds)
        return plan

    def fail(self, path="orders", plan=None, error=DOWN):
        return self.router.failed(path, plan or self.plan(path), error, now=self.now)

    def fail_over(self, *paths):
        for path in paths or ["orders"]:
            self.fail(path)
        self.at(self.now + self.failover)
        for path in paths or ["orders"]:
            assert isinstance(self.plan(path), ToBacklog)
        self.events()

    # the background

    def due(self):
        return self.router.take_due_tasks(now=self.now)

    def next_due(self):
        return self.router.next_due

    def answer(self, ping):
        return self.router.ping_answered(ping, now=self.now)

    def refuse(self, ping, error=DOWN):
        self.router.ping_failed(ping, error, now=self.now)

    def mark(self, path="orders"):
        return self.router.mark_healthy(path, now=self.now)

    # watching

    def events(self):
        return self.router.take_events()

    def status(self):
        """With the router's own seconds in place of dates."""
        return self.router.status(secondary="backup", date=float)

    def entity(self, path="orders"):
        return self.status().entity(path)

    def state(self, path="orders"):
        return self.entity(path).state
