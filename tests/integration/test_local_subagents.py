"""Sub-agents of a local agent: tools that are agents, as an interface sees them (AG-160 … AG-164)."""

from __future__ import annotations

import asyncio

import pytest

from agentkit import ONE_ATTEMPT
from pilothouse.agents import LocalAgent
from pilothouse.agents.signals import watch
from pilothouse.conversation.controller import AgentController
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.subagent import agent_tool
from pilothouse.loop.tools import tool
from pilothouse.runs.controller import RunController
from pilothouse.testing import ScriptedProvider
from pilothouse.testing.agent_suite.driving import shown, texts
from pilothouse.testing.scripted import Hold, call, failure, thought


@tool
def look(at: str) -> str:
    """Looks."""
    return f"seen {at}"


class Crew:
    """A conversation whose model gives tasks to other agents."""

    def __init__(self, *scripts, durable: bool, **agents) -> None:
        self.controllers: list[RunController] = []
        tools = []
        for name, script in agents.items():
            made = AgentLoop(ScriptedProvider(*script), tools=[look], config=ONE_ATTEMPT)
            if durable:
                self.controllers.append(RunController(made))
            tools.append(
                agent_tool(self.controllers[-1] if durable else made, name=name, description="Helps.")
            )
        self.inner = AgentController(ScriptedProvider(*scripts), tools=tools, config=ONE_ATTEMPT)

    async def __aenter__(self) -> LocalAgent:
        self.agent = LocalAgent(self.inner)
        return await self.agent.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.agent.aclose()
        await self.inner.aclose()
        for runs in self.controllers:
            await runs.aclose()


async def until_child(agent: LocalAgent, n: int = 0):
    async for found in watch(agent.subagents):
        if len(found) > n:
            return list(found.values())[n]
    raise AssertionError("no child")


both = pytest.mark.parametrize("durable", [False, True])


@both
async def test_a_child_is_seen_apart_from_its_parent(durable: bool) -> None:
    """AG-160 … AG-163: its words as they come, its calls, its end; nothing of it is in the parent's transcript."""
    hold = Hold()
    answers = [[thought("hm"), "I look.", call("look", {"at": "sky"})], ["It is", hold, " blue."]]
    scripts = [call("scout", {"task": "look up"}, call_id="s")], "Blue, it says.", "Bye."
    async with Crew(*scripts, durable=durable, scout=answers) as agent:
        assert dict(agent.subagents.get()) == {}
        op = agent.submit("which colour?")
        child = await until_child(agent)
        assert (child.name, child.tool_call_id, child.status.get()) == ("scout", "s", "running")
        async for messages in watch(child.messages):
            if messages and messages[-1].text == "It is":
                break
        assert child.messages.get()[-1].delivery.phase == "streaming"
        assert list(agent.subagents.get().values()) == [child]  # the same object while it streams
        assert texts(agent) == [("user", "which colour?"), ("assistant", "")]
        hold.release()
        assert await op == "success"
        assert child.status.get() == "complete"
        said = [(item.role, item.text, item.delivery.outcome) for item in child.messages.get()]
        assert said == [
            ("user", "look up", "success"),
            ("assistant", "I look.", "success"),
            ("tool", "seen sky", "success"),
            ("assistant", "It is blue.", "success"),
        ]
        assert child.messages.get()[1].reasoning == "hm"
        (looked,) = child.tool_calls.get()
        assert (looked.name, dict(looked.args), looked.result) == ("look", {"at": "sky"}, "seen sky")
        assert [item.name for item in agent.tool_calls.get()] == ["scout"]
        assert "I look." not in str(texts(agent))
        assert await agent.submit("bye") == "success"
        assert dict(agent.subagents.get()) == {}  # emptied at the start of a run


@both
async def test_a_failed_child_is_no_failed_run(durable: bool) -> None:
    """AG-161."""
    scripts = [call("scout", {"task": "x"}, call_id="s")], "Sorry."
    async with Crew(*scripts, durable=durable, scout=[["half", failure("auth", "no")]]) as agent:
        assert await agent.submit("go") == "success"
        (child,) = agent.subagents.get().values()
        assert child.status.get() == "error"
        assert child.messages.get()[-1].text == "half"
        assert child.messages.get()[-1].delivery.outcome == "error"
        assert agent.error.get() is None


@both
async def test_two_children_with_one_call_id_stay_apart(durable: bool) -> None:
    """AG-164."""
    scripts = (
        [call("a", {"task": "1"}, call_id="s1"), call("b", {"task": "2"}, call_id="s2")],
        "Both.",
    )
    script = [call("look", {"at": "sea"}, call_id="same")]
    other = [call("look", {"at": "land"}, call_id="same")]
    async with Crew(*scripts, durable=durable, a=[script, "A"], b=[other, "B"]) as agent:
        assert await agent.submit("go") == "success"
        found = {child.name: child for child in agent.subagents.get().values()}
        assert {name: child.tool_calls.get()[0].result for name, child in found.items()} == {
            "a": "seen sea",
            "b": "seen land",
        }
        assert {name: child.messages.get()[-1].text for name, child in found.items()} == {"a": "A", "b": "B"}
        assert {call.id: call.result for call in agent.tool_calls.get()} == {"s1": "A", "s2": "B"}


@both
async def test_a_stop_ends_the_child_too(durable: bool) -> None:
    """AG-90: at once here; its text stays, nothing goes on being told."""
    scripts = [call("scout", {"task": "x"}, call_id="s")], "never"
    async with Crew(*scripts, durable=durable, scout=[["half", Hold(), "more"]]) as agent:
        op = agent.submit("go")
        child = await until_child(agent)
        async for messages in watch(child.messages):
            if messages and messages[-1].text == "half":
                break
        stopping = agent.stop()
        assert child.status.get() == "error"
        assert child.messages.get()[-1].delivery.phase == "complete"
        assert await stopping == "stopped"
        assert await op == "aborted"
        assert child.messages.get()[-1].text == "half"


async def test_who_comes_later_sees_the_child_too() -> None:
    """AG-163, AG-182: that it began, and each message once it is whole."""
    hold, pause = Hold(), Hold()
    answers = [["It is", hold, " blue.", call("look", {"at": "sky"})], ["And", pause, " so on."]]
    scripts = [call("scout", {"task": "look up"}, call_id="s")], "Blue."
    async with Crew(*scripts, durable=False, scout=answers) as agent:
        op = agent.submit("which colour?")
        await until_child(agent)
        other = await LocalAgent(agent.controller.sibling(agent.thread_id)).open()
        late = await until_child(other)
        assert (late.name, late.status.get()) == ("scout", "running")
        hold.release()
        async for messages in watch(late.messages):
            if any(item.text == "It is blue." for item in messages):
                break
        pause.release()
        assert await op == "success"
        await shown(other, "Blue.")
        assert late.status.get() == "complete"
        await asyncio.sleep(0)
        await other.aclose()
        await other.controller.aclose()
