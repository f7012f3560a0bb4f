"""`pairbus receive` against a running broker: what is written, and what is left there."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import SessionLockLostError

from pairbus.broker import Broker, QueueDescription
from pairbus.cli.message_client import connect
from pairbus.cli.target import parse_target
from pairbus.fast.receiver import Receiver, wait_for_any
from tests.cli.conftest import Run
from tests.cli.process import SECONDS, started


def sent(pairbus: Run, queue: str, count: int, *more: str) -> None:
    for number in range(count):
        assert pairbus("send", queue, f"body {number}", *more).code == 0


def forms(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def left(pairbus: Run, queue: str, *more: str) -> list[str]:
    return [form["body"] for form in forms(pairbus("peek", queue, "--json", *more).out)]


def test_one_message_is_printed_and_completed(pairbus: Run, queue: str) -> None:
    sent(pairbus, queue, 2, "--subject", "s", "-p", "amount:int=5", "--message-id", "m")

    done = pairbus("receive", queue)

    assert (done.code, done.err) == (0, f"received 1 message of {queue!r}\n")
    head, _, body = done.out.partition("\n\n")
    assert body == "body 0\n\n"
    assert head.splitlines()[:3] == ["sequenceNumber: 1", "messageId: m", "subject: s"]
    assert "applicationProperties.amount: 5" in head
    assert left(pairbus, queue) == ["body 1"]


def test_json_has_a_line_for_each_message(pairbus: Run, queue: str) -> None:
    sent(pairbus, queue, 3)

    done = pairbus("receive", queue, "--all", "--wait", "1s", "--json")

    assert done.err == ""
    assert [form["body"] for form in forms(done.out)] == ["body 0", "body 1", "body 2"]
    assert left(pairbus, queue) == []


def test_no_more_messages_are_received_than_asked_for_and_none_stays_locked(
    pairbus: Run, queue: str
) -> None:
    sent(pairbus, queue, 5)

    assert len(forms(pairbus("receive", queue, "--count", "2", "--json").out)) == 2
    assert len(forms(pairbus("receive", queue, "--count", "9", "--json", "--wait", "1s").out)) == 3


def test_what_is_received_can_be_sent_again_as_it_was(
    pairbus: Run, queue: str, unused: Iterator[str], tmp_path: Path
) -> None:
    file, copy = tmp_path / "some.jsonl", next(unused)
    first = {
        "messageId": "m",
        "subject": "s",
        "contentType": "a/b",
        "timeToLive": 3_600_000,
        "body": "/w==",
        "bodyEncoding": "base64",
        "applicationProperties": {
            "text": "t",
            "int": 5,
            "large": 5_000_000_000,
            "long": {"type": "long", "value": "5"},
            "half": 0.5,
            "yes": True,
            "nothing": None,
            "moment": {"type": "timestamp", "value": "2030-01-01T00:00:00.000Z"},
            "binary": {"type": "binary", "value": "dGV4dA=="},
            "short": {"type": "short", "value": "-7"},
        },
    }
    file.write_text(json.dumps(first) + "\n")
    pairbus("send", queue, "--json-lines", "--file", str(file))

    [form] = forms(pairbus("receive", queue, "--json").out)
    assert {name: form[name] for name in first} == first

    file.write_text(json.dumps(form) + "\n")
    pairbus("send", copy, "--json-lines", "--file", str(file))
    [again] = forms(pairbus("receive", copy, "--json").out)
    assert {name: again[name] for name in first} == first


def test_messages_can_be_abandoned(pairbus: Run, queue: str) -> None:
    sent(pairbus, queue, 3)

    done = pairbus("receive", queue, "--all", "--abandon", "--json", "--wait", "1s")

    assert len(forms(done.out)) == 3
    counts = [form["deliveryCount"] for form in forms(pairbus("peek", queue, "--json").out)]
    assert counts == [1, 1, 1]


def test_messages_can_be_dead_lettered(pairbus: Run, queue: str) -> None:
    sent(pairbus, queue, 1)

    done = pairbus("receive", queue, "--dead-letter", "--reason", "bad", "--description", "very")
    assert done.err == f"dead-lettered 1 message of {queue!r}\n"

    [form] = forms(pairbus("peek", queue, "--sub-queue", "dead-letter", "--json").out)
    assert (form["deadLetterReason"], form["deadLetterErrorDescription"]) == ("bad", "very")
    assert left(pairbus, queue) == []

    assert "body 0" in pairbus("receive", queue, "--sub-queue", "dead-letter").out
    assert left(pairbus, f"{queue}/$DeadLetterQueue") == []


def test_messages_can_be_received_and_deleted(pairbus: Run, queue: str) -> None:
    when = {"type": "timestamp", "value": "2030-01-01T00:00:00.000Z"}
    sent(pairbus, queue, 3, "-p", "n:int=5", "-p", f"when:timestamp={when['value']}")

    [form] = forms(pairbus("receive", queue, "--delete", "--json").out)

    assert (form["body"], form["applicationProperties"]) == ("body 0", {"n": 5, "when": when})
    assert left(pairbus, queue) == ["body 1", "body 2"]
    rest = pairbus("receive", queue, "--delete", "--all", "--wait", "1s", "--json")
    assert [form["body"] for form in forms(rest.out)] == ["body 1", "body 2"]


@pytest.mark.parametrize("call", [1, 2])
def test_what_was_deleted_is_written_if_the_command_is_interrupted(
    pairbus: Run, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """In the first round trip, and later: some messages have come, others are on their way."""
    lines = tmp_path / "some.jsonl"
    lines.write_text("".join(f'{{"body": "body {number}"}}\n' for number in range(130)))
    assert pairbus("send", queue, "--json-lines", "--file", str(lines)).code == 0
    calls, receive = count(1), Receiver.receive

    def receive_while_interrupted(self: Receiver, *most: int, **wait: float) -> Any:
        if next(calls) == call:
            wait_for_any([self], max_wait_seconds=SECONDS)
            os.kill(os.getpid(), signal.SIGINT)
        return receive(self, *most, **wait)

    monkeypatch.setattr(Receiver, "receive", receive_while_interrupted)
    done = pairbus("receive", queue, "--delete", "--all", "--json")

    assert (done.code, done.err) == (130, "")
    written = [form["body"] for form in forms(done.out)]
    assert len(written) > 30
    rest = left(pairbus, queue, "--count", "200")
    assert sorted([*written, *rest]) == sorted(f"body {number}" for number in range(130))


def test_what_was_deleted_and_cannot_be_written_is_on_stderr(pairbus: Run, queue: str) -> None:
    sent(pairbus, queue, 2)
    reading, writing = os.pipe()
    os.close(reading)

    with started("receive", queue, "--delete", "--count", "2", stdout=writing) as process:
        os.close(writing)
        _, err = process.communicate(timeout=SECONDS)

    assert process.returncode == 1
    first, *found = err.splitlines()
    assert re.fullmatch(
        r"pairbus: \d messages? (was|were) deleted but could not be written:", first
    )
    bodies = [json.loads(line)["body"] for line in found if line.startswith("{")]
    assert sorted([*bodies, *left(pairbus, queue)]) == ["body 0", "body 1"]


def test_a_message_that_cannot_be_read_is_deleted_with_all_its_bytes_written(
    pairbus: Run, namespace: Broker, queue: str
) -> None:
    not_text = b"\x00\x53\x74\xc1\x07\x02\xa1\x01a\xa1\x01\xff" + b"\x00\x53\x75\xa0\x04body"
    with connect(parse_target(namespace.connection_string)) as client:
        client.sender(queue).send([not_text], window=1)
    sent(pairbus, queue, 1)

    [peeked] = forms(pairbus("peek", queue, "--json", "--count", "1").out)
    first, second = forms(pairbus("receive", queue, "--delete", "--count", "2", "--json").out)

    assert first["sequenceNumber"] == 1
    assert "a string is not UTF-8" in first["unreadable"]
    for form in (peeked, first):
        assert base64.b64decode(form["encodedMessage"]).endswith(not_text)
    assert second["body"] == "body 0"


def test_a_subscription_is_received_from(pairbus: Run, queue: str) -> None:
    sent(pairbus, "events", 2)

    assert "body 0" in pairbus("receive", "events", "audit").out
    assert "body 1" in pairbus("receive", "events/Subscriptions/audit").out


def test_a_session_is_received_from(pairbus: Run, queue: str) -> None:
    sent(pairbus, "sorted", 2, "--session-id", "s1")
    sent(pairbus, "sorted", 1, "--session-id", "s2")

    by_name = pairbus("receive", "sorted", "--session-id", "s2", "--json")
    assert [form["sessionId"] for form in forms(by_name.out)] == ["s2"]
    whichever = pairbus("receive", "sorted", "--next-session", "--count", "2", "--json")
    assert [form["sessionId"] for form in forms(whichever.out)] == ["s1", "s1"]
    none = pairbus("receive", "sorted", "--next-session", "--wait", "0.2s")
    assert none == (0, "", "received 0 messages of 'sorted'\n")
    unsaid = pairbus("receive", "sorted")
    assert unsaid.code == 1
    assert "requires sessions; use --session-id or --next-session" in unsaid.err


def test_each_message_can_be_written_to_a_file_and_none_is_overwritten(
    pairbus: Run, queue: str, tmp_path: Path
) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "2.json").write_text("mine")
    sent(pairbus, queue, 2)

    done = pairbus("receive", queue, "--all", "--wait", "1s", "--output-dir", str(folder))

    assert done == (0, f"wrote 2 messages of {queue!r} to {folder}\n", "")
    assert sorted(file.name for file in folder.iterdir()) == ["1.json", "2.2.json", "2.json"]
    assert json.loads((folder / "2.2.json").read_text())["body"] == "body 1"
    assert (folder / "2.json").read_text() == "mine"
    more = pairbus("receive", queue, "--wait", "0.1s", "--output-dir", str(folder), "--json")
    assert json.loads(more.out) == {"entity": queue, "received": 0, "outputDir": str(folder)}


def test_what_cannot_be_written_is_not_completed(
    pairbus: Run, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(pairbus, queue, 2)
    folder = tmp_path / "full"

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        done = pairbus("receive", queue, "--count", "2", "--output-dir", str(folder))

    assert done == (
        1,
        "",
        f"pairbus: cannot write to --output-dir {folder}: No space left on device\n",
    )
    assert list(folder.iterdir()) == []
    assert len(forms(pairbus("receive", queue, "--count", "2", "--json").out)) == 2


def test_a_broken_pipe_loses_nothing(pairbus: Run, queue: str) -> None:
    sent(pairbus, queue, 2)
    reading, writing = os.pipe()
    os.close(reading)

    with started("receive", queue, "--all", "--json", stdout=writing) as process:
        os.close(writing)
        _, err = process.communicate(timeout=SECONDS)

    assert (process.returncode, err) == (1, "")
    assert len(forms(pairbus("receive", queue, "--count", "2", "--json").out)) == 2


def test_a_full_disk_behind_stdout_loses_nothing(pairbus: Run, queue: str) -> None:
    sent(pairbus, queue, 1)

    with open("/dev/full", "w") as full, started("receive", queue, stdout=full) as process:
        _, err = process.communicate(timeout=SECONDS)

    assert process.returncode == 1
    assert err == "pairbus: cannot write to stdout: No space left on device\n"
    assert len(left(pairbus, queue)) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_nothing_locked(
    pairbus: Run, queue: str, number: signal.Signals
) -> None:
    sent(pairbus, queue, 1)
    words = (queue, "--all", "--abandon", "--json", "--wait", "1h")

    with started("receive", *words) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it holds this one, and waits for more
        before = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=SECONDS)

    assert (process.returncode, err) == (130, "")
    assert time.monotonic() - before < 25
    assert len(forms(pairbus("receive", queue, "--json", "--wait", "5s").out)) == 1


def test_watch_receives_until_ctrl_c(pairbus: Run, queue: str) -> None:
    with started("receive", queue, "--watch", "--json") as process:
        assert process.stdout is not None
        for number in range(3):
            pairbus("send", queue, f"body {number}")
            assert json.loads(process.stdout.readline())["body"] == f"body {number}"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)

    assert (process.returncode, err) == (130, "")
    assert left(pairbus, queue) == []


def test_watch_ends_after_count_messages(pairbus: Run, queue: str) -> None:
    sent(pairbus, queue, 3)

    assert len(forms(pairbus("receive", queue, "--watch", "--count", "2", "--json").out)) == 2
    assert len(left(pairbus, queue)) == 1


def test_ctrl_c_ends_at_once_if_the_namespace_does_not_answer() -> None:
    with socket.create_server(("localhost", 0)) as silent:
        text = f"Endpoint=sb://localhost:{silent.getsockname()[1]};SharedAccessKeyName=p"
        text += ";SharedAccessKey=k;UseDevelopmentEmulator=true"
        with started("receive", "orders", "-c", text) as process:
            connection, _ = silent.accept()
            with connection:
                connection.recv(1)  # it has asked, and waits
                before = time.monotonic()
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=SECONDS)

    assert (process.returncode, err) == (130, "")
    assert time.monotonic() - before < 25


def test_a_kill_between_writing_and_completing_loses_nothing(pairbus: Run, queue: str) -> None:
    """The output is a pipe that is not read: it blocks with half of a message written."""
    sent(pairbus, queue, 3, "-p", f"large={'x' * 200_000}")

    with started("receive", queue, "--all", "--json", text=False, bufsize=0) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.kill()

    assert len(left(pairbus, queue)) == 3


def test_an_interrupt_releases_the_session(pairbus: Run, use: Callable[[Broker], Broker]) -> None:
    with Broker(queues=[QueueDescription(name="s", requires_session=True)]) as broker:
        use(broker)
        pairbus("send", "s", "x", "--session-id", "a")
        words = ("--next-session", "--all", "--abandon", "--json", "--wait", "1h")
        with started("receive", "s", *words) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 130

        with (
            ServiceBusClient.from_connection_string(broker.connection_string) as client,
            client.get_queue_receiver("s", session_id="a") as receiver,
        ):
            assert len(receiver.receive_messages(max_wait_time=30)) == 1


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--abandon", "--delete"], "--abandon, --dead-letter and --delete cannot be combined"),
        (["--reason", "r"], "--reason and --description need --dead-letter"),
        (
            ["--session-id", "s", "--next-session"],
            "--session-id and --next-session cannot be combined",
        ),
        (["--wait", "long"], "--wait 'long' is not a duration"),
        (["--all", "--count", "2"], "--all and --count cannot be combined"),
        (["--watch", "--all"], "--watch waits until Ctrl-C: omit --all and --wait"),
        (["--watch", "--wait", "5s"], "--watch waits until Ctrl-C: omit --all and --wait"),
        (["--watch", "--abandon"], "--watch cannot be combined with "),
        (["--watch", "--next-session"], "--watch cannot be combined with "),
        (["--session-id", "s", "--sub-queue", "dead-letter"], "has no sessions"),
        (["--count", "0"], "--count 0: must be at least 1"),
        (["--sub-queue", "other"], "'other' is not one of"),
        (
            ["--output-dir", "/dev/null/x"],
            "cannot create --output-dir /dev/null/x: Not a directory",
        ),
    ],
)
def test_a_usage_error_is_one_line(pairbus: Run, queue: str, words: list[str], error: str) -> None:
    done = pairbus("receive", queue, *words)

    assert (done.code, done.out) == (2, "")
    assert error in done.err
    assert done.err.count("\n") == 1


def test_a_refusal_of_the_namespace_is_one_line(pairbus: Run, queue: str) -> None:
    assert pairbus("receive", "absent").err.startswith("pairbus: 'absent' does not exist in ")
    topic = pairbus("receive", "events")
    assert (topic.code, topic.err.count("\n")) == (1, 1)
    other = os.environ["PAIRBUS_PRIMARY"] + ";EntityPath=other"
    wrong = pairbus("receive", queue, "--next-session", "-c", other)
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)


def test_bodies_that_are_not_plain_data_say_so(pairbus: Run, namespace: Broker, queue: str) -> None:
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(AmqpAnnotatedMessage(value_body={"a": 1}))
        sender.send_messages(ServiceBusMessage(b"\xff"))

    value, binary = forms(pairbus("receive", queue, "--count", "2", "--json").out)
    assert (value["bodyType"], value["bodyEncoding"]) == ("value", "base64")
    assert (binary["body"], binary["bodyEncoding"]) == ("/w==", "base64")


def test_what_is_written_and_cannot_be_completed_is_counted(
    pairbus: Run, namespace: Broker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(pairbus, "sorted", 2, "--session-id", "a")

    def lose(*_: object) -> None:
        raise SessionLockLostError(message="the lock is lost")

    with monkeypatch.context() as patched:
        patched.setattr(ServiceBusReceiver, "complete_message", lose)
        done = pairbus("receive", "sorted", "--session-id", "a", "--count", "2", "--json")
    again = pairbus("receive", "sorted", "--session-id", "a", "--count", "2", "--json")

    assert done.code == 1
    written = len(forms(done.out))
    assert done.err.startswith(
        f"pairbus: {written} message{'s were' if written > 1 else ' was'} written but not "
        "completed, and will be delivered again: the lock is lost"
    )
    assert len(forms(again.out)) == 2


@pytest.mark.parametrize(
    "content",
    [
        {"value_body": {"a": [1, "text", None, {"TYPE": "LONG", "VALUE": 2**40}, 1.5]}},
        {"value_body": "text"},
        {"value_body": None},
        {"value_body": b"\xff"},
        {"sequence_body": [[1, "text"], [b"\xff"]]},
        {"data_body": b"\xff", "application_properties": {"list": [1, "a"], "map": {"a": 1}}},
        {"data_body": "text", "application_properties": {"int": 1, "id": UUID(int=5)}},
    ],
    ids=str,
)
def test_a_message_of_a_session_is_received_as_it_is_peeked_at(
    pairbus: Run, namespace: Broker, queue: str, content: dict[str, Any]
) -> None:
    """Whatever its body and its properties: once it is deleted, there is no other copy."""
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string) as client,
        client.get_queue_sender("sorted") as sender,
    ):
        properties = AmqpMessageProperties(
            group_id="s", content_encoding="gzip", user_id=b"\x00", subject="new"
        )
        sender.send_messages(AmqpAnnotatedMessage(**content, properties=properties))

    [peeked] = forms(pairbus("peek", "sorted", "--json").out)
    [received] = forms(pairbus("receive", "sorted", "--next-session", "--delete", "--json").out)

    assert received == peeked


def test_a_decimal_that_the_sdk_can_read_is_a_string(
    pairbus: Run, queue: str, stdin: Callable[[bytes], None]
) -> None:
    not_a_number = {"type": "decimal128", "value": "7c" + 15 * "00"}
    message = {"body": "x", "sessionId": "s", "applicationProperties": {"price": not_a_number}}
    stdin(json.dumps(message).encode())
    assert pairbus("send", "sorted", "--json-lines").code == 0

    done = pairbus("receive", "sorted", "--next-session", "--delete", "--json")

    [received] = forms(done.out)
    assert received["applicationProperties"] == {"price": "NaN"}
