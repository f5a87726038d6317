"""One thread as its principal may see and change it, whether it has runs or not; made by the door alone (scope.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from ..conversation.aims import behind
from ..conversation.extras import RunExtras
from ..messages import JSON, Message
from ..records import (
    UNFINISHED,
    HistoryMessage,
    Parent,
    RunEntry,
    RunQuery,
    RunStateName,
    ThreadRecord,
)
from .branches import Chosen, Copy, alternatives, anew, branch_view, chosen_of, copy_of
from .problems import invalid, not_found
from .scoped_run import ScopedRun
from .served_agent import Ask
from .views import Delivered, is_live, messages_view

LIVE: Final[tuple[RunStateName, ...]] = ("accepted", "running", "waiting", "stopping")

if TYPE_CHECKING:
    from .scope import ScopedRuns


class ScopedThread:
    """One thread of the principal's tenant, whether it has runs or not."""

    def __init__(self, scope: ScopedRuns, thread_id: str, key: str, record: ThreadRecord | None) -> None:
        self._scope = scope
        self.id = thread_id
        self.key = key
        self.record = record

    async def _newest(self) -> str | None:
        return await self._scope.served.any_agent().runs.thread_head(self.key)

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
            raise await live.in_the_way()
        mark = Chosen(run.key, await self._newest() or "")
        return await self._scope.mark_thread(self, mark.mark())

    async def path(self, head: ScopedRun | None) -> Sequence[HistoryMessage]:
        """From the root to a head; of a copy that has no run yet: what was copied."""
        if head is not None:
            return await self._scope.served.any_agent().runs.history(head.key)
        return [HistoryMessage(message, "") for message in await self._copied() or ()]

    async def _copied(self) -> Sequence[Message] | None:
        """What a copy begins with; None if it is no copy, or has begun."""
        copy = None if self.record is None else copy_of(self.record.metadata)
        if copy is None or await self._newest() is not None:
            return None
        return await self._scope.copied(copy)

    async def place(self, ask: Ask, extras: RunExtras) -> tuple[Ask, RunExtras]:
        """A send hangs on the branch that was chosen, the first one of a copy on what was copied."""
        if extras.parent is not None or extras.base is not None:
            return ask, extras
        if (base := await self._copied()) is not None:
            return ask, replace(extras, base=base)
        chosen = await self._chosen()
        if chosen is None or chosen == await self._newest():
            return ask, extras
        runs, parent = self._scope.served.any_agent().runs, Parent(chosen)
        if ask.action == "regenerate":
            parent = anew(await runs.history(chosen), chosen, ask.target)
        elif ask.action == "retry":
            view = await runs.inspect(chosen)
            found = await behind(runs, view, "retried") if view.status in UNFINISHED else None
            if found is None:
                raise not_found()
            parent = found
        return replace(ask, action="send", target=""), replace(extras, parent=parent)

    async def runs(self) -> Sequence[RunEntry]:
        """All its runs, newest first."""
        return await self._scope.all_entries(RunQuery(thread_id=self.key))

    async def live(self) -> ScopedRun | None:
        """The run that lives in it, if any."""
        for entry in await self._scope.entries(RunQuery(thread_id=self.key, states=LIVE), limit=4):
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
        if (base := await self._copied()) is not None and any(message.id == name for message in base):
            assert self.record is not None
            origin = copy_of(self.record.metadata)
            assert origin is not None
            return replace(origin, through=name)
        run, through = await self._found(name)
        if through is None:
            path = await self._scope.served.any_agent().runs.history(run)
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


__all__ = ["LIVE", "ScopedThread"]
