"""Backends for the conformance suite of agents: our conversation, scripted endpoints, our server, a bare agent."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pilothouse.agents.local import LocalAgent
from pilothouse.agents.operation import Later, Operation
from pilothouse.agents.source import LocalSource
from pilothouse.agents.surface import Attempt, Published, Surface
from pilothouse.clock import SystemClock
from pilothouse.conversation.controller import AgentController
from pilothouse.errors import AgentBusy, RunConflict, UsageError
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.config import LoopConfig, RetryPolicy
from pilothouse.loop.tools import tool
from pilothouse.messages import Usage
from pilothouse.remote import AGUIAgent, RunControlClient
from pilothouse.remote.function import FunctionWire
from pilothouse.server.app import Server
from pilothouse.server.run import serve_forever
from pilothouse.testing import AgentDriver, FakeBackend, ScriptedEndpoint, ScriptedProvider
from pilothouse.testing import endpoint as wire
from pilothouse.testing.agent_suite.driving import Ask, Fail, HandOver, Lose, Say, Think, Use
from pilothouse.testing.scripted import Cut, Hold, call, failure, thought
from pilothouse.transport import BrokenBody, Transport

ONE_ATTEMPT = LoopConfig(retry=RetryPolicy(attempts=1), max_empty_retries=0)


class ProviderPlans:
    """Plans as scripts of a provider: each call of a tool ends one response."""

    def __init__(self) -> None:
        self.provider = ScriptedProvider()
        self.results: dict[str, str] = {}
        self._calls = 0

    def plan(self, *steps: Any) -> None:
        script: list[Any] = []
        for step in steps:
            match step:
                case Say(pieces=pieces):
                    script += pieces
                case Think(pieces=pieces):
                    script += [thought(piece) for piece in pieces]
                case Use(name=name, args=args, result=result):
                    self.results[name] = result
                    script = self._close(script, name, dict(args))
                case HandOver(name=name, args=args):
                    script = self._close(script, name, dict(args))
                case Ask():
                    script = self._close(script, "risky", {})
                case Fail(message=message):
                    script.append(failure("server_error", message))
                case Lose():
                    script.append(Cut())
                case _:
                    script.append(step)
        if script:
            self.provider.add([*script, Usage(3, output=2, total=5)] if _whole(script) else script)

    def _close(self, script: list[Any], name: str, args: dict[str, Any]) -> list[Any]:
        self._calls += 1
        self.provider.add([*script, call(name, args, call_id=f"c{self._calls}"), Usage(3, output=2, total=5)])
        return []

    def tools(self) -> list[Any]:
        @tool
        def look(at: str) -> str:
            """Looks.

            Args:
                at: where to.
            """
            return self.results["look"]

        @tool(approval=True)
        def risky() -> str:
            """Does something."""
            return "done"

        return [look, risky]


def _whole(script: list[Any]) -> bool:
    return not any(isinstance(step, Cut) or hasattr(step, "error") for step in script)


class LocalDriver(AgentDriver):
    capabilities = frozenset(
        {"tools", "reasoning", "usage", "interrupts", "client_tools", "queue", "history", "lose", "check"}
    )

    def __init__(self, journal: Any = None) -> None:
        self.plans = ProviderPlans()
        self.plan = self.plans.plan
        self.journal = journal or MemoryJournal()
        self.made: list[Any] = []

    async def make(self) -> LocalAgent:
        controller = AgentController(
            self.plans.provider, tools=self.plans.tools(), config=ONE_ATTEMPT, journal=self.journal
        )
        return await self._open(controller)

    async def _open(self, controller: AgentController) -> LocalAgent:
        agent = LocalAgent(controller)
        self.made += [agent, controller]
        return await agent.open()

    async def another(self) -> LocalAgent:
        controller = self.made[-1]
        return await self._open(controller.sibling(controller.thread_id))

    async def aclose(self) -> None:
        for item in self.made:
            await item.aclose()


class WirePlans:
    """Plans as AG-UI events."""

    def __init__(self, add: Any) -> None:
        self._add = add
        self._number = 0

    def plan(self, *steps: Any) -> None:
        number = self._number = self._number + 1
        events: list[Any] = [wire.started()]
        message, part, opened = f"m{number}", 0, False
        end: Any = wire.finished({"type": "success"}, usage=[{"inputTokens": 3, "totalTokens": 5}])

        def close() -> None:
            nonlocal opened
            if opened:
                events.append({"type": "TEXT_MESSAGE_END", "messageId": message})
            opened = False

        for step in steps:
            match step:
                case Say(pieces=pieces):
                    if not opened:
                        events.append(
                            {"type": "TEXT_MESSAGE_START", "messageId": message, "role": "assistant"}
                        )
                        opened = True
                    events += [
                        {"type": "TEXT_MESSAGE_CONTENT", "messageId": message, "delta": piece}
                        for piece in pieces
                    ]
                case Think(pieces=pieces):
                    close()
                    events += wire.reasoning(f"r{number}.{part}", *pieces)
                case Use(name=name, args=args, result=result):
                    close()
                    call_id = f"c{number}.{part}"
                    events += wire.tool_call(call_id, name, _json(args), parent=message)
                    events.append(wire.result(call_id, result))
                    part += 1
                    message = f"m{number}.{part}"
                case HandOver(name=name, args=args):
                    close()
                    events += wire.tool_call(f"c{number}.{part}", name, _json(args), parent=message)
                case Ask():
                    asked = {"id": f"i{number}", "reason": "confirmation", "message": "ok?"}
                    end = wire.finished({"type": "interrupt", "interrupts": [asked]})
                case Fail(message=said):
                    close()
                    end = wire.failed(said, "server_error")
                case Lose():
                    end = wire.Cut()
                    break
                case _:
                    events.append(step)
        if not isinstance(end, wire.Cut):
            close()
        self._add([*events, end])


def _json(args: Any) -> str:
    import msgspec

    return msgspec.json.encode(dict(args)).decode()


_WIRE = frozenset({"tools", "reasoning", "usage", "interrupts", "client_tools", "queue", "lose"})


class FakeDriver(AgentDriver):
    capabilities = _WIRE

    def __init__(self) -> None:
        self.backend = FakeBackend()
        self.plan = WirePlans(self.backend.then).plan
        self.made: list[AGUIAgent] = []

    async def make(self) -> AGUIAgent:
        agent = AGUIAgent("fake://agent", transport=FunctionWire(self.backend.run))
        self.made.append(agent)
        return await agent.open()

    async def aclose(self) -> None:
        for agent in self.made:
            await agent.aclose()


class EndpointDriver(AgentDriver):
    capabilities = _WIRE

    def __init__(self) -> None:
        self.endpoint = ScriptedEndpoint()
        self.plan = WirePlans(self.endpoint.then).plan
        self.made: list[AGUIAgent] = []

    async def make(self) -> AGUIAgent:
        await self.endpoint.__aenter__()
        agent = AGUIAgent(self.endpoint.url)
        self.made.append(agent)
        return await agent.open()

    async def aclose(self) -> None:
        for agent in self.made:
            await agent.aclose()
        if self.made:
            await self.endpoint.__aexit__()


class Line:
    """A `Wire` over HTTP whose connections can be broken."""

    def __init__(self) -> None:
        self._wire = Transport()
        self._broken = asyncio.Event()

    def break_off(self) -> None:
        """Breaks what is open; connections that are made from now on hold."""
        self._broken.set()
        self._broken = asyncio.Event()

    @asynccontextmanager
    async def request(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async with self._wire.request(*args, **options) as answer:
            yield _Breakable(answer, self._broken)

    async def aclose(self) -> None:
        await self._wire.aclose()


class _Breakable:
    def __init__(self, answer: Any, broken: asyncio.Event) -> None:
        self._answer = answer
        self._broken = broken
        self.status, self.headers, self.read_error = answer.status, answer.headers, answer.read_error

    async def read(self) -> bytes:
        reading, broken = (
            asyncio.ensure_future(self._answer.read()),
            asyncio.ensure_future(self._broken.wait()),
        )
        try:
            await asyncio.wait({reading, broken}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise BrokenBody("the line broke")
            return reading.result()
        finally:
            for task in (reading, broken):
                task.cancel()
            await asyncio.gather(reading, broken, return_exceptions=True)


class ServerDriver(AgentDriver):
    """`AGUIAgent` against our server, on a real port; `line` leads to it, `control` is a client of its own."""

    capabilities = frozenset(
        {"tools", "reasoning", "usage", "interrupts", "client_tools", "queue", "history", "check"}
    )

    def __init__(self) -> None:
        self.plans = ProviderPlans()
        self.plan = self.plans.plan
        self.line = Line()
        self.made: list[Any] = []
        self.serving: asyncio.Task[Any] | None = None

    async def make(self, **options: Any) -> AGUIAgent:
        template = AgentController(self.plans.provider, tools=self.plans.tools(), config=ONE_ATTEMPT)
        ready = asyncio.get_running_loop().create_future()
        self.serving = asyncio.create_task(
            serve_forever(Server({"default": template}), "127.0.0.1", 0, ready=ready.set_result)
        )
        await asyncio.wait({self.serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        self.url = ready.result().rstrip("/")
        self.control = RunControlClient(self.url)
        return await self._agent(None, **options)

    async def _agent(self, thread_id: str | None, **options: Any) -> AGUIAgent:
        control = RunControlClient(self.url)
        agent = AGUIAgent(
            f"{self.url}/agui/default", control=control, thread_id=thread_id, transport=self.line, **options
        )
        self.made += [agent, control]
        return await agent.open()

    async def another(self) -> AGUIAgent:
        return await self._agent(self.made[0].thread_id)

    async def aclose(self) -> None:
        for item in [*self.made, self.line]:
            await item.aclose()
        if self.made:
            await self.control.aclose()
        if self.serving is not None:
            if not self.serving.done():
                os.kill(os.getpid(), signal.SIGTERM)
            await self.serving


class Minimal(Published):
    """The least that is an agent: written by hand over a list of planned texts."""

    client_tools = check_status = None

    def __init__(self, plans: list[Any]) -> None:
        clock = SystemClock()
        super().__init__(Surface("minimal", clock, LocalSource(clock.monotonic, {})))
        self.interrupt = self.is_input_blocked = self.subagents = self.usage = None  # type: ignore[assignment]
        self._plans = plans
        self._keys: dict[str, Any] = {}
        self._again = False
        self._runs = 0

    def submit(self, message=None, *, state=None, cancel=None, key=None, when_busy="raise",
               stop_on_cancel=False, **_: Any) -> Operation:  # fmt: skip
        loop = self._surface.tasks.enter("submit")
        if message is not None and not message:
            raise UsageError("an empty message")
        if state is not None and not hasattr(state, "keys"):
            raise TypeError("state must be a mapping")
        if when_busy not in ("raise", "drop"):
            raise UsageError(f"when_busy {when_busy!r} is not known")
        if key in self._keys:
            if self._keys[key][0] != message:
                raise RunConflict(key)
            return self._keys[key][1]
        if self._surface.attempt is not None:
            if when_busy == "drop":
                return Operation.settled("nothing")
            raise AgentBusy("submit", "running")
        if cancel is not None and cancel.is_set():
            return Operation.settled("aborted")
        op = self._start(message)
        if key is not None:
            self._keys[key] = (message, op)
        if cancel is not None:
            cancel.on_set(lambda: loop.call_soon_threadsafe(self.stop))
        if stop_on_cancel:
            op.stop_on_cancel(self.stop)
        return op

    def _start(self, message: str | None, cut: int | None = None) -> Operation:
        number, self._runs = str(self._runs), self._runs + 1
        attempt = Attempt(f"run{number}")
        with self._surface.batch():
            if cut is not None:
                self._surface.display.cut(cut)
            if message is not None:
                self._surface.display.add_user(f"u{number}", message)
            self._surface.admit(attempt)
        attempt.task = self._surface.tasks.spawn(self._run(attempt, f"a{number}"), "run")
        return attempt.op

    async def _run(self, attempt: Attempt, name: str) -> None:
        from pilothouse.agent_errors import AgentError

        for step in self._plans.pop(0):
            if isinstance(step, Hold):
                await step.wait()
            elif isinstance(step, Say):
                with self._surface.batch():
                    self._surface.display.open(name)
                    for piece in step.pieces:
                        self._surface.display.text(name, piece)
            elif isinstance(step, Fail):
                error = AgentError(step.message, "server", retryable=True)
                self._again = True
                self._surface.end(attempt, "error", error=error)
                attempt.op.settle("error")
                return
        self._again = False
        self._surface.end(attempt, "success")
        attempt.op.settle("success")

    def stop(self, *, grace=None):
        self._surface.tasks.enter("stop")
        attempt = self._surface.attempt
        if attempt is None:
            return Later.settled("nothing")
        attempt.task.cancel()
        self._again = True
        self._surface.end(attempt, "aborted")
        attempt.op.settle("aborted")
        return Later.settled("stopped")

    def _users(self) -> int:
        return max(n for n, item in enumerate(self._surface.display.messages, 1) if item.role == "user")

    def retry(self) -> Operation:
        self._surface.tasks.enter("retry")
        if self._surface.attempt is not None or not self._again:
            return Operation.settled("nothing")
        return self._start(None, cut=self._users())

    def regenerate(self, target) -> Operation:
        from pilothouse.agents.given import target_of

        self._surface.tasks.enter("regenerate")
        if self._surface.attempt is not None:
            raise AgentBusy("regenerate", "running")
        _, user = target_of(self.messages.get(), target)
        return self._start(None, cut=user + 1)

    async def aclose(self) -> None:
        await self._surface.tasks.aclose()


class MinimalDriver(AgentDriver):
    def __init__(self) -> None:
        self.plans: list[Any] = []
        self.made: list[Minimal] = []

    def plan(self, *steps: Any) -> None:
        self.plans.append(steps)

    async def make(self) -> Minimal:
        self.made.append(Minimal(self.plans))
        return self.made[-1]

    async def aclose(self) -> None:
        for agent in self.made:
            await agent.aclose()


def tasks_of(agent: Any) -> list[asyncio.Task[Any]]:
    """What runs for an agent on this loop."""
    return [task for task in asyncio.all_tasks() if task.get_name().startswith(f"pilothouse-{agent.name}-")]
