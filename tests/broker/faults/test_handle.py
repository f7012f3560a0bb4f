"""`broker.faults`."""

import pytest

from pairbus.broker import Broker
from pairbus.broker.faults import (
    KINDS,
)
from pairbus.broker.faults.handle import Faults
from pairbus.errors import BrokerError

pytestmark = pytest.mark.req("B-13")


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_has_a_method_of_its_name(kind):
    assert callable(getattr(Faults, kind.kind))


def test_the_faults_of_a_stopped_broker_cannot_be_listed():
    with Broker() as broker:
        faults = broker.faults
        running = faults.hang()
        assert running.is_active

    assert running.state == "over"
    running.clear()  # nothing is left to clear
    with pytest.raises(BrokerError, match="the broker is not running"):
        faults.all()
