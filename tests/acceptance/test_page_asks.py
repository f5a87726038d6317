"""A run that asks, on the page: what is asked is named, answered by the keyboard, or left; nothing that was written is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_page import open_page, send, wait_status, wait_text
from test_page_accessible import in_every_look

from served import ROOT, Served

pytestmark = pytest.mark.browser

ASKING = str(ROOT / "tests/acceptance/agents/asking.py")


def focused(page) -> str:
    return page.evaluate("document.activeElement.dataset.testid ?? document.activeElement.value ?? ''")


def tab_to(page, name: str) -> None:
    for _ in range(40):
        if focused(page) == name:
            return
        page.keyboard.press("Shift+Tab")
    raise AssertionError(f"{name} cannot be reached by Tab")


def test_two_payments_are_told_apart_and_answered_by_the_keyboard(tmp_path: Path, browser) -> None:
    """Issue 8: accessible in every look; each question names its call; one is approved, one denied."""
    with Served(tmp_path, ASKING) as served:
        page = open_page(browser, served)
        send(page, "pay both")
        asks = page.get_by_test_id("requests")
        asks.wait_for()
        in_every_look(page)
        assert asks.locator(".call-line").all_inner_texts() == [
            'pay {"amount":1,"to":"harbour"}',
            'pay {"amount":2,"to":"pilot"}',
        ]
        page.get_by_label("Approve").first.focus()
        page.keyboard.press("Space")
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowRight")  # within a group of choices arrows move
        assert page.get_by_label("Deny").last.is_checked()
        page.keyboard.press("Enter")
        wait_text(page, "That is done.")
        wait_status(page, "completed")
        states = page.get_by_test_id("tool-call").evaluate_all("all => all.map(it => it.dataset.state)")
        assert sorted(states) == ["refused", "succeeded"]
        assert page.errors == []
        page.close()


def test_what_is_written_while_the_run_asks_is_kept(tmp_path: Path, browser) -> None:
    """AG-140, AG-79: the box says what to do first; the draft stays, and goes out once the answer is given."""
    with Served(tmp_path, ASKING) as served:
        page = open_page(browser, served)
        send(page, "pay, please")
        page.get_by_test_id("approve").wait_for()
        composer = page.get_by_test_id("composer")
        assert composer.get_attribute("placeholder") == "Answer above to go on"
        composer.fill("and then this")
        page.keyboard.press("Enter")
        page.get_by_text("Answer what is asked above first").wait_for()
        assert composer.input_value() == "and then this"
        assert page.get_by_test_id("message").count() == 2
        tab_to(page, "approve")
        page.keyboard.press("Enter")
        wait_text(page, "That is done.")
        assert page.get_by_text("Answer what is asked above first").count() == 0
        assert composer.input_value() == "and then this"
        composer.press("Enter")
        wait_text(page, "You said and then this.")
        page.close()


def test_a_question_can_be_left(tmp_path: Path, browser) -> None:
    """AG-95: the run ends as stopped, the call gets its result, the next message works, also after a reload."""
    with Served(tmp_path, ASKING) as served:
        page = open_page(browser, served)
        send(page, "pay, please")
        page.get_by_test_id("drop").wait_for()
        page.reload()
        page.get_by_test_id("drop").click()
        wait_status(page, "cancelled")
        assert page.get_by_test_id("tool-call").get_attribute("data-state") == "cancelled"
        send(page, "hello")
        wait_text(page, "You said hello.")
        page.close()
