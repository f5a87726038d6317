"""What one delta costs from the provider's event to its reader, counted in calls of Python and bytes (RC-18, RC-72, RC-77)."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import FrameType

import pilothouse
from pilothouse import AgentController
from pilothouse.events import Delta, TextTold
from pilothouse.loop.agent import AgentLoop
from pilothouse.messages import Message, Model, Text
from pilothouse.records import RunSpec
from pilothouse.responses import ModelRequest, ProviderEvent, ResponseStarted, StreamEnd, TextDelta
from pilothouse.runs.controller import RunController
from pilothouse.runs.ring import PACK
from pilothouse.runs.timing import RunTiming

OURS = str(Path(pilothouse.__file__).parent)


class Talker:
    """A model that says so many pieces, giving way before each if it is to, and before the last waits for a gate."""

    tag = "talker"
    default_model = Model("talker", "talker", 200_000)

    def __init__(self, pieces: int, *, gives_way: bool = False, gate: asyncio.Event | None = None) -> None:
        self.pieces = pieces
        self.gives_way = gives_way
        self.gate = gate
        self.waiting = 0

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        yield ResponseStarted()
        for _ in range(self.pieces):
            if self.gives_way:
                await asyncio.sleep(0)
            yield TextDelta(0, " tok")
        if self.gate is not None:
            self.waiting += 1
            await self.gate.wait()
        yield StreamEnd("complete")

    async def aclose(self) -> None:
        pass


def controller(talker: Talker) -> RunController:
    return RunController(AgentLoop(talker), timing=RunTiming(partial_interval=None))


async def read(runs: RunController, run_id: str = "r1") -> int:
    """Runs once, with a follower; returns the characters that it saw."""
    message = Message(f"{run_id}.0", "user", (Text("hi"),))
    run = await runs.start(RunSpec(run_id, run_id, (message,)), until="accepted")
    seen = 0
    async with run.stream() as items:
        async for item in items:
            if type(item) is Delta and type(item.body) is TextTold:
                seen += len(item.body.text)
    return seen


async def calls(work: Callable[[], Awaitable[object]]) -> Counter[str]:
    """How often each function of ours is entered or gone on with."""
    found: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            found[frame.f_code.co_qualname] += 1

    sys.setprofile(profile)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return found


async def each(make: Callable[[int], Callable[[], Awaitable[object]]]) -> dict[str, float]:
    """Calls a piece: what a thousand more of them add, divided."""
    few, many = await calls(make(200)), await calls(make(1_200))
    more = {name: (count - few[name]) / 1_000 for name, count in many.items()}
    return {name: count for name, count in more.items() if count > 0.05}


async def test_a_piece_of_text_is_three_calls() -> None:
    """RC-18, RC-77: taken from the provider, counted and numbered, put into the ring: nothing else, and nothing waits."""

    def make(pieces: int) -> Callable[[], Awaitable[object]]:
        async def work() -> None:
            async with controller(Talker(pieces)) as runs:
                await (await runs.start(RunSpec("r1", "r1", (Message("u", "user", (Text("hi"),)),)))).wait()

        return work

    found = await each(make)
    assert {name: round(count) for name, count in found.items()} == {
        "_Teller.consume": 1,
        "Flow.say": 1,
        "Ring.flow": 1,
    }, found


async def test_a_piece_that_is_waited_for_costs_its_reader_few_calls() -> None:
    """RC-62: a reader that is woken for each piece takes it in one step; what the model's pause costs is the way to it."""

    def make(pieces: int) -> Callable[[], Awaitable[object]]:
        async def work() -> None:
            async with controller(Talker(pieces, gives_way=True)) as runs:
                assert await read(runs) == 4 * pieces

        return work

    found = await each(make)
    telling = {name: found.pop(name) for name in ("_Teller.consume", "Flow.say", "Ring.flow")}
    assert sum(telling.values()) <= 3.1, telling
    reading = {name: found.pop(name) for name in ("Follower.__anext__", "Subscription.waiter")}
    assert sum(reading.values()) <= 3.1, reading  # `__anext__` is begun, and gone on with
    assert sum(found.values()) <= 8.1, found  # the coroutines between the task and the provider, and silence


async def test_a_piece_for_a_callback_is_four_calls_more() -> None:
    """AC-64: the conversation takes it, shows it, keeps it for the reply and tells the callback."""

    def make(pieces: int) -> Callable[[], Awaitable[object]]:
        seen: list[str] = []

        async def work() -> None:
            agent = AgentController(Talker(pieces), on_response_chunk=lambda piece, _: seen.append(piece))
            await (await agent.send("hi")).wait()
            await agent.aclose()
            assert len(seen) == pieces

        return work

    found = await each(make)
    assert sum(found.values()) <= 7.1, found


async def test_a_streamed_text_keeps_few_bytes_a_piece() -> None:
    """RC-72, RC-75: of a piece that was read and can still be read, its text and a few places in lists are kept."""
    kept: dict[int, float] = {}
    few, many = 200, 200 + 6 * PACK  # both leave as many that are not packed yet
    for pieces in (few, many):
        gate = asyncio.Event()
        talker = Talker(pieces, gives_way=True, gate=gate)
        async with controller(talker) as runs:
            gc.collect()
            tracemalloc.start()
            reading = [asyncio.ensure_future(read(runs, f"r{number}")) for number in range(50)]
            while talker.waiting < 50:
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)
            gc.collect()
            kept[pieces], _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            gate.set()
            assert await asyncio.gather(*reading) == [4 * pieces] * 50
    a_piece = (kept[many] - kept[few]) / 50 / (many - few)
    assert a_piece <= 36, a_piece
