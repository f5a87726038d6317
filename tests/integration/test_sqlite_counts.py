"""What a SQLite journal spends, in counts: statements, commits, bytes, plans (run-controller §3.16)."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args

import apsw
import pytest
from msgspec.structs import replace

from pilothouse.errors import DuplicateConflict
from pilothouse.journal import SQLiteJournal
from pilothouse.journal.catalog_sql import ENTRY, conditions
from pilothouse.records import ClaimRequest, Owner, RunQuery, RunStateName
from pilothouse.testing import SampleRun
from pilothouse.testing.clock import START_MS
from pilothouse.testing.sample_runs import claim_by


@asynccontextmanager
async def statements(journal: SQLiteJournal) -> AsyncIterator[list[str]]:
    """What the writer's connection executes meanwhile, without the transaction's own words."""
    seen: list[str] = []
    database = journal._access.store._db

    def note(_cursor: apsw.Cursor, statement: str, _values: object) -> bool:
        seen.append(statement)
        return True

    await journal._access.write(lambda: setattr(database, "exec_trace", note))
    seen.clear()
    yield seen
    database.exec_trace = None
    seen[:] = [text for text in seen if not text.startswith(("BEGIN", "COMMIT", "PRAGMA user_version"))]


async def test_an_append_takes_four_statements_at_most(tmp_path: Path) -> None:
    """JR-28: look, one a fact, move the head; also where the status changes, or the append is refused or repeated."""
    async with SQLiteJournal(tmp_path / "j.db") as journal:
        run = SampleRun()
        await run.store(journal)
        async with statements(journal) as seen:
            await run.add(journal)
        assert len(seen) == 3
        async with statements(journal) as seen:
            await run.append(journal, run.begun())
        assert len(seen) == 3
        async with statements(journal) as seen:
            await run.add(journal, 10)
        assert len(seen) == 12
        async with statements(journal) as seen:
            await journal.renew(claim_by().owner, ttl_ms=1000, now_ms=START_MS)
        assert len(seen) == 3  # RC-78: one, and its savepoint


async def test_a_registration_takes_a_look_and_one_statement_a_row(tmp_path: Path) -> None:
    """JR-1, JR-28: the run, its request, a fact, its owner's lease; no savepoint."""
    async with SQLiteJournal(tmp_path / "j.db") as journal:
        await SampleRun().store(journal)
        async with statements(journal) as seen:
            await SampleRun("run-2", thread_id="t-2").store(journal)
        assert len(seen) == 5


async def test_a_lease_that_was_just_written_is_not_written_again(tmp_path: Path) -> None:
    """RC-49, RC-78: not by a claim within a thirty-second part of it; later, and earlier, it is what was asked for."""
    async with SQLiteJournal(tmp_path / "j.db") as journal:

        async def until_after(now_ms: int, number: int) -> int:
            claim = ClaimRequest(Owner("me"), 32_000, now_ms)
            await SampleRun(f"run-{number}", thread_id=f"t-{number}").store(journal, claim=claim)
            leases = await journal._access.read(
                lambda db: db.execute("SELECT lease_until_ms FROM owners").fetchall()
            )
            return int(leases[0][0]) - 32_000

        assert await until_after(1_000_000, 1) == 1_000_000
        assert await until_after(1_001_000, 2) == 1_000_000
        assert await until_after(1_001_001, 3) == 1_001_001
        assert await until_after(1_000_000, 4) == 1_000_000


async def test_a_registration_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """JR-1, JR-11: it takes back what it wrote, beside others of its batch."""
    async with SQLiteJournal(tmp_path / "j.db") as journal:
        await SampleRun("first", thread_id="t-first").store(journal)
        bad = SampleRun("bad", thread_id="t-bad")
        (record,) = bad.accepted()
        twice = [record, replace(record, seq=2)]
        create = journal.create(bad.registration, twice, summary=bad.summary(), claim=claim_by("bad"))
        good = SampleRun("good", thread_id="t-good")
        refused, _ = await asyncio.gather(create, good.store(journal), return_exceptions=True)
        assert isinstance(refused, DuplicateConflict)

        def rows(db: apsw.Connection) -> list[int]:
            tables = ("runs", "specs", "facts", "owners")
            return [db.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0] for table in tables]

        assert await journal._access.read(rows) == [2, 2, 2, 1]
        assert await journal.head("bad") is None
        await bad.store(journal)
        assert (await journal.verify()).problems == ()


async def test_a_goodbye_is_about_what_was_asked_for_before_it(tmp_path: Path) -> None:
    """RC-49, JR-2: a registration that is not durable yet when its owner leaves is nobody's in the end."""
    async with SQLiteJournal(tmp_path / "j.db") as journal:
        registering = asyncio.ensure_future(SampleRun().store(journal))
        await asyncio.sleep(0)
        await journal.release(claim_by().owner)
        await registering
        head = await journal.head("run-1")
        assert head is not None
        assert (head.owner, head.owner_alive) == (None, None)


async def test_one_run_alone_commits_each_append(tmp_path: Path) -> None:
    """JR-11, JR-27: no timer: an idle journal commits at once."""
    async with SQLiteJournal(tmp_path / "j.db") as journal:
        run = SampleRun()
        await run.store(journal)
        before = journal.stats().commits
        for _ in range(20):
            await run.add(journal)
        assert journal.stats().commits - before == 20


