"""Faults on demand without a network: descriptions, schedule, decisions, controller."""

import asyncio
import json
import sqlite3
from dataclasses import fields
from random import Random

import pytest

from pairbus.broker import Broker
from pairbus.broker.faults import (
    KINDS,
    CannotContact,
    CannotManage,
    CannotReceive,
    CannotSend,
    ClockJump,
    CutAfterAccept,
    CutInTransfer,
    DelayedVisibility,
    DiskFull,
    Distribution,
    Error,
    Hang,
    Mode,
    Operation,
    Restart,
    Slow,
    SlowDisk,
    Throttle,
    Unreachable,
)
from pairbus.broker.faults.active_faults import ActiveFaults, Silence
from pairbus.broker.faults.fault_json import from_json, running_to_json, script_from_json, to_json
from pairbus.broker.faults.faulty_transport import DelayLine
from pairbus.broker.faults.handle import Faults
from pairbus.broker.faults.schedule import FAULTS_MAX, FaultSchedule
from pairbus.errors import BrokerError, ConfigError
from tests.broker.world import encoded

pytestmark = pytest.mark.req("B-13")

SEND, RECEIVE, ATTACH = Operation.SEND, Operation.RECEIVE, Operation.ATTACH
EXAMPLES = [
    Unreachable("orders", mode=Mode.DROP, seconds=30),
    Hang(),
    Throttle("Orders", rate=0.2, on=[SEND], seed=7),
    Error("orders", condition="amqp:not-found", probability=0.5, times=3, on="attach"),
    Slow(latency_seconds=0.1, distribution="exponential", bytes_per_second=1000),
    Restart(seconds=2),
    DelayedVisibility("orders", delay_seconds=60),
    CutAfterAccept("orders", times=1),
    CutInTransfer("orders", probability=0.1),
    CannotSend("orders"),
    CannotReceive("events/Subscriptions/audit"),
    CannotManage(),
    CannotContact(),
    DiskFull(seconds=5),
    SlowDisk(latency_seconds=2.5, distribution=Distribution.UNIFORM),
    ClockJump(offset_seconds=-3600),
]


def active(*faults, seed=1):
    """All of them at once."""
    schedule = FaultSchedule(Random(seed))
    schedule.plan([(0.0, fault) for fault in faults], seed=seed, now=0.0)
    schedule.pass_time(now=0.0)
    return ActiveFaults(schedule.active)


def refusals(faults, count, *operations, seed=1, entity="orders"):
    those = active(*faults, seed=seed)
    return [those.refusal(entity, *operations) is not None for _ in range(count)]


# descriptions


