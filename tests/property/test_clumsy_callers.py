"""A clumsy caller: any action at any time, out of order, twice, cancelled; the agent stays whole and goes on (§3.16, §4)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentkit import ONE_ATTEMPT, tasks_of
from pilothouse.agents import LocalAgent
from pilothouse.cancel import Token
from pilothouse.conversation.controller import AgentController
from pilothouse.errors import AgentClosed, PilothouseError
from pilothouse.loop.tools import tool
from pilothouse.messages import ToolSpec
from pilothouse.projection import Err, InterruptAnswer, Ok
from pilothouse.testing import FakeAgent, ScriptedProvider
from pilothouse.testing.agent_suite.driving import consistent
from pilothouse.testing.endpoint import failed, finished, started, text, tool_call
from pilothouse.testing.scripted import Cut, call, failure

SHOW = ToolSpec("show", "Shows.", {"type": "object", "properties": {}})
POLICIES = ["raise", "queue", "drop", "supersede", "steer", "rollback", "whenever"]

ACTION = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from(POLICIES), st.sampled_from([None, "k1", "k2"])),
    st.tuples(st.just("patch"), st.sampled_from([{"a": 1}, {}, {"a": {1}}, [1]])),
    st.tuples(st.just("continue")),
    st.tuples(st.just("token"), st.booleans()),
    st.tuples(
        st.just("resume"), st.sampled_from([True, False, None, [], "text", "items", "cancelled", "wrong"])
    ),
    st.tuples(st.just("stop")),
    st.tuples(st.just("retry")),
    st.tuples(st.just("regenerate"), st.sampled_from([0, 1, 2, -1, 99, "last", "nobody", True])),
    st.tuples(st.just("check")),
    st.tuples(st.just("tools"), st.sampled_from(["settle", "resolve", "flush", "unknown", "fail"])),
    st.tuples(st.just("leave")),
    st.tuples(st.just("wait"), st.integers(1, 30)),
)
PLANS = st.lists(st.sampled_from(["text", "pay", "both", "show", "fail", "cut", "long"]), max_size=8)


class Caller:
    """Does what it is told, and keeps what came of it."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.ops: list[Any] = []
        self.number = 0

    async def act(self, name: str, *args: Any) -> None:
        try:
            op = await getattr(self, f"_{name}")(*args)
        except (PilothouseError, TypeError):
            return  # refused in the call
        if op is not None:
            self.ops.append(op)

    async def _submit(self, policy: str, key: str | None) -> Any:
        self.number += 1
        words = f"say {self.number}" if key is None else "the same"
        return self.agent.submit(words, when_busy=policy, key=key)

    async def _patch(self, state: Any) -> Any:
        return self.agent.submit("patched", state=state)

    async def _continue(self) -> Any:
        return self.agent.submit()

    async def _token(self, first: bool) -> Any:
        token = Token()
        if first:
            token.set("early")
        op = self.agent.submit("with a token", cancel=token, stop_on_cancel=True)
        await asyncio.sleep(0)
        token.set("late")
        return op

    async def _resume(self, what: Any) -> Any:
        batch = self.agent.interrupts.batch.get()
        answers = {
            "items": [InterruptAnswer(item.id, payload=True) for item in batch],
            "cancelled": [InterruptAnswer(item.id, "cancelled") for item in batch],
            "wrong": [InterruptAnswer("nobody", payload=1)],
        }
        return self.agent.submit(resume=answers.get(what, what) if isinstance(what, str) else what)

    async def _stop(self) -> Any:
        self.ops.append(self.agent.stop())

    async def _retry(self) -> Any:
        return self.agent.retry()

    async def _regenerate(self, target: Any) -> Any:
        messages = self.agent.messages.get()
        return self.agent.regenerate(messages[-1].id if target == "last" and messages else target)

    async def _check(self) -> Any:
        if self.agent.check_status is not None:
            self.ops.append(self.agent.check_status())

    async def _tools(self, how: str) -> Any:
        tools = self.agent.client_tools
        pending = tools.pending.get()
        name = "nobody" if how == "unknown" or not pending else pending[0].id
        if how == "flush":
            self.ops.append(tools.flush())
        elif how == "resolve":
            return tools.resolve(name, Ok({"n": 1}))
        else:
            tools.settle(name, Err("no") if how == "fail" else Ok(1))
        return None

    async def _leave(self) -> Any:
        if self.ops:

            async def wait(op: Any) -> None:
                await op

            waiting = asyncio.create_task(wait(self.ops[-1]))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})
            if not waiting.cancelled():
                waiting.exception()

    async def _wait(self, turns: int) -> Any:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def settled(self) -> None:
        """Every operation has its end, and nothing is in flight."""
        async with asyncio.timeout(30):
            while await self.agent.stop() != "nothing":
                pass
            for op in self.ops:
                with suppress(PilothouseError):  # a refusal, told once
                    await op
            assert not self.agent.in_flight


@tool(approval=True)
def pay() -> str:
    """Pays."""
    return "paid"


