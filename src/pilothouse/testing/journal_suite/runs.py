"""Creating, appending, reading (JR-1 … JR-5, RC-5, RC-14, RC-15)."""

from __future__ import annotations

import asyncio

from ...contracts import Journal
from ...errors import (
    DuplicateConflict,
    FenceConflict,
    RunConflict,
    RunNotFound,
    SeqConflict,
    ThreadConflict,
)
from ...events import Completed, Noted, RunEnded, RunStarted
from ...messages import Message, Text
from ...records import Head
from ..sample_runs import SampleRun, claim_by
from .checking import Opens, all_records, check, raises


class RunChecks(Opens):
    """What a store does with the facts of runs."""

    @check
    async def test_create_registers_claims_and_moves_the_thread_head(self, journal: Journal) -> None:
        """JR-1: registration, first facts, claim and thread head come together."""
        run = SampleRun("run-1", thread_id="t")
        created = await run.store(journal)
        assert not created.existing
        head = await journal.head("run-1")
        assert head == created.head
        assert head is not None
        assert head.registration == run.registration
        assert (head.head.seq, head.fence, head.owner, head.owner_alive) == (1, 1, "owner-1", True)
        assert head.summary.state == "accepted"
        assert await journal.thread_head("t") == "run-1"
        (record,) = (await journal.read("run-1")).records
        assert record.chain == head.head.chain

    @check
    async def test_an_equal_create_finds_the_run_and_writes_nothing(self, journal: Journal) -> None:
        """JR-1, RC-33: the same id and identity is the same run, whatever the thread's head is by now."""
        run = SampleRun("run-1", thread_id="t")
        await run.store(journal)
        await run.add(journal, 3)
        await SampleRun("run-2", thread_id="t").store(journal)
        again = SampleRun("run-1", thread_id="t", created_at_ms=5)
        created = await again.store(journal, claim=claim_by("owner-2"), expect_head=None)
        assert created.existing
        assert (created.head.head, created.head.owner, created.head.fence) == (run.head, "owner-1", 1)
        assert created.head.registration == run.registration
        assert await journal.thread_head("t") == "run-2"

    @check
    async def test_another_create_under_the_same_id_is_a_conflict(self, journal: Journal) -> None:
        """JR-1: the id stands for what was registered first."""
        run = SampleRun("run-1", text="one")
        await run.store(journal)
        other = SampleRun("run-1", text="two", thread_id="elsewhere")
        error = await raises(RunConflict, other.store(journal))
        assert error.run_id == "run-1"
        assert await journal.thread_head("elsewhere") is None
        assert len(await all_records(journal, "run-1")) == 1

    @check
    async def test_a_create_may_expect_the_thread_head(self, journal: Journal) -> None:
        """RC-70: another head is a conflict that names it, and nothing is written."""
        await raises(ThreadConflict, SampleRun("r0", thread_id="t").store(journal, expect_head="r9"))
        await SampleRun("r1", thread_id="t").store(journal, expect_head=None)
        error = await raises(ThreadConflict, SampleRun("r2", thread_id="t").store(journal, expect_head=None))
        assert error.head == "r1"
        assert await journal.head("r2") is None
        assert (await journal.read("r2")).records == ()
        await SampleRun("r2", thread_id="t").store(journal, expect_head="r1")
        assert await journal.thread_head("t") == "r2"
        assert await journal.thread_head("other") is None

    @check
    async def test_of_two_starts_at_once_one_wins_the_head(self, journal: Journal) -> None:
        """RC-70: they race, one is told."""
        runs = [SampleRun(f"r{n}", thread_id="t") for n in range(8)]
        results = await asyncio.gather(
            *[run.store(journal, expect_head=None) for run in runs], return_exceptions=True
        )
        losers = [result for result in results if isinstance(result, ThreadConflict)]
        assert len(losers) == 7
        winner = await journal.thread_head("t")
        assert {loser.head for loser in losers} == {winner}

    @check
    async def test_an_append_moves_head_and_summary_together(self, journal: Journal) -> None:
        """JR-2, JR-5."""
        run = SampleRun()
        await run.store(journal)
        records = run.asking()
        appended = await run.append(journal, records)
        assert appended.head == Head(3, records[-1].chain)
        assert not appended.duplicate
        head = await journal.head("run-1")
        assert head is not None
        assert head.head == appended.head
        assert (head.summary.state, head.summary.status, head.summary.resting) == ("waiting", "waiting", True)
        assert (await all_records(journal, "run-1"))[1:] == records

    @check
    async def test_a_wrong_head_is_refused(self, journal: Journal) -> None:
        """JR-2: seq and chain are compared; the error says where the head is."""
        run = SampleRun()
        await run.store(journal)
        before = run.head
        await run.add(journal, 2)
        after = run.head
        stale = run.seal(Noted("test/late"), head=before)
        error = await raises(SeqConflict, run.append(journal, stale, expected=before))
        assert (error.expected, error.actual) == (1, 3)
        wrong_chain = Head(after.seq, "0" * 64)
        records = run.notes()
        await raises(SeqConflict, run.append(journal, records, expected=wrong_chain))
        ahead = run.seal(Noted("test/ahead"), head=Head(9, after.chain))
        await raises(SeqConflict, run.append(journal, ahead, expected=Head(9, after.chain)))
        head = await journal.head("run-1")
        assert head is not None
        assert head.head == after

    @check
    async def test_another_fence_is_refused(self, journal: Journal) -> None:
        """JR-2, RC-49 [140]: the store itself refuses the old owner."""
        run = SampleRun()
        await run.store(journal)
        await journal.release(claim_by().owner)
        await journal.claim("run-1", claim_by("owner-2"))
        error = await raises(FenceConflict, run.append(journal, run.notes()))
        assert (error.fence, error.actual) == (1, 2)
        await raises(FenceConflict, run.append(journal, run.notes(), fence=3))
        assert len(await all_records(journal, "run-1")) == 1

    @check
    async def test_repeating_an_append_is_a_duplicate(self, journal: Journal) -> None:
        """JR-2, RC-15: after an uncertain commit the same records are found, even if the tail moved or the fence did."""
        run = SampleRun()
        await run.store(journal)
        before = run.head
        records = await run.add(journal, 2)
        assert (await run.append(journal, records, expected=before)).duplicate
        await run.add(journal)
        moved = run.head
        appended = await run.append(journal, records, expected=before)
        assert appended.duplicate
        assert appended.head == moved
        await journal.claim("run-1", claim_by())
        assert (await run.append(journal, records, expected=before)).duplicate
        assert (await run.append(journal, records[:1], expected=before)).duplicate
        assert len(await all_records(journal, "run-1")) == 4

    @check
    async def test_an_ended_run_reads_the_same_once_its_thread_has_gone_on(self, journal: Journal) -> None:
        """JR-2, JR-4, RC-5: whatever a store does with what hardly anybody reads again, no fact of it changes."""
        run = SampleRun("run-1", thread_id="t")
        await run.store(journal)
        before = run.head
        records = run.seal(RunStarted(), RunEnded(Completed()))
        await run.append(journal, records)
        whole = await all_records(journal, "run-1")
        await SampleRun("run-2", thread_id="t").store(journal)
        assert await all_records(journal, "run-1") == whole
        assert (await journal.read("run-1", after=1, limit=1)).records == tuple(whole[1:2])
        for record in whole:
            assert await journal.find("run-1", record.event_id) == record
        assert await journal.find("run-1", "another") is None
        assert (await run.append(journal, records, expected=before)).duplicate
        assert (await journal.verify("run-1")).problems == ()
        head = await journal.head("run-1")
        assert head is not None
        assert (head.head, head.summary.state) == (run.head, "terminal")
        late = run.seal(Noted("late", {}))  # no rule of ours lets it come, but a store has no rules
        await run.append(journal, late)
        assert await all_records(journal, "run-1") == [*whole, *late]
        assert await journal.find("run-1", late[0].event_id) == late[0]
        assert (await journal.verify("run-1")).problems == ()

    @check
    async def test_an_event_id_stands_for_one_content(self, journal: Journal) -> None:
        """JR-4, RC-13: the store catches what is used again; all or none."""
        run = SampleRun()
        await run.store(journal)
        await run.append(journal, run.seal(Noted("test/a"), event_ids=["once"]))
        good_head = run.head
        records = run.seal(
            Noted("test/new"), Noted("test/b"), Noted("test/c"), event_ids=["new", "once", "newer"]
        )
        error = await raises(DuplicateConflict, run.append(journal, records))
        assert error.event_id == "once"
        head = await journal.head("run-1")
        assert head is not None
        assert head.head == good_head
        assert await journal.find("run-1", "new") is None
        twice = run.seal(Noted("test/a"), Noted("test/b"), event_ids=["twin", "twin"])
        error = await raises(DuplicateConflict, run.append(journal, twice))
        assert error.event_id == "twin"
        assert await journal.find("run-1", "twin") is None
        await run.append(journal, run.seal(Noted("test/d"), event_ids=["new"]))
        assert (await journal.verify()).problems == ()

    @check
    async def test_an_append_to_no_run_is_refused(self, journal: Journal) -> None:
        """JR-2: an append makes no run."""
        run = SampleRun("ghost")
        await raises(RunNotFound, run.append(journal, run.accepted()))
        assert await journal.head("ghost") is None

    @check
    async def test_two_writers_on_one_head_never_interleave(self, journal: Journal) -> None:
        """JR-2: of many appends that expect the same head one is stored."""
        run = SampleRun()
        await run.store(journal)
        head = run.head
        offers = [run.notes(3) for _ in range(10)]
        results = await asyncio.gather(
            *[
                journal.append("run-1", offer, expected=head, fence=1, summary=run.summary())
                for offer in offers
            ],
            return_exceptions=True,
        )
        assert sum(isinstance(result, SeqConflict) for result in results) == 9
        stored = (await all_records(journal, "run-1"))[1:]
        assert stored in offers

    @check
    async def test_many_runs_write_at_once(self, journal: Journal) -> None:
        """JR-7, JR-11: batch-mates do not touch each other, also where some of them are refused."""

        async def write(number: int) -> SampleRun:
            run = SampleRun(f"run-{number}", thread_id=f"t-{number % 7}")
            await run.store(journal)
            for step in range(10):
                if number % 5 == 0:
                    await raises(
                        SeqConflict, run.append(journal, run.notes(), expected=Head(99, run.head.chain))
                    )
                if number % 5 == 1 and step:
                    again = run.seal(Noted("test/x"), Noted("test/y"), event_ids=[f"ok-{step}", "accepted"])
                    await raises(DuplicateConflict, run.append(journal, again))
                await run.add(journal, 1 + number % 3)
            return run

        for run in await asyncio.gather(*[write(number) for number in range(40)]):
            records = await all_records(journal, run.run_id)
            assert [record.seq for record in records] == list(range(1, run.head.seq + 1))
            assert records[-1].chain == run.head.chain
        verified = await journal.verify()
        assert verified.problems == ()
        assert verified.runs == 40

    @check
    async def test_a_cancelled_append_is_finished_all_the_same(self, journal: Journal) -> None:
        """RC-14: what was handed over completes, whatever happens to who waits."""
        run = SampleRun()
        await run.store(journal)
        records = run.notes(2)
        task = asyncio.create_task(run.append(journal, records))
        await asyncio.sleep(0)  # its first step hands the append over
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await journal.changed("run-1", 1, timeout=10) == 3
        assert (await run.append(journal, records)).duplicate

    @check
    async def test_facts_are_read_in_pages(self, journal: Journal) -> None:
        """JR-5: ascending, behind a seq, at most so many."""
        run = SampleRun()
        await run.store(journal)
        await run.add(journal, 20)
        page = await journal.read("run-1", after=5, limit=10)
        assert [record.seq for record in page.records] == list(range(6, 16))
        assert page.more
        page = await journal.read("run-1", after=15, limit=6)
        assert [record.seq for record in page.records] == list(range(16, 22))
        assert not page.more
        assert (await journal.read("run-1", after=21)).records == ()
        assert (await journal.read("run-1", after=99)).records == ()
        assert (await journal.read("ghost")).records == ()
        await raises(ValueError, journal.read("run-1", after=-1))
        await raises(ValueError, journal.read("run-1", limit=0))
        await raises(ValueError, journal.read("run-1", limit=501))

    @check
    async def test_facts_are_read_by_kind(self, journal: Journal) -> None:
        """JR-5."""
        run = SampleRun()
        await run.store(journal)
        await run.add(journal, 3)
        await run.append(journal, run.messages("one", "two"))
        await run.add(journal, 3)
        await run.append(journal, run.messages("three"))
        page = await journal.read("run-1", kinds=frozenset({"message_added"}), limit=2)
        assert [record.seq for record in page.records] == [5, 6]
        assert page.more
        page = await journal.read("run-1", after=6, kinds=frozenset({"message_added", "run_accepted"}))
        assert [record.seq for record in page.records] == [10]
        assert not page.more

    @check
    async def test_a_page_is_bounded_in_bytes(self, journal: Journal) -> None:
        """JR-5: 4 MiB, and a larger fact still makes a page."""
        run = SampleRun()
        await run.store(journal)
        for _ in range(6):
            await run.add(journal, 1, size=1_000_000)
        page = await journal.read("run-1")
        assert len(page.records) == 5  # the first one is small
        assert page.more
        assert len(await all_records(journal, "run-1")) == 7
        await run.add(journal, 1, size=5_000_000)
        (large,) = (await journal.read("run-1", after=7)).records
        assert large.seq == 8

    @check
    async def test_a_fact_is_found_by_its_event_id(self, journal: Journal) -> None:
        """RC-15: how an uncertain append is settled."""
        run = SampleRun()
        await run.store(journal)
        (record,) = run.seal(Noted("test/a"), event_ids=["mine"])
        await run.append(journal, [record])
        assert await journal.find("run-1", "mine") == record
        assert await journal.find("run-1", "other") is None
        assert await journal.find("ghost", "mine") is None

    @check
    async def test_no_content_breaks_the_store(self, journal: Journal) -> None:
        """RC-4, JR-16 [100]: NUL, lone surrogates, line separators, a megabyte; stored is what was sealed."""
        texts = [
            "n\0e\0t\0",
            "broken \ud83d emoji",
            "\u2028\u0085",
            "'; drop table facts; --",
            "🙂" * 300_000,
            "",
        ]
        run = SampleRun(text="in\0put \udc80", options={"k\0": ["\ud800", 20 * "9", 12345678901234567890]})
        await run.store(journal)
        records = run.messages(*texts)
        await run.append(journal, records)
        stored = (await all_records(journal, "run-1"))[1:]
        assert [record.body for record in stored] == [record.body for record in records]
        scrubbed = [text.replace("\ud83d", "\ufffd") for text in texts]
        assert [record.fact.message.text for record in stored] == scrubbed  # type: ignore[union-attr]
        assert (await journal.verify()).problems == ()

    @check
    async def test_the_registration_comes_back_whole(self, journal: Journal) -> None:
        """RC-84: input, options and all that a spec holds."""
        run = SampleRun(text="x" * 50_000, tenant="ten", options={"a": [1, 2.5, None, {"b": "c"}]})
        await run.store(journal)
        head = await journal.head("run-1")
        assert head is not None
        assert head.registration == run.registration
        assert head.registration.spec.input == (Message("run-1-input", "user", (Text("x" * 50_000),)),)
