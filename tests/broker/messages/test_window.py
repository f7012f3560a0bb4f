"""The window gives out what a sorted list of everything available would, whatever its size."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pairbus.broker.messages import window as window_module
from pairbus.broker.messages.window import Window
from tests.broker.world import stored_message


class Disk:
    """What is committed and available, as the store would read it: new objects at each reading."""

    def __init__(self, *sequences):
        self.sequences = set(sequences)
        self.reads = []

    def read(self, after, upto, count):
        self.reads.append((after, upto, count))
        found = sorted(n for n in self.sequences if after < n <= upto)
        return [stored_message(n) for n in found[:count]]


def drain(window):
    taken = []
    while found := window.take(2):
        for one in found:
            one.lock = object()
            taken.append(one.sequence)
    return taken


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(window_module, "COUNT_MAX", 3)
    monkeypatch.setattr(window_module, "READ_COUNT", 2)


def test_messages_on_the_disk_are_read_in_order_and_in_portions(small):
    disk = Disk(1, 3, 4, 8, 9)
    window = Window({}, disk.read, last_committed=9)

    assert drain(window) == [1, 3, 4, 8, 9]
    assert disk.reads == [(0, 9, 2), (3, 9, 2), (8, 9, 2)]


def test_large_messages_are_taken_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(window_module, "TAKE_BYTES", 25)
    window = Window({}, Disk().read, last_committed=0)
    for sequence in range(1, 6):
        window.arrive(stored_message(sequence), wanted=True)

    assert [len(window.take(10)) for _ in range(2)] == [3, 2]


def test_an_empty_window_asks_the_disk_once():
    disk = Disk()
    window = Window({}, disk.read, last_committed=7)

    assert window.take(1) == []
    assert window.take(1) == []
    assert len(disk.reads) == 1


def test_a_wanted_arrival_needs_no_disk():
    disk = Disk()
    window = Window({}, disk.read, last_committed=0)

    for sequence in (1, 2):
        window.arrive(stored_message(sequence), wanted=True)

    assert drain(window) == [1, 2]
    assert disk.reads == []


def test_a_full_window_leaves_the_rest_to_the_disk(small):
    disk, held = Disk(), {}
    window = Window(held, disk.read, last_committed=0)

    for sequence in range(1, 8):
        disk.sequences.add(sequence)
        window.arrive(stored_message(sequence), wanted=True)

    assert sorted(held) == [1, 2, 3]
    assert drain(window) == [1, 2, 3, 4, 5, 6, 7]


def test_bytes_fill_a_window_too(monkeypatch):
    monkeypatch.setattr(window_module, "BYTES_MAX", 100)
    disk, held = Disk(1, 2, 3), {}
    window = Window(held, disk.read, last_committed=0)

    for sequence in (1, 2, 3):
        window.arrive(stored_message(sequence, size=60), wanted=True)

    assert sorted(held) == [1, 2]
    assert drain(window) == [1, 2, 3]


def test_locked_and_busy_messages_are_passed_over():
    held = {}
    window = Window(held, Disk().read, last_committed=0)
    for sequence in (1, 2, 3):
        window.arrive(stored_message(sequence), wanted=True)
    held[1].lock = object()
    held[2].busy = True

    assert drain(window) == [3]


def test_messages_that_vanish_from_the_window_do_not_fill_it_for_ever(monkeypatch):
    monkeypatch.setattr(window_module, "BYTES_MAX", 100)
    disk, held = Disk(), {}
    window = Window(held, disk.read, last_committed=0)
    for sequence in range(1, 50):
        window.arrive(stored_message(sequence), wanted=True)
        if sequence % 2:
            held.pop(sequence, None)  # expired where it lay
        else:
            disk.sequences.add(sequence)
            window.take(1)[0].lock = object()
            disk.sequences.discard(sequence)
            held.pop(sequence)

    window.arrive(stored_message(51), wanted=True)

    assert 51 in held


class WindowMachine(RuleBasedStateMachine):
    """Against a sorted list. The disk is written before the window hears of it, as in a queue."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(window_module, "COUNT_MAX", 4)
        self.patch.setattr(window_module, "READ_COUNT", 2)
        self.patch.setattr(window_module, "BYTES_MAX", 70)
        self.disk = Disk()
        self.held = {}
        self.last = 0
        self.lent = {}

    def teardown(self):
        self.patch.undo()

    @initialize(there=st.sets(st.integers(1, 12)))
    def start(self, there):
        self.disk.sequences = set(there)
        self.last = max(there, default=0)
        self.window = Window(self.held, self.disk.read, last_committed=self.last)

    @property
    def available(self):
        return sorted(self.disk.sequences - self.lent.keys())

    @rule(gap=st.integers(1, 3), wanted=st.booleans(), size=st.sampled_from([10, 30]))
    def a_new_one_arrives(self, gap, wanted, size):
        self.last += gap
        self.disk.sequences.add(self.last)
        self.window.arrive(stored_message(self.last, size=size), wanted=wanted)

    @rule(data=st.data(), wanted=st.booleans())
    def one_arrives_out_of_order(self, data, wanted):
        gaps = sorted(set(range(1, self.last)) - self.disk.sequences)
        if gaps:
            number = data.draw(st.sampled_from(gaps))
            self.disk.sequences.add(number)
            self.window.arrive(stored_message(number), wanted=wanted)

    @rule(count=st.integers(1, 4))
    def take(self, count):
        expected = list(self.available)[:count]

        found = self.window.take(count)

        assert [one.sequence for one in found] == expected[: len(found)]
        assert bool(found) == bool(expected)
        for one in found:
            one.lock = object()
            self.lent[one.sequence] = one

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def give_back(self, data):
        found = self.lent.pop(data.draw(st.sampled_from(sorted(self.lent))))
        found.lock = None
        self.window.give_back(found)

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def complete(self, data):
        number = data.draw(st.sampled_from(sorted(self.lent)))
        del self.lent[number], self.held[number]
        self.disk.sequences.discard(number)

    @precondition(lambda self: self.available)
    @rule(data=st.data())
    def one_expires_where_it_lies(self, data):
        number = data.draw(st.sampled_from(self.available))
        self.held.pop(number, None)
        self.disk.sequences.discard(number)

    @rule()
    def clear(self):
        self.window.clear()


TestWindowAgainstASortedList = WindowMachine.TestCase
TestWindowAgainstASortedList.settings = settings(stateful_step_count=40)
