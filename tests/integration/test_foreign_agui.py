"""`AGUIAgent` against servers of other frameworks, as processes; our models against the protocol's own (AG-190 … AG-195)."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from pilothouse.core.agui import events as agui
from pilothouse.messages import ToolSpec
from pilothouse.projection import Ok
from pilothouse.remote import AGUIAgent
from pilothouse.testing.agent_suite.driving import consistent, texts
from pilothouse.testing.endpoint import finished, reasoning, result, started, text, tool_call
from served import clean_env

SCRIPT = Path(__file__).parents[1] / "foreign_agents.py"
SHOW = ToolSpec("show", "Shows.", {"type": "object", "properties": {"what": {"type": "string"}}})


@contextmanager
def serving(name: str):
    """That framework's server; gives its address."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), name],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**clean_env(), "LANGSMITH_TRACING": "false"},
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


async def test_pydantic_ai() -> None:
    """Text, reasoning, a tool of the server, a tool of the client, a failure, history; the bytes are verified."""
    with serving("pydantic-ai") as url:
        async with AGUIAgent(url) as agent:
            with consistent(agent) as wrong:
                assert await agent.submit("hello") == "success"
                assert await agent.submit("think") == "success"
                assert (agent.messages.get()[-1].text, agent.messages.get()[-1].reasoning) == (
                    "Yes.",
                    "hm well",
                )
                assert await agent.submit("weather") == "success"
                assert texts(agent)[-1] == ("assistant", "the tool said sunny in Oslo")
                assert agent.tool_calls.get()[-1].result == "sunny in Oslo"
                assert await agent.submit("fail") == "error"
                assert "the model broke" in str(agent.error.get())
                agent.client_tools.set_catalog([SHOW])
                await agent.submit("show it")
                (call,) = agent.client_tools.pending.get()
                assert await agent.client_tools.resolve(call.id, Ok("a map")) == "success"
                assert texts(agent)[-1] == ("assistant", "the tool said a map")
                assert await agent.regenerate(len(agent.messages.get()) - 1) in ("success", "paused")
            assert wrong == []
            assert "(1)" in texts(agent)[1][1]


async def test_langgraph() -> None:
    """Text, an interrupt of the graph answered by its own convention, a failure, and the thread goes on."""
    with serving("langgraph") as url:
        async with AGUIAgent(url) as agent:
            with consistent(agent) as wrong:
                assert await agent.submit("hello") == "success"
                assert await agent.submit("ask me") == "paused"
                asked = agent.interrupt.get()
                assert asked.value == {"question": "Really?"}
                assert await agent.submit(resume="sure") == "success"
                assert texts(agent)[-1] == ("assistant", "you said answered sure")
                assert agent.interrupts.phase.get() == "none"
                assert await agent.submit("fail") == "error"
                assert "the graph broke" in str(agent.error.get())
                assert await agent.submit("again") == "success"
            assert wrong == []
            assert [said for role, said in texts(agent) if role == "user"] == [
                "hello",
                "ask me",
                "fail",
                "again",
            ]


# The protocol's own Python models

SAMPLES = [
    started(),
    finished({"type": "success"}),
    finished({"type": "interrupt", "interrupts": [{"id": "i", "reason": "confirmation"}]}),
    *text("m", "x"),
    *reasoning("r", "y"),
    *tool_call("c", "look", "{}", parent="m"),
    result("c", "z"),
    {"type": "RUN_ERROR", "message": "no", "code": "c"},
    {"type": "STEP_STARTED", "stepName": "s"},
    {"type": "STEP_FINISHED", "stepName": "s"},
    {"type": "STATE_SNAPSHOT", "snapshot": {"a": [1]}},
    {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/a", "value": 1}]},
    {"type": "MESSAGES_SNAPSHOT", "messages": [{"id": "u", "role": "user", "content": "hi"}]},
    {"type": "ACTIVITY_SNAPSHOT", "messageId": "m", "activityType": "t", "content": {}},
    {"type": "CUSTOM", "name": "n", "value": {"k": 1}},
    {"type": "RAW", "event": {"k": 1}},
    {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "delta": "x"},
    {"type": "TOOL_CALL_CHUNK", "toolCallId": "c", "toolCallName": "n", "delta": "x"},
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda item: item["type"])
def test_our_models_and_the_protocols_agree(sample) -> None:
    """§3.15: what one writes the other reads, and it says the same again."""
    from ag_ui.core import Event
    from pydantic import TypeAdapter

    adapter = TypeAdapter(Event)
    ours = agui.decode(msgspec.json.encode(sample))
    assert ours is not None
    theirs = adapter.validate_json(agui.encode(ours))
    told = theirs.model_dump_json(by_alias=True, exclude_none=True)
    assert agui.decode(told.encode()) == ours


def test_no_event_of_the_protocol_is_missing() -> None:
    """§3.15: every type that the protocol's package knows is read here, or has another name here."""
    from ag_ui.core import EventType

    old = {name for name in EventType.__members__ if name.startswith("THINKING_")}
    assert set(EventType.__members__) - old <= set(agui.TYPES)
