"""The example agent with files and a shell: a small real job, with approvals, in one folder."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from pilothouse.errors import ToolError
from pilothouse.events import Completed
from pilothouse.loop.agent import AgentLoop
from pilothouse.testing import ScriptedProvider
from pilothouse.testing.scripted import call

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    for key in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    yield importlib.import_module("sandbox")
    sys.modules.pop("sandbox", None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    (root / "deep").mkdir(parents=True)
    (root / "one.txt").write_text("one two three")
    (root / "deep" / "two.txt").write_text("four five")
    return root


async def test_it_does_its_job_and_asks_before_it_writes_or_runs(sandbox: Any, folder: Path) -> None:
    asked: list[str] = []

    def allow(name: str, arguments: dict[str, Any]) -> bool:
        asked.append(name)
        return True

    told: list[str] = []
    result = await sandbox.work(folder, "count", allow, told.append)
    assert result.outcome == Completed()
    assert asked == ["write_file", "run"]
    counts = (folder / "counts.md").read_text()
    assert "| deep/two.txt | 2 |" in counts
    assert "| one.txt | 3 |" in counts
    assert "5 total" in "".join(told)


async def test_what_is_not_allowed_is_not_done(sandbox: Any, folder: Path) -> None:
    told: list[str] = []
    result = await sandbox.work(folder, "count", lambda *_: False, told.append)
    assert result.outcome == Completed()
    assert not (folder / "counts.md").exists()
    assert "as you wished" in "".join(told)


async def test_nothing_outside_of_the_folder_can_be_reached(
    sandbox: Any, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    box = sandbox.Sandbox(folder)
    for path in ("../secret.txt", str(tmp_path / "secret.txt"), "link.txt", "deep/../../secret.txt"):
        with pytest.raises(ToolError, match="outside"):
            box.inside(path)
    provider = ScriptedProvider(
        [
            call("list_files", call_id="l"),
            call("read_file", {"path": "../secret.txt"}, call_id="r"),
            call("read_file", {"path": "none"}, call_id="n"),
        ],
        "done",
    )
    result = await AgentLoop(provider, tools=box.tools()).ask("x")
    listed, refused, missing = [message.text for message in result.messages if message.role == "tool"]
    assert "link.txt" not in listed
    assert refused == "../secret.txt is outside of the folder"
    assert "No such file" in missing


async def test_a_stopped_command_takes_its_children_with_it(sandbox: Any, folder: Path) -> None:
    run = next(tool for tool in sandbox.Sandbox(folder).tools() if tool.name == "run")
    task = asyncio.create_task(run(command="sleep 60 & echo $! > pid; wait"))
    while not (folder / "pid").exists() or not (folder / "pid").read_text().strip():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    child = int((folder / "pid").read_text())
    async with asyncio.timeout(30):  # a signal is not an instant
        with suppress(psutil.NoSuchProcess):
            while psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0)


@pytest.mark.parametrize("passes", range(8))
async def test_a_stop_while_a_command_is_being_started_leaves_nothing_behind(
    sandbox: Any, folder: Path, passes: int
) -> None:
    """Wherever the stop comes in its start: the shell's child is not left to itself."""
    run = next(tool for tool in sandbox.Sandbox(folder).tools() if tool.name == "run")
    mark = f"6{passes}.{os.getpid()}"
    task = asyncio.create_task(run(command=f"sleep {mark} & sleep {mark}; wait"))
    for _ in range(passes):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(30):
        while any(mark in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])):
            await asyncio.sleep(0)


def test_the_script_runs_as_it_stands(folder: Path) -> None:
    env = {key: value for key, value in os.environ.items() if not key.endswith("_API_KEY")}
    done = subprocess.run(
        [sys.executable, EXAMPLES / "sandbox.py", folder],
        input="y\ny\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=env,
    )
    assert done.stdout.rstrip().endswith("(completed)")
    assert (folder / "counts.md").exists()
