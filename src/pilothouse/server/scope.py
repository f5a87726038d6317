"""The only door to runs and threads: what one principal may see and do (SV-11, SV-12, SV-14).

A route gets a `ScopedRuns` and nothing else. Everything in it is addressed by the client's ids and is of the principal's
tenant; what is somebody else's is answered like what does not exist.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace as dataclass_replace
from typing import Any, Final

from msgspec.structs import replace

from ..commands import Ack, Cancel, Command
from ..conversation.controller import AgentController
from ..conversation.extras import RunExtras
from ..conversation.options import BusyPolicy
from ..conversation.states import shared_at
from ..core.agui.segments import Segment
from ..core.transcript import Transcript, cut_after
from ..errors import NotControllable
from ..messages import JSON, Message
from ..records import (
    Accept,
    HistoryMessage,
    Parent,
    Record,
    RunEntry,
    RunQuery,
    RunSpec,
    RunStateName,
    RunView,
    StatusAnswer,
    ThreadRecord,
)
from ..runs.follow import Follower
from .auth import Principal
from .branches import Chosen, Copy, again, alternatives, anew, branch_view, chosen_of, copied, copy_of
from .context import RunContext, kept
from .house import Ask, House, Sending, Wing
from .names import Ids, ids_of, journal_tenant, run_key, thread_key
from .problems import Problem, invalid, not_found
from .shelf import DELETED, IDS, Shelf
from .views import Delivered, is_live, messages_view, run_entry, run_view, thread_view

_LIVE: Final[tuple[RunStateName, ...]] = ("accepted", "running", "waiting", "stopping")


class ScopedRun:
    """One run of the principal's tenant.

    Attributes:
        key: its id in the journal.
        ids: its names as the client knows them.
        spec: its immutable specification.
    """

    def __init__(self, scope: ScopedRuns, key: str, spec: RunSpec, binding: str) -> None:
        self._scope = scope
        self.key = key
        self.spec = spec
        self.ids = ids_of(spec)
        self.binding = binding

    @property
    def agent(self) -> str:
        """The agent that it was begun with."""
        return self.ids.agent or self.binding

    @property
    def _wing(self) -> Wing:
        """Where it can be read."""
        house = self._scope.house
        return house.wing_of(self.binding) or house.any_wing()

    @property
    def _control(self) -> Wing:
        """Where it can be controlled."""
        wing = self._scope.house.wing_of(self.binding)
        if wing is None:
            raise NotControllable(self.ids.run, "binding")
        return wing

    async def view(self) -> RunView:
        """Its bounded view."""
        return await self._wing.runs.inspect(self.key)

    async def shown(self) -> dict[str, JSON]:
        """Its view as the client is shown it."""
        return await self._shown(await self.view())

    async def _shown(self, view: RunView) -> dict[str, JSON]:
        parent = None if view.parent is None else await self._scope.run_name(view.parent.run_id)
        return run_view(view, self.ids, self.agent, parent, await self.segments())

    def follow(
        self, after: int = 0, *, deltas: bool = True, through_unknown: bool = False, recent: bool = True
    ) -> Follower:
        """Its facts from a cursor on, then live; `recent`: with deltas from before, as far as they are kept."""
        return self._wing.runs.stream(
            self.key, after, deltas=deltas, through_unknown=through_unknown, recent=recent
        )

    async def events(self, after: int, limit: int) -> Sequence[Record]:
        """Its facts from the journal, a page of them."""
        return (await self._scope.house.journal.read(self.key, after=after, limit=limit)).records

    async def segments(self) -> list[Segment]:
        """The AG-UI runs that it is, oldest first."""
        return await self._scope.house.segments.of(self.key, self.ids.run)

    async def own(self) -> Sequence[HistoryMessage]:
        """What it added to its path, its input first."""
        return await self._wing.runs.own_messages(self.key)

    async def line(self) -> list[tuple[ScopedRun, str | None]]:
        """The runs that it hangs on, oldest first, each with the message behind which the next one hangs."""
        found: list[tuple[ScopedRun, str | None]] = []
        run = self
        while (parent := run.spec.parent) is not None:
            run = await self._scope.run_of_key(parent.run_id)
            found.append((run, parent.keep_through))
        return found[::-1]

    async def blob(self, digest: str) -> bytes:
        """The bytes of an artifact that it refers to."""
        return await self._scope.house.journal.get_blob(digest)

    async def front(self) -> Sequence[HistoryMessage]:
        """What stands in front of it, its input included."""
        own = Transcript(self.spec).messages()
        return [*await self._wing.runs.front(self.key), *own]

    async def shared_state(self, until: int) -> dict[str, JSON]:
        """The shared state behind its fact `until`, 0: in front of it."""
        return await shared_at(self._wing.runs, Parent(self.key, seq=until) if until else self.spec.parent)

    async def path(self, until: int) -> Sequence[HistoryMessage]:
        """The path up to its fact `until`."""
        transcript = Transcript(self.spec)
        for record in await self._wing.runs.events(self.key):
            if record.seq > until:
                break
            transcript.add(record)
        return [*await self._wing.runs.front(self.key), *transcript.messages()]

    async def command(self, command: Command, *, timeout: float | None = None) -> Ack:
        """Sends a command; its `run_id` is filled in."""
        ack = await self._control.runs.command(replace(command, run_id=self.key), timeout=timeout)
        self._scope.house.metrics.commanded(command, ack)
        return ack

    async def ack(self, command_id: str) -> Ack:
        """The ack of a command that was sent before."""
        return await self._wing.runs.command_ack(self.key, command_id)

    async def cancel(self, reason: str, command_id: str | None = None) -> Ack:
        """Stops it."""
        house = self._scope.house
        command = Command(command_id or self._control.runs.new_id(), self.key, Cancel(reason))
        began = house.clock.monotonic()
        ack = await self.command(command)
        if ack.state == "applied" and not ack.duplicate:
            house.spawn(self._stopped(began), f"stop of {self.key}")
        return ack

    async def _stopped(self, began: float) -> None:
        await self.settled(None)
        house = self._scope.house
        house.metrics.stop_seconds.observe(house.clock.monotonic() - began)

    async def settled(self, seconds: float | None) -> None:
        """Waits until it ended or is lost; no error if it does not in time."""
        try:
            await self._wing.runs.wait_for_terminal(self.key, timeout=seconds)
        except TimeoutError:
            return

    async def past_recovery(self) -> RunView:
        """Its view; where the recovery that the server began with is still to come to it, once it has, or is over."""
        house = self._scope.house
        view = await self.view()
        while house.recovering and view.status == "unknown" and view.outcome is None:
            await house.recovered(self.key, view.last_seq)
            view = await self.view()
        return view

    @property
    def may_recover(self) -> bool:
        """Whether it may be taken up again by itself, being lost."""
        return self._scope.house.recovering

    async def ready(self) -> None:
        """Waits while it is about to be taken up again: nobody is told that it is lost meanwhile."""
        if self.may_recover:
            await self.past_recovery()

    async def recover(self, accept: Accept | None = None) -> dict[str, JSON]:
        """Takes it up again by evidence; its view after it."""
        return await self._shown(await self._control.runs.recover(self.key, accept=accept))

    async def check(self) -> StatusAnswer:
        """Asks a runtime that can be asked where it stands."""
        return await self._control.runs.check_status(self.key)

    async def abandon(self, reason: str) -> dict[str, JSON]:
        """Leaves its outcome unknown, on the record, by the principal."""
        wing = self._scope.house.wing_of(self.binding) or self._scope.house.any_wing()
        by = self._scope.principal.id
        return await self._shown(await wing.runs.abandon(self.key, reason, by=by))


class ScopedThread:
    """One thread of the principal's tenant, whether it has runs or not."""

    def __init__(self, scope: ScopedRuns, thread_id: str, key: str, record: ThreadRecord | None) -> None:
        self._scope = scope
        self.id = thread_id
        self.key = key
        self.record = record

    async def _newest(self) -> str | None:
        return await self._scope.house.any_wing().runs.thread_head(self.key)

    async def _chosen(self) -> str | None:
        """The run whose branch was chosen; None if none was, or a run was begun since."""
        marks = {} if self.record is None else self.record.metadata
        chosen = chosen_of(marks)
        return None if chosen is None or chosen.newest != await self._newest() else chosen.run

    async def head(self) -> ScopedRun | None:
        """The run that the next send hangs on: the newest, or the end of the branch that was chosen."""
        key = await self._chosen() or await self._newest()
        return None if key is None else await self._scope.run_of_key(key)

    async def choose(self, run: ScopedRun) -> ScopedThread:
        """The next send goes on from that run (SV-154).

        Raises:
            Problem: 409 while a run lives, 422 if it is of another thread.
        """
        if run.spec.thread_id != self.key:
            raise invalid(("run_id", "is of another thread"))
        if (live := await self.live()) is not None:
            raise Problem(409, "thread_busy", "a run of this thread is live", run_id=live.ids.run)
        mark = Chosen(run.key, await self._newest() or "")
        return await self._scope.mark_thread(self, mark.mark())

    async def path(self, head: ScopedRun | None) -> Sequence[HistoryMessage]:
        """From the root to a head; of a copy that has no run yet: what was copied."""
        if head is not None:
            return await self._scope.house.any_wing().runs.history(head.key)
        return [HistoryMessage(message, "") for message in await self._copied() or ()]

    async def _copied(self) -> list[Message] | None:
        """What a copy begins with; None if it is no copy, or has begun."""
        copy = None if self.record is None else copy_of(self.record.metadata)
        if copy is None or await self._newest() is not None:
            return None
        return copied(cut_after(await self._scope.house.any_wing().runs.history(copy.run), copy.through))

    async def place(self, ask: Ask, extras: RunExtras) -> tuple[Ask, RunExtras]:
        """A send hangs on the branch that was chosen, the first one of a copy on what was copied."""
        if extras.parent is not None or extras.base is not None:
            return ask, extras
        if (base := await self._copied()) is not None:
            return ask, dataclass_replace(extras, base=base)
        chosen = await self._chosen()
        if chosen is None or chosen == await self._newest():
            return ask, extras
        path = await self._scope.house.any_wing().runs.history(chosen)
        parent = Parent(chosen)
        if ask.action != "send":
            parent = anew(path, chosen, ask.target) if ask.action == "regenerate" else again(path, chosen)
        return replace(ask, action="send", target=""), dataclass_replace(extras, parent=parent)

    async def runs(self) -> Sequence[RunEntry]:
        """All its runs, newest first."""
        return await self._scope.all_entries(RunQuery(thread_id=self.key))

    async def live(self) -> ScopedRun | None:
        """The run that lives in it, if any."""
        for entry in await self._scope.entries(RunQuery(thread_id=self.key, states=_LIVE), limit=4):
            if is_live(entry.status, entry.ownership):
                return await self._scope.run_of_key(entry.run_id)
        return None

    async def messages(self, head: ScopedRun | None) -> list[dict[str, JSON]]:
        """The path to a head, each message with its delivery."""
        path = await self.path(head)
        delivered: dict[str, Delivered] = {"": Delivered("completed", None, live=False)}  # of no run: copied
        names: dict[str, str] = {"": ""}
        for key in {entry.run_id for entry in path} - {""}:
            run = await self._scope.run_of_key(key)
            view = await run.view()
            live = is_live(view.status, view.ownership)
            delivered[key] = Delivered(view.status, view.outcome, live=live)
            names[key] = run.ids.run
        siblings = await alternatives(path, await self.runs(), self._scope.own_messages)
        return messages_view(path, delivered, names, siblings)

    async def tree(self) -> dict[str, JSON]:
        """All its branches: each run, where it hangs, and what was said to it."""
        head = await self.head()
        items = []
        for entry in reversed(await self.runs()):
            run = await self._scope.run_of_key(entry.run_id)
            parent = None if entry.parent is None else await self._scope.run_name(entry.parent.run_id)
            items.append(branch_view(entry, run.ids, run.spec, parent))
        return {"items": items, "head": None if head is None else head.ids.run}

    async def point(self, name: str) -> Copy:
        """A place on one of its branches, by a run (what is whole of it now) or a message.

        Raises:
            Problem: 404.
        """
        run, through = await self._found(name)
        if through is None:
            path = await self._scope.house.any_wing().runs.history(run)
            through = next((entry.message.id for entry in reversed(path) if entry.complete), None)
        return Copy(run, through)

    async def _found(self, name: str) -> tuple[str, str | None]:
        for entry in await self.runs():
            if name in (await self._scope.run_name(entry.run_id), entry.run_id):
                return entry.run_id, None
        head = await self.head()
        for key in dict.fromkeys(
            [*([] if head is None else [head.key]), *[e.run_id for e in await self.runs()]]
        ):
            if any(item.message.id == name for item in await self._scope.own_messages(key)):
                return key, name
        if head is not None and any(item.message.id == name for item in await self.path(head)):
            return head.key, name
        raise not_found()


