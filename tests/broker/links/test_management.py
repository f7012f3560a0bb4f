"""Every operation of `$management`, with valid and invalid bodies."""

import tracemalloc
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest

from pairbus.amqp.codec.sections import read_annotations, slice_message
from pairbus.amqp.codec.types import UInt
from pairbus.amqp.codec.values import encode
from pairbus.amqp.engine import Transferred
from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.entities.policies import Right
from pairbus.broker.links.paths import Path
from pairbus.broker.links.request_codec import Request, read_request
from pairbus.broker.links.requests import OPERATIONS, ManagementLink
from pairbus.broker.message import MessageState, guid
from pairbus.broker.messages.lifecycle import MailboxKind, Settlement
from tests.broker.world import Receiver, application_properties, encoded

DEAD = MailboxKind.DEAD_LETTER
ANY_SESSION = 253_402_300_800_000
NOT_FOUND = "com.microsoft:message-not-found"
LOCK_LOST = "com.microsoft:message-lock-lost"
SESSION_LOST = "com.microsoft:session-lock-lost"
WRONG = "com.microsoft:argument-error"


@pytest.fixture
def sessions(make_world):
    return make_world(QueueDescription(name="q", requires_session=True))


def token(lock):
    return UUID(bytes=guid(lock.token))


def numbers(answer):
    """The sequence numbers in the returned messages."""
    found = []
    for entry in answer.body["messages"]:
        notes = read_annotations(slice_message(entry["message"]).annotations)
        found.append(notes["x-opt-sequence-number"])
    return found


def refusal(answer):
    assert answer.error is not None, answer
    return answer.status, answer.error.condition


def defer(world, *, count=1, kind=MailboxKind.MAIN):
    for lock in world.receive(count, kind=kind):
        world.settle(lock, Settlement.DEFER, kind=kind)


# -- bodies that are wrong --------------------------------------------------------------------

PEEK = {"from-sequence-number": 0, "message-count": 1}
DELETE = {"message-count": 1, "enqueued-time-utc": 0}
LIST = {"last-updated-time": 0, "skip": 0, "top": 1}
WRONG_BODIES = {
    "renew-lock": [
        {},
        {"lock-tokens": []},
        {"lock-tokens": ["x"]},
        {"lock-tokens": uuid4()},
        {"lock-tokens": [uuid4()] * 4001},
    ],
    "peek-message": [
        {},
        PEEK | {"message-count": 0},
        PEEK | {"message-count": "1"},
        PEEK | {"message-count": True},
        PEEK | {"from-sequence-number": -1},
        PEEK | {"from-sequence-number": 2**64},
        PEEK | {"session-id": 5},
    ],
    "receive-by-sequence-number": [
        {},
        {"sequence-numbers": []},
        {"sequence-numbers": [1.5]},
        {"sequence-numbers": 1},
    ],
    "update-disposition": [
        {},
        {"disposition-status": "completed"},
        {"disposition-status": "deferred", "lock-tokens": [uuid4()]},
        {"disposition-status": 1, "lock-tokens": [uuid4()]},
        {"disposition-status": "suspended", "lock-tokens": [uuid4()], "deadletter-reason": 5},
    ],
    "schedule-message": [
        {},
        {"messages": []},
        {"messages": [b"bytes"]},
        {"messages": [{}]},
        {"messages": [{"message": "text"}]},
    ],
    "cancel-scheduled-message": [{}, {"sequence-numbers": ["1"]}],
    "batch-delete-messages": [
        {},
        DELETE | {"message-count": 0},
        DELETE | {"enqueued-time-utc": None},
        DELETE | {"enqueued-time-utc": 2**64},
        DELETE | {"session-id": 5},
    ],
    "renew-session-lock": [{}, {"session-id": 1}],
    "get-session-state": [{}, {"session-id": None}],
    "set-session-state": [{}, {"session-id": b"s"}],
    "get-message-sessions": [{}, LIST | {"top": 0}, LIST | {"skip": -1}],
}


