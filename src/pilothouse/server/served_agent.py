"""One agent of a server: its run controller, and a conversation for each thread that somebody is sending to.

A definition is a template: its own conversation is never served (SV-1). A conversation that is idle is dropped; the
journal has it. Nothing here knows of HTTP or of tenants: threads and runs have the journal's ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from ..cluster import Dispatcher
from ..contracts import Clock, Journal, Runtime
from ..conversation.controller import AgentController
from ..conversation.extras import RunExtras
from ..conversation.options import BusyPolicy
from ..conversation.reply import Reply
from ..conversation.router import RuntimeRouter
from ..core.jsonpatch import equal
from ..core.state_notes import NOTE as STATE
from ..errors import ConfigError, InvalidSpec
from ..loop.agent import AgentLoop
from ..loop.ready_tools import external_tool
from ..messages import JSON, InputPart, ToolSpec
from ..records import RunSpec
from ..runs.controller import RunController
from ..runs.timing import RunTiming
from .auth import Principal
from .context import ContextEntry, RunContext, recalled

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


class _Admitting(RuntimeRouter):
    """Tells of each run of an earlier process that is taken up here, before anything of it is written."""

    def __init__(self, default: Callable[[], Runtime], *, join: Join, admitted: Join) -> None:
        super().__init__(default, join=join)
        self._admitted = admitted

    async def admit(self, spec: RunSpec) -> None:
        """Its thread's conversation is there, and who watches runs watches it."""
        await super().admit(spec)
        await self._admitted(spec)


class ServedAgent:
    """One agent.

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
        plain = not self._template.plugged and not getattr(self._template.runtime, "tool_names", ())
        if plain and STATE not in spec.extensions:
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
        """Its reply, once its run is registered. DisconnectPolicy earlier undoes nothing.

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


__all__ = ["AgentDefinition", "Ask", "AutoRecover", "Sending", "ServedAgent"]
