"""`pairbus entities` on a local broker, through the official administration client."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.broker import Broker, Policy, Right
from tests.cli.conftest import Run
from tests.cli.process import SECONDS, finished, started


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


# -- list


@pytest.mark.req("B-02")
def test_the_list_is_a_table_of_all_with_counts(pairbus: Run, broker: Broker) -> None:
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])

    done = pairbus("entities", "list")

    assert (done.code, done.err) == (0, "")
    assert lines(done.out) == [
        ["kind", "name", "status", "active", "dead-lettered", "scheduled"],
        ["queue", "orders", "Active", "2", "0", "0"],
        ["topic", "events", "Active", "-", "-", "0"],
        ["subscription", "events/audit", "Active", "0", "0", "-"],
    ]


def test_the_list_is_json_for_programs(pairbus: Run, broker: Broker) -> None:
    [queue, topic, subscription] = json.loads(pairbus("entities", "list", "--json").out)

    assert (queue["kind"], queue["name"], queue["activeMessageCount"]) == ("queue", "orders", 0)
    assert (topic["kind"], topic["name"], topic["subscriptionCount"]) == ("topic", "events", 1)
    assert (subscription["topic"], subscription["name"]) == ("events", "audit")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["queue"], ["orders"]),
        (["QUEUES"], ["orders"]),
        (["topics"], ["events"]),
        (["subscriptions", "events"], ["audit"]),
        (["rules", "events", "audit"], ["$Default"]),
    ],
)
def test_the_list_may_be_of_one_kind(
    pairbus: Run, broker: Broker, words: list[str], names: list[str]
) -> None:
    found = json.loads(pairbus("entities", "list", *words, "--json").out)

    assert [one["name"] for one in found] == names


def test_the_list_of_a_long_name_is_not_cut_when_a_program_reads_it(
    pairbus: Run, use: Callable[[Broker], Broker]
) -> None:
    name = "a/" * 100 + "b"
    with Broker(queues=[name]) as running:
        use(running)

        assert name in pairbus("entities", "list").out


def test_the_list_of_rules_shows_their_filters(pairbus: Run, broker: Broker) -> None:
    create = ("entities", "create", "rule", "events", "audit")
    assert pairbus(*create, "big", "--sql", "amount > 1000", "--action", "SET a = 1").code == 0
    assert pairbus(*create, "eu", "--subject", "order", "--property", "region=eu").code == 0

    done = pairbus("entities", "list", "rules", "events", "audit")

    assert done.out.splitlines() == [
        "name      type         filter                                 action",
        "$Default  Sql          1=1",
        "big       Sql          amount > 1000                          SET a = 1",
        "eu        Correlation  sys.Label = 'order' and region = 'eu'",
    ]


# -- create and show


def test_a_queue_is_created_with_its_settings_and_shown(pairbus: Run, broker: Broker) -> None:
    done = pairbus(
        *("entities", "create", "queue", "web/orders"),
        *("--lock-duration", "30s", "--requires-session", "--no-enable-batched-operations"),
        *("--requires-duplicate-detection", "--duplicate-detection-history-time-window", "1m"),
        *("--default-message-time-to-live", "14d", "--dead-lettering-on-message-expiration"),
        *("--max-delivery-count", "3", "--max-size-in-megabytes", "2048"),
        *("--forward-dead-lettered-messages-to", "orders", "--auto-delete-on-idle", "PT1H"),
        *("--user-metadata", "of the [bold]web shop[/]"),
    )
    assert done == (0, "created queue 'web/orders'\n", "")

    shown = json.loads(pairbus("entities", "show", "queue", "web/orders", "--json").out)

    assert shown["properties"] == {
        "AutoDeleteOnIdle": "PT1H",
        "DeadLetteringOnMessageExpiration": True,
        "DefaultMessageTimeToLive": "P14D",
        "DuplicateDetectionHistoryTimeWindow": "PT1M",
        "EnableBatchedOperations": False,
        "EnableExpress": False,
        "EnablePartitioning": False,
        "ForwardDeadLetteredMessagesTo": "orders",
        "ForwardTo": None,
        "LockDuration": "PT30S",
        "MaxDeliveryCount": 3,
        "MaxMessageSizeInKilobytes": 256,
        "MaxSizeInMegabytes": 2048,
        "RequiresDuplicateDetection": True,
        "RequiresSession": True,
        "Status": "Active",
        "UserMetadata": "of the [bold]web shop[/]",
    }
    assert shown["runtime"]["totalMessageCount"] == 0
    table = pairbus("entities", "show", "queue", "web/orders").out
    assert ["LockDuration", "PT30S"] in lines(table)
    assert "of the [bold]web shop[/]" in table


def test_a_topic_and_a_subscription_are_created_with_their_settings(
    pairbus: Run, broker: Broker
) -> None:
    assert pairbus(
        *("entities", "create", "topic", "news"),
        *("--max-size-in-megabytes", "2048", "--no-support-ordering", "--enable-express"),
    ) == (0, "created topic 'news'\n", "")
    assert pairbus(
        *("entities", "create", "subscription", "news", "all"),
        *("--max-delivery-count", "3", "--forward-to", "orders"),
        "--no-dead-lettering-on-filter-evaluation-exceptions",
    ) == (0, "created subscription 'all' of topic 'news'\n", "")

    topic = json.loads(pairbus("entities", "show", "topic", "news", "--json").out)
    subscription = json.loads(
        pairbus("entities", "show", "subscription", "news", "all", "--json").out
    )

    assert topic["properties"]["MaxSizeInMegabytes"] == 2048
    assert topic["properties"]["SupportOrdering"] is False
    assert topic["properties"]["EnableExpress"] is True
    assert topic["runtime"]["subscriptionCount"] == 1
    assert subscription["topic"] == "news"
    assert subscription["properties"]["MaxDeliveryCount"] == 3
    assert subscription["properties"]["ForwardTo"] == "orders"
    assert subscription["properties"]["DeadLetteringOnFilterEvaluationExceptions"] is False
    assert [rule["Name"] for rule in subscription["rules"]] == ["$Default"]


def test_a_rule_can_replace_the_default_rule(pairbus: Run, broker: Broker) -> None:
    done = pairbus(
        *("entities", "create", "rule", "events", "audit", "big"),
        *("--sql", "amount > 1000", "--replace-default"),
    )

    assert done.out.splitlines() == [
        "created rule 'big' of subscription 'events/audit'",
        "deleted rule '$Default' of subscription 'events/audit'",
    ]
    rules = json.loads(pairbus("entities", "list", "rules", "events", "audit", "--json").out)
    assert [rule["name"] for rule in rules] == ["big"]


def test_the_properties_of_a_rule_have_their_types(pairbus: Run, broker: Broker) -> None:
    words = ("a=eu", "b:int=5", "c:double=0.5", "d:boolean=True", "e=5", "f=x=y")
    options = [word for each in words for word in ("--property", each)]
    assert pairbus("entities", "create", "rule", "events", "audit", "r", *options).code == 0

    shown = json.loads(pairbus("entities", "show", "rule", "events", "audit", "r", "--json").out)

    assert shown["properties"]["CorrelationFilter"]["Properties"] == {
        "a": "eu",
        "b": 5,
        "c": 0.5,
        "d": True,
        "e": "5",
        "f": "x=y",
    }


def test_a_rule_without_conditions_matches_every_message(pairbus: Run, broker: Broker) -> None:
    assert pairbus("entities", "create", "rule", "events", "audit", "all").code == 0

    shown = pairbus("entities", "show", "rule", "events", "audit", "all").out

    assert ["SqlFilter", '{"SqlExpression":', '"1=1"}'] in lines(shown)


# -- delete


def test_named_entities_are_deleted_without_questions(pairbus: Run, broker: Broker) -> None:
    pairbus("entities", "create", "queue", "bills")

    assert pairbus("entities", "delete", "queue", "orders", "bills") == (
        0,
        "deleted 2 entities\n",
        "",
    )
    done = pairbus("entities", "delete", "rule", "events", "audit", "$Default")
    assert done.out == "deleted rule '$Default' of subscription 'events/audit'\n"
    done = pairbus("entities", "delete", "subscription", "events", "audit")
    assert done.out == "deleted subscription 'audit' of topic 'events'\n"

    assert lines(pairbus("entities", "list").out)[1:] == [
        ["topic", "events", "Active", "-", "-", "0"]
    ]


def test_all_of_a_kind_are_deleted(pairbus: Run, broker: Broker) -> None:
    pairbus("entities", "create", "queue", "bills")

    assert pairbus("entities", "delete", "queues", "--all", "--yes").out == "deleted 2 entities\n"

    assert json.loads(pairbus("entities", "list", "queues", "--json").out) == []
    done = pairbus("entities", "delete", "subscriptions", "events", "--all", "--yes")
    assert done.out == "deleted subscription 'audit' of topic 'events'\n"


def test_all_are_deleted_and_nothing_is_left(pairbus: Run, broker: Broker) -> None:
    assert pairbus("entities", "delete", "--all", "-y").out == "deleted 2 entities\n"
    assert json.loads(pairbus("entities", "list", "--json").out) == []
    assert pairbus("entities", "delete", "--all", "-y").out == "deleted 0 entities\n"


def test_a_terminal_shows_progress(
    pairbus: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes rich take this for a terminal

    done = pairbus("entities", "delete", "--all", "--yes")

    assert "Deleting" in done.err
    assert "2/2" in done.err
    assert done.out == "deleted 2 entities\n"


def test_nothing_is_deleted_if_stdin_is_not_a_terminal(
    pairbus: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)

    done = pairbus("entities", "delete", "--all")

    assert (done.code, done.out) == (2, "")
    assert "use --yes to delete without asking" in done.err
    assert len(json.loads(pairbus("entities", "list", "--json").out)) == 3


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 0), ("n", 1, 3), ("", 1, 3)])
def test_on_a_terminal_the_question_is_asked(
    pairbus: Run,
    broker: Broker,
    type_on_terminal: Callable[[str], None],
    answer: str,
    code: int,
    left: int,
) -> None:
    type_on_terminal(answer)

    done = pairbus("entities", "delete", "--all")

    assert done.code == code
    assert f"Delete 2 entities of localhost:{broker.port} with all their messages?" in done.err
    assert ("nothing was deleted" in done.err) is (code == 1)
    assert len(json.loads(pairbus("entities", "list", "--json").out)) == left


def test_a_deletion_that_fails_halfway_says_how_many_were_deleted(
    pairbus: Run, broker: Broker
) -> None:
    done = pairbus("entities", "delete", "queue", "orders", "absent", "events")

    assert done.code == 1
    assert done.err == (
        f"pairbus: deleted 1 of 3, then: queue 'absent' does not exist in localhost:{broker.port}\n"
    )


# -- what goes wrong


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["show", "queue", "absent"], "queue 'absent' does not exist in localhost:"),
        (
            ["show", "subscription", "events", "x"],
            "subscription 'x' of topic 'events' does not exist",
        ),
        (["list", "subscriptions", "absent"], "topic 'absent' does not exist in "),
        (["create", "subscription", "absent", "x"], "pairbus: topic 'absent' does not exist in "),
        (
            ["create", "rule", "events", "absent", "x"],
            "pairbus: subscription 'absent' of topic 'events' does not exist in ",
        ),
        (["create", "queue", "Orders"], "queue 'Orders' already exists in localhost:"),
        (
            ["create", "queue", "q", "--lock-duration", "PT10M"],
            " answered: queue 'q': LockDuration is PT10M, but must be between PT1S and PT5M\n",
        ),
        (
            ["create", "rule", "events", "audit", "r", "--sql", "amount >"],
            "the expression 'amount >' is not valid at line 1, column 9",
        ),
    ],
)
def test_a_refusal_of_the_namespace_is_one_line_and_exit_code_1(
    pairbus: Run, broker: Broker, words: list[str], error: str
) -> None:
    done = pairbus("entities", *words)

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("pairbus: ")
    assert done.err.count("\n") == 1
    assert error in done.err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["list", "kettles"], "KIND 'kettles' is not one of queue, topic, subscription, rule"),
        (["list", "subscriptions"], "use: subscription TOPIC; you gave: subscription"),
        (["list", "queues", "x"], "use: queue; you gave: queue x"),
        (["show", "subscription", "a"], "use: subscription TOPIC NAME; you gave"),
        (["show", "rule", "a", "b"], "use: rule TOPIC SUBSCRIPTION NAME"),
        (["show", "queue", "a", "b"], "use: queue NAME; you gave: queue a b"),
        (["delete"], "nothing to delete: give KIND NAME..., or --all"),
        (["delete", "queue"], "use: queue NAME...;"),
        (["delete", "queue", "a", "--all"], "use: queue --all; you gave: queue a"),
        (
            ["create", "queue", "q", "--lock-duration", "1 min"],
            "--lock-duration '1 min' is not a duration",
        ),
        (["create", "queue", "q", "--max-delivery-count", "x"], "'x' is not a whole number"),
        (
            ["create", "rule", "t", "s", "r", "--sql", "1=1", "--subject", "x"],
            "--sql and values that must match cannot be combined",
        ),
        (["create", "rule", "t", "s", "r", "--property", "x"], "use NAME=VALUE or NAME:TYPE=VALUE"),
        (
            ["create", "rule", "t", "s", "r", "-p", "x:uuid=12345678-1234-5678-1234-567812345678"],
            "a rule can compare only string, boolean, int",
        ),
        (["create", "rule", "t", "s", "r", "-p", "x:int=a"], "'a' is not a valid int"),
        (["create", "rule", "t", "s", "r", "-p", "x:timestamp=0"], "use a time such as 2030-12-"),
        (["create", "queue", "\udcff"], "'\\udcff' is not a valid name of an entity"),
        (["create", "queue", "q", "--forward-to", "x://["], "queue 'q' cannot be created: Invalid"),
        (
            ["create", "queue", "q", "--forward-to", "\udcff"],
            "queue 'q' cannot be created: 'utf-8'",
        ),
        (["list", "subscriptions", "\udcff"], "is not a valid name of an entity: it is not UTF-8"),
        (["create", "queue", "q", "--lock-duration", "30"], "'30' has no unit: use 30s"),
        (["list", "--ca-file", "absent.pem"], "--ca-file absent.pem: cannot be read: No such"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(
    pairbus: Run, broker: Broker, words: list[str], error: str
) -> None:
    done = pairbus("entities", *words)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("pairbus: ")
    assert done.err.count("\n") == 1
    assert error in done.err


def test_a_namespace_must_be_named(pairbus: Run) -> None:
    done = pairbus("entities", "list")

    assert done.code == 2
    assert (
        "which namespace? Give its connection string or host name with -c, or in PAIRBUS_PRIMARY"
        in done.err
    )


def test_a_namespace_that_is_down_is_reported_at_once(pairbus: Run) -> None:
    with Broker() as gone:
        text = gone.connection_string

    done = pairbus("entities", "list", "-c", text)

    assert done.code == 1
    assert done.err == (
        f"pairbus: cannot reach localhost:{gone_port(text)}: Connection refused; is the broker "
        "running, and is this its port?\n"
    )


@pytest.mark.parametrize("command", ["show", "delete"])
def test_a_mistyped_name_gets_a_suggestion(pairbus: Run, broker: Broker, command: str) -> None:
    ask = ("-c", broker.connection_string)
    where = f"does not exist in localhost:{broker.port}"

    queue = pairbus("entities", command, "queue", "ordrs", *ask)
    other = pairbus("entities", command, "queue", "nothing-like-it", *ask)
    no_topic = pairbus("entities", command, "subscription", "absent", "audit", *ask)

    assert queue == (1, "", f"pairbus: queue 'ordrs' {where}; did you mean 'orders'?\n")
    assert other == (1, "", f"pairbus: queue 'nothing-like-it' {where}\n")
    assert "did you mean" not in no_topic.err


def gone_port(connection_string: str) -> str:
    return connection_string.partition("localhost:")[2].partition(";")[0]


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (
            ("SAS_KEY_VALUE", "wrong"),
            "rejected policy 'RootManageSharedAccessKey': check the key, and that the policy has "
            "the Manage right\n",
        ),
        (("RootManage", "Nobody"), "rejected policy 'NobodySharedAccessKey'"),
    ],
)
def test_the_error_for_a_wrong_key_does_not_repeat_it(
    pairbus: Run, broker: Broker, broken: tuple[str, str], error: str
) -> None:
    done = pairbus("entities", "list", "-c", broker.connection_string.replace(*broken))

    assert done.code == 1
    assert error in done.err
    assert "wrong" not in done.err


def test_a_policy_without_the_manage_right_is_explained(pairbus: Run) -> None:
    policy = Policy(name="shop", key="k", rights=frozenset({Right.SEND, Right.LISTEN}))
    with Broker(policies=[policy]) as running:
        done = pairbus("entities", "list", "-c", running.connection_string)

    assert done.code == 1
    assert "policy 'shop'" in done.err
    assert "Manage" in done.err


# -- TLS


def test_a_ca_file_makes_a_tls_only_broker_trusted(pairbus: Run) -> None:
    with Broker(queues=["orders"], tls_only=True) as running:
        words = ("entities", "list", "queues", "-c", running.connection_string)

        trusted = pairbus(*words, "--ca-file", str(running.ca_file))
        stranger = pairbus(*words)

    assert "orders" in trusted.out
    assert (stranger.code, stranger.out) == (1, "")
    assert "its certificate is not trusted" in stranger.err
    assert "--ca-file" in stranger.err


def test_proxies_of_the_environment_are_not_used_for_a_local_broker(
    pairbus: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://192.0.2.1:9")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere/ca.pem")

    assert pairbus("entities", "list", "queues").code == 0


# -- a real process


def test_a_process_prints_its_answer_and_no_warnings(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "default")
    done = finished("entities", "list", "queues")

    assert (done.returncode, done.stderr) == (0, "")
    assert lines(done.stdout)[1][:3] == ["queue", "orders", "Active"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_broken_pipe_gives_no_traceback(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with started("entities", "list") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()

        assert (process.stderr.read(), process.wait(SECONDS)) == ("", 1)


def test_a_request_to_a_local_broker_is_not_retried(pairbus: Run, broker: Broker) -> None:
    with broker.faults.cannot_manage() as fault:
        done = pairbus("entities", "list", "queues")

        assert done.code == 1
        assert f"localhost:{broker.port} answered: " in done.err
        assert fault.hits == 1


def test_json_says_what_was_created_and_deleted(pairbus: Run, broker: Broker) -> None:
    made = pairbus("entities", "create", "queue", "new", "--json")
    assert json.loads(made.out) == {"created": {"kind": "queue", "name": "new"}}
    rule = ("entities", "create", "rule", "events", "audit", "all")
    answer = json.loads(pairbus(*rule, "--replace-default", "--json").out)
    assert answer["created"] == {
        "kind": "rule",
        "topic": "events",
        "subscription": "audit",
        "name": "all",
    }
    assert answer["deleted"]["name"] == "$Default"

    gone = pairbus("entities", "delete", "queue", "new", "orders", "--json")
    assert [one["name"] for one in json.loads(gone.out)["deleted"]] == ["new", "orders"]


def test_the_name_of_another_kind_is_not_found(pairbus: Run, broker: Broker) -> None:
    done = pairbus("entities", "show", "queue", "events")

    assert done.code == 1
    assert "queue 'events' does not exist in " in done.err
    assert done.err.endswith(": another kind of entity has that name\n")
