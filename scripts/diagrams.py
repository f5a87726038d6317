"""Writes the generated diagrams into the docs: `python scripts/diagrams.py`. A test compares them."""

from __future__ import annotations

import re
from pathlib import Path

from pilothouse.core import calls, interrupts, lifecycle, rules
from pilothouse.loop import turn

DOCS = Path(__file__).parents[1] / "docs/design"
DIAGRAMS = {
    "calls": calls.diagram,
    "interrupts": interrupts.diagram,
    "lifecycle": lifecycle.diagram,
    "runs": rules.diagram,
    "turns": turn.diagram,
}


def filled(text: str) -> str:
    """A page with its diagrams as the tables have them now."""

    def block(found: re.Match[str]) -> str:
        return f"<!-- generated: {found[1]} -->\n```mermaid\n{DIAGRAMS[found[1]]()}```\n<!-- end -->"

    return re.sub(
        r"<!-- generated: (\w+) -->\n```mermaid\n.*?```\n<!-- end -->", block, text, flags=re.DOTALL
    )


if __name__ == "__main__":
    for page in DOCS.glob("*.md"):
        page.write_text(filled(page.read_text("utf-8")), "utf-8")