async def test_runs_that_write_together_share_commits(tmp_path: Path) -> None:
    """JR-27: 200 runs, each one fact after another: at least 20 facts a commit."""
    async with SQLiteJournal(tmp_path / "j.db") as journal:
        runs = [SampleRun(f"run-{number}", thread_id=f"t-{number}") for number in range(200)]
        await asyncio.gather(*[run.store(journal) for run in runs])
        before = journal.stats()

        async def write(run: SampleRun) -> None:
            for _ in range(50):
                await run.add(journal)

        await asyncio.gather(*[write(run) for run in runs])
        after = journal.stats()
        facts, commits = after.facts - before.facts, after.commits - before.commits
        assert facts == 10_000
        assert facts / commits >= 20
        assert (await journal.verify()).problems == ()


async def test_an_append_costs_the_same_at_the_end_of_a_long_run(tmp_path: Path) -> None:
    """JR-28: pages written an append at fact 10,000 are at most 1.5 times those at fact 100."""
    async with SQLiteJournal(tmp_path / "j.db", durability="off") as journal:
        database = journal._access.store._db

        def written() -> int:
            return database.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]

        async def pages_an_append(run: SampleRun) -> float:
            before = await journal._access.write(written)
            for _ in range(100):
                await run.add(journal)
            return (await journal._access.write(written) - before) / 100

        run = SampleRun()
        await run.store(journal)
        await run.add(journal, 100)
        early = await pages_an_append(run)
        while run.head.seq < 10_000:
            await run.add(journal, 400)
        late = await pages_an_append(run)
        assert early >= 1
        assert late <= 1.5 * early


async def test_a_replay_holds_one_page_at_a_time(tmp_path: Path) -> None:
    """JR-29: its memory does not grow with the length of the run."""
    async with SQLiteJournal(tmp_path / "j.db", durability="off") as journal:
        run = SampleRun()
        await run.store(journal)

        for _ in range(20):
            await run.add(journal, 1_000, size=500)
        tracemalloc.start()
        after = 0
        while after < run.head.seq:
            after = (await journal.read("run-1", after=after, limit=200)).records[-1].seq
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4_000_000  # a page is half a megabyte, all of them fifty


@pytest.mark.parametrize(
    "query",
    [
        RunQuery(),
        RunQuery(tenant="a"),
        RunQuery(tenant="a", states=("running", "waiting")),
        RunQuery(statuses=("failed",)),
        RunQuery(states=get_args(RunStateName)),
        RunQuery(thread_id="t"),
        RunQuery(thread_id="t", tenant="a", statuses=("failed", "completed"), states=("terminal",)),
        RunQuery(parent="p", origin="o"),
        RunQuery(origin="o", binding="b", after_ms=1, before_ms=2),
        RunQuery(binding="b"),
    ],
    ids=str,
)
async def test_a_page_is_read_in_order_from_an_index(tmp_path: Path, query: RunQuery) -> None:
    """RC-79: nothing is sorted, no fact is read, and a page far down begins where it begins."""
    async with SQLiteJournal(tmp_path / "j.db") as journal:
        await SampleRun().store(journal)

        def plans(database: apsw.Connection) -> list[str]:
            found = []
            for where, values in conditions(query, 7):
                explain = f"EXPLAIN QUERY PLAN {ENTRY.format(where=' AND '.join(where))}"
                found.append(" ".join(str(row[3]) for row in database.execute(explain, (*values, 10))))
            return found

        for plan in await journal._access.read(plans):
            assert plan.startswith("SEARCH runs USING "), plan
            assert "no<?" in plan or "rowid<?" in plan, plan
            assert "TEMP B-TREE" not in plan
            assert "facts" not in plan


async def test_the_log_stays_small_while_a_reader_holds_its_transaction(tmp_path: Path) -> None:
    """JR-15: below 64 MiB; here the reader leaves only when the writer has begun to wait for it."""
    path = tmp_path / "j.db"
    async with SQLiteJournal(path, durability="off", busy_timeout=20) as journal:
        run = SampleRun()
        await run.store(journal)
        reader = apsw.Connection(str(path))
        reader.execute("BEGIN; SELECT * FROM runs").fetchall()
        log = Path(f"{path}-wal")
        largest = 0
        writing = asyncio.create_task(_write_much(journal, run))
        while not writing.done() and largest < 40 * 1024 * 1024:
            largest = max(largest, log.stat().st_size)
            await asyncio.wait((writing,), timeout=0.01)
        assert not writing.done()
        await asyncio.wait((writing,), timeout=1)
        assert not writing.done()  # it waits for the reader
        reader.execute("ROLLBACK")
        reader.close()
        while not writing.done():
            largest = max(largest, log.stat().st_size)
            await asyncio.wait((writing,), timeout=0.01)
        await writing
        assert largest < 64 * 1024 * 1024
        assert (await journal.head("run-1")).head.seq == 1201  # type: ignore[union-attr]


async def _write_much(journal: SQLiteJournal, run: SampleRun) -> None:
    for _ in range(400):
        await run.add(journal, 3, size=60_000)
