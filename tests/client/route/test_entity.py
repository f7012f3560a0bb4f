from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.client.route.entity import Agenda


@dataclass(eq=False)
class Due:
    """An entity, as far as the agenda needs it."""

    path: str
    wake_at: float | None = None


class Entities:
    def __init__(self) -> None:
        self.agenda: Any = Agenda()
        self.by_path: dict[str, Due] = {}

    def set(self, path: str, at: float | None) -> None:
        entity = self.by_path.setdefault(path, Due(path))
        entity.wake_at = at
        self.agenda.update(entity)

    def take(self, *, now: float) -> list[str]:
        taken = self.agenda.take(now=now)
        for entity in taken:
            entity.wake_at = None
        return [entity.path for entity in taken]

    @property
    def next(self) -> float | None:
        moment: float | None = self.agenda.next
        return moment


@pytest.fixture
def entities() -> Entities:
    return Entities()


def test_many_changes_cost_no_memory(entities):
    entities.set("steady", 1e9)
    for moment in range(100_000):
        entities.set("fickle", float(moment))
        entities.set("fickle", None)

    assert len(entities.agenda._heap) < 100
    assert entities.take(now=1e9) == ["steady"]


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 20))),
            st.integers(0, 20),
        ),
        max_size=200,
    )
)
def test_it_agrees_with_a_plain_dict(steps):
    entities, plain = Entities(), {}
    for step in steps:
        if isinstance(step, tuple):
            path, at = step
            entities.set(path, at)
            plain[path] = at
        else:
            due = sorted((at, path) for path, at in plain.items() if at is not None and at <= step)
            assert entities.take(now=step) == [path for _, path in due]
            plain.update((path, None) for _, path in due)
        assert entities.next == min((at for at in plain.values() if at is not None), default=None)