def test_every_kind_has_an_example_here():
    assert {fault.kind for fault in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize("fault", EXAMPLES, ids=lambda fault: fault.kind)
def test_a_fault_survives_json(fault):
    assert from_json(json.loads(json.dumps(to_json(fault)))) == fault


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_has_a_method_of_its_name(kind):
    assert callable(getattr(Faults, kind.kind))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_field_has_a_check(kind):
    assert all("check" in each.metadata for each in fields(kind))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Throttle(rate=1.5), "throttle: rate is 1.5, but must be a number from 0 to 1"),
        (lambda: Throttle(rate=float("nan")), "rate is nan"),
        (lambda: Throttle(rate="1"), "rate is '1'"),
        (lambda: Throttle(rate=True), "rate is True"),
        (lambda: Hang(seconds=0), "seconds is 0, but must be a number from 0.001 to 2_592_000"),
        (lambda: Hang(seconds=-1), "seconds is -1"),
        (lambda: Hang(seed=1.5), "seed is 1.5, but must be a whole number from 0"),
        (lambda: Hang(""), "entity is ''"),
        (lambda: Hang("/"), "entity is '/'"),
        (lambda: Hang(7), "entity is 7, but must be the path of an entity"),
        (lambda: Unreachable(mode="loud"), "mode is 'loud', but must be one of refuse, drop"),
        (lambda: Error(on=[]), "on is [], but must be one or more of send, receive"),
        (lambda: Error(on=["send", "fly"]), "on is ['send', 'fly']"),
        (lambda: Error(on=7), "on is 7"),
        (lambda: Error(condition=""), "condition is ''"),
        (lambda: Error(times=0), "times is 0, but must be a whole number from 1"),
        (lambda: Error(probability=-0.1), "probability is -0.1"),
        (lambda: Slow(), "slow: set latency_seconds, bytes_per_second, or both"),
        (lambda: Slow(bytes_per_second=0), "bytes_per_second is 0"),
        (lambda: Restart(seconds=None), "restart: seconds is None"),
        (lambda: ClockJump(), "clock_jump: set offset_seconds"),
        (lambda: DiskFull("orders"), "disk_full hits the whole namespace"),
        (lambda: ClockJump("orders", offset_seconds=1), "leave out the entity 'orders'"),
    ],
)
def test_an_impossible_setting_is_refused_with_what_would_be_right(make, words):
    with pytest.raises(ConfigError) as refused:
        make()

    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "a fault is a JSON object"),
        ({}, "kind is None, but must be one of unreachable, hang"),
        ({"kind": "flood"}, "kind is 'flood'"),
        ({"kind": []}, "kind is []"),
        ({"kind": "slow", "latencySeconds": -1}, "slow: latencySeconds is -1, but must be"),
        ({"kind": "slow", "latency_seconds": 1}, "slow has no setting 'latency_seconds', but"),
        ({"kind": "hang", "loud": 1}, "hang has no setting 'loud', but entity, seconds, seed"),
        ({"kind": "throttle", "rate": 2}, "rate is 2"),
        ({"kind": "x" * 1000}, "..."),
    ],
)
def test_json_that_is_not_a_fault_is_refused(value, words):
    with pytest.raises(ConfigError) as refused:
        from_json(value)

    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("hang", "a script is a JSON list"),
        ([{"kind": "hang"}], "entry 0 of the script needs 'at'"),
        ([{"at": 0, "kind": "hang"}, 7], "entry 1 of the script needs 'at'"),
        ([{"at": "soon", "kind": "hang"}], "'at' is 'soon', not seconds"),
        ([{"at": True, "kind": "hang"}], "'at' is True"),
        ([{"at": 0, "kind": "sleep"}], "kind is 'sleep'"),
    ],
)
def test_json_that_is_not_a_script_is_refused(value, words):
    with pytest.raises(ConfigError) as refused:
        script_from_json(value)

    assert words in str(refused.value)


def test_a_script_is_read_from_json():
    script = [{"at": 0, "kind": "hang", "seconds": 5}, {"at": 2.5, "kind": "disk_full"}]

    assert script_from_json(script) == [(0.0, Hang(seconds=5)), (2.5, DiskFull())]


# schedule


def test_a_fault_is_found_by_its_number_until_it_is_over():
    schedule = FaultSchedule(Random(1))
    [entry] = schedule.plan([(0, Hang())], seed=None, now=0.0)

    assert schedule.find(entry.id) is entry
    schedule.end(entry)
    assert schedule.find(entry.id) is None


def test_faults_start_and_end_at_their_times():
    schedule = FaultSchedule(Random(1))
    schedule.plan([(0, Hang(seconds=5)), (3, DiskFull())], seed=None, now=100.0)
    hang, full = schedule.faults

    assert schedule.pass_time(now=100.0) == ([hang], [])
    assert (hang.state, full.state, schedule.next_at) == ("active", "planned", 103.0)
    assert schedule.pass_time(now=103.0) == ([full], [])
    assert schedule.active == [hang, full]
    assert schedule.next_at == 105.0
    assert schedule.pass_time(now=105.0) == ([], [hang])
    assert (hang.state, schedule.faults, schedule.next_at) == ("over", [full], None)


