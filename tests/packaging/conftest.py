"""These tests take the longest, so `make test` begins with them."""

from __future__ import annotations

import os

import pytest

HERE = os.path.dirname(__file__) + os.sep


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not str(item.path).startswith(HERE))
