"""Sub-agents on the AG-UI face (server page §6.2): begun, told apart from the run that called them, ended."""

from __future__ import annotations

from typing import Any

import pytest

from asgikit import Connection, ask, run_input
from pilothouse.conversation.controller import AgentController
from pilothouse.core.agui import events as agui
from pilothouse.core.agui.reduce import Reducer
from pilothouse.core.agui.verify import Verifier
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.subagent import agent_tool
from pilothouse.loop.tools import tool
from pilothouse.server.app import Server
from pilothouse.server.settings import AGUIOptions
from pilothouse.testing.scripted import Hold, ScriptedProvider, call, failure


@tool
def look(at: str) -> str:
    """Looks."""
    return f"seen {at}"


def crew(*answers: Any) -> Server:
    """An agent that sends a scout, which looks and answers."""
    scout = AgentLoop(ScriptedProvider(*answers), tools=[look])
    made = agent_tool(scout, name="scout", description="Scouts.")
    first = [call("scout", {"task": "look up"}, call_id="s")]
    agent = AgentController(ScriptedProvider(first, "Blue, it says."), tools=[made])
    return Server(
        {"default": agent}, journal=MemoryJournal(), drain_timeout=0.0, agui=AGUIOptions(verify=True)
    )


def reduced(connection: Connection, profile: agui.Profile = "1.0") -> Reducer:
    """What a client shows of it."""
    events = [agui.decode(frame.data) for frame in connection.frames]
    Verifier(profile).check_all(events)
    reducer = Reducer(lambda: 0.0)
    reducer.begin("g", "r1", continues=False)
    for event in events:
        reducer.apply(event)
    return reducer


LOOKS = [["I look. ", call("look", {"at": "sky"}, call_id="l")], ["It is", " blue."]]


async def test_a_child_is_told_apart() -> None:
    """AG-160, AG-161: its words, calls and results belong to it; nothing of them is in the conversation."""
    app = crew(*LOOKS)
    async with app.lifespan():
        connection = await ask(app, "POST", "/agui/default", run_input("t1", "r1", "which colour?"))
        reducer = reduced(connection)
        (child,) = reducer.children.values()
        assert (child.name, child.tool_call_id, child.status) == ("scout", "s", "complete")
        said = [(item.role, item.text) for item in child.display.messages]
        assert said == [("assistant", "I look. "), ("tool", "seen sky"), ("assistant", "It is blue.")]
        assert [one.name for one in child.display.calls] == ["look"]
        assert [one.name for one in reducer.display.calls] == ["scout"]
        assert "It is blue." not in [
            item.text for item in reducer.display.messages if item.role == "assistant"
        ]
        assert connection.events[-1]["outcome"] == {"type": "success"}


async def test_before_1_0_a_child_is_an_activity() -> None:
    """SV-91, AG-204: no event that a 0.0.5x client would fail on."""
    app = crew(*LOOKS)
    async with app.lifespan():
        body = run_input("t1", "r1", "which colour?")
        connection = await ask(app, "POST", "/agui/default?profile=legacy", body)
        (child,) = reduced(connection, "legacy").children.values()
        assert (child.name, child.status) == ("scout", "complete")
        assert child.display.messages[-1].text == "It is blue."


async def test_a_failed_child_is_no_failed_run() -> None:
    """AG-161."""
    app = crew(["half", failure("auth", "no")])
    async with app.lifespan():
        connection = await ask(app, "POST", "/agui/default", run_input("t1", "r1", "go"))
        (child,) = reduced(connection).children.values()
        assert child.status == "error"
        assert connection.events[-1]["outcome"] == {"type": "success"}


@pytest.mark.parametrize("stop", [False, True])
async def test_a_reader_that_comes_back_in_the_middle_is_told_from_the_start(stop: bool) -> None:
    """SV-47: what a child said has no positions; and a run that is stopped meanwhile leaves nothing open."""
    hold = Hold()
    app = crew(LOOKS[0], ["It is", hold, " blue."])
    async with app.lifespan():
        body = run_input("t1", "r1", "which colour?")
        async with Connection(app, "POST", "/agui/default", json_body=body) as first:
            await first.seen("It is")
            last = [frame.id for frame in first.frames if frame.id][-1]
        async with Connection(
            app, "POST", "/agui/default", json_body=body, headers={"last-event-id": last}
        ) as again:
            await again.until(lambda: "SUBAGENT_STARTED" in again.types)
            if stop:
                await ask(app, "POST", "/v1/runs/r1/cancel", {})
            else:
                hold.release()
            await again.ended()
        assert [event["type"] for event in again.events[:2]] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
        (child,) = reduced(again).children.values()
        assert child.over
        if not stop:
            assert child.display.messages[-1].text == "It is blue."
