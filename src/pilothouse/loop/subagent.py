"""Agents as tools of another agent: a call is a run of its own, with its parent on record.

The run's id is made of the parent's and the call's, so a call that is entered again after a crash or a shutdown finds the
run that it had begun. A stop of the parent stops it, its words are told as progress of the call, and what it uses counts
against the parent's limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from ..errors import OutcomeUnknown, RecordRefused, ToolError, ToolStopped
from ..events import (
    SUBAGENT,
    CallFinished,
    CallStarted,
    Cancelled,
    ChildTold,
    Completed,
    Delta,
    DeltaBody,
    Failed,
    Incomplete,
    MessageAdded,
    Noted,
    Outcome,
    OutputAdded,
    PartialSaved,
    ReasoningTold,
    TextTold,
    Truncated,
    Unknown,
)
from ..messages import JSON, Message, Part, Text, Usage
from ..records import Origin, Record, RunSpec, Start
from .agent import AgentLoop
from .answers import ToolResult
from .context import ToolContext
from .port import MemoryPort
from .tools import Tool, tool

if TYPE_CHECKING:
    from ..runs.controller import RunController
    from ..runs.handle import Run

DEEPEST: Final = 8
"""Agents below one another. One that may call itself, or another that calls it, would do so for ever."""
ABOVE: Final = "loop.agents_above"
TAIL: Final = 300
"""Characters of its latest words that a sub-agent's progress shows."""
LEGIBLE: Final = 160
"""Characters of a run's id that are both its parent's and its call's; with more, part of it is a digest."""

_depth: Final[ContextVar[int]] = ContextVar("pilothouse_agents_deep", default=0)
"""How many agents the present call stands below; what runs on behalf of a call inherits it.

A run has it in its options, too: one that is taken up after a crash is called by nobody.
"""


def agent_tool(
    agent: AgentLoop | RunController,
    *,
    name: str,
    description: str,
    limits: Mapping[str, JSON] | None = None,
    share: float | None = None,
    options: Mapping[str, JSON] | None = None,
    **tool_options: Any,
) -> Tool:
    """Makes a tool of an agent.

    Args:
        agent: a loop, whose runs are kept in memory, or a run controller, whose runs are durable.
        name: what the model calls it.
        description: what the model is told of it.
        limits: of each of its runs (fields of `Limits`).
        share: the part of the parent's remaining tokens that one run may use at most.
        options: of each of its runs.
        tool_options: as of `tool`. Durable runs make the call repeatable: `effect` is `idempotent` by default.

    At most eight agents stand below one another; the model of the last one is told so.

    Raises:
        ConfigError: a limit or an option that its runs cannot have.
    """
    loop = agent if isinstance(agent, AgentLoop) else agent.runtime
    if isinstance(loop, AgentLoop):
        loop.check(_options(limits, options))
    in_memory = isinstance(agent, AgentLoop)
    defaults: dict[str, Any] = {
        "effect": "non_idempotent" if in_memory else "idempotent",
        "timeout": None,
        "supervised": False,
    }

    @tool(name=name, description=description, **{**defaults, **tool_options})
    async def delegate(task: str, ctx: ToolContext[Any]) -> ToolResult:
        """Delegates.

        Args:
            task: Everything that the agent must know: it sees nothing of this conversation.
            ctx: Given by the loop.
        """
        depth = max(_depth.get(), ctx.agents_above)
        if depth >= DEEPEST:
            raise ToolError(
                f"{depth} agents stand above this call, and more are not allowed: answer without {name}."
            )
        _depth.set(depth + 1)  # the call has a context of its own
        spec = _spec(task, ctx, limits, share, {**(options or {}), ABOVE: depth + 1})
        if ctx.parent is not None:
            with suppress(RecordRefused):  # it is being stopped: so is what begins now
                data: dict[str, JSON] = {"call_id": ctx.call_id, "run_id": spec.run_id, "name": name}
                await ctx.parent.record(Noted(SUBAGENT, data))
        if isinstance(agent, AgentLoop):
            records, outcome = await _in_memory(agent, spec, ctx)
        else:
            records, outcome = await _durable(agent, spec, ctx)
        return _result(name, records, outcome)

    if not isinstance(agent, AgentLoop):
        delegate.stop = partial(_stop_left, agent)
    return delegate


