"""A scripted agent for tests that are processes: its model and its tools wait where the test tells them to.

A wait ends when the test writes a byte into the FIFO named by HELD_GATE. What happened is written, a line a time, to the
file named by HELD_LOG, so that a test can count effects over crashes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from pilothouse import AgentController, tool
from pilothouse.messages import Model
from pilothouse.responses import (
    ModelRequest,
    ProviderEvent,
    ResponseStarted,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
)

GATE = os.environ["HELD_GATE"]
LOG = Path(os.environ["HELD_LOG"])


def note(line: str) -> None:
    with LOG.open("a") as log:
        log.write(f"{line}\n")


async def wait(where: str) -> None:
    """Waits until the test writes a byte."""
    loop = asyncio.get_running_loop()
    passed = loop.create_future()
    fd = os.open(GATE, os.O_RDWR | os.O_NONBLOCK)

    def ready() -> None:
        try:
            os.read(fd, 1)
        except BlockingIOError:  # another waiter took the byte
            return
        if not passed.done():
            passed.set_result(None)

    loop.add_reader(fd, ready)
    note(f"waiting {where}")
    try:
        await passed
    finally:
        loop.remove_reader(fd)
        os.close(fd)


@tool
async def ring_bell(times: int = 1) -> str:
    """Ring the bell: an effect that must not be repeated."""
    note(f"rang {times}")
    await wait("tool")
    return f"rang {times}"


class HeldModel:
    """Answers by the words of the last user message: "hold" waits in mid-answer, "bell" calls the tool first."""

    tag = "held"
    default_model = Model("held-1", "held", 100_000)

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        note("asked")
        yield ResponseStarted("response")
        last = request.messages[-1]
        said = next(message.text for message in reversed(request.messages) if message.role == "user")
        if "bell" in said and last.role == "user":
            yield ToolCallDelta(0, f"bell-{len(request.messages)}", "ring_bell", '{"times": 2}')
            yield StreamEnd("tool_calls")
            return
        if last.role == "tool":
            yield TextDelta(0, f"The bell: {last.text}")
            yield StreamEnd("complete")
            return
        yield TextDelta(0, f"You said {said}. ")
        if "hold" in said:
            yield TextDelta(0, "First half. ")
            await wait("model")
            yield TextDelta(0, "Second half.")
        yield StreamEnd("complete")

    async def aclose(self) -> None:
        pass


agent = AgentController(HeldModel(), tools=[ring_bell])
