"""Damage in a SQLite journal: it is found, told of the run that has it, and harms no other (RC-6, JR-7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import apsw
import pytest

from pilothouse.errors import JournalCorrupt, JournalUnavailable
from pilothouse.journal import SQLiteJournal
from pilothouse.journal.jsonl import export
from pilothouse.journal.sqlite_changes import SEQ_BITS
from pilothouse.records import RunQuery, ThreadRecord
from pilothouse.testing import SampleRun
from pilothouse.testing.journal_suite.checking import all_records

BAD = f"(SELECT no FROM runs WHERE run_id = 'bad') << {SEQ_BITS} |"


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[Path]:
    path = tmp_path / "j.db"
    async with SQLiteJournal(path) as journal:
        for name in ("before", "bad", "behind"):
            run = SampleRun(name)
            await run.store(journal)
            await run.add(journal, 5)
            await run.append(journal, run.messages("said"))
            await run.end(journal)
    return path


def damage(path: Path, statement: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(statement)
    assert connection.changes() == 1
    connection.close()


DAMAGES = {
    "a flipped bit in a body": (
        3,
        f"UPDATE facts SET body = CAST(replace(body, 'xx', 'xy') AS BLOB) WHERE key = {BAD} 3",
    ),
    "a shortened body": (3, f"UPDATE facts SET body = substr(body, 1, 20) WHERE key = {BAD} 3"),
    "another time": (2, f"UPDATE facts SET at_ms = at_ms + 1 WHERE key = {BAD} 2"),
    "another lane": (2, f"UPDATE facts SET lane = 'host' WHERE key = {BAD} 2"),
    "another fence": (8, f"UPDATE facts SET fence = 9 WHERE key = {BAD} 8"),
    "another kind": (4, f"UPDATE facts SET kind = 'message_added' WHERE key = {BAD} 4"),
    "another event id": (4, f"UPDATE facts SET event_id = 'other' WHERE key = {BAD} 4"),
    "another chain value": (5, f"UPDATE facts SET chain = zeroblob(32) WHERE key = {BAD} 5"),
    "a chain value that is none": (5, f"UPDATE facts SET chain = x'00' WHERE key = {BAD} 5"),
    "an event id that is no text": (
        1,
        f"UPDATE facts SET event_id = CAST(x'b261' AS TEXT) WHERE key = {BAD} 2",
    ),
    "a missing fact": (4, f"DELETE FROM facts WHERE key = {BAD} 4"),
    "a missing first fact": (1, f"DELETE FROM facts WHERE key = {BAD} 1"),
    "a cut tail": (8, f"DELETE FROM facts WHERE key = {BAD} 8"),
    "a head that is ahead": (9, "UPDATE runs SET seq = 9 WHERE run_id = 'bad'"),
    "a head that is behind": (7, "UPDATE runs SET seq = 7 WHERE run_id = 'bad'"),
    "another head": (8, "UPDATE runs SET chain = zeroblob(32) WHERE run_id = 'bad'"),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_what_is_not_what_was_stored_is_found_on_reading(path: Path, name: str) -> None:
    """RC-6: a mismatch or a cut tail is an error of that run, naming the fact."""
    seq, statement = DAMAGES[name]
    damage(path, statement)
    async with SQLiteJournal(path) as journal:
        with pytest.raises(JournalCorrupt) as caught:
            await all_records(journal, "bad", limit=2)
        assert (caught.value.run_id, caught.value.seq) == ("bad", seq)
        for good in ("before", "behind"):
            assert len(await all_records(journal, good)) == 8
        verified = await journal.verify()
        (problem,) = verified.problems
        assert problem.startswith("run bad is corrupt")
        assert verified.runs == 3
        assert (await journal.verify("before")).problems == ()
        assert len((await journal.list(RunQuery())).items) == 3
        await SampleRun("new").store(journal)


@pytest.mark.parametrize("name", ["a missing fact", "another chain value", "a cut tail", "another event id"])
async def test_reading_by_kind_and_finding_look_too(path: Path, name: str) -> None:
    """RC-6: whoever reads a damaged fact, or the one behind it, is told."""
    damage(path, DAMAGES[name][1])
    async with SQLiteJournal(path) as journal:
        with pytest.raises(JournalCorrupt):
            await journal.read("bad", kinds=frozenset({"noted", "message_added"}))
    damaged = {"a missing fact": "event-5", "another chain value": "event-6", "another event id": "other"}
    if name in damaged:
        async with SQLiteJournal(path) as journal:
            with pytest.raises(JournalCorrupt):
                await journal.find("bad", damaged[name])


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE specs SET body = CAST(replace(body, 'hello', 'hallo') AS BLOB) WHERE run = 2",
        "DELETE FROM specs WHERE run = 2",
        "UPDATE runs SET spec_digest = 'x' WHERE run_id = 'bad'",
        "UPDATE runs SET state = 'dreaming' WHERE run_id = 'bad'",
        "UPDATE runs SET status = 'great' WHERE run_id = 'bad'",
        "UPDATE runs SET binding = CAST(x'b261' AS TEXT) WHERE run_id = 'bad'",
    ],
)
async def test_a_damaged_registration_is_told_of_that_run(path: Path, statement: str) -> None:
    """RC-84: checked against the specification's digest."""
    damage(path, statement)
    async with SQLiteJournal(path) as journal:
        with pytest.raises(JournalCorrupt, match="run bad is corrupt"):
            await journal.head("bad")
        assert await journal.head("before") is not None
        (problem,) = (await journal.verify()).problems
        assert problem.startswith("run bad is corrupt")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runs SET status = 'great' WHERE run_id = 'bad'",
        "UPDATE runs SET lineage = x'00' WHERE run_id = 'bad'",
        "UPDATE runs SET binding = CAST(x'b261' AS TEXT) WHERE run_id = 'bad'",
    ],
)
async def test_a_damaged_entry_fails_no_page(path: Path, statement: str) -> None:
    """RC-67: it is listed as corrupt."""
    damage(path, statement)
    async with SQLiteJournal(path) as journal:
        items = (await journal.list(RunQuery())).items
    assert [(entry.run_id, entry.status) for entry in items] == [
        ("behind", "completed"),
        ("bad", "corrupt"),
        ("before", "completed"),
    ]


