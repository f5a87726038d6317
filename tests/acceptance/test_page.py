"""The page in a real browser, over real servers."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from pilothouse import AgentController, SQLiteJournal, run_sync
from served import HELD, Gate, Served

pytestmark = pytest.mark.browser


def open_page(browser, served: Served):
    page = browser.new_page()
    page.set_default_timeout(30_000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    # What the policy refuses is told here only.
    page.on("console", lambda said: errors.append(said.text) if "-src" in said.text else None)
    page.errors = errors
    page.goto(f"{served.url}/")
    return page


def send(page, text: str) -> None:
    page.get_by_test_id("composer").fill(text)
    page.get_by_test_id("composer").press("Enter")


def answers(page):
    return page.locator('[data-testid="message"][data-role="assistant"]')


def wait_text(page, text: str) -> None:
    answers(page).filter(has_text=text).last.wait_for()


def wait_status(page, status: str) -> None:
    page.locator(f'[data-testid="run-status"][data-status="{status}"]').wait_for()


def test_send_stream_stop_and_the_next_message(tmp_path: Path, gate: Gate, browser) -> None:
    """Send, see it stream, stop it: cancelled, the text stays, the next message works."""
    with Served(tmp_path, str(HELD), env=gate.env) as served:
        page = open_page(browser, served)
        send(page, "hold on")
        wait_text(page, "First half.")
        page.get_by_test_id("stop").click()
        wait_status(page, "cancelled")
        wait_text(page, "First half.")
        send(page, "hello")
        wait_text(page, "You said hello.")
        wait_status(page, "completed")
        assert page.errors == []
        page.close()


def test_a_new_page_takes_what_is_typed(tmp_path: Path, gate: Gate, browser) -> None:
    """The message box has the focus from the start: no click is needed to begin."""
    with Served(tmp_path, str(HELD), env=gate.env) as served:
        page = open_page(browser, served)
        page.wait_for_function("document.activeElement.dataset.testid === 'composer'")
        page.keyboard.type("hello")
        page.keyboard.press("Enter")
        wait_text(page, "You said hello.")
        assert page.errors == []
        page.close()


def test_reload_in_mid_answer_sees_the_same_answer_go_on(tmp_path: Path, gate: Gate, browser) -> None:
    """Issue 2: the answer is one, before and after the reload."""
    with Served(tmp_path, str(HELD), env=gate.env) as served:
        page = open_page(browser, served)
        send(page, "hold on")
        wait_text(page, "First half.")
        page.reload()
        wait_text(page, "First half.")
        gate.open()
        wait_text(page, "Second half.")
        wait_status(page, "completed")
        assert answers(page).count() == 1
        assert answers(page).last.inner_text().count("First half.") == 1
        assert page.errors == []
        page.close()


def test_a_killed_server_leaves_the_answer_marked_and_a_person_decides(
    tmp_path: Path, gate: Gate, browser
) -> None:
    """SIGKILL in mid-answer, restart, reload: unknown; abandon and recover from the page; the next message works."""
    served = Served(tmp_path, str(HELD), env=gate.env).start()
    page = open_page(browser, served)
    send(page, "hold on")
    wait_text(page, "First half.")
    thread = page.url.partition("#")[2]
    served.wait_saved("First half.")
    served.kill()
    with Served(tmp_path, str(HELD), env=gate.env) as again:
        page.goto(f"{again.url}/#{thread}")
        wait_status(page, "unknown")
        wait_text(page, "First half.")
        page.get_by_test_id("recover").click()
        gate.open()
        wait_text(page, "Second half.")
        wait_status(page, "completed")
        send(page, "hold it")
        wait_text(page, "You said hold it. First half.")
        again.wait_saved("You said hold it. First half.")
        again.kill()
    with Served(tmp_path, str(HELD), env=gate.env) as third:
        page.goto(f"{third.url}/#{thread}")
        wait_status(page, "unknown")
        page.get_by_test_id("abandon").click()
        page.get_by_test_id("dialog-confirm").click()
        page.get_by_test_id("recover").wait_for(state="detached")
        send(page, "hello")
        wait_text(page, "You said hello.")
        wait_status(page, "completed")
        page.close()


WORDS = """
async def agent(messages):
    said = messages[-1].text
    yield "word " * 45_000 if said.startswith("question") else f"You said {said}."
"""


def test_a_conversation_that_no_request_could_hold_goes_on(tmp_path: Path, browser) -> None:
    """SV-100, SV-101: what was said is the server's; the page tells the end of it, and is at the head all the same."""

    made = tmp_path / "words.py"
    made.write_text(WORDS)
    words = runpy.run_path(str(made))["agent"]

    async def seed() -> None:
        async with SQLiteJournal(tmp_path / "chat.db") as journal:
            async with AgentController(words, journal=journal, thread_id="large") as agent:
                for n in range(20):  # 4.5 MB of answers
                    await (await agent.send(f"question {n}")).result()

    run_sync(seed())
    with Served(tmp_path, str(made)) as served:
        page = open_page(browser, served)
        page.goto(f"{served.url}/#/t/large")
        answers(page).nth(19).wait_for()
        send(page, "hello")
        wait_text(page, "You said hello.")
        wait_status(page, "completed")
        assert answers(page).count() == 21  # on the same branch
        assert page.get_by_test_id("notice").count() == 0
        page.close()


def test_a_tool_is_shown_with_arguments_and_result(tmp_path: Path, gate: Gate, browser) -> None:
    """Tool calls as cards with their state."""
    with Served(tmp_path, str(HELD), env=gate.env) as served:
        page = open_page(browser, served)
        send(page, "ring the bell")
        page.locator('[data-testid="tool-call"][data-state="running"]').wait_for()
        gate.open()
        page.locator('[data-testid="tool-call"][data-state="succeeded"]').wait_for()
        wait_text(page, "The bell: rang 2")
        page.close()


@pytest.mark.local_model
def test_the_real_local_model_answers_in_the_page(tmp_path: Path, browser) -> None:
    """Without a key or a configuration: the sky, streamed; stop; a reload in mid-answer goes on."""
    with Served(tmp_path) as served:
        assert any("local model" in line for line in served.lines)
        page = open_page(browser, served)
        send(page, "Why is the sky blue?")
        page.locator('[data-testid="message"][data-phase="streaming"]').wait_for()
        page.reload()
        wait_status(page, "completed")
        wait_text(page, "sky")
        assert answers(page).count() == 1
        send(page, "Tell me a very long story about a lighthouse.")
        page.locator('[data-testid="message"][data-phase="streaming"]').wait_for()
        page.get_by_test_id("stop").click()
        wait_status(page, "cancelled")
        page.close()
