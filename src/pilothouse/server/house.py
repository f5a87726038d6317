"""The agents of a server, their run controllers over one journal, and the conversations that live.

A definition is a template: its own conversation is never served (SV-1). Each agent is a *wing*: one run controller,
bound to the agent's name, and one conversation for each thread that somebody is sending to. A conversation that is idle
is dropped; the journal has it. Nothing here knows of HTTP or of tenants: threads and runs have the journal's ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from ..cluster import Dispatcher
from ..contracts import Clock, Journal, Runtime
from ..conversation.controller import AgentController
from ..conversation.extras import RunExtras
from ..conversation.options import BusyPolicy
from ..conversation.reply import Reply
from ..conversation.switchboard import Switchboard
from ..core.agui.segments import Segment, Segments
from ..core.jsonpatch import equal
from ..errors import ConfigError, DispatchUnavailable, InvalidSpec
from ..loop.agent import AgentLoop
from ..loop.ready_tools import external_tool
from ..messages import JSON, InputPart, ToolSpec
from ..records import Accept, RunQuery, RunSpec
from ..runs.controller import RunController
from ..runs.timing import RunTiming
from .auth import Principal
from .context import ContextEntry, RunContext, recalled
from .metrics import Metrics
from .settings import WorkOptions
from .telemetry import Traces
from .timed import timed

logger = logging.getLogger("pilothouse.server")

AutoRecover: TypeAlias = Literal["never", "on_command", "on_open"]


Join: TypeAlias = Callable[[RunSpec], Awaitable[None]]

AgentDefinition: TypeAlias = AgentController | Callable[[RunContext], AgentController | Runtime]


class Ask(Struct, frozen=True):
    """What a send is to do: a new message, an answer to an earlier one again, or going on after a failure.

    `props` and `context` are what the client says beside it; they reach a factory as they are. `state` is the shared
    state as the client has it: what differs is a change (SV-107).
    """

    action: Literal["send", "regenerate", "retry"] = "send"
    content: tuple[InputPart, ...] | None = None
    target: str = ""
    props: Mapping[str, JSON] = field(default_factory=dict)
    context: tuple[ContextEntry, ...] = ()
    state: Mapping[str, JSON] = field(default_factory=dict)


class _Admitting(Switchboard):
    """Tells of each run of an earlier process that is taken up here, before anything of it is written."""

    def __init__(self, default: Callable[[], Runtime], *, join: Join, admitted: Join) -> None:
        super().__init__(default, join=join)
        self._admitted = admitted

    async def admit(self, spec: RunSpec) -> None:
        """Its thread's conversation is there, and who watches runs watches it."""
        await super().admit(spec)
        await self._admitted(spec)


