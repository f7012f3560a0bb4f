"""A world for ordered failback: a primary, backlog queues, a syphon, and clients whose threads
send one message after the other. The routers are real; everything else is a list.

Each step is a rule of `test_ordered_model.py`. Sends, pings and peeks take as many steps as it
likes, their answers may be lost, and the syphon may die between any two of its own.
"""

import random
from dataclasses import dataclass, field

from pairbus.client.route.own_backlog import PeekedPage
from pairbus.client.route.plans import Hold, Nowhere, PeekBacklog, Ping, ToPrimary
from pairbus.client.route.router import Router

PATH = "orders"
DOWN = ConnectionError("down")
PAGE = 3


@dataclass
class Stored:
    sequence: int
    client: int
    thread: int
    number: int
    diverted_at: float


@dataclass(eq=False)
class Call:
    """One call of a thread, as `client/send.py` makes it."""

    number: int
    plan: object = None
    is_diverting: bool = False
    is_attempting: bool = False


@dataclass
class Client:
    router: Router
    calls: dict[int, Call] = field(default_factory=dict)  # by thread
    sent: dict[int, int] = field(default_factory=dict)  # by thread: the last number that returned
    tasks: list = field(default_factory=list)
    pages: list = field(default_factory=list)  # peeks that were answered and not yet reported


