"""The dashboard in a real browser, on a real pair."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

import pytest
from azure.servicebus import ServiceBusMessage
from playwright.sync_api import Page, expect

from tests.browser.conftest import Pair, Window, axe_source

SEEN_SECONDS_MAX = 3.0
TICK_SECONDS = 0.05
WAIT_MS = 30_000
HOSTILE = '"><script>window.hacked=1</script><img src=x onerror="window.hacked=1">{{ 7*7 }}'

pytestmark = [
    pytest.mark.req("X-09"),
    # The SDK forgets connections that the outage has cut.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


def sentence(page: Page) -> str:
    return page.inner_text(".sentence")


def seconds_until(page: Page, text: str) -> float:
    """How long until the sentence has this text."""
    started = time.monotonic()
    page.wait_for_function(
        "text => document.querySelector('.sentence').innerText.includes(text)",
        arg=text,
        timeout=WAIT_MS,
        polling=50,
    )
    return time.monotonic() - started


def last_value(page: Page, panel: str) -> float | None:
    """The end of the first curve, as the browser draws it."""
    value = page.evaluate(
        """panel => {
            const chart = document.querySelector(`#${panel} .chart`);
            const data = getElement(Number(chart.id.slice(1))).chart.getOption().series[0].data;
            return data.length ? data[data.length - 1][1] : null;
        }""",
        panel,
    )
    return None if value is None else float(value)


def wait_for_curve(page: Page, panel: str, is_right: Callable[[float], bool]) -> None:
    deadline = time.monotonic() + WAIT_MS / 1000
    while (value := last_value(page, panel)) is None or not is_right(value):
        assert time.monotonic() < deadline, value
        time.sleep(0.1)


class Lateness:
    """How long the machine kept this process waiting, within `with`: a busy one is slow to show."""

    def __enter__(self) -> Lateness:
        self.seconds = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._measure)
        self._thread.start()
        return self

    def _measure(self) -> None:
        before = time.monotonic()
        while not self._stop.wait(TICK_SECONDS):
            now = time.monotonic()
            self.seconds += max(now - before - TICK_SECONDS, 0.0)
            before = now

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def note_sentences(page: Page) -> None:
    """From now on, the page keeps when it showed which sentence."""
    page.evaluate(
        """() => {
            const shown = document.querySelector('.sentence');
            window.sentences = [];
            new MutationObserver(() => sentences.push([Date.now() / 1000, shown.innerText]))
                .observe(shown, {childList: true, characterData: true, subtree: true});
        }"""
    )


def seconds_from(since: float, page: Page, text: str) -> float:
    """How long it took until the page showed this text, by the page's own clock."""
    seconds_until(page, text)
    noted: list[tuple[float, str]] = page.evaluate("sentences")
    return next(at for at, one in noted if text in one and at >= since) - since


def test_an_outage_is_seen_within_three_seconds_and_its_end_as_well(page: Page, pair: Pair) -> None:
    seconds_until(page, "Both namespaces answer")
    note_sentences(page)
    with Lateness() as late:
        began = time.time()
        with pair.east.faults.unreachable():
            seen = seconds_from(began, page, "The primary does not answer since")
            assert seen < SEEN_SECONDS_MAX + late.seconds
            expect(page.locator(".primaries .node.critical")).to_be_visible()
            assert "The primary does not answer" in page.inner_text("#alerts")
            late.seconds = 0.0
            ended = time.time()
        assert seconds_from(ended, page, "Both namespaces answer") < SEEN_SECONDS_MAX + late.seconds
    assert "primary down" in page.inner_text("#timeline")


def test_a_failover_moves_the_curve_the_timeline_and_the_estimate(page: Page, pair: Pair) -> None:
    with pair.east.faults.unreachable():
        pair.send(300)
        seconds_until(page, "orders is failed over since")
        assert re.search(r"orders is failed over since \d\d:\d\d:\d\d", sentence(page))
        seconds_until(page, "300 messages wait")
        wait_for_curve(page, "backlog", lambda value: value == 300)
        expect(page.locator("#timeline tbody tr", has_text="orders at").first).to_contain_text(
            "lasts"
        )
        expect(page.locator("#backlog tbody")).to_contain_text("orders", timeout=WAIT_MS)
        expect(page.locator("#clients tbody tr").first).to_contain_text("failed over")
    deadline = time.monotonic() + WAIT_MS / 1000
    while "home in" not in sentence(page):
        assert time.monotonic() < deadline, sentence(page)
        for message in pair.backlog.receive_messages(4, max_wait_time=5):
            pair.backlog.complete_message(message)
        page.wait_for_timeout(200)
    assert "not going down" not in page.inner_text(".numbers")
    while messages := pair.backlog.receive_messages(100, max_wait_time=1):
        for message in messages:
            pair.backlog.complete_message(message)
    seconds_until(page, "nothing waits")
    wait_for_curve(page, "backlog", lambda value: value == 0)
    pair.send()  # a ping has found the primary, or this send does
    seconds_until(page, "no entity is failed over")
    expect(page.locator("#timeline tbody tr", has_text="orders at").first).not_to_contain_text(
        "lasts"
    )


