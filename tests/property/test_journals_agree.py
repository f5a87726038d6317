"""Memory, SQLite and Postgres answer alike, whatever is asked of them in whatever order (run-controller §3.13)."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pilothouse.contracts import Journal
from pilothouse.errors import PilothouseError
from pilothouse.events import Noted
from pilothouse.journal import MemoryJournal, PostgresJournal, SQLiteJournal
from pilothouse.records import Head, Parent, RunQuery, RunStateName, RunStatus, ThreadRecord
from pilothouse.testing import SampleRun
from pilothouse.testing.clock import START_MS
from pilothouse.testing.sample_runs import claim_by
from postgres_server import shared_dsn

_numbers = itertools.count()

RUNS = st.sampled_from([f"run-{number}" for number in range(5)])
THREADS = st.sampled_from(["t1", "t2"])
OWNERS = st.sampled_from(["owner-1", "owner-2"])
WORDS = st.sampled_from([word for word in get_args(RunStatus) if word != "corrupt"])
STATES = st.sampled_from(get_args(RunStateName))
QUERIES = st.builds(
    RunQuery,
    tenant=st.sampled_from([None, "", "ten"]),
    thread_id=st.none() | THREADS,
    states=st.none() | st.lists(STATES, unique=True).map(tuple),
    statuses=st.none() | st.lists(WORDS, unique=True).map(tuple),
    parent=st.sampled_from([None, None, "run-0"]),
    binding=st.sampled_from([None, None, "default", "other"]),
)


class JournalsAgree(RuleBasedStateMachine):
    own_clock = False  # a store that judges leases by its own clock is not told of another time

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.memory = MemoryJournal()
        self.durable = self.open_durable()
        self.runs: dict[str, SampleRun] = {}
        self.now_ms = START_MS

    def open_durable(self) -> Journal:
        return SQLiteJournal(self.folder / "j.db", durability="off")

    def teardown(self) -> None:
        self.runner.run(self.durable.aclose())
        self.runner.close()
        shutil.rmtree(self.folder)

    def ask(self, question: Callable[[Journal], Awaitable[Any]]) -> Any:
        """The answer that both give."""

        async def answers() -> list[Any]:
            found: list[Any] = []
            for journal in (self.memory, self.durable):
                try:
                    found.append(await question(journal))
                except (PilothouseError, ValueError) as error:
                    found.append((type(error), str(error)))
            return found

        memory, durable = self.runner.run(answers())
        assert memory == durable
        return memory

    @rule(
        run_id=RUNS,
        thread_id=THREADS,
        tenant=st.sampled_from(["", "ten"]),
        parent=st.sampled_from([None, Parent("run-0")]),
        binding=st.sampled_from(["default", "other"]),
        expect=st.sampled_from([..., None, "run-0", "run-1"]),
        owner=OWNERS,
    )
    def create(
        self,
        run_id: str,
        thread_id: str,
        tenant: str,
        parent: Parent | None,
        binding: str,
        expect: Any,
        owner: str,
    ) -> None:
        run = SampleRun(run_id, thread_id=thread_id, tenant=tenant, parent=parent, binding=binding)
        records, claim = run.accepted(), claim_by(owner, now_ms=self.now_ms)
        options = {} if expect is ... else {"expect_head": expect}
        created = self.ask(
            lambda journal: journal.create(
                run.registration, records, summary=run.summary(records), claim=claim, **options
            )
        )
        if not isinstance(created, tuple) and not created.existing:
            run._follow(records)
            run.head = created.head.head
            self.runs[run_id] = run

    @rule(
        run_id=RUNS,
        what=st.sampled_from(["notes", "begun", "asking", "lost", "ended"]),
        fence=st.sampled_from([0, 0, 0, 1, -1]),
        back=st.sampled_from([0, 0, 0, 1]),
    )
    def append(self, run_id: str, what: str, fence: int, back: int) -> None:
        run = self.runs.get(run_id, SampleRun(run_id))
        records = run.notes(3) if what == "notes" else getattr(run, what)()
        self.offer(run, records, Head(max(run.head.seq - back, 0), run.head.chain), run.fence + fence)

    @rule(run_id=RUNS, ids=st.lists(st.sampled_from(["a", "b", "c", "accepted"]), min_size=1, max_size=3))
    def append_by_id(self, run_id: str, ids: list[str]) -> None:
        run = self.runs.get(run_id, SampleRun(run_id))
        records = run.seal(*[Noted("test/id", event_id) for event_id in ids], event_ids=ids)
        self.offer(run, records, run.head, run.fence)

    def offer(self, run: SampleRun, records: list[Any], expected: Head, fence: int) -> None:
        summary = run.summary(records)
        appended = self.ask(
            lambda journal: journal.append(
                run.run_id, records, expected=expected, fence=fence, summary=summary
            )
        )
        if not isinstance(appended, tuple) and not appended.duplicate:
            run._follow(records)
            run.head = appended.head

    @rule(run_id=RUNS, owner=OWNERS)
    def claim(self, run_id: str, owner: str) -> None:
        head = self.ask(lambda journal: journal.claim(run_id, claim_by(owner, now_ms=self.now_ms)))
        if not isinstance(head, tuple):
            self.runs[run_id].fence = head.fence

    @rule(owner=OWNERS, run_id=st.none() | RUNS)
    def release(self, owner: str, run_id: str | None) -> None:
        self.ask(lambda journal: journal.release(claim_by(owner).owner, run_id))

    @rule(owner=OWNERS, seconds=st.sampled_from([1, 20, 60]))
    def renew_later(self, owner: str, seconds: int) -> None:
        self.now_ms += 0 if self.own_clock else seconds * 1000
        self.ask(lambda journal: journal.renew(claim_by(owner).owner, ttl_ms=30_000, now_ms=self.now_ms))

    @rule(thread_id=THREADS)
    def purge(self, thread_id: str) -> None:
        self.ask(lambda journal: journal.purge(thread_id))

    @rule(query=QUERIES, limit=st.integers(1, 4))
    def list(self, query: RunQuery, limit: int) -> None:
        async def pages(journal: Journal) -> Any:
            found, cursor = [], None
            while True:
                page = await journal.list(query, cursor=cursor, limit=limit)
                found.append(page.items)
                if (cursor := page.cursor) is None:
                    return found

        self.ask(pages)

    @rule(
        run_id=RUNS,
        after=st.integers(0, 5),
        limit=st.integers(1, 5),
        kinds=st.none() | st.just(frozenset(["noted"])),
    )
    def read(self, run_id: str, after: int, limit: int, kinds: frozenset[str] | None) -> None:
        self.ask(lambda journal: journal.read(run_id, after=after, limit=limit, kinds=kinds))

    @rule(run_id=RUNS, event_id=st.sampled_from(["a", "accepted", "end", "event-2"]))
    def find(self, run_id: str, event_id: str) -> None:
        self.ask(lambda journal: journal.find(run_id, event_id))

    @rule(thread_id=THREADS, expected=st.sampled_from([None, 1, 2]), pinned=st.booleans())
    def put_thread(self, thread_id: str, expected: int | None, pinned: bool) -> None:
        record = ThreadRecord("ten", thread_id, title="T", pinned=pinned, updated_at_ms=self.now_ms)
        self.ask(lambda journal: journal.threads.put(record, expected=expected))
        self.ask(lambda journal: journal.threads.list("ten"))

    @invariant()
    def heads_are_equal(self) -> None:
        for run_id in self.runs:
            self.ask(lambda journal: journal.head(run_id))
        for thread_id in ("t1", "t2"):
            self.ask(lambda journal: journal.thread_head(thread_id))


TestJournalsAgree = JournalsAgree.TestCase
TestJournalsAgree.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


class PostgresAgrees(JournalsAgree):
    own_clock = True

    def open_durable(self) -> Journal:
        return PostgresJournal(shared_dsn(), schema=f"agree_{next(_numbers)}", pool_size=2)


TestPostgresAgrees = PostgresAgrees.TestCase
TestPostgresAgrees.settings = settings(max_examples=10, stateful_step_count=40, deadline=None)
