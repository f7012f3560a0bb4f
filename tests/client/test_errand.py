"""How much time a call has, and what it carries."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.client import errand
from pairbus.client.errand import Patience, TurnTaken
from pairbus.client.sdk.errors import SequenceNumberUnknown
from pairbus.client.sdk.messages import UnknownSequenceNumber

# --- patience


def test_without_a_timeout_each_attempt_on_the_primary_has_the_whole_bound() -> None:
    patience = Patience(None, 60.0)

    assert patience.on_primary(now=0.0) == 60.0
    assert patience.on_primary(now=1000.0) == 60.0


def test_a_timeout_runs_on_the_primary_from_the_first_attempt_on() -> None:
    patience = Patience(5.0, 60.0)

    assert patience.on_primary(now=100.0) == 5.0
    assert patience.on_primary(now=103.0) == 2.0


def test_a_timeout_that_is_over_leaves_a_moment_because_zero_means_for_ever_to_the_sdk() -> None:
    patience = Patience(5.0, 60.0)
    patience.on_primary(now=100.0)

    assert patience.on_primary(now=106.0) == 0.001


def test_a_call_that_comes_back_to_the_primary_has_its_time_again() -> None:
    patience = Patience(5.0, 60.0)
    patience.on_primary(now=100.0)

    patience.forget_primary()

    assert patience.on_primary(now=104.0) == 5.0


def test_the_timeout_holds_on_each_of_the_two_namespaces() -> None:
    patience = Patience(5.0, 60.0)
    patience.on_primary(now=100.0)

    assert patience.in_backlog(now=105.0) == 5.0
    assert patience.in_backlog(now=107.0) == 3.0
    assert patience.in_backlog(now=111.0) == 0.0


def test_without_a_timeout_one_backlog_queue_has_a_part_of_what_all_of_them_have() -> None:
    patience = Patience(None, 60.0)

    assert patience.in_backlog(now=100.0) == 20.0
    assert patience.in_backlog(now=130.0) == 20.0
    assert patience.in_backlog(now=155.0) == 5.0
    assert patience.in_backlog(now=160.0) == 0.0


@pytest.mark.parametrize(
    ("bound", "each", "all_together"),
    [
        pytest.param(5.0, 5.0, 60.0, id="short: as long on each, but several are tried"),
        pytest.param(60.0, 20.0, 60.0, id="the default"),
        pytest.param(600.0, 20.0, 600.0, id="long: others are tried in between"),
    ],
)
def test_the_bound_of_the_options_holds_on_each_backlog_queue_and_there_is_an_end(
    bound: float, each: float, all_together: float
) -> None:
    patience = Patience(None, bound)

    assert patience.in_backlog(now=0.0) == each
    assert patience.in_backlog(now=all_together - 1.0) == 1.0
    assert patience.in_backlog(now=all_together) == 0.0


def test_a_backlog_queue_gets_a_moment_however_little_is_left() -> None:
    patience = Patience(0.1, 60.0)

    assert patience.in_backlog(now=100.0, at_least=1.0) == 1.0
    assert patience.in_backlog(now=101.0, at_least=1.0) == 1.0
    assert patience.in_backlog(now=101.0) == 0.0


@pytest.mark.parametrize(
    ("timeout", "is_backlog", "expected"),
    [
        pytest.param(None, False, True, id="without a limit, always"),
        pytest.param(None, True, True, id="without a limit, in the backlog as well"),
        pytest.param(10.0, False, False, id="not if nothing would be left"),
        pytest.param(10.1, False, True, id="if something is left afterwards"),
        pytest.param(10.1, True, True, id="the backlog has a time of its own"),
        pytest.param(9.0, True, False, id="the backlog's time is as short"),
    ],
)
def test_a_throttled_call_waits_within_its_limit(
    timeout: float | None, is_backlog: bool, expected: bool
) -> None:
    patience = Patience(timeout, 60.0)

    assert patience.can_wait(10.0, is_backlog=is_backlog, now=0.0) is expected


def test_time_that_has_been_used_is_missing_for_a_wait() -> None:
    patience = Patience(15.0, 60.0)
    patience.on_primary(now=0.0)

    assert patience.can_wait(10.0, is_backlog=False, now=4.0)
    assert not patience.can_wait(10.0, is_backlog=False, now=6.0)
    assert patience.can_wait(10.0, is_backlog=True, now=6.0)


# --- a turn that never came


def test_a_turn_that_others_took_is_a_timeout_that_says_what_to_do() -> None:
    error = TurnTaken("orders", 2.5, is_stuck=True)

    assert isinstance(error, OperationTimeoutError)
    assert str(error).startswith("others used this sender of 'orders' for 2.5 seconds; ")
    assert "a sender of its own" in str(error)
    assert error.is_stuck


@pytest.mark.parametrize(
    ("turns", "timeout", "expected"),
    [
        pytest.param(0, 60.0, True, id="one had it for a minute"),
        pytest.param(0, 5.0, True, id="one had it for longer than opening a link takes"),
        pytest.param(0, 4.9, False, id="one had it, and may have opened its link"),
        pytest.param(1, 60.0, False, id="several had it"),
        pytest.param(0, None, False, id="without a limit nobody waits in vain"),
    ],
)
def test_a_turn_that_never_came_tells_of_the_primary_if(
    turns: int, timeout: float | None, expected: bool
) -> None:
    assert errand.is_stuck(turns, timeout) is expected


# --- what is sent


def test_messages_are_counted_in_every_shape() -> None:
    batch = ServiceBusMessageBatch(1000)
    batch.add_message(ServiceBusMessage("a"))
    batch.add_message(ServiceBusMessage("b"))

    assert errand.count_of(ServiceBusMessage("a")) == 1
    assert errand.count_of([]) == 0
    assert errand.count_of([ServiceBusMessage("a")] * 3) == 3
    assert errand.count_of(batch) == 2


# --- sequence numbers


def test_every_diverted_message_has_an_unknown_number_that_tells_where_it_is() -> None:
    messages = [ServiceBusMessage("a", message_id="1"), ServiceBusMessage("b", message_id="2")]

    numbers: Any = errand.unknown_numbers(messages, "contoso/x-servicebus-transfer/3")

    assert numbers == [-1, -1]
    assert [each.message_id for each in numbers] == ["1", "2"]
    assert {each.backlog_queue for each in numbers} == {"contoso/x-servicebus-transfer/3"}
    assert errand.unknown_numbers(messages[0], "q") == [-1]


UNKNOWN = UnknownSequenceNumber(backlog_queue="q", message_id="7")


@pytest.mark.parametrize(
    "numbers", [UNKNOWN, [UNKNOWN], (3, UNKNOWN), pickle.loads(pickle.dumps([3, UNKNOWN]))]
)
def test_a_number_that_is_not_known_cannot_be_cancelled(numbers: Any) -> None:
    with pytest.raises(SequenceNumberUnknown, match="message '7' for 'orders'"):
        errand.check_known("orders", numbers)


@pytest.mark.parametrize("numbers", [3, [3, 4], [], -1, [-1]])
def test_a_number_of_the_service_can_be_cancelled_even_if_it_is_wrong(numbers: Any) -> None:
    errand.check_known("orders", numbers)


# --- what the SDK checks first


class Live:
    def __init__(self, *, is_shut: bool = False) -> None:
        self.asked: list[str] = []
        self._client_state = self
        self._shutdown = threading.Event()
        if is_shut:
            self._shutdown.set()

    def check(self) -> None:
        self.asked.append("client")

    def _check_live(self) -> None:
        self.asked.append("sender")


def test_the_client_is_asked_before_the_sender_which_speaks_for_itself_if_it_is_shut() -> None:
    live, shut = Live(), Live(is_shut=True)

    errand.check_arguments(live, None, {})
    errand.check_arguments(shut, None, {})

    assert live.asked == ["client"]
    assert shut.asked == ["client", "sender"]


@pytest.mark.parametrize("timeout", [0, -1, -0.5])
def test_a_timeout_that_is_not_positive_is_refused_in_the_words_of_the_sdk(timeout: float) -> None:
    with pytest.raises(ValueError, match=r"^The timeout must be greater than 0\.$"):
        errand.check_arguments(Live(), timeout, {})


def test_an_argument_that_the_sdk_does_not_know_is_warned_of_where_it_was_given() -> None:
    with pytest.warns(UserWarning, match="Unsupported keyword args: {'color': 'red'}") as caught:
        _sends(color="red")

    assert caught[0].filename == __file__


def _sends(**kwargs: Any) -> None:
    """As a sender's method."""
    errand.check_arguments(Live(), None, kwargs)
