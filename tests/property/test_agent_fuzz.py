"""Whatever a backend says, an agent stays whole and ends with one status (§5.15); the verifier alone (§6)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentkit import tasks_of
from pilothouse.agents import LocalAgent
from pilothouse.conversation.controller import AgentController
from pilothouse.loop.tools import tool
from pilothouse.testing import FakeAgent, ScriptedProvider, verify_agui
from pilothouse.testing.agent_suite.driving import consistent, texts
from pilothouse.testing.endpoint import (
    Close,
    Cut,
    failed,
    finished,
    reasoning,
    result,
    started,
    text,
    tool_call,
)
from pilothouse.testing.scripted import Hold, call, thought

ASK = finished({"type": "interrupt", "interrupts": [{"id": "i", "reason": "x"}]})
EVENT = st.sampled_from(
    [
        started(),
        {"type": "RUN_STARTED", "threadId": "$thread", "runId": "another"},
        finished(),
        finished({"type": "cancelled"}),
        finished({"type": "success", "pendingToolCallIds": ["c"]}),
        ASK,
        failed("no", "rate_limit"),
        failed("who knows", "outcome_unknown"),
        *text("a", "x"),
        *text("b", "y"),
        *reasoning("r", "z"),
        *tool_call("c", "look", "{}", parent="a"),
        result("c", "1"),
        {"type": "STATE_SNAPSHOT", "snapshot": {"n": 1}},
        {"type": "STATE_DELTA", "delta": [{"op": "remove", "path": "/n"}]},
        {"type": "MESSAGES_SNAPSHOT", "messages": [{"id": "a", "role": "assistant", "content": "xx"}]},
        {"type": "CUSTOM", "name": "on_interrupt", "value": {"id": "j"}},
        {"type": "CUSTOM", "name": "n", "value": None},
        {"type": "SUBAGENT_STARTED", "subagentRunId": "s", "name": "n"},
        {"type": "SUBAGENT_ERROR", "subagentRunId": "s", "message": "no"},
        {"type": "TEXT_MESSAGE_CHUNK", "messageId": "a", "delta": "q"},
        {"type": "FUTURE"},
        Cut(),
        Close(),
        RuntimeError("the backend's own"),
    ]
)
SCRIPT = st.builds(
    lambda first, rest: [*first, *rest], st.sampled_from([[], [started()]]), st.lists(EVENT, max_size=14)
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(SCRIPT, min_size=1, max_size=4), st.sampled_from(["fail", "repair"]), st.data())
def test_no_stream_breaks_an_agent(scripts, on_violation, data) -> None:
    """Nothing raises out of it; every operation settles; at every notification the values fit together (AG-5)."""

    async def run() -> None:
        agent = FakeAgent(*scripts, on_violation=on_violation)
        said: list[tuple[str, str]] = []
        with consistent(agent) as wrong:
            for number in range(len(scripts)):
                shown = agent.interrupt.get()
                resumes = shown is not None and shown.resumable
                if resumes:
                    op = agent.submit(resume=True)
                elif agent.interrupts.phase.get() != "none":
                    break
                else:
                    op = agent.submit(f"say {number}", when_busy="supersede")
                    said.append(("user", f"say {number}"))
                if data.draw(st.integers(0, 5)) == 0:
                    await asyncio.sleep(0)
                    agent.stop()
                outcome = await op
                assert outcome in ("success", "paused", "aborted", "error", "interrupted")
                assert agent.status.get() in ("idle", "error")
                # No snapshot of its own run takes a message away; one of a run that resumes may.
                assert resumes or said[-1] in texts(agent)
        assert wrong == []
        await agent.aclose()
        assert not tasks_of(agent)

    asyncio.run(run())


LEGAL = [
    [started(), *text("a", "x"), finished()],
    [
        started(),
        *reasoning("a", "x"),
        *text("a", "y"),
        *tool_call("c", "n", parent="a"),
        result("c", "1"),
        ASK,
    ],
    [started(), {"type": "TEXT_MESSAGE_CHUNK", "messageId": "a", "delta": "q"}, finished(), failed("late")],
    [failed("at once")],
    [started(), finished(), started(), *text("a", "x"), *text("a", "again"), finished()],
]
ILLEGAL = [
    ([*text("a", "x")], "begins with RUN_STARTED"),
    ([started(), *text("a", "x", end=False), finished()], "still open"),
    ([started(), *text("a", "x")], "without RUN_FINISHED"),
    ([started(), started()], "has not ended"),
    ([started(), {"type": "TEXT_MESSAGE_END", "messageId": "z"}], "not open"),
    ([started(), {"type": "TEXT_MESSAGE_CHUNK", "delta": "q"}], "first chunk"),
    ([started(), {"type": "TEXT_MESSAGE_START"}], "messageId"),
]


@pytest.mark.parametrize("events", LEGAL)
def test_a_legal_stream_passes(events) -> None:
    """§6: the verifier is usable alone."""
    assert verify_agui(events)


@pytest.mark.parametrize(("events", "why"), ILLEGAL)
def test_an_illegal_stream_says_where_and_why(events, why) -> None:
    """§6."""
    with pytest.raises(AssertionError, match=why):
        verify_agui(events)


@tool
def add(a: int) -> int:
    """Adds."""
    return a + 1


@tool(approval=True)
def pay() -> str:
    """Pays."""
    return "paid"


ITEMS = [
    thought("hm"),
    "one",
    call("add", {"a": 1}),
    call("add", {"a": 2}),
    call("add", {"a": 3}),
    call("pay"),
]


@pytest.mark.parametrize("at", range(len(ITEMS) + 2))
async def test_a_local_run_may_be_stopped_anywhere(at: int) -> None:
    """§5.8: reasoning, text, three parallel tools and a request: aborted, every call has one result, the next one works."""
    hold = Hold()
    scripts = [[*ITEMS[:at], hold, *ITEMS[at:]], "later"] if at <= len(ITEMS) else [ITEMS, "later"]
    provider = ScriptedProvider(*scripts)
    controller = AgentController(provider, tools=[add, pay])
    agent = await LocalAgent(controller).open()
    with consistent(agent) as wrong:
        op = agent.submit("hi")
        if at <= len(ITEMS):
            await hold.reached()
        else:
            assert await op == "paused"
        assert await agent.stop() == "stopped"
        assert (agent.status.get(), agent.error.get()) == ("idle", None)
        if at <= len(ITEMS):
            assert await op == "aborted"
        assert await agent.submit("next") == "success"
    assert wrong == []
    assert texts(agent)[-2:] == [("user", "next"), ("assistant", "later")]
    made = [name for message in controller.messages for name in [c.call_id for c in message.tool_calls]]
    given_back = [message.call_id for message in controller.messages if message.role == "tool"]
    assert sorted(made) == sorted(given_back)
    await agent.aclose()
    await controller.aclose()