class Wing:
    """One agent of the house.

    Attributes:
        runs: the agent's run controller.
    """

    def __init__(
        self,
        name: str,
        definition: AgentDefinition,
        journal: Journal,
        *,
        auto_recover: AutoRecover,
        clock: Clock,
        spawn: Callable[[Awaitable[object], str], asyncio.Task[object]],
        taken: Callable[[str, str, int], None],
        timing: RunTiming | None = None,
        dispatcher: Dispatcher | None = None,
    ) -> None:
        self.name = name
        self._journal = journal
        self._taken = taken
        self._definition = definition
        self._spawn = spawn
        self._conversations: dict[str, AgentController] = {}
        self._using: dict[str, int] = {}  # sends of a thread that are under way
        if isinstance(definition, AgentController):
            self._template = definition
        else:
            nobody = RunContext(Principal("", ""), "", "", name)
            self._template = _conversation(definition(nobody), name)
        template = self._template
        self.runs = RunController(
            _Admitting(lambda: template.runtime, join=self._take_up, admitted=self._watch_on),
            name,
            journal=journal,
            auto_recover=auto_recover,
            clock=clock,
            timing=timing,
            dispatcher=dispatcher,
        )

    @property
    def description(self) -> str:
        """What the definition says of itself."""
        return str(getattr(self._definition, "description", "") or "")

    @property
    def model(self) -> str:
        """The model that answers, as far as it is known."""
        chosen = self._template.options.get("model")
        if chosen is None:
            chosen = getattr(self._template.provider, "default_model", None)
        return str(getattr(chosen, "id", chosen) or "")

    @property
    def may_export(self) -> bool:
        """Whether its conversations may have AI controllers with something to fetch; a factory's may."""
        return not isinstance(self._definition, AgentController) or bool(self._template.exports)

    async def _watch_on(self, spec: RunSpec) -> None:
        head = await self._journal.head(spec.run_id)
        self._taken(spec.run_id, self.name, 0 if head is None else head.head.seq)

    async def _take_up(self, spec: RunSpec) -> None:
        """A run of an earlier process goes on: its thread's conversation is there while it does (TC-115)."""
        if not self._template.plugged and not getattr(self._template.runtime, "tool_names", ()):
            return
        thread_id, run_id = spec.thread_id, spec.run_id
        self._using[thread_id] = self._using.get(thread_id, 0) + 1

        async def until_over() -> None:
            try:
                await self.runs.wait_for_terminal(run_id)
            finally:
                self._leave(thread_id)

        try:
            await self._join(thread_id, await recalled(self.runs.journal, spec, self.name))
        except BaseException:
            self._leave(thread_id)
            raise
        self._spawn(until_over(), f"run {run_id} that was taken up")

    async def _join(self, thread_id: str, context: RunContext) -> AgentController:
        """The thread's conversation, opened; the same for all who send to it at the same time."""
        found = self._conversations.get(thread_id)
        if found is None:
            if isinstance(self._definition, AgentController):
                found = self._definition.joined(self.runs, thread_id)
            else:
                found = _conversation(self._definition(context), self.name)
                found.adopt(self.runs, thread_id)
            self._conversations[thread_id] = found
        return await found.open()

    @asynccontextmanager
    async def visit(self, thread_id: str, context: RunContext) -> AsyncIterator[AgentController]:
        """The thread's conversation, opened to be looked at: the one that somebody sends to, if there is one."""
        self._using[thread_id] = self._using.get(thread_id, 0) + 1
        try:
            yield await self._join(thread_id, context)
        finally:
            self._leave(thread_id)

    async def send(
        self,
        thread_id: str,
        run_id: str,
        ask: Ask,
        *,
        context: RunContext,
        when_busy: BusyPolicy,
        extras: RunExtras,
    ) -> Sending:
        """Begins a send; it goes on whatever becomes of the caller."""
        self._using[thread_id] = self._using.get(thread_id, 0) + 1
        try:
            conversation = await self._join(thread_id, context)
            _check_client_tools(conversation, extras.client_tools)
            if ask.state and (patch := _proposed(conversation, ask.state)):
                extras = replace(extras, state={**patch, **(extras.state or {})})
            begun: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            leave = conversation.subscribe(_Watch(conversation, run_id, begun))
            sending = self._spawn(self._send(conversation, run_id, ask, when_busy, extras), f"send {run_id}")
        except BaseException:
            self._leave(thread_id)
            raise

        def over(_: asyncio.Task[object]) -> None:
            leave()
            self._leave(thread_id)

        sending.add_done_callback(over)
        return Sending(sending, begun)

    async def _send(
        self,
        conversation: AgentController,
        run_id: str,
        ask: Ask,
        when_busy: BusyPolicy,
        extras: RunExtras,
    ) -> Reply:
        match ask.action:
            case "retry":
                reply = await conversation.retry(id=run_id, extras=extras)
            case "regenerate":
                reply = await conversation.regenerate(ask.target, id=run_id, extras=extras)
            case "send":
                reply = await conversation.send(ask.content, id=run_id, when_busy=when_busy, extras=extras)
        await reply.wait_closed()
        return reply

    def _leave(self, thread_id: str) -> None:
        """Drops a conversation that nobody uses: what it was is in the journal (SV-4)."""
        self._using[thread_id] -= 1
        if not self._using[thread_id]:
            del self._using[thread_id]
            dropped = self._conversations.pop(thread_id, None)
            if dropped is not None and dropped.controllers:
                self._spawn(_let_go(dropped), f"end of {thread_id}")

    def preparing(self, thread_id: str) -> Reply | None:
        """A send of that thread that has no run yet."""
        conversation = self._conversations.get(thread_id)
        reply = None if conversation is None else conversation.reply
        return reply if reply is not None and not reply.committed else None


class Sending:
    """A send that was begun."""

    def __init__(self, task: asyncio.Task[object], begun: asyncio.Future[Reply]) -> None:
        self._task = task
        self._begun = begun

    async def committed(self) -> Reply:
        """Its reply, once its run is registered. Leaving earlier undoes nothing.

        Raises:
            PilothouseError: what the conversation refuses with.
        """
        waited: tuple[asyncio.Future[Any], ...] = (self._task, self._begun)
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        reply = self._begun.result() if self._begun.done() else self._task.result()
        assert isinstance(reply, Reply)
        await reply.wait_committed()
        return reply


