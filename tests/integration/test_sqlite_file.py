"""Opening the file of a SQLite journal: what is not right with it is one clear error, and it stays as it was."""

from __future__ import annotations

import asyncio
import gc
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest

from pilothouse.errors import ConfigError, JournalBusy, JournalFull, JournalUnavailable, JournalVersion
from pilothouse.journal import SQLiteJournal
from pilothouse.journal.sqlite_file import VERSION, translated
from pilothouse.records import RunQuery, ThreadRecord
from pilothouse.runs.controller import RunController
from pilothouse.testing import SampleRun, ScriptedRuntime
from pilothouse.testing.sample_runs import claim_by

DATA = Path(__file__).parent.parent / "data"


def _state(path: Path) -> tuple[bytes, int, list[str]]:
    return path.read_bytes(), path.stat().st_mtime_ns, sorted(file.name for file in path.parent.iterdir())


@pytest.mark.parametrize("path", ["", ":memory:", "file::memory:?cache=shared"])
def test_a_journal_without_a_file_is_the_memory_journals_business(path: str) -> None:
    """JR-10."""
    with pytest.raises(ConfigError, match="MemoryJournal"):
        SQLiteJournal(path)


def test_options_are_checked_when_they_are_given(tmp_path: Path) -> None:
    """JR-10: other durability only by name."""
    with pytest.raises(ConfigError, match="full, normal, off"):
        SQLiteJournal(tmp_path / "j.db", durability="fast")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="busy_timeout"):
        SQLiteJournal(tmp_path / "j.db", busy_timeout=-1)


