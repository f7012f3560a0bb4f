"""`pairbus outbox`: for the operator, when the application does not run any more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.client.outbox_file import OutboxFile
from pairbus.client.sdk.encoded import encode
from tests.client.fakes import plain_client

pytestmark = pytest.mark.req("X-04")

SENDER = plain_client().get_queue_sender("q")


@pytest.fixture
def file(tmp_path):
    """Three messages that wait, and one that is held."""
    path = tmp_path / "outbox.db"
    outbox = OutboxFile(path, namespace="localhost", clock=lambda: 1_700_000_000.0)
    put(outbox, "orders", "1", "2", "refused")
    put(outbox, "events", "3")
    _, _, refused = outbox.oldest("orders", count=3, bytes_max=10**6)
    outbox.hold([refused], "too large")
    outbox.close()
    return str(path)


def put(outbox: OutboxFile, entity: str, *ids: str) -> None:
    messages = [
        ServiceBusMessage(f"body {each}", message_id=each, application_properties={"n": 1})
        for each in ids
    ]
    outbox.put(entity, [(str(each.message_id), encode(SENDER, each)) for each in messages])


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def left(file: str, pairbus) -> list[object]:
    return [each["messageId"] for each in lines(pairbus("outbox", "list", file, "--json").out)]


def arrived(broker, queue: str = "orders") -> list[str]:
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        return [str(each.message_id) for each in receiver.peek_messages(100)]


def test_list_shows_what_waits_and_what_is_held(pairbus, file):
    done = pairbus("outbox", "list", file)

    assert done.code == 0
    header, first, second, third, fourth = done.out.splitlines()
    assert header.split() == ["stored", "entity", "message", "id", "state", "size"]
    assert first.split()[:4] == ["2023-11-14T22:13:20.000Z", "orders", "1", "waits"]
    assert "held: too large" in third
    assert fourth.split()[1:3] == ["events", "3"]
    assert second


def test_a_message_that_cannot_be_read_is_shown_with_its_bytes(pairbus, tmp_path):
    outbox = OutboxFile(tmp_path / "outbox.db", namespace="localhost")
    outbox.put("orders", [("1", b"\xff")])
    outbox.close()

    [shown] = lines(pairbus("outbox", "show", str(tmp_path / "outbox.db"), "--json").out)

    assert "a message of 'orders' cannot be read" in shown["unreadable"]
    assert shown["encodedMessage"] == "/w=="


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ([], ["1", "2", "refused", "3"]),
        (["--entity", "ORDERS"], ["1", "2", "refused"]),
        (["--held"], ["refused"]),
        (["--message-id", "2"], ["2"]),
        (["--count", "1"], ["1"]),
    ],
)
def test_messages_are_selected(pairbus, file, words, ids):
    done = pairbus("outbox", "list", file, "--json", *words)

    assert [each["messageId"] for each in lines(done.out)] == ids


def test_list_json(pairbus, file):
    done = pairbus("outbox", "list", file, "--json", "--held")

    [message] = lines(done.out)
    size = message.pop("size")
    assert isinstance(size, int)
    assert message == {
        "entity": "orders",
        "messageId": "refused",
        "stored": "2023-11-14T22:13:20.000Z",
        "state": "held",
        "reason": "too large",
    }


def test_an_empty_list_says_so(pairbus, file):
    done = pairbus("outbox", "list", file, "--entity", "other")

    assert (done.code, done.out) == (0, "")
    assert "no matching messages" in done.err


def test_show_has_properties_and_body(pairbus, file):
    done = pairbus("outbox", "show", file, "--message-id", "2")
    [message] = lines(pairbus("outbox", "show", file, "--message-id", "2", "--json").out)

    assert "messageId: 2" in done.out
    assert "applicationProperties.n: 1" in done.out
    assert done.out.rstrip().endswith("body 2")
    assert message["body"] == "body 2"
    assert message["state"] == "waits"
    assert message["applicationProperties"] == {"n": 1}


def test_show_of_nothing_fails(pairbus, file):
    done = pairbus("outbox", "show", file, "--message-id", "9")

    assert done.code == 1
    assert "has no matching message" in done.err


def test_drain_sends_what_waits_in_order_and_deletes_it(pairbus, broker, file):
    done = pairbus("outbox", "drain", file)

    assert (done.code, done.out) == (0, "sent 3 messages\n")
    assert arrived(broker) == ["1", "2"]
    assert left(file, pairbus) == ["refused"]


def test_drain_of_what_is_held(pairbus, broker, file):
    done = pairbus("outbox", "drain", file, "--held", "--json")

    assert json.loads(done.out) == {"drained": 1, "left": 0}
    assert arrived(broker) == ["refused"]
    assert left(file, pairbus) == ["1", "2", "3"]


def test_an_entity_that_is_missing_keeps_its_messages_and_the_others_leave(pairbus, broker, file):
    outbox = OutboxFile(Path(file))
    put(outbox, "missing", "lost", "lost too")
    outbox.close()

    done = pairbus("outbox", "drain", file, "--json")

    assert done.code == 1
    assert json.loads(done.out) == {"drained": 3, "left": 2}
    assert "2 messages were not sent: " in done.err
    assert "missing" in done.err
    assert left(file, pairbus) == ["refused", "lost", "lost too"]


def test_a_namespace_that_does_not_answer_is_named_and_everything_stays(pairbus, broker, file):
    with broker.faults.unreachable():
        done = pairbus("outbox", "drain", file)

    assert done.code == 1
    assert done.out == "sent 0 messages\n"
    assert "3 messages were not sent: " in done.err
    assert left(file, pairbus) == ["1", "2", "refused", "3"]


def test_drain_refuses_another_namespace(pairbus, broker, tmp_path):
    path = tmp_path / "other.db"
    outbox = OutboxFile(path, namespace="contoso")
    put(outbox, "orders", "1")
    outbox.close()

    done = pairbus("outbox", "drain", str(path))
    assert done.code == 2
    assert "are for namespace 'contoso', and this is 'localhost'" in done.err

    assert pairbus("outbox", "drain", str(path), "--primary-name", "contoso").code == 0
    assert arrived(broker) == ["1"]


def test_purge_deletes_what_is_selected(pairbus, file):
    dry = pairbus("outbox", "purge", file, "--held", "--dry-run")
    assert dry.out == "1 message would be deleted; nothing was changed\n"
    assert len(left(file, pairbus)) == 4

    done = pairbus("outbox", "purge", file, "--held", "--yes", "--json")
    assert json.loads(done.out) == {"purged": 1, "dryRun": False}
    assert left(file, pairbus) == ["1", "2", "3"]


def test_purge_asks_first(pairbus, file, stdin):
    stdin(b"")

    done = pairbus("outbox", "purge", file)

    assert done.code == 2
    assert "use --yes" in done.err
    assert len(left(file, pairbus)) == 4


def test_a_file_that_is_in_use_is_named(pairbus, file):
    outbox = OutboxFile(Path(file))
    outbox.open()

    done = pairbus("outbox", "list", file)

    outbox.close()
    assert done.code == 1
    assert "is in use by another client or process" in done.err


@pytest.mark.parametrize("command", ["list", "show", "drain", "purge"])
def test_a_file_that_is_missing_is_a_usage_error_and_is_not_created(
    pairbus, broker, tmp_path, command
):
    path = tmp_path / "missing.db"

    done = pairbus("outbox", command, str(path))

    assert done.code == 2
    assert f"cannot read {path}: No such file or directory" in done.err
    assert not path.exists()


def test_a_file_that_cannot_be_looked_at_is_a_usage_error(pairbus):
    path = "x" * 300

    assert pairbus("outbox", "list", path) == (
        *(2, ""),
        f"pairbus: cannot read {path}: File name too long\n",
    )


def test_a_file_that_is_something_else_is_refused(pairbus, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("hello " * 200)

    done = pairbus("outbox", "list", str(path))

    assert done.code == 1
    assert f"{path} is not the file of an outbox" in done.err


def test_a_folder_is_a_usage_error(pairbus, tmp_path):
    done = pairbus("outbox", "list", str(tmp_path))

    assert done.code == 2
    assert f"{tmp_path} is a folder: give the file of the outbox" in done.err
