"""All spellings of an address name the same entity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.links.paths import Path, parse
from pairbus.broker.messages.lifecycle import MailboxKind

MAIN, DEAD, TRANSFER = MailboxKind.MAIN, MailboxKind.DEAD_LETTER, MailboxKind.TRANSFER_DEAD_LETTER

SPELLINGS = {
    "orders": ("orders", MAIN, False),
    "/orders": ("orders", MAIN, False),
    "orders/": ("orders", MAIN, False),
    "amqps://localhost:5673/orders": ("orders", MAIN, False),
    "amqp://host/orders": ("orders", MAIN, False),
    "sb://name.servicebus.windows.net/orders/": ("orders", MAIN, False),
    "Orders/$DeadLetterQueue": ("Orders", DEAD, False),
    "orders/$deadletterqueue": ("orders", DEAD, False),
    "orders/$Transfer/$DeadLetterQueue": ("orders", TRANSFER, False),
    "amqps://h/orders/$TRANSFER/$DEADLETTERQUEUE": ("orders", TRANSFER, False),
    "orders/$management": ("orders", MAIN, True),
    "orders/$Management": ("orders", MAIN, True),
    "q/$DeadLetterQueue/$management": ("q", DEAD, True),
    "contoso/x-servicebus-transfer/0": ("contoso/x-servicebus-transfer/0", MAIN, False),
    "a/b/$deadletterqueue/": ("a/b", DEAD, False),
    "sb://host": ("", MAIN, False),
    "sb://host/": ("", MAIN, False),
    "": ("", MAIN, False),
    # What merely looks like a suffix belongs to the name.
    "$deadletterqueue": ("$deadletterqueue", MAIN, False),
    "orders$deadletterqueue": ("orders$deadletterqueue", MAIN, False),
    "orders/$management/more": ("orders/$management/more", MAIN, False),
}


@pytest.mark.parametrize(("address", "expected"), SPELLINGS.items())
def test_an_address_is_understood(address, expected):
    assert parse(address) == Path(*expected)


@pytest.mark.parametrize("address", ["$cbs", "$CBS", "/$cbs", "amqps://host/$cbs"])
def test_the_token_service_is_known_in_every_spelling(address):
    assert parse(address).is_cbs


def test_a_queue_is_not_the_token_service():
    assert not parse("orders").is_cbs


NAMES = st.from_regex(
    r"[A-Za-z0-9]([A-Za-z0-9._-]{0,8}[A-Za-z0-9])?(/[a-z0-9]{1,3}){0,2}", fullmatch=True
)


@given(
    NAMES,
    st.sampled_from(MailboxKind),
    st.booleans(),
    st.sampled_from(["", "/", "amqps://h:1/", "sb://x.y/"]),
)
def test_what_a_path_shows_is_parsed_to_itself(entity, kind, is_management, front):
    path = Path(entity, kind, is_management)

    assert parse(front + str(path)) == path
