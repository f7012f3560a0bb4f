"""Runs a router and a plain one through the same events, and checks everything that must hold
between them.

`test_router_model.py` decides what happens to them. Sends and tasks end when that test says so, so
many may be under way.
"""

import random
from itertools import count

import pytest

from pairbus import events
from pairbus.client.route.plans import Nowhere, Ping, Probe, ToBacklog, ToPrimary
from pairbus.client.route.router import Router
from tests.client.route.plain_router import FAILED_OVER, HEALTHY, SUSPECT, PlainRouter


class RouterDriver:
    def __init__(self, queues, *, failover, ping, rest, seed, pings=1):
        self.router = Router(
            "contoso",
            queues,
            failover_seconds=failover,
            ping_seconds=ping,
            choose=random.Random(seed).choice,
            rest_seconds=rest,
            fail_back_pings=pings,
        )
        self.model = PlainRouter(queues, failover=failover, ping=ping, rest=rest, pings=pings)
        self.sends, self.tasks = [], []
        self.errors = map(OSError, count())
        self.story = {}  # path -> what the events made of it
        self.counted = {}  # path -> how often, by kind of event
        self.flapping = set()  # paths, as the events say
        self.spelled = {}  # lower case -> as first used

    @property
    def now(self):
        return self.model.now

    def meet(self, path):
        self.spelled.setdefault(path.lower(), path)
        return self.model.entity(path)

    # sends

    def begin(self, path):
        entity = self.meet(path)
        plan = self.router.plan(path, now=self.now)
        if entity.state != FAILED_OVER:
            assert plan == ToPrimary(entity.ways_back)
        elif not self.model.in_rotation:
            assert isinstance(plan, Nowhere)
            assert plan.primary_error is not None
            assert plan.backlog_error is not None
            self.router.send_failed(path, plan, now=self.now)
            entity.counts["refused"] += 1
            self.check_queue(entity, None)
            self.listen()
            return
        else:
            assert isinstance(plan, ToBacklog)
            assert plan.generation == self.model.generations[plan.queue]
            self.check_queue(entity, plan.queue)
        self.sends.append((path, plan))
        self.listen()

    def begin_rest(self, path):
        """Begins the rest of a call of which a part is in the backlog."""
        entity = self.meet(path)
        plan = self.router.plan_backlog(path, now=self.now)
        if self.model.in_rotation:
            self.check_queue(entity, plan.queue)
            self.sends.append((path, plan))
        else:
            assert isinstance(plan, Nowhere)
            self.check_queue(entity, None)
        self.listen()

    def succeed(self, index, number):
        path, plan = self.sends.pop(index)
        counts = self.model.entity(path).counts
        self.router.sent(path, plan, count=number, now=self.now)
        if isinstance(plan, ToBacklog):
            counts["diverted"] += number
        else:
            counts["sent"] += number
            self.model.sent_to_primary(path)
        self.listen()

    def fail(self, index):
        """The send fails, and begins again where the router says so."""
        path, plan = self.sends.pop(index)
        again = self.router.failed(path, plan, next(self.errors), now=self.now)
        if isinstance(plan, ToBacklog):
            assert again is True
            self.model.backlog_failed(plan.queue, plan.generation)
        else:
            self.model.entity(path).counts["failures"] += 1
            assert again is self.model.primary_failed(path, plan.epoch)
        self.listen()
        if again:
            self.begin(path)

    def throttle(self, index):
        """The send stays under way: it is sent again."""
        path, plan = self.sends[index]
        self.router.throttled(path, plan, next(self.errors), wait_seconds=10.0, now=self.now)
        if isinstance(plan, ToBacklog):
            self.model.backlog_throttled(plan.queue, plan.generation, wait=10.0)
        self.model.entity(path).counts["throttled"] += 1
        self.listen()

    def register(self, path):
        entity = self.meet(path)
        self.check_queue(entity, self.router.register(path, now=self.now))

    def mark_healthy(self, path):
        if path.lower() not in self.model.entities:
            with pytest.raises(KeyError):
                self.router.mark_healthy(path, now=self.now)
            return
        entity = self.model.entity(path)
        assert self.router.mark_healthy(path, now=self.now) is (entity.state != HEALTHY)
        entity.back(self.now)
        self.model.let_time_pass()
        self.listen()

    # time and tasks

    def wait(self, seconds):
        self.model.wait(seconds)

    def wait_until_due(self):
        moment = self.router.next_due
        if moment is not None and moment > self.now:
            self.wait(moment - self.now)

    def look(self):
        moment = self.router.next_due
        tasks = self.router.take_due_tasks(now=self.now)
        failovers = self.listen()

        pings = [task for task in tasks if isinstance(task, Ping)]
        probes = [task for task in tasks if isinstance(task, Probe)]
        paths, queues = self.model.take_due()
        assert len(tasks) == len(paths) + len(queues)
        assert {ping.path.lower() for ping in pings} == paths
        assert {probe.queue for probe in probes} == queues
        for ping in pings:
            assert ping.epoch == self.model.entity(ping.path).ways_back
        self.tasks += tasks
        if self.model.pings == 1:  # else a due moment may also make an entity calmer, unheard
            assert bool(tasks or failovers) is (moment is not None and moment <= self.now)
        assert self.router.next_due == self.model.next_due()

    def end_task(self, index, *, answered):
        task = self.tasks.pop(index)
        error = next(self.errors)
        if isinstance(task, Probe):
            self.model.probe_ended(task.queue, answered=answered)
            if answered:
                self.router.probe_answered(task.queue)
            else:
                self.router.probe_failed(task.queue, error, now=self.now)
            self.listen()
            return
        counts = self.model.entity(task.path).counts
        counts["pings_sent"] += 1
        counts["pings_answered"] += answered
        is_back = self.model.ping_ended(task.path, task.epoch, answered=answered)
        if answered:
            assert self.router.ping_answered(task, now=self.now) is is_back
        else:
            self.router.ping_failed(task, error, now=self.now)
        self.listen()

    def drop_unwanted_pings(self):
        """Drops the pings that were handed out, have not been sent, and are no longer needed."""
        for ping in [task for task in self.tasks if isinstance(task, Ping)]:
            entity = self.model.entity(ping.path)
            is_wanted = ping.epoch == entity.ways_back and not self.model.is_closed
            assert self.router.is_wanted(ping) is is_wanted
            if not is_wanted:
                self.tasks.remove(ping)
                entity.is_ping_out = False

    def close(self):
        self.router.close()
        self.model.is_closed = True
        self.listen()

    # what must hold

    def check_queue(self, entity, queue):
        """The queue must be in the rotation, and the same as before unless that one left the
        rotation. If none was left, the entity forgets its queue and picks one next time.
        """
        if not self.model.in_rotation:
            assert queue is None
            entity.queue = None
            return
        assert queue in self.model.in_rotation
        if entity.queue in self.model.in_rotation:
            assert queue == entity.queue
        entity.queue = queue

    def listen(self):
        heard = self.router.take_events()
        for event in heard:
            self.hear(event)
        return heard

    def status(self):
        """With the router's own seconds in place of dates."""
        return self.router.status(secondary="backup", date=float)

    def look_at_everything(self):
        self.the_events_tell_what_the_status_says()
        self.every_entity_is_as_the_model_says()
        self.the_rotation_is_as_the_model_says()
        self.never_are_two_pings_or_two_probes_out_for_one()

    def the_events_tell_what_the_status_says(self):
        status = self.status()
        assert status.is_closed is self.model.is_closed
        for entity in status.entities:
            assert self.story.get(entity.path, HEALTHY) == entity.state
            counted = self.counted.get(entity.path, {})
            assert counted.get(events.Diverted, 0) == entity.diverted
            assert counted.get(events.Throttled, 0) == entity.throttled
            assert counted.get(events.PingSent, 0) == entity.pings_sent
            assert counted.get(events.SendFailed, 0) == entity.refused

    def hear(self, event):
        assert event.namespace == "contoso"
        match event:
            case events.PrimaryFailed(path=path, since_seconds=since, failover_in_seconds=left):
                assert self.story.get(path, HEALTHY) in (HEALTHY, SUSPECT)
                assert since + left == self.model.failover
                assert left > 0
                self.story[path] = SUSPECT
            case events.Recovered(path=path):
                assert self.story[path] == SUSPECT
                self.story[path] = HEALTHY
            case events.FailedOver(path=path, after_seconds=seconds, error=error):
                before = self.story.get(path, HEALTHY)
                assert before == SUSPECT or (before == HEALTHY and self.model.failover == 0)
                assert seconds >= self.model.failover
                assert error is not None
                self.story[path] = FAILED_OVER
                self.check_queue(self.model.entity(path), event.backlog_queue)
            case events.Flapping(path=path, after_seconds=seconds):
                assert self.story[path] == FAILED_OVER
                assert 0 <= seconds < 600
                self.flapping.add(path)
            case events.Calmed(path=path):
                self.flapping.remove(path)
            case events.FailedBack(path=path, reason=reason, after_seconds=seconds):
                assert self.story[path] == FAILED_OVER
                assert reason in ("ping", "by hand")
                assert seconds >= 0
                self.story[path] = HEALTHY
                self.model.entity(path).queue = None
            case events.BacklogWithdrawn() | events.BacklogReadmitted():
                assert event.left == len(self.model.in_rotation)
            case events.Closed():
                assert self.model.is_closed
        if (path := getattr(event, "path", None)) is not None:
            counted = self.counted.setdefault(path, {})
            counted[type(event)] = counted.get(type(event), 0) + getattr(event, "count", 1)

    def every_entity_is_as_the_model_says(self):
        status = self.status()
        assert [entity.path for entity in status.entities] == [*self.spelled.values()]
        for entity in status.entities:
            plain = self.model.entity(entity.path)
            state = entity.state
            if state == SUSPECT and plain.state == FAILED_OVER:
                # Nobody has looked since the interval is over; whoever does will see it.
                assert self.now >= entity.first_failure + self.model.failover
            else:
                assert state == plain.state
            assert entity.first_failure == plain.first_failure
            if state == FAILED_OVER:
                assert entity.pings_needed == self.model.needed(plain)
            assert (entity.path in self.flapping) is (entity.pings_needed > self.model.pings)
            assert {name: getattr(entity, name) for name in plain.counts} == plain.counts
            if state == FAILED_OVER:
                assert entity.since == plain.failed_over_at
                next_slot = plain.last_ping_slot + 1
                assert entity.next_ping == entity.since + next_slot * self.model.ping
            else:
                assert entity.next_ping is None
            self.check_queue(plain, entity.backlog_queue)

    def the_rotation_is_as_the_model_says(self):
        status = self.status()
        assert status.backlog_queues == self.model.in_rotation
        assert {withdrawn.queue for withdrawn in status.withdrawn} == set(self.model.resting)
        wanted = {entity.queue for entity in self.model.entities.values()}
        if self.model.in_rotation:
            assert set(self.router.wanted_queues()) == wanted
        else:
            assert self.router.wanted_queues() == ()

    def never_are_two_pings_or_two_probes_out_for_one(self):
        out = [c.path if isinstance(c, Ping) else c.queue for c in self.tasks]
        assert len(out) == len(set(out))