def brain(plans: list[str]) -> Any:
    left = list(plans)
    count = 0

    def answer(request: Any) -> Any:
        nonlocal count
        count += 1
        plan = left.pop(0) if left else "text"
        if plan == "show" and not any(spec.name == "show" for spec in request.tools):
            plan = "text"
        return {
            "text": ["an answer"],
            "long": list("a long answer in many pieces"),
            "pay": ["so", call("pay", call_id=f"c{count}")],
            "both": [call("pay", call_id=f"c{count}"), call("pay", call_id=f"d{count}")],
            "show": [call("show", {}, call_id=f"s{count}")],
            "fail": ["half", failure("server_error", "no")],
            "cut": ["half", Cut()],
        }[plan]

    return answer


def scripts(plans: list[str]) -> list[Any]:
    ask = {"id": "i", "reason": "x"}
    made = []
    for n, plan in enumerate([*plans, *["text"] * 60]):
        said = text(f"m{n}", *(["a", "long", "answer"] if plan == "long" else ["an answer"]))
        made.append(
            {
                "pay": [started(), *said, finished({"type": "interrupt", "interrupts": [ask]})],
                "both": [started(), finished({"type": "interrupt", "interrupts": [ask, {**ask, "id": "j"}]})],
                "show": [started(), *tool_call(f"s{n}", "show", parent=f"m{n}"), finished()],
                "fail": [started(), *said, failed("no", "server_error")],
                "cut": [started(), *said],
            }.get(plan, [started(), *said, finished()])
        )
    return made


@pytest.fixture(autouse=True)
def quiet():
    logger = logging.getLogger("pilothouse")
    before, logger.disabled = logger.level, False
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


async def _clumsy(agent: Any, actions: list[Any]) -> None:
    agent.client_tools.set_catalog([SHOW])
    caller = Caller(agent)
    with consistent(agent) as wrong:
        for name, *args in actions:
            await caller.act(name, *args)
        await caller.settled()
    assert wrong == [], wrong
    assert agent.status.get() in ("idle", "error")
    assert not agent.is_loading.get()
    assert not agent.stopping.get()
    assert all(item.delivery.phase == "complete" for item in agent.messages.get())
    ids = [item.id for item in agent.messages.get()]
    assert len(ids) == len(set(ids))


LIMITS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@LIMITS
@given(PLANS, st.lists(ACTION, max_size=14))
def test_a_local_agent(plans: list[str], actions: list[Any]) -> None:
    """Also what is kept is whole: a fresh agent shows the same, each call has one result, and the next send works."""

    async def run() -> None:
        provider = ScriptedProvider(*[brain(plans)] * 200)
        controller = AgentController(provider, tools=[pay], config=ONE_ATTEMPT)
        agent = await LocalAgent(controller, watch_interval=0).open()
        try:
            await _clumsy(agent, actions)
            other = await LocalAgent(controller.sibling(agent.thread_id), watch_interval=0).open()
            shown, kept = (
                [(item.id, item.role, item.text) for item in each.messages.get()] for each in (agent, other)
            )
            assert shown == kept
            made = [one.call_id for item in controller.messages for one in item.tool_calls]
            back = [item.call_id for item in controller.messages if item.role == "tool"]
            assert sorted(made) == sorted(back)
            await other.aclose()
            await other.controller.aclose()
        finally:
            await agent.aclose()
            await controller.aclose()
        assert not tasks_of(agent)

    asyncio.run(run())


@LIMITS
@given(PLANS, st.lists(ACTION, max_size=14))
def test_a_remote_agent(plans: list[str], actions: list[Any]) -> None:
    async def run() -> None:
        agent = FakeAgent(*scripts(plans))
        try:
            await _clumsy(agent, actions)
        finally:
            await agent.aclose()
        assert not tasks_of(agent)

    asyncio.run(run())


@LIMITS
@given(PLANS, st.lists(ACTION, max_size=8), st.booleans())
def test_closed_in_the_middle(plans: list[str], actions: list[Any], local: bool) -> None:
    """AG-18: whoever waits is told; nothing of the agent is alive; values stay, and every action is refused."""

    async def run() -> None:
        provider = ScriptedProvider(*[brain(plans)] * 200)
        controller = AgentController(provider, tools=[pay], config=ONE_ATTEMPT)
        agent: Any = FakeAgent(*scripts(plans))
        if local:
            await agent.aclose()
            agent = await LocalAgent(controller, watch_interval=0).open()
        agent.client_tools.set_catalog([SHOW])
        caller = Caller(agent)
        for name, *args in actions:
            await caller.act(name, *args)
        await agent.aclose()
        shown = agent.messages.get()
        assert not tasks_of(agent)
        async with asyncio.timeout(30):
            for op in caller.ops:
                with suppress(PilothouseError):
                    await op
        for action in (lambda: agent.submit("x"), agent.stop, agent.retry, lambda: agent.regenerate(0)):
            with pytest.raises(AgentClosed):
                action()
        assert agent.messages.get() is shown
        await controller.aclose()

    asyncio.run(run())
