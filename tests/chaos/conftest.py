"""All tests of this folder kill or flood brokers: `make test` runs them after most others."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator

import pytest

HERE = os.path.dirname(__file__) + os.sep


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.alone)


@pytest.fixture
def clients_leftovers() -> Iterator[None]:
    """A client whose broker dies leaves sockets to the garbage collector: collect them here."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
