"""`pairbus cost`: what a person types, and what is shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pairbus.syphon.ledger import ParquetLedger
from pairbus.syphon.receipts import Outcome, Receipt
from tests.cli.conftest import Run

BUSY = ("cost", "--messages-per-day", "1000000", "--outage-hours", "4", "--entities", "5")


def told(pairbus: Run, *words: str) -> dict[str, Any]:
    done = pairbus(*words, "--json")
    assert (done.code, done.err) == (0, "")
    answer: dict[str, Any] = json.loads(done.out)
    return answer


@pytest.mark.req("M-03", "S-02", "M-02")
def test_the_figures_of_the_documents_are_in_the_json(pairbus: Run) -> None:
    answer = told(pairbus, "cost", "--backlog-queues", "10")

    assert answer["idleReceives"] == {"perHour": 40, "perDay": 960, "per30Days": 28_800}
    assert answer["divertedMessage"] == {
        "operations": 4,
        "steps": [
            "send to the backlog",
            "receive from the backlog",
            "send to the primary",
            "receive from the primary",
        ],
        "settlements": 2,
    }
    assert answer["operations"] == answer["pairingOperations"] == 28_800
    assert answer["usage"]["backlogQueues"] == 10
    assert "example" in answer["prices"]["name"]
    assert answer["prices"]["asOf"]


@pytest.mark.req("M-03")
def test_people_get_the_parts_their_price_and_what_would_be_cheaper(pairbus: Run) -> None:
    done = pairbus(*BUSY, "--message-bytes", "70000", "--syphons", "2")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]

    assert (done.code, done.err) == (0, "")
    assert lines[0] == "Idle: 80 receives an hour, 1,920 a day, 57,600 in 30 days"
    assert any(line.startswith("direct: sends to the primary 59,666,666 ") for line in lines)
    assert any(line.startswith("pings of 5 entities by 1 client 1,200 ") for line in lines)
    assert any(line.startswith("base charge of the subscription 9.72") for line in lines)
    assert "Prices: Azure Service Bus Standard (example), USD, as of 2026-11-16" in lines
    assert any(line.startswith("messages of at most 64 KiB instead of 68 KiB") for line in lines)
    assert any(line.startswith("1 syphon instead of 2") for line in lines)


@pytest.mark.req("M-03")
def test_money_is_by_the_price_list_that_is_given(
    pairbus: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = tmp_path / "ours.toml"
    prices.write_text(
        'name = "ours"\nas_of = 2026-01-31\ncurrency = "EUR"\n'
        "[[operations]]\nper_million = 1000000\n[billed]\nsettle = false\n"
    )

    answer = told(pairbus, "cost", "--prices", str(prices))
    assert answer["prices"]["currency"] == "EUR"
    assert answer["money"]["total"] == 28_800

    monkeypatch.setenv("PAIRBUS_PRICES", str(prices))
    done = pairbus("cost", "--messages-per-day", "1")
    assert "Settling it is" not in done.out
    assert "  free\n" in done.out


@pytest.mark.req("M-03")
def test_a_ledger_tells_what_was_spent(pairbus: Run, tmp_path: Path) -> None:
    ParquetLedger(tmp_path / "ledger").append(
        [
            Receipt(
                run="r",
                round=1,
                queue="q",
                path="orders",
                outcome=Outcome.BROUGHT_HOME,
                count=100,
                bytes=1000,
                at_ms=1_800_000_000_000,
            )
        ]
    )

    answer = told(pairbus, "cost", "--ledger", str(tmp_path / "ledger"))
    found = {item["name"]: item["operations"] for item in answer["items"]}
    assert found["backlog_sends"] == found["backlog_receives"] == 100
    assert found["home_sends"] == found["home_receives"] == 100
    assert answer["ledger"] == str(tmp_path / "ledger")

    shown = pairbus("cost", "--ledger", str(tmp_path / "ledger"))
    assert "Operations of the 0.0 days of" in shown.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--backlog-queues", "0"), "Invalid value for '--backlog-queues'"),
        (("--backlog-queues", "many"), "Invalid value for '--backlog-queues'"),
        (("--outage-hours", "-1"), "Invalid value for '--outage-hours'"),
        (("--days", "1", "--outage-hours", "30"), "an outage of 30 hours does not fit into 1 days"),
        (("--prices", "none.toml"), "cannot read the price list none.toml"),
        (("--ledger", "nowhere"), "there is no ledger: nowhere is not a folder"),
        (("--ledger", "x", "--days", "3"), "--days and --ledger exclude each other"),
        (("--ledger", "x", "--plot", "x.svg"), "--plot and --ledger exclude each other"),
        (("--plot", "cost.gif"), "--plot cost.gif: the file's name must end in .svg or .png"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    pairbus: Run, words: tuple[str, ...], said: str
) -> None:
    done = pairbus("cost", *words)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"pairbus: {said}")
    assert done.err.count("\n") == 1


def test_without_matplotlib_a_plot_says_what_to_install(
    pairbus: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = pairbus("cost", "--plot", "cost.svg")

    assert done.code == 2
    assert "pip install pairbus[plot]" in done.err


@pytest.mark.req("M-03")
@pytest.mark.parametrize(("suffix", "begin"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_the_cost_is_drawn(pairbus: Run, tmp_path: Path, suffix: str, begin: bytes) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"cost{suffix}"
    done = pairbus(*BUSY, "--plot", str(file))

    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(f"drawn: {file}\n")
    assert file.read_bytes().startswith(begin)
    if suffix == ".svg":
        text = file.read_text("utf-8")
        for words in (
            "hours of outage",
            "backlog queues",
            "operations for the pair",
            "USD at 0.80",
        ):
            assert words in text


def test_the_same_numbers_make_the_same_picture(pairbus: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for file in files:
        pairbus("cost", "--plot", str(file))  # nothing but an idle pair

    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_place_that_cannot_be_written_is_named(pairbus: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = pairbus("cost", "--plot", str(tmp_path / "none" / "cost.svg"))

    assert done.code == 2
    assert "cost.svg cannot be written: No such file or directory" in done.err
