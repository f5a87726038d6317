"""The check of a store from outside: through the contract alone, so it is the same for every store (JR-7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256
from typing import final

from ..contracts import Journal
from ..core.canonical import chain_next, chain_start, digest_of
from ..core.run import RunState, apply
from ..errors import ArtifactNotFound, JournalCorrupt
from ..events import Opaque
from ..records import Record, RunHead, RunQuery, Verification
from .blobs import named_in
from .catalog import MAX_PAGE


async def verify(journal: Journal, run_id: str | None = None) -> Verification:
    """Checks registration, chain, head, state and artifacts of one run, or of all.

    One bad run is one problem, told with its id; the others are checked all the same.
    """
    runs = facts = 0
    problems: list[str] = []
    checked: set[str] = set()  # artifacts that were found sound
    async for one in _run_ids(journal, run_id):
        check = _RunCheck(journal, one, checked)
        runs += 1
        try:
            await check.run()
        except JournalCorrupt as error:
            problems.append(str(error))
        facts += check.facts
    return Verification(runs, facts, tuple(problems))


async def _run_ids(journal: Journal, run_id: str | None) -> AsyncIterator[str]:
    if run_id is not None:
        yield run_id
        return
    cursor: str | None = None
    while True:
        page = await journal.list(RunQuery(), cursor=cursor, limit=MAX_PAGE)
        for entry in page.items:
            yield entry.run_id
        if (cursor := page.cursor) is None:
            return


@final
class _RunCheck:
    """The check of one run; `facts` counts what was sound."""

    def __init__(self, journal: Journal, run_id: str, checked: set[str]) -> None:
        self.facts = 0
        self._journal = journal
        self._run_id = run_id
        self._checked = checked
        self._state = RunState(run_id)
        self._readable = True  # no fact of a newer vocabulary, which our fold would not understand

    async def run(self) -> None:
        """Raises JournalCorrupt at the first thing that is not what was stored."""
        head = await self._head()
        registration = head.registration
        if digest_of(registration.spec) != registration.spec_digest:
            raise JournalCorrupt(self._run_id, 0, "the specification does not match its digest")
        self._state.chain = chain_start(self._run_id, registration.spec_digest)
        while True:
            page = await self._journal.read(self._run_id, after=self.facts)
            for record in page.records:
                if self.facts == head.head.seq:  # it goes on meanwhile, or this should not be there
                    self._check_head(head)
                    head = await self._head()
                await self._check(record)
            if not page.records or (not page.more and self.facts >= head.head.seq):
                break
        self._check_head(head)

    async def _head(self) -> RunHead:
        head = await self._journal.head(self._run_id)
        if head is None:
            raise JournalCorrupt(self._run_id, 0, "there is no such run")
        return head

    async def _check(self, record: Record) -> None:
        seq = self.facts + 1
        digest = sha256(record.body).hexdigest()
        chain = chain_next(self._state.chain, seq, record.at_ms, record.lane, record.fence, digest)
        if record.seq != seq or record.digest != digest or record.chain != chain:
            raise JournalCorrupt(self._run_id, seq, "digest or chain does not match")
        for blob, _ in named_in(record.body):
            await self._check_blob(blob, seq)
        self._readable = self._readable and not isinstance(record.fact, Opaque)
        apply(self._state, record)
        self.facts = seq

    async def _check_blob(self, digest: str, seq: int) -> None:
        if digest in self._checked:
            return
        try:
            data = await self._journal.get_blob(digest)
        except ArtifactNotFound as error:
            raise JournalCorrupt(self._run_id, seq, str(error)) from error
        if sha256(data).hexdigest() != digest:
            raise JournalCorrupt(self._run_id, seq, f"artifact {digest} does not match its digest")
        self._checked.add(digest)

    def _check_head(self, head: RunHead) -> None:
        seq = head.head.seq
        if (seq, head.head.chain) != (self.facts, self._state.chain):
            raise JournalCorrupt(self._run_id, seq, f"the run says {seq} facts and has {self.facts}")
        if self._readable and self._state.summary() != head.summary:
            raise JournalCorrupt(
                self._run_id, seq, f"the run says {head.summary} and its facts say {self._state.summary()}"
            )


__all__ = ["verify"]