def look(page: Page, entity: str) -> None:
    page.get_by_label("Filter by name").fill(entity)
    expect(page.locator("#entities tbody tr:visible")).to_have_count(1, timeout=WAIT_MS)
    page.locator("#entities tbody tr:visible", has_text=entity).get_by_role(
        "button", name=f"Look: {entity}"
    ).click()


def test_dead_letters_are_resubmitted_and_purged_after_a_question(page: Page, pair: Pair) -> None:
    pair.dead_letter("Test", *(ServiceBusMessage(f"letter {number}") for number in range(3)))
    expect(page.locator("#alerts")).to_contain_text(
        "The primary has 3 dead letters", timeout=WAIT_MS
    )
    entities = page.locator("#entities tbody tr:visible", has_text="letters")
    expect(entities.first).to_contain_text("Test 3", timeout=WAIT_MS)
    look(page, "letters")
    rows = page.locator("#messages tbody tr:visible")
    messages = page.locator("#messages")
    expect(rows.filter(has_text="letter 0")).to_have_count(1, timeout=WAIT_MS)

    messages.get_by_role("button", name="Purge").click()
    expect(messages).to_contain_text("Select messages first.")
    rows.filter(has_text="letter 0").get_by_role("checkbox").click()
    messages.get_by_role("button", name="Purge").click()
    expect(page.get_by_text("Delete 1 message of")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Delete 1 message of")).to_be_hidden()
    assert pair.letters() == ([], ["letter 0", "letter 1", "letter 2"])

    with pair.east.faults.hang():
        messages.get_by_role("button", name="Look").first.click()
        expect(rows).to_have_count(0)
        expect(messages.get_by_role("button", name="Purge")).to_be_disabled()
    checkbox = rows.filter(has_text="letter 0").get_by_role("checkbox")
    expect(checkbox).not_to_be_checked(timeout=WAIT_MS)
    checkbox.click()
    messages.get_by_role("button", name="Purge").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Purge").click()
    expect(messages).to_contain_text("Purged 1 message of", timeout=WAIT_MS)
    assert pair.letters() == ([], ["letter 1", "letter 2"])

    rows.filter(has_text="letter 1").get_by_role("checkbox").click()
    messages.get_by_role("button", name="Resubmit").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Resubmit").click()
    expect(messages).to_contain_text("Resubmitted 1 message of", timeout=WAIT_MS)
    assert pair.letters() == (["letter 1"], ["letter 2"])


def test_a_question_is_about_the_entity_that_it_names(page: Page, pair: Pair) -> None:
    """Also if its answer comes after a look into another entity."""
    pair.dead_letter("Test", ServiceBusMessage("letter to purge"))
    rows = page.locator("#messages tbody tr:visible", has_text="letter to purge")
    entity = page.locator("#entities tbody tr:visible", has_text="letters").first
    expect(entity.locator("td.critical")).to_be_visible(timeout=WAIT_MS)
    look(page, "letters")
    page.get_by_label("Filter by name").fill("")
    rows.get_by_role("checkbox").click(timeout=WAIT_MS)
    page.locator("#messages").get_by_role("button", name="Purge").click()
    dialog = page.get_by_role("alertdialog")
    expect(dialog).to_contain_text("of the dead-letter queue of 'letters' on the primary?")

    # The question covers the page, but a click may have been on its way.
    page.locator('[aria-label="Look: payments"]:visible').first.dispatch_event("click")
    expect(page.locator("#messages")).to_contain_text("of 'payments' on the", timeout=WAIT_MS)
    dialog.get_by_role("button", name="Purge").click()

    expect(page.locator("#messages")).to_contain_text(
        "Purged 1 message of the dead-letter queue of 'letters'", timeout=WAIT_MS
    )
    assert "letter to purge" not in pair.letters()[1]


def test_a_message_with_script_in_every_field_is_text(page: Page, pair: Pair) -> None:
    hostile = ServiceBusMessage(
        f"<div>{HOSTILE}</div>",
        message_id=HOSTILE[:100],
        subject=HOSTILE,
        content_type=HOSTILE,
        correlation_id=HOSTILE,
        to=HOSTILE,
        reply_to=HOSTILE,
        application_properties={HOSTILE: HOSTILE},
    )
    pair.dead_letter(HOSTILE, hostile)
    dead = page.locator("#entities tbody tr", has_text="letters").locator("td.critical")
    expect(dead).to_be_visible(timeout=WAIT_MS)
    look(page, "letters")
    row = page.locator("#messages tbody tr:visible", has_text="<div>").first
    expect(row).to_contain_text(HOSTILE[:40], timeout=WAIT_MS)
    row.get_by_role("button", name="Show").click()
    for form in ("XML", "text", "JSON", "hex"):
        page.locator("#messages").get_by_role("radio", name=form).click()
        expect(page.locator("pre.body")).not_to_be_empty()
    page.locator("#messages").get_by_role("radio", name="text").click()
    expect(page.locator("pre.body")).to_have_text(f"<div>{HOSTILE}</div>")
    shown = page.inner_text("#messages")
    assert shown.count("<script>window.hacked=1</script>") >= 6
    assert "{{ 7*7 }}" in shown
    assert page.evaluate("window.hacked") is None
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("document.querySelectorAll('main script').length") == 0


def test_half_of_a_surrogate_pair_does_not_keep_the_message_from_being_shown(
    page: Page, pair: Pair
) -> None:
    pair.dead_letter("Odd", ServiceBusMessage('{"odd": "\\ud800"}'))
    dead = page.locator("#entities tbody tr", has_text="letters").locator("td.critical")
    expect(dead).to_be_visible(timeout=WAIT_MS)
    look(page, "letters")
    row = page.locator("#messages tbody tr:visible", has_text="odd")
    row.get_by_role("button", name="Show").click(timeout=WAIT_MS)
    expect(page.locator("pre.body")).to_contain_text('"odd": "\\ud800"', timeout=WAIT_MS)
    expect(page.locator("#messages")).to_contain_text("enqueuedTime")


def test_a_filter_that_is_wrong_says_why(page: Page, pair: Pair) -> None:
    page.wait_for_function("document.querySelector('#entities').innerText.includes('payments')")
    look(page, "payments")
    messages = page.locator("#messages")
    expect(messages).to_contain_text("No matching messages in 'payments'", timeout=WAIT_MS)
    messages.get_by_label("Filter, such as").fill("amount >")
    messages.get_by_role("button", name="Look").first.click()
    expect(messages.get_by_role("alert")).to_contain_text("is not valid", timeout=WAIT_MS)


def test_a_fault_can_be_started_and_ended(page: Page, pair: Pair) -> None:
    faults, question = page.locator("#faults"), page.get_by_role("alertdialog")
    faults.get_by_label("Duration").fill("10m")
    faults.get_by_role("button", name="Start").click()
    expect(question).to_contain_text("Start the fault 'unreachable' for the whole primary, for 10m")
    expect(question).to_contain_text("you cannot end it: it ends after 10m")
    question.get_by_role("button", name="Cancel").click()
    expect(question).to_be_hidden()
    expect(faults).to_contain_text("No faults are active")

    faults.get_by_label("Kind").click()
    page.get_by_role("option", name="hang: no answer").click()
    faults.get_by_role("button", name="Start").click()
    expect(question).to_contain_text("Start the fault 'hang' for the whole primary, for 10m")
    question.get_by_role("button", name="Start").click()
    expect(faults).to_contain_text("Started fault", timeout=WAIT_MS)
    seconds_until(page, "The primary does not answer")
    faults.get_by_role("button", name="End").click(timeout=WAIT_MS)
    question.get_by_role("button", name="End").click()
    expect(faults).to_contain_text("Ended fault", timeout=WAIT_MS)
    expect(faults).to_contain_text("No faults are active", timeout=WAIT_MS)
    seconds_until(page, "Both namespaces answer")


def test_times_are_in_the_viewers_zone_with_utc_on_hover(page: Page) -> None:
    page.wait_for_function(
        """() => {  // Tokyo is 9 hours ahead
            const time = document.querySelector('.top time');
            const [local, utc] = [time.innerText.slice(0, 2), time.title.slice(11, 13)].map(Number);
            return time.title.endsWith(' UTC') && (local - utc + 24) % 24 === 9;
        }""",
        timeout=WAIT_MS,
    )


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
def test_people_with_a_keyboard_or_a_screen_reader_can_use_it(
    dashboard: str, open_window: Callable[..., Window], width: int, scheme: str
) -> None:
    settings = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    window = open_window(dashboard, **settings)
    page = window.page
    page.wait_for_function("document.querySelectorAll('.node.ok').length >= 2", timeout=WAIT_MS)
    page.wait_for_selector(f"body.body--{scheme}")
    assert window.problems == []
    page.evaluate(axe_source())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [
        f"{one['id']}: {node['html'][:200]} {node.get('failureSummary', '')[:200]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:3]
    ]
    assert serious == []
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert overflow <= 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the messages"
    window.problems.clear()  # axe's own style is refused, as it should be
