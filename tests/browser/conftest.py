"""One pair of brokers with a paired client, one dashboard and one browser for all tests.

The browser is the system's Chromium: Playwright drives it and never downloads one.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient as PlainClient
from azure.servicebus import ServiceBusMessage, ServiceBusReceiver, ServiceBusSubQueue
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright
from prometheus_client import CollectorRegistry, start_http_server

from pairbus.broker import Broker
from pairbus.telemetry.prometheus import PrometheusObserver
from tests.cost.pair import paired

START_SECONDS_MAX = 60.0


class Pair:
    """Two brokers, and a paired client that publishes its metrics."""

    def __init__(self, resources: ExitStack, *, backlog_queues: int = 1) -> None:
        self.east = resources.enter_context(Broker(queues=["orders", "payments", "letters"]))
        self.west = resources.enter_context(Broker())
        registry = CollectorRegistry()
        server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
        resources.callback(thread.join)
        resources.callback(server.server_close)
        resources.callback(server.shutdown)
        self.metrics = f"http://127.0.0.1:{server.server_port}/metrics"
        client = resources.enter_context(
            paired(
                self.east,
                self.west,
                backlog_queue_count=backlog_queues,
                ping_primary_interval=timedelta(seconds=1),
                primary_namespace_name="east",
                observers=[PrometheusObserver(registry)],
            )
        )
        self._senders = {
            queue: resources.enter_context(client.get_queue_sender(queue))
            for queue in ("orders", "payments")
        }
        plain, partner = (
            resources.enter_context(PlainClient.from_connection_string(one.connection_string))
            for one in (self.east, self.west)
        )
        self._letters = plain.get_queue_sender("letters")
        self._receiver = plain.get_queue_receiver("letters")
        self._dead = plain.get_queue_receiver("letters", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        for each in (self._letters, self._receiver, self._dead):
            resources.enter_context(each)
        self.backlogs = {
            queue: resources.enter_context(partner.get_queue_receiver(queue))
            for queue in (f"east/x-servicebus-transfer/{one}" for one in range(backlog_queues))
        }

    @property
    def backlog(self) -> ServiceBusReceiver:
        (only,) = self.backlogs.values()
        return only

    def send(self, count: int = 1, queue: str = "orders") -> None:
        """With the paired client."""
        messages = [ServiceBusMessage(f"{queue} {one}") for one in range(count)]
        self._senders[queue].send_messages(messages)

    def dead_letter(self, reason: str, *messages: ServiceBusMessage) -> None:
        """In the queue `letters`."""
        wanted = {str(one) for one in messages}
        self._letters.send_messages(list(messages))
        while wanted:
            for message in self._receiver.receive_messages(10, max_wait_time=10):
                if str(message) not in wanted:
                    self._receiver.complete_message(message)
                    continue
                self._receiver.dead_letter_message(message, reason=reason, error_description=reason)
                wanted.discard(str(message))

    def letters(self) -> tuple[list[str], list[str]]:
        """The bodies in the queue `letters`, and of its dead letters."""
        live, dead = (
            one.peek_messages(100, sequence_number=1) for one in (self._receiver, self._dead)
        )
        return [str(one) for one in live], [str(one) for one in dead]


@contextmanager
def running_dashboard(pair: Pair, *options: str, **variables: str) -> Iterator[list[str]]:
    """Its lines on stdout, the first of which has the address."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")
    }
    environment |= {
        "PAIRBUS_PRIMARY": pair.east.connection_string,
        "PAIRBUS_SECONDARY": pair.west.connection_string,
        "PAIRBUS_METRICS": pair.metrics,
        **variables,
    }
    words = ["dashboard", "--port", "0", "--primary-name", "east", *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "pairbus", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines: list[str] = []
    errors: list[str] = []
    for stream, into in ((process.stdout, lines), (process.stderr, errors)):
        threading.Thread(target=into.extend, args=(stream,), daemon=True).start()
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not any("ready: " in one for one in lines):
            assert process.poll() is None, errors
            assert time.monotonic() < deadline, errors
            time.sleep(0.05)
        yield lines
    finally:
        process.terminate()
        assert process.wait(20) == 0, errors
        assert not [one for one in errors if "Traceback" in one], errors
        process.stdout.close()
        process.stderr.close()


def address_in(lines: list[str]) -> str:
    return next(one for one in lines if "ready: " in one).partition("ready: ")[2].strip()


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    with ExitStack() as resources:
        yield Pair(resources)
    with warnings.catch_warnings():
        # The SDK forgets connections that an outage has cut. Here, their end is no failure.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def dashboard(pair: Pair) -> Iterator[str]:
    """Its address."""
    with running_dashboard(pair, "--allow-changes") as lines:
        yield address_in(lines)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with launch() as running:
        yield running


@contextmanager
def launch() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "the tests need Chromium: scripts/setup --tests installs it"
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.getuid() == 0 else []
        running = playwright.chromium.launch(executable_path=chromium, args=options)
        yield running
        running.close()


@dataclass
class Window:
    page: Page
    problems: list[str]
    """What the console says, and requests to other machines."""


@pytest.fixture
def open_window(browser: Browser) -> Iterator[Callable[..., Window]]:
    """Opens pages. At the end, their consoles must be empty."""
    opened: list[Window] = []

    def open_(address: str, **settings: Any) -> Window:
        context = browser.new_context(timezone_id="Asia/Tokyo", **settings)
        page = context.new_page()
        problems: list[str] = []

        def on_console(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                problems.append(message.text)

        page.on("console", on_console)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("data:", address.rstrip("/")))
                else problems.append(f"request to {request.url}")
            ),
        )
        page.goto(address)
        opened.append(Window(page, problems))
        return opened[-1]

    yield open_
    for one in opened:
        one.page.context.close()
        assert one.problems == []


@pytest.fixture
def page(dashboard: str, open_window: Callable[..., Window]) -> Page:
    """The dashboard in a window of its own, when it knows both namespaces."""
    page = open_window(dashboard, viewport={"width": 1400, "height": 1000}).page
    page.wait_for_function("document.querySelectorAll('.node.ok').length >= 2", timeout=60_000)
    return page


def axe_source() -> str:
    file = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
    return file.read_text("utf-8")
