"""Two processes fight for one run, and one of them is frozen meanwhile; SQLite and Postgres (issue 3)."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pilothouse.errors import OwnedElsewhere
from pilothouse.events import Completed, Noted, TurnStarted
from pilothouse.runs.controller import RunController
from pilothouse.testing import ScriptedRuntime
from postgres_server import shared_dsn
from run_process import END, TIMING, journal_at

SCRIPT = Path(__file__).parent.parent / "run_process.py"
_numbers = itertools.count()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "journal.db")
    return f"{shared_dsn()}#fight_{os.getpid()}_{next(_numbers)}"


async def test_a_frozen_owner_wakes_up_to_a_run_that_is_not_its_own(place: str) -> None:
    """RC-16, RC-49, §5.17: stopped past its lease, taken over, continued: its write is refused by the store, its task
    ends, and those who wait there get the end that the new owner wrote."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("go\n")
            child.stdin.flush()
            for _ in range(10):
                assert json.loads(child.stdout.readline())[0] == "stored"
            os.kill(child.pid, signal.SIGSTOP)
            journal = journal_at(place)
            runtime = ScriptedRuntime(TurnStarted(1), Noted("test/second"), END)
            async with RunController(runtime, journal=journal, timing=TIMING) as runs:
                assert (await runs.inspect("contested")).ownership == "elsewhere"
                while True:  # its process lives, so only its lease can end
                    try:
                        await runs.recover("contested")
                    except OwnedElsewhere:
                        await journal.changed("contested", 10**9, timeout=0.05)
                    else:
                        break
                assert (await runs.run("contested").wait()).outcome == Completed()
                taken = await runs.inspect("contested")
                os.kill(child.pid, signal.SIGCONT)
                said = await asyncio.to_thread(lambda: [json.loads(line) for line in child.stdout or ()])
                assert child.wait(20) == 0
                assert ["ended", "completed", taken.last_seq] == said[-1]
                assert [words[1] for words in said if words[0] == "refused"] in (["fenced"], [])
                facts = await runs.events("contested")
                assert [item.seq for item in facts] == list(range(1, taken.last_seq + 1))
                fences = [item.fence for item in facts]
                assert fences == sorted(fences)
                assert set(fences) == {1, 2}
                names = [getattr(item.fact, "name", "") for item in facts if item.fence == 2]
                assert "test/first" not in names
                stored = [words[1] for words in said if words[0] == "stored"]
                assert all(facts[seq - 1].fact.kind == "noted" for seq in stored)
                assert (await journal.verify()).problems == ()
            await journal.aclose()
        finally:
            child.kill()
