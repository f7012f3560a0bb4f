"""The machine of `make chaos` fails as asked, and works again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.machine import MachineBroker
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MachineBroker]:
    made = MachineBroker("east", tmp_path)
    yield made
    made.kill()


def start(broker: MachineBroker) -> None:
    """Wait until it is ready, or has ended."""
    broker.start()
    wait_until(lambda: broker.is_ready or broker.has_ended)


def test_a_broker_that_starts_on_a_full_disk_says_so_in_one_line_and_starts_later(
    broker: MachineBroker,
) -> None:
    start(broker)
    broker.kill()

    broker.fail(is_disk_full=True)
    start(broker)

    assert broker.has_ended
    assert broker.exit_message.endswith("east.lock cannot be written: No space left on device")
    check_starts_again(broker)


def test_a_new_data_file_on_a_full_disk_is_not_called_damaged(broker: MachineBroker) -> None:
    broker.fail(is_disk_full=True)
    start(broker)

    assert broker.has_ended
    assert broker.exit_message.endswith("Make room on its disk, and start again")
    check_starts_again(broker)


def check_starts_again(broker: MachineBroker) -> None:
    broker.kill()
    broker.fail()
    start(broker)
    assert broker.is_ready