class OrderedWorld:
    def __init__(self, *, clients, queues, failover, ping, pings, seed):
        self.now = 0.0
        self.is_up = True
        self.queues = {f"q{n}": [] for n in range(queues)}
        self.up_queues = set(self.queues)
        self.sequences = dict.fromkeys(self.queues, 0)  # each queue counts by itself
        self.primary = []  # (client, thread, number), in the order of arrival
        self.clients = [
            Client(
                Router(
                    "contoso",
                    [*self.queues],
                    failover_seconds=failover,
                    ping_seconds=ping,
                    rest_seconds=2.0,
                    choose=random.Random(seed + number).choice,
                    fail_back_pings=pings,
                    is_ordered=True,
                )
            )
            for number in range(clients)
        ]

    # --- sends ------------------------------------------------------------------------------------

    def begin(self, client, thread):
        """The next message of a thread, or the last one again if its call raised."""
        one = self.clients[client]
        if thread not in one.calls:
            one.calls[thread] = Call(one.sent.get(thread, 0) + 1)
            self.plan(client, thread)

    def plan(self, client, thread, *, can_hold=True):
        one = self.clients[client]
        call = one.calls[thread]
        call.plan = one.router.plan(PATH, now=self.now, can_hold=can_hold)
        if isinstance(call.plan, Nowhere):
            self.end(client, thread, is_sent=False)

    def go_on(self, client, thread, *, is_answered=True, can_wait=True):
        """What the call waits for happens."""
        one = self.clients[client]
        call = one.calls.get(thread)
        if call is None:
            return
        way, router = call.plan, one.router
        if isinstance(way, Hold):
            self.plan(client, thread, can_hold=can_wait)
        elif isinstance(way, ToPrimary):
            if self.is_up:
                self.primary.append((client, thread, call.number))
            if self.is_up and is_answered:
                router.sent(PATH, way, count=1, now=self.now)
                self.end(client, thread, is_sent=True)
            elif router.failed(PATH, way, DOWN, now=self.now):
                self.plan(client, thread)
            else:
                self.end(client, thread, is_sent=False)
        elif call.is_attempting:
            self.divert(client, thread, is_answered=is_answered)
        elif router.ordered.backlog_begins(PATH, way, call, now=self.now):
            call.is_diverting = call.is_attempting = True
        else:
            self.plan(client, thread)

    def divert(self, client, thread, *, is_answered):
        one = self.clients[client]
        call, router = one.calls[thread], one.router
        queue = call.plan.queue
        is_up = queue in self.up_queues
        if is_up:
            self.sequences[queue] += 1
            self.queues[queue].append(
                Stored(self.sequences[queue], client, thread, call.number, diverted_at=self.now)
            )
        if is_up and is_answered:
            router.sent(PATH, call.plan, count=1, now=self.now)
        else:
            router.failed(PATH, call.plan, DOWN, now=self.now)
        call.is_attempting = False
        router.ordered.backlog_attempt_ended(PATH, call, now=self.now)
        if is_up and is_answered:
            self.end(client, thread, is_sent=True)
        else:
            self.plan(client, thread)

    def give_up(self, client, thread):
        """The call is cancelled, or out of time."""
        one = self.clients[client]
        if (call := one.calls.get(thread)) is not None:
            if call.is_attempting:
                one.router.ordered.backlog_attempt_ended(PATH, call, now=self.now)
            self.end(client, thread, is_sent=False)

    def end(self, client, thread, *, is_sent):
        one = self.clients[client]
        call = one.calls.pop(thread)
        if call.is_diverting:
            one.router.ordered.backlog_call_ended(PATH, call, now=self.now)
        if is_sent:
            one.sent[thread] = call.number

    # --- the background ---------------------------------------------------------------------------

    def wait(self, seconds):
        self.now += seconds
        for one in self.clients:
            one.tasks += one.router.take_due_tasks(now=self.now)
            one.router.take_events()

    def run_task(self, client, index):
        one = self.clients[client]
        if not one.tasks:
            return
        task = one.tasks.pop(index % len(one.tasks))
        router = one.router
        if isinstance(task, PeekBacklog):
            if task.queue in self.up_queues:
                one.pages.append((task, self.page(client, task)))
            else:
                router.ordered.peek_failed(task, DOWN, now=self.now)
        elif isinstance(task, Ping):
            if not router.is_wanted(task):
                return
            if self.is_up:
                router.ping_answered(task, now=self.now)
            else:
                router.ping_failed(task, DOWN, now=self.now)
        elif task.queue in self.up_queues:
            router.probe_answered(task.queue)
        else:
            router.probe_failed(task.queue, DOWN, now=self.now)

    def page(self, client, peek):
        shown = [m for m in self.queues[peek.queue] if m.sequence >= peek.from_sequence][:PAGE]
        for message in shown:
            if message.client == client:
                first = message.sequence
                return PeekedPage(
                    first=first, diverted_at=message.diverted_at, last=first, is_end=False
                )
        return PeekedPage(first=None, last=shown[-1].sequence if shown else 0, is_end=not shown)

    def report_peek(self, client, index):
        one = self.clients[client]
        if one.pages:
            peek, page = one.pages.pop(index % len(one.pages))
            one.router.ordered.peeked(peek, page, now=self.now)

    # --- the syphon -------------------------------------------------------------------------------

    def syphon(self, queue, *, count, dies_after=None):
        """One batch: send in order, then settle. `dies_after` so many messages were sent, nothing
        is settled, and the next batch begins with the same messages."""
        messages = self.queues[queue]
        if not self.is_up or queue not in self.up_queues:
            return
        batch = messages[:count] if dies_after is None else messages[:dies_after]
        self.primary += [(m.client, m.thread, m.number) for m in batch]
        if dies_after is None:
            del messages[:count]

    # --- what must hold ---------------------------------------------------------------------------

    def check_order(self):
        """Each thread's messages arrive in the order in which it sent them. Copies may follow."""
        highest = {}
        for client, thread, number in self.primary:
            before = highest.get((client, thread), 0)
            assert number <= before + 1, (
                f"message {number} of thread {thread} of client {client} overtook {before + 1}"
            )
            highest[client, thread] = max(before, number)

    def settle_down(self):
        """Everything works again for long enough: no call may be stuck."""
        self.is_up, self.up_queues = True, set(self.queues)
        for _ in range(400):
            self.wait(0.5)
            for number, one in enumerate(self.clients):
                for thread in [*one.calls]:
                    self.go_on(number, thread)
                while one.tasks:
                    self.run_task(number, 0)
                while one.pages:
                    self.report_peek(number, 0)
            for queue in self.queues:
                self.syphon(queue, count=5)
        for one in self.clients:
            assert not one.calls
            for entity in one.router.status(secondary="", date=float).entities:
                assert entity.state == "healthy"
