"""What a turn on disk costs, as counts: commits, statements, pages of the log, waits and passes of the event loop."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw

from pilothouse import AgentController
from pilothouse.journal import SQLiteJournal
from pilothouse.loop.agent import AgentLoop
from pilothouse.messages import Message, Text
from pilothouse.records import Owner, RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.testing import Meter, SampleRun, ScriptedProvider
from pilothouse.testing.sample_runs import claim_by


class CountingSelector(selectors.DefaultSelector):
    """Each pass of the event loop asks once; it waits where nothing is to be done."""

    passes = waits = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.passes += 1
        self.waits += timeout is None or timeout > 0
        return super().select(timeout)


def turns(journal: SQLiteJournal, count: int) -> Callable[[], Awaitable[None]]:
    """What makes one turn a call, each a run in a thread of its own."""
    runs = RunController(AgentLoop(ScriptedProvider(*["fine"] * count)), journal=journal)
    numbers = iter(range(count))

    async def turn() -> None:
        run_id = f"r{next(numbers)}"
        message = Message(f"{run_id}.0", "user", (Text("hi"),))
        run = await runs.start(RunSpec(run_id, f"t-{run_id}", (message,)), until="accepted")
        assert (await run.wait()).view.status == "completed"

    return turn


async def test_a_turn_is_three_commits_and_a_statement_a_fact(tmp_path: Path) -> None:
    """JR-11, JR-28: a registration, an intent, an end; each is one look, one statement a fact, one move of the head."""
    async with SQLiteJournal(tmp_path / "j.db") as journal:
        turn = turns(journal, 3)
        await turn()
        seen: list[str] = []
        database = journal._access.store._db

        def note(_cursor: apsw.Cursor, statement: str, _values: object) -> bool:
            seen.append(statement.split(maxsplit=1)[0])
            return True

        await journal._access.write(lambda: setattr(database, "exec_trace", note))
        seen.clear()
        before = journal.stats()
        await turn()
        after = journal.stats()
        database.exec_trace = None
        facts = after.facts - before.facts
        assert after.commits - before.commits == 3
        assert seen.count("BEGIN") == seen.count("COMMIT") == 3
        assert seen.count("SELECT") == 3  # one look each, whatever is to be found out (JR-1, JR-2)
        assert seen.count("INSERT") == facts + 3  # the run, its specification, its owner's lease
        assert seen.count("UPDATE") == 2
        assert len(seen) == facts + 14  # no savepoint, and nobody else wrote: no look at the schema (JR-17)


async def test_a_conversation_of_one_turn_is_three_commits(tmp_path: Path) -> None:
    """JR-11: closing it waits for no commit of its own: that its owner left is written with what comes next, or at the end."""
    path = tmp_path / "j.db"

    def owners(database: apsw.Connection) -> int:
        return int(database.execute("SELECT count(*) FROM owners").fetchall()[0][0])

    async with SQLiteJournal(path) as journal:
        for _ in range(3):
            before = journal.stats().commits
            async with AgentController(ScriptedProvider("fine"), journal=journal) as agent:
                await (await agent.send("hi")).result()
            assert journal.stats().commits - before == 3
            assert await journal._access.read(owners) == 1
    database = apsw.Connection(str(path))
    assert owners(database) == 0
    database.close()


async def test_who_leaves_owning_a_run_gives_it_up_before_it_is_gone(tmp_path: Path) -> None:
    """RC-52: an owner that has something waits until that is written."""
    async with SQLiteJournal(tmp_path / "j.db") as journal:
        run = SampleRun()
        await run.store(journal, claim=claim_by("me"))
        await journal.release(Owner("me"))
        head = await journal.head("run-1")
        assert head is not None
        assert head.owner is None
        taken = await journal.claim("run-1", claim_by("other"))
        await journal.release(Owner("me"))  # has nothing any more
        await journal.release(Owner("other"))
        assert (taken.owner, (await journal.head("run-1")).owner) == ("other", None)  # type: ignore[union-attr]


async def test_a_turn_writes_few_pages(tmp_path: Path) -> None:
    """JR-28: what has not ended is listed in one small index; what has, is entered into the large ones once."""
    async with SQLiteJournal(tmp_path / "j.db", durability="off") as journal:
        turn = turns(journal, 300)
        for _ in range(100):
            await turn()
        database = journal._access.store._db

        def written() -> int:
            return database.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]

        before = await journal._access.write(written)
        for _ in range(200):
            await turn()
        assert (await journal._access.write(written) - before) / 200 <= 21


async def test_no_statement_is_planned_twice(tmp_path: Path) -> None:
    """JR-28: where SQLite has STAT4 it would plan anew for each value that is bound, unless it is told not to."""
    async with SQLiteJournal(tmp_path / "j.db") as journal:
        await turns(journal, 1)()

        def stable(database: apsw.Connection) -> int:
            return database.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1)

        assert await journal._access.read(stable) == 1
        assert await journal._access.write(lambda: stable(journal._access.store._db)) == 1


def test_a_turn_waits_three_times(tmp_path: Path) -> None:
    """JR-11, RC-80: the loop hears of a commit and applies it in one pass, and goes on in the next; one task beside the run's."""
    selector = CountingSelector()

    async def main() -> None:
        async with SQLiteJournal(tmp_path / "j.db", durability="off") as journal:
            turn = turns(journal, 30)
            for _ in range(10):
                await turn()
            found = []
            for _ in range(10):
                passes, waits = selector.passes, selector.waits
                await turn()
                found.append((selector.passes - passes, selector.waits - waits))
            assert min(found) <= (9, 3), found
            async with Meter() as meter:
                await turn()
            assert meter.tasks == 2

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(main())
