"""A process is killed (SIGKILL) at writes of a send with staged states: end and states agree, no effect is repeated."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pilothouse import SQLiteJournal
from pilothouse.events import Completed, Noted
from state_process import built

PROGRAM = Path(__file__).parent.parent / "state_process.py"


def run(database: Path, effects: Path, at: int, when: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), str(database), str(effects), str(at), when]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def after(database: Path, effects: Path) -> tuple[tuple[int | None, int | None], bool]:
    """The states once a second process has gone on with the run, and whether there was a run."""
    journal = SQLiteJournal(database)
    async with built(journal, effects) as agent:
        boxes = agent.controllers
        if not await agent.runs.has_run("r1"):
            await journal.aclose()
            return (None, None), False
        view = await agent.runs.inspect("r1")
        committed = view.state == "terminal"
        assert [box.state for box in boxes] == ([2, 10] if committed else [None, None])
        if not committed:
            await agent.runs.recover("r1")
            await agent.runs.wait_for_terminal("r1")
            async with asyncio.timeout(30):
                while boxes[0].events[-1:] != ["completed"]:
                    await asyncio.sleep(0)
            assert boxes[0].events[0] == "resumed"
        facts = [record.fact for record in await agent.runs.events("r1")]
        assert isinstance(facts[-1].outcome, Completed)
        sealed = [fact for fact in facts if isinstance(fact, Noted) and fact.name == "controllers/committed"]
        assert len(sealed) == 1
        found = tuple(box.state for box in boxes)
        assert agent.shared_state == {
            key: value for key, value in zip("ab", found, strict=True) if value is not None
        }
    async with built(journal, effects) as agent:  # and a third one agrees with it
        assert tuple(box.state for box in agent.controllers) == found
    await journal.aclose()
    return found, True


# Of about nine writes: the registration, the intents, the results with their notes, the append that ends the run.
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", [2, 4, 6, -1])
async def test_a_killed_send_ends_with_its_states_or_without(tmp_path: Path, at: int, when: str) -> None:
    """Proof 9, TC-76, TC-78, TC-115: at some writes, and at the last one, which commits."""
    database, effects = tmp_path / "j.db", tmp_path / "effects.txt"
    killed = run(database, effects, at, when)
    assert killed.returncode == -9, (killed.returncode, killed.stderr)
    states, there = await after(database, effects)
    assert there
    assert max(Counter(effects.read_text().split()).values()) == 1  # promise 4
    # A call that was killed between its start and its end is unknown: its value does not count.
    assert states in {(2, 10), (2, None), (None, 10), (1, 10), (1, None)}
    if at == -1:
        assert states == (2, 10)
