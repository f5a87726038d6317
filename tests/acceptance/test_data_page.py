"""A database asked through the page in a real browser: a grid and a chart, and the same ones after a reload."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_page import answers, open_page, send, wait_status, wait_text

from served import ROOT, Gate, Served

pytestmark = pytest.mark.browser

EXAMPLE = ROOT / "examples/ask_your_data.py"


def grid_rows(page) -> list[list[str]]:
    """The cells at one moment at which the grid is not being read."""
    found = page.wait_for_function(
        """() => {
          const rows = document.querySelectorAll('[data-testid="grid"][aria-busy="false"] tbody tr');
          return rows.length ? [...rows].map((row) => [...row.cells].map((cell) => cell.innerText)) : null;
        }"""
    )
    return found.json_value()


def chart_pixels(page) -> int:
    """How many different colours the chart's canvas shows: a blank one shows one."""
    page.locator('[data-testid="chart"] .canvas[data-drawn] canvas').wait_for()
    return page.evaluate(
        """() => {
          const canvas = document.querySelector('[data-testid="chart"] canvas');
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return new Set(new Uint32Array(data.buffer)).size;
        }"""
    )


def test_ask_see_grid_and_chart_reload_and_see_them_again(tmp_path: Path, browser) -> None:
    """Issue 7: asked in words; sorted, exported; drawn without any network; the same after a reload."""
    with Served(tmp_path, str(EXAMPLE)) as served:
        page = open_page(browser, served)
        outside: list[str] = []
        page.on(
            "request", lambda asked: None if asked.url.startswith(served.url) else outside.append(asked.url)
        )
        send(page, "Show me the fees by port")
        wait_text(page, "Here are the fees by port")
        wait_status(page, "completed")
        rows = grid_rows(page)
        assert [row[0] for row in rows] == ["Brest", "Cowes", "Dover", "Kinsale", "Oban"]
        assert chart_pixels(page) > 3

        # Another theme or width while it is shown: it is drawn for that.
        for scheme, width in (("dark", 390), ("light", 1280)):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 800})
            page.locator(f'[data-testid="chart"] .canvas[data-drawn="{scheme}"] canvas').wait_for()
            page.wait_for_function(
                """() => {
                  const into = document.querySelector('[data-testid="chart"] .canvas');
                  return into.querySelectorAll("canvas").length === 1 && into.scrollWidth <= into.clientWidth;
                }"""
            )

        page.locator('[data-testid="grid"] th button').nth(1).click()
        page.locator('[data-testid="grid"] th[aria-sort="ascending"]').wait_for()
        fees = [float(row[1]) for row in grid_rows(page)]
        assert fees == sorted(fees)
        with page.expect_download() as started:
            page.get_by_test_id("csv").click()
        saved = Path(started.value.path()).read_text()
        assert saved.splitlines()[0] == "port,fees"
        assert len(saved.splitlines()) == 6

        page.set_viewport_size({"width": 420, "height": 900})
        page.reload()
        assert grid_rows(page) == rows
        assert chart_pixels(page) > 3
        assert page.evaluate(
            "() => (log => log.scrollWidth <= log.clientWidth)(document.querySelector('.log'))"
        )
        send(page, "and the visits by month")
        wait_text(page, "Here are the visits by month")
        page.locator('[data-testid="grid"]').filter(has_text="Visits by month").wait_for()
        assert len(grid_rows(page)) == 12
        assert answers(page).count() >= 2
        assert outside == []
        assert page.errors == []
        page.close()


def test_a_form_shows_what_the_model_filled_in_and_what_is_missing(tmp_path: Path, browser) -> None:
    """Issue 7: values as text, never as HTML; what is missing is said; the same after a reload."""
    with Served(tmp_path, str(ROOT / "tests/acceptance/agents/booking.py")) as served:
        page = open_page(browser, served)
        send(page, "Ada <img src=x>")
        wait_text(page, "Which port?")
        for _ in range(2):
            form = page.locator('[data-testid="form"][data-complete="false"]')
            form.filter(has_text="1 missing").wait_for()
            assert form.locator("dd").first.inner_text().startswith("Ada <img src=x>")
            assert form.locator(".missing dt").all_inner_texts() == ["port"]
            page.reload()
        assert page.errors == []
        page.close()


DESK = ROOT / "tests/acceptance/agents/desk.py"


def test_what_an_answer_changes_is_seen_while_it_is_under_way(tmp_path: Path, gate: Gate, browser) -> None:
    """Issue 7: grid, chart and form are drawn after the calls, marked until the answer is complete; by whoever looks."""
    with Served(tmp_path, str(DESK), env=gate.env) as served:
        page = open_page(browser, served)
        send(page, "all ports")
        for kind in ("grid", "chart", "form"):
            page.locator(f'[data-testid="{kind}"] [data-testid="staged"]').wait_for()
        assert [row[0] for row in grid_rows(page)] == ["Brest", "Cowes", "Oban"]
        assert chart_pixels(page) > 3
        page.locator('[data-testid="form"]').filter(has_text="all ports").wait_for()
        assert page.get_by_test_id("csv").count() == 0  # there is nothing to keep yet

        other = open_page(browser, served)  # somebody else joins the run
        other.goto(page.url)
        other.locator('[data-testid="grid"] [data-testid="staged"]').wait_for()
        assert [row[0] for row in grid_rows(other)] == ["Brest", "Cowes", "Oban"]

        # The reader's own order holds when the answer is complete.
        page.locator('[data-testid="grid"] th button').nth(1).click()
        page.locator('[data-testid="grid"] th[aria-sort="ascending"]').wait_for()
        gate.open()
        wait_text(page, "There you are.")
        wait_status(page, "completed")
        for seen in (page, other):
            seen.get_by_test_id("csv").wait_for()
            assert seen.get_by_test_id("staged").count() == 0
        page.locator('[data-testid="grid"] th[aria-sort="ascending"]').wait_for()
        assert [row[0] for row in grid_rows(page)] == ["Cowes", "Oban", "Brest"]

        # An answer that fails takes back what it had shown.
        send(page, "large ones, and fail")
        page.locator('[data-testid="grid"] [data-testid="staged"]').wait_for()
        page.locator('[data-testid="grid"]').filter(has_text="large ones").wait_for()
        gate.open()
        wait_status(page, "failed")
        page.locator('[data-testid="grid"]').filter(has_text="all ports").wait_for()
        page.locator('[data-testid="form"]').filter(has_text="all ports").wait_for()
        assert page.get_by_test_id("staged").count() == 0
        assert len(grid_rows(page)) == 3
        assert page.errors == []
        other.close()
        page.close()


def test_a_first_answer_that_fails_leaves_no_panel(tmp_path: Path, gate: Gate, browser) -> None:
    """Issue 7: what was only of that answer is gone with it; the form is there, and empty."""
    with Served(tmp_path, str(DESK), env=gate.env) as served:
        page = open_page(browser, served)
        send(page, "fail")
        page.locator('[data-testid="grid"] [data-testid="staged"]').wait_for()
        page.locator('[data-testid="chart"] [data-testid="staged"]').wait_for()
        gate.open()
        wait_status(page, "failed")
        page.locator('[data-testid="form"]').filter(has_text="2 missing").wait_for()
        page.locator('[data-testid="grid"]').wait_for(state="detached")
        page.locator('[data-testid="chart"]').wait_for(state="detached")
        assert page.errors == []
        page.close()
