"""Tools that run at the client: once each, one continuation a group, never a call without a result (AG-145 … AG-157)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from pilothouse.agents import ClientTool, ClientToolRunner
from pilothouse.errors import UsageError
from pilothouse.projection import Claimed, InDoubt, Ok, Recorded
from pilothouse.remote import AGUIAgent
from pilothouse.remote.function import FunctionWire
from pilothouse.testing import FakeBackend, MockAgent
from pilothouse.testing.agent_suite.driving import texts, until
from pilothouse.testing.endpoint import Refuse, finished, started, text, tool_call
from pilothouse.testing.scripted import Hold

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def calls(*names: str, args: str = '{"n": 1}', part: str = "") -> list:
    events = [started(), *text(f"m{part}", "x")]
    for number, name in enumerate(names):
        events += tool_call(f"{name}{part}{number}", name, args, parent=f"m{part}")
    return [*events, finished()]


DONE = [started(), *text("done", "done"), finished()]


class Rig:
    """An agent in memory, its backend, and what the handlers saw."""

    def __init__(self, *scripts) -> None:
        self.backend = FakeBackend(*scripts)
        self.agent = AGUIAgent("fake://agent", transport=FunctionWire(self.backend.run))
        self.ran: list = []

    def tool(
        self, name: str, hold: Hold | None = None, error: Exception | None = None, **options
    ) -> ClientTool:
        async def run(n: int, cancel=None):
            self.ran.append((name, n))
            if hold is not None:
                await hold.wait()
            if error is not None:
                raise error
            return {"n": n}

        return ClientTool(name, run, parameters=SCHEMA, **options)

    def results(self) -> dict:
        return {call.id: call.error or call.result for call in self.agent.tool_calls.get()}

    async def settled(self, requests: int) -> None:
        while len(self.backend.asked) < requests or self.agent.status.get() == "running":
            await asyncio.sleep(0)

    def sent(self) -> list[dict]:
        return [item for item in self.backend.asked[-1].body["messages"] if item["role"] == "tool"]


async def test_a_group_has_one_continuation() -> None:
    """AG-152, AG-153: each call runs once; the run goes on after the last one settled."""
    hold = Hold()
    rig = Rig(calls("a", "b"), DONE)
    async with ClientToolRunner(rig.agent, [rig.tool("a", hold), rig.tool("b")]):
        await rig.agent.submit("hi")
        await hold.reached()
        assert len(rig.backend.asked) == 1
        hold.release()
        await rig.settled(2)
    assert sorted(rig.ran) == [("a", 1), ("b", 1)]
    assert len(rig.backend.asked) == 2
    assert [item["content"] for item in rig.sent()] == ['{"n":1}', '{"n":1}']
    assert texts(rig.agent)[-1] == ("assistant", "done")
    await rig.agent.aclose()


async def test_a_group_without_follow_up_is_put_down() -> None:
    """AG-151, AG-153: a view is acknowledged; nothing more is asked; the next run carries the result."""
    rig = Rig(calls("view"), DONE)
    shown: list[int] = []
    view = ClientTool("view", lambda n: shown.append(n) or None, parameters=SCHEMA, kind="view")
    async with ClientToolRunner(rig.agent, [view]):
        await rig.agent.submit("hi")
        while rig.agent.client_tools.pending.get():
            await asyncio.sleep(0)
        assert len(rig.backend.asked) == 1
        await rig.agent.submit("next")
    assert shown == [1]
    assert [item["content"] for item in rig.sent()] == ["shown"]
    await rig.agent.aclose()


@pytest.mark.parametrize(("args", "said"), [('{"n": "x"}', "invalid arguments"), ("{}", "invalid arguments")])
async def test_invalid_arguments_are_an_error_and_no_call(args: str, said: str) -> None:
    """AG-152."""
    rig = Rig(calls("a", args=args), DONE)
    async with ClientToolRunner(rig.agent, [rig.tool("a")]):
        await rig.agent.submit("hi")
        await rig.settled(2)
    assert rig.ran == []
    assert said in rig.sent()[0]["error"]
    await rig.agent.aclose()


async def test_a_handler_that_raises_is_an_error() -> None:
    """AG-152."""
    rig = Rig(calls("a"), DONE)
    async with ClientToolRunner(rig.agent, [rig.tool("a", error=ValueError("mine"))]):
        await rig.agent.submit("hi")
        await rig.settled(2)
    assert rig.sent()[0]["error"] == "ValueError: mine"
    await rig.agent.aclose()


async def test_rounds_without_the_user_have_a_limit() -> None:
    """AG-154: calls over it are settled with an explanation; a new message of the user begins anew."""
    rig = Rig(calls("a", part="1"), calls("a", part="2"), calls("a", part="3"), calls("a", part="4"), DONE)
    async with ClientToolRunner(rig.agent, [rig.tool("a")], max_continuations=2):
        await rig.agent.submit("hi")
        await rig.settled(3)
        while rig.agent.client_tools.pending.get():
            await asyncio.sleep(0)
        assert len(rig.ran) == 2
        assert len(rig.backend.asked) == 3
        assert "2 rounds" in rig.results()["a30"]
        await rig.agent.submit("go on")
        await rig.settled(5)
        assert len(rig.ran) == 3
    await rig.agent.aclose()


async def test_closing_cancels_what_runs() -> None:
    """AG-155: settled as cancelled at once; a late result is dropped; never dispatched again."""
    hold = Hold(deaf=True)
    rig = Rig(calls("a"), DONE)
    runner = ClientToolRunner(rig.agent, [rig.tool("a", hold)])
    await runner.__aenter__()
    await rig.agent.submit("hi")
    await hold.reached()
    runner.stop()
    assert "cancelled" in rig.results()["a0"]
    hold.release()
    await runner.aclose()
    assert "cancelled" in rig.results()["a0"]
    assert len(rig.backend.asked) == 1
    await rig.agent.submit("next")
    assert rig.sent()[0]["error"].startswith("cancelled")
    assert rig.ran == [("a", 1)]
    await rig.agent.aclose()


class Guard:
    def __init__(self, claim=None, error: Exception | None = None) -> None:
        self.claims: list[str] = []
        self.recorded: dict = {}
        self._claim = claim
        self._error = error

    async def claim(self, thread_id, call_id):
        self.claims.append(call_id)
        if self._error is not None:
            raise self._error
        return self._claim or Claimed()

    async def record(self, thread_id, call_id, outcome):
        self.recorded[call_id] = outcome


@pytest.mark.parametrize(
    ("guard", "runs", "content"),
    [
        (Guard(), True, '{"n":1}'),
        (Guard(Recorded(Ok("before"))), False, "before"),
        (Guard(InDoubt()), False, "unknown"),
        (Guard(error=OSError("away")), False, "unknown"),
    ],
)
async def test_a_guard_keeps_a_call_from_running_twice(guard, runs, content) -> None:
    """AG-156: claim, run, record, settle; in doubt it fails closed."""
    rig = Rig(calls("a"), DONE)
    async with ClientToolRunner(rig.agent, [rig.tool("a")], guard=guard):
        await rig.agent.submit("hi")
        await rig.settled(2)
    assert bool(rig.ran) == runs
    assert bool(guard.recorded) == runs
    assert content in rig.sent()[0]["content"]
    await rig.agent.aclose()


async def test_an_idempotent_tool_asks_no_guard() -> None:
    """AG-156."""
    guard = Guard(InDoubt())
    rig = Rig(calls("a"), DONE)
    async with ClientToolRunner(rig.agent, [rig.tool("a", idempotent=True)], guard=guard):
        await rig.agent.submit("hi")
        await rig.settled(2)
    assert (rig.ran, guard.claims) == ([("a", 1)], [])
    await rig.agent.aclose()


async def test_what_cannot_be_declared_is_said_at_once() -> None:
    """AG-152: naming the tool."""
    rig = Rig()
    with pytest.raises(UsageError, match="bad"):
        ClientTool("bad", lambda: None, parameters={"type": "string"})
    with pytest.raises(UsageError, match="same name"):
        ClientToolRunner(rig.agent, [rig.tool("a"), rig.tool("a")])
    with pytest.raises(UsageError, match="no client tools"):
        ClientToolRunner(MockAgent(), [])
    mock = MockAgent("client_tools")
    async with ClientToolRunner(mock, [rig.tool("a")]):
        assert [spec.name for spec in mock.client_tools.catalog] == ["a"]
    await rig.agent.aclose()


STEPS = st.lists(
    st.sampled_from(["calls", "fail", "done", "stop", "switch", "release"]), min_size=1, max_size=8
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.integers(0, 3))
def test_the_backends_thread_never_keeps_a_call_without_a_result(steps, limit) -> None:
    """AG-148: under random stops, limits, failures and thread switches, as far as the backend is told."""

    async def run() -> None:
        scripts = []
        for number, step in enumerate(steps):
            scripts.append(
                calls("a", "b", part=f".{number}.")
                if step == "calls"
                else [Refuse(503, "no")]
                if step == "fail"
                else [started(), *text(f"d{number}", "done"), finished()]
            )
        rig = Rig(*scripts, *([DONE] * 12))
        hold = Hold()
        async with ClientToolRunner(
            rig.agent, [rig.tool("a", hold), rig.tool("b")], max_continuations=limit
        ) as runner:
            for step in steps:
                if step == "stop":
                    runner.stop()
                    await rig.agent.stop()
                elif step == "switch":
                    rig.agent.set_thread(None)
                elif step == "release":
                    hold.release()
                elif rig.agent.status.get() != "running":
                    await rig.agent.submit("hi")
                for _ in range(10):
                    await asyncio.sleep(0)
            hold.release()
            for _ in range(30):
                await asyncio.sleep(0)
            await until_free(rig.agent)
            runner.stop()
            await rig.agent.submit("last")
        body = rig.backend.asked[-1].body
        asked = [call["id"] for item in body["messages"] for call in item.get("toolCalls", ())]
        given_back = [item["toolCallId"] for item in body["messages"] if item["role"] == "tool"]
        assert sorted(asked) == sorted(given_back)
        await rig.agent.aclose()

    asyncio.run(run())


async def until_free(agent: AGUIAgent) -> None:
    if agent.status.get() == "running":
        await until(agent, "idle")


async def test_arguments_of_a_mock() -> None:
    """The double writes down what it was told."""
    mock = MockAgent("client_tools", "usage")
    assert mock.usage.get() is None
    assert mock.interrupt is None
    assert await mock.submit("hi", when_busy="drop") == "success"
    assert mock.submitted == [{"message": "hi", "resume": UNSET, "when_busy": "drop"}]
    await mock.stop()
    assert mock.calls == ["stop"]
    mock.status.set("running")
    assert mock.status() == "running"
