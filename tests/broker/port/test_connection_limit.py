"""Who gets a slot when all are taken."""

import asyncio

from pairbus.broker.port.connection_limit import ConnectionLimit


class Owner:
    def __init__(self):
        self.is_closed = False

    def shutdown(self):
        self.is_closed = True


def test_a_newcomer_gets_the_oldest_slot_of_the_address_with_the_most_strangers():
    async def run():
        limit = ConnectionLimit(4)
        addresses = ["known", "few", "many", "many"]
        slots = [limit.acquire(address) for address in addresses]
        owners = [Owner() for _ in slots]
        for slot, owner in zip(slots, owners, strict=True):
            slot.occupy(owner)
        slots[0].authenticated()

        assert limit.acquire("new") is not None
        assert [owner.is_closed for owner in owners] == [False, False, True, False]
        slots[2].free()  # its socket is closed a moment later
        assert len(limit) == 4

        for slot in limit:
            slot.authenticated()
        assert limit.acquire("new") is None
        slots[0].free()
        assert limit.acquire("new") is not None

    asyncio.run(run())
