"""What a person sees of a syphon."""

import io
import time

import pytest
from rich.console import Console

from pairbus.cli.pair.syphon_live import LiveProgress
from pairbus.cli.pair.syphon_progress import COUNT_SECONDS, BacklogCounter, PlainProgress, Ready
from pairbus.syphon.policy import Destination, Failure
from pairbus.syphon.receipts import Receipt, ReceiptOutcome, RoundEnded, Waiting

QUEUE = "contoso/x-servicebus-transfer/0"
REASON = "connecting to contoso.servicebus.windows.net: " + "the reason is long " * 9 + "and ends"


def receipt(outcome, count, reason=""):
    return Receipt(
        run="r",
        round=1,
        queue=QUEUE,
        path="orders",
        outcome=outcome,
        reason=reason,
        count=count,
        at_ms=0,
    )


def round_ended(*receipts, destination=None, pending=(QUEUE,)):
    return RoundEnded(
        round=1,
        seconds=1.0,
        receipts=receipts,
        pending=pending,
        destinations=(("contoso", destination),) if destination else (),
        errors=(),
    )


@pytest.fixture
def console():
    return Console(file=io.StringIO(), force_terminal=True, width=300, color_system=None)


@pytest.fixture
def live(console):
    progress = LiveProgress(console, lambda: {QUEUE: (70, 1)})
    rights = {"contoso": "the key or identity; the rest is unknown"}
    progress.begin(Ready(primaries=["contoso"], queues=1, others={}, rights=rights))
    yield progress
    progress.close()


def shown(live, console):
    """The last view, which stays on the terminal."""
    live.close()
    return console.file.getvalue().rpartition("syphon contoso")[2]


def wait_for_the_primary(live):
    down = Destination("orders")
    down.failed(Failure.THROTTLED, now=0, detail=REASON)
    live.round_ended(round_ended(receipt(ReceiptOutcome.WAITING, 70), destination=down))
    live.waiting((Waiting(name="the primary contoso", reason=REASON, next_try=time.time() + 5430),))


def test_the_live_view_shows_what_is_waited_for_why_and_when_the_next_try_is(live, console):
    wait_for_the_primary(live)

    text = shown(live, console)

    assert "waiting for the primary contoso, next try in 1h 30m" in text
    assert text.count("and ends") == 2, "the whole reason, of the primary and the destination"
    assert "checked on contoso: the key or identity" in text


def test_the_live_view_shows_when_the_wait_is_over(live, console):
    wait_for_the_primary(live)
    live.waiting(())

    assert "bringing home" in shown(live, console)


def test_the_last_view_and_the_sum_show_what_is_left(live, console, capsys):
    receipts = [receipt(ReceiptOutcome.BROUGHT_HOME, 3), receipt(ReceiptOutcome.WAITING, 70)]

    live.end(receipts, {QUEUE: (67, 2)})

    assert capsys.readouterr().out.startswith(
        "3 brought home, 0 dead-lettered, 0 expired, 67 left in the backlog, in "
    )
    text = shown(live, console)
    assert "ended" in text
    assert "67" in text


def test_without_a_terminal_a_wait_is_logged_once(capsys):
    progress = PlainProgress()
    for next_try in (1.0, 3.0, 5.0):
        progress.waiting((Waiting(name="orders", reason="it is full", next_try=next_try),))
        progress.waiting(())
    progress.end([], None)

    out, err = capsys.readouterr()
    assert err == "waiting for orders: it is full\n"
    assert "unknown number left" in out


def test_without_a_terminal_a_round_that_was_cut_short_does_not_speak_of_messages_it_has_not_seen(
    capsys,
):
    PlainProgress().round_ended(round_ended())

    said = "round 1: 0 brought home (0/s); 1 queue not read to the end; 0 in total\n"
    assert capsys.readouterr().err == said


class Counting:
    """A secondary that is counted like by a terminal or by metrics, on a clock of its own."""

    def __init__(self):
        self.now = 0.0
        self.asked_at = []
        self.answer = {QUEUE: (70, 1)}
        self.counter = BacklogCounter(self._ask, clock=lambda: self.now)

    def _ask(self):
        self.asked_at.append(self.now)
        return self.answer

    def watch(self, seconds, *, before_each=lambda: None):
        """When the secondary was asked, from now on."""
        begin, self.asked_at = self.now, []
        while self.now < begin + seconds:
            before_each()
            assert self.counter() is self.answer
            self.now += COUNT_SECONDS
        return [at - begin for at in self.asked_at]


@pytest.mark.req("S-02")
def test_what_is_left_is_counted_only_as_often_as_the_documentation_says():
    counting = Counting()
    counter = counting.counter

    def end_round():
        counter.round_ended(round_ended())

    assert counting.watch(20, before_each=end_round) == [0, 5, 10, 15], "it brings messages home"
    end_round()
    assert counting.watch(180) == [0, 60, 120], "messages wait"
    counter.round_ended(round_ended(pending=()))
    idle = counting.watch(30 * 24 * 3600)
    assert idle[:3] == [0, 900, 1800]
    assert len(idle) == 2_880


@pytest.mark.req("S-02")
def test_a_count_without_an_answer_is_tried_again():
    counting = Counting()
    counting.answer = None
    assert counting.watch(15) == [0, 5, 10]
    counting.answer = {}
    assert counting.watch(15) == [0]