@pytest.mark.parametrize(
    ("operation", "body"),
    [(operation, body) for operation, bodies in WRONG_BODIES.items() for body in bodies],
)
def test_a_wrong_body_is_refused_with_what_would_be_right(sessions, operation, body):
    answer = sessions.ask(operation, body)

    assert refusal(answer) == (400, WRONG)
    assert "must be" in answer.description
    assert len(answer.description) < 300


RULE_OPERATIONS = {"add-rule", "remove-rule", "enumerate-rules"}  # see test_rule_requests.py


def test_every_operation_has_its_wrong_bodies():
    known = {name.removeprefix("com.microsoft:") for name in OPERATIONS}

    assert set(WRONG_BODIES) == known - RULE_OPERATIONS


@pytest.mark.parametrize("body", [None, "text", [1], 5])
def test_a_body_that_is_no_map_is_an_empty_one(world, body):
    assert refusal(world.ask("peek-message", body)) == (400, WRONG)


@pytest.mark.req("B-02")
def test_sending_needs_send_rules_need_manage_and_the_rest_listen():
    rights = {
        name.removeprefix("com.microsoft:"): operation.right
        for name, operation in OPERATIONS.items()
    }

    send = {name for name, right in rights.items() if right is Right.SEND}
    assert send == {"schedule-message", "cancel-scheduled-message"}
    assert {name for name, right in rights.items() if right is Right.MANAGE} == RULE_OPERATIONS
    assert set(rights.values()) == {Right.SEND, Right.LISTEN, Right.MANAGE}


def management_link(world, kind=MailboxKind.MAIN):
    """The link of a client that may do everything, and a list that gets the replies."""
    replies = []
    connection = SimpleNamespace(
        namespace=world.namespace,
        credentials=SimpleNamespace(allow=lambda path, right, now_ms: True),
        send_reply=lambda data, *_: replies.append(read_request(data).properties),
    )
    link = SimpleNamespace(accept=lambda **settings: None, session=None)
    queue = world.queue()
    path = Path("q", kind, True)
    return ManagementLink(connection, link, path, queue, queue.mailboxes[kind]), replies


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("kind", [MailboxKind.MAIN, DEAD])
def test_nothing_can_be_scheduled_in_a_dead_letter_queue(world, name, kind):
    management, replies = management_link(world, kind)

    management.handle(Request("id", None, {"operation": name}, {}), world.now_ms)

    [reply] = replies
    is_refused = "nothing can be sent to a dead-letter queue" in reply["statusDescription"]
    assert is_refused == (kind is DEAD and "schedule" in name)


@pytest.mark.req("B-01")
def test_a_request_whose_turn_comes_after_its_queue_was_deleted_stores_nothing(world):
    management, replies = management_link(world)
    world.namespace.delete(world.queue())
    world.flush()
    body = {"messages": [{"message": encoded(due_ms=world.now_ms + 1000)}]}

    schedule = {"operation": "com.microsoft:schedule-message"}
    management.handle(Request("id", None, schedule, body), world.now_ms)
    world.flush()

    [reply] = replies
    assert (reply["statusCode"], reply["errorCondition"]) == (404, "amqp:not-found")
    assert world.look("SELECT count(*) FROM message") == [(0,)]


def test_a_request_that_waits_for_its_turn_costs_no_more_than_its_bytes(world):
    """Decoded, a list of one-byte values takes forty times as much, and a hundred may wait."""
    waiting, outcomes, sizes = [], [], []
    connection = SimpleNamespace(queue_request=waiting.append, hold=sizes.append)
    link = SimpleNamespace(accept=lambda **settings: None)
    queue = world.queue()
    management = ManagementLink(
        connection, link, Path("q", queue.main.kind, True), queue, queue.main
    )
    data = encoded(None) + b"\x00\x53\x77" + encode([UInt(0)] * 100_000)
    delivery = SimpleNamespace(accept=lambda: outcomes.append("accepted"))
    event = Transferred(link, delivery, data, 0, False)

    tracemalloc.start()
    management.transferred(event, now_ms=world.now_ms)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(waiting) == 1
    assert sizes == [len(data)]
    assert outcomes == []
    assert held < 10_000


