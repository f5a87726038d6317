"""Thread records beside the runs: titles, pins and marks (SV-150, SV-157, JR-30).

Everything but those is computed from runs. A thread whose runs were begun elsewhere (the command line, another server)
gets its record when a list is asked for: what is newer than the last look is walked, so a list costs what is new.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from msgspec.structs import replace

from ..contracts import Clock, Journal
from ..core.agui.content import plain_text
from ..errors import ThreadMoved
from ..messages import JSON, Message
from ..records import Page, RunEntry, RunQuery, RunSpec, ThreadRecord
from .names import Ids, ids_of

TITLE_LENGTH = 80
DELETED = "server/deleted"
IDS = "server/thread"
_SEGMENTS = "\x1fsegments of "
"""Before a tenant: the records of its segments, which are in no list of threads."""
_OF = "server/run"
_STEP = 200
_WALK = 20_000  # runs at most at the first look into a journal


class ThreadRecords:
    """The thread records of a journal."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._seen: dict[str, str] = {}  # tenant -> the newest run at the last look

    async def get(self, tenant: str, key: str) -> ThreadRecord | None:
        """The record of a thread, or None; a deleted one too."""
        return await self._journal.threads.get(tenant, key)

    async def deleted(self, tenant: str, key: str) -> bool:
        """Whether the thread was deleted (SV-155)."""
        record = await self.get(tenant, key)
        return record is not None and bool(record.metadata.get(DELETED))

    async def list(
        self, tenant: str, *, archived: bool, search: str, cursor: str | None, limit: int
    ) -> Page[ThreadRecord]:
        """Pinned first, then by change, newest first."""
        await self._catch_up(tenant)
        page = await self._journal.threads.list(
            tenant, archived=archived, search=search, cursor=cursor, limit=limit
        )
        return Page(tuple([item for item in page.items if not item.metadata.get(DELETED)]), page.cursor)

    async def all(self, tenant: str) -> AsyncIterator[ThreadRecord]:
        """Every record that is not deleted, archived ones too."""
        for archived in (False, True):
            cursor: str | None = None
            while True:
                page = await self.list(tenant, archived=archived, search="", cursor=cursor, limit=_STEP)
                for record in page.items:
                    yield record
                if (cursor := page.cursor) is None:
                    break

    async def change(
        self, tenant: str, key: str, change: Callable[[ThreadRecord], ThreadRecord], *, made: ThreadRecord
    ) -> ThreadRecord:
        """Applies a change to the record, or to `made` if there is none; again if somebody else was faster."""
        while True:
            before = await self.get(tenant, key)
            expected = None if before is None else before.revision
            try:
                return await self._journal.threads.put(change(before or made), expected=expected)
            except ThreadMoved:
                continue

    async def began(self, spec: RunSpec) -> None:
        """A run began: its thread is the newest, and has a title at the latest now."""
        record = _record_of(spec, self._clock.time_ms())

        def touch(before: ThreadRecord) -> ThreadRecord:
            return replace(
                before,
                updated_at_ms=record.updated_at_ms,
                title=before.title or record.title,
                agent=record.agent or before.agent,
                archived=False if before is record else before.archived,
            )

        await self.change(spec.tenant, spec.thread_id, touch, made=record)

    async def name_segment(self, tenant: str, segment: str, run: str) -> None:
        """Keeps of which run a later AG-UI run is a segment: its facts say so, but cannot be asked without the run."""
        made = ThreadRecord(_SEGMENTS + tenant, segment, metadata={_OF: run})
        await self.change(made.tenant, segment, lambda before: before, made=made)

    async def run_of_segment(self, tenant: str, segment: str) -> str | None:
        """The run's id in the journal, or None."""
        record = await self.get(_SEGMENTS + tenant, segment)
        return None if record is None else str(record.metadata.get(_OF, ""))

    async def _catch_up(self, tenant: str) -> None:
        """Makes records for threads that have none, newest runs first, back to where the last look began."""
        seen, newest = self._seen.get(tenant), None
        cursor: str | None = None
        oldest: dict[str, RunEntry] = {}
        for _ in range(_WALK // _STEP):
            page = await self._journal.list(RunQuery(tenant=tenant), cursor=cursor, limit=_STEP)
            newest = newest or (page.items[0].run_id if page.items else None)
            for entry in page.items:
                if entry.run_id == seen:
                    page = Page(page.items)
                    break
                oldest[entry.thread_id] = entry
            cursor = page.cursor
            if cursor is None:
                break
        for entry in reversed(oldest.values()):
            if await self.get(tenant, entry.thread_id) is None:
                await self._make(tenant, entry)
        if newest is not None:
            self._seen[tenant] = newest

    async def _make(self, tenant: str, entry: RunEntry) -> None:
        head = await self._journal.head(entry.run_id)
        if head is None:
            return
        record = _record_of(head.registration.spec, entry.updated_at_ms, entry.binding)
        await self.change(tenant, entry.thread_id, lambda before: before, made=record)


def _record_of(spec: RunSpec, now_ms: int, binding: str = "") -> ThreadRecord:
    ids = ids_of(spec)
    return ThreadRecord(
        spec.tenant,
        spec.thread_id,
        title=title_of(spec.input),
        agent=ids.agent or binding,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        metadata=names_of(ids),
    )


def names_of(ids: Ids) -> dict[str, JSON]:
    """What a record keeps of the thread's name as its client knows it."""
    return {IDS: ids.thread}


def title_of(messages: tuple[Message, ...]) -> str:
    """The first 80 characters of the first user message (SV-151)."""
    for message in messages:
        if message.role == "user":
            text = " ".join(plain_text(message.parts).split())
            return text if len(text) <= TITLE_LENGTH else text[: TITLE_LENGTH - 1] + "…"
    return ""


__all__ = ["DELETED", "IDS", "ThreadRecords", "title_of"]
