"""What a loop carries from one run of a thread to the next changes nothing of what is sent and recorded."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator, Sequence

import msgspec

from pilothouse.events import ModelRequested, Noted
from pilothouse.journal import MemoryJournal
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.subagent import agent_tool
from pilothouse.messages import Image, Message, Model, Text, Usage
from pilothouse.records import Parent, RunSpec
from pilothouse.responses import (
    BlockEnded,
    ModelRequest,
    ProviderEvent,
    ReasoningDelta,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
)
from pilothouse.runs.controller import RunController
from pilothouse.testing import ScriptedProvider
from pilothouse.testing.scripted import call


async def add(a: int, b: int) -> int:
    """Add.

    Args:
        a: one
        b: the other
    """
    return a + b


def provider() -> ScriptedProvider:
    return ScriptedProvider(
        "one",
        [call("add", {"a": 1, "b": 2})],
        ["three", Usage(input=900, output=2)],
        "four",
        "edited",
        "back again",
        [call("add", {"a": 1, "b": 2})],
        "the end",
    )


class Forgetful:
    """Answers, and does not remember what it was asked."""

    tag = "forgetful"
    default_model = Model("m", "forgetful", 0)

    async def stream(self, _request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        yield TextDelta(0, "seen")
        yield StreamEnd("complete")

    async def aclose(self) -> None:
        pass


def specs() -> list[RunSpec]:
    """A thread that goes on, is edited in its middle, and goes on from there and from where it was left."""
    hangs: Sequence[str | None] = (None, "r1", "r2", "r1", "r3", "r4")
    return [
        RunSpec(
            f"r{number}",
            "t",
            (Message(f"q{number}", "user", (Text(f"question {number} " + "x" * number),)),),
            parent=None if parent is None else Parent(parent),
        )
        for number, parent in enumerate(hangs, 1)
    ]


async def _requests(loops: Sequence[AgentLoop]) -> list[object]:
    """Digest, estimate and chain of every request; the loops take turns."""
    told: list[object] = []
    runs = RunController(loops[0])
    for number, spec in enumerate(specs()):
        following = RunController(loops[number % len(loops)], journal=runs.journal)
        assert (await (await following.start(spec)).wait()).view.status == "completed"
        told += [
            record.fact
            for record in await following.events(spec.run_id)
            if isinstance(record.fact, ModelRequested | Noted)
        ]
    await runs.aclose()
    return told


async def test_requests_are_the_same_with_what_was_carried_and_without() -> None:
    """LP-12, LP-40, LP-50: estimate, chain and digest, also where the thread was edited and its provider counted."""
    model = provider()
    one = AgentLoop(model, tools=[add])
    model = provider()
    fresh = [AgentLoop(model, tools=[add]) for _ in specs()]
    carried, anew = await _requests([one]), await _requests(fresh)
    assert len(carried) > 12
    assert carried == anew


async def test_the_bytes_of_media_go_with_their_run() -> None:
    """AC-116: they are loaded for a run; a thread that may go on does not keep them in memory."""
    size = 1_000_000
    loop = AgentLoop(Forgetful())

    async def ask(number: int) -> None:
        image = Image("image/png", data=bytes([number]) * size)
        spec = RunSpec(f"r{number}", f"t{number}", (Message(f"m{number}", "user", (image,)),))
        async with RunController(loop) as runs:
            assert (await (await runs.start(spec)).wait()).view.status == "completed"

    await ask(0)
    tracemalloc.start()
    try:
        for number in range(1, 6):
            await ask(number)
        assert tracemalloc.get_traced_memory()[0] < 2 * size
    finally:
        tracemalloc.stop()


async def test_what_a_sub_agent_was_asked_goes_with_its_run() -> None:
    """RC-73: its thread will not go on, so nothing is kept for a next run of it."""
    size = 200_000

    class Asks(Forgetful):
        async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
            if request.messages[-1].role == "tool":
                yield TextDelta(0, "thanks")
                yield StreamEnd("complete")
            else:
                task = '{"task": "' + request.messages[-1].text * size + '"}'
                yield ToolCallDelta(0, "c1", "scout", task)
                yield StreamEnd("tool_calls")

    scout = agent_tool(AgentLoop(Forgetful()), name="scout", description="Looks around.")
    loop = AgentLoop(Asks(), tools=[scout])
    assert (await loop.ask("a")).text == "thanks"
    tracemalloc.start()
    try:
        for word in "bcdefgh":
            assert (await loop.ask(word)).text == "thanks"
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 4 * size
    finally:
        tracemalloc.stop()


async def test_what_a_model_said_is_sent_again_in_the_same_bytes_in_every_later_run() -> None:
    """LP-41, PV-13: the prefix of a request stays as it was, also after a restart, so that a provider's cache is hit."""
    sent: list[list[bytes]] = []

    def seen(request: ModelRequest) -> str:
        sent.append([msgspec.json.encode(message) for message in request.messages])
        return "said"

    thinking = BlockEnded(0, raw={"type": "thinking", "signature": "s", "data": {"z": 1, "a": 2}})
    asked = [
        ReasoningDelta(0, "hm"),
        thinking,
        ToolCallDelta(1, "c1", "add", '{"b": 2, "a": 1}', "c1"),
        BlockEnded(1, provider_data={"z": "1", "y": [{"k": 1, "j": 2}]}),
    ]
    provider = ScriptedProvider(asked, seen, seen, seen)
    journal = MemoryJournal()
    for number, parent in enumerate((None, "r1", "r2"), 1):
        async with RunController(AgentLoop(provider, tools=[add]), journal=journal) as runs:  # a restart each
            question = Message(f"q{number}", "user", (Text("and?"),))
            spec = RunSpec(f"r{number}", "t", (question,), parent=None if parent is None else Parent(parent))
            assert (await (await runs.start(spec)).wait()).view.status == "completed"
    assert [len(messages) for messages in sent] == [3, 5, 7]
    assert sent[1][:3] == sent[0]
    assert sent[2][:5] == sent[1]
