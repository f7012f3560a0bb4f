"""What tests of the paired client's parts share: a clock that is moved by hand."""

from __future__ import annotations

import pytest

from tests.client.fakes import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
