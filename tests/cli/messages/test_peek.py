"""`pairbus peek` against a running broker."""

from __future__ import annotations

import json
import os
import pty
import signal
from collections.abc import Callable

import pytest
from azure.servicebus import ServiceBusClient

from pairbus.broker import Broker
from pairbus.cli.messages.filter import FilterOptions
from pairbus.fast.compose import message_of
from pairbus.fast.rows import read
from tests.cli.conftest import Run
from tests.cli.process import SECONDS, finished, started


@pytest.fixture
def filled(pairbus: Run, queue: str, stdin: Callable[[bytes], None]) -> str:
    lines = [
        json.dumps({"body": f"body {n}", "subject": "odd" if n % 2 else "even",
                    "applicationProperties": {"n": n}}) for n in range(300)
    ]  # fmt: skip
    stdin("\n".join(lines).encode())
    assert pairbus("send", queue, "--json-lines").code == 0
    return queue


def numbers(text: str) -> list[int]:
    return [json.loads(line)["sequenceNumber"] for line in text.splitlines()]


def test_messages_are_shown_in_a_table_and_stay(pairbus: Run, filled: str) -> None:
    done = pairbus("peek", filled)

    head, first, *rest = [line.split() for line in done.out.splitlines()]
    assert head == ["sequence", "enqueued", "message", "id", "subject", "session", "body"]
    assert (first[0], first[3:]) == ("1", ["even", "-", "body", "0"])
    assert len(rest) == 9
    assert done.err == "there are more than 10 messages; use --count\n"
    assert pairbus("peek", filled) == done
    assert pairbus("peek", filled, "--count", "10").err == ""
    assert len(numbers(pairbus("peek", filled, "--json").out)) == 10


def test_from_and_count_limit_the_messages(pairbus: Run, filled: str) -> None:
    assert numbers(pairbus("peek", filled, "--from", "299", "--json").out) == [299, 300]
    beyond = str(2**63)
    assert pairbus("peek", filled, "--from", beyond, "--json") == (0, "", "")
    assert pairbus("dead-letters", "list", filled, "--sequence", beyond, "--json") == (0, "", "")
    all_of_them = numbers(pairbus("peek", filled, "--count", "9999", "--json").out)
    assert all_of_them == list(range(1, 301))


def test_a_condition_is_applied_to_all_messages(pairbus: Run, filled: str) -> None:
    where = "n >= 10 AND sys.Subject = 'odd'"
    assert numbers(pairbus("peek", filled, "--where", where, "--count", "2", "--json").out) == [
        12,
        14,
    ]
    late = "sys.SequenceNumber = 300"
    assert numbers(pairbus("peek", filled, "--where", late, "--json").out) == [300]
    assert pairbus("peek", filled, "--where", "absent = 1", "--json") == (0, "", "")


def test_a_condition_does_not_match_a_message_that_a_broker_cannot_read() -> None:
    properties = {"n": {"type": "int", "value": "5"}}
    data = message_of({"body": b"x", "applicationProperties": properties}, now_ms=0)
    filter = FilterOptions(where="n = 5").parse()

    assert filter.matches(read(data, entity="q"), now=0)
    odd = b"\x00\x53\x70\xc0\x03\x02\x40\x41" + data  # a header whose priority is true
    assert not filter.matches(read(odd, entity="q"), now=0)


def test_a_message_can_be_shown_in_full(pairbus: Run, filled: str) -> None:
    text = pairbus("peek", filled, "--count", "1", "--whole").out

    assert "subject: even\n" in text
    assert "applicationProperties.n: 0\n" in text
    assert text.endswith("\n\nbody 0\n\n")


def test_locked_messages_are_shown(pairbus: Run, namespace: Broker, filled: str) -> None:
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string) as client,
        client.get_queue_receiver(filled) as receiver,
    ):
        [message] = receiver.receive_messages(max_message_count=1)
        assert numbers(pairbus("peek", filled, "--count", "1", "--json").out) == [1]
        receiver.abandon_message(message)


def test_a_character_that_stdout_cannot_encode_is_a_one_line_error(
    pairbus: Run, queue: str
) -> None:
    pairbus("send", queue, "5 €")
    for command in ("peek", "receive"):
        done = finished(command, queue, env=os.environ | {"PYTHONIOENCODING": "latin-1"})

        assert done.returncode == 1
        assert done.stderr == (
            "pairbus: cannot write to stdout: its encoding, latin-1, has no '\\u20ac'; set "
            "PYTHONIOENCODING=utf-8\n"
        )
    assert "5 €" in pairbus("receive", queue).out