def _spec(
    task: str,
    ctx: ToolContext[Any],
    limits: Mapping[str, JSON] | None,
    share: float | None,
    options: Mapping[str, JSON] | None,
) -> RunSpec:
    run_id = _id_of(ctx.run_id, ctx.call_id)
    slices = dict(limits or {})
    left = ctx.tokens_left()
    if share is not None and left is not None:
        part = max(0, int(left * share))
        slices["total_tokens"] = min(part, slices.get("total_tokens", part))
    message = Message(f"{run_id}-task", "user", (Text(task),))
    given = _options(slices, options)
    return RunSpec(run_id, run_id, (message,), options=given, origin=Origin(ctx.run_id, ctx.call_id))


def _options(limits: Mapping[str, JSON] | None, options: Mapping[str, JSON] | None) -> dict[str, JSON]:
    given: dict[str, JSON] = dict(options or {})
    if limits:
        given["loop.limits"] = dict(limits)
    return given


def _id_of(run_id: str, call_id: str) -> str:
    """The same for each attempt of a call; a provider's ids may be longer than a run's, and hold what that may not."""
    plain = f"{run_id}.{call_id}"
    if len(plain) <= LEGIBLE and plain.isprintable():
        return plain
    digest = sha256(plain.encode(errors="backslashreplace")).hexdigest()[:32]
    return f"{run_id[: LEGIBLE - 33]}.{digest}"


class _Voice:
    """What a sub-agent says: its latest words as progress of the call, and all of it to who follows the parent."""

    def __init__(self, ctx: ToolContext[Any], run_id: str) -> None:
        self._ctx = ctx
        self._run_id = run_id
        self._message_id = ""
        self._text = ""
        self._lengths: dict[tuple[type, str, int], int] = {}

    def count(self, body: DeltaBody) -> None:
        """Takes a piece that does not say where in its part it stands: none is missing."""
        if isinstance(body, TextTold | ReasoningTold):
            body = replace(body, offset=self._lengths.get((type(body), body.message_id, body.index), 0))
        self.hear(body)

    def hear(self, body: DeltaBody) -> None:
        """Takes a piece that says where it stands; what was heard already is told once."""
        if not isinstance(body, TextTold | ReasoningTold):
            return
        key, end = (type(body), body.message_id, body.index), body.offset + len(body.text)
        known = self._lengths.get(key, 0)
        if end <= known:
            return
        self._lengths[key] = end
        if isinstance(body, TextTold):
            if body.message_id != self._message_id:
                self._message_id, self._text = body.message_id, ""
            self._text = (self._text + body.text[max(0, known - body.offset) :])[-TAIL:]
            self._ctx.progress(self._text)
        self._tell(ChildTold(self._ctx.call_id, self._run_id, said=body))

    def see(self, records: Iterable[Record]) -> None:
        """Takes facts."""
        for record in records:
            fact = record.fact
            if isinstance(fact, MessageAdded | CallStarted | CallFinished):
                self._tell(ChildTold(self._ctx.call_id, self._run_id, fact=fact))
            elif isinstance(fact, PartialSaved) and fact.part != "arguments":  # said before anybody listened
                kind = TextTold if fact.part == "text" else ReasoningTold
                self.hear(kind(fact.message_id, fact.index, fact.text, fact.offset))

    def _tell(self, told: ChildTold) -> None:
        if self._ctx.parent is not None:
            self._ctx.parent.tell(told)


async def _in_memory(loop: AgentLoop, spec: RunSpec, ctx: ToolContext[Any]) -> tuple[list[Record], Outcome]:
    start = Start(spec, (), "", "memory", "", 1, "")
    voice = _Voice(ctx, spec.run_id)
    port = MemoryPort(start, loop.clock, told=voice.count)
    port.wrote = voice.see
    port.attended = False
    running = asyncio.ensure_future(loop.run_alone(start, port))

    def stop() -> None:
        if port.state.outcome is None and not port.scope.cancelled:
            port.cancel(ctx.cancelled.reason or "parent", "parent")

    forget = ctx.cancelled.on_set(stop)  # in the step of the parent's stop: nothing starts after that
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        stop()
        with suppress(Exception):
            await running
        _charge(ctx, port.state.usage)
        raise
    finally:
        forget()
    _charge(ctx, port.state.usage)
    return port.records, port.state.outcome or Unknown("eof")


