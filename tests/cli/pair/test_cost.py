"""`pairbus cost`: what it prints, for people and for programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pairbus.syphon.ledger import ParquetLedger
from pairbus.syphon.receipts import Receipt, ReceiptOutcome
from tests.cli.conftest import Run

BUSY = ("cost", "--messages-per-day", "1000000", "--outage", "4h", "--entities", "5")


def run_json(pairbus: Run, *words: str) -> dict[str, Any]:
    done = pairbus(*words, "--json")
    assert (done.code, done.err) == (0, "")
    answer: dict[str, Any] = json.loads(done.out)
    return answer


@pytest.mark.req("M-03", "S-02", "M-02")
def test_json_has_the_figures_of_the_documents(pairbus: Run) -> None:
    answer = run_json(pairbus, "cost", "--backlog-queues", "10")

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
def test_people_get_the_items_their_price_and_possible_savings(pairbus: Run) -> None:
    done = pairbus(*BUSY, "--message-bytes", "70000", "--syphons", "2")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]

    assert (done.code, done.err) == (0, "")
    assert lines[0] == "Idle: 80 receives per hour, 1,920 per day, 57,600 in 30 days"
    counts = (
        "Not included: on a terminal or with --metrics-port, syphons count what is left: "
        "5,760 operations in 30 days"
    )
    assert lines[1] == counts
    assert any(line.startswith("direct: sends to the primary 59,666,666 ") for line in lines)
    assert any(line.startswith("pings of 5 entities by 1 client, at most 1,200 ") for line in lines)
    assert any(line.startswith("base charge of the subscription 9.72") for line in lines)
    assert "Prices: Azure Service Bus Standard (example), USD, as of 2026-11-16" in lines
    assert any(line.startswith("messages of at most 64 KiB instead of 68 KiB") for line in lines)
    assert any(line.startswith("1 syphon instead of 2") for line in lines)


@pytest.mark.req("M-03")
def test_money_follows_the_given_price_list(
    pairbus: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = tmp_path / "ours.toml"
    prices.write_text(
        'name = "ours"\nas_of = 2026-01-31\ncurrency = "EUR"\n'
        "[[operations]]\nper_million = 1000000\n[billed]\nsettle = false\n"
    )

    answer = run_json(pairbus, "cost", "--prices", str(prices))
    assert answer["prices"]["currency"] == "EUR"
    assert answer["money"]["total"] == 28_800

    monkeypatch.setenv("PAIRBUS_PRICES", str(prices))
    done = pairbus("cost", "--messages-per-day", "1")
    assert "settlements, which this price list bills" not in done.out
    assert "  free\n" in done.out


@pytest.mark.req("M-03")
def test_a_ledger_shows_what_was_spent(pairbus: Run, tmp_path: Path) -> None:
    ParquetLedger(tmp_path / "ledger").append(
        [
            Receipt(
                run="r",
                round=1,
                queue="q",
                path="orders",
                outcome=ReceiptOutcome.BROUGHT_HOME,
                count=100,
                bytes=1000,
                at_ms=1_800_000_000_000,
            )
        ]
    )

    answer = run_json(pairbus, "cost", "--ledger", str(tmp_path / "ledger"))
    found = {item["name"]: item["operations"] for item in answer["items"]}
    assert found["backlog_sends"] == found["backlog_receives"] == 100
    assert found["home_sends"] == found["home_receives"] == 100
    assert answer["ledger"] == str(tmp_path / "ledger")

    shown = pairbus("cost", "--ledger", str(tmp_path / "ledger"))
    assert "Operations of the 0.0 days in" in shown.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--backlog-queues", "0"), "--backlog-queues 0: must be at least 1"),
        (("--backlog-queues", "-1"), "--backlog-queues -1: must be at least 1"),
        (("--backlog-queues", "101"), "--backlog-queues 101: must be at most 100"),
        (("--backlog-queues", "many"), "--backlog-queues 'many' is not a whole number"),
        (("--outage", "-1"), "--outage '-1' is not a duration"),
        (
            ("--period", "1d", "--outage", "30h"),
            "an outage of 30 hours does not fit into a period of 24 hours",
        ),
        (("--period", "36h"), "--period 36h: must be whole days, such as 7d or 30d"),
        (("--period", "30"), "--period '30' has no unit: use 30s, 30m, 30h or 30d"),
        (("--period", "60d"), "--period 60d: must be from 1d to 31d"),
        (("--ping-interval", "0s"), "--ping-interval 0s: must be from 1s to 1800s"),
        (("--outage", "40d"), "--outage 40d: must be from 0h to 744h"),
        (("--prices", "none.toml"), "cannot read the price list none.toml"),
        (("--ledger", "nowhere"), "there is no ledger: nowhere is not a folder"),
        (("--ledger", "x" * 300), "there is no ledger: xxx"),
        (("--ledger", "x", "--period", "3d"), "--period and --ledger cannot be combined"),
        (("--ledger", "x", "--plot", "x.svg"), "--plot and --ledger cannot be combined"),
        (("--plot", "cost.gif"), "--plot cost.gif: the file name must end in .svg or .png"),
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

    assert done.code == 1
    assert "pip install 'pairbus[plot]'" in done.err


@pytest.mark.req("M-03")
@pytest.mark.parametrize(("suffix", "begin"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_the_cost_is_plotted(pairbus: Run, tmp_path: Path, suffix: str, begin: bytes) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"cost{suffix}"
    done = pairbus(*BUSY, "--plot", str(file))

    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(f"The plot is in {file}\n")
    assert file.read_bytes().startswith(begin)
    if suffix == ".svg":
        text = file.read_text("utf-8")
        for words in (
            "hours of outage",
            "backlog queues",
            "operations for pairing",
            "USD at 0.80",
        ):
            assert words in text


def test_the_same_numbers_make_the_same_picture(pairbus: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for file in files:
        pairbus("cost", "--plot", str(file))  # nothing but an idle pair

    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_file_that_cannot_be_written_is_named(pairbus: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = pairbus("cost", "--plot", str(tmp_path / "none" / "cost.svg"))

    assert done.code == 1
    assert "cost.svg: No such file or directory" in done.err