def test_a_fault_that_was_slept_through_still_started():
    schedule = FaultSchedule(Random(1))
    [entry] = schedule.plan([(1, Restart(seconds=2))], seed=None, now=0.0)

    assert schedule.pass_time(now=10.0) == ([entry], [entry])
    assert entry.state == "over"


def test_a_fault_with_a_limit_of_hits_is_over_with_the_last():
    spent = []
    schedule = FaultSchedule(Random(1), when_spent=lambda: spent.append(entry.hits))
    [entry] = schedule.plan([(0, CutAfterAccept(times=2))], seed=None, now=0.0)
    schedule.pass_time(now=0.0)
    those = ActiveFaults([entry])

    assert [those.cuts_after_accept("a") for _ in range(4)] == [True, True, False, False]
    assert spent == [2]
    assert schedule.pass_time(now=0.0) == ([], [entry])


def test_the_number_of_faults_is_limited():
    schedule = FaultSchedule(Random(1))
    schedule.plan([(0, Hang())] * FAULTS_MAX, seed=None, now=0.0)

    with pytest.raises(ConfigError, match="1000 faults are planned or active, and 1 more would"):
        schedule.plan([(0, Hang())], seed=None, now=0.0)


@pytest.mark.parametrize("at", [-1, float("nan"), 10**9])
def test_a_script_within_reason(at):
    schedule = FaultSchedule(Random(1))

    with pytest.raises(ConfigError, match=r"hang starts at .* from 0 to 2592000"):
        schedule.plan([(0, Hang()), (at, Hang())], seed=None, now=0.0)
    assert schedule.faults == []


def test_a_listed_fault_says_all_that_is_needed_to_do_it_again():
    schedule = FaultSchedule(Random(1))
    [entry] = schedule.plan([(60, Throttle("Orders", seconds=30))], seed=7, now=0.0)

    assert running_to_json(entry) == {
        "id": 1,
        "kind": "throttle",
        "entity": "Orders",
        "seconds": 30,
        "rate": 0.0,
        "on": ["send", "management", "manage"],
        "seed": entry.seed,
        "state": "planned",
        "startsAt": "1970-01-01T00:01:00.000+00:00",
        "endsAt": "1970-01-01T00:01:30.000+00:00",
        "hits": 0,
    }


# dice


def test_the_same_seed_refuses_the_same_requests():
    faults = [Throttle(rate=0.5), Error(probability=0.3)]

    assert refusals(faults, 100, SEND, seed=7) == refusals(faults, 100, SEND, seed=7)
    assert refusals(faults, 100, SEND, seed=7) != refusals(faults, 100, SEND, seed=8)


def test_a_seed_of_its_own_outweighs_the_scripts():
    faults = [Throttle(rate=0.5, seed=3)]

    assert refusals(faults, 100, SEND, seed=7) == refusals(faults, 100, SEND, seed=8)


def test_faults_that_are_alike_do_not_hit_alike():
    one = refusals([Error(probability=0.5)], 100, SEND)
    both = active(Error("a", probability=0.5), Error("b", probability=0.5), seed=1)

    assert [both.refusal("a", SEND) is not None for _ in range(100)] == one
    assert [both.refusal("b", SEND) is not None for _ in range(100)] != one


def test_a_rate_is_the_share_that_gets_through():
    refused = refusals([Throttle(rate=0.2)], 2000, SEND)

    assert 0.77 < sum(refused) / len(refused) < 0.83


@pytest.mark.parametrize(("rate", "refused"), [(0, 50), (1, 0)])
def test_a_rate_of_nothing_and_of_all_is_exact(rate, refused):
    assert sum(refusals([Throttle(rate=rate)], 50, SEND)) == refused