def test_a_request_counts_as_use_of_the_queue(world):
    world.clock.advance(100)

    world.ask("peek-message", PEEK)

    assert world.queue().accessed_ms == world.now_ms


# -- peek -------------------------------------------------------------------------------------


def test_peek_looks_behind_a_page_of_expired_messages(world):
    world.send(*[encoded(ttl_ms=1000)] * 3, encoded())
    world.clock.advance(1)

    assert numbers(world.ask("peek-message", PEEK | {"message-count": 2})) == [4]


def test_peek_stops_at_a_megabyte(world):
    world.send(*[encoded(b"x" * 200_000)] * 8)

    answer = world.ask("peek-message", PEEK | {"message-count": 9})

    assert numbers(answer) == [1, 2, 3, 4, 5]


# -- locks ------------------------------------------------------------------------------------


@pytest.mark.req("B-03")
@pytest.mark.parametrize("operation", ["renew-lock", "update-disposition"])
def test_a_lost_lock_is_lost_for_every_operation(world, operation):
    world.send(encoded(), encoded())
    first, second = world.receive(2)
    world.clock.advance(30)
    world.ask("renew-lock", {"lock-tokens": [token(second)]})
    world.clock.advance(30)

    for tokens in ([token(first)], [uuid4()], [token(second), token(first)]):
        body = {"lock-tokens": tokens, "disposition-status": "completed"}
        assert refusal(world.ask(operation, body)) == (410, LOCK_LOST)

    assert world.sequences() == [1, 2]
    assert second.until_ms == world.now_ms + 30_000  # all or nothing


def test_a_dead_letters_reason_and_properties_travel_along(world):
    world.send(encoded(message_id="m"))
    lock = world.receive()[0]

    world.ask(
        "update-disposition",
        {
            "disposition-status": "suspended",
            "lock-tokens": [token(lock)],
            "deadletter-reason": "why",
            "deadletter-description": "",
            "properties-to-modify": {"mine": 1},
        },
    )

    dead = world.receive(kind=DEAD)[0].message
    assert application_properties(dead) == {"mine": 1, "DeadLetterReason": "why"}


def test_several_messages_are_settled_with_one_answer(world):
    world.send(*[encoded()] * 3)
    locks = world.receive(3)
    body = {"disposition-status": "completed", "lock-tokens": [token(lock) for lock in locks]}

    answers = world.ask("update-disposition", body, wait=False)
    assert answers == []
    world.flush()

    assert [answer.status for answer in answers] == [200]
    assert world.sequences() == []


def test_the_same_token_twice_settles_once(sessions, world):
    for one, holder in ((world, None), (sessions, "s")):
        one.send(encoded(session="s"), encoded(session="s"))
        locks = one.accept("s", credit=1).locks if holder else one.receive()
        body = {"disposition-status": "completed", "lock-tokens": [token(locks[0])] * 2}

        answer = one.ask("update-disposition", body)

        assert answer.status in (200, 410)
        one.check_counters()


@pytest.mark.req("B-12")
def test_a_disk_that_refuses_is_answered_as_our_fault(world):
    world.send(encoded(), encoded())
    locks = world.receive(2)
    body = {"disposition-status": "completed", "lock-tokens": [token(lock) for lock in locks]}

    with world.broken_disk():
        answer = world.ask("update-disposition", body)

    assert refusal(answer) == (500, "amqp:internal-error")
    assert world.sequences() == [1, 2]


# -- deferred ---------------------------------------------------------------------------------


