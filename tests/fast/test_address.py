"""Addresses: pickled with their secret, never shown with it."""

from __future__ import annotations

import pickle

from pairbus.fast.address import Address

KEY = "SharedAccessKeyName=p;SharedAccessKey=s3cret="


def test_no_secret_is_shown_but_all_of_it_is_pickled() -> None:
    address = Address.from_connection_string(f"Endpoint=sb://h;{KEY}")

    for shown in (repr(address), repr(address.source), f"{address.source}"):
        assert "s3cret" not in shown
    assert pickle.loads(pickle.dumps(address)) == address
