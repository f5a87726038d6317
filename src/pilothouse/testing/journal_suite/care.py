"""Artifacts, purge, verification, counters, closing (JR-6 … JR-9, RC-71)."""

from __future__ import annotations

from hashlib import sha256

from ...contracts import Journal
from ...errors import ArtifactNotFound, JournalUnavailable, RunConflict, RunNotFound, UsageError
from ...events import Noted, OutputAdded, RequestClosed
from ...messages import ArtifactRef
from ...records import Head, Record, RunQuery, ThreadRecord
from ..sample_runs import SampleRun, claim_by
from .checking import Opens, all_records, check, raises


def naming(run: SampleRun, ref: ArtifactRef) -> OutputAdded:
    """A fact that names an artifact."""
    return OutputAdded(f"out-{run.count}", "file", {**_as_json(ref)})


def _as_json(ref: ArtifactRef) -> dict[str, object]:
    return {"bytes": ref.bytes, "digest": ref.digest, "media_type": ref.media_type, "type": "artifact"}


class CareChecks(Opens):
    """What keeps a store in order."""

    @check
    async def test_artifacts_are_kept_under_their_digest(self, journal: Journal) -> None:
        """RC-71, JR-19: any bytes, any size; equal ones once."""
        for data in (b"", b"\0\xff", bytes(range(256)) * 13_000):
            ref = await journal.put_blob(data, "application/octet-stream")
            assert (ref.digest, ref.bytes, ref.preview) == (sha256(data).hexdigest(), len(data), "")
            assert await journal.get_blob(ref.digest) == data
            assert await journal.put_blob(data, "application/octet-stream") == ref
        text = await journal.put_blob("é".encode() * 5000, "text/plain; charset=utf-8")
        assert text.preview == "é" * 2000
        await raises(ArtifactNotFound, journal.get_blob("0" * 64))
        await raises(ArtifactNotFound, journal.get_blob("no digest at all"))

    @check
    async def test_purge_removes_a_thread_and_leaves_a_mark(self, journal: Journal) -> None:
        """JR-8: facts, record and unshared artifacts go; the ids cannot come back; others are untouched."""
        doomed, twin, kept = SampleRun("doomed"), SampleRun("twin"), SampleRun("kept", thread_id="t2")
        shared = await journal.put_blob(b"shared", "text/plain")
        own = await journal.put_blob(b"own", "text/plain")
        for run in (doomed, twin, kept):
            await run.store(journal)
        for ref in (shared, own):
            await doomed.append(journal, doomed.seal(naming(doomed, ref)))
        await kept.append(journal, kept.seal(naming(kept, shared)))
        await journal.threads.put(ThreadRecord("ten", "thread-1", title="gone"), expected=None)
        await doomed.end(journal)
        await twin.end(journal)
        await journal.purge("thread-1")
        for run in (doomed, twin):
            assert await journal.head(run.run_id) is None
            assert (await journal.read(run.run_id)).records == ()
            assert await journal.find(run.run_id, "end") is None
            await raises(RunNotFound, journal.claim(run.run_id, claim_by()))
            await raises(RunNotFound, run.append(journal, run.notes()))
            await raises(RunConflict, run.store(journal))
        assert await journal.thread_head("thread-1") is None
        assert await journal.threads.get("ten", "thread-1") is None
        assert [entry.run_id for entry in (await journal.list(RunQuery())).items] == ["kept"]
        assert await journal.get_blob(shared.digest) == b"shared"
        await raises(ArtifactNotFound, journal.get_blob(own.digest))
        await journal.purge("thread-1")
        await SampleRun("fresh").store(journal, expect_head=None)
        assert (await journal.verify()).problems == ()

    @check
    async def test_purge_is_refused_while_a_run_is_live(self, journal: Journal) -> None:
        """JR-8: one that is driven, or waits for an answer; not one whose owner is gone (SV-224)."""
        run = SampleRun()
        await run.store(journal)
        await raises(UsageError, journal.purge("thread-1"))
        await run.append(journal, run.asking())
        await journal.release(claim_by().owner)
        await raises(UsageError, journal.purge("thread-1"))
        assert len(await all_records(journal, "run-1")) == 3
        await run.append(journal, run.seal(RequestClosed("request-1", "expired")))
        await journal.purge("thread-1")
        assert await journal.head("run-1") is None

    @check
    async def test_verification_counts_what_is_sound(self, journal: Journal) -> None:
        """JR-7."""
        for number in range(3):
            run = SampleRun(f"run-{number}")
            await run.store(journal)
            await run.add(journal, number)
        whole = await journal.verify()
        assert (whole.runs, whole.facts, whole.problems) == (3, 6, ())
        one = await journal.verify("run-2")
        assert (one.runs, one.facts, one.problems) == (1, 3, ())
        assert (await journal.verify("ghost")).problems

    @check
    async def test_verification_finds_a_missing_artifact(self, journal: Journal) -> None:
        """JR-7: a fact that names bytes which are not there."""
        run = SampleRun()
        await run.store(journal)
        await run.append(journal, run.seal(naming(run, ArtifactRef("ab" * 32, 5, "text/plain"))))
        (problem,) = (await journal.verify()).problems
        assert "run-1" in problem
        assert "ab" * 32 in problem

    @check
    async def test_an_imported_run_keeps_its_fence(self, journal: Journal) -> None:
        """JR-26: a run that was taken over elsewhere is stored whole, and the next claim goes on from its fence."""
        run = SampleRun()
        records = run.accepted()
        run.fence = 4
        records += run.seal(Noted("test/a"), Noted("test/b"), head=_head_behind(records))
        created = await run.store(journal, records=records)
        assert created.head.fence == 4
        await journal.release(claim_by().owner)
        assert (await journal.claim("run-1", claim_by())).fence == 5
        assert (await journal.verify()).problems == ()

    @check
    async def test_counters_count(self, journal: Journal) -> None:
        """JR-9."""
        run = SampleRun()
        before = journal.stats()
        await run.store(journal)
        await run.add(journal, 3)
        stats = journal.stats()
        assert stats.facts - before.facts == 4
        assert stats.appends - before.appends == 2
        assert 1 <= stats.commits - before.commits <= 2
        assert stats.bytes - before.bytes > 100
        assert stats.queue == 0

    @check
    async def test_a_closed_journal_takes_nothing(self, journal: Journal) -> None:
        """JR-6: closing is idempotent; use after it is one clear error."""
        run = SampleRun()
        await run.store(journal)
        await journal.aclose()
        await journal.aclose()
        error = await raises(JournalUnavailable, run.append(journal, run.notes()))
        assert "closed" in str(error)
        await raises(JournalUnavailable, SampleRun("other").store(journal))
        await raises(JournalUnavailable, journal.put_blob(b"x", "text/plain"))


def _head_behind(records: list[Record]) -> Head:
    return Head(records[-1].seq, records[-1].chain)
