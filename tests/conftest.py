"""What all tests share: how hard hypothesis tries, and a broker to talk to.

`HYPOTHESIS_PROFILE=night` tries harder and differently every time; the default is the same run
everywhere. Folders with needs of their own (tests/interop, tests/chaos) have their own conftest.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile(
    "night", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def broker():
    """A running broker that keeps nothing, with one queue, `orders`."""
    # Imported here: tests of the parts below need not load all of the broker.
    from pairbus.broker import Broker, QueueDescription

    with Broker(queues=[QueueDescription(name="orders")]) as running:
        yield running
