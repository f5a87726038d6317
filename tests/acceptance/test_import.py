"""Importing Pilothouse costs next to nothing, and its first turn only what it needs (performance.md)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "pydantic",
    "httpx",
    "httpx2",
    "starlette",
    "uvicorn",
    "typer",
    "rich",
    "apsw",
    "openai",
    "anthropic",
    "xllamacpp",
}


def modules_after(code: str) -> set[str]:
    found = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(found.stdout.splitlines()[-1]))


FIRST_TURN = """
import asyncio
from pilothouse import AgentController

async def model(messages):
    yield "ok"

async def main():
    await (await AgentController(model).send("hi")).result()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "code",
    [
        "import pilothouse",
        "from pilothouse import AgentController, RunController, LoopConfig, MemoryJournal, Message",
        FIRST_TURN,
    ],
    ids=["package", "names", "first turn"],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    """No HTTP client, pydantic, server, command line or SDK before it is needed."""
    assert {name.split(".")[0] for name in modules_after(code)} & HEAVY == set()


def test_a_first_turn_without_tools_does_without_their_side() -> None:
    """Schemas, checks, approvals at work, running calls, resuming: each half a millisecond of a first answer."""
    loaded = modules_after(FIRST_TURN)
    tools = {"phase", "checking", "running", "schema", "signature", "jsonschema", "output", "resume", "stuck"}
    assert loaded & {f"pilothouse.loop.{name}" for name in tools} == set()
    assert (
        loaded & {"dataclasses", "difflib", "mimetypes", "pathlib", "urllib.parse"} - bare_modules() == set()
    )
    assert len([name for name in loaded if name.startswith("pilothouse")]) < 125


def bare_modules() -> set[str]:
    """What Python, asyncio and msgspec load by themselves."""
    return modules_after("import asyncio, msgspec")


def test_every_public_name_exists_and_is_listed_once() -> None:
    """The lazy table and what it promises to type checkers agree."""
    import pilothouse

    names = pilothouse.__all__
    assert len(names) == len(set(names))
    assert all(getattr(pilothouse, name) is not None for name in names)
    assert set(names) <= set(dir(pilothouse))


def test_a_misspelt_name_is_answered_with_the_right_one() -> None:
    """Python's own suggestion works for the lazy names."""
    found = subprocess.run(
        [sys.executable, "-c", "import pilothouse; pilothouse.AgentControler"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Did you mean: 'AgentController'?" in found.stderr
