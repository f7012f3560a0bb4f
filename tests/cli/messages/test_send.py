"""`pairbus send` against a running broker, as the official SDK receives it."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count as counting
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusClient

from pairbus.broker import Broker, Policy, Right
from pairbus.fast.sender import Sender
from tests.cli.conftest import Run
from tests.cli.process import SECONDS, started
from tests.waiting import wait_until

Feed = Callable[[bytes], None]


def received(broker: Broker, queue: str, count: int = 1) -> list[Any]:
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        found = receiver.peek_messages(max_message_count=100)
    assert len(found) == count
    return found


def peeked(pairbus: Run, queue: str, count: int = 1) -> list[dict[str, Any]]:
    """Quicker than the SDK, which takes half a second to open a link, and as long to close it."""
    lines = pairbus("peek", queue, "--json", "--count", "100").out.splitlines()
    assert len(lines) == count
    return [json.loads(line) for line in lines]


def bodies(pairbus: Run, queue: str, count: int) -> list[bytes]:
    found = peeked(pairbus, queue, count)
    return [
        b64decode(form["body"]) if "bodyEncoding" in form else form["body"].encode()
        for form in found
    ]


def test_a_text_is_sent(pairbus: Run, namespace: Broker, queue: str) -> None:
    assert pairbus("send", queue, "Grüße") == (0, f"sent 1 message to {queue!r}\n", "")

    [message] = received(namespace, queue)
    assert str(message) == "Grüße"
    assert UUID(message.message_id)


def test_every_property_of_a_message_can_be_set(
    pairbus: Run, namespace: Broker, queue: str
) -> None:
    words = {
        "--message-id": "m-1",
        "--session-id": "s-1",
        "--subject": "new",
        "--content-type": "text/plain",
        "--correlation-id": "c-1",
        "--reply-to": "answers",
        "--reply-to-session-id": "s-2",
        "--to": "somewhere",
        "--ttl": "2h",
    }
    pairbus("send", queue, "body", *(word for pair in words.items() for word in pair))

    [message] = received(namespace, queue)
    assert (message.message_id, message.session_id, message.subject) == ("m-1", "s-1", "new")
    assert (message.content_type, message.correlation_id) == ("text/plain", "c-1")
    assert (message.reply_to, message.reply_to_session_id) == ("answers", "s-2")
    assert (message.to, message.time_to_live) == ("somewhere", timedelta(hours=2))


def test_application_properties_have_their_types(
    pairbus: Run, namespace: Broker, queue: str
) -> None:
    uuid = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
    words = ["a=text", "b:int=5", "c:long=5000000000", "d:double=0.5", "e:boolean=true"]
    words += [f"f:uuid={uuid}", "g:timestamp=1970-01-01T00:00:01Z", "h=x=y", "i:j:int=7"]
    pairbus("send", queue, "", *(word for one in words for word in ("-p", one)))

    [message] = received(namespace, queue)
    assert message.application_properties == {
        b"a": b"text",
        b"b": 5,
        b"c": 5_000_000_000,
        b"d": 0.5,
        b"e": True,
        b"f": UUID(uuid),
        b"g": 1000,
        b"h": b"x=y",
        b"i:j": 7,
    }


@pytest.mark.parametrize("is_moment", [False, True], ids=["in", "at"])
def test_a_message_can_be_scheduled(pairbus: Run, queue: str, is_moment: bool) -> None:
    moment = datetime.now(UTC) + timedelta(minutes=10)
    when = moment.isoformat() if is_moment else "10m"
    assert pairbus("send", queue, "later", "--scheduled", when).code == 0

    [form] = peeked(pairbus, queue)
    assert form["state"] == "scheduled"
    due = datetime.fromisoformat(form["scheduledEnqueueTime"]) - datetime.now(UTC)
    assert timedelta(minutes=9) < due < timedelta(minutes=11)


def test_each_copy_has_a_message_id_of_its_own(pairbus: Run, queue: str) -> None:
    done = pairbus("send", queue, "again", "--copies", "20", "--json")

    assert json.loads(done.out) == {"entity": queue, "sent": 20}
    assert len({form["messageId"] for form in peeked(pairbus, queue, 20)}) == 20


def test_a_file_is_sent_unchanged(pairbus: Run, queue: str, tmp_path: Path) -> None:
    contents = [b"\x00\xff\n", b""]
    files = [tmp_path / f"{number}" for number in range(2)]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)

    assert pairbus("send", queue, "--file", str(files[0]), "--file", str(files[1])).code == 0

    assert bodies(pairbus, queue, 2) == contents


@pytest.mark.parametrize("words", [[], ["-"]])
def test_a_body_may_come_on_stdin(pairbus: Run, queue: str, stdin: Feed, words: list[str]) -> None:
    stdin(b"two\nlines\n")

    assert pairbus("send", queue, *words).code == 0

    assert bodies(pairbus, queue, 1) == [b"two\nlines\n"]


def test_lines_are_messages(pairbus: Run, queue: str, stdin: Feed) -> None:
    stdin(b"one\r\n\n\xff\nlast")

    assert (
        pairbus("send", queue, "--lines", "--subject", "s").out == f"sent 4 messages to {queue!r}\n"
    )

    assert bodies(pairbus, queue, 4) == [b"one", b"", b"\xff", b"last"]


def test_the_options_apply_to_what_a_json_line_does_not_say(
    pairbus: Run, queue: str, tmp_path: Path
) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text(
        '{"body": "text", "subject": "own", "applicationProperties": {"n": 1}}\n'
        "\n"
        '{"body": {"json": [1, 2]}, "sequenceNumber": 9, "state": "active"}\n'
        '{"body": "/wA=", "bodyEncoding": "base64", "messageId": "m", "timeToLive": 60000}\n'
    )

    words = ("--file", str(file), "--subject", "all", "-p", "n:int=0", "-p", "more=x")
    assert pairbus("send", queue, "--json-lines", *words).code == 0

    first, second, third = peeked(pairbus, queue, 3)
    assert (first["body"], first["subject"]) == ("text", "own")
    assert first["applicationProperties"] == {"n": 1, "more": "x"}
    assert (json.loads(second["body"]), second["subject"]) == ({"json": [1, 2]}, "all")
    assert (third["body"], third["bodyEncoding"]) == ("/wA=", "base64")
    assert (third["messageId"], third["timeToLive"]) == ("m", 60_000)


def test_a_bad_line_is_named_and_the_lines_before_it_are_sent(
    pairbus: Run, queue: str, stdin: Feed
) -> None:
    stdin(b'{"body": "good"}\n{"body": "bad", "sesion": "s"}\n{"body": "never"}\n')

    done = pairbus("send", queue, "--json-lines")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("pairbus: stdin, line 2: unknown key 'sesion'; a message may have")
    assert done.err.endswith("; sent 1 message before it\n")
    assert bodies(pairbus, queue, 1) == [b"good"]


def test_a_line_is_sent_as_soon_as_it_arrives(pairbus: Run, queue: str) -> None:
    with started("send", queue, "--lines", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write("first\n")
        process.stdin.flush()
        wait_until(lambda: "first" in pairbus("peek", queue).out)
        assert bodies(pairbus, queue, 1) == [b"first"]
        out, _ = process.communicate("second\n", timeout=SECONDS)
    assert (process.returncode, out) == (0, f"sent 2 messages to {queue!r}\n")


def test_a_topic_accepts_messages(pairbus: Run, queue: str) -> None:
    assert pairbus("send", "events", "news").code == 0

    assert "news" in pairbus("peek", "events", "audit").out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["q"], "nothing to send: stdin is empty"),
        (["", "x"], "which entity? Name a queue"),
        (["events/Subscriptions/audit", "x"], "does not accept messages: send to 'events'"),
        (["q/$DeadLetterQueue", "x"], "does not accept messages: send to 'q'"),
        (["q", "x", "--lines"], "BODY and --lines cannot be combined"),
        (["q", "x", "--file", "f"], "BODY and --file cannot be combined"),
        (["q", "--lines", "--json-lines"], "--lines and --json-lines cannot be combined"),
        (["q", "--lines", "--copies", "2"], "--copies is for a single message"),
        (["q", "x", "--copies", "2", "--message-id", "m"], "--message-id is for a single message"),
        (["q", "x", "--copies", "0"], "--copies 0: must be at least 1"),
        (["q", "x", "--copies", "9" * 20], "must be at most 1000000000"),
        (["q", "x", "-p", "novalue"], "use NAME=VALUE or NAME:TYPE=VALUE"),
        (["q", "x", "-p", "=v"], "use NAME=VALUE or NAME:TYPE=VALUE"),
        (["q", "x", "-p", "a:int=five"], "--property 'a:int=five': 'five' is not a valid int"),
        (["q", "x", "-p", "a:integer=5"], "'integer' is not one of null, boolean"),
        (["q", "x", "--ttl", "soon"], "--ttl 'soon' is not a duration: use 90s"),
        (["q", "x", "--ttl", "5"], "--ttl '5' has no unit: use 5s, 5m, 5h or 5d"),
        (["q", "x", "--ttl", "0s"], "must be at least 1ms"),
        (["q", "x", "--scheduled", "tomorrow"], "--scheduled 'tomorrow' is not a time"),
        (["q", "--file", "/nonexistent"], "cannot read /nonexistent: No such file"),
        (["q", "--lines", "--file", "/nonexistent"], "cannot read /nonexistent: No such file"),
    ],
)
def test_a_usage_error_is_one_line_and_nothing_is_sent(
    pairbus: Run, queue: str, stdin: Feed, words: list[str], error: str
) -> None:
    stdin(b"")

    done = pairbus("send", *(queue if word == "q" else word.replace("q/", f"{queue}/")
                             for word in words))  # fmt: skip

    assert (done.code, done.out) == (2, "")
    assert error.replace("'q'", repr(queue)) in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"{", "not JSON: Expecting property name enclosed in double quotes (column 2)"),
        (b"[1]", 'must be an object such as {"body": "text"}'),
        (b"\xff", "is not UTF-8"),
        (b'{"body": 5, "bodyEncoding": "base64"}', "body: must be a string in base64"),
        (b'{"body": "?", "bodyEncoding": "base64"}', "body: is not base64"),
        (
            b'{"body": "?", "bodyEncoding": "hex"}',
            "bodyEncoding must be base64 or utf-8, not 'hex'",
        ),
        (b'{"subject": 5}', "subject: must be a string, not 5"),
        (b'{"timeToLive": "PT1H"}', "timeToLive: must be an integer, not 'PT1H'"),
        (b'{"timeToLive": -1}', "timeToLive: -1 is not a time to live"),
        (b'{"scheduledEnqueueTime": "soon"}', "scheduledEnqueueTime: 'soon' is not a time"),
        (b'{"applicationProperties": []}', "must be an object of names and values"),
        (
            b'{"applicationProperties": {"a": [1]}}',
            "'a': must be a string, a number, true, false, null or",
        ),
        (
            b'{"applicationProperties": {"a": {"type": "int", "value": "x"}}}',
            "the value 'x' is not a valid int",
        ),
        (b'{"applicationProperties": {"a": {"type": "odd", "value": "x"}}}', "the type 'odd'"),
        (b'{"body": "\\ud800"}', "cannot be encoded as UTF-8"),
        (b'{"body": ["\\ud800"]}', "cannot be encoded as UTF-8"),
    ],
)
def test_an_error_in_a_line_is_explained(
    pairbus: Run, queue: str, stdin: Feed, line: bytes, error: str
) -> None:
    stdin(line)

    done = pairbus("send", queue, "--json-lines")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("pairbus: stdin, line 1: ")
    assert error in done.err


def test_a_refusal_of_the_namespace_is_one_line(pairbus: Run, queue: str) -> None:
    assert pairbus("send", "absent", "x").err.startswith("pairbus: 'absent' does not exist in ")
    # Nobody can send to a subscription, so none is suggested.
    below = pairbus("send", "events/audit", "x").err
    assert ("two words" in below, below.endswith("; did you mean 'events'?\n")) == (False, True)
    # `send` has no --next-session.
    assert pairbus("send", "sorted", "x").err.endswith("; use --session-id\n")

    assert pairbus("send", "event", "x").err.endswith("; did you mean 'events'?\n")

    large = pairbus("send", queue, "x" * 300_000)
    start = f"pairbus: a message for {queue!r} has 300"
    assert (large.code, large.err.count("\n")) == (1, 1)
    assert large.err.startswith(start)
    assert large.err.endswith(" bytes; the maximum is 262144\n")

    nobody = "Endpoint=sb://localhost:1;SharedAccessKeyName=p;SharedAccessKey=k"
    done = pairbus("send", queue, "x", "-c", f"{nobody};UseDevelopmentEmulator=true")
    refused = "pairbus: cannot reach localhost:1: Connection refused"
    assert done == (1, "", f"{refused}; is the broker running, and is this its port?\n")


def test_a_policy_without_the_send_right_is_explained(pairbus: Run) -> None:
    policy = Policy(name="reader", key="k", rights=frozenset({Right.LISTEN}))
    with Broker(queues=["orders"], policies=[policy]) as broker:
        done = pairbus("send", "orders", "x", "-c", broker.connection_string)

    assert done.code == 1
    assert (
        "rejected policy 'reader': check the key, and that the policy has the Send right"
        in done.err
    )


def test_what_was_sent_before_a_failure_is_counted(pairbus: Run, queue: str, stdin: Feed) -> None:
    stdin(b"small\n" * 600 + b"x" * 300_000 + b"\n")

    done = pairbus("send", queue, "--lines")

    assert done.code == 1
    assert done.err.startswith("pairbus: sent 600 messages, then: ")


def test_an_interrupt_tells_what_was_sent_and_what_may_have_arrived(
    pairbus: Run, queue: str, stdin: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second batch is on its way, without an answer."""
    stdin(b"line\n" * 700)
    calls, send = counting(1), Sender.send

    def send_until_ctrl_c(self: Sender, messages: list[bytes], *, window: int) -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt
        send(self, messages, window=window)

    monkeypatch.setattr(Sender, "send", send_until_ctrl_c)
    done = pairbus("send", queue, "--lines")

    err = "pairbus: interrupted, sent 500 messages; 200 more may have arrived\n"
    assert done == (130, "", err)


def test_tls_needs_a_trusted_certificate(pairbus: Run, tmp_path: Path) -> None:
    with Broker(queues=["orders"], tls_only=True) as broker:
        text = broker.connection_string.replace(";UseDevelopmentEmulator=true", "")
        words = ("-c", text, "--ca-file", str(broker.ca_file))
        assert pairbus("send", "orders", "private", *words).code == 0
        assert "private" in pairbus("peek", "orders", *words).out
        assert "private" in pairbus("receive", "orders", "--delete", *words).out

        untrusted = pairbus("send", "orders", "private", "-c", text)
    assert untrusted.code == 1
    assert "its certificate is not trusted" in untrusted.err
