"""`ClientToolRunner`: runs the tools that the host of an interface declares, for any agent that can hand them over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable, signature
from typing import Any, Final, Literal, Self, final

from ..agent_contracts import Agent, ClientToolsCapability, ToolGuard
from ..cancel import Token
from ..errors import PilothouseError, UsageError
from ..loop.jsonschema import problems_of
from ..messages import JSON, ToolSpec
from ..projection import AgentToolCall, Claimed, Err, Ok, Recorded, ToolOutcome

logger = logging.getLogger("pilothouse.agents")

Handler = Callable[..., JSON | Awaitable[JSON]]

CANCELLED: Final = "cancelled: the user stopped it"
IN_DOUBT: Final = "unknown: this call was begun before, and nobody knows how that ended; it was not run again"


class ClientTool:
    """A tool that runs where the interface is.

    Args:
        handler: `function`: called with the arguments as keywords, and with `cancel=` if it has such a parameter; what
            it returns is the result. `view`: called to show something; the result is that it was shown. `ask`: called to
            show something that the user answers; what it returns is the answer.
        follow_up: the agent goes on with the result; without it the result is handed over and nothing more is asked.
        idempotent: it may run again for the same call: no guard is asked.
    """

    def __init__(
        self,
        name: str,
        handler: Handler,
        *,
        description: str = "",
        parameters: Mapping[str, JSON] | None = None,
        kind: Literal["function", "view", "ask"] = "function",
        follow_up: bool | None = None,
        idempotent: bool = False,
    ) -> None:
        self.name = name
        self.handler = handler
        self.kind = kind
        self.follow_up = kind != "view" if follow_up is None else follow_up
        self.idempotent = idempotent
        self.parameters: Mapping[str, JSON] = parameters or {"type": "object", "properties": {}}
        self.description = description
        if self.parameters.get("type") != "object":
            raise UsageError(f"client tool {name!r}: its parameters are no JSON Schema of an object")
        self._takes_cancel = "cancel" in signature(handler).parameters

    @property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        return ToolSpec(self.name, self.description, self.parameters)

    async def run(self, args: Mapping[str, JSON], cancel: Token) -> ToolOutcome:
        """Calls the handler; what it raises is an `Err`."""
        more = {"cancel": cancel} if self._takes_cancel else {}
        try:
            value = self.handler(**args, **more)
            if isawaitable(value):
                value = await value
        except Exception as error:  # noqa: BLE001 - a handler's failure is the model's to read
            return Err(f"{type(error).__name__}: {error}")
        return Ok("shown") if self.kind == "view" and value is None else Ok(value)


class _Group:
    """Calls that were pending together: one continuation for all of them (AG-153)."""

    def __init__(self, calls: Sequence[AgentToolCall]) -> None:
        self.left = {call.id for call in calls}
        self.last = ""
        self.outcome: ToolOutcome | None = None
        self.follow_up = False
        self.stopped = False


@final
class ClientToolRunner:
    """Runs pending client tool calls of an agent, one continuation a group; an async context manager.

    Args:
        agent: one whose `client_tools` is not None.
        max_continuations: groups in a row after one user message; 0 is no limit.
        guard: keeps a call from running twice, over restarts too.

    Raises:
        UsageError: the agent takes no client tools, or two tools have one name.
    """

    def __init__(
        self,
        agent: Agent[Any],
        tools: Sequence[ClientTool],
        *,
        max_continuations: int = 10,
        guard: ToolGuard | None = None,
    ) -> None:
        capability = getattr(agent, "client_tools", None)
        if capability is None:
            raise UsageError("this agent takes no client tools")
        self._agent = agent
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) != len(tools):
            raise UsageError("two client tools have the same name")
        self._capability: ClientToolsCapability = capability
        self._limit = max_continuations
        self._guard = guard
        self._taken: set[str] = set()
        self._running: dict[str, tuple[asyncio.Task[Any], Token]] = {}
        self._continued = 0
        self._users = 0
        self._leave: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        """Declares the tools and looks at what is pending."""
        self._capability.set_catalog([tool.spec for tool in self._tools.values()])
        self._users = self._count_users()
        self._leave = [
            self._capability.pending.subscribe(lambda _: self._look()),
            self._agent.status.subscribe(self._status),
        ]
        self._look()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Closes."""
        await self.aclose()

    async def aclose(self) -> None:
        """Settles what runs as cancelled, without waiting for it, and lets go of the agent."""
        for leave in self._leave:
            leave()
        self._leave = []
        self._cancel_all()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _count_users(self) -> int:
        return sum(message.role == "user" for message in self._agent.messages.get())

    def _status(self, status: str) -> None:
        """A stop leaves calls behind that nobody waits for any more (AG-155)."""
        if status == "idle" and self._running:
            pending = {call.id for call in self._capability.pending.get()}
            if not pending & self._running.keys():
                self._cancel_all()

    def stop(self) -> None:
        """Cancels what runs: each call is settled as cancelled at once, a late result is dropped."""
        self._cancel_all()

    def _cancel_all(self) -> None:
        running, self._running = self._running, {}
        for call_id, (task, token) in running.items():
            token.set("stopped")
            task.cancel()
            self._settle(call_id, Err(CANCELLED))
        if running:
            self._spawn(self._flush())

    def _settle(self, call_id: str, outcome: ToolOutcome) -> None:
        try:
            self._capability.settle(call_id, outcome)
        except PilothouseError as error:
            logger.debug("call %s is gone: %s", call_id, error)

    async def _flush(self) -> None:
        try:
            await self._capability.flush()
        except PilothouseError as error:
            logger.warning("results of client tools are kept for the next run: %s", error)

    # Groups

    def _look(self) -> None:
        fresh = [
            call
            for call in self._capability.pending.get()
            if call.name in self._tools and call.id not in self._taken
        ]
        if not fresh:
            return
        self._taken |= {call.id for call in fresh}
        users = self._count_users()
        if users != self._users:
            self._users, self._continued = users, 0
        if self._limit and self._continued >= self._limit:
            why = f"not run: {self._limit} rounds of client tools in a row without the user"
            for call in fresh:
                self._settle(call.id, Err(why))
            self._spawn(self._flush())
            return
        self._continued += 1
        group = _Group(fresh)
        for call in fresh:
            token = Token()
            task = self._spawn(self._run(group, call, token))
            self._running[call.id] = (task, token)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, group: _Group, call: AgentToolCall, token: Token) -> None:
        tool = self._tools[call.name]
        outcome = await self._outcome(tool, call, token)
        if self._running.pop(call.id, None) is None:
            return  # stopped meanwhile: it was settled, this result is late
        group.left.discard(call.id)
        group.follow_up = group.follow_up or tool.follow_up
        if group.left & self._running.keys():
            self._settle(call.id, outcome)
        elif group.follow_up:
            await self._go_on(call.id, outcome)
        else:
            self._settle(call.id, outcome)
            await self._flush()

    async def _go_on(self, call_id: str, outcome: ToolOutcome) -> None:
        try:
            await self._capability.resolve(call_id, outcome)
        except PilothouseError as error:
            logger.warning("the agent did not go on after a client tool: %s", error)

    async def _outcome(self, tool: ClientTool, call: AgentToolCall, token: Token) -> ToolOutcome:
        if problems := problems_of(dict(call.args), tool.parameters):
            return Err("invalid arguments: " + "; ".join(problems))
        if self._guard is None or tool.idempotent:
            return await tool.run(call.args, token)
        return await self._guarded(self._guard, tool, call, token)

    async def _guarded(
        self, guard: ToolGuard, tool: ClientTool, call: AgentToolCall, token: Token
    ) -> ToolOutcome:
        """Claim, run, record, settle; what cannot be claimed or is in doubt is not run (AG-156)."""
        thread_id = str(getattr(self._agent, "thread_id", "") or "")
        try:
            claim = await guard.claim(thread_id, call.id)
        except Exception:
            logger.exception("the guard of client tools failed")
            return Err(IN_DOUBT)
        if isinstance(claim, Recorded):
            return claim.outcome
        if not isinstance(claim, Claimed):
            return Err(IN_DOUBT)
        outcome = await tool.run(call.args, token)
        try:
            await guard.record(thread_id, call.id, outcome)
        except Exception:
            logger.exception("the guard of client tools failed")
        return outcome


__all__ = ["ClientTool", "ClientToolRunner"]