class _Watch:
    """Sees the reply of a send as soon as there is one (AC-122)."""

    def __init__(self, conversation: AgentController, run_id: str, begun: asyncio.Future[Reply]) -> None:
        self._conversation = conversation
        self._run_id = run_id
        self._begun = begun

    def on_state_change(self, _state: object) -> None:
        """The live reply may be ours now."""
        reply = self._conversation.reply
        if reply is not None and reply.id == self._run_id and not self._begun.done():
            self._begun.set_result(reply)


class Segmented:
    """The AG-UI runs of the runs that were asked for last, so that a run's facts are read for it once."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._kept: dict[str, Segments] = {}

    async def of(self, key: str, name: str) -> list[Segment]:
        """All of them as the journal has it now."""
        found = self._kept.pop(key, None) or Segments(name)
        self._kept[key] = found
        while len(self._kept) > _KEPT:
            self._kept.pop(next(iter(self._kept)))
        more = True
        while more:
            page = await self._journal.read(key, after=found.seq, kinds=_RESOLVED)
            found.add([record for record in page.records if record.seq > found.seq])
            more = page.more and bool(page.records)
        return found.all()


_RESOLVED: Final = frozenset({"request_resolved"})
_KEPT: Final = 1000
_LOOK_S: Final = 5.0


class House:
    """All wings and what they share."""

    def __init__(
        self,
        agents: Mapping[str, AgentDefinition],
        journal: Journal,
        *,
        auto_recover: AutoRecover,
        clock: Clock,
        figures: Callable[[], Mapping[str, Mapping[str, float]]],
        capture_content: bool = False,
        timing: RunTiming | None = None,
        dispatcher: Dispatcher | None = None,
        work: WorkOptions | None = None,
    ) -> None:
        if not agents:
            raise ConfigError("a server needs at least one agent")
        if work is not None and dispatcher is None:
            raise ConfigError("a worker needs a dispatcher: give Server(dispatcher=…)")
        self.journal = journal
        self.clock = clock
        self.draining = False
        self.dispatcher = dispatcher
        self._work = work
        self.segments = Segmented(journal)
        self.metrics = Metrics(clock, figures)
        self.traces = Traces(clock, content=capture_content)
        self._auto_recover = auto_recover
        self._tasks: set[asyncio.Task[object]] = set()
        self._recovering: list[asyncio.Task[object]] = []
        writing = timed(journal, clock, self.metrics.append_seconds.add)
        self.wings: dict[str, Wing] = {
            name: Wing(
                name,
                definition,
                writing,
                auto_recover=auto_recover,
                clock=clock,
                spawn=self.spawn,
                taken=self.watch,
                timing=timing,
                dispatcher=dispatcher,
            )
            for name, definition in agents.items()
        }

    def spawn(self, work: Awaitable[object], name: str) -> asyncio.Task[object]:
        """A task of the server's own. Who awaits it gets what it raises; it is also logged, at `debug`."""

        async def run() -> object:
            return await work

        task = asyncio.get_running_loop().create_task(run(), name=f"pilothouse {name}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("%s: %s: %s", task.get_name(), type(error).__name__, error)

    def open(self) -> None:
        """Takes lost runs up again in the background, where that is wished for (SV-224)."""
        for wing in self.wings.values():
            if self._auto_recover == "on_open" and self.dispatcher is None:
                self._recovering.append(self.spawn(self._take_up(wing), f"recovery of {wing.name}"))

    async def open_dispatch(self) -> None:
        """Takes what the dispatcher gives, if this is a worker; others only ask."""
        if self.dispatcher is None:
            return
        if (work := self._work) is not None:
            accept = Accept(config_change=work.config_change)
            for wing in self.wings.values():
                wing.runs.work(accept=accept, principal=work.per_principal, thread=work.per_thread)
        try:
            await self.dispatcher.start()
        except DispatchUnavailable as error:
            if work is not None:
                raise
            logger.warning("runs wait for the dispatcher: %s", error)

    def watch(self, key: str, binding: str, since: int = 0) -> None:
        """Counts what a run does behind fact `since`, and traces it where that is set up: where it is driven."""
        wing = self.wings.get(binding)
        if wing is None or (self.dispatcher is not None and self._work is None):
            return
        self.spawn(self.metrics.watch(wing.runs, key, wing.name, since=since), f"counting of {key}")
        if self.traces.on:
            self.spawn(self.traces.watch(wing.runs, key, wing.name, since=since), f"tracing of {key}")

    async def _take_up(self, wing: Wing) -> None:
        """Recovers an agent's lost runs. Those that are driven from their facts are watched as they are admitted."""
        await _recovered(wing)
        if wing.runs.descriptor.descriptor.recovery == "journal":
            return
        query = RunQuery(binding=wing.name, states=("accepted", "running", "waiting", "stopping"))
        cursor: str | None = None
        while True:
            page = await wing.runs.catalog_runs(query, cursor=cursor, limit=500)
            for entry in page.items:
                if entry.ownership == "here":
                    self.watch(entry.run_id, wing.name, entry.last_seq)
            if (cursor := page.cursor) is None:
                return

    @property
    def recovering(self) -> bool:
        """Whether lost runs are being taken up again."""
        return any(not task.done() for task in self._recovering)

    async def recovered(self, key: str, seq: int) -> None:
        """Waits until the facts of a run go on behind `seq`, or what could be taken up again was."""
        waits = [
            asyncio.ensure_future(self.journal.changed(key, seq, timeout=_LOOK_S)),
            *[task for task in self._recovering if not task.done()],
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waits[0].cancel()

    def wing_of(self, binding: str) -> Wing | None:
        """The wing whose runs these are."""
        return self.wings.get(binding)

    def any_wing(self) -> Wing:
        """A wing to read through: every run in the journal can be read by any (RC-66)."""
        return next(iter(self.wings.values()))

    async def aclose(self, seconds: float) -> None:
        """Hands over what still lives to a later recovery (RC-52), then ends the server's own tasks."""
        self.draining = True
        await asyncio.gather(*[wing.runs.aclose(timeout=seconds) for wing in self.wings.values()])
        if self.dispatcher is not None:
            await self.dispatcher.aclose()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _recovered(wing: Wing) -> None:
    try:
        await wing.runs.__aenter__()
    except Exception:
        logger.exception("the lost runs of agent %s were not recovered", wing.name)


def _proposed(conversation: AgentController, state: Mapping[str, JSON]) -> dict[str, JSON]:
    """What a client's state would change: keys that differ, but those of AI controllers, which are theirs."""
    now = conversation.shared_state
    theirs = conversation.reserved_state
    found: dict[str, JSON] = {}
    for key, value in state.items():
        if key in now and equal(now[key], value):
            continue
        if key in theirs:
            logger.warning("a client has another state for AI controller %s: left out", key)
            continue
        found[key] = value
    return found


async def _let_go(conversation: AgentController) -> None:
    """Closes the connections, files and processes of a dropped conversation's AI controllers, and nothing else of it.

    A conversation that is closed aborts what it has begun; a run that was handed over must go on.
    """
    for controller in conversation.controllers:
        close = getattr(controller, "aclose", None)
        if close is None or getattr(controller, "is_open", False):
            continue
        try:
            await close()
        except Exception:
            logger.exception("an AI controller could not be closed")


def _check_client_tools(conversation: AgentController, given: Sequence[ToolSpec]) -> None:
    """Tools of clients must be usable, and named as none of the agent's own is (SV-106).

    Raises:
        InvalidSpec: one is not.
    """
    if not given:
        return
    runtime = conversation.runtime
    taken = set(runtime.tool_names) if isinstance(runtime, AgentLoop) else set()
    for number, spec in enumerate(given):
        try:
            external_tool(spec)
        except ConfigError as error:
            raise InvalidSpec(f"tools[{number}]: {error}") from None
        if spec.name in taken:
            raise InvalidSpec(f"tools[{number}].name: {spec.name!r} is taken")
        taken.add(spec.name)


def _conversation(made: AgentController | Runtime, name: str) -> AgentController:
    """What a factory made, as a conversation."""
    if isinstance(made, AgentController):
        return made
    if isinstance(made, Runtime):
        return AgentController(made)
    raise ConfigError(
        f"the factory of agent {name!r} made {type(made).__name__}, no AgentController or Runtime"
    )


__all__ = ["AgentDefinition", "Ask", "AutoRecover", "House", "Sending", "Wing"]
