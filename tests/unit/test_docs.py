"""The documentation's examples run, in the order in which a reader meets them."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from pilothouse.core import calls, interrupts, lifecycle, rules
from pilothouse.loop import turn

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "```python" in page.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_the_python_blocks_of_a_page_run_in_one_program(page: Path) -> None:
    """Top-level await is allowed, as in `python -m asyncio`; the assertions on the page are the test."""
    text = page.read_text("utf-8")
    names: dict[str, object] = {"__name__": "docs"}
    for found in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        line = text[: found.start(1)].count("\n")
        code = compile(
            "\n" * line + found[1], str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result


DRAWN = {
    "interrupts": ("agents", interrupts.diagram),
    "lifecycle": ("lifecycle", lifecycle.diagram),
    "runs": ("runs", rules.diagram),
    "turns": ("loop", turn.diagram),
    "calls": ("loop", calls.diagram),
}


@pytest.mark.parametrize("name", DRAWN)
def test_the_diagrams_are_those_of_the_tables(name: str) -> None:
    """A picture in the docs is drawn from the code's table, so it cannot tell another story."""
    file, diagram = DRAWN[name]
    page = (DOCS / "design" / f"{file}.md").read_text("utf-8")
    drawn = re.search(rf"<!-- generated: {name} -->\n```mermaid\n(.*?)```", page, re.DOTALL)
    assert drawn is not None
    assert drawn[1] == diagram()


def test_every_link_of_a_page_leads_somewhere() -> None:
    """Links to files, from the README and each page of the docs."""
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    links = [
        (page, found)
        for page in pages
        for found in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8"))
    ]
    assert links
    assert [(str(page), link) for page, link in links if not (page.parent / link).exists()] == []
