"""The options of `pairbus broker` become namespaces, or one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pairbus.broker.entities.namespace_options import NamespaceOptions
from pairbus.broker.entities.policies import Policy, Right, default_policy
from pairbus.cli.broker.namespaces import (
    namespaces_from_options,
    parse_namespace,
    parse_policy,
    read_policies,
)
from pairbus.cli.broker.options import BrokerOptions, Sku
from pairbus.errors import ConfigError, UsageError

CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [{"Name": "orders", "Properties": {"MaxDeliveryCount": 3}}],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


def gather(**options: Any) -> list[NamespaceOptions]:
    return namespaces_from_options(BrokerOptions(**options))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "Config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_without_options_there_is_one_namespace_with_the_well_known_key() -> None:
    (options,) = gather(memory=True)

    assert (options.name, options.port, options.data) == ("local", 0, None)
    assert options.policies == (default_policy(),)


def test_queues_policies_and_data_apply_to_every_namespace(tmp_path: Path) -> None:
    gathered = gather(
        namespace=("east:5672", "west"),
        queue=("a", "b", "a"),
        policy=("p:k:Send",),
        data=tmp_path,
    )

    assert [(o.name, o.port, o.data) for o in gathered] == [
        ("east", 5672, tmp_path),
        ("west", 0, tmp_path),
    ]
    for options in gathered:
        assert [queue.name for queue in options.queues] == ["a", "b"]
        assert [policy.name for policy in options.policies] == ["p"]


def test_options_add_to_the_namespaces_of_a_file(config: Path) -> None:
    gathered = gather(
        config=config, namespace=("SbEmulatorNs:5672", "extra"), queue=("Orders", "bills")
    )

    assert [(o.name, o.port) for o in gathered] == [("sbemulatorns", 5672), ("extra", 0)]
    assert {o.administration_port for o in gathered} == {None}
    assert [(q.name, q.max_delivery_count) for q in gathered[0].queues] == [
        ("orders", 3),
        ("bills", 10),
    ]


def test_topics_and_subscriptions_apply_to_every_namespace() -> None:
    gathered = gather(
        namespace=("east", "west"),
        topic=("news", "events"),
        subscription=("events/audit", "web/shop/all", "events/Subscriptions/other"),
        sku=Sku.PREMIUM,
    )

    for options in gathered:
        assert options.sku == "Premium"
        assert [entity.name for entity in options.topics] == [
            "news",
            "events",
            "web/shop",
            "events/Subscriptions/audit",
            "web/shop/Subscriptions/all",
            "events/Subscriptions/other",
        ]


def test_the_file_wins_for_a_topic_that_it_describes(tmp_path: Path) -> None:
    path = tmp_path / "Config.json"
    topic = {"Name": "events", "Properties": {"MaxSizeInMegabytes": 5}}
    subscription = {"Name": "audit", "Properties": {"MaxDeliveryCount": 3}}
    topics = [topic | {"Subscriptions": [subscription]}]
    path.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "n", "Topics": topics}]}}))

    (options,) = gather(config=path, topic=("Events",), subscription=("EVENTS/audit", "events/b"))

    assert [entity.name for entity in options.topics] == [
        "events",
        "events/Subscriptions/audit",
        "events/Subscriptions/b",
    ]
    assert options.topics[0].max_size_in_megabytes == 5
    assert options.topics[1].max_delivery_count == 3


@pytest.mark.parametrize(
    ("namespaces", "expected"),
    [
        ((), ("sbemulatorns", 5672, 5300)),
        (("SbEmulatorNs",), ("sbemulatorns", 5672, 5300)),
        (("shop",), ("shop", 5672, 5300)),
        (("shop:5672",), ("shop", 5672, 5300)),
        (("shop:5673",), ("shop", 5673, None)),
        (("sbemulatorns:0",), ("sbemulatorns", 0, None)),
    ],
    ids=str,
)
def test_a_file_of_one_namespace_has_the_ports_of_the_emulator_and_can_be_renamed(
    config: Path, namespaces: tuple[str, ...], expected: tuple[str, int, int | None]
) -> None:
    (options,) = gather(config=config, namespace=namespaces)

    assert (options.name, options.port, options.administration_port) == expected
    assert [queue.name for queue in options.queues] == ["orders"]


def test_a_second_port_can_be_chosen_for_one_namespace_alone(config: Path) -> None:
    (options,) = gather(config=config, administration_port=8080)
    assert (options.port, options.administration_port) == (5672, 8080)
    (options,) = gather(administration_port=0)
    assert (options.port, options.administration_port) == (0, 0)
    with pytest.raises(UsageError, match="needs a broker with one namespace"):
        gather(namespace=("a", "b"), administration_port=0)


def test_a_name_that_the_file_does_not_have_starts_no_empty_namespace(
    config: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="no namespace of this name; its namespaces are sbemul"):
        gather(config=config, namespace=("east", "west"))
    several = tmp_path / "several.json"
    spaces = [{"Name": "east"}, {"Name": "west"}]
    several.write_text(json.dumps({"UserConfig": {"Namespaces": spaces}}))
    with pytest.raises(UsageError, match=r"--namespace wets: .*its namespaces are east, west"):
        gather(config=several, namespace=("wets:5672",))
    gathered = gather(config=several, namespace=("west:5672",))
    assert [(o.name, o.port, o.administration_port) for o in gathered] == [
        ("east", 0, None),
        ("west", 5672, None),
    ]


@pytest.mark.parametrize(
    ("text", "expected"), [("a", ("a", None)), ("a-1:0", ("a-1", 0)), ("b:65535", ("b", 65535))]
)
def test_a_namespace_is_a_name_and_maybe_a_port(
    text: str, expected: tuple[str, int | None]
) -> None:
    assert parse_namespace(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a:", "'' is not a port"),
        ("a:x", "'x' is not a port between 0 and 65535"),
        ("a:-1", "'-1' is not a port"),
        ("a:٣", "is not a port"),
        ("a:65536", "65536 is not between"),
        ("a:1:2", "'1:2' is not a port"),
        (":5672", "namespace name '' is not valid"),
        ("1st", "namespace name '1st' is not valid"),
    ],
)
def test_an_invalid_namespace_is_explained(text: str, reason: str) -> None:
    with pytest.raises((ConfigError, UsageError), match=reason):
        parse_namespace(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("app:k=:Send", Policy(name="app", key="k=", rights=frozenset({Right.SEND}))),
        ("a:k:manage, LISTEN", Policy(name="a", key="k", rights=frozenset({"Manage", "Listen"}))),
        ("a:k:e:y:Send", Policy(name="a", key="k:e:y", rights=frozenset({Right.SEND}))),
    ],
)
def test_a_policy_is_name_key_and_rights(text: str, expected: Policy) -> None:
    assert parse_policy(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be NAME:KEY:RIGHTS"),
        ("app", "--policy app: must be NAME:KEY:RIGHTS"),
        ("app:s3cret", "must be NAME:KEY:RIGHTS"),
        ("app::Send", "must be NAME:KEY:RIGHTS"),
        (":s3cret:Send", "must be NAME:KEY:RIGHTS"),
        ("app:s3cret:", "must be NAME:KEY:RIGHTS"),
        ("app:s3cret:Read", "'Read' is not a right; use Manage, Send, Listen"),
        ("app:s3cret:Send,", "'' is not a right"),
        ("app:s3cret;x:Send", "must not contain ';'"),
    ],
)
def test_an_invalid_policy_is_explained_without_its_key(text: str, reason: str) -> None:
    with pytest.raises((ConfigError, UsageError), match=reason) as error:
        parse_policy(text)
    assert "s3cret" not in str(error.value).partition("such as")[0]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"namespace": ("a", "A:1")}, "--namespace A is given twice"),
        ({"policy": ("a:k:Send", "a:l:Send")}, "--policy a is given twice"),
        ({"topic": ("no good",)}, "topic name 'no good' is not valid"),
        ({"subscription": ("events",)}, "--subscription 'events': must be TOPIC/NAME"),
        ({"subscription": ("/audit",)}, "must be TOPIC/NAME"),
        ({"subscription": ("events/no good",)}, "is not valid"),
        ({"queue": ("a",), "topic": ("A",)}, "topic 'A' is defined twice"),
        ({"queue": ("no good",)}, "queue name 'no good' is not valid"),
        ({"config": Path("/nowhere/Config.json")}, "/nowhere/Config.json: cannot be read"),
    ],
)
def test_contradictions_are_refused(words: dict[str, object], reason: str) -> None:
    with pytest.raises((ConfigError, UsageError), match=reason):
        gather(**words)


def test_policies_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "policies.txt"
    file.write_text("# the shop\napp:s3cret:Send,Listen\n\n  ops:t0p:Manage  \n")

    assert read_policies(None) == []
    assert [parse_policy(line).name for line in read_policies(file)] == ["app", "ops"]


def test_a_file_without_policies_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policies.txt"
    with pytest.raises(UsageError, match=r"policies.txt: cannot be read: No such file"):
        read_policies(file)
    file.write_text("# nothing\n")
    with pytest.raises(UsageError, match="has no policy; write NAME:KEY:RIGHTS"):
        read_policies(file)
    file.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        read_policies(file)
