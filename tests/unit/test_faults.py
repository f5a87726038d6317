"""The journal that fails on demand keeps the contract otherwise."""

from __future__ import annotations

import asyncio

import pytest

from pilothouse.contracts import Journal
from pilothouse.errors import FenceConflict, JournalBusy, JournalFull, JournalUnavailable
from pilothouse.journal import MemoryJournal
from pilothouse.testing import FaultyJournal, JournalConformance, SampleRun
from pilothouse.testing.journal_suite.checking import all_records


class TestFaultyJournal(JournalConformance):
    async def open_journal(self) -> Journal:
        return FaultyJournal(MemoryJournal())


@pytest.fixture
async def journal() -> FaultyJournal:
    return FaultyJournal(MemoryJournal())


async def test_a_refused_write_stores_nothing(journal: FaultyJournal) -> None:
    run = SampleRun()
    fault = journal.fail(at=3, error=JournalFull("full"), times=2)
    await run.store(journal)
    await run.add(journal)
    for _ in range(2):
        with pytest.raises(JournalFull):
            await run.add(journal)
    assert fault.struck == 2
    assert fault.reached.is_set()
    await run.add(journal)
    assert len(await all_records(journal, "run-1")) == 3


async def test_an_uncertain_write_is_stored_and_not_told(journal: FaultyJournal) -> None:
    """RC-15: looking the event up, or the same append again, settles it."""
    run = SampleRun()
    await run.store(journal)
    journal.fail(when="after")
    records = run.notes(2)
    with pytest.raises(JournalUnavailable):
        await run.append(journal, records)
    assert await journal.find("run-1", records[0].event_id) == records[0]
    assert (await run.append(journal, records)).duplicate


@pytest.mark.parametrize(("when", "stored"), [("before", 1), ("after", 2)])
async def test_a_hanging_write_goes_on_when_it_is_let_go(
    journal: FaultyJournal, when: str, stored: int
) -> None:
    run = SampleRun()
    await run.store(journal)
    hang = journal.hang(when=when)  # type: ignore[arg-type]
    writing = asyncio.create_task(run.add(journal))
    await hang.reached.wait()
    assert len(await all_records(journal, "run-1")) == stored
    assert not writing.done()
    hang.release()
    await writing
    assert len(await all_records(journal, "run-1")) == 2


async def test_a_stolen_run_is_fenced_by_the_store(journal: FaultyJournal) -> None:
    """RC-16."""
    run = SampleRun()
    await run.store(journal)
    journal.steal(at=2, by="other")
    await run.add(journal)
    with pytest.raises(FenceConflict) as caught:
        await run.add(journal)
    assert caught.value.actual == 2
    head = await journal.head("run-1")
    assert head is not None
    assert head.owner == "other"


@pytest.mark.parametrize(("when", "stored"), [("before", 1), ("after", 2)])
async def test_after_a_crash_nothing_comes_back(journal: FaultyJournal, when: str, stored: int) -> None:
    """Run-controller §3.15: the next process uses what was stored."""
    run = SampleRun()
    await run.store(journal)
    crash = journal.crash(when=when)  # type: ignore[arg-type]
    writing = asyncio.create_task(run.add(journal))
    await crash.reached.wait()
    reading = asyncio.create_task(journal.head("run-1"))
    await asyncio.wait((writing, reading), timeout=0.01)
    assert not writing.done()
    assert not reading.done()
    for task in (writing, reading):
        task.cancel()
    await asyncio.gather(writing, reading, return_exceptions=True)
    await journal.aclose()
    assert len(await all_records(journal.inner, "run-1")) == stored
    await SampleRun("next").store(journal.inner)


async def test_an_outage_ends(journal: FaultyJournal) -> None:
    """RC-15: every call fails, until the journal is back."""
    run = SampleRun()
    await run.store(journal)
    journal.fail(error=JournalBusy("busy"), times=None, on=("append", "find", "head"))
    for _ in range(3):
        with pytest.raises(JournalBusy):
            await run.add(journal)
        with pytest.raises(JournalBusy):
            await journal.find("run-1", "accepted")
    hang = journal.hang(on=("list",))
    journal.heal()
    await run.add(journal)
    assert hang.struck == 0
    assert [call for call, _ in journal.calls].count("append") == 4
