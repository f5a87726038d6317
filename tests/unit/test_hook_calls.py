"""How a hook is called: in the context of the send, bounded, stoppable (TC-3, TC-7, TC-43, TC-96)."""

from __future__ import annotations

import asyncio
import logging
import time
from contextvars import ContextVar

import pytest

from controlkit import Plain, Told
from convkit import passes
from pilothouse import AgentController, BaseAIController, current_reply
from pilothouse.errors import AgentBusy, ConfigError, UsageError
from pilothouse.loop.tools import tool
from pilothouse.testing import Hold, ScriptedProvider, StepClock
from pilothouse.testing.scripted import call

who: ContextVar[str] = ContextVar("who", default="nobody")


@pytest.mark.parametrize("is_async", [False, True])
async def test_context_variables_reach_hooks_and_tools(is_async: bool) -> None:
    """TC-3, TC-7: those of the caller of send(), and what a hook sets; nothing of it leaks back."""
    seen = []

    class Hooks(BaseAIController):
        def get_tools(self):
            return [self.look, self.look_in_thread]

        async def look(self) -> str:
            """Looks."""
            seen.append(("tool", who.get(), current_reply().id))
            return "x"

        def look_in_thread(self) -> str:
            """Looks in a thread."""
            seen.append(("thread", who.get(), current_reply().id))
            return "x"

        def on_request(self, event):
            seen.append(("request", who.get(), event.reply.id))
            if is_async:
                return self.later()
            who.set("the hook")
            return None

        async def later(self):
            await asyncio.sleep(0)
            who.set("the hook")

        def on_response(self, event):
            seen.append(("response", who.get(), current_reply().id))

    who.set("the caller")
    script = [call("look"), call("look_in_thread")]
    async with AgentController(ScriptedProvider(script, "ok"), controllers=[Hooks()]) as agent:
        reply = await agent.send("hi")
        await reply.result()
        await passes()
    assert sorted(seen) == sorted(
        [
            ("request", "the caller", reply.id),
            ("tool", "the hook", reply.id),
            ("thread", "the hook", reply.id),
            ("response", "the hook", reply.id),
        ]
    )
    assert who.get() == "the caller"
    with pytest.raises(UsageError):
        current_reply()


async def test_tools_know_their_send_without_any_hook() -> None:
    """TC §2: `current_reply` needs no controller."""
    seen = []

    @tool
    def look() -> str:
        """Looks."""
        seen.append(current_reply().id)
        return "x"

    async with AgentController(ScriptedProvider([call("look")], "ok"), tools=[look]) as agent:
        reply = await agent.send("hi")
        await reply.result()
    assert seen == [reply.id]


async def test_a_sync_hook_that_holds_the_loop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """TC-96."""

    def slow(event):
        began = time.perf_counter()
        while time.perf_counter() - began < 0.12:
            pass

    async with AgentController(
        ScriptedProvider("ok"), controllers=[Plain(Told(), "slow", request=slow)]
    ) as agent:
        caplog.set_level(logging.WARNING, "pilothouse.conversation")
        await (await agent.send("hi")).result()
    assert "on_request of slow held the event loop" in caplog.text


async def test_a_hook_that_will_not_end_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    """TC-96: after its time, and a second more; the send goes on without it."""
    clock, gate = StepClock(), asyncio.Event()

    async def deaf():
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    agent = AgentController(
        ScriptedProvider("ok"),
        controllers=[Plain(Told(), "deaf", request=lambda event: deaf(), is_async=True)],
        clock=clock,
        hook_timeout=2,
    )
    sending = asyncio.ensure_future(agent.send("hi"))
    await clock.until_sleeping()
    await clock.advance(2)
    assert not sending.done()
    await clock.advance(1)
    with pytest.raises(TimeoutError):
        await sending
    assert "goes on although it was cancelled" in caplog.text
    gate.set()
    await agent.aclose()


async def test_a_hook_without_a_limit() -> None:
    """AC-70: 0 is no limit."""
    clock, gate = StepClock(), asyncio.Event()
    agent = AgentController(
        ScriptedProvider("ok"), request_listener=lambda event: gate.wait(), clock=clock, hook_timeout=0
    )
    sending = asyncio.ensure_future(agent.send("hi"))
    await passes()
    await clock.advance(100_000)
    assert not sending.done()
    gate.set()
    assert (await (await sending).result()).text == "ok"
    await agent.aclose()


async def test_a_caller_who_leaves_takes_the_send_along() -> None:
    """AC-51: while a hook runs; end hooks are told."""
    plain = Plain(Told(), "p", request=lambda event: asyncio.Event().wait(), is_async=True)
    async with AgentController(ScriptedProvider("ok"), controllers=[plain]) as agent:
        sending = asyncio.ensure_future(agent.send("hi"))
        await passes()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await passes()
        assert [event.ending for event in plain.responses] == ["cancelled"]
        assert agent.state == "idle"


