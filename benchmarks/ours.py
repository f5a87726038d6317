"""The same work through Pilothouse, on two levels: a run (what `RunController` gives) and a send of a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from pilothouse.conversation.controller import AgentController
from pilothouse.events import Delta, TextTold
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.agent import AgentLoop
from pilothouse.messages import Message, Model, Text
from pilothouse.records import RunSpec
from pilothouse.responses import (
    ModelRequest,
    ProviderEvent,
    ResponseStarted,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
)
from pilothouse.runs.controller import RunController

from .floor import DELTA, PROMPT


class Fake:
    """A model in this process that answers at once."""

    tag = "fake"
    default_model = Model("fake", "fake", 200_000)

    def __init__(self) -> None:
        self.deltas = 0
        self.pause = False
        self.text = "ok"

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        yield ResponseStarted()
        calls = request.settings.extra.get("calls", 0)
        done = sum(message.role == "tool" for message in request.messages)
        if done < calls:
            call_id = f"c{done}"
            # Other arguments each time: the same call over and over is what the repetition breaker refuses.
            yield ToolCallDelta(0, call_id, "add", f'{{"a": {done}, "b": 2}}', call_id)
            yield StreamEnd("tool_calls")
            return
        for _ in range(self.deltas):
            if self.pause:
                await asyncio.sleep(0)
            yield TextDelta(0, DELTA)
        if not self.deltas:
            yield TextDelta(0, self.text)
        yield StreamEnd("complete")

    async def aclose(self) -> None:
        pass


async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one
        b: the other
    """
    return a + b


def loop(fake: Fake, *, tools: bool = False) -> AgentLoop:
    """An agent loop with every guard at its default."""
    if tools:
        return AgentLoop(fake, system_prompt="Be helpful.", tools=[add])
    return AgentLoop(fake, system_prompt="Be helpful.")


class Runs:
    """Turns as runs of one controller."""

    def __init__(self, fake: Fake, journal: object = None, *, tools: bool = False) -> None:
        self.controller = RunController(loop(fake, tools=tools), journal=journal or MemoryJournal())
        self._count = 0

    async def turn(self, calls: int = 0) -> str:
        self._count += 1
        run_id = f"r{self._count}"
        options = {"loop.settings": {"extra": {"calls": calls}}} if calls else {}
        message = Message(f"{run_id}.0", "user", (Text(PROMPT),))
        run = await self.controller.start(
            RunSpec(run_id, run_id, (message,), options=options), until="accepted"
        )
        result = await run.wait()
        return result.view.status

    async def stream(self) -> int:
        """Deltas that reach one follower."""
        self._count += 1
        run_id = f"r{self._count}"
        message = Message(f"{run_id}.0", "user", (Text(PROMPT),))
        run = await self.controller.start(RunSpec(run_id, run_id, (message,)), until="accepted")
        seen = 0
        async with run.stream() as items:
            async for item in items:
                if type(item) is Delta and type(item.body) is TextTold:
                    seen += len(item.body.text)
        return seen // len(DELTA)


async def send(fake: Fake) -> str:
    """One send of a fresh conversation to its end."""
    agent = AgentController(fake, system_prompt="Be helpful.")
    reply = await agent.send(PROMPT)
    text = (await reply.result()).text
    await agent.aclose()
    return text


async def stream_to_callback(fake: Fake, count: int) -> int:
    """Deltas that reach one callback of a conversation."""
    seen = 0

    def chunk(piece: str, _: str) -> None:
        nonlocal seen
        seen += 1

    agent = AgentController(fake, on_response_chunk=chunk)
    reply = await agent.send(PROMPT)
    await reply.wait()
    await agent.aclose()
    assert seen == count, (seen, count)
    return seen