def test_a_table_shows_the_beginning_of_a_body_in_one_line(pairbus: Run, queue: str) -> None:
    pairbus("send", queue, "two\nlines " + "x" * 100)
    assert pairbus("peek", queue).out.splitlines()[1].endswith(" two lines " + "x" * 50 + "...")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--where", "a >"], "at line 1, column 4: the expression ends, expected a value"),
        (["--where", " "], "--where is empty"),
        (["--from", "-1"], "--from -1: must be at least 0"),
        (["--count", "9" * 20], f"--count {'9' * 20}: must be at most 1000000000"),
        (["--sub-queue", "dead"], "'dead' is not one of"),
        (["--interval", "1s"], "--interval needs --watch"),
        (["--watch", "--interval", "1"], "--interval '1' has no unit"),
        (["--watch", "--interval", "0s"], "--interval 0s: must be more than 0s"),
    ],
)
def test_a_usage_error_is_one_line(pairbus: Run, queue: str, words: list[str], error: str) -> None:
    done = pairbus("peek", queue, *words)

    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert error in done.err


def test_a_subscription_that_does_not_exist_is_reported(pairbus: Run, queue: str) -> None:
    done = pairbus("peek", "events", "absent")

    assert done.code == 1
    assert "subscription 'absent' of topic 'events' does not exist in " in done.err


def test_a_topic_is_explained(pairbus: Run, queue: str) -> None:
    done = pairbus("peek", "events")

    assert done.code == 1
    assert done.err.startswith(
        "pairbus: 'events' is a topic. Its messages are in its subscriptions: "
    )


def test_an_empty_list_is_one_line_on_stderr(pairbus: Run, queue: str) -> None:
    assert pairbus("peek", queue) == (0, "", f"no messages in {queue!r}\n")
    assert pairbus("peek", queue, "--whole") == pairbus("peek", queue)
    assert pairbus("peek", queue, "--json") == (0, "", "")
    none = pairbus("peek", queue, "--where", "a = 1")
    assert none == (0, "", f"no matching messages in {queue!r}\n")


def test_watch_shows_new_messages_until_ctrl_c(pairbus: Run, queue: str) -> None:
    pairbus("send", queue, "first")
    with started("peek", queue, "--watch", "--interval", "0.05s") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("sequence  enqueued")
        assert process.stdout.readline().startswith("1 ")
        for number in range(2, 5):
            pairbus("send", queue, f"body {number}", "--subject", "s" * number)
            line = process.stdout.readline()
            assert line.split()[0] == str(number)
            assert line.endswith(f"body {number}\n")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)

    assert (process.returncode, out, err) == (130, "", "")


def test_the_columns_of_watch_are_the_same_for_all_messages(pairbus: Run, queue: str) -> None:
    pairbus("send", queue, "first", "--message-id", "m1", "--subject", "new")
    pairbus(
        "send", queue, "later", "--message-id", "m2", "--subject", "newest", "--scheduled", "1h"
    )
    pairbus("send", queue, "last", "--message-id", "m3")

    head, *rows = pairbus("peek", queue, "--watch", "--count", "3").out.splitlines()

    starts = [head.index(name) for name in ("state", "message id", "subject", "body")]
    found = [[row[start:].split()[0] for start in starts] for row in rows]
    assert sorted(found, key=lambda row: row[1]) == [
        ["active", "m1", "new", "first"],
        ["scheduled", "m2", "newest", "later"],
        ["active", "m3", "-", "last"],
    ]


def test_the_columns_of_watch_are_the_same_on_a_narrow_terminal(pairbus: Run, queue: str) -> None:
    pairbus("send", queue, "x" * 60, "--message-id", "m1", "--subject", "longer than it is wide")
    pairbus("send", queue, "later", "--message-id", "m" * 40, "--scheduled", "1h")
    master, slave = pty.openpty()
    terminal = os.environ | {"TERM": "dumb", "COLUMNS": "100", "LINES": "40"}
    with started(
        *("peek", queue, "--watch", "--count", "2"), stdout=slave, stderr=slave, env=terminal
    ) as process:
        assert process.wait(SECONDS) == 0
    os.close(slave)
    head, *lines = os.read(master, 65536).decode().splitlines()
    os.close(master)

    rows = [line for line in lines if line[0] != " "]
    assert [line.split()[:2] for line in rows[::2]] == [["1", "m1"], ["2", "m" * 36]]
    assert [line.split()[0] for line in rows[1::2]] == ["active", "scheduled"]
    assert [line[head.index("body") :][:5] for line in rows[::2]] == ["xxxxx", "later"]


def test_watch_ends_after_count_messages(pairbus: Run, filled: str) -> None:
    done = pairbus("peek", filled, "--watch", "--from", "42", "--count", "250", "--json")

    assert numbers(done.out) == list(range(42, 292))


def test_a_mistyped_entity_gets_a_suggestion(pairbus: Run, queue: str) -> None:
    assert pairbus("peek", "events", "audits").err.endswith("; did you mean 'audit'?\n")
    assert pairbus("peek", "sortet").err.endswith("; did you mean 'sorted'?\n")
    assert "did you mean" not in pairbus("peek", "nothing-like-it").err
