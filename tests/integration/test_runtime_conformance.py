"""The shipped runtimes under the public conformance suite of runtimes (run-controller §6)."""

from __future__ import annotations

import pytest

from pilothouse.events import (
    Completed,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    Noted,
    RunEnded,
    TurnEnded,
    TurnStarted,
)
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.tools import tool
from pilothouse.messages import Message, Text
from pilothouse.records import Descriptor
from pilothouse.testing import RuntimeConformance, ScriptedProvider, ScriptedRuntime
from pilothouse.testing.scripted import call

SCRIPT = (
    TurnStarted(1),
    ModelRequested(1, 1, "m1"),
    (ModelAttemptEnded(1, 1, "answered"), MessageAdded(Message("m1", "assistant", (Text("done"),)), 1)),
    Noted("test/x"),
    (TurnEnded(1), RunEnded(Completed())),
)


class TestScripted(RuntimeConformance):
    """RC-54, RC-57: level `journal`."""

    def make(self) -> ScriptedRuntime:
        return ScriptedRuntime(*SCRIPT)


class TestScriptedReplay(RuntimeConformance):
    """RC-55 … RC-57: level `replay`; the agent outlives the adapter."""

    @pytest.fixture(autouse=True)
    def agent(self) -> None:
        self.memory: dict = {}

    def make(self) -> ScriptedRuntime:
        plain = Descriptor("foreign", commands=("cancel",), cancel="confirmed", recovery="replay")
        memory = self.memory
        return ScriptedRuntime(*SCRIPT, descriptor=plain, memory=memory)

    async def _cut(self, inner, at, when):
        self.memory.clear()  # another journal: the agent has not seen this run
        return await super()._cut(inner, at, when)


class TestScriptedQuery(RuntimeConformance):
    """RC-59: level `query`."""

    def make(self) -> ScriptedRuntime:
        plain = Descriptor("foreign", commands=("cancel",), cancel="best_effort", recovery="query")
        return ScriptedRuntime(*SCRIPT, descriptor=plain)


class TestScriptedWithout(RuntimeConformance):
    """RC §3.10: no level at all."""

    def make(self) -> ScriptedRuntime:
        return ScriptedRuntime(*SCRIPT, descriptor=Descriptor("foreign", cancel="none"))


@tool(effect="read")
async def look(text: str) -> str:
    """Look."""
    return f"seen {text}"


class TestAgentLoop(RuntimeConformance):
    """LP-49: our loop goes on from its facts, wherever it is cut."""

    def make(self) -> AgentLoop:
        def play(request):
            if any(message.role == "tool" for message in request.messages):
                return "It is there."
            return ["I look. ", call("look", {"text": "there"}, call_id="c1")]

        return AgentLoop(ScriptedProvider(play, repeat=True), tools=[look])
