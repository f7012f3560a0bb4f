"""Who gets in: wrong token, missing token, expired session; and a dashboard that is read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Pair, Window, address_in, running_dashboard

TOKEN = "correct horse battery staple"
WAIT_MS = 30_000

pytestmark = [
    pytest.mark.req("X-09"),
    # The SDK forgets connections that the outage has cut.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(scope="module")
def guarded(pair: Pair) -> Iterator[str]:
    with running_dashboard(pair, "--session", "6s", PAIRBUS_DASHBOARD_TOKEN=TOKEN) as lines:
        yield address_in(lines)


def test_a_token_opens_the_page_until_the_session_ends(
    guarded: str, open_window: Callable[..., Window]
) -> None:
    window = open_window(guarded)
    page = window.page
    expect(page).to_have_url(f"{guarded}login")
    page.get_by_label("Token").fill("correct horse battery")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text("This is not the token.")
    assert [one for one in window.problems if "403" not in one] == []
    window.problems.clear()  # the browser reports the refusal that was expected

    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator(".sentence")).not_to_be_empty(timeout=WAIT_MS)
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")

    expect(page.locator(".badge")).to_have_text("read-only")
    assert page.get_by_role("button", name="Purge").count() == 0
    assert page.get_by_role("button", name="Resubmit").count() == 0
    assert page.get_by_role("checkbox", name="Select").count() == 0

    page.wait_for_url(f"{guarded}login", timeout=WAIT_MS)  # the session has ended
    page.goto(guarded)
    expect(page).to_have_url(f"{guarded}login")
    window.problems[:] = [one for one in window.problems if "WebSocket" not in one]