@pytest.mark.req("B-03")
def test_a_deferred_message_is_received_by_its_number_under_a_lock(world):
    world.send(encoded(), encoded())
    defer(world)

    body = {"sequence-numbers": [1, 1], "receiver-settle-mode": 1}
    answer = world.ask("receive-by-sequence-number", body)

    assert numbers(answer) == [1]
    again = world.ask("receive-by-sequence-number", body)
    assert refusal(again) == (404, NOT_FOUND), "it is locked"
    (entry,) = answer.body["messages"]
    settle = {"disposition-status": "completed", "lock-tokens": [entry["lock-token"]]}
    notes = read_annotations(slice_message(entry["message"]).annotations)
    assert notes["x-opt-locked-until"] == world.now_ms + 60_000
    assert world.ask("update-disposition", settle).status == 200
    assert world.sequences() == [2]
    world.check_counters()


@pytest.mark.req("B-03")
@pytest.mark.parametrize("mode", [0, 1])
def test_all_numbers_must_be_deferred_messages(world, mode):
    world.send(encoded(), encoded(), encoded(due_ms=world.now_ms + 1000))
    defer(world)

    for wanted in ([2], [3], [99], [1, 2], [0], [-1]):
        body = {"sequence-numbers": wanted, "receiver-settle-mode": mode}
        assert refusal(world.ask("receive-by-sequence-number", body)) == (404, NOT_FOUND)

    assert world.sequences() == [1, 2, 3]
    ok = {"sequence-numbers": [1], "receiver-settle-mode": mode}
    assert world.ask("receive-by-sequence-number", ok).status == 200


def test_few_large_messages_fit_into_one_answer_but_each_can_be_received(world, monkeypatch):
    monkeypatch.setattr("pairbus.broker.links.management._BY_NUMBER_BYTES_MAX", 1000)
    world.send(encoded(bytes(2000)), encoded(bytes(2000)))
    defer(world, count=2)
    body = {"sequence-numbers": [1, 2], "receiver-settle-mode": 1}

    answer = world.ask("receive-by-sequence-number", body)

    assert refusal(answer) == (400, WRONG)
    assert "fewer: their messages are too large" in answer.description
    for number in (1, 2):
        one = world.ask("receive-by-sequence-number", body | {"sequence-numbers": [number]})
        assert numbers(one) == [number]


def test_numbers_do_not_reach_into_other_mailboxes(make_world):
    world = make_world(QueueDescription(name="q"), QueueDescription(name="secret"))
    for name in ("q", "secret"):
        world.send(encoded(), encoded(due_ms=world.now_ms + 1000), to=name)
    world.settle(world.receive(of="secret")[0], Settlement.DEAD_LETTER, of="secret")
    defer_there = world.receive(of="secret", kind=DEAD)[0]
    world.settle(defer_there, Settlement.DEFER, of="secret", kind=DEAD)
    own = world.queue().main.counters.mailbox_id

    for other in range(16):
        for number in ((other ^ own) << 40 | 1, other << 40 | 1, other << 40 | 2):
            if number >> 40:
                body = {"sequence-numbers": [number], "receiver-settle-mode": 1}
                assert world.ask("receive-by-sequence-number", body).status == 404
                assert world.ask("cancel-scheduled-message", body).status == 404
                peek = {"from-sequence-number": number, "message-count": 9}
                assert world.ask("peek-message", peek).status == 204
    world.check_counters()


