"""Runs for tests of stores: a registration and as many sealed facts as wanted, without a controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from ..commands import Request
from ..contracts import Journal
from ..core.canonical import chain_start, digest_of, seal
from ..core.run import RunState, apply
from ..events import (
    AnyFact,
    Completed,
    ContinuityLost,
    Lane,
    MessageAdded,
    Noted,
    RequestOpened,
    RunAccepted,
    RunEnded,
    RunStarted,
)
from ..messages import JSON, UNSET, Message, Text, Unset
from ..records import (
    Appended,
    ClaimRequest,
    Created,
    Head,
    Origin,
    Owner,
    Parent,
    Record,
    Registration,
    RunHead,
    RunSpec,
    RunSummary,
)
from .clock import START_MS

LEASE_MS: Final = 30_000


def claim_by(
    owner: Owner | str = "owner-1", *, now_ms: int = START_MS, ttl_ms: int = LEASE_MS
) -> ClaimRequest:
    """A claim by an owner of whom no store can prove anything."""
    return ClaimRequest(owner if isinstance(owner, Owner) else Owner(owner), ttl_ms, now_ms)


@final
class SampleRun:
    """A run as its writer has it: it knows its head and seals what comes next.

    `store` and `add` write to a journal and follow the head; `seal` only makes records.
    """

    def __init__(
        self,
        run_id: str = "run-1",
        *,
        thread_id: str = "thread-1",
        tenant: str = "",
        text: str = "hello",
        binding: str = "default",
        parent: Parent | None = None,
        origin: Origin | None = None,
        options: dict[str, JSON] | None = None,
        created_at_ms: int = START_MS,
    ) -> None:
        spec = RunSpec(
            run_id,
            thread_id,
            (Message(f"{run_id}-input", "user", (Text(text),)),),
            tenant=tenant,
            parent=parent,
            origin=origin,
            options=options or {},
        )
        spec_digest = digest_of(spec)
        self.registration = Registration(
            spec, spec_digest, binding, "descriptor", digest_of([spec_digest, binding]), created_at_ms
        )
        self.run_id = run_id
        self.head = Head(0, chain_start(run_id, spec_digest))
        self.fence = 1
        self.count = 0
        self._spec = spec
        self._state = RunState(run_id, self.head.chain)

    def accepted(self) -> list[Record]:
        """The fact that comes with the registration."""
        spec, registration = self._spec, self.registration
        fact = RunAccepted(spec.thread_id, registration.spec_digest, registration.binding, "descriptor")
        return self.seal(fact, event_ids=["accepted"], lane="host")

    def seal(
        self,
        *facts: AnyFact,
        event_ids: Sequence[str] | None = None,
        lane: Lane = "runtime",
        head: Head | None = None,
    ) -> list[Record]:
        """Records that would follow on `head` (default: the run's)."""
        seq, chain = (head.seq, head.chain) if head is not None else (self.head.seq, self.head.chain)
        records = []
        for index, fact in enumerate(facts):
            self.count += 1
            record = seal(
                run_id=self.run_id,
                seq=(seq := seq + 1),
                at_ms=START_MS + self.count,
                lane=lane,
                fence=self.fence,
                fact=fact,
                event_id=event_ids[index] if event_ids else f"event-{self.count}",
                causation=None,
                source=None,
                previous=chain,
            )
            chain = record.chain
            records.append(record)
        return records

    def notes(self, count: int = 1, *, size: int = 10) -> list[Record]:
        """Some facts of some size."""
        return self.seal(*[Noted("test/note", "x" * size) for _ in range(count)])

    def messages(self, *texts: str) -> list[Record]:
        """One assistant message a text."""
        facts = [
            MessageAdded(Message(f"{self.run_id}-m{self.count + n}", "assistant", (Text(text),)), 1)
            for n, text in enumerate(texts)
        ]
        return self.seal(*facts)

    def begun(self) -> list[Record]:
        """The runtime began to work."""
        return self.seal(RunStarted(), event_ids=["started"])

    def asking(self, request_id: str = "request-1") -> list[Record]:
        """It begins, if it has not begun, and waits for an answer: a run at rest."""
        opened = RequestOpened(Request(request_id, "input"))
        return self.seal(opened) if self._state.started else self.seal(RunStarted(), opened)

    def lost(self) -> list[Record]:
        """Nobody knows how it went on."""
        return self.seal(ContinuityLost(self.head.seq, "eof"), lane="host")

    def ended(self) -> list[Record]:
        """It completed."""
        return self.seal(RunEnded(Completed()), event_ids=["end"])

    def summary(self, records: Sequence[Record] = ()) -> RunSummary:
        """What the store keeps of the fold, with these records on top."""
        state = self._state
        if records:
            state = state.fork()
            for record in records:
                if record.seq == state.seq + 1:
                    apply(state, record)
        return state.summary()

    async def store(
        self,
        journal: Journal,
        *,
        claim: ClaimRequest | None = None,
        expect_head: str | Unset | None = UNSET,
        records: Sequence[Record] | None = None,
    ) -> Created:
        """Creates the run there; the head follows if it was new."""
        first = self.accepted() if records is None else records
        created = await journal.create(
            self.registration,
            first,
            summary=self.summary(first),
            claim=claim or claim_by(),
            expect_head=expect_head,
        )
        if not created.existing:
            self._follow(first)
        self.head, self.fence = created.head.head, created.head.fence
        return created

    async def append(
        self,
        journal: Journal,
        records: Sequence[Record],
        *,
        expected: Head | None = None,
        fence: int | None = None,
    ) -> Appended:
        """Appends there as a writer would; the head follows."""
        appended = await journal.append(
            self.run_id,
            records,
            expected=expected or self.head,
            fence=self.fence if fence is None else fence,
            summary=self.summary(records),
        )
        self._follow(records)
        self.head = appended.head
        return appended

    async def add(self, journal: Journal, count: int = 1, *, size: int = 10) -> list[Record]:
        """Appends some facts."""
        records = self.notes(count, size=size)
        await self.append(journal, records)
        return records

    async def take_over(self, journal: Journal, claim: ClaimRequest) -> RunHead:
        """Claims the run there, wherever its facts came from, and goes on from its head."""
        head = await journal.claim(self.run_id, claim)
        state, after = RunState(self.run_id), 0
        while after < head.head.seq:
            page = await journal.read(self.run_id, after=after)
            for record in page.records:
                apply(state, record)
            after = state.seq
        self.registration, self.head, self.fence, self._state = (
            head.registration,
            head.head,
            head.fence,
            state,
        )
        self.count = 1_000_000 * head.fence  # event ids of its own
        return head

    async def end(self, journal: Journal) -> Record:
        """Appends the end, completed."""
        records = self.ended()
        await self.append(journal, records)
        return records[0]

    def _follow(self, records: Sequence[Record]) -> None:
        for record in records:
            if record.seq == self._state.seq + 1:
                apply(self._state, record)


__all__ = ["LEASE_MS", "SampleRun", "claim_by"]