@pytest.mark.parametrize(
    ("distribution", "low", "high"),
    [("constant", 2.0, 2.0), ("uniform", 0.0, 4.0), ("exponential", 0.0, 40.0)],
)
def test_a_latency_has_the_mean_that_was_asked_for(distribution, low, high):
    those = active(Slow(latency_seconds=2, distribution=distribution))

    drawn = [those.latency_seconds(None) for _ in range(3000)]

    assert low <= min(drawn) <= max(drawn) <= high
    assert 1.85 < sum(drawn) / len(drawn) < 2.15
    assert (len(set(drawn)) == 1) is (distribution == "constant")


# who is hit


@pytest.mark.parametrize(
    ("scope", "entity", "is_hit"),
    [
        (None, "orders", True),
        ("orders", "orders", True),
        ("ORDERS", "Orders", True),
        ("/orders/", "orders", True),
        ("orders", "orders2", False),
        ("orders", "orders/2", False),
        ("events", "events/Subscriptions/audit", True),
        ("events/Subscriptions/audit", "Events/subscriptions/Audit", True),
        ("events/Subscriptions/audit", "events", False),
        ("events/Subscriptions/audit", "events/Subscriptions/other", False),
    ],
)
def test_a_fault_hits_its_entity_only(scope, entity, is_hit):
    those = active(CannotSend(scope))

    assert (those.refusal(entity, SEND) is not None) is is_hit


