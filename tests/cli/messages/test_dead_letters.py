"""`pairbus dead-letters` against a running broker: what it finds, sends again and removes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusConnectionError

from pairbus.broker import Broker, NamespaceOptions, Policy, QueueDescription, Right
from pairbus.cli.messages import dead_letter_moves
from pairbus.fast.errors import SettleFailed
from pairbus.fast.receiver import Receiver
from tests.cli.conftest import Run

Feed = Callable[[bytes], None]
DEAD = ("--sub-queue", "dead-letter", "--json", "--count", "999")


def forms(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def dead_letter(
    pairbus: Run, stdin: Feed, path: tuple[str, ...], reason: str, numbers: range
) -> None:
    lines = [
        {"body": f"body {n}", "messageId": f"m{n}", "subject": "odd" if n % 2 else "even",
         "applicationProperties": {"n": n}, "timeToLive": 3_600_000} for n in numbers
    ]  # fmt: skip
    stdin("\n".join(map(json.dumps, lines)).encode())
    assert pairbus("send", path[0], "--json-lines").code == 0
    words = ("--dead-letter", "--reason", reason, "--count", str(len(numbers)), "--json")
    assert len(forms(pairbus("receive", *path, *words).out)) == len(numbers)


@pytest.fixture
def dead_lettered(pairbus: Run, queue: str, stdin: Feed) -> str:
    """Dead letters 1 to 4 with one reason, 5 and 6 with another; property n is one less."""
    dead_letter(pairbus, stdin, (queue,), "bad", range(4))
    dead_letter(pairbus, stdin, (queue,), "worse", range(4, 6))
    return queue


def dead(pairbus: Run, queue: str) -> list[int]:
    return [form["sequenceNumber"] for form in forms(pairbus("peek", queue, *DEAD).out)]


def bodies(pairbus: Run, queue: str) -> list[str]:
    return [form["body"] for form in forms(pairbus("peek", queue, "--json").out)]


# -- finding them -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ([], [1, 2, 3, 4, 5, 6]),
        (["--reason", "WORSE"], [5, 6]),
        (["--subject", "odd"], [2, 4, 6]),
        (["--property", "n=3"], [4]),
        (["--property", "n:int=3"], [4]),
        (["--property", "n:string=3"], [4]),
        (["--property", "n:long=3"], []),
        (["--property", "absent="], []),
        (["--sequence", "1,3-4"], [1, 3, 4]),
        (["--sequence", "6", "--sequence", "2"], [2, 6]),
        (["--older-than", "1h"], []),
        (["--newer-than", "1h"], [1, 2, 3, 4, 5, 6]),
        (["--where", "n > 1 AND DeadLetterReason = 'bad'"], [3, 4]),
        (["--where", "sys.EnqueuedTimeUtc IS NOT NULL AND sys.Size > 10"], [1, 2, 3, 4, 5, 6]),
        (["--where", "n > 'text'"], []),
        (["--subject", "odd", "--reason", "bad", "--where", "n > 1"], [4]),
    ],
)
def test_all_conditions_of_a_filter_must_be_true(
    pairbus: Run, standing: str, words: list[str], numbers: list[int]
) -> None:
    done = pairbus("dead-letters", "list", standing, *words, "--json")

    assert (done.code, done.err) == (0, "")
    assert [form["sequenceNumber"] for form in forms(done.out)] == numbers


@pytest.fixture(scope="module")
def standing_name() -> list[str]:
    return []


@pytest.fixture
def standing(
    pairbus: Run, standing_name: list[str], request: pytest.FixtureRequest, namespace: Broker,
    use: Callable[[Broker], Broker],
) -> str:  # fmt: skip
    """As `dead_lettered`, but made once for all tests that only read."""
    use(namespace)
    if not standing_name:
        standing_name.append(request.getfixturevalue("dead_lettered"))
    return standing_name[0]


def test_a_list_is_a_table_and_says_if_there_is_more(pairbus: Run, standing: str) -> None:
    done = pairbus("dead-letters", "list", standing, "--count", "2")

    head, first, *_ = [line.split() for line in done.out.splitlines()]
    assert head == ["sequence", "enqueued", "message", "id", "subject", "reason", "body"]
    assert (first[0], first[2:]) == ("1", ["m0", "even", "bad", "body", "0"])
    assert done.err == "there are more than 2 messages; use --count\n"


def test_a_dead_letter_is_shown_in_full(pairbus: Run, standing: str) -> None:
    text = pairbus("dead-letters", "show", standing, "--sequence", "5").out

    assert "deadLetterReason: worse\n" in text
    assert text.endswith("\n\nbody 4\n\n")
    none = pairbus("dead-letters", "show", standing, "--sequence", "99")
    assert (none.code, none.out) == (1, "")
    assert "has no matching message" in none.err


# -- resubmit -----------------------------------------------------------------------------------


def test_a_dry_run_changes_nothing(pairbus: Run, standing: str) -> None:
    done = pairbus("dead-letters", "resubmit", standing, "--reason", "worse", "--dry-run")
    assert done.out.endswith(
        f"\n2 messages would be resubmitted to {standing!r}; nothing was changed\n"
    )

    as_json = pairbus("dead-letters", "purge", standing, "--dry-run", "--json")
    assert json.loads(as_json.out)["sequenceNumbers"] == [1, 2, 3, 4, 5, 6]

    assert dead(pairbus, standing) == [1, 2, 3, 4, 5, 6]
    assert bodies(pairbus, standing) == []


def test_matching_dead_letters_are_resubmitted_and_the_others_stay(
    pairbus: Run, dead_lettered: str
) -> None:
    done = pairbus("dead-letters", "resubmit", dead_lettered, "--where", "n IN (1, 5)")

    assert done == (0, f"resubmitted 2 messages to {dead_lettered!r}\n", "")
    assert bodies(pairbus, dead_lettered) == ["body 1", "body 5"]
    assert dead(pairbus, dead_lettered) == [1, 3, 4, 5]
    # They are not locked either.
    again = pairbus("dead-letters", "resubmit", dead_lettered, "--json")
    assert json.loads(again.out) == {"resubmitted": 4, "left": 0, "to": dead_lettered}
    assert dead(pairbus, dead_lettered) == []


def test_the_copy_is_what_was_sent(pairbus: Run, queue: str, stdin: Feed) -> None:
    first = {
        "messageId": "m",
        "sessionId": "s",
        "subject": "t",
        "timeToLive": 3_600_000,
        "partitionKey": "s",
        "body": "/w==",
        "bodyEncoding": "base64",
        "applicationProperties": {
            "when": {"type": "timestamp", "value": "2030-01-01T00:00:00.000Z"},
            "raw": {"type": "binary", "value": "dGV4dA=="},
            "long": {"type": "long", "value": "5"},
        },
        "annotations": {"x-own": "a"},
    }
    stdin(json.dumps(first).encode())
    pairbus("send", queue, "--json-lines")
    words = ("--dead-letter", "--reason", "r", "--description", "d")
    assert pairbus("receive", queue, *words).code == 0

    assert pairbus("dead-letters", "resubmit", queue).code == 0

    [form] = forms(pairbus("peek", queue, "--json").out)
    added = {"enqueuedTime", "sequenceNumber", "enqueuedSequenceNumber", "state", "deliveryCount"}
    assert {name: value for name, value in form.items() if name not in added} == first
    assert form["deliveryCount"] == 0


def test_a_subscription_resubmits_to_its_topic_or_to_another_entity(
    pairbus: Run, queue: str, stdin: Feed
) -> None:
    dead_letter(pairbus, stdin, ("events", "audit"), "bad", range(2))

    done = pairbus("dead-letters", "resubmit", "events", "audit", "--count", "1")
    assert done.out == "resubmitted 1 message to 'events'\n"
    assert "to all its subscriptions whose rules match" in done.err
    assert "body 0" in pairbus("receive", "events", "audit").out

    done = pairbus("dead-letters", "resubmit", "events", "audit", "--to", queue)
    assert done == (0, f"resubmitted 1 message to {queue!r}\n", "")
    assert bodies(pairbus, queue) == ["body 1"]


def test_a_dead_letter_stays_if_its_copy_is_refused(pairbus: Run, dead_lettered: str) -> None:
    done = pairbus("dead-letters", "resubmit", dead_lettered, "--to", "absent", "--keep-ids")

    assert done.code == 1
    assert "'absent' does not exist in " in done.err
    assert pairbus("dead-letters", "purge", dead_lettered, "--yes").out == "purged 6 messages\n"


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_target_that_does_not_exist_is_an_error_even_if_nothing_is_to_be_sent(
    pairbus: Run, queue: str, more: tuple[str, ...]
) -> None:
    done = pairbus("dead-letters", "resubmit", queue, "--to", "absent", *more)

    assert (done.code, done.out) == (1, "")
    assert "'absent' does not exist in " in done.err


def test_a_resubmit_that_fails_half_way_removes_just_what_was_accepted(
    pairbus: Run, stdin: Feed, use: Callable[[Broker], Broker]
) -> None:
    large = QueueDescription(name="large", max_message_size_in_kilobytes=1024)
    options = NamespaceOptions(name="n", sku="Premium", queues=[large, QueueDescription(name="q")])
    with Broker(namespaces=[options]) as broker:
        use(broker)
        dead_letter(pairbus, stdin, ("large",), "bad", range(120))
        stdin(b"x" * 500_000)
        pairbus("send", "large")
        pairbus("receive", "large", "--dead-letter")
        dead_letter(pairbus, stdin, ("large",), "bad", range(121, 130))

        done = pairbus("dead-letters", "resubmit", "large", "--to", "q", "--keep-ids")

        home = len(forms(pairbus("peek", "q", "--json", "--count", "999").out))
        left = dead(pairbus, "large")
        again = pairbus("dead-letters", "purge", "large", "--yes")
    assert (done.code, done.out) == (1, "")
    then = f"pairbus: resubmitted {home} messages, then: a message for 'q' has "
    assert done.err.startswith(then)
    assert 100 <= home < 130
    assert len(left) == 130 - home
    assert again.out == f"purged {len(left)} messages\n", "nothing is locked"


def test_an_outage_says_how_many_were_purged_before_it(
    pairbus: Run, dead_lettered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, receive = count(1), Receiver.receive

    def receive_once(self: Receiver, most: int, **wait: float) -> list[Any]:
        if next(calls) > 1:
            raise ServiceBusConnectionError(message="gone")
        return receive(self, 1, **wait)

    with monkeypatch.context() as patched:
        patched.setattr(Receiver, "receive", receive_once)
        done = pairbus("dead-letters", "purge", dead_lettered, "--yes")

    assert done.err.startswith("pairbus: purged 1 message, then: cannot reach localhost")
    assert len(dead(pairbus, dead_lettered)) == 5


def test_an_interrupt_between_sending_and_removing_leaves_the_message_in_both_places(
    pairbus: Run, dead_lettered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Receiver, "complete", die)
        assert pairbus("dead-letters", "resubmit", dead_lettered, "--sequence", "2").code == 130

    assert bodies(pairbus, dead_lettered) == ["body 1"]
    assert dead(pairbus, dead_lettered) == [1, 2, 3, 4, 5, 6]


def test_a_lost_lock_is_reported(
    pairbus: Run, dead_lettered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from azure.servicebus.exceptions import MessageLockLostError

    def lose(self: Receiver, received: list[Any]) -> None:
        raise SettleFailed("path", [(received[0], MessageLockLostError(message="lost"))])

    with monkeypatch.context() as patched:
        patched.setattr(Receiver, "complete", lose)
        done = pairbus("dead-letters", "resubmit", dead_lettered, "--sequence", "3")

    assert done.code == 1
    assert (
        "1 message was sent again but not removed from the dead letters (sequence numbers 3)"
        in done.err
    )


def test_a_message_locked_by_another_receiver_is_reported_and_stays(
    pairbus: Run, namespace: Broker, dead_lettered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_moves, "STALLED_SECONDS_MAX", 0.3)
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string) as client,
        client.get_queue_receiver(
            dead_lettered, sub_queue=ServiceBusSubQueue.DEAD_LETTER
        ) as receiver,
    ):
        [held] = receiver.receive_messages(max_message_count=1)
        done = pairbus("dead-letters", "purge", dead_lettered, "--yes")
        receiver.abandon_message(held)

    assert (done.code, done.out) == (1, "purged 5 messages\n")
    assert done.err == ("pairbus: 1 message was not purged: locked by another receiver, or gone\n")
    assert dead(pairbus, dead_lettered) == [1]


def test_more_than_one_batch_is_resubmitted_and_purged(
    pairbus: Run, queue: str, stdin: Feed
) -> None:
    dead_letter(pairbus, stdin, (queue,), "bad", range(350))

    assert pairbus("dead-letters", "resubmit", queue, "--where", "n >= 340").code == 0

    assert len(bodies(pairbus, queue)) == 10
    assert len(dead(pairbus, queue)) == 340
    assert pairbus("dead-letters", "purge", queue, "--yes").out == "purged 340 messages\n"


# -- duplicate detection ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def remembering() -> Iterator[Broker]:
    policies = [
        Policy(name="all", key="k", rights=frozenset(Right)),
        Policy(name="few", key="k", rights=frozenset({Right.SEND, Right.LISTEN})),
    ]
    queue = QueueDescription(name="once", requires_duplicate_detection=True)
    with Broker(queues=[queue, "plain"], policies=policies) as broker:
        yield broker


def test_a_message_id_that_would_be_dropped_as_a_duplicate_is_not_resubmitted(
    pairbus: Run, stdin: Feed, use: Callable[[Broker], Broker], remembering: Broker
) -> None:
    use(remembering)
    dead_letter(pairbus, stdin, ("once",), "bad", range(2))

    done = pairbus("dead-letters", "resubmit", "once")

    assert (done.code, done.out) == (2, "")
    assert (
        "2 messages may be dropped as duplicates: 'once' remembers message ids for 10m" in done.err
    )
    assert dead(pairbus, "once") == [1, 2]
    assert pairbus("dead-letters", "resubmit", "once", "--new-ids").code == 0
    assert bodies(pairbus, "once") == ["body 0", "body 1"]


def test_a_policy_without_manage_must_choose_what_happens_to_message_ids(
    pairbus: Run, stdin: Feed, monkeypatch: pytest.MonkeyPatch, remembering: Broker
) -> None:
    text = remembering.connection_string.replace(
        "SharedAccessKeyName=all", "SharedAccessKeyName=few"
    )
    monkeypatch.setenv("PAIRBUS_PRIMARY", text)
    dead_letter(pairbus, stdin, ("plain",), "bad", range(1))

    done = pairbus("dead-letters", "resubmit", "plain")

    assert done.code == 2
    assert "has the Manage right. Use --new-ids, or --keep-ids" in done.err
    assert pairbus("dead-letters", "resubmit", "plain", "--keep-ids").code == 0
    assert bodies(pairbus, "plain") == ["body 0"]


# -- purge and mistakes -------------------------------------------------------------------------


def test_purging_asks_first(
    pairbus: Run, dead_lettered: str, type_on_terminal: Callable[[str], None]
) -> None:
    type_on_terminal("y")

    done = pairbus("dead-letters", "purge", dead_lettered, "--reason", "worse")

    assert done.out == "purged 2 messages\n"
    assert f"Delete 2 messages of the dead-letter queue of {dead_lettered!r}?" in done.err
    assert dead(pairbus, dead_lettered) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["purge", "q"], "cannot ask for confirmation because stdin is not a terminal"),
        (
            ["list", "q", "--sequence", "x"],
            "--sequence 'x' is not a list of numbers: use 5,7,10-20",
        ),
        (["list", "q", "--older-than", "old"], "--older-than 'old' is not a duration"),
        (["list", "q", "--property", "x"], "use NAME=VALUE or NAME:TYPE=VALUE"),
        (["list", "q", "--where", "n >"], "the expression 'n >' is not valid"),
        (["resubmit", "q", "--to", "a/$DeadLetterQueue"], "does not accept messages: name a queue"),
        (
            ["resubmit", "q", "--new-ids", "--keep-ids"],
            "--new-ids and --keep-ids cannot be combined",
        ),
        (["list"], "Missing argument 'ENTITY'"),
        (["lst", "q"], "No such command 'lst'. Did you mean 'list'?"),
    ],
)
def test_a_usage_error_is_one_line(
    pairbus: Run, standing: str, stdin: Feed, words: list[str], error: str
) -> None:
    stdin(b"")

    done = pairbus("dead-letters", *(standing if word == "q" else word for word in words))

    assert (done.code, done.out) == (2, "")
    assert error in done.err
    assert done.err.count("\n") == 1
