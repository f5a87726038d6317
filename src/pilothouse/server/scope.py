"""The only door to runs and threads: what one principal may see and do (SV-11, SV-12, SV-14).

A route gets a `ScopedRuns` and nothing else. Everything in it is addressed by the client's ids and is of the principal's
tenant; what is somebody else's is answered like what does not exist.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from msgspec.structs import replace

from ..conversation.controller import AgentController
from ..conversation.extras import RunExtras
from ..conversation.options import BusyPolicy
from ..core.transcript import cut_after, with_results
from ..messages import JSON, Message
from ..records import (
    HistoryMessage,
    RunEntry,
    RunQuery,
    ThreadRecord,
)
from .auth import Principal
from .branches import Copy, chosen_of, copied, copy_of
from .context import RunContext, kept
from .names import Ids, is_id, journal_tenant, run_key, thread_key
from .problems import Problem, invalid, not_found
from .scoped_run import ScopedRun
from .scoped_thread import LIVE, ScopedThread
from .served import ServedAgents
from .served_agent import Ask, Sending
from .thread_records import DELETED, IDS, ThreadRecords
from .views import is_live, run_entry, thread_view


class ScopedRuns:
    """What a principal can reach."""

    def __init__(
        self, principal: Principal, served: ServedAgents, records: ThreadRecords, traceparent: str = ""
    ) -> None:
        self._traceparent = traceparent
        self.principal = principal
        self.served = served
        self.records = records
        self.tenant = journal_tenant(principal.tenant)

    # Agents

    def agents(self) -> list[dict[str, JSON]]:
        """All agents of the server."""
        return [
            {"name": agent.name, "description": agent.description, "model": agent.model}
            for agent in self.served.by_name.values()
        ]

    def has_agent(self, name: str) -> None:
        """Refuses a name that is no agent's."""
        if name not in self.served.by_name:
            raise not_found()

    # Runs

    async def run(self, run_id: str) -> ScopedRun:
        """A run by its client's id.

        Raises:
            Problem: 404, also for somebody else's.
        """
        if not is_id(run_id):
            raise not_found()
        for key in dict.fromkeys((run_key(self.principal.tenant, run_id), run_id)):
            try:
                run = await self.run_of_key(key)
            except Problem:
                continue
            if run.ids.run == run_id:
                return run
        raise not_found()

    async def run_of(self, name: str) -> ScopedRun:
        """The same by the id of any of its segments (SV-71)."""
        if (run := await self.find_run(name)) is not None:
            return run
        if not is_id(name):
            raise not_found()
        segment = run_key(self.principal.tenant, name)
        key = await self.records.run_of_segment(self.tenant, segment)
        if key is None:
            raise not_found()
        return await self.run_of_key(key)

    async def name_segment(self, name: str, run: ScopedRun) -> None:
        """From now on `run_of` finds the run by that name, too."""
        await self.records.name_segment(self.tenant, run_key(self.principal.tenant, name), run.key)

    async def find_run(self, run_id: str) -> ScopedRun | None:
        """The same; None if there is none."""
        try:
            return await self.run(run_id)
        except Problem:
            return None

    async def run_of_key(self, key: str) -> ScopedRun:
        """A run by its id in the journal."""
        head = await self.served.journal.head(key)
        if head is None:
            raise not_found()
        spec = head.registration.spec
        if spec.tenant != self.tenant or await self.records.deleted(spec.tenant, spec.thread_id):
            raise not_found()
        return ScopedRun(self, key, spec, head.registration.binding)

    async def run_name(self, key: str) -> str:
        """The client's name of a run."""
        try:
            return (await self.run_of_key(key)).ids.run
        except Problem:
            return key

    async def entries(self, query: RunQuery, *, limit: int, cursor: str | None = None) -> Sequence[RunEntry]:
        """Runs of the tenant in the journal's own words."""
        return (await self._page(query, limit, cursor))[0]

    async def _page(
        self, query: RunQuery, limit: int, cursor: str | None
    ) -> tuple[Sequence[RunEntry], str | None]:
        reader = self.served.any_agent()
        with _our_cursor():
            page = await reader.runs.catalog_runs(
                replace(query, tenant=self.tenant), cursor=cursor, limit=limit
            )
        return [self._seen(entry) for entry in page.items], page.cursor

    def _seen(self, entry: RunEntry) -> RunEntry:
        """What the run's own agent says of it."""
        agent = self.served.agent_of(entry.binding)
        if agent is None or agent is self.served.any_agent():
            return entry
        mine = entry.descriptor_digest == agent.runs.descriptor.digest
        ownership = "here" if agent.runs.stoppable(entry.run_id) else entry.ownership
        return replace(entry, can_control=mine, ownership=ownership)

    async def list(self, query: RunQuery, *, limit: int, cursor: str | None) -> dict[str, JSON]:
        """A page of runs."""
        entries, after = await self._page(query, limit, cursor)
        items = []
        for entry in entries:
            try:
                run = await self.run_of_key(entry.run_id)
            except Problem:
                continue  # of a deleted thread
            parent = None if entry.parent is None else await self.run_name(entry.parent.run_id)
            items.append(run_entry(entry, run.ids, run.agent, parent))
        return {"items": items, "next": after}

    async def all_entries(self, query: RunQuery) -> Sequence[RunEntry]:
        """All runs that a query finds, newest first."""
        found: Sequence[RunEntry] = ()
        cursor: str | None = None
        while True:
            entries, cursor = await self._page(query, 500, cursor)
            found = [*found, *entries]
            if cursor is None:
                return found

    async def own_messages(self, key: str) -> Sequence[HistoryMessage]:
        """What a run added to its path, its input first."""
        return await self.served.any_agent().runs.own_messages(key)

    async def count_live(self) -> int:
        """How many runs of the tenant live."""
        entries = await self.entries(RunQuery(states=LIVE), limit=200)
        return sum(is_live(entry.status, entry.ownership) for entry in entries)

    # Threads

    async def thread(self, thread_id: str, *, known: bool = False) -> ScopedThread:
        """A thread by its client's id. `known`: it must have a run or a record.

        Raises:
            Problem: 404.
        """
        if not is_id(thread_id):
            raise not_found() if known else invalid(("threadId", "is no id"))
        keys = dict.fromkeys((thread_key(self.principal.tenant, thread_id), thread_id))
        for key in keys:
            record = await self.records.get(self.tenant, key)
            if record is not None and record.metadata.get(DELETED):
                if known:
                    raise not_found()
                continue
            if record is not None and record.metadata.get(IDS, key) == thread_id:
                return ScopedThread(self, thread_id, key, record)
            if await self.entries(RunQuery(thread_id=key), limit=1):
                return ScopedThread(self, thread_id, key, record)
        if known:
            raise not_found()
        return ScopedThread(self, thread_id, next(iter(keys)), None)

    async def threads(
        self, *, archived: bool, search: str, cursor: str | None, limit: int
    ) -> dict[str, JSON]:
        """A page of threads, each with how its last run stands."""
        with _our_cursor():
            page = await self.records.list(
                self.tenant, archived=archived, search=search, cursor=cursor, limit=limit
            )
        recent: dict[str, RunEntry] = {}
        for entry in await self.entries(RunQuery(), limit=200):
            recent.setdefault(entry.thread_id, entry)
        items = [await self._thread_item(record, recent) for record in page.items]
        return {"items": items, "next": page.cursor}

    async def _thread_item(self, record: ThreadRecord, recent: Mapping[str, RunEntry]) -> dict[str, JSON]:
        last = recent.get(record.thread_id)
        if last is None:
            found = await self.entries(RunQuery(thread_id=record.thread_id), limit=1)
            last = found[0] if found else None
        name = None if last is None else await self.run_name(last.run_id)
        chosen = chosen_of(record.metadata)
        head = name
        if chosen is not None and last is not None and chosen.newest == last.run_id:
            head = await self.run_name(chosen.run)
        return thread_view(record, last, name, head)

    async def thread_shown(self, thread: ScopedThread) -> dict[str, JSON]:
        """One thread as the client is shown it."""
        record = thread.record or ThreadRecord(self.tenant, thread.key, metadata={IDS: thread.id})
        return await self._thread_item(record, {})

    async def change_thread(self, thread: ScopedThread, changes: Mapping[str, Any]) -> ScopedThread:
        """Renames, pins, archives; what the server keeps in the metadata stays."""
        made = ThreadRecord(self.tenant, thread.key, metadata={IDS: thread.id})

        def change(before: ThreadRecord) -> ThreadRecord:
            ours = {key: value for key, value in before.metadata.items() if key.startswith("server/")}
            after = replace(before, **changes)
            return replace(after, metadata={**after.metadata, **ours})

        record = await self.records.change(self.tenant, thread.key, change, made=made)
        return ScopedThread(self, thread.id, thread.key, record)

    async def copy_thread(
        self, thread: ScopedThread, name: str, title: str, copy: Copy, keys: Mapping[str, JSON]
    ) -> ScopedThread:
        """A thread that begins with a path of another one (SV-153)."""
        key, now = thread_key(self.principal.tenant, name), self.served.clock.time_ms()
        agent = "" if thread.record is None else thread.record.agent
        title = title or ("" if thread.record is None else thread.record.title)
        marks: dict[str, JSON] = {IDS: name, **copy.mark()}
        made = ThreadRecord(
            self.tenant, key, title=title, agent=agent, created_at_ms=now, updated_at_ms=now,
            metadata=marks, keys=dict(keys),
        )  # fmt: skip
        record = await self.records.change(self.tenant, key, lambda before: before, made=made)
        return ScopedThread(self, name, key, record)

    async def mark_thread(self, thread: ScopedThread, marks: Mapping[str, JSON]) -> ScopedThread:
        """Sets what the server itself keeps of a thread."""
        made = ThreadRecord(self.tenant, thread.key, metadata={IDS: thread.id})

        def change(before: ThreadRecord) -> ThreadRecord:
            return replace(before, metadata={**before.metadata, **marks})

        record = await self.records.change(self.tenant, thread.key, change, made=made)
        return ScopedThread(self, thread.id, thread.key, record)

    async def delete_thread(self, thread: ScopedThread, *, cancel: bool, purge: bool) -> None:
        """Thread and runs are gone for the client at once (SV-155).

        Raises:
            Problem: 409 while a run lives, unless it is to be cancelled.
        """
        if (live := await thread.live()) is not None:
            if not cancel:
                raise await live.in_the_way()
            await live.cancel("the thread was deleted")
            await live.settled(20.0)
        made = ThreadRecord(self.tenant, thread.key, metadata={IDS: thread.id})

        def mark(before: ThreadRecord) -> ThreadRecord:
            return replace(before, metadata={**before.metadata, DELETED: True})

        await self.records.change(self.tenant, thread.key, mark, made=made)
        if purge:
            await self._keep_copies([entry.run_id for entry in await thread.runs()])
            await self.served.journal.purge(thread.key)

    async def copied(self, copy: Copy) -> Sequence[Message]:
        """What a thread begins with that is a copy."""
        if copy.kept is None:
            path = await self.served.any_agent().runs.history(copy.run)
        else:
            path = [HistoryMessage(message, "") for message in copy.kept]
        return copied(cut_after(path, with_results(path, copy.through)))

    async def _keep_copies(self, doomed: Collection[str]) -> None:
        """Copies of these runs that have no run yet get what they were copied from, before it is purged."""
        async for record in self.records.all(self.tenant):
            copy = copy_of(record.metadata)
            if copy is None or copy.kept is not None or copy.run not in doomed:
                continue
            if await self.served.any_agent().runs.thread_head(record.thread_id) is None:
                kept = replace(copy, kept=tuple(await self.copied(copy)))
                name = str(record.metadata.get(IDS, record.thread_id))
                await self.mark_thread(ScopedThread(self, name, record.thread_id, record), kept.mark())

    # Beginning a run

    async def send(
        self,
        agent: str,
        thread: ScopedThread,
        run_id: str,
        ask: Ask,
        *,
        extras: RunExtras,
        digest: str,
        when_busy: BusyPolicy = "raise",
    ) -> Sending:
        """Begins a send of an agent in a thread, under the client's id."""
        self.has_agent(agent)
        ids = Ids(run_id, thread.id, agent, digest, self.principal.id)
        key = run_key(self.principal.tenant, run_id)
        ask, extras = await thread.place(ask, extras)
        context = RunContext(
            self.principal,
            thread.id,
            run_id,
            agent,
            dict(ask.props),
            ask.context,
            tuple(extras.client_tools),
        )
        extensions = {
            **extras.extensions,
            **ids.extension(),
            **await kept(self.served.journal, context),
            **self.served.traces.keeping(key, agent, thread.key, self._traceparent),
        }
        extras = replace(extras, tenant=self.tenant, extensions=extensions)
        return await self.served.by_name[agent].send(
            thread.key, key, ask, context=context, when_busy=when_busy, extras=extras
        )

    async def agent_of(self, thread: ScopedThread) -> str:
        """Who answers in a thread.

        Raises:
            Problem: 404, its agent is not served here.
        """
        agent = "" if thread.record is None else thread.record.agent
        if not agent:
            newest = await self.entries(RunQuery(thread_id=thread.key), limit=1)
            agent = newest[0].binding if newest else next(iter(self.served.by_name))
        self.has_agent(agent)
        return agent

    async def may_export(self, thread: ScopedThread) -> bool:
        """Whether its AI controllers may have something to fetch."""
        return self.served.by_name[await self.agent_of(thread)].may_export

    @asynccontextmanager
    async def visit(self, thread: ScopedThread) -> AsyncIterator[AgentController]:
        """The conversation of a thread, opened to be looked at; nothing is begun by that."""
        agent = await self.agent_of(thread)
        context = RunContext(self.principal, thread.id, "", agent)
        async with self.served.by_name[agent].visit(thread.key, context) as conversation:
            yield conversation

    async def began(self, run_id: str) -> ScopedRun:
        """The run of a send that was committed; its thread is now the newest of the list."""
        run = await self.run(run_id)
        self.served.watch(run.key, run.binding)
        await self.records.began(run.spec)
        return run

    def stop_preparing(self, agent: str, thread: ScopedThread, run_id: str | None) -> bool:
        """Stops a send that has no run yet."""
        served = self.served.by_name.get(agent)
        reply = None if served is None else served.preparing(thread.key)
        if reply is None or (run_id is not None and reply.id != run_key(self.principal.tenant, run_id)):
            return False
        return reply.abort()


@contextmanager
def _our_cursor() -> Iterator[None]:
    """A cursor that is none of ours is the client's mistake."""
    try:
        yield
    except ValueError as error:
        raise invalid(("cursor", str(error))) from None


__all__ = ["ScopedRun", "ScopedRuns", "ScopedThread"]
