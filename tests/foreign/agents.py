"""What the foreign clients talk to: a scripted model that answers by the words of the last user message.

A "hold" in a script waits until the test writes a byte into the FIFO named by HELD_GATE, as in the other tests that are
processes.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from pilothouse import AgentController, tool
from pilothouse.loop.context import ToolContext
from pilothouse.messages import Usage
from pilothouse.responses import ModelRequest
from pilothouse.testing.scripted import Cut, Hold, ScriptedProvider, call, failure, thought

GATE = os.environ["HELD_GATE"]
_releasing: set[asyncio.Task[None]] = set()


def gate() -> Hold:
    """A place that the test opens with a byte."""
    hold = Hold()
    task = asyncio.get_running_loop().create_task(_release(hold))
    _releasing.add(task)
    task.add_done_callback(_releasing.discard)
    return hold


async def _release(hold: Hold) -> None:
    await hold.reached()
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
    try:
        await passed
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    hold.release()


@tool(effect="read")
async def tide(place: str) -> str:
    """Tells the tide at a place."""
    return f"3.1 m at {place}"


@tool(approval=True)
async def buy(what: str) -> str:
    """Buys something."""
    return f"bought {what}"


@tool(effect="human")
async def question(ctx: ToolContext[Any]) -> str:
    """Asks the user."""
    return "they said " + str(await ctx.ask("Which colour?", schema=str))


def answer(request: ModelRequest) -> Any:
    """The script of one response."""
    said = next(message.text for message in reversed(request.messages) if message.role == "user")
    last, word = request.messages[-1], said.split()[0]
    if last.role == "tool":
        results = [message.text for message in request.messages if message.role == "tool"]
        if word == "tidal":
            return [thought("I know now. "), "The answer: ", gate(), results[-1]]
        return [thought("I know now. "), "The answer: ", results[-1]]
    made = SCRIPTS.get(word)
    return [f"You said {said}."] if made is None else made(said, len(request.messages))


def _pieces(said: str, _: int) -> list[Any]:
    return [f"{number} " for number in range(int(said.split()[1]))]


SCRIPTS: dict[str, Any] = {
    "think": lambda *_: [thought("Let me "), thought("see. "), "It is ", "clear.", Usage(11, output=7)],
    "tide": lambda _, n: ["Let me look. ", call("tide", {"place": "Bréhat"}, call_id=f"tide-{n}")],
    "tidal": lambda _, n: ["Let me look. ", call("tide", {"place": "Bréhat"}, call_id=f"tide-{n}")],
    "both": lambda _, n: [
        call("tide", {"place": "Bréhat"}, call_id=f"a-{n}"),
        call("tide", {"place": "Ouessant"}, call_id=f"b-{n}"),
    ],
    "map": lambda _, n: ["Here: ", call("show_map", {"place": "Bréhat"}, call_id=f"map-{n}")],
    "buy": lambda _, n: ["I would buy. ", call("buy", {"what": "tea"}, call_id=f"buy-{n}")],
    "ask": lambda _, n: [call("question", {}, call_id=f"ask-{n}")],
    "hold": lambda *_: ["First half. ", gate(), "Second half."],
    "count": _pieces,
    "refused": lambda *_: failure("auth", "HTTP 401 from the provider", status=401),
    "broken": lambda *_: ["Half an ", failure("server_error", "HTTP 500 from the provider", status=500)],
    "undeclared": lambda *_: ["Half an ", Cut()],
}

agent = AgentController(ScriptedProvider(answer, repeat=True), tools=[tide, buy, question])
