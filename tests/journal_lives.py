"""Starting `journal_process.py` as processes, letting them go together, killing them, reading what they said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRIPT = Path(__file__).parent / "journal_process.py"


@contextmanager
def process(what: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(SCRIPT), what, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def lines(child: subprocess.Popen[str]) -> Iterator[list[object]]:
    """What it says, as it says it, until it ends; a line that the kill cut is left out."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.endswith("]\n"):
            yield json.loads(line)


def together(what: str, arguments: list[tuple[object, ...]]) -> list[list[list[object]]]:
    """The words of processes that are let go at the same moment; all must end well."""
    children = []
    try:
        for each in arguments:
            manager = process(what, *each)
            children.append((manager, manager.__enter__()))
        for _, child in children:
            go(child)
        said = [list(lines(child)) for _, child in children]
        assert [child.wait(60) for _, child in children] == [0] * len(children)
        return said
    finally:
        for manager, _ in children:
            manager.__exit__(None, None, None)
