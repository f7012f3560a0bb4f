"""Our errors: which handlers catch them, what they say, and that they can cross processes."""

from __future__ import annotations

import pickle

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from pairbus.client.sdk import pairing_errors
from pairbus.client.sdk.failures import Kind, kind_of
from pairbus.client.sdk.pairing_errors import (
    BacklogExhausted,
    ClientFaulted,
    EnvelopeTooLarge,
    PairingError,
    SequenceNumberUnknown,
    SyphonNotInstalled,
    UnknownSequenceNumber,
)
from pairbus.errors import PairbusError

DOWN = ServiceBusConnectionError(message="the datacenter is gone.")
FULL = ServiceBusError("the queue is full.")
NUMBER = UnknownSequenceNumber(backlog_queue="contoso/x-servicebus-transfer/3", message_id="m-1")

ERRORS = {
    "not paired": PairingError("no", namespace="backup", queue="b", error=FULL),
    "no syphon": SyphonNotInstalled("not installed", namespace="contoso"),
    "exhausted": BacklogExhausted(
        entity="orders", primary_error=DOWN, backlog_error=FULL, diverted_count=2, queue_count=1
    ),
    "too large": EnvelopeTooLarge(entity="orders", backlog_queue="b", size=300, limit=256),
    "faulted": ClientFaulted(which="secondary", reason="the primary was closed", error=DOWN),
    "no number": SequenceNumberUnknown(entity="orders", number=NUMBER),
}
every_error = pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)


@every_error
def test_whoever_catches_the_sdks_errors_catches_ours(error):
    assert isinstance(error, ServiceBusError)
    assert isinstance(error, PairbusError)


def test_too_large_is_what_the_sdk_calls_too_large():
    assert isinstance(ERRORS["too large"], MessageSizeExceededError)
    assert isinstance(ERRORS["too large"], ValueError)


def test_no_syphon_is_a_reason_not_to_be_paired():
    assert isinstance(ERRORS["no syphon"], PairingError)


@every_error
def test_the_tree_in_the_docstring_has_it(error):
    assert type(error).__name__ in (pairing_errors.__doc__ or "")


@every_error
def test_it_survives_a_trip_between_processes(error):
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert {k: str(v) for k, v in _told(again).items()} == {
        k: str(v) for k, v in _told(error).items()
    }


def _told(error: BaseException) -> dict[str, object]:
    """What it says of itself; the SDK's part has what happened to be going on."""
    fields = vars(type(error)(**_given(error)))
    return {name: value for name, value in fields.items() if not name.startswith("exc_")}


def _given(error: BaseException) -> dict[str, object]:
    return {name: getattr(error, name) for name in (*error._FIELDS, *error._CAUSES)}


def test_a_cause_that_cannot_travel_leaves_its_class_and_its_words():
    class Local(Exception):
        pass

    try:
        raise DOWN
    except ServiceBusConnectionError as cause:  # whose traceback nobody can pickle
        error = BacklogExhausted(
            entity="orders", primary_error=cause, backlog_error=Local("only here")
        )
        again = pickle.loads(pickle.dumps(error))

    assert type(again.primary_error) is ServiceBusConnectionError
    assert str(again.primary_error) == str(DOWN)
    assert kind_of(again.primary_error) is Kind.OUTAGE
    assert type(again.backlog_error) is ServiceBusError
    assert str(again.backlog_error) == "only here"


def test_a_cause_from_elsewhere_in_azure_travels_too():
    error = PairingError("no", error=ClientAuthenticationError("refused"))

    again = pickle.loads(pickle.dumps(error))

    assert type(again.error) is ClientAuthenticationError
    assert str(again.error) == "refused"


# --- what they say --------------------------------------------------------------------------------


@pytest.mark.req("F-07")
def test_exhausted_names_the_entity_both_causes_and_what_to_do():
    error = BacklogExhausted(entity="orders", primary_error=DOWN, backlog_error=FULL)

    for part in ("'orders'", "the datacenter is gone", "the queue is full", "send it again"):
        assert part in str(error)
    assert (error.entity, error.primary_error, error.backlog_error) == ("orders", DOWN, FULL)
    assert error.inner_exception is FULL
    assert error.diverted_count == 0


@pytest.mark.req("A-04")
def test_exhausted_with_a_single_queue_says_that_there_was_no_other():
    assert "only one backlog queue" in str(BacklogExhausted(entity="q", queue_count=1))
    assert "backlog_queue_count of 2 or more" in str(BacklogExhausted(entity="q", queue_count=1))
    assert "only one" not in str(BacklogExhausted(entity="q", queue_count=2))


def test_exhausted_tells_how_many_are_safe():
    error = BacklogExhausted(entity="q", diverted_count=40)

    assert "The first 40 of this call are safe" in str(error)


def test_exhausted_without_a_cause_says_so():
    assert "unknown cause" in str(BacklogExhausted(entity="q", backlog_error=FULL))


@pytest.mark.req("E-05")
def test_too_large_blames_the_envelope():
    error = EnvelopeTooLarge(entity="orders", backlog_queue="c/0", size=262_200, limit=262_144)

    for part in ("'orders'", "'c/0'", "262200 bytes", "262144 bytes", "time to live", "smaller"):
        assert part in str(error)
    assert str(error).endswith("or again when the primary is back.")
    assert "it exceeds the limit" in str(EnvelopeTooLarge(entity="o", backlog_queue="b"))


def test_too_large_by_itself_says_when_the_primary_would_take_it():
    error = EnvelopeTooLarge(
        entity="orders", backlog_queue="c/0", size=262_200, limit=262_144, bare_size=262_150
    )

    assert str(error).endswith("or again when the primary is back, if its limit is higher.")


def test_no_number_tells_where_the_message_is():
    error = SequenceNumberUnknown(entity="orders", number=NUMBER)

    for part in ("'m-1'", "'orders'", "contoso/x-servicebus-transfer/3", "Peek the primary"):
        assert part in str(error)
    assert "a message for 'q'" in str(SequenceNumberUnknown(entity="q", number=-1))


def test_faulted_says_why_and_what_to_do():
    assert "the primary was closed" in str(ERRORS["faulted"])
    assert "Make two new clients" in str(ERRORS["faulted"])
