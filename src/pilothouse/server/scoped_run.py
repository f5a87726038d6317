"""One run as its principal may see and steer it; made by the door alone (scope.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..commands import Ack, Cancel, Command
from ..conversation.states import shared_at
from ..core.agui.segments import Segment
from ..core.transcript import Transcript
from ..errors import NotControllable
from ..messages import JSON
from ..records import (
    Accept,
    HistoryMessage,
    Parent,
    Record,
    RunSpec,
    RunView,
    StatusAnswer,
)
from ..runs.follow import Follower
from .names import ids_of
from .problems import Problem
from .served_agent import ServedAgent
from .views import run_view

if TYPE_CHECKING:
    from .scope import ScopedRuns


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
    def _agent(self) -> ServedAgent:
        """Where it can be read."""
        served = self._scope.served
        return served.agent_of(self.binding) or served.any_agent()

    @property
    def _control(self) -> ServedAgent:
        """Where it can be controlled."""
        agent = self._scope.served.agent_of(self.binding)
        if agent is None:
            raise NotControllable(self.ids.run, "binding")
        return agent

    async def view(self) -> RunView:
        """Its bounded view."""
        return await self._agent.runs.inspect(self.key)

    async def in_the_way(self) -> Problem:
        """Why nothing else can begin in its thread while it lives, and what to do about that."""
        name, view = self.ids.run, await self.view()
        if waits := ", ".join([request.id for request in view.requests]):
            why = f"run {name} of this thread waits for an answer to {waits}: answer it, or cancel the run"
        else:
            why = f"run {name} is live in this thread: wait for its end, or cancel it"
        return Problem(409, "thread_busy", why, run_id=name)

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
        return self._agent.runs.stream(
            self.key, after, deltas=deltas, through_unknown=through_unknown, recent=recent
        )

    async def events(self, after: int, limit: int) -> Sequence[Record]:
        """Its facts from the journal, a page of them."""
        return (await self._scope.served.journal.read(self.key, after=after, limit=limit)).records

    async def segments(self) -> list[Segment]:
        """The AG-UI runs that it is, oldest first."""
        return await self._scope.served.segments.of(self.key, self.ids.run)

    async def own(self) -> Sequence[HistoryMessage]:
        """What it added to its path, its input first."""
        return await self._agent.runs.own_messages(self.key)

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
        return await self._scope.served.journal.get_blob(digest)

    async def front(self) -> Sequence[HistoryMessage]:
        """What stands in front of it, its input included."""
        own = Transcript(self.spec).messages()
        return [*await self._agent.runs.front(self.key), *own]

    async def shared_state(self, until: int) -> dict[str, JSON]:
        """The shared state behind its fact `until`, 0: in front of it."""
        return await shared_at(self._agent.runs, Parent(self.key, seq=until) if until else self.spec.parent)

    async def path(self, until: int) -> Sequence[HistoryMessage]:
        """The path up to its fact `until`."""
        transcript = Transcript(self.spec)
        for record in await self._agent.runs.events(self.key):
            if record.seq > until:
                break
            transcript.add(record)
        return [*await self._agent.runs.front(self.key), *transcript.messages()]

    async def command(self, command: Command, *, timeout: float | None = None) -> Ack:
        """Sends a command; its `run_id` is filled in."""
        ack = await self._control.runs.command(replace(command, run_id=self.key), timeout=timeout)
        self._scope.served.metrics.commanded(command, ack)
        return ack

    async def ack(self, command_id: str) -> Ack:
        """The ack of a command that was sent before."""
        return await self._agent.runs.command_ack(self.key, command_id)

    async def cancel(self, reason: str, command_id: str | None = None) -> Ack:
        """Stops it."""
        served = self._scope.served
        command = Command(command_id or self._control.runs.new_id(), self.key, Cancel(reason))
        began = served.clock.monotonic()
        ack = await self.command(command)
        if ack.state == "applied" and not ack.duplicate:
            served.spawn(self._stopped(began), f"stop of {self.key}")
        return ack

    async def _stopped(self, began: float) -> None:
        await self.settled(None)
        served = self._scope.served
        served.metrics.stop_seconds.add(served.clock.monotonic() - began)

    async def settled(self, seconds: float | None) -> None:
        """Waits until it ended or is lost; no error if it does not in time."""
        try:
            await self._agent.runs.wait_for_terminal(self.key, timeout=seconds)
        except TimeoutError:
            return

    async def past_recovery(self) -> RunView:
        """Its view; where the recovery that the server began with is still to come to it, once it has, or is over."""
        served = self._scope.served
        view = await self.view()
        while served.recovering and view.status == "unknown" and view.outcome is None:
            await served.recovered(self.key, view.last_seq)
            view = await self.view()
        return view

    @property
    def may_recover(self) -> bool:
        """Whether it may be taken up again by itself, being lost."""
        return self._scope.served.recovering

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
        agent = self._scope.served.agent_of(self.binding) or self._scope.served.any_agent()
        by = self._scope.principal.id
        return await self._shown(await agent.runs.abandon(self.key, reason, by=by))


__all__ = ["ScopedRun"]
