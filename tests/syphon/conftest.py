"""One Spark session for all tests here that need one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from pairbus.spark.session import local_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    logging.getLogger("py4j").setLevel(logging.WARNING)
    session, is_own = local_session(name="pairbus tests")
    session.sparkContext.setLogLevel("ERROR")
    yield session
    if is_own:
        session.stop()