@pytest.mark.parametrize(
    ("fault", "hit"),
    [
        (CannotSend(), {"send"}),
        (CannotReceive(), {"receive"}),
        (CannotManage(), {"manage"}),
        (CannotContact(), set()),
        (Throttle(), {"send", "management", "manage"}),
        (Error(), {"send"}),
        (Error(on=list(Operation)), {str(operation) for operation in Operation}),
        (DiskFull(), set()),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_fault_refuses_what_it_is_for(fault, hit):
    assert {str(one) for one in Operation if active(fault).refusal("orders", one)} == hit


def test_a_request_that_counts_twice_is_thrown_for_once():
    those = active(Error(on=["send", "management"], times=1))

    assert those.refusal("orders", Operation.MANAGEMENT, SEND) is not None
    assert those.refusal("orders", Operation.MANAGEMENT, SEND) is None


def test_an_error_says_that_it_was_asked_for():
    error = active(Error(condition="amqp:not-found", description="gone")).refusal("q", SEND)

    assert (error.condition, error.description) == (
        "amqp:not-found",
        "gone (fault 1 on demand: error)",
    )


@pytest.mark.parametrize("make", [Restart, Unreachable, CannotContact])
def test_what_closes_an_entity_bars_its_links_and_no_others(make):
    those = active(make("orders"))

    assert those.refusal_of_link("orders", receives=False).condition == "amqp:link:detach-forced"
    assert those.refusal_of_link("other", receives=True) is None
    assert not those.is_refusing
    assert not those.is_cut_off


def test_cannot_receive_closes_only_receivers():
    those = active(CannotReceive("orders", condition="amqp:not-found"))

    assert those.refusal_of_link("orders", receives=True).condition == "amqp:not-found"
    assert those.refusal_of_link("orders", receives=False) is None


def test_what_closes_the_namespace_closes_its_port():
    assert active(Restart()).is_refusing
    assert active(Unreachable()).is_refusing
    assert not active(Unreachable(mode="drop")).is_refusing
    assert not active(CannotContact()).is_refusing
    assert active(CannotContact()).is_cut_off


def test_silence_is_of_the_namespace_or_of_an_entity():
    everywhere, there = active(Hang()), active(Unreachable("orders", mode="drop"))

    assert (everywhere.silence(None), everywhere.silence("orders")) == (Silence.HANG, None)
    assert (there.silence(None), there.silence("orders")) == (None, Silence.DROP)
    assert active(Hang(), Unreachable(mode="drop")).silence(None) is Silence.DROP


def test_messages_are_seen_after_the_longest_delay():
    those = active(DelayedVisibility(delay_seconds=1), DelayedVisibility("q", delay_seconds=9))

    assert those.visible_at_ms("q", now_ms=1000) == 10_000
    assert those.visible_at_ms("other", now_ms=1000) == 2000
    assert active(Hang()).visible_at_ms("q", now_ms=1000) is None


def test_the_narrowest_line_counts():
    those = active(Slow(bytes_per_second=100), Slow(bytes_per_second=50), Slow(latency_seconds=1))

    assert those.transmission_seconds(None, 100) == 2.0
    assert those.transmission_seconds("orders", 100) == 0.0


def test_jumps_of_the_clock_add_up():
    those = active(ClockJump(offset_seconds=60), ClockJump(offset_seconds=-20))

    assert those.clock_offset_seconds == 40


# lines


def test_a_line_keeps_the_order_whatever_the_latencies():
    line = DelayLine()
    line.put("slow", 1, now=0.0, latency_seconds=5)
    line.put("fast", 1, now=0.0, latency_seconds=1)

    assert (line.take(now=4.9), line.next_at) == (None, 5.0)
    assert [line.take(now=5.0), line.take(now=5.0), line.take(now=5.0)] == ["slow", "fast", None]


def test_a_line_carries_one_thing_after_the_other():
    line = DelayLine()
    line.put("a", 10, now=0.0, transmission_seconds=2)
    line.put("b", 20, now=1.0, transmission_seconds=2)

    assert line.size_bytes == 30
    assert line.take(now=2.0) == "a"
    assert (line.take(now=3.9), line.take(now=4.0)) == (None, "b")
    assert (line.size_bytes, len(line), line.next_at) == (0, 0, None)


def test_a_line_without_its_latency_gives_all_it_has():
    line = DelayLine()
    line.put("a", 1, now=0.0, latency_seconds=3600)
    line.hurry()

    assert line.take(now=0.0) == "a"


# the controller, in a namespace


@pytest.fixture
def controller(world):
    return world.namespace.faults


class Client:
    """A connection, as the controller sees it."""

    def __init__(self, world):
        self.told = []
        world.namespace.connections.add(self)

    def __getattr__(self, name):
        return lambda: self.told.append(name)


class Port(Client):
    def __init__(self, controller):
        self.told = []
        controller.port = self


def test_without_faults_there_is_no_active_faults(world, controller):
    assert world.namespace.active_faults is None
    entry = controller.start(Hang())
    assert world.namespace.active_faults is not None
    controller.clear([entry])
    assert world.namespace.active_faults is None


def test_a_timed_fault_ends_by_the_clock(world, controller):
    entry = controller.start(Hang(seconds=30))
    world.pass_time(29.9)
    assert entry.is_active
    assert 30 in world.loop.delays
    world.pass_time(0.1)
    assert (entry.state, world.namespace.active_faults, controller.faults) == ("over", None, [])


def test_a_script_goes_by_the_clock(world, controller):
    first, second = controller.script([(0, Hang(seconds=2)), (5, DiskFull())], seed=1)
    assert (first.state, second.state) == ("active", "planned")
    world.pass_time(3)
    assert (first.state, second.state, world.namespace.active_faults) == ("over", "planned", None)
    world.pass_time(2)
    assert second.state == "active"


def test_a_jump_of_the_namespaces_clock_ends_no_fault(world, controller):
    entry = controller.start(Hang(seconds=60))
    controller.start(ClockJump(offset_seconds=3600))
    world.tick()
    assert entry.is_active
    assert world.namespace.clock() == world.clock() + 3600


def test_a_clock_jumps_back_when_the_fault_is_over(world, controller):
    [entry] = controller.script([(0, ClockJump(offset_seconds=-60))])
    assert world.namespace.clock() == world.clock() - 60
    controller.clear([entry])
    assert world.namespace.clock() == world.clock()


def test_locks_lapse_at_a_jump_of_the_clock(world, controller):
    world.send(encoded())
    [lock] = world.receive()
    controller.start(ClockJump(offset_seconds=61))
    world.loop.run_until_complete(asyncio.sleep(0))
    world.flush()
    [again] = world.receive()
    assert again.message.sequence == lock.message.sequence
    assert again.message.delivery_count == 1


def test_connections_are_notified_of_every_change(world, controller):
    client = Client(world)
    entry = controller.start(Hang())
    controller.clear([entry])
    assert client.told == ["faults_changed", "faults_changed"]


@pytest.mark.parametrize(("fault", "farewell"), [(Restart(), "shutdown"), (Unreachable(), "cut")])
def test_a_closed_port_refuses_connections_until_the_fault_ends(world, controller, fault, farewell):
    port, client = Port(controller), Client(world)
    entry = controller.start(fault)
    assert port.told == ["refuse", "shut_down_all"]
    assert client.told == ["faults_changed", farewell]
    other = controller.start(Restart(seconds=60))
    controller.clear([entry])
    assert port.told == ["refuse", "shut_down_all", "shut_down_all"]
    controller.clear([other])
    assert port.told[3:] == ["admit"]


def test_an_entitys_fault_leaves_the_port_open(world, controller):
    port = Port(controller)
    controller.start(Restart("q"))
    controller.start(Unreachable("q"))
    assert port.told == []


def test_a_full_disk_refuses_a_send_and_loses_nothing(world, controller):
    assert world.send(encoded(b"before")) == [1]
    entry = controller.start(DiskFull())
    error = world.send(encoded(b"meanwhile"))
    assert error.condition == "amqp:internal-error"
    assert "database or disk is full" in error.description
    controller.clear([entry])
    assert isinstance(world.send(encoded(b"after")), list)
    assert len(world.sequences()) == 2
    world.check_counters()
    assert entry.hits >= 1


def test_a_slow_disk_is_waited_for_and_let_go(world, controller):
    entry = controller.start(SlowDisk(latency_seconds=3600))
    _, told = world.submit(encoded())
    world.loop.run_until_complete(asyncio.sleep(0))
    assert told == []
    controller.clear([entry])
    world.flush()
    assert told == [None]


def test_delayed_messages_survive_a_crash(world, controller):
    controller.start(DelayedVisibility("Q", delay_seconds=900))
    world.send(encoded(b"late"))
    world.crash()
    assert world.receive() == []
    world.pass_time(899)
    assert world.receive() == []
    world.pass_time(1)
    [lock] = world.receive()
    assert b"late" in lock.message.bare


def test_a_delay_shortens_no_schedule(world, controller):
    controller.start(DelayedVisibility(delay_seconds=60))
    world.send(encoded(due_ms=world.now_ms + 120_000))
    world.pass_time(61)
    assert world.receive() == []
    world.pass_time(60)
    assert len(world.receive()) == 1


def test_a_fault_for_an_unknown_entity_is_logged(world, controller, caplog):
    controller.start(CannotSend("oders"))
    assert "is for 'oders', which does not exist" in caplog.text


def test_a_namespace_closes_in_the_middle_of_a_fault(world, controller):
    controller.start(DiskFull())
    controller.start(SlowDisk(latency_seconds=3600))
    world.submit(encoded())
    world.restart()
    assert len(world.sequences()) == 1


# broker.faults


def test_the_faults_of_a_stopped_broker_cannot_be_listed():
    with Broker() as broker:
        faults = broker.faults
        running = faults.hang()
        assert running.is_active

    assert running.state == "over"
    running.clear()  # nothing is left to clear
    with pytest.raises(BrokerError, match="the broker is not running"):
        faults.all()


def test_the_error_of_a_full_disk_is_sqlites(world, controller):
    controller.start(DiskFull())
    with pytest.raises(sqlite3.OperationalError, match="database or disk is full"):
        world.namespace.committer.before_commit()
