"""Limits, stops, replacements, the end: what the state, the text and the reply say (AC-70 … AC-103, AC-120, AC-121)."""

from __future__ import annotations

import asyncio
import gc
import math
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest

from convkit import Log, SlowJournal, passes, texts, until
from pilothouse.conversation.controller import AgentController
from pilothouse.conversation.reply import ReplyPhase
from pilothouse.core.lifecycle import AgentState
from pilothouse.errors import (
    AgentBusy,
    AgentClosed,
    ConfigError,
    JournalFull,
    ReplyCancelled,
    ReplyFailed,
    ReplyIncomplete,
    SendTimeout,
    StreamEndedEarly,
    StreamIdleTimeout,
    UsageError,
)
from pilothouse.events import Cancelled, Completed, Failed, Incomplete, Unknown
from pilothouse.loop.tools import tool
from pilothouse.messages import Message, Text
from pilothouse.responses import ResponseStarted, StreamEnd
from pilothouse.testing.clock import StepClock
from pilothouse.testing.scripted import Cut, Hold, ScriptedProvider, Sleep, call, failure

LONGEST = 2_147_483.0


@pytest.mark.parametrize("how", ["constructor", "update"])
@pytest.mark.parametrize(
    "name", ["send_timeout", "stream_idle_timeout", "close_timeout", "hook_timeout", "reply_timeout"]
)
@pytest.mark.parametrize(
    ("value", "result", "warns"),
    [
        (None, "default", 0), (0, math.inf, 0), (-0.0, math.inf, 0), (-3, math.inf, 0), (math.inf, math.inf, 0),
        (-math.inf, math.inf, 0), (math.nan, "default", 1), ("5", "default", 1), (b"5", "default", 1),
        (True, "default", 1), (False, "default", 1), (1j, "default", 1), ([], "default", 1),
        (object(), "default", 1), (timedelta(minutes=1), 60.0, 0), (timedelta(), math.inf, 0), (Decimal("1.5"), 1.5, 0),
        (Decimal("NaN"), "default", 1), (Fraction(1, 2), 0.5, 0), (1e-9, 1e-9, 0), (3e6, LONGEST, 0),
        (10**400, LONGEST, 0), (-(10**400), math.inf, 0),
    ],
)  # fmt: skip
def test_the_sanitizing_table(
    how: str, name: str, value: object, result: object, warns: int, caplog: pytest.LogCaptureFixture
) -> None:
    """AC-70, proof 13: in constructor and update; one warning, naming option and type."""
    defaults = {"close_timeout": 5.0, "hook_timeout": 30.0, "reply_timeout": math.inf}
    if how == "constructor":
        agent = AgentController(ScriptedProvider(), **{name: value})
    else:
        agent = AgentController(ScriptedProvider(), **{name: 7})
        agent.update_options(**{name: value})
    assert agent.options[name] == (defaults.get(name, 60.0) if result == "default" else result)
    assert len(caplog.records) == warns
    assert all(name in r.getMessage() and type(value).__name__ in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize("how", ["constructor", "update"])
@pytest.mark.parametrize(
    ("name", "value", "result"),
    [
        ("max_messages", None, 200), ("max_messages", math.inf, math.inf), ("max_messages", 1, 1),
        ("max_message_length", None, 100_000), ("max_attachment_bytes", None, 20_000_000),
        ("queue_limit", None, 16), ("pause_buffer", 0, 0), ("pause_buffer", None, 1_000_000),
        ("max_messages", 0, None), ("max_messages", math.nan, None), ("max_messages", 2.0, None),
        ("max_messages", True, None), ("max_messages", "5", None), ("queue_limit", math.inf, None),
        ("queue_limit", 0, None), ("pause_buffer", math.inf, None), ("pause_buffer", -1, None),
    ],
)  # fmt: skip
def test_counts_are_not_sanitized(how: str, name: str, value: object, result: object) -> None:
    """AC-71, AC-163: a bad one is a ConfigError naming option and value, and changes nothing."""

    def make():
        if how == "constructor":
            return AgentController(ScriptedProvider(), **{name: value})
        agent = AgentController(ScriptedProvider())
        before = dict(agent.options)
        try:
            agent.update_options(model="m", **{name: value})
        except ConfigError:
            assert dict(agent.options) == before
            raise
        return agent

    if result is None:
        with pytest.raises(ConfigError, match=name):
            make()
    else:
        assert make().options[name] == result


@pytest.mark.parametrize(
    "options",
    [{"nonsense": 1}, {"on_error": 3}, {"params": {1: 2}}, {"params": {"a": object()}}, {"model": 3},
     {"system_prompt": 3}, {"when_busy": "wait"}, {"params": [1]}, {"params": {"x": math.nan}}],
)  # fmt: skip
def test_bad_options_are_named(options: dict) -> None:
    """AC-163: with the valid names."""
    with pytest.raises(ConfigError) as caught:
        AgentController(ScriptedProvider(), **options)
    assert next(iter(options)) in str(caught.value)


class Timed:
    """A conversation on a step clock."""

    def __init__(self, *scripts, tools=(), **options) -> None:
        self.clock = StepClock()
        self.provider = ScriptedProvider(*scripts, clock=self.clock)
        self.log = Log()
        self.agent = AgentController(self.provider, clock=self.clock, tools=tools, **options)
        self.agent.subscribe(self.log)

    async def send(self, seconds: float = 0.0):
        """Sends, lets so many seconds pass, gives the send's task."""
        task = asyncio.ensure_future(self.agent.send("hi"))
        await self.clock.advance(seconds)
        return task


async def test_a_provider_that_never_answers_is_bounded_to_the_moment() -> None:
    """AC-73, AC-74, AC-97: raced, also against one that ignores everything; nothing of it comes back later."""
    hold = Hold(deaf=True)
    timed = Timed("before", [hold, "late"], "next", send_timeout=3)
    agent = timed.agent
    await (await (await timed.send())).result()
    task = await timed.send(2.999)
    assert agent.state is AgentState.SENDING
    await timed.clock.advance(0.001)
    await timed.clock.advance(1)
    reply = await task
    assert isinstance(reply.error, SendTimeout)
    assert isinstance(reply.error, TimeoutError)
    assert (agent.state, agent.current_response_text, reply.partial) == (AgentState.ERROR, "before", None)
    assert timed.log.names().count("error") == 1
    hold.release()
    await timed.clock.advance(1)
    assert (agent.state, texts(agent)) == (AgentState.ERROR, ["hi", "before", "hi"])
    assert (await (await (await timed.send())).result()).text == "next"
    await agent.aclose()


async def test_answered_exactly_at_the_deadline_is_timed_out() -> None:
    """AC-74: `now >= deadline`; no response start."""
    timed = Timed([Sleep(3), "x"], send_timeout=3)
    reply = await (await timed.send(4))
    assert isinstance(reply.error, SendTimeout)
    assert "start" not in timed.log.names()
    await timed.agent.aclose()


async def test_the_limits_are_independent_and_a_pause_is_not_silence() -> None:
    """AC-75, AC-57, AC-77, AC-78: a 0.6 s pause under 0.3 s of allowed silence, then a full window."""
    hold = Hold()
    timed = Timed(["a", Sleep(0.1), "b", hold], stream_idle_timeout=0.3, send_timeout=0)
    agent = timed.agent
    reply = await (await timed.send(0.05))
    agent.pause()
    await timed.clock.advance(0.6)
    assert agent.state is AgentState.PAUSED
    agent.resume()
    await timed.clock.advance(0.29)
    assert (agent.state, reply.text) == (AgentState.STREAMING, "ab")
    await timed.clock.advance(0.02)
    await timed.clock.advance(1)
    assert isinstance(reply.error, StreamIdleTimeout)
    assert str(reply.error) == "stream silent for 0.3 s after 2 characters"
    assert (agent.state, agent.partial.text) == (AgentState.ERROR, "ab")
    assert timed.clock.sleeping == 0 or await agent.aclose() is None
    await agent.aclose()


async def test_silence_before_the_first_piece_counts_and_tools_do_not() -> None:
    """AC-75, proof 12: idle covers the first piece; a long tool under a short limit is no silence."""
    timed = Timed([ResponseStarted(), Hold()], stream_idle_timeout=2)
    reply = await (await timed.send())
    await timed.clock.advance(3)
    assert isinstance(reply.error, StreamIdleTimeout)
    assert reply.partial.text == ""
    await timed.agent.aclose()

    @tool
    async def slow() -> str:
        """Slow."""
        await timed.clock.sleep(30)
        return "seen"

    timed = Timed([call("slow")], "done", tools=[slow], stream_idle_timeout=2, send_timeout=2)
    task = await timed.send(40)
    assert (await (await task).result()).text == "done"
    await timed.agent.aclose()


async def test_the_whole_send_has_a_limit_of_its_own_that_pauses_do_not_use_up() -> None:
    """TC-95, AC-92: Incomplete("limit", "deadline"), complete, the partial kept."""
    timed = Timed(["a", *[item for _ in range(20) for item in (Sleep(1), "x")]], reply_timeout=3)
    agent = timed.agent
    reply = await (await timed.send(1.5))
    agent.pause()
    await timed.clock.advance(10)
    agent.resume()
    assert agent.is_busy
    await timed.clock.advance(1.4)
    assert agent.is_busy
    await timed.clock.advance(0.2)
    assert reply.outcome == Incomplete("limit", "deadline")
    assert (agent.state, reply.partial.text) == (AgentState.COMPLETE, reply.text)
    with pytest.raises(ReplyIncomplete, match="limit deadline"):
        await reply.result()
    await agent.aclose()


@pytest.mark.parametrize(
    ("script", "outcome", "state", "partial", "error"),
    [
        (["ans", StreamEnd("content_filter")], Incomplete, AgentState.COMPLETE, None, None),
        (["some", failure("server_error")], Failed, AgentState.ERROR, "some", "ProviderError"),
        (["some", Cut()], Unknown, AgentState.ERROR, "some", "StreamEndedEarly"),
        (failure("auth"), Failed, AgentState.ERROR, None, "ProviderError"),
    ],
)
async def test_text_partial_and_outcome_by_end(script, outcome, state, partial, error) -> None:
    """AC-90 … AC-97, proof 15: with what `result()`, `wait()` and the iterators do."""
    async with AgentController(ScriptedProvider(script)) as agent:
        reply = await agent.send("hi")
        assert isinstance(await reply.wait(), outcome)
        assert agent.state is state
        assert (reply.partial.text if reply.partial else None) == partial
        assert (type(reply.error).__name__ if reply.error else None) == error
        assert agent.error is reply.error
        assert agent.partial is reply.partial
        read = []

        async def iterate():
            async for piece in reply:
                read.append(piece)

        if outcome is Incomplete:
            await iterate()
            with pytest.raises(ReplyIncomplete):
                await reply.result()
        else:
            with pytest.raises(ReplyFailed):
                await iterate()
            with pytest.raises(ReplyFailed):
                await reply.result()
        assert "".join(read) == reply.text


async def test_a_stop_between_the_responses_leaves_no_partial() -> None:
    """AC-95: no response was open (tools); what finished stays, the call has its one result."""
    gate = Hold()

    @tool
    async def slow() -> str:
        """Slow."""
        await gate.wait()
        return "seen"

    async with AgentController(ScriptedProvider(["Let me.", call("slow")], "next"), tools=[slow]) as agent:
        reply = await agent.send("hi")
        await gate.reached()
        assert reply.phase is ReplyPhase.WORKING
        assert agent.abort()
        assert (reply.partial, agent.state, texts(agent)) == (None, AgentState.IDLE, ["hi", "Let me."])
        assert await reply.wait_closed(5)
        assert [message.role for message in agent.messages] == ["user", "assistant", "tool"]
        following = await agent.send("more")
        await following.result()
        path = await agent.runs.history(following.id)
        assert [message.id for message in agent.messages] == [entry.message.id for entry in path]


async def test_the_messages_are_the_path_when_the_end_was_durable_before_the_stop() -> None:
    """AC-82: what was handed over before the stop stands on the record, and in the messages."""
    for stop_after in range(0, 40, 2):
        agent = AgentController(ScriptedProvider(["a", "b"], "next"), journal=SlowJournal())
        task = asyncio.ensure_future(agent.send("hi"))
        await passes(stop_after)
        agent.abort()
        reply = await task
        assert await reply.wait_closed(5)
        if not reply.committed:
            assert agent.messages == ()
        following = await agent.send("more")
        await following.result()
        path = await agent.runs.history(following.id)
        shown = [entry.message.id for entry in path if entry.complete]
        assert [message.id for message in agent.messages] == shown, stop_after
        await agent.aclose()


async def test_iterators_early_late_two_and_slow() -> None:
    """AC-102: all text of the send from its start, in order; who is slow gets pieces joined."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["a", "b", hold, "c", "d"])) as agent:
        reply = await agent.send("hi")

        async def read(slowly: bool) -> list[str]:
            found = []
            async for piece in reply:
                found.append(piece)
                if slowly:
                    await passes(50)
            return found

        early, slow = asyncio.ensure_future(read(False)), asyncio.ensure_future(read(True))
        await hold.reached()
        await passes()
        hold.release()
        assert "".join(await early) == "abcd"
        found = await slow
        assert "".join(found) == "abcd"
        assert "" not in found
        assert "".join(await read(False)) == "abcd"


async def test_aclose_is_bounded_idempotent_and_shared() -> None:
    """AC-87, AC-166, proof 21: with a live send and a deaf provider; reads go on working."""
    clock, hold = StepClock(), Hold(deaf=True)
    agent = AgentController(ScriptedProvider(["a", hold]), clock=clock)
    reply = await agent.send("hi")
    await hold.reached()
    closing = [asyncio.ensure_future(agent.aclose()) for _ in range(2)]
    await passes()
    assert (agent.state, reply.outcome) == (AgentState.IDLE, Cancelled("closed"))
    for _ in range(20):
        await clock.advance(1)
    await asyncio.gather(*closing)
    await agent.aclose()
    assert (agent.state, texts(agent), agent.partial.text) == (AgentState.IDLE, ["hi"], "a")
    with pytest.raises(AgentClosed, match="cannot send while closed"):
        await agent.send("x")
    with pytest.raises(AgentClosed):
        await agent.retry()
    assert not agent.abort()
    agent.pause()
    agent.resume()
    hold.release()
    await passes()
    assert [task for task in asyncio.all_tasks() if "pilothouse" in task.get_name()] == []


async def test_a_reply_and_a_close_from_another_thread_are_refused() -> None:
    """AC-121: as every call that changes something; the send goes on."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["1", hold])) as agent:
        reply = await agent.send("a")
        with pytest.raises(UsageError, match="call_soon_threadsafe"):
            await asyncio.to_thread(reply.abort)
        for act in (agent.aclose, reply.aclose):
            with pytest.raises(UsageError, match="threadsafe"):
                await asyncio.to_thread(lambda act=act: asyncio.run(act()))
        hold.release()
        assert (await reply.result()).text == "1"
        assert await asyncio.to_thread(reply.abort) is False


async def test_a_close_whose_caller_left_is_finished_by_the_next() -> None:
    """AC-87: idempotent and shared, and so not done because somebody began it."""
    hold = Hold(deaf=True)
    agent = AgentController(ScriptedProvider(["1", hold]), close_timeout=0)
    await agent.send("a")
    first = asyncio.ensure_future(agent.aclose())
    second = asyncio.ensure_future(agent.aclose())
    await passes()
    first.cancel()
    await passes()
    assert first.cancelled()
    assert not second.done()
    hold.release()
    await asyncio.wait_for(second, 5)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_aclose_from_an_async_callback_does_not_wait_for_itself() -> None:
    """AC-67, AC-87: the clock stands still, so nothing that is bounded by it is waited for."""
    done = asyncio.Event()

    async def complete(message):
        await agent.aclose()
        done.set()

    clock = StepClock()
    agent = AgentController(ScriptedProvider("x"), clock=clock, on_response_complete=complete)
    await (await agent.send("hi")).result()
    async with asyncio.timeout(10):
        await done.wait()
    assert clock.monotonic() == 0


async def test_aclose_waits_for_async_callbacks_up_to_its_limit(caplog: pytest.LogCaptureFixture) -> None:
    """AC-67: bounded; what is left is cancelled and logged."""
    clock, ended = StepClock(), []

    async def complete(message):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    agent = AgentController(
        ScriptedProvider("x"), clock=clock, on_response_complete=complete, close_timeout=2
    )
    await (await agent.send("hi")).result()
    closing = asyncio.ensure_future(agent.aclose())
    await clock.advance(3)
    await closing
    await passes()
    assert ended == [1]
    assert "async callbacks" in caplog.text
    caplog.clear()


async def test_a_collected_conversation_says_so_and_stops() -> None:
    """AC-87: ResourceWarning, tasks cancelled."""
    provider = ScriptedProvider(["a", Hold()])
    agent = AgentController(provider)
    reply = await agent.send("hi")
    kept = [agent]
    del agent
    with pytest.warns(ResourceWarning, match="collected with a live send"):
        kept.clear()
    assert await reply.wait() == Cancelled("collected")
    await passes(100)
    assert provider.open == 0


async def test_leaving_a_reply_aborts_what_has_not_ended() -> None:
    """AC-120: and touches nothing of a later send; `abort()` when idle cannot harm the next one."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["a", hold], ["b", hold])) as agent:
        async with await agent.send("1") as first:
            await hold.reached()
        assert first.outcome == Cancelled("aborted")
        assert not agent.abort()
        second = await agent.send("2")
        assert not first.abort()
        assert agent.reply is second
        hold.release()
        assert (await second.result()).text == "b"
        assert not second.abort()
        with pytest.raises(ReplyCancelled, match="after 1 characters"):
            await first.result()


@pytest.mark.parametrize("state", ["idle", "sending", "streaming", "paused", "complete", "error"])
async def test_replacing_in_every_state(state: str, caplog: pytest.LogCaptureFixture) -> None:
    """AC-15 … AC-18, AC-84 … AC-86, proof 20: set_provider, set_messages, update_options, reset."""
    for action in ("set_provider", "set_messages", "update_options", "reset"):
        caplog.clear()
        agent, hold, task = await _in_state(state)
        busy = state in ("sending", "streaming", "paused")
        before = agent.messages
        if action == "set_messages":
            fresh = [Message("m1", "user", (Text("restored"),)), {"id": "m2", "role": "assistant"}]
            if busy:
                with pytest.raises(AgentBusy):
                    agent.set_messages(fresh)
                assert (agent.messages, agent.state.value) == (before, state)
            else:
                with pytest.raises(TypeError, match=r"messages\[1\]"):
                    agent.set_messages([fresh[0], 3])
                with pytest.raises(ValueError, match=r"messages\[0\]"):
                    agent.set_messages([{"id": 1}])
                with pytest.raises(ValueError, match="unique"):
                    agent.set_messages([fresh[0], fresh[0]])
                assert agent.messages == before
                agent.set_messages(fresh)
                assert ([m.id for m in agent.messages], agent.state.value) == (["m1", "m2"], state)
                assert agent.last_reply is None
        elif action == "update_options":
            agent.update_options(model="m")
            assert (agent.options["model"], agent.state.value) == ("m", state)
        elif action == "reset":
            thread = agent.thread_id
            agent.reset()
            assert (agent.messages, agent.current_response_text, agent.state.value) == ((), "", "idle")
            assert (agent.error, agent.partial, agent.last_reply) == (None, None, None)
            assert (agent.thread_id != thread) == (state != "idle")
        else:
            agent.set_provider(other := ScriptedProvider("other"))
            assert agent.provider is other
            assert agent.state.value == ("complete" if state == "complete" else "idle")
            assert (f"set_provider while {state}" in caplog.text) == (state not in ("idle", "complete"))
            if busy:
                assert agent.last_reply.outcome == Cancelled("set_provider")
        hold.release()
        if task is not None:
            await (await task).wait_closed(5)
        await agent.aclose()
    caplog.clear()


async def _in_state(state: str):
    hold = Hold()
    scripts = {"sending": [hold], "streaming": ["a", hold], "paused": ["a", hold], "error": failure("auth")}
    agent = AgentController(ScriptedProvider(scripts.get(state, "x"), "next"))
    task = None
    if state != "idle":
        task = asyncio.ensure_future(agent.send("hi"))
        if state in ("complete", "error"):
            await until(agent, AgentState(state))
        else:
            await hold.reached()
        if state == "paused":
            agent.pause()
    assert agent.state.value == state
    return agent, hold, task


async def test_a_replaced_conversation_is_recorded_with_its_next_run() -> None:
    """AC-85: the base of a new thread."""
    provider = ScriptedProvider("x")
    async with AgentController(provider, max_messages=3) as agent:
        agent.set_messages([Message("m1", "system", (Text("be kind"),))])
        reply = await agent.send("hi")
        await reply.result()
        assert [message.text for message in provider.requests[0].messages] == ["be kind", "hi"]
        assert (await agent.runs.history(reply.id))[0].message.id == "m1"


async def test_a_full_provider_that_cancels_itself_has_failed() -> None:
    """AC-101: nobody stopped it."""
    async with AgentController(ScriptedProvider(["a", Cut(asyncio.CancelledError())])) as agent:
        reply = await agent.send("hi")
        outcome = await reply.wait()
        assert isinstance(outcome, Failed | Unknown)
        assert agent.state is AgentState.ERROR
        assert isinstance(reply.error, StreamEndedEarly | Exception)


async def test_two_thousand_sends_leave_nothing_behind() -> None:
    """Proof 21: half of them stopped at any moment: no task, no open stream, no reply kept."""
    provider = ScriptedProvider(["a", "b", "c"], repeat=True)
    async with AgentController(provider, max_messages=math.inf) as agent:
        for number in range(400):
            task = asyncio.ensure_future(agent.send("hi"))
            if number % 2:
                await passes(number % 9)
                agent.abort()
            await (await task).wait()
            if number % 50 == 0:
                agent.reset()
        await passes(200)
        assert provider.open == 0
        del task
        gc.collect()
        assert len(agent._sender._replies) <= 3
        assert len(asyncio.all_tasks()) < 10
    assert await agent.last_reply.wait() in (Completed(), Cancelled("aborted"))


async def test_a_journal_that_stays_away_makes_the_outcome_unknown_and_catches_up_later() -> None:
    """AC-101, RC-15: the text is in the partial; the answer enters the messages once it is recorded."""

    class Full(SlowJournal):
        full = False

        async def append(self, *args, **named):
            if self.full:
                raise JournalFull("no space left")
            return await super().append(*args, **named)

    journal, clock, hold = Full(), StepClock(), Hold()
    agent = AgentController(ScriptedProvider(["a", hold, "b"], "next"), journal=journal, clock=clock)
    reply = await agent.send("hi")
    await hold.reached()
    journal.full = True
    hold.release()
    await clock.advance(0.1)
    assert isinstance(await reply.wait(), Unknown)
    assert (agent.state, reply.partial.text, texts(agent)) == (AgentState.ERROR, "ab", ["hi"])
    journal.full = False
    await clock.advance(10)
    assert await reply.wait_closed()
    assert texts(agent) == ["hi", "ab"]
    assert (await (await agent.send("more")).result()).text == "next"
    await agent.aclose()


@pytest.mark.parametrize("way", ["answer", "abort"])
async def test_a_question_that_waits_for_hours_does_not_lose_its_conversation(way: str) -> None:
    """RC-51, AC-79: the run is let go meanwhile; an answer goes on with it, a stop still ends it at once."""

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    clock = StepClock()
    provider = ScriptedProvider([call("pay")], "done", "next")
    async with AgentController(provider, tools=[pay], clock=clock) as agent:
        reply = await agent.send("hi")
        await until_phase(reply, ReplyPhase.ASKING)
        await clock.advance(4000)
        view = await reply.run.inspect()
        assert (view.ownership, agent.state, reply.phase) == (
            "parked",
            AgentState.STREAMING,
            ReplyPhase.ASKING,
        )
        if way == "answer":
            await reply.run.approve(view.requests[0].id)
            assert (await reply.result()).text == "done"
            assert [message.role for message in agent.messages] == ["user", "assistant", "tool", "assistant"]
        else:
            assert agent.abort()
            assert (agent.state, reply.outcome) == (AgentState.IDLE, Cancelled("aborted"))
            assert await reply.wait_closed()
            assert (await reply.run.inspect()).status == "cancelled"
            provider.add("x")
            await (await agent.send("more")).result()


async def until_phase(reply, phase: ReplyPhase) -> None:
    for _ in range(500):
        if reply.phase is phase:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"still {reply.phase}")


def test_after_its_event_loop_a_conversation_says_that_it_has_ended() -> None:
    """AC-121, AC-166: not that somebody came from another thread; and what a closed one does not mind stays a no-op."""
    agent = AgentController(ScriptedProvider("1"))

    async def use() -> None:
        await (await agent.send("a")).result()

    asyncio.run(use())
    for act in (agent.abort, agent.pause, agent.reset, lambda: agent.set_messages([])):
        with pytest.raises(UsageError, match=r"has ended, so make a conversation in each asyncio\.run"):
            act()
    asyncio.run(agent.aclose())
    assert agent.abort() is False
    agent.pause()
    agent.resume()
