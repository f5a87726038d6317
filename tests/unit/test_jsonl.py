"""Export and import as lines of text (JR-25, JR-26)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from pilothouse.contracts import Journal
from pilothouse.errors import JournalVersion, RunConflict
from pilothouse.journal import Exported, Imported, MemoryJournal, SQLiteJournal, export, import_
from pilothouse.records import Origin, Parent, RunQuery
from pilothouse.testing import FaultyJournal, SampleRun
from pilothouse.testing.journal_suite.care import naming
from pilothouse.testing.journal_suite.checking import all_records
from pilothouse.testing.sample_runs import claim_by


async def filled() -> MemoryJournal:
    """Runs in every state, two that share an artifact, texts that are hard to store."""
    journal = MemoryJournal()
    ended = SampleRun("ended", text="n\0l \u2028 \u0085 \\n 🙂", tenant="ten")
    asking = SampleRun("asking", parent=Parent("ended", "m"), origin=Origin("ended", "call"))
    lost, driven = SampleRun("lost", thread_id="t2"), SampleRun("driven", thread_id="t3")
    shared, own = (
        await journal.put_blob(b"\0shared", "image/png"),
        await journal.put_blob(b"own", "text/plain"),
    )
    for run in (ended, asking, lost, driven):
        await run.store(journal)
    await ended.append(journal, ended.begun())
    await ended.append(journal, ended.messages("broken \ud83d", "x\n\r\u2028" * 1000))
    await ended.append(journal, ended.seal(naming(ended, shared)))
    await ended.end(journal)
    await asking.append(journal, asking.asking())
    await asking.append(journal, asking.seal(naming(asking, shared)))
    await asking.append(journal, asking.seal(naming(asking, own)))
    await lost.append(journal, lost.lost())
    await journal.release(claim_by().owner, "driven")
    driven.fence = (await journal.claim("driven", claim_by("owner-2"))).fence
    await driven.append(journal, driven.begun())
    return journal


async def exported(journal: Journal, query: RunQuery | None = None) -> bytes:
    file = BytesIO()
    await export(journal, file, query)
    return file.getvalue()


async def imported(journal: Journal, data: bytes) -> Imported:
    return await import_(journal, BytesIO(data))


async def test_a_file_says_what_it_is_and_what_is_in_it() -> None:
    """JR-25: a header, runs oldest first, counts; one JSON object a line, whatever separators the texts hold."""
    journal = await filled()
    file = BytesIO()
    assert await export(journal, file) == Exported(4, 15, 2)
    lines = file.getvalue().split(b"\n")
    assert lines.pop() == b""
    first, *body, last = [json.loads(line) for line in lines]
    assert first == {"format": "pilothouse-journal", "version": 1}
    assert [line["run"]["registration"]["spec"]["run_id"] for line in body if "run" in line] == [
        "ended", "asking", "lost", "driven",
    ]  # fmt: skip
    assert {name: last["end"][name] for name in ("runs", "facts", "blobs")} == {
        "runs": 4,
        "facts": 15,
        "blobs": 2,
    }
    assert sum("blob" in line for line in body) == 2


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_export_import_export_is_byte_equal(tmp_path: Path, kind: str) -> None:
    """JR-26: bodies are the stored bytes; nobody owns what was imported, and what was live is an orphan."""
    data = await exported(await filled())
    copy: Journal = MemoryJournal() if kind == "memory" else SQLiteJournal(tmp_path / "j.db")
    assert await imported(copy, data) == Imported(4, 15)
    assert await exported(copy) == data
    assert (await copy.verify()).problems == ()
    entries = {entry.run_id: entry.ownership for entry in (await copy.list(RunQuery())).items}
    assert entries == {"ended": "none", "asking": "parked", "lost": "none", "driven": "orphaned"}
    assert await imported(copy, data) == Imported(skipped=4)
    head = await copy.claim("driven", claim_by())
    assert head.fence == 3
    await copy.aclose()


async def test_a_query_chooses_what_is_exported() -> None:
    """JR-25."""
    data = await exported(await filled(), RunQuery(thread_id="t2"))
    copy = MemoryJournal()
    assert await imported(copy, data) == Imported(1, 2)
    assert await copy.head("lost") is not None


async def test_many_pages_stream(tmp_path: Path) -> None:
    """JR-25: more runs and facts than one page holds."""
    journal = MemoryJournal()
    for number in range(520):
        await SampleRun(f"run-{number}", thread_id=f"t-{number}").store(journal)
    long = SampleRun("long")
    await long.store(journal)
    await long.add(journal, 1200, size=2000)
    path = tmp_path / "export.jsonl"
    with path.open("wb") as file:
        assert (await export(journal, file)).facts == 520 + 1201
    copy = MemoryJournal()
    with path.open("rb") as file:
        assert (await import_(copy, file)).runs == 521
    assert await all_records(copy, "long") == await all_records(journal, "long")
    assert await exported(copy) == path.read_bytes()


async def test_a_run_that_is_something_else_here_is_a_conflict_and_others_go_on() -> None:
    """JR-26: other content, another length, or purged for good."""
    data = await exported(await filled())
    copy = MemoryJournal()
    await SampleRun("lost", text="other").store(copy)
    ended = SampleRun("ended", text="n\0l \u2028 \u0085 \\n 🙂", tenant="ten")
    await ended.store(copy)
    gone = SampleRun("driven", thread_id="gone")
    await gone.store(copy)
    await gone.end(copy)
    await copy.purge("gone")
    assert await imported(copy, data) == Imported(1, 5, conflicts=("ended", "lost", "driven"))
    assert len(await all_records(copy, "ended")) == 1


def _replace(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """Changes the first place that holds it, which is in the first run."""

    def changed(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new, 1)

    return changed


TAMPERED = {
    "a body": _replace(b'"event_id":"started"', b'"event_id":"st4rted"'),
    "a time": _replace(b'"lane":"runtime"', b'"lane":"host"'),
    "a question": _replace(b'"run_id":"ended"', b'"run_id":"endet"'),
    "a state": _replace(b'"state":"terminal","status":"completed"', b'"state":"running","status":"running"'),
    "an artifact": _replace(b'"data":"AHNoYXJlZA=="', b'"data":"AHNoYXJlZQ=="'),
}


@pytest.mark.parametrize("what", TAMPERED)
async def test_what_was_changed_is_found_and_not_imported(what: str) -> None:
    """JR-26: digests and chain are checked; the other runs are imported."""
    data = await exported(await filled())
    copy = MemoryJournal()
    result = await imported(copy, TAMPERED[what](data))
    assert result.problems
    assert "its digest differs" in result.problems[-1]
    assert await copy.head("ended") is None
    assert await copy.head("lost") is not None
    assert (await copy.verify()).problems == ()


async def test_a_missing_line_is_found() -> None:
    """JR-26: a run whole or not at all."""
    data = await exported(await filled())
    lines = data.split(b"\n")
    fact = next(index for index, line in enumerate(lines) if b'"message_added"' in line)
    copy = MemoryJournal()
    result = await imported(copy, b"\n".join(lines[:fact] + lines[fact + 1 :]))
    assert result.runs == 3
    assert "run ended is corrupt" in result.problems[0]
    result = await imported(MemoryJournal(), b"\n".join(lines[:1] + lines[2:]))
    assert "a fact of no run" in result.problems[0]
    assert result.runs == 3


async def test_a_torn_file_gives_its_complete_runs() -> None:
    """JR-26: at every byte: no half run, the tear is named."""
    data = await exported(await filled())
    whole = await exported(await filled())
    assert data == whole
    starts = [index for index in range(len(data)) if data.startswith(b'{"run"', index)]
    for cut in [*range(60, len(data) - 1, 487), *[start + 1 for start in starts], *starts, len(data) - 1]:
        copy = MemoryJournal()
        result = await imported(copy, data[:cut])
        assert result.torn, cut
        assert result.problems == () or "artifact" in result.problems[0], cut
        verified = await copy.verify()
        assert verified.problems == ()
        assert verified.runs == result.runs
        complete = sum(start < cut for start in starts) - 1
        assert complete <= result.runs <= complete + 1
        assert (await imported(copy, data)).torn == ""
        assert await exported(copy) == data


async def test_what_is_no_export_is_refused() -> None:
    """JR-26: with a word why."""
    for data, why in [
        (b"", "empty"),
        (b"hello\n", "no export"),
        (b"{}\n", "no export"),
        (b'{"format":"other","version":1}\n', "no export"),
        (b'{"format":"pilothouse-journal","version":2}\n', "upgrade"),
    ]:
        with pytest.raises(JournalVersion, match=why):
            await imported(MemoryJournal(), data)


async def test_what_follows_the_end_is_told() -> None:
    data = await exported(await filled())
    result = await imported(MemoryJournal(), data + b'{"more": 1}\n')
    assert result.problems == (f"line {data.count(10) + 1}: nothing may follow the end",)


async def test_a_damaged_run_is_left_out_and_named(tmp_path: Path) -> None:
    """JR-25, JR-7: of a damaged journal everything else can be saved."""
    import apsw

    async with SQLiteJournal(tmp_path / "j.db") as journal:
        await imported(journal, await exported(await filled()))
    damaging = apsw.Connection(str(tmp_path / "j.db"))
    damaging.execute("UPDATE facts SET body = x'00' WHERE event_id = 'started' AND key >> 24 = 1")
    damaging.close()
    async with SQLiteJournal(tmp_path / "j.db") as journal:
        file = BytesIO()
        result = await export(journal, file)
    assert result.runs == 3
    assert "run ended is corrupt at fact 2" in result.problems[0]
    copy = MemoryJournal()
    read = await imported(copy, file.getvalue())
    assert read.runs == 3
    assert "not exported: run ended is corrupt" in read.problems[0]


async def test_a_run_that_is_written_meanwhile_is_exported_as_it_was() -> None:
    """JR-25: up to where it stood when its turn came."""
    journal = FaultyJournal(MemoryJournal())
    run = SampleRun()
    await run.store(journal)
    await run.add(journal, 3)
    hang = journal.hang(on=("read",))
    exporting = asyncio.create_task(exported(journal))
    await hang.reached.wait()
    await run.append(journal, run.begun())
    hang.release()
    copy = MemoryJournal()
    assert (await imported(copy, await exporting)) == Imported(1, 4)


async def test_the_ids_of_purged_runs_do_not_come_back() -> None:
    journal = MemoryJournal()
    run = SampleRun()
    await run.store(journal)
    await run.end(journal)
    data = await exported(journal)
    await journal.purge("thread-1")
    assert (await imported(journal, data)).conflicts == ("run-1",)
    with pytest.raises(RunConflict):
        await run.store(journal)
