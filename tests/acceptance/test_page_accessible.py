"""The page for everybody: no axe-core violation in any state, theme or width; all of it by the keyboard; its tree as kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_page import answers, open_page, send, wait_status, wait_text

from served import HELD, ROOT, Gate, Served

pytestmark = pytest.mark.browser

AXE = ROOT / "web/node_modules/axe-core/axe.min.js"
KEPT = Path(__file__).parent / "kept/page.aria.yml"
LOOKS = [
    ("light", 1280, 800),
    ("dark", 1280, 800),
    ("light", 390, 800),
    ("dark", 390, 800),
    ("light", 320, 256),
]
"""The last one is a common screen at 400 %."""


def violations(page) -> list[str]:
    """What axe-core finds, a line each."""
    if not page.evaluate("typeof axe !== 'undefined'"):
        page.evaluate(AXE.read_text("utf-8"))  # not a script of the page: its policy allows none but its own
    found = page.evaluate("axe.run(document)")
    return [
        f"{each['id']} ({each['impact']}): {node['target']} {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


def in_every_look(page) -> None:
    """Wide and narrow, light and dark; nothing is cut off at the side."""
    for scheme, width, height in LOOKS:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.set_viewport_size({"width": width, "height": height})
        assert violations(page) == [], (scheme, width)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (scheme, width)
    page.set_viewport_size({"width": 1280, "height": 800})


def _timeless(tree: str) -> str:
    tree = re.sub(r"#/t/[0-9a-f-]+", "#/t/THREAD", tree)
    return re.sub(r"\d+:\d\d( [AP]M)?|\d+ (s|min|h) ago|just now|now", "TIME", tree)


def test_every_state_is_accessible_in_every_look(tmp_path: Path, gate: Gate, browser) -> None:
    """Issue 8: before the first message, in mid-answer, stopped, with a tool's card, unknown after a crash."""
    with Served(tmp_path, str(HELD), env=gate.env) as served:
        page = open_page(browser, served)
        in_every_look(page)
        send(page, "hold on")
        wait_text(page, "First half.")
        in_every_look(page)
        page.get_by_test_id("stop").click()
        wait_status(page, "cancelled")
        in_every_look(page)
        send(page, "ring the bell")
        page.get_by_test_id("tool-call").first.wait_for()
        gate.open()
        wait_status(page, "completed")
        in_every_look(page)
        send(page, "hold it")
        wait_text(page, "You said hold it. First half.")
        thread = page.url.partition("#")[2]
        served.wait_saved("You said hold it. First half.")
        served.kill()
    with Served(tmp_path, str(HELD), env=gate.env) as again:
        page.goto(f"{again.url}/#{thread}")
        wait_status(page, "unknown")
        in_every_look(page)
        page.get_by_test_id("abandon").click()
        page.get_by_test_id("dialog-confirm").wait_for()
        in_every_look(page)
        page.close()


PROSE = (
    """שלום עולם, זה טקסט.

- [x] moored
- [ ] paid

| harbour | """
    + " | ".join(f"column{n}" for n in range(14))
    + """ |
|"""
    + "---|" * 15
    + """
| Tobermory | """
    + " | ".join(f"value{n}" for n in range(14))
    + """ |

```python
# שלום
print("hello")
```
"""
)


def test_what_an_answer_is_written_in_is_for_everybody(tmp_path: Path, gate: Gate, browser) -> None:
    """Issue 8: task lists have names, words of a wide table stay whole, each block has its own direction, code has one."""
    with Served(tmp_path, str(HELD), env=gate.env) as served:
        page = open_page(browser, served)
        page.get_by_test_id("composer").fill(PROSE)
        assert page.get_by_test_id("composer").evaluate(DIRECTION) == "rtl"
        page.get_by_test_id("composer").press("Enter")
        wait_status(page, "completed")
        in_every_look(page)
        answer = answers(page).last
        assert answer.get_by_role("checkbox", name="Done").is_checked()
        assert not answer.get_by_role("checkbox", name="To do").is_checked()
        assert answer.get_by_text("Tobermory", exact=True).evaluate(LINES) == 1
        assert answer.locator("pre").evaluate(DIRECTION) == "ltr"
        send(page, "hold it\n\nשלום")
        wait_text(page, "First half.")
        assert answers(page).last.get_by_text("שלום").evaluate(DIRECTION) == "rtl"
        assert page.get_by_text("hold it").first.evaluate(DIRECTION) == "ltr"
        assert page.errors == []
        page.close()


DIRECTION = "it => getComputedStyle(it).direction"
LINES = "it => { const all = document.createRange(); all.selectNodeContents(it); return all.getClientRects().length }"


def test_a_chat_by_the_keyboard_alone(tmp_path: Path, gate: Gate, browser) -> None:
    """Issue 8: type, send, stop with Escape or by Tab, write again; the focus is never lost."""
    with Served(tmp_path, str(HELD), env=gate.env) as served:
        page = open_page(browser, served)
        page.wait_for_function("document.activeElement.dataset.testid === 'composer'")
        page.keyboard.type("hold on")
        page.keyboard.press("Enter")
        wait_text(page, "First half.")
        for _ in range(20):
            if page.evaluate("document.activeElement.dataset.testid") == "stop":
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        wait_status(page, "cancelled")
        for _ in range(30):
            if page.evaluate("document.activeElement.dataset.testid") == "composer":
                break
            page.keyboard.press("Tab")
        page.keyboard.type("hello")
        page.keyboard.press("Enter")
        wait_text(page, "You said hello.")
        wait_status(page, "completed")
        assert page.errors == []
        page.close()


def test_the_accessibility_tree_is_the_kept_one(tmp_path: Path, gate: Gate, browser) -> None:
    """Issue 8: roles and names as a screen reader is told them; a change is looked at, then kept."""
    with Served(tmp_path, str(HELD), env=gate.env) as served:
        page = open_page(browser, served)
        page.set_viewport_size({"width": 1280, "height": 800})
        send(page, "hello")
        wait_text(page, "You said hello.")
        wait_status(page, "completed")
        assert answers(page).count() == 1
        tree = _timeless(page.locator("body").aria_snapshot())
        page.evaluate("document.querySelector('main').append(document.createElement('img'))")
        assert any("image-alt" in line for line in violations(page))  # the check itself can fail
        page.close()
    assert tree.strip() == KEPT.read_text("utf-8").strip(), tree