def test_a_place_that_cannot_be_is_told_at_once(tmp_path: Path) -> None:
    """JR-19: before anything is sent to it."""
    with pytest.raises(JournalUnavailable, match=r"no folder .*missing: create it"):
        SQLiteJournal(tmp_path / "missing" / "j.db")
    with pytest.raises(JournalUnavailable, match="it is a folder"):
        SQLiteJournal(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(JournalUnavailable, match="no folder"):
        SQLiteJournal(tmp_path / "file" / "j.db")


async def test_a_place_that_cannot_be_written_is_told_clearly() -> None:
    """JR-10: here by a file system that takes no files, whoever asks."""
    journal = SQLiteJournal("/proc/journal.db")
    with pytest.raises(JournalUnavailable, match=r"cannot create /proc/journal\.db"):
        await journal.open()
    await journal.aclose()


def test_a_file_that_may_not_be_written_is_told_clearly() -> None:
    """JR-10: as a user who may read only."""
    code = """if 1:
        import asyncio, os, sys
        from pilothouse.errors import JournalUnavailable
        from pilothouse.journal import SQLiteJournal
        if os.geteuid() == 0:
            os.setuid(65534)
        async def main():
            try:
                await SQLiteJournal(sys.argv[1]).open()
            except JournalUnavailable as error:
                print(error)
        asyncio.run(main())
    """
    with tempfile.TemporaryDirectory() as place:  # not below pytest's folder, which only its owner may enter
        folder = Path(place)
        path = folder / "j.db"
        asyncio.run(_make(path))
        path.chmod(0o444)
        folder.chmod(0o555)
        before = _state(path)
        for file in (path, folder / "other.db"):
            done = subprocess.run(
                [sys.executable, "-c", code, str(file)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert "writable" in done.stdout, (done.stdout, done.stderr)
        assert _state(path) == before
        folder.chmod(0o755)


async def _make(path: Path) -> None:
    async with SQLiteJournal(path) as journal:
        await SampleRun().store(journal)


@pytest.mark.parametrize("kind", ["rollback", "wal"])
async def test_another_programs_database_is_left_as_it_was(tmp_path: Path, kind: str) -> None:
    """JR-17: refused untouched, byte for byte, in both of SQLite's modes."""
    path = tmp_path / "other.db"
    other = apsw.Connection(str(path))
    other.execute(f"PRAGMA journal_mode = {'wal' if kind == 'wal' else 'delete'}")
    other.execute("CREATE TABLE t (x); INSERT INTO t VALUES (1)")
    other.close()
    before = _state(path)
    journal = SQLiteJournal(path)
    with pytest.raises(JournalVersion, match="another program's database, not a Pilothouse journal"):
        await journal.open()
    with pytest.raises(JournalVersion):
        await SampleRun().store(journal)
    await journal.aclose()
    assert _state(path) == before


async def test_what_is_no_database_is_left_as_it_was(tmp_path: Path) -> None:
    """JR-17."""
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n" * 100)
    before = _state(path)
    journal = SQLiteJournal(path)
    with pytest.raises(JournalVersion, match="no SQLite database"):
        await journal.open()
    await journal.aclose()
    assert _state(path) == before


async def test_a_newer_file_is_left_as_it_was(tmp_path: Path) -> None:
    """JR-17: with the hint to upgrade."""
    path = tmp_path / "j.db"
    await _make(path)
    other = apsw.Connection(str(path))
    other.execute("PRAGMA user_version = 99")
    other.close()
    before = _state(path)
    journal = SQLiteJournal(path)
    with pytest.raises(JournalVersion, match="upgrade this Pilothouse"):
        await journal.open()
    await journal.aclose()
    assert _state(path) == before


async def test_an_old_process_stops_when_a_newer_one_migrates(tmp_path: Path) -> None:
    """JR-17: the writer looks in each transaction."""
    path = tmp_path / "j.db"
    async with SQLiteJournal(path) as journal:
        run = SampleRun()
        await run.store(journal)
        other = apsw.Connection(str(path))
        other.execute(f"PRAGMA user_version = {VERSION + 1}")
        with pytest.raises(JournalVersion, match="newer Pilothouse"):
            await run.add(journal)
        assert (await journal.read("run-1")).records[-1].seq == 1
        other.execute(f"PRAGMA user_version = {VERSION}")
        other.close()
        await run.add(journal)


async def test_a_file_of_the_first_schema_opens(tmp_path: Path) -> None:
    """JR-17: files of each released version are test data."""
    path = tmp_path / "j.db"
    path.write_bytes((DATA / "journal-1.sqlite").read_bytes())
    async with SQLiteJournal(path) as journal:
        verified = await journal.verify()
        assert (verified.runs, verified.problems) == (3, ())
        assert [entry.run_id for entry in (await journal.list(RunQuery())).items] == [
            "lost",
            "asking",
            "ended",
        ]
        await SampleRun("new").store(journal)


async def test_a_file_of_the_first_schema_becomes_what_a_new_one_is(tmp_path: Path) -> None:
    """JR-17: the same tables and indexes, and the lists read from them find everything (RC-79)."""
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    old.write_bytes((DATA / "journal-1.sqlite").read_bytes())
    before = apsw.Connection(str(old)).execute("SELECT run_id, tenant, state, status FROM runs").fetchall()
    await _make(old)
    await _make(new)
    schemas = [
        set(apsw.Connection(str(path)).execute("SELECT type, name, sql FROM sqlite_schema").fetchall())
        for path in (old, new)
    ]
    assert schemas[0] == schemas[1]
    async with SQLiteJournal(old) as journal:
        for run_id, tenant, state, status in before:
            for query in (
                RunQuery(tenant=tenant, states=(state,), statuses=(status,)),
                RunQuery(statuses=(status,)),
            ):
                assert run_id in [entry.run_id for entry in (await journal.list(query)).items]
        everything = [(await journal.list(RunQuery(tenant=tenant))).items for tenant in ("", "ten")]
        assert [len(entries) for entries in everything] == [3, 1]
        assert (await journal.verify()).problems == ()


async def test_a_damaged_file_is_told_clearly(tmp_path: Path) -> None:
    """JR-7: cut in the middle; the text says what can be done, and nothing is written."""
    path = tmp_path / "j.db"
    async with SQLiteJournal(path) as journal:
        for number in range(20):
            run = SampleRun(f"run-{number}")
            await run.store(journal)
            await run.add(journal, 20, size=500)
    data = path.read_bytes()
    path.write_bytes(data[:8192])
    journal = SQLiteJournal(path)
    with pytest.raises(JournalUnavailable, match=r"damaged.*restore a backup"):
        await SampleRun("new").store(journal)
    await journal.aclose()


async def test_an_empty_file_is_used(tmp_path: Path) -> None:
    """JR-17: somebody made room for it."""
    path = tmp_path / "j.db"
    path.touch()
    await _make(path)
    assert path.stat().st_size > 0


async def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    """JR-19: also what SQLite puts beside it."""
    path = tmp_path / "j.db"
    async with SQLiteJournal(path) as journal:
        await SampleRun().store(journal)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == {"j.db": 0o600, "j.db-wal": 0o600, "j.db-shm": 0o600}


async def test_a_closed_journal_is_one_file(tmp_path: Path) -> None:
    """JR-15, JR-19: the log is copied back."""
    path = tmp_path / "j.db"
    await _make(path)
    assert [file.name for file in tmp_path.iterdir()] == ["j.db"]


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("normal", 1), ("off", 0)])
async def test_durability_is_what_was_asked_for(tmp_path: Path, durability: str, level: int) -> None:
    """JR-10: synced at each commit unless named otherwise; a write-ahead log."""
    async with SQLiteJournal(tmp_path / "j.db", durability=durability) as journal:  # type: ignore[arg-type]
        ask = journal._access.store._db.execute
        assert await journal._access.write(lambda: ask("PRAGMA synchronous").fetchall()) == [(level,)]
        assert await journal._access.write(lambda: ask("PRAGMA journal_mode").fetchall()) == [("wal",)]


async def test_opening_is_tried_again(tmp_path: Path) -> None:
    """JR-10: what was wrong may be put right while the program runs."""
    path = tmp_path / "j.db"
    path.write_text("not yet")
    journal = SQLiteJournal(path)
    run = SampleRun()
    with pytest.raises(JournalVersion):
        await run.store(journal)
    with pytest.raises(JournalVersion):
        await journal.head("run-1")
    path.unlink()
    await run.store(journal)
    await journal.aclose()


async def test_who_holds_the_file_is_waited_for_and_then_told(tmp_path: Path) -> None:
    """JR-13: up to `busy_timeout`; then nothing was written, and the next try works."""
    path = tmp_path / "j.db"
    async with SQLiteJournal(path, busy_timeout=0.2) as journal:
        run = SampleRun()
        await run.store(journal)
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        records = run.notes(2)
        with pytest.raises(JournalBusy, match="another process holds it"):
            await run.append(journal, records)
        assert (await journal.read("run-1")).records[-1].seq == 1  # readers are not held up
        waiting = asyncio.create_task(run.append(journal, records))
        while not journal.stats().busy_waits:
            await asyncio.sleep(0)
        other.execute("ROLLBACK")
        assert not (await waiting).duplicate
        other.close()
        assert journal.stats().retries == 0


async def test_who_only_reads_waits_for_no_lock_and_writes_nothing(tmp_path: Path) -> None:
    """RC-48, JR-13: opened, listed, looked at and closed, while another process is in the middle of a write."""
    path = tmp_path / "j.db"
    async with SQLiteJournal(path) as journal:
        await SampleRun().store(journal)
        await journal.release(claim_by().owner)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    before = path.read_bytes()
    async with SQLiteJournal(path, busy_timeout=0.0) as journal:
        async with RunController(ScriptedRuntime(), journal=journal) as runs:
            assert [entry.run_id for entry in (await runs.catalog_runs()).items] == ["run-1"]
            assert (await runs.inspect("run-1")).status == "unknown"
            assert len(await runs.events("run-1")) == 1
            assert (await journal.verify()).problems == ()
        assert journal.stats().commits == 0
        with pytest.raises(JournalBusy):
            await SampleRun("run-2").store(journal)
    other.execute("ROLLBACK")
    other.close()
    assert path.read_bytes() == before


async def test_no_statement_runs_on_the_loop_and_readers_are_few(tmp_path: Path) -> None:
    """JR-12: at most four connections read at once, each in a thread."""
    path = tmp_path / "j.db"
    here: list[str] = []
    most = 0

    def seen(_frame: object, event: str, what: object) -> None:
        owner = type(getattr(what, "__self__", None))
        if event == "c_call" and owner.__module__ == "apsw":
            here.append(f"{owner.__name__}.{getattr(what, '__name__', '')}")

    def open_files() -> int:
        count = 0
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # closed by now
                count += link.readlink() == path
        return count

    sys.setprofile(seen)
    try:
        async with SQLiteJournal(path, durability="off") as journal:
            runs = [SampleRun(f"run-{number}") for number in range(20)]
            for run in runs:
                await run.store(journal)
                await run.add(journal, 20)
            asked = [journal.read(run.run_id) for run in runs for _ in range(5)]
            asked += [journal.head(run.run_id) for run in runs]
            asked += [journal.list(RunQuery()), journal.find("run-1", "x"), journal.thread_head("thread-1")]
            reading = asyncio.gather(*asked)
            while not reading.done():
                await asyncio.sleep(0)
                most = max(most, open_files())
            ref = await journal.put_blob(b"x" * 3_000_000, "text/plain")
            await journal.get_blob(ref.digest)
            await journal.changed("run-1", 99, timeout=0.01)
            await journal.threads.put(ThreadRecord("", "t"), expected=None)
            await journal.threads.list("")
            await journal.renew(claim_by().owner, ttl_ms=1, now_ms=1)
            await journal.release(claim_by().owner)
            await journal.verify()
            await journal.purge("thread-1")
            await journal.backup(tmp_path / "copy.db")
    finally:
        sys.setprofile(None)
    assert here == []
    assert 2 <= most <= 1 + 4 + 1  # the writer, the readers, the one that looks for changes


async def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """RC-15, JR-11: none of the batch is confirmed; when there is room again the same append is stored, once."""
    async with SQLiteJournal(tmp_path / "j.db") as journal:
        run = SampleRun()
        await run.store(journal)
        database = journal._access.store._db
        ((pages,),) = await journal._access.write(lambda: database.execute("PRAGMA page_count").fetchall())
        await journal._access.write(lambda: database.execute(f"PRAGMA max_page_count = {pages}"))
        records = run.notes(3, size=50_000)
        others = [SampleRun(f"other-{number}") for number in range(3)]
        results = await asyncio.gather(
            run.append(journal, records), *[other.store(journal) for other in others], return_exceptions=True
        )
        assert isinstance(results[0], JournalFull)
        assert "disk is full" in str(results[0])
        assert await journal.find("run-1", records[0].event_id) is None
        await journal._access.write(lambda: database.execute("PRAGMA max_page_count = 1000000"))
        assert not (await run.append(journal, records)).duplicate
        assert [record.seq for record in (await journal.read("run-1")).records] == [1, 2, 3, 4]
        assert (await journal.verify()).problems == ()


def test_a_disk_without_room_for_shared_memory_is_called_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RC-15: SQLite calls it an error of the disk; an operator is told what it is, and a healthy disk is not called full."""
    error = apsw.IOError("disk I/O error")
    assert not isinstance(translated(error, tmp_path / "j.db"), JournalFull)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=4096))
    assert isinstance(told := translated(error, tmp_path / "j.db"), JournalFull)
    assert "free some space" in str(told)


async def test_a_file_that_was_moved_away_is_not_written_to(tmp_path: Path) -> None:
    """JR-3, RC-15: what nobody could open any more is not confirmed; put back, the same append is stored, once."""
    path, elsewhere = tmp_path / "j.db", tmp_path / "moved.db"
    async with SQLiteJournal(path) as journal:
        run = SampleRun()
        await run.store(journal)
        path.rename(elsewhere)
        records = run.notes()
        with pytest.raises(JournalUnavailable, match=r"moved, deleted or replaced.*put it back"):
            await run.append(journal, records)
        path.write_bytes(b"")  # as another program might, that found none
        with pytest.raises(JournalUnavailable, match="moved, deleted or replaced"):
            await run.append(journal, records)
        elsewhere.replace(path)
        assert not (await run.append(journal, records)).duplicate
        assert (await journal.verify()).problems == ()


async def test_a_forked_process_is_told_to_open_its_own(tmp_path: Path) -> None:
    """JR-6."""
    code = """if 1:
        import asyncio, os, sys, warnings
        from pilothouse.errors import JournalUnavailable
        from pilothouse.journal import SQLiteJournal
        from pilothouse.testing import SampleRun
        journal = SQLiteJournal(sys.argv[1])
        asyncio.run(SampleRun().store(journal))
        if os.fork() == 0:
            for doing in (lambda: journal.head("run-1"), lambda: SampleRun("two").store(journal)):
                try:
                    asyncio.run(doing())
                except JournalUnavailable as error:
                    print(error, error.retryable, flush=True)
            sys.exit(0)
        os.wait()
        asyncio.run(SampleRun("three").store(journal))
        print((asyncio.run(journal.verify())).runs)
    """
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code, str(tmp_path / "j.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert all("in a forked process" in line and line.endswith("False") for line in lines[:2])
    assert lines[2] == "2"


async def test_a_journal_that_is_let_go_closes_its_file(tmp_path: Path) -> None:
    """JR-6: no thread, no open file stays behind an object that nobody holds."""
    path = tmp_path / "j.db"
    journal = SQLiteJournal(path)
    await SampleRun().store(journal)
    await journal.head("run-1")
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "pilothouse-journal-j.db"]
    del journal
    gc.collect()
    await asyncio.to_thread(thread.join, 20)
    assert not thread.is_alive()
    assert [file.name for file in tmp_path.iterdir()] == ["j.db"]


async def test_a_backup_is_a_journal(tmp_path: Path) -> None:
    """Issue 3: online: taken while work goes on."""
    async with SQLiteJournal(tmp_path / "j.db") as journal:
        run = SampleRun()
        await run.store(journal)
        await run.add(journal, 5)
        ref = await journal.put_blob(b"bytes", "text/plain")
        copying = asyncio.create_task(journal.backup(tmp_path / "copy.db"))
        await asyncio.gather(*[SampleRun(f"other-{number}").store(journal) for number in range(20)])
        await copying
        with pytest.raises(JournalUnavailable, match="exists"):
            await journal.backup(tmp_path / "copy.db")
        with pytest.raises(JournalUnavailable, match="No such file"):
            await journal.backup(tmp_path / "missing" / "copy.db")
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    async with SQLiteJournal(tmp_path / "copy.db") as copy:
        assert (await copy.read("run-1")).records[-1].seq == 6
        assert await copy.get_blob(ref.digest) == b"bytes"
        assert (await copy.verify()).problems == ()
        await run.add(copy)


async def test_purged_text_is_gone_from_the_file(tmp_path: Path) -> None:
    """JR-8: what was deleted cannot be read from the bytes either."""
    path = tmp_path / "j.db"
    async with SQLiteJournal(path) as journal:
        run = SampleRun(text="a very secret question")
        await run.store(journal)
        await run.append(journal, run.messages("a very secret answer" * 500))
        await run.end(journal)
        await journal.purge("thread-1")
    assert b"very secret" not in path.read_bytes()
