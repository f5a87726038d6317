"""The short way for text that flows says what the long one says, whatever comes in between (RC-17 … RC-20)."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from pilothouse.contracts import RunPort
from pilothouse.events import (
    ArgumentsTold,
    CallHeartbeat,
    Completed,
    Delta,
    DeltaBody,
    MessageAdded,
    PartialSaved,
    ReasoningTold,
    RunEnded,
    TextTold,
    TurnEnded,
    TurnStarted,
)
from pilothouse.journal import MemoryJournal
from pilothouse.messages import Message, Text
from pilothouse.records import Record, RunSpec, Start
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunLimits
from pilothouse.testing import FaultyJournal, ScriptedRuntime

END = (TurnEnded(1), RunEnded(Completed()))

Told = tuple[str, Any]


def script(seed: int) -> list[Told]:
    """Pieces of two texts of two messages, and what may come in between."""
    rng = random.Random(seed)
    out: list[Told] = []
    for _ in range(120):
        match rng.randrange(12):
            case 0:
                out.append(("tell", ReasoningTold("m1", 2, "hm" * rng.randrange(3))))
            case 1:
                out.append(("tell", ArgumentsTold("m1", 3, "c1", "{" * rng.randrange(3), tool="look")))
            case 2:
                out.append(("tell", CallHeartbeat("c9", 1)))
            case 3:
                out.append(("text", ("m1", 0, rng.choice(["", 7, None, b"no"]))))
            case 4:
                out.append(("whole", "m1"))
            case 5:
                out.append(("tell", TextTold("m1", 0, "by hand", rng.randrange(9))))
            case _:
                name, index = rng.choice(["m1", "m1", "m2"]), rng.choice([0, 0, 0, 1])
                out += [("text", (name, index, "x" * rng.randrange(1, 9)))] * rng.randrange(1, 9)
    return out


async def played(told: list[Told], *, flowing: bool, slow: bool) -> tuple[list[DeltaBody], list[object]]:
    """What a run publishes of it: the deltas, and the saved fragments."""
    whole: set[str] = set()

    async def talk(_start: Start, port: RunPort) -> None:
        await port.record(TurnStarted(1))
        open_: dict[tuple[str, int], Callable[[str], None]] = {}
        for what, item in told:
            if what == "tell":
                port.tell(item)
            elif what == "whole":
                if item not in whole:
                    whole.add(item)
                    await port.record(MessageAdded(Message(item, "assistant", (Text("done"),)), 1))
            elif flowing:
                name, index, text = item
                if (name, index) not in open_:
                    open_[name, index] = port.flow(name, index)  # type: ignore[attr-defined]
                if isinstance(text, str):
                    open_[name, index](text)
                else:
                    with pytest.raises(TypeError, match="a piece of text is"):
                        open_[name, index](text)
            else:
                port.tell(TextTold(*item))

    journal = FaultyJournal(MemoryJournal()) if slow else MemoryJournal()
    limits = RunLimits(partial_bytes=40)
    async with RunController(
        ScriptedRuntime(talk, *END), journal=journal, limits=limits, follower_buffer=4_096
    ) as runs:
        run = await runs.start(RunSpec("r1", "t1", (Message("u", "user", (Text("hi"),)),)), until="accepted")
        async with run.stream() as items:
            seen = [item async for item in items]
    deltas = [item.body for item in seen if isinstance(item, Delta)]
    assert [item.n for item in seen if isinstance(item, Delta)] == list(range(1, len(deltas) + 1))
    facts = [item.fact for item in seen if isinstance(item, Record)]
    return deltas, [fact for fact in facts if isinstance(fact, PartialSaved)]


@pytest.mark.parametrize("slow", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("seed", range(12))
async def test_it_says_what_tell_says(seed: int, slow: bool, caplog: pytest.LogCaptureFixture) -> None:
    """RC-17, RC-19, RC-20: the same pieces, offsets and fragments; what is no text is refused, where `tell` drops it with a word."""
    told = script(seed)
    caplog.set_level(logging.WARNING, "pilothouse.runs")
    plain = await played(told, flowing=False, slow=slow)
    assert await played(told, flowing=True, slow=slow) == plain
    assert plain[0]
    assert plain[1]


async def test_nothing_is_said_behind_an_end() -> None:
    """RC-18: after the end of its run a text that is still open is dropped, and so is one that is opened then."""
    kept: list[Any] = []

    async def talk(_start: Start, port: Any) -> None:
        await port.record(TurnStarted(1))
        say = port.flow("m1", 0)
        say("one")
        kept.extend([port, port._live, say])

    async with RunController(ScriptedRuntime(talk, *END)) as runs:
        run = await runs.start(RunSpec("r1", "t1", (Message("u", "user", (Text("hi"),)),)), until="accepted")
        async with run.stream() as items:
            seen = [item.body async for item in items if isinstance(item, Delta)]
        assert [body.text for body in seen if isinstance(body, TextTold)] == ["one"]
        port, live, say = kept
        assert live.ring.told == 1
        say("two")
        port.flow("m1", 0)("three")
        assert live.ring.told == 1
