"""The status machine that all agents share: an attempt is known by its identity (AG-40 … AG-43)."""

from __future__ import annotations

import asyncio

from pilothouse.agents.operation import Operation
from pilothouse.agents.surface import Attempt, Surface
from pilothouse.core.display import Display
from pilothouse.testing import StepClock


async def test_the_end_of_another_attempt_touches_nothing() -> None:
    """AG-43, §3.16: run A was stopped, run B lives, A's end arrives, twice."""
    clock = StepClock()
    surface = Surface("x", clock, Display(clock.monotonic))
    loop = asyncio.get_running_loop()
    first, second = (Attempt(name, Operation(loop, name), f"{name}#1") for name in "ab")
    with surface._batch():
        surface._admit(first)
    surface._end(first, "aborted")
    with surface._batch():
        surface._admit(second)
        surface._display.open("m")
    for _ in range(2):
        surface._end(first, "error")
    assert (surface.status.get(), surface.is_loading.get()) == ("running", True)
    assert surface.messages.get()[0].delivery.phase == "streaming"
    surface._end(second, "success")
    assert surface.messages.get()[0].delivery.outcome == "success"
    assert surface.status.get() == "idle"