def test_a_deferred_message_of_a_session_belongs_to_its_holder(sessions):
    sessions.send(encoded(session="a"), encoded(session="b"))
    holder = sessions.accept("a", credit=1)
    sessions.settle(holder.locks[0], Settlement.DEFER)
    body = {"sequence-numbers": [1], "receiver-settle-mode": 1, "session-id": "a"}

    assert refusal(sessions.ask("receive-by-sequence-number", body)) == (410, SESSION_LOST)
    stranger = sessions.accept("b")
    foreign = body | {"session-id": "b"}
    found = sessions.ask("receive-by-sequence-number", foreign, holder=stranger)
    assert refusal(found) == (404, NOT_FOUND)
    answer = sessions.ask("receive-by-sequence-number", body, holder=holder)

    assert numbers(answer) == [1]
    sessions.pass_time(60)
    assert sessions.rows()[1] == (MessageState.DEFERRED, 1)
    sessions.check_counters()


# -- schedules --------------------------------------------------------------------------------


def test_a_message_that_cannot_be_taken_is_not_scheduled(world):
    good = {"message": encoded(due_ms=world.now_ms + 1000)}

    too_large = world.ask(
        "schedule-message", {"messages": [good, {"message": encoded(b"x" * 300_000)}]}
    )
    broken = world.ask("schedule-message", {"messages": [good, {"message": b"\x00\x53\x75"}]})

    assert refusal(too_large) == (403, "amqp:link:message-size-exceeded")
    assert refusal(broken) == (400, "amqp:decode-error")
    assert world.sequences() == []


def test_scheduling_on_a_disk_that_refuses_gives_no_numbers(world):
    with world.broken_disk():
        answer = world.ask("schedule-message", {"messages": [{"message": encoded()}]})

    assert refusal(answer) == (500, "amqp:internal-error")
    assert answer.body == {}


def test_only_scheduled_messages_can_be_cancelled_all_or_none(world):
    world.send(encoded(due_ms=world.now_ms + 1000), encoded())

    for wanted in ([2], [1, 2], [9]):
        answer = world.ask("cancel-scheduled-message", {"sequence-numbers": wanted})
        assert refusal(answer) == (404, NOT_FOUND)

    assert world.sequences() == [1, 2]


def test_a_message_is_cancelled_or_activated_and_never_both(world):
    world.send(encoded(due_ms=world.now_ms + 1000))
    world.clock.advance(1)
    world.namespace.tick()

    answer = world.ask("cancel-scheduled-message", {"sequence-numbers": [1]})

    assert refusal(answer) == (404, NOT_FOUND)
    assert len(world.receive(9)) == 1
    world.check_counters()


# -- batch delete -----------------------------------------------------------------------------


def test_messages_of_one_session_are_batch_deleted(sessions):
    sessions.send(encoded(session="a"), encoded(session="b"), encoded(session="a"))
    sessions.clock.advance(1)

    sessions.ask(
        "batch-delete-messages",
        {"message-count": 9, "enqueued-time-utc": sessions.now_ms, "session-id": "a"},
    )

    assert sessions.sequences() == [2]
    assert sessions.queue().main.sessions.with_messages() == ["b"]


def test_what_is_batch_deleted_while_it_waits_in_memory_is_not_delivered(world):
    receiver = Receiver(world.queue())
    receiver.mailbox.attach()
    world.send(*[encoded()] * 3)
    world.clock.advance(1)

    body = {"message-count": 2, "enqueued-time-utc": world.now_ms}
    world.ask("batch-delete-messages", body, wait=False)
    receiver.flow(9)
    world.flush()

    assert receiver.sequences == [3]
    world.check_counters()