class ScopedRuns:
    """What a principal can reach."""

    def __init__(self, principal: Principal, house: House, shelf: Shelf, traceparent: str = "") -> None:
        self._traceparent = traceparent
        self.principal = principal
        self.house = house
        self.shelf = shelf
        self.tenant = journal_tenant(principal.tenant)

    # Agents

    def agents(self) -> list[dict[str, JSON]]:
        """All agents of the server."""
        return [
            {"name": wing.name, "description": wing.description, "model": wing.model}
            for wing in self.house.wings.values()
        ]

    def has_agent(self, name: str) -> None:
        """Refuses a name that is no agent's."""
        if name not in self.house.wings:
            raise not_found()

    # Runs

    async def run(self, run_id: str) -> ScopedRun:
        """A run by its client's id.

        Raises:
            Problem: 404, also for somebody else's.
        """
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
        segment = run_key(self.principal.tenant, name)
        key = await self.shelf.run_of_segment(self.tenant, segment)
        if key is None:
            raise not_found()
        return await self.run_of_key(key)

    async def name_segment(self, name: str, run: ScopedRun) -> None:
        """From now on `run_of` finds the run by that name, too."""
        await self.shelf.name_segment(self.tenant, run_key(self.principal.tenant, name), run.key)

    async def find_run(self, run_id: str) -> ScopedRun | None:
        """The same; None if there is none."""
        try:
            return await self.run(run_id)
        except Problem:
            return None

    async def run_of_key(self, key: str) -> ScopedRun:
        """A run by its id in the journal."""
        head = await self.house.journal.head(key)
        if head is None:
            raise not_found()
        spec = head.registration.spec
        if spec.tenant != self.tenant or await self.shelf.deleted(spec.tenant, spec.thread_id):
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
        reader = self.house.any_wing()
        with _our_cursor():
            page = await reader.runs.catalog_runs(
                replace(query, tenant=self.tenant), cursor=cursor, limit=limit
            )
        return [self._seen(entry) for entry in page.items], page.cursor

    def _seen(self, entry: RunEntry) -> RunEntry:
        """What the run's own wing says of it."""
        wing = self.house.wing_of(entry.binding)
        if wing is None or wing is self.house.any_wing():
            return entry
        mine = entry.descriptor_digest == wing.runs.descriptor.digest
        ownership = "here" if wing.runs.stoppable(entry.run_id) else entry.ownership
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
        return await self.house.any_wing().runs.own_messages(key)

    async def count_live(self) -> int:
        """How many runs of the tenant live."""
        entries = await self.entries(RunQuery(states=_LIVE), limit=200)
        return sum(is_live(entry.status, entry.ownership) for entry in entries)

    # Threads

    async def thread(self, thread_id: str, *, known: bool = False) -> ScopedThread:
        """A thread by its client's id. `known`: it must have a run or a record.

        Raises:
            Problem: 404.
        """
        keys = dict.fromkeys((thread_key(self.principal.tenant, thread_id), thread_id))
        for key in keys:
            record = await self.shelf.get(self.tenant, key)
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
            page = await self.shelf.list(
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

        record = await self.shelf.change(self.tenant, thread.key, change, made=made)
        return ScopedThread(self, thread.id, thread.key, record)

    async def copy_thread(
        self, thread: ScopedThread, name: str, title: str, copy: Copy, keys: Mapping[str, JSON]
    ) -> ScopedThread:
        """A thread that begins with a path of another one (SV-153)."""
        key, now = thread_key(self.principal.tenant, name), self.house.clock.time_ms()
        agent = "" if thread.record is None else thread.record.agent
        title = title or ("" if thread.record is None else thread.record.title)
        marks: dict[str, JSON] = {IDS: name, **copy.mark()}
        made = ThreadRecord(
            self.tenant, key, title=title, agent=agent, created_at_ms=now, updated_at_ms=now,
            metadata=marks, keys=dict(keys),
        )  # fmt: skip
        record = await self.shelf.change(self.tenant, key, lambda before: before, made=made)
        return ScopedThread(self, name, key, record)

    async def mark_thread(self, thread: ScopedThread, marks: Mapping[str, JSON]) -> ScopedThread:
        """Sets what the server itself keeps of a thread."""
        made = ThreadRecord(self.tenant, thread.key, metadata={IDS: thread.id})

        def change(before: ThreadRecord) -> ThreadRecord:
            return replace(before, metadata={**before.metadata, **marks})

        record = await self.shelf.change(self.tenant, thread.key, change, made=made)
        return ScopedThread(self, thread.id, thread.key, record)

    async def delete_thread(self, thread: ScopedThread, *, cancel: bool, purge: bool) -> None:
        """Thread and runs are gone for the client at once (SV-155).

        Raises:
            Problem: 409 while a run lives, unless it is to be cancelled.
        """
        if (live := await thread.live()) is not None:
            if not cancel:
                raise Problem(409, "thread_busy", "a run of this thread is live", run_id=live.ids.run)
            await live.cancel("the thread was deleted")
            await live.settled(20.0)
        made = ThreadRecord(self.tenant, thread.key, metadata={IDS: thread.id})

        def mark(before: ThreadRecord) -> ThreadRecord:
            return replace(before, metadata={**before.metadata, DELETED: True})

        await self.shelf.change(self.tenant, thread.key, mark, made=made)
        if purge:
            await self.house.journal.purge(thread.key)

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
            **await kept(self.house.journal, context),
            **self.house.traces.keeping(key, agent, thread.key, self._traceparent),
        }
        extras = dataclass_replace(extras, tenant=self.tenant, extensions=extensions)
        return await self.house.wings[agent].send(
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
            agent = newest[0].binding if newest else next(iter(self.house.wings))
        self.has_agent(agent)
        return agent

    async def may_export(self, thread: ScopedThread) -> bool:
        """Whether its AI controllers may have something to fetch."""
        return self.house.wings[await self.agent_of(thread)].may_export

    @asynccontextmanager
    async def visit(self, thread: ScopedThread) -> AsyncIterator[AgentController]:
        """The conversation of a thread, opened to be looked at; nothing is begun by that."""
        agent = await self.agent_of(thread)
        context = RunContext(self.principal, thread.id, "", agent)
        async with self.house.wings[agent].visit(thread.key, context) as conversation:
            yield conversation

    async def began(self, run_id: str) -> ScopedRun:
        """The run of a send that was committed; its thread is now the newest of the list."""
        run = await self.run(run_id)
        self.house.watch(run.key, run.binding)
        await self.shelf.began(run.spec)
        return run

    def stop_preparing(self, agent: str, thread: ScopedThread, run_id: str | None) -> bool:
        """Stops a send that has no run yet."""
        wing = self.house.wings.get(agent)
        reply = None if wing is None else wing.preparing(thread.key)
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