async def _begun(runs: RunController, spec: RunSpec) -> Run:
    run = await runs.start(spec, until="accepted")
    if run.reopened and (await run.inspect()).status == "unknown":
        await run.recover()
    return run


async def _durable(runs: RunController, spec: RunSpec, ctx: ToolContext[Any]) -> tuple[list[Record], Outcome]:
    beginning = asyncio.ensure_future(_begun(runs, spec))
    try:
        run = await asyncio.shield(beginning)
    except asyncio.CancelledError:  # it may be on record already, and would go on without anybody
        with suppress(Exception):
            await _stop(runs, await beginning, ctx)
        raise
    listening = asyncio.ensure_future(_listen(runs, spec.run_id, _Voice(ctx, spec.run_id)))
    forget = ctx.cancelled.on_set(lambda: _stop_at_once(runs, run, ctx))
    try:
        result = await run.wait()
        # The stream ends with the run: what it said is told before its result.
        await asyncio.wait({listening})
    except asyncio.CancelledError:
        await _stop(runs, run, ctx)
        raise
    finally:
        forget()
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
    _charge(ctx, result.view.usage)
    return await run.events(), result.outcome


async def _stop(runs: RunController, run: Run, ctx: ToolContext[Any]) -> None:
    """Stops it with its parent. A parent that is only left leaves it, too: who recovers the one finds the other."""
    if ctx.cancelled.reason == "shutdown":
        return
    if not _stop_at_once(runs, run, ctx):
        await asyncio.shield(runs.cancel(run.id, ctx.cancelled.reason or "parent", source="parent"))
    result = await run.wait()
    _charge(ctx, result.view.usage)


def _stop_at_once(runs: RunController, run: Run, ctx: ToolContext[Any]) -> bool:
    """The same before a disk was waited for, so that nothing starts meanwhile; False if the run is not live here."""
    reason = ctx.cancelled.reason
    return reason != "shutdown" and runs.cancel_nowait(run.id, reason or "parent", source="parent")


async def _stop_left(runs: RunController, parent_id: str, call_id: str, _: str) -> None:
    """Stops a run whose parent was stopped after a crash, and so does not wait for it any more."""
    run_id = _id_of(parent_id, call_id)
    if await runs.has_run(run_id):
        await runs.cancel(run_id, "parent", source="parent")


async def _listen(runs: RunController, run_id: str, voice: _Voice) -> None:
    async with runs.stream(run_id, recent=True) as items:
        async for item in items:
            if isinstance(item, Record):
                voice.see([item])
            elif isinstance(item, Delta):
                voice.hear(item.body)


def _charge(ctx: ToolContext[Any], usage: Usage | None) -> None:
    if usage is not None:
        ctx.charge(usage)


def _result(name: str, records: list[Record], outcome: Outcome) -> ToolResult:
    """What the calling model is told of a run; how it ended stays apart from what it said."""
    said = ""
    structured: JSON = None
    for record in records:
        fact = record.fact
        if isinstance(fact, MessageAdded) and fact.message.role == "assistant":
            said = fact.message.text or said
        elif isinstance(fact, OutputAdded):
            structured = fact.content
    parts: tuple[Part, ...] = (Text(said),) if said else ()
    match outcome:
        case Completed() | Truncated():
            return ToolResult(parts, structured)
        case Incomplete():
            why = f"{name} did not finish: {outcome.limit or outcome.reason}."
            return ToolResult((*parts, Text(why)), structured, is_error=True)
        case Cancelled():
            raise ToolStopped(f"{name} was stopped: {outcome.reason}")
        case Failed():
            raise ToolError(f"{name} failed: {outcome.kind}")
        case Unknown():
            raise OutcomeUnknown(f"{name} did not say how it ended.")
