"""Who gets a slot, and who loses one."""

import asyncio

import pytest

from pairbus.broker.connection_limit import ConnectionLimit
from pairbus.broker.entities.namespace_options import Limits

MANY = "10.0.0.1"
FEW = "10.0.0.2"


class Owner:
    def __init__(self):
        self.is_closed = False

    def shutdown(self):
        self.is_closed = True


class Door:
    """A limit, and the connections that came through it."""

    def __init__(self, **limits):
        self.replaced = []
        self.limit = ConnectionLimit(Limits(**limits), on_replaced=self.replaced.append)
        self.owners = {}

    def enter(self, address):
        slot = self.limit.acquire((address, 1234 + len(self.limit)))
        self.owners[slot] = Owner()
        slot.occupy(self.owners[slot])
        return slot

    def closed(self, slots):
        return [self.owners[slot].is_closed for slot in slots]


def in_a_loop(test):
    async def run():
        test()

    return lambda: asyncio.run(run())


@in_a_loop
def test_a_newcomer_gets_the_oldest_slot_of_the_address_with_the_most_strangers():
    door = Door(connections_max=2, unauthenticated_max=3)
    slots = [door.enter(MANY)]
    assert slots[0].authenticated()
    slots += [door.enter(address) for address in (FEW, MANY, MANY, "10.0.0.3")]

    assert door.closed(slots) == [False, False, True, False, False]
    assert door.replaced == [slots[2]]
    assert slots[2].peer == (MANY, 1236)
    slots[2].free()  # its socket is closed a moment later
    assert len(door.limit) == 4


@in_a_loop
def test_an_address_with_too_many_strangers_replaces_its_own():
    door = Door(unauthenticated_max=10, unauthenticated_per_address_max=2)
    slots = [door.enter(address) for address in (FEW, MANY, MANY, MANY)]

    assert door.closed(slots) == [False, True, False, False]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("2001:db8::1", "2001:db8::2:3", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_a_network_of_64_bits_counts_as_one_address(one, other, is_same):
    @in_a_loop
    def run():
        door = Door(unauthenticated_per_address_max=1)
        slots = [door.enter(one), door.enter(other)]
        assert door.closed(slots) == [is_same, False]

    run()


@in_a_loop
def test_clients_with_a_token_and_those_without_do_not_take_each_others_slots():
    door = Door(connections_max=2, unauthenticated_max=1)
    known = []
    for _ in range(2):
        known.append(door.enter(MANY))
        assert known[-1].authenticated()

    late = door.enter(MANY)
    assert not late.authenticated()
    health = door.enter(FEW)

    assert door.closed([*known, late, health]) == [False, False, True, False]
    known[0].free()
    assert health.authenticated()
