"""Journals alone: one append, many at once, long runs, long lists (run-controller §3.16)."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import apsw

from pilothouse.contracts import Journal
from pilothouse.journal import MemoryJournal, SQLiteJournal
from pilothouse.records import Head, Record, RunQuery
from pilothouse.testing import SampleRun

from .cases import Row


async def journals() -> list[Row]:
    """Ratios inside one run of the benchmark; absolute figures do not travel."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("PILOTHOUSE_BENCH_DIR")) as folder:
        place = Path(folder)
        return [
            await _in_memory(),
            *await _alone(place),
            *await _at_once(place),
            *await _long_run(place),
            *await _long_list(place),
        ]


def _sealed(run: SampleRun, count: int) -> list[tuple[Head, list[Record]]]:
    """Appends of one fact each, sealed before the clock starts."""
    head, made = run.head, []
    for _ in range(count):
        records = run.seal(*[record.fact for record in run.notes(size=100)], head=head)  # type: ignore[misc]
        made.append((head, records))
        head = Head(records[-1].seq, records[-1].chain)
    run.head = head
    return made


async def _append_each(journal: Journal, run: SampleRun, count: int) -> list[float]:
    """Microseconds of each append."""
    summary, took = run.summary(), []
    for head, records in _sealed(run, count):
        begin = time.perf_counter()
        await journal.append(run.run_id, records, expected=head, fence=1, summary=summary)
        took.append((time.perf_counter() - begin) * 1e6)
    return took


async def _in_memory() -> Row:
    journal, run = MemoryJournal(), SampleRun()
    await run.store(journal)
    return Row("an append in memory", "µs", median(await _append_each(journal, run, 20_000)), 0, 1)


async def _alone(place: Path) -> list[Row]:
    """JR-11: beside one bare commit of SQLite with fsync, taken in turns so that both meet the same disk."""
    bare = apsw.Connection(str(place / "bare.db"))
    for statement in (
        "PRAGMA journal_mode = wal",
        "PRAGMA synchronous = full",
        "CREATE TABLE t (k INTEGER PRIMARY KEY, b)",
    ):
        bare.execute(statement)
    mine: list[float] = []
    base: list[float] = []
    async with SQLiteJournal(place / "alone.db") as journal:
        run = SampleRun()
        await run.store(journal)
        for _ in range(20):
            mine += await _append_each(journal, run, 50)
            for _ in range(50):
                begin = time.perf_counter()
                bare.execute("BEGIN IMMEDIATE")
                bare.execute("INSERT INTO t (b) VALUES (?)", (b"x" * 200,))
                bare.execute("COMMIT")
                base.append((time.perf_counter() - begin) * 1e6)
    bare.close()
    return [
        Row("a durable append alone", "µs", median(mine), median(base), None),
        Row("… beside a bare commit with fsync", "×", median(mine) / median(base), 1, 2),
    ]


async def _at_once(place: Path) -> list[Row]:
    async with SQLiteJournal(place / "many.db") as journal:
        runs = [SampleRun(f"run-{number}", thread_id=f"t-{number}") for number in range(200)]
        await asyncio.gather(*[run.store(journal) for run in runs])
        made = [(run, _sealed(run, 50)) for run in runs]
        before, begin = journal.stats(), time.perf_counter()

        async def write(run: SampleRun, appends: list[tuple[Head, list[Record]]]) -> None:
            summary = run.summary()
            for head, records in appends:
                await journal.append(run.run_id, records, expected=head, fence=1, summary=summary)

        await asyncio.gather(*[write(*each) for each in made])
        each = (time.perf_counter() - begin) / 10_000 * 1e6
        after = journal.stats()
    commits = after.commits - before.commits
    return [
        Row("200 runs writing: a durable fact", "µs", each, 0, None),
        Row("… facts a commit that are missing from 20", "", max(0.0, 20 - 10_000 / commits), 0, 0),
    ]


async def _long_run(place: Path) -> list[Row]:
    """JR-28, JR-29."""
    async with SQLiteJournal(place / "long.db", durability="off") as journal:
        run = SampleRun()
        await run.store(journal)
        took = await _append_each(journal, run, 20_000)

        async def replay(upto: int) -> float:
            begin, after = time.perf_counter(), 0
            while after < upto:
                page = await journal.read("run-1", after=after, limit=500)
                after = page.records[-1].seq
            return time.perf_counter() - begin

        await replay(2_000)
        half, whole = (
            min([await replay(10_000) for _ in range(3)]),
            min([await replay(20_000) for _ in range(3)]),
        )
    return [
        Row(
            "the last 1,000 of 20,000 appends beside the first",
            "×",
            median(took[-1000:]) / median(took[:1000]),
            1,
            1.5,
        ),
        Row("replaying 20,000 facts beside 10,000", "×", whole / half, 1, 2.5),
        Row("… a fact", "µs", whole / 20_000 * 1e6, 0, None),
    ]


async def _long_list(place: Path) -> list[Row]:
    """RC-79."""
    async with SQLiteJournal(place / "list.db", durability="off") as journal:
        for start in range(0, 100_000, 1_000):
            runs = [
                SampleRun(f"run-{number}", thread_id=f"t-{number}") for number in range(start, start + 1_000)
            ]
            await asyncio.gather(*[run.store(journal) for run in runs])

        async def page(cursor: str | None, query: RunQuery) -> float:
            took = []
            for _ in range(30):
                begin = time.perf_counter()
                await journal.list(query, cursor=cursor, limit=50)
                took.append(time.perf_counter() - begin)
            return median(took) * 1e6

        rows = []
        for name, query in (
            ("all runs", RunQuery()),
            ("one tenant's", RunQuery(tenant="")),
            ("by state", RunQuery(states=("accepted",))),
        ):
            first, late = await page(None, query), await page("500", query)
            rows.append(Row(f"a page far down a list of 100,000, {name}", "×", late / first, 1, 1.5))
    return rows
