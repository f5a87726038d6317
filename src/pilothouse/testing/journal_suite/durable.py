"""What a store that outlives its process owes besides: everything is there again, and two users of it agree."""

from __future__ import annotations

import asyncio

from ...contracts import Journal
from ...errors import FenceConflict, OwnedElsewhere, SeqConflict, ThreadConflict, ThreadMoved
from ...events import AnyFact, Noted
from ...records import RunQuery, ThreadRecord
from ..sample_runs import SampleRun, claim_by
from .checking import Opens, all_records, check, raises


class DurableChecks(Opens):
    """Each call of `open_journal` opens the same store, as another process would."""

    @check
    async def test_everything_is_there_after_closing(self, journal: Journal) -> None:
        """JR-3, JR-6: facts, heads, owners, threads, artifacts."""
        run = SampleRun()
        await run.store(journal)
        await run.append(journal, run.messages("one", "tw\0o"))
        ref = await journal.put_blob(b"artifact", "text/plain")
        record = await journal.threads.put(ThreadRecord("ten", "thread-1", title="T"), expected=None)
        head = await journal.head("run-1")
        records = await all_records(journal, "run-1")
        page = await journal.list(RunQuery())
        await journal.aclose()
        again = await self.open_journal()
        try:
            assert await again.head("run-1") == head
            assert await all_records(again, "run-1") == records
            assert await again.list(RunQuery()) == page
            assert await again.get_blob(ref.digest) == b"artifact"
            assert await again.threads.get("ten", "thread-1") == record
            assert await again.thread_head("thread-1") == "run-1"
            await run.add(again)
        finally:
            await again.aclose()

    @check
    async def test_what_was_handed_over_is_there_after_closing(self, journal: Journal) -> None:
        """JR-6: closing drains."""
        run = SampleRun()
        await run.store(journal)
        records = run.notes(5)
        append = asyncio.create_task(run.append(journal, records))
        await asyncio.sleep(0)
        await journal.aclose()
        await append
        again = await self.open_journal()
        try:
            assert (await all_records(again, "run-1"))[1:] == records
        finally:
            await again.aclose()

    @check
    async def test_two_users_of_one_store_are_kept_apart(self, journal: Journal) -> None:
        """RC-49, JR-13 [140]: heads, fences and leases hold between them."""
        other = await self.open_journal()
        try:
            run = SampleRun()
            await run.store(journal)
            await raises(OwnedElsewhere, other.claim("run-1", claim_by("owner-2")))
            stale = run.head
            await run.add(journal, 2)
            await raises(SeqConflict, run.append(other, run.seal(*_facts(run), head=stale), expected=stale))
            await journal.release(claim_by().owner)
            claimed = await other.claim("run-1", claim_by("owner-2"))
            await raises(FenceConflict, run.append(journal, run.notes()))
            run.fence, run.head = claimed.fence, claimed.head
            await run.add(other)
            assert len(await all_records(journal, "run-1")) == 4
            assert (await run.store(journal)).existing
            await raises(ThreadConflict, SampleRun("run-2").store(journal, expect_head=None))
            record = await journal.threads.put(ThreadRecord("", "t", title="a"), expected=None)
            await other.threads.put(record, expected=1)
            await raises(ThreadMoved, journal.threads.put(record, expected=1))
        finally:
            await other.aclose()

    @check
    async def test_a_reader_of_another_user_is_woken(self, journal: Journal) -> None:
        """RC-65, JR-20."""
        other = await self.open_journal()
        try:
            run = SampleRun()
            await run.store(journal)
            waits = [asyncio.create_task(other.changed("run-1", 1, timeout=20)) for _ in range(3)]
            await asyncio.sleep(0)
            await run.add(journal, 2)
            assert await asyncio.gather(*waits) == [3, 3, 3]
        finally:
            await other.aclose()

    @check
    async def test_two_users_write_at_once(self, journal: Journal) -> None:
        """JR-13: different runs, no error, nothing lost."""
        other = await self.open_journal()
        try:

            async def write(number: int) -> None:
                mine = (journal, other)[number % 2]
                run = SampleRun(f"run-{number}")
                await run.store(mine)
                for _ in range(10):
                    await run.add(mine)

            await asyncio.gather(*[write(number) for number in range(20)])
            verified = await journal.verify()
            assert (verified.runs, verified.facts, verified.problems) == (20, 220, ())
        finally:
            await other.aclose()


def _facts(run: SampleRun) -> list[AnyFact]:
    return [Noted("test/late", run.run_id)]
