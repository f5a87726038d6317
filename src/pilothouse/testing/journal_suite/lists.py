"""The catalog of runs and the records of threads (RC-67, RC-79, JR-30)."""

from __future__ import annotations

from msgspec.structs import replace

from ...contracts import Journal
from ...errors import ThreadMoved
from ...records import Origin, Page, Parent, RunEntry, RunQuery, ThreadRecord
from ..clock import START_MS
from ..sample_runs import SampleRun
from .checking import Opens, check, raises


async def _ids(journal: Journal, query: RunQuery) -> list[str]:
    return [entry.run_id for entry in (await journal.list(query)).items]


class ListChecks(Opens):
    """What a store lists."""

    @check
    async def test_an_entry_says_what_a_list_needs(self, journal: Journal) -> None:
        """RC-67: without reading a fact."""
        parent = Parent("first", "m1")
        await SampleRun("first").store(journal)
        run = SampleRun(
            "second", thread_id="t", tenant="ten", binding="b", parent=parent, origin=Origin("first", "call")
        )
        await run.store(journal)
        await run.append(journal, run.begun())
        await run.add(journal, 3)
        entry = (await journal.list(RunQuery())).items[0]
        assert entry == RunEntry(
            "second",
            "t",
            "b",
            "descriptor",
            "running",
            "running",
            5,
            START_MS,
            run.summary().updated_at_ms,
            "ten",
            parent,
            Origin("first", "call"),
            can_control=False,
            ownership="elsewhere",
        )

    @check
    async def test_pages_miss_and_repeat_nothing_while_runs_are_added(self, journal: Journal) -> None:
        """RC-67: newest first by creation, keyset cursor."""
        for number in range(25):
            await SampleRun(f"run-{number:02}", thread_id=f"t-{number % 2}").store(journal)
        seen: list[str] = []
        cursor: str | None = None
        pages = 0
        while True:
            page: Page[RunEntry] = await journal.list(RunQuery(), cursor=cursor, limit=4)
            seen += [entry.run_id for entry in page.items]
            await SampleRun(f"new-{pages}").store(journal)
            pages += 1
            if (cursor := page.cursor) is None:
                break
        assert seen == [f"run-{number:02}" for number in range(24, -1, -1)]
        page = await journal.list(RunQuery(thread_id="t-1"), limit=5)
        assert [entry.run_id for entry in page.items] == [
            f"run-{number:02}" for number in (23, 21, 19, 17, 15)
        ]
        page = await journal.list(RunQuery(thread_id="t-1"), cursor=page.cursor, limit=500)
        assert [entry.run_id for entry in page.items] == [
            f"run-{number:02}" for number in (13, 11, 9, 7, 5, 3, 1)
        ]
        assert page.cursor is None

    @check
    async def test_every_filter_filters(self, journal: Journal) -> None:
        """RC-67."""
        one = SampleRun("one", thread_id="t1", tenant="a", created_at_ms=100)
        two = SampleRun("two", thread_id="t2", tenant="b", binding="other", created_at_ms=200)
        three = SampleRun(
            "three",
            thread_id="t1",
            tenant="a",
            parent=Parent("one"),
            origin=Origin("two", "c"),
            created_at_ms=300,
        )
        for run in (one, two, three):
            await run.store(journal)
        await one.end(journal)
        await two.append(journal, two.asking())
        wanted = {
            RunQuery(): ["three", "two", "one"],
            RunQuery(tenant="a"): ["three", "one"],
            RunQuery(tenant=""): [],
            RunQuery(thread_id="t1"): ["three", "one"],
            RunQuery(states=("terminal",)): ["one"],
            RunQuery(states=("accepted", "waiting")): ["three", "two"],
            RunQuery(states=()): [],
            RunQuery(thread_id="t1", statuses=()): [],
            RunQuery(statuses=("completed", "waiting")): ["two", "one"],
            RunQuery(statuses=("failed",)): [],
            RunQuery(binding="other"): ["two"],
            RunQuery(parent="one"): ["three"],
            RunQuery(origin="two"): ["three"],
            RunQuery(after_ms=200): ["three", "two"],
            RunQuery(before_ms=200): ["one"],
            RunQuery(tenant="a", statuses=("accepted",)): ["three"],
            RunQuery(thread_id="t1", tenant="b"): [],
            RunQuery(states=("terminal", "waiting"), binding="other"): ["two"],
        }
        for query, ids in wanted.items():
            assert await _ids(journal, query) == ids, query

    @check
    async def test_pages_of_a_filter_go_on(self, journal: Journal) -> None:
        """RC-67: a cursor holds for a list of several statuses too."""
        for number in range(12):
            run = SampleRun(f"run-{number:02}")
            await run.store(journal)
            if number % 3:
                await run.append(journal, run.asking() if number % 2 else run.begun())
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = await journal.list(RunQuery(states=("waiting", "running")), cursor=cursor, limit=3)
            assert len(page.items) <= 3
            seen += [entry.run_id for entry in page.items]
            if (cursor := page.cursor) is None:
                break
        assert seen == [f"run-{number:02}" for number in range(11, -1, -1) if number % 3]

    @check
    async def test_a_bad_page_is_refused(self, journal: Journal) -> None:
        """RC-67: limit 1..500, cursors of ours."""
        for limit in (0, -1, 501):
            await raises(ValueError, journal.list(RunQuery(), limit=limit))
            await raises(ValueError, journal.threads.list("", limit=limit))
        for cursor in ("", "x", "-1", "1; drop table runs", "9" * 30):
            await raises(ValueError, journal.list(RunQuery(), cursor=cursor))
        for cursor in ("", "2.1.t", "1.t"):
            await raises(ValueError, journal.threads.list("", cursor=cursor))

    @check
    async def test_a_thread_record_has_revisions(self, journal: Journal) -> None:
        """JR-30: who writes without having read is told."""
        threads = journal.threads
        assert await threads.get("ten", "t") is None
        record = ThreadRecord(
            "ten",
            "t",
            title="Ti\0tle 🙂",
            agent="a",
            created_at_ms=1,
            updated_at_ms=2,
            metadata={"k": [1, None]},
        )
        first = await threads.put(record, expected=None)
        assert first == replace(record, revision=1)
        assert await threads.get("ten", "t") == first
        assert await threads.get("", "t") is None
        error = await raises(ThreadMoved, threads.put(record, expected=None))
        assert error.revision == 1
        second = await threads.put(replace(first, title="New", keys={"key": "v"}), expected=1)
        assert second.revision == 2
        error = await raises(ThreadMoved, threads.put(first, expected=1))
        assert error.revision == 2
        error = await raises(ThreadMoved, threads.put(replace(first, thread_id="ghost"), expected=1))
        assert error.revision is None
        await threads.delete("ten", "t")
        await threads.delete("ten", "t")
        assert await threads.get("ten", "t") is None

    @check
    async def test_threads_are_listed_pinned_first_then_newest(self, journal: Journal) -> None:
        """JR-30, SV-150: archived apart, search in titles, pages."""
        threads = journal.threads
        rows = [
            ("a", "Apples", 10, False, False),
            ("b", "Bread", 30, False, False),
            ("c", "Cherry STRASSE", 20, True, False),
            ("d", "Date", 30, False, False),
            ("e", "Elder", 99, True, True),
        ]
        for thread_id, title, updated, pinned, archived in rows:
            record = ThreadRecord(
                "ten", thread_id, title=title, updated_at_ms=updated, pinned=pinned, archived=archived
            )
            await threads.put(record, expected=None)
        await threads.put(ThreadRecord("other", "z", title="Apples", updated_at_ms=1), expected=None)

        async def ids(**options: object) -> list[str]:
            page = await threads.list("ten", **options)  # type: ignore[arg-type]
            return [record.thread_id for record in page.items]

        assert await ids() == ["c", "b", "d", "a"]
        assert await ids(archived=True) == ["e"]
        assert await ids(search="stra\u00dfe") == ["c"]
        assert await ids(search="rea") == ["b"]
        assert await ids(search="%") == []
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = await threads.list("ten", cursor=cursor, limit=1)
            seen += [record.thread_id for record in page.items]
            if (cursor := page.cursor) is None:
                break
        assert seen == ["c", "b", "d", "a"]
