"""The status machine that all agents share: an attempt is known by its identity (AG-40 … AG-43)."""

from __future__ import annotations

import inspect

import pytest

from pilothouse.agent_contracts import Agent
from pilothouse.agents import LocalAgent
from pilothouse.agents.surface import Attempt, Surface
from pilothouse.core.agui.reduce import Reducer
from pilothouse.remote import AGUIAgent
from pilothouse.testing import StepClock


async def test_the_end_of_another_attempt_touches_nothing() -> None:
    """AG-43, §3.16: run A was stopped, run B lives, A's end arrives, twice."""
    clock = StepClock()
    surface = Surface("x", clock, Reducer(clock.monotonic))
    first, second = (Attempt(name) for name in "ab")
    with surface.batch():
        surface.admit(first)
    surface.end(first, "aborted")
    with surface.batch():
        surface.admit(second)
        surface.display.open("m")
    for _ in range(2):
        surface.end(first, "error")
    assert (surface.status.get(), surface.is_loading.get()) == ("running", True)
    assert surface.messages.get()[0].delivery.phase == "streaming"
    surface.end(second, "success")
    assert surface.messages.get()[0].delivery.outcome == "success"
    assert surface.status.get() == "idle"


@pytest.mark.parametrize("kind", [LocalAgent, AGUIAgent])
def test_the_actions_are_those_of_the_contract(kind: type) -> None:
    """§2, AG-74: no field for results of tools, which go through `client_tools`; regenerate says what retry is not (AG-105)."""
    for name in ("submit", "stop", "retry", "regenerate"):
        found, wanted = (
            [
                (one.name, one.kind, one.default)
                for one in inspect.signature(getattr(each, name)).parameters.values()
            ]
            for each in (kind, Agent)
        )
        assert found == wanted, name
    assert "tools may run anew" in inspect.getdoc(Agent.regenerate)
