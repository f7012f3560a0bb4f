"""Events are facts: values that compare, cannot be changed, and name their namespace."""

from __future__ import annotations

import dataclasses
import inspect
import pickle

import pytest

from pairbus import events
from pairbus.events import Event

KINDS = [
    kind
    for _, kind in inspect.getmembers(events, inspect.isclass)
    if issubclass(kind, Event) and not kind.__subclasses__()
]
SAMPLES: dict[str, object] = {
    "str": "orders",
    "str | None": "contoso/x-servicebus-transfer/0",
    "tuple[str, ...]": ("a", "b"),
    "float": 1.5,
    "int": 3,
    "bool": True,
    "BaseException": OSError("gone"),
    "BaseException | None": None,
}


def sample(kind: type[Event]) -> Event:
    return kind(**{field.name: SAMPLES[str(field.type)] for field in dataclasses.fields(kind)})


def test_these_are_all_that_can_happen() -> None:
    assert sorted(kind.__name__ for kind in KINDS) == [
        "BacklogReadmitted",
        "BacklogWithdrawn",
        "Calmed",
        "Closed",
        "Diverted",
        "FailBackDelayed",
        "FailedBack",
        "FailedOver",
        "Flapping",
        "HeldInOutbox",
        "LeftOutbox",
        "OutboxOpened",
        "OutboxStalled",
        "Paired",
        "PingSent",
        "PrimaryFailed",
        "Recovered",
        "Returning",
        "SendFailed",
        "StoredInOutbox",
        "SyphonFailed",
        "SyphonRestarted",
        "Throttled",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_is_a_value_that_names_its_namespace(kind: type[Event]) -> None:
    event = sample(kind)

    assert event == sample(kind)
    assert event != dataclasses.replace(event, namespace="another")
    assert event.namespace == "orders"
    assert repr(event).startswith(f"{kind.__name__}(namespace='orders'")


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_cannot_be_changed(kind: type[Event]) -> None:
    event = sample(kind)

    with pytest.raises(dataclasses.FrozenInstanceError):
        event.namespace = "another"  # type: ignore[misc]
    assert not hasattr(event, "__dict__")


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_is_made_by_names_only(kind: type[Event]) -> None:
    with pytest.raises(TypeError, match="positional"):
        kind("contoso")  # type: ignore[call-arg]


def test_an_event_can_be_handed_to_another_process() -> None:
    event = events.FailedBack(namespace="contoso", path="orders", reason="ping", after_seconds=2.0)

    assert pickle.loads(pickle.dumps(event)) == event