async def test_superseding_a_send_whose_end_is_fixed() -> None:
    """TC-90, AC-82: its answer is shown, then the new one goes; hooks in turn."""
    gate = asyncio.Event()
    plain = Plain(Told(), "p", response=lambda event: gate.wait(), is_async=True)
    async with AgentController(ScriptedProvider("one", "two"), controllers=[plain]) as agent:
        first = await agent.send("1")
        while not plain.responses:
            await asyncio.sleep(0)
        second = asyncio.ensure_future(agent.send("2", when_busy="supersede"))
        await passes()
        assert first.ending == "completed"
        gate.set()
        assert (await (await second).result()).text == "two"
        assert [message.text for message in agent.messages] == ["1", "one", "2", "two"]


async def test_resetting_while_end_hooks_run() -> None:
    """AC-84: what is fixed is fixed; the conversation is empty then."""
    gate = asyncio.Event()
    plain = Plain(Told(), "p", response=lambda event: gate.wait(), is_async=True)
    async with AgentController(ScriptedProvider("one", "two"), controllers=[plain]) as agent:
        first = await agent.send("1")
        while not plain.responses:
            await asyncio.sleep(0)
        agent.reset()
        assert (first.ending, agent.messages, agent.state) == ("completed", (), "idle")
        gate.set()
        await passes()
        assert (agent.messages, agent.state) == ((), "idle")
        assert (await (await agent.send("2")).result()).text == "two"


async def test_a_paused_answer_is_whole_for_the_end_hooks() -> None:
    """AC-54, TC-16: what waits in the buffer was received."""
    hold = Hold()
    plain = Plain(Told(), "p")
    async with AgentController(ScriptedProvider(["a", hold, "b"]), controllers=[plain]) as agent:
        reply = await agent.send("1")
        await hold.reached()
        agent.pause()
        hold.release()
        await reply.wait()
        await passes()
        assert [event.text for event in plain.responses] == ["ab"]


async def test_bad_options_change_nothing() -> None:
    """TC §8, AC-163."""
    agent = AgentController(ScriptedProvider("ok"))
    for name in ("request_listener", "response_listener", "send_context"):
        with pytest.raises(ConfigError, match=name):
            agent.update_options(**{name: 5})
    for bad in ({"when_busy": "wait"}, {"queue_limit": 0}):
        with pytest.raises(ConfigError):
            agent.update_options(**bad)
    assert agent.options["request_listener"] is None
    await agent.aclose()


async def test_sends_of_hooks_are_busy_while_the_send_lives() -> None:
    """AC-69: from an end hook it is busy; as a task of its own it comes next."""
    tasks = []

    async def again(event):
        if event.text == "one":
            with pytest.raises(AgentBusy):
                await agent.send("now")
            tasks.append(asyncio.create_task(agent.send("then", when_busy="queue")))

    plain = Plain(Told(), "p", response=again, is_async=True)
    async with AgentController(ScriptedProvider("one", "two"), controllers=[plain]) as agent:
        await (await agent.send("1")).result()
        assert (await (await tasks[0]).result()).text == "two"


async def test_many_sends_with_hooks_leave_nothing_behind() -> None:
    """AC-87: no task, no reply, no hook."""
    plain = Plain(Told(), "p")
    agent = AgentController(
        ScriptedProvider(["a"], repeat=True), controllers=[plain], interceptor=lambda e: None
    )
    others = asyncio.all_tasks()
    async with agent:
        for number in range(100):
            sending = asyncio.ensure_future(agent.send("hi"))
            if number % 2:
                await passes(number % 7)
                agent.abort()
            await (await sending).wait()
            if number % 25 == 0:
                agent.reset()
        await passes(100)
        assert len(plain.responses) == 100
        assert agent._sender.around is None
    await passes()
    assert asyncio.all_tasks() == others


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("place", "ending"),
    [
        ("interceptor", "failed"),
        ("request", "failed"),
        ("send_context", "failed"),
        ("request_listener", "failed"),
        ("response", "completed"),
        ("response_listener", "completed"),
    ],
)
def test_what_ends_a_process_settles_the_send(
    place: str, ending: str, is_async: bool, stop: type[BaseException]
) -> None:
    """TC-20, proof 3: no further hook runs, the send has its end, and it propagates."""
    told = Told()
    agents = []

    def now(event):
        raise stop

    async def later(event):
        raise stop

    hook = later if is_async else now
    at = {place: hook, "is_async": is_async} if place in ("request", "response") else {}
    options = {} if at else {place: hook}

    async def main() -> None:
        agent = AgentController(
            ScriptedProvider("ok"),
            controllers=[Plain(told, "a"), Plain(told, "b", **at)],
            **options,
        )
        agents.append(agent)
        reply = await agent.send("hi")
        await reply.wait()
        await passes(100)

    with pytest.raises(stop):
        asyncio.run(main())
    (agent,) = agents
    names = [name for name in told.names() if name.startswith("response")]
    expected = {"response": ["response b"], "response_listener": ["response b", "response a"]}
    assert names == expected.get(place, [])
    assert agent.last_reply is not None
    assert agent.last_reply.ending == ending
    assert agent.reply is None
