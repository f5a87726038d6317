"""A journal that fails when a test wants it to: before a commit, after it, for a while, or for good.

```python
journal = FaultyJournal(MemoryJournal())
journal.fail(at=3)                        # the third write from now on is refused; nothing was stored
journal.fail(at=1, when="after")          # stored, and then the connection is lost: uncertain
hang = journal.hang(at=2)                 # it waits …
await hang.reached.wait(); hang.release() # … until it is let go
journal.steal(at=4)                       # another owner takes the run over just before
```

Each fault counts the calls that it is for from the moment on in which it was armed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, Literal, Self, TypeAlias, TypeVar, final

from ..cluster import Relay
from ..contracts import Journal, ThreadStore
from ..errors import JournalUnavailable
from ..messages import UNSET, ArtifactRef, Unset
from ..records import (
    Appended,
    ClaimRequest,
    Created,
    Head,
    JournalStats,
    Owner,
    Page,
    Record,
    RecordPage,
    Registration,
    RunEntry,
    RunHead,
    RunQuery,
    RunSummary,
    Verification,
)
from .sample_runs import claim_by

T = TypeVar("T")

Call: TypeAlias = Literal[
    "create", "append", "read", "find", "head", "thread_head", "list", "claim", "renew", "release", "changed",
    "put_blob", "get_blob", "verify", "purge",
]  # fmt: skip

When: TypeAlias = Literal["before", "after"]

WRITES: Final[tuple[Call, ...]] = ("create", "append")
"""The calls that store facts: what faults are for unless told otherwise."""

APPENDS: Final[tuple[Call, ...]] = ("append",)


@final
class Fault:
    """One armed fault.

    Attributes:
        reached: set when it struck (first).
        struck: how often it did.
    """

    def __init__(
        self,
        on: Collection[Call],
        at: int,
        when: When,
        times: int | None,
        strike: Callable[[str], Awaitable[None]],
        released: asyncio.Event | None = None,
    ) -> None:
        self.reached = asyncio.Event()
        self.struck = 0
        self._on = on
        self._left = at
        self._when = when
        self._times = times
        self._strike = strike
        self._released = released or asyncio.Event()

    def release(self) -> None:
        """Lets what hangs go on, and takes the fault back."""
        self._times = 0
        self._released.set()

    def counts(self, call: Call) -> bool:
        """Whether it strikes at this call, which it counts."""
        if call not in self._on or (self._times is not None and self.struck >= self._times):
            return False
        self._left -= 1
        return self._left <= 0

    async def strike(self, when: When, run_id: str) -> None:
        """Does what it was armed to do, if this is its side of the commit."""
        if when == self._when:
            self.struck += 1
            self.reached.set()
            await self._strike(run_id)


@final
class FaultyJournal:
    """Implements `contracts.Journal` over another journal.

    Args:
        journal: where everything goes that no fault keeps back.
        immediate: say that it never suspends, as a `MemoryJournal` does; a fault that hangs needs False.
    """

    def __init__(self, journal: Journal, *, immediate: bool = False) -> None:
        self.inner = journal
        self.immediate = immediate
        self.threads: ThreadStore = journal.threads
        self.relay: Relay | None = None  # faults are those of one process
        self.calls: list[tuple[Call, str]] = []
        self._faults: list[Fault] = []
        self._handed_over: set[asyncio.Future[Appended]] = set()
        self._crashed = False
        self._dropped = False

    # Arming

    def fail(
        self,
        at: int = 1,
        error: Exception | None = None,
        *,
        when: When = "before",
        times: int | None = 1,
        on: Collection[Call] = WRITES,
    ) -> Fault:
        """From the `at`-th call on, `times` calls (None: all) raise `error`.

        After the commit, what was asked for was done and only its answer is lost: the caller cannot know (RC-15).
        """
        raised = error or JournalUnavailable("cannot reach the journal: the test wants it so")

        async def strike(_run_id: str) -> None:
            raise raised

        return self._arm(Fault(on, at, when, times, strike))

    def hang(self, at: int = 1, *, when: When = "before", on: Collection[Call] = WRITES) -> Fault:
        """The `at`-th call waits, before or after its commit, until the fault is released."""
        released = asyncio.Event()

        async def strike(_run_id: str) -> None:
            await released.wait()

        return self._arm(Fault(on, at, when, 1, strike, released))

    def steal(self, at: int = 1, *, by: str = "thief", on: Collection[Call] = APPENDS) -> Fault:
        """Before the `at`-th append another owner takes the run over, whatever its owner does (RC-16)."""

        async def strike(run_id: str) -> None:
            head = await self.inner.head(run_id)
            if head is not None and head.owner is not None:
                await self.inner.release(Owner(head.owner), run_id)
            await self.inner.claim(run_id, claim_by(by))

        return self._arm(Fault(on, at, "before", 1, strike))

    def crash(self, at: int = 1, *, when: When = "before", on: Collection[Call] = WRITES) -> Fault:
        """At the `at`-th call the process is as good as dead: neither it nor any later call ever comes back.

        Wait for `reached`, drop whoever uses this journal, and open `inner` anew, as the next process would.
        """

        async def strike(_run_id: str) -> None:
            self._crashed = True
            await self._never()

        return self._arm(Fault(on, at, when, 1, strike))

    def kill(self, at: int = 1, *, when: When = "before", on: Collection[Call] = WRITES) -> Fault:
        """At the `at`-th call this process is killed (SIGKILL), before or after the commit; for crash matrices."""

        async def strike(_run_id: str) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        return self._arm(Fault(on, at, when, 1, strike))

    def heal(self) -> None:
        """Takes all faults back and lets go what hangs."""
        faults, self._faults = self._faults, []
        for fault in faults:
            fault.release()

    async def _never(self) -> None:
        """Does not come back. Whoever is cancelled here is being dropped, and meets nothing but that from then on."""
        if not self._dropped:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._dropped = True
        raise asyncio.CancelledError

    def _arm(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    async def _through(self, call: Call, run_id: str, doing: Callable[[], Awaitable[T]]) -> T:
        if self._crashed:
            await self._never()
        self.calls.append((call, run_id))
        due = [fault for fault in self._faults if fault.counts(call)]
        for fault in due:
            await fault.strike("before", run_id)
        result = await doing()
        for fault in due:
            await fault.strike("after", run_id)
        return result

    # The contract, passed through

    async def create(
        self,
        registration: Registration,
        records: Sequence[Record],
        *,
        summary: RunSummary,
        claim: ClaimRequest | None,
        expect_head: str | Unset | None = UNSET,
    ) -> Created:
        """As the inner journal, unless a fault is due."""
        return await self._through(
            "create",
            registration.spec.run_id,
            lambda: self.inner.create(
                registration, records, summary=summary, claim=claim, expect_head=expect_head
            ),
        )

    async def append(
        self, run_id: str, records: Sequence[Record], *, expected: Head, fence: int, summary: RunSummary
    ) -> Appended:
        """As the inner journal, unless a fault is due."""
        return await self._through(
            "append",
            run_id,
            lambda: self.inner.append(run_id, records, expected=expected, fence=fence, summary=summary),
        )

    def hand_over(
        self,
        run_id: str,
        records: Sequence[Record],
        *,
        expected: Head,
        fence: int,
        summary: RunSummary,
        tell: Callable[[Appended | None, BaseException | None], None],
    ) -> None:
        """`append` for who waits without a task, as the journals have it that take it at once."""

        def told(done: asyncio.Future[Appended]) -> None:
            self._handed_over.discard(done)
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            tell(None if error is not None else done.result(), error)

        append = self.append(run_id, records, expected=expected, fence=fence, summary=summary)
        task = asyncio.get_running_loop().create_task(append)
        self._handed_over.add(task)
        task.add_done_callback(told)

    async def read(
        self, run_id: str, *, after: int = 0, limit: int = 500, kinds: frozenset[str] | None = None
    ) -> RecordPage:
        """As the inner journal, unless a fault is due."""
        return await self._through(
            "read", run_id, lambda: self.inner.read(run_id, after=after, limit=limit, kinds=kinds)
        )

    async def find(self, run_id: str, event_id: str) -> Record | None:
        """As the inner journal, unless a fault is due."""
        return await self._through("find", run_id, lambda: self.inner.find(run_id, event_id))

    async def head(self, run_id: str) -> RunHead | None:
        """As the inner journal, unless a fault is due."""
        return await self._through("head", run_id, lambda: self.inner.head(run_id))

    async def thread_head(self, thread_id: str) -> str | None:
        """As the inner journal, unless a fault is due."""
        return await self._through("thread_head", thread_id, lambda: self.inner.thread_head(thread_id))

    async def list(self, query: RunQuery, *, cursor: str | None = None, limit: int = 50) -> Page[RunEntry]:
        """As the inner journal, unless a fault is due."""
        return await self._through("list", "", lambda: self.inner.list(query, cursor=cursor, limit=limit))

    async def claim(self, run_id: str, request: ClaimRequest) -> RunHead:
        """As the inner journal, unless a fault is due."""
        return await self._through("claim", run_id, lambda: self.inner.claim(run_id, request))

    async def renew(self, owner: Owner, *, ttl_ms: int, now_ms: int) -> None:
        """As the inner journal, unless a fault is due."""
        await self._through("renew", "", lambda: self.inner.renew(owner, ttl_ms=ttl_ms, now_ms=now_ms))

    async def release(self, owner: Owner, run_id: str | None = None) -> None:
        """As the inner journal, unless a fault is due."""
        await self._through("release", run_id or "", lambda: self.inner.release(owner, run_id))

    async def changed(self, run_id: str, after: int, *, timeout: float) -> int:
        """As the inner journal, unless a fault is due."""
        return await self._through(
            "changed", run_id, lambda: self.inner.changed(run_id, after, timeout=timeout)
        )

    async def put_blob(self, data: bytes, media_type: str) -> ArtifactRef:
        """As the inner journal, unless a fault is due."""
        return await self._through("put_blob", "", lambda: self.inner.put_blob(data, media_type))

    async def get_blob(self, digest: str) -> bytes:
        """As the inner journal, unless a fault is due."""
        return await self._through("get_blob", "", lambda: self.inner.get_blob(digest))

    async def verify(self, run_id: str | None = None) -> Verification:
        """As the inner journal, unless a fault is due."""
        return await self._through("verify", run_id or "", lambda: self.inner.verify(run_id))

    async def purge(self, thread_id: str) -> None:
        """As the inner journal, unless a fault is due."""
        await self._through("purge", thread_id, lambda: self.inner.purge(thread_id))

    def stats(self) -> JournalStats:
        """Those of the inner journal."""
        return self.inner.stats()

    async def aclose(self) -> None:
        """Closes the inner journal, unless the process counts as crashed."""
        if not self._crashed:
            await self.inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


__all__ = ["WRITES", "Call", "Fault", "FaultyJournal", "When"]
