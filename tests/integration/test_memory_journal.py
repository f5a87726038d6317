"""The journal in memory keeps the whole contract (run-controller §3.13)."""

from __future__ import annotations

from typing import Any

import pytest

from pilothouse.contracts import Journal
from pilothouse.journal import MemoryJournal
from pilothouse.journal.verify import verify
from pilothouse.records import RecordPage
from pilothouse.testing import JournalConformance, SampleRun


class TestMemoryJournal(JournalConformance):
    async def open_journal(self) -> Journal:
        return MemoryJournal()


class Busy:
    """A journal to which another process writes between any two reads."""

    def __init__(self, journal: Journal, run: SampleRun, times: int) -> None:
        self._journal = journal
        self._run = run
        self._times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def read(self, run_id: str, **asked: Any) -> RecordPage:
        if self._times:
            self._times -= 1
            await self._run.add(self._journal, 2)
        return await self._journal.read(run_id, **(asked | {"limit": 3}))


@pytest.mark.parametrize("times", [0, 1, 5])
async def test_a_run_that_goes_on_while_it_is_checked_is_no_problem(times: int) -> None:
    """JR-7: `pilothouse runs verify` beside a server tells no false alarm; each head is compared with the facts up to it."""
    journal, run = MemoryJournal(), SampleRun()
    await run.store(journal)
    await run.add(journal, 4)
    found = await verify(Busy(journal, run, times))
    assert (found.problems, found.runs) == ((), 1)
    assert found.facts >= 5


async def test_facts_that_no_head_knows_are_a_problem() -> None:
    """JR-7: more than the run says, also where it went on meanwhile."""
    journal, run = MemoryJournal(), SampleRun()
    await run.store(journal)
    await run.add(journal, 4)
    kept = await journal.head("run-1")
    assert kept is not None

    class Behind(Busy):
        async def head(self, run_id: str) -> Any:
            return kept

    (problem,) = (await verify(Behind(journal, run, 2))).problems
    assert "the run says 5 facts and has" in problem
