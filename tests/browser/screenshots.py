"""`make screenshots`: the pictures of docs/dashboard.md, taken from a real pair in an outage.

In place of the syphon, which needs Java, a receiver brings the messages home and publishes what a
syphon publishes.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path

from azure.servicebus import ServiceBusMessage
from playwright.sync_api import Browser, Page
from prometheus_client import CollectorRegistry

from pairbus.syphon.metrics import SyphonMetrics
from pairbus.syphon.receipts import Receipt, ReceiptOutcome, RoundEnded
from tests.browser.conftest import Pair, address_in, launch, running_dashboard

FOLDER = Path(__file__).parents[2] / "docs" / "dashboard"
SIZES = {"narrow": (390, 1200), "medium": (820, 1180), "wide": (1600, 1240)}
HEALTHY_SECONDS = 25.0
DOWN_SECONDS = 30.0
HOME_SECONDS = 14.0


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with ExitStack() as resources:
        pair = Pair(resources, backlog_queues=3)
        metrics = SyphonMetrics(CollectorRegistry(), primaries=["east"])
        port = metrics.serve(0)
        resources.callback(metrics.close)
        urls = f"{pair.metrics} http://127.0.0.1:{port}/metrics"
        lines = resources.enter_context(
            running_dashboard(pair, "--allow-changes", PAIRBUS_METRICS=urls)
        )
        pair.dead_letter("MaxDeliveryCountExceeded", ServiceBusMessage('{"order": 1}'))
        browser = resources.enter_context(launch())
        pages = open_pages(browser, address_in(lines))
        stop = threading.Event()
        sender = threading.Thread(target=send, args=(pair, stop))
        sender.start()
        time.sleep(HEALTHY_SECONDS)
        with pair.east.faults.unreachable():
            time.sleep(DOWN_SECONDS)
            shoot(pages, "narrow", "medium")
        bring_home(pair, metrics, time.monotonic() + HOME_SECONDS)
        shoot(pages, "wide")
        stop.set()
        sender.join()
        for page in pages.values():
            page.context.close()


def open_pages(browser: Browser, address: str) -> dict[str, Page]:
    pages = {}
    for scheme in ("light", "dark"):
        for name, (width, height) in SIZES.items():
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=scheme,
                timezone_id="Europe/Berlin",
            )
            page = context.new_page()
            page.goto(address)
            pages[f"{name}-{scheme}"] = page
    return pages


def shoot(pages: dict[str, Page], *sizes: str) -> None:
    for name, page in pages.items():
        if name.partition("-")[0] in sizes:
            page.wait_for_selector(".node.ok", timeout=120_000)
            page.screenshot(path=FOLDER / f"{name}.png", timeout=120_000)
            print(FOLDER / f"{name}.png")


def send(pair: Pair, stop: threading.Event) -> None:
    while not stop.is_set():
        pair.send(20)
        pair.send(8, "payments")
        stop.wait(0.5)


def bring_home(pair: Pair, metrics: SyphonMetrics, deadline: float) -> None:
    number = 0
    while time.monotonic() < deadline:
        number += 1
        receipts = []
        for queue, receiver in pair.backlogs.items():
            messages = receiver.receive_messages(20, max_wait_time=0.5)
            for message in messages:
                receiver.complete_message(message)
            receipts.append(
                Receipt(
                    run="screenshots",
                    round=number,
                    queue=queue,
                    path="orders",
                    outcome=ReceiptOutcome.BROUGHT_HOME,
                    count=len(messages),
                    at_ms=round(time.time() * 1000),
                )
            )
        ended = RoundEnded(
            round=number,
            seconds=1.0,
            receipts=tuple(receipts),
            pending=(),
            destinations=(),
            errors=(),
        )
        metrics(ended)
        time.sleep(0.3)


if __name__ == "__main__":
    main()