async def test_a_summary_that_is_not_the_fold_is_found(path: Path) -> None:
    """JR-7: state equals fold."""
    damage(path, "UPDATE runs SET state = 'running', status = 'running' WHERE run_id = 'bad'")
    async with SQLiteJournal(path) as journal:
        (problem,) = (await journal.verify()).problems
    assert problem.startswith("run bad is corrupt at fact 8")


async def test_damaged_artifacts_are_found(tmp_path: Path) -> None:
    """JR-7: bytes that are not those of their digest."""
    from pilothouse.testing.journal_suite.care import naming

    path = tmp_path / "j.db"
    async with SQLiteJournal(path) as journal:
        run = SampleRun()
        await run.store(journal)
        ref = await journal.put_blob(b"bytes", "text/plain")
        await run.append(journal, run.seal(naming(run, ref)))
    damage(path, "UPDATE pieces SET data = x'00'")
    async with SQLiteJournal(path) as journal:
        (problem,) = (await journal.verify()).problems
    assert "does not match its digest" in problem


async def test_a_damaged_page_of_the_file_is_told_of_the_run_on_it(tmp_path: Path) -> None:
    """JR-7: bits flipped below SQLite: some run is told, never a wrong answer."""
    path = tmp_path / "j.db"
    async with SQLiteJournal(path) as journal:
        for number in range(30):
            run = SampleRun(f"run-{number:02}")
            await run.store(journal)
            await run.add(journal, 10, size=300)
    data = bytearray(path.read_bytes())
    spot = data.rindex(b'"name":"test/note"') + 5
    page = spot // 4096 * 4096
    data[page : page + 40] = b"\xff" * 40
    path.write_bytes(data)
    async with SQLiteJournal(path) as journal:
        whole, told = 0, 0
        for number in range(30):
            try:
                whole += len(await all_records(journal, f"run-{number:02}")) == 11
            except JournalCorrupt as error:
                told += error.run_id == f"run-{number:02}"
        assert told >= 1
        assert whole + told == 30
        problems = (await journal.verify()).problems
        assert len([problem for problem in problems if problem.startswith("run ")]) == told
        assert problems[-1].startswith("the file is damaged")


async def test_a_run_whose_id_is_no_text_any_more_hides_no_other(path: Path) -> None:
    """RC-67, JR-7: it is listed as corrupt, named as far as it can be read, and told by the check and the export."""
    damage(path, "UPDATE runs SET run_id = CAST(x'b26164' AS TEXT) WHERE run_id = 'bad'")
    async with SQLiteJournal(path) as journal:
        items = (await journal.list(RunQuery())).items
        assert [(entry.run_id, entry.status) for entry in items] == [
            ("behind", "completed"),
            ("\ufffdad", "corrupt"),
            ("before", "completed"),
        ]
        assert any("\ufffdad is corrupt" in problem for problem in (await journal.verify()).problems)
        exported = await export(journal, BytesIO())
        assert (exported.runs, len(exported.problems)) == (2, 1)


async def test_a_damaged_title_costs_that_title_alone(path: Path) -> None:
    """JR-30."""
    async with SQLiteJournal(path) as journal:
        for name in ("one", "two"):
            await journal.threads.put(ThreadRecord("", name, title=name), expected=None)
    damage(path, "UPDATE threads SET body = x'00' WHERE thread_id = 'one'")
    async with SQLiteJournal(path) as journal:
        assert [record.thread_id for record in (await journal.threads.list("")).items] == ["two"]
        with pytest.raises(JournalUnavailable, match="the file is damaged"):
            await journal.threads.get("", "one")


async def test_an_index_that_does_not_say_what_its_table_says_is_found(path: Path) -> None:
    """JR-7: every fact is sound, and still the file is not: a list by status would leave a run out."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA writable_schema = 1")
    connection.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, '(status', '(tenant') WHERE name = 'runs_ended'"
    )
    assert connection.changes() == 1
    connection.close()
    async with SQLiteJournal(path) as journal:
        assert any("the file is damaged" in problem for problem in (await journal.verify()).problems)
