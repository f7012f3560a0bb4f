"""What a person sees of a syphon."""

import io
import time

import pytest
from rich.console import Console

from pairbus.cli.pair.syphon_live import LiveProgress
from pairbus.cli.pair.syphon_progress import PlainProgress
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


def round_ended(*receipts, destination):
    return RoundEnded(
        round=1,
        seconds=1.0,
        receipts=receipts,
        pending=(QUEUE,),
        destinations=(("contoso", destination),),
        errors=(),
    )


@pytest.fixture
def console():
    return Console(file=io.StringIO(), force_terminal=True, width=300, color_system=None)


@pytest.fixture
def live(console):
    progress = LiveProgress(console, lambda: {QUEUE: (70, 1)})
    progress.begin(["contoso"], 1, {}, {"contoso": "the key or identity; the rest is unknown"})
    yield progress
    progress.close()


def shown(live, console):
    with console.capture() as captured:
        console.print(live._view())
    return captured.get()


def test_the_live_view_shows_what_is_waited_for_why_and_when_the_next_try_is(live, console):
    down = Destination("orders")
    down.failed(Failure.THROTTLED, now=0, detail=REASON)
    live.round_ended(round_ended(receipt(ReceiptOutcome.WAITING, 70), destination=down))
    live.waiting((Waiting(name="the primary contoso", reason=REASON, next_try=time.time() + 40.4),))

    text = shown(live, console)

    assert "waiting for the primary contoso, next try in 40 s" in text
    assert text.count("and ends") == 2, "the whole reason, of the primary and the destination"
    assert "checked of contoso: the key or identity" in text
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