def test_a_batch_delete_of_large_messages_costs_little_memory(world):
    world.send(*[encoded(bytes(100_000))] * 40)
    world.clock.advance(1)
    body = {"message-count": 40, "enqueued-time-utc": world.now_ms}

    tracemalloc.start()
    answer = world.ask("batch-delete-messages", body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert answer.body == {"message-count": 40}
    assert peak < 1_000_000
    world.check_counters()


@pytest.mark.req("B-12")
def test_large_messages_that_the_disk_does_not_delete_are_whole(world):
    receiver = Receiver(world.queue())
    receiver.mailbox.attach()
    receiver.flow(1)
    world.send(*[encoded(bytes(100_000))] * 3)
    world.clock.advance(1)
    body = {"message-count": 9, "enqueued-time-utc": world.now_ms}

    with world.broken_disk():
        answer = world.ask("batch-delete-messages", body)
    receiver.flow(2)

    assert refusal(answer) == (500, "amqp:internal-error")
    assert receiver.sequences == [1, 2, 3]
    assert all(len(lock.message.bare) > 100_000 for lock in receiver.locks)
    world.check_counters()


# -- sessions ---------------------------------------------------------------------------------

SESSION_OPERATIONS = ("renew-session-lock", "get-session-state", "set-session-state")


@pytest.mark.req("B-06")
@pytest.mark.parametrize("operation", SESSION_OPERATIONS)
def test_a_session_obeys_only_its_holder_and_only_in_time(sessions, operation):
    body = {"session-id": "s", "session-state": b"x"}
    assert refusal(sessions.ask(operation, body)) == (410, SESSION_LOST)
    holder = sessions.accept("s")

    assert refusal(sessions.ask(operation, body)) == (410, SESSION_LOST)
    assert sessions.ask(operation, body, holder=holder).status == 200
    sessions.clock.advance(60)

    assert refusal(sessions.ask(operation, body, holder=holder)) == (410, SESSION_LOST)


@pytest.mark.parametrize("operation", [*SESSION_OPERATIONS, "get-message-sessions"])
def test_a_queue_without_sessions_has_none(world, operation):
    body = {"session-id": "s", "last-updated-time": 0, "skip": 0, "top": 1}

    assert refusal(world.ask(operation, body)) == (400, "amqp:not-allowed")


@pytest.mark.parametrize("state", ["text", 5, b"x" * (256 * 1024 + 1)], ids=["text", "int", "huge"])
def test_a_state_that_is_no_binary_or_too_large_is_refused(sessions, state):
    holder = sessions.accept("s")

    answer = sessions.ask(
        "set-session-state", {"session-id": "s", "session-state": state}, holder=holder
    )

    assert refusal(answer) == (400, WRONG)
    assert len(answer.description) < 200


def test_a_state_that_the_disk_refuses_is_not_acknowledged(sessions):
    holder = sessions.accept("s")
    body = {"session-id": "s", "session-state": b"x"}

    with sessions.broken_disk():
        answer = sessions.ask("set-session-state", body, holder=holder)

    assert refusal(answer) == (500, "amqp:internal-error")


@pytest.mark.req("B-06")
def test_sessions_are_listed_with_messages_or_state_page_by_page(sessions):
    sessions.send(encoded(session="m2"), encoded(session="m1"))
    holder = sessions.accept("stateful")
    body = {"session-id": "stateful", "session-state": b"x"}
    sessions.ask("set-session-state", body, holder=holder)

    def page(skip, top, since=ANY_SESSION):
        body = {"last-updated-time": since, "skip": skip, "top": top}
        answer = sessions.ask("get-message-sessions", body)
        return None if answer.status == 204 else (*answer.body["sessions-ids"], answer.body["skip"])

    assert page(0, 100) == ("m1", "m2", "stateful", 3)
    assert page(0, 2) == ("m1", "m2", 2)
    assert page(2, 2) == ("stateful", 3)
    assert page(3, 2) is None
    assert page(0, 9, since=sessions.now_ms - 1) == ("stateful", 1)
    assert page(0, 9, since=sessions.now_ms) is None


def test_settling_with_a_session_id_needs_that_session(sessions):
    sessions.send(encoded(session="s"))
    holder = sessions.accept("s", credit=1)
    body = {
        "disposition-status": "completed",
        "lock-tokens": [token(holder.locks[0])],
        "session-id": "s",
    }

    assert refusal(sessions.ask("update-disposition", body)) == (410, SESSION_LOST)
    assert sessions.ask("update-disposition", body, holder=holder).status == 200
