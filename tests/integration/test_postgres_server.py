"""What a Postgres journal owes besides the contract: outages, uncertain commits, foreign schemas, shared commits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from msgspec.structs import replace

from pilothouse.errors import (
    ConfigError,
    FenceConflict,
    JournalBusy,
    JournalError,
    JournalUnavailable,
    JournalVersion,
    SeqConflict,
)
from pilothouse.events import Noted
from pilothouse.journal import PostgresJournal
from pilothouse.records import Head
from pilothouse.testing import SampleRun
from pilothouse.testing.journal_suite.checking import all_records
from pilothouse.testing.sample_runs import claim_by
from postgres_server import PostgresServer, shared_dsn

_numbers = itertools.count()


@pytest.fixture
def schema() -> str:
    return f"server_{next(_numbers)}"


@pytest.fixture
async def journal(schema: str) -> AsyncIterator[PostgresJournal]:
    async with PostgresJournal(shared_dsn(), schema=schema) as journal:
        yield journal


@pytest.fixture
async def other() -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(shared_dsn())
    yield connection
    await connection.close()


@pytest.fixture
def mortal_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.remove()


async def cut_off(connection: asyncpg.Connection) -> None:
    """Cuts all connections but this one, as a network does."""
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )


async def listens(dsn: str, schema: str = "pilothouse") -> None:
    """Returns once the server has somebody who listens for commits in this schema."""
    asking = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(20):
            while not await asking.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND query LIKE $1",
                f"%{schema}_moved%",
            ):
                await asyncio.sleep(0.001)
    finally:
        await asking.close()


@pytest.mark.parametrize("schema", ["", "Upper", "a-b", 'x"; drop schema public', "1a", "a" * 64])
def test_a_schema_is_a_plain_name(schema: str) -> None:
    """JR-21: it is written into statements."""
    with pytest.raises(ConfigError, match="schema"):
        PostgresJournal("postgresql://localhost/x", schema=schema)


def test_one_connection_is_not_enough() -> None:
    with pytest.raises(ConfigError, match="pool_size"):
        PostgresJournal("postgresql://localhost/x", pool_size=1)


@pytest.mark.parametrize(
    ("dsn", "why"),
    [
        ("postgresql://pilot:secret@127.0.0.1:1/none", "check that the server runs"),
        ("postgresql://pilot:secret@localhost:5432/none?host=/nowhere", "check that the server runs"),
        ("mysql://pilot:secret@localhost/none", "invalid DSN"),
    ],
)
async def test_a_server_that_cannot_be_reached_is_told_clearly(dsn: str, why: str) -> None:
    """JR-24: what to do, and no password."""
    journal = PostgresJournal(dsn)
    for doing in (journal.open(), journal.head("r"), SampleRun().store(journal)):
        with pytest.raises(JournalUnavailable) as caught:
            await doing
        assert why in str(caught.value)
        assert "secret" not in str(caught.value)
    await journal.aclose()


async def test_a_missing_database_is_told_clearly() -> None:
    journal = PostgresJournal(shared_dsn().replace("/postgres", "/missing"))
    with pytest.raises(JournalUnavailable, match=r"/missing.*check user, password and database"):
        await journal.open()


async def test_another_programs_schema_is_left_as_it_was(other: asyncpg.Connection, schema: str) -> None:
    """JR-17."""
    await other.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.runs (x integer)")
    journal = PostgresJournal(shared_dsn(), schema=schema)
    with pytest.raises(JournalVersion, match="another program's tables"):
        await journal.open()
    assert await other.fetchval(f"SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'") == 1


async def test_a_newer_schema_is_left_as_it_was(
    journal: PostgresJournal, other: asyncpg.Connection, schema: str
) -> None:
    """JR-17, JR-24."""
    await SampleRun().store(journal)
    await other.execute(f"UPDATE {schema}.pilothouse_journal SET version = 9")
    with pytest.raises(JournalVersion, match="upgrade this Pilothouse"):
        await PostgresJournal(shared_dsn(), schema=schema).open()
    assert await other.fetchval(f"SELECT version FROM {schema}.pilothouse_journal") == 9


async def test_an_older_schema_is_migrated_with_all_that_is_in_it(
    journal: PostgresJournal, other: asyncpg.Connection, schema: str
) -> None:
    """JR-17, JR-24: version 1, as it was before runs moved between processes; several processes open it at once."""
    run = SampleRun()
    await run.store(journal)
    await other.execute(
        f"ALTER TABLE {schema}.commands DROP COLUMN answer; DROP INDEX {schema}.runs_unfinished;"
        f" DROP TABLE {schema}.told, {schema}.follows; UPDATE {schema}.pilothouse_journal SET version = 1"
    )
    opened = [PostgresJournal(shared_dsn(), schema=schema) for _ in range(4)]
    try:
        await asyncio.gather(*[each.open() for each in opened])
        assert await other.fetchval(f"SELECT version FROM {schema}.pilothouse_journal") == 2
        assert [record.seq for record in await all_records(opened[0], run.run_id)] == [1]
        await run.append(opened[1], run.notes(1))
        assert opened[2].relay is not None
        assert await opened[2].relay.post(run.run_id, "c1", b"one") is None
        assert len((await opened[3].relay.inbox([run.run_id]))[0]) == 1
    finally:
        for each in opened:
            await each.aclose()


async def test_a_schema_without_rights_is_told_clearly(other: asyncpg.Connection, schema: str) -> None:
    await other.execute(f"CREATE ROLE {schema}_guest LOGIN")
    journal = PostgresJournal(shared_dsn().replace("//pilot@", f"//{schema}_guest@"), schema=schema)
    with pytest.raises(JournalUnavailable, match="grant the right"):
        await journal.open()


async def test_many_open_a_fresh_schema_at_once(schema: str) -> None:
    """JR-24: migrations under a lock: one migrates, none fails."""
    journals = [PostgresJournal(shared_dsn(), schema=schema, pool_size=2) for _ in range(8)]
    runs = [SampleRun(f"run-{number}", thread_id=f"t-{number}") for number in range(8)]
    await asyncio.gather(*[run.store(journal) for run, journal in zip(runs, journals, strict=True)])
    assert (await journals[0].verify()).runs == 8
    await asyncio.gather(*[journal.aclose() for journal in journals])


async def test_durability_is_the_servers(journal: PostgresJournal) -> None:
    """JR-22: not lowered."""
    assert await journal._link.read(lambda db: db.fetchval("SHOW synchronous_commit")) == "on"


async def test_appends_that_arrive_together_share_a_commit(journal: PostgresJournal) -> None:
    """JR-22, JR-27: at least 20 facts a commit with 200 runs writing; alone, one commit an append."""
    runs = [SampleRun(f"run-{number}", thread_id=f"t-{number}") for number in range(200)]
    await asyncio.gather(*[run.store(journal) for run in runs])
    before = journal.stats()
    await runs[0].add(journal)
    assert journal.stats().commits - before.commits == 1

    async def write(run: SampleRun) -> None:
        for _ in range(10):
            await run.add(journal)

    before = journal.stats()
    await asyncio.gather(*[write(run) for run in runs])
    after = journal.stats()
    assert after.facts - before.facts == 2000
    assert (after.facts - before.facts) / (after.commits - before.commits) >= 20
    assert (await journal.verify()).problems == ()


async def test_batch_mates_do_not_touch_each_other(journal: PostgresJournal) -> None:
    """JR-11, JR-22: also where one cannot be stored at all."""
    good = [SampleRun(f"good-{number}") for number in range(5)]
    bad = SampleRun("bad")
    for run in (*good, bad):
        await run.store(journal)
    await journal.release(claim_by().owner, "good-4")
    await journal.claim("good-4", claim_by("owner-2"))
    ghost = SampleRun("gh\0st")
    results = await asyncio.gather(
        *[run.add(journal) for run in good],
        bad.append(journal, bad.notes(), expected=Head(9, bad.head.chain)),
        bad.append(journal, [replace(record, event_id="sur\ud800rogate") for record in bad.notes()]),
        ghost.append(journal, ghost.accepted()),
        return_exceptions=True,
    )
    assert [type(result) for result in results[:4]] == [list] * 4
    assert type(results[4]) is FenceConflict
    assert type(results[5]) is SeqConflict
    assert isinstance(results[6], UnicodeEncodeError)
    assert isinstance(results[7], JournalError)
    assert (await journal.verify()).problems == ()


async def test_two_appends_of_one_run_wait_for_each_other(journal: PostgresJournal) -> None:
    """RC-12: sent together, stored in order."""
    run = SampleRun()
    await run.store(journal)
    first = run.notes(2)
    behind = Head(first[-1].seq, first[-1].chain)
    second = run.seal(Noted("test/second"), head=behind)
    summary = run.summary([*first, *second])
    results = await asyncio.gather(
        journal.append("run-1", first, expected=run.head, fence=1, summary=summary),
        journal.append("run-1", second, expected=behind, fence=1, summary=summary),
    )
    assert [result.head.seq for result in results] == [3, 4]
    assert (await journal.verify()).problems == ()


async def test_a_commit_whose_connection_is_lost_is_uncertain_and_can_be_settled(
    journal: PostgresJournal, other: asyncpg.Connection
) -> None:
    """JR-23, RC-15: an error, never a guess; the same append again is stored, once."""

    said: set[str] = set()

    async def write(run: SampleRun) -> int:
        outages = 0
        for _ in range(30):
            records = run.notes()
            before = run.head
            while True:
                try:
                    await run.append(journal, records, expected=before)
                except JournalUnavailable as error:
                    said.add(str(error))
                    outages += 1
                else:
                    break
        return outages

    runs = [SampleRun(f"run-{number}", thread_id=f"t-{number}") for number in range(10)]
    await asyncio.gather(*[run.store(journal) for run in runs])
    writing = asyncio.gather(*[write(run) for run in runs])
    for _ in range(15):
        await cut_off(other)
        await asyncio.wait((writing,), timeout=0.03)
    assert sum(await writing) > 0
    assert not [
        line for line in said if "terminate()" in line
    ]  # what went wrong, not what came of it in the pool
    for run in runs:
        records = await all_records(journal, run.run_id)
        assert [record.seq for record in records] == list(range(1, 32))
    assert (await journal.verify()).problems == ()


async def test_reading_survives_a_cut(journal: PostgresJournal, other: asyncpg.Connection) -> None:
    """JR-23: a question is asked again."""
    await SampleRun().store(journal)
    for _ in range(5):
        await cut_off(other)
        assert await journal.head("run-1") is not None


async def test_a_killed_server_loses_nothing(mortal_server: PostgresServer) -> None:
    """RC-15, issue 3: while it is away everything is refused; when it is back the same journal goes on."""
    async with PostgresJournal(mortal_server.dsn) as journal:
        run = SampleRun()
        await run.store(journal)
        await run.add(journal, 5)
        waiting = asyncio.create_task(journal.changed("run-1", 6, timeout=60))
        await listens(mortal_server.dsn)
        await asyncio.to_thread(mortal_server.stop, hard=True)
        records = run.notes(3)
        for _ in range(2):
            with pytest.raises(JournalUnavailable):
                await run.append(journal, records)
            with pytest.raises(JournalUnavailable):
                await journal.head("run-1")
        await asyncio.to_thread(mortal_server.start)
        await run.append(journal, records)
        assert await waiting == 9
        assert len(await all_records(journal, "run-1")) == 9
        assert (await journal.verify()).problems == ()


async def test_another_process_is_woken_by_a_notification(journal: PostgresJournal, schema: str) -> None:
    """JR-24: long before the slow look."""
    run = SampleRun()
    await run.store(journal)
    async with PostgresJournal(shared_dsn(), schema=schema) as follower:
        waiting = asyncio.create_task(follower.changed("run-1", 1, timeout=30))
        await listens(shared_dsn(), schema)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await run.add(journal)
        assert await waiting == 2
        assert loop.time() - began < 1.5


async def test_where_nothing_notifies_looking_now_and_then_does(
    journal: PostgresJournal, other: asyncpg.Connection, schema: str
) -> None:
    """JR-24: a pooler that forbids LISTEN: here every new connection is refused."""
    run = SampleRun()
    await run.store(journal)
    async with PostgresJournal(shared_dsn(), schema=schema) as follower:
        await follower.head("run-1")
        follower._link._dsn = "postgresql://pilot@127.0.0.1:1/postgres"
        waiting = asyncio.create_task(follower.changed("run-1", 1, timeout=30))
        await asyncio.sleep(0)
        await run.add(journal)
        assert await waiting == 2


async def test_a_lock_that_is_held_too_long_is_told(
    journal: PostgresJournal, other: asyncpg.Connection, schema: str
) -> None:
    """JR-13: where the server has a limit for it."""
    run = SampleRun()
    await run.store(journal)
    await journal._link.read(lambda db: db.execute("ALTER ROLE pilot SET lock_timeout = '200ms'"))
    try:
        async with PostgresJournal(shared_dsn(), schema=schema) as impatient, other.transaction():
            await other.execute(f"SELECT 1 FROM {schema}.runs FOR UPDATE")
            with pytest.raises(JournalBusy, match="another transaction holds it"):
                await run.append(impatient, run.notes())
    finally:
        await journal._link.read(lambda db: db.execute("ALTER ROLE pilot RESET lock_timeout"))
    await run.add(journal)


async def test_a_journal_belongs_to_one_loop(journal: PostgresJournal) -> None:
    """JR-6: another one is told, and harms nobody."""
    await SampleRun().store(journal)

    def elsewhere() -> None:
        asyncio.run(journal.head("run-1"))  # type: ignore[arg-type]

    with pytest.raises(JournalUnavailable, match="second event loop"):
        await asyncio.to_thread(elsewhere)
    assert await journal.head("run-1") is not None
