"""Every way in which a send with controllers can end: what is called, what is raised, what stays (TC §3.5)."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from controlkit import Number, Plain, Told, raising
from convkit import Log, SlowJournal, passes, texts
from pilothouse import AgentController, AgentState, MemoryJournal
from pilothouse.errors import (
    AgentBusy,
    CommitFailed,
    HookError,
    HookTimeout,
    JournalFull,
    ProviderError,
    ReplyFailed,
    ReplyTimeout,
    SendAbandoned,
    SendRefused,
    SendTimeout,
    StreamEndedEarly,
)
from pilothouse.events import Failed
from pilothouse.loop.config import Limits, LoopConfig
from pilothouse.responses import StreamEnd
from pilothouse.testing import Hold, ScriptedProvider, StepClock
from pilothouse.testing.scripted import Cut, Sleep, call, failure


class Rig:
    """Two controllers, both listeners, an interceptor; everything written down."""

    def __init__(self, *scripts, first=None, second=None, **options) -> None:
        self.told = Told()
        self.first = Plain(self.told, "a", **(first or {}))
        self.second = Plain(self.told, "b", **(second or {}))
        self.ends = []
        self.log = Log()
        self.provider = ScriptedProvider(*(scripts or ["ok"]), clock=options.get("clock"))
        options.setdefault("request_listener", lambda event: self.told.append(("RL",)))
        self.agent = AgentController(
            self.provider,
            controllers=[self.first, self.second],
            response_listener=lambda event: (self.told.append(("PL",)), self.ends.append(event)),
            **options,
        )
        self.agent.subscribe(self.log)
        self.told.clear()

    def calls(self) -> list[str]:
        return [name for name in self.told.names() if not name.startswith("tools")]

    def check(self, begun: str, rl: bool, ends: bool) -> None:
        """Who was called: `begun` keys, the request listener, and the end hooks of all."""
        expected = [f"request {key}" for key in begun]
        if rl:
            expected.append("RL")
        if ends:
            expected += ["response b", "response a", "PL"]
        assert [name for name in self.calls() if not name.startswith("touch")] == expected
        for event in [*self.first.responses, *self.second.responses, *self.ends]:
            assert event.begun == set(begun)


async def ended(rig: Rig, sending) -> BaseException | None:
    try:
        await sending
    except BaseException as error:
        return error
    return None


BOOM = RuntimeError("boom")


# Before the commit


@pytest.mark.parametrize(
    ("how", "begun", "rl"),
    [
        ({"interceptor": raising(BOOM)}, "", False),
        ({"first": {"request": BOOM}}, "a", False),
        ({"second": {"request": BOOM}}, "ab", False),
        ({"second": {"request": BOOM, "is_async": True}}, "ab", False),
        ({"send_context": raising(BOOM)}, "ab", False),
        ({"request_listener": raising(BOOM)}, "ab", False),
    ],
    ids=["interceptor", "first", "second", "async", "context", "listener"],
)
async def test_what_raises_before_the_commit_fails_the_send(how, begun, rl) -> None:
    """TC-6, TC-8 … TC-10, TC-17, TC-32, TC-42, TC-45: the same exception is raised; everybody is told; the next send works.

    No text is invented: the draft is on the reply, nothing in the conversation or at the provider.
    """
    rig = Rig("ok", **how)
    agent = rig.agent
    error = await ended(rig, agent.send("hi"))
    assert error is BOOM
    rig.check(begun, rl, ends=True)
    for event in [*rig.first.responses, *rig.second.responses, *rig.ends]:
        assert (event.ending, event.error, event.text) == ("failed", BOOM, "")
    reply = agent.last_reply
    assert reply is not None
    assert (reply.committed, reply.ending, reply.user_message.text) == (False, "failed", "hi")
    assert (agent.state, agent.messages, rig.provider.requests) == (AgentState.IDLE, (), [])
    assert "error" not in rig.log.names()  # told in exactly one of the two ways
    rig.first.at.clear()
    rig.second.at.clear()
    agent.update_options(send_context=None, request_listener=None)
    if "interceptor" not in how:
        assert (await (await agent.send("again")).result()).text == "ok"
    await agent.aclose()


async def test_hooks_run_where_the_conversation_lives() -> None:
    """TC-3, TC-11: on the event loop that owns it and in its thread, also behind a tool in a worker thread."""
    seen: list[tuple[object, int]] = []
    told = Told()

    def look(_: object = None) -> None:
        seen.append((asyncio.get_running_loop(), threading.get_ident()))

    def work() -> str:
        """Works, in a worker thread."""
        assert threading.get_ident() != threading.main_thread().ident
        return "done"

    plain = Plain(told, "a", request=look, response=look)
    async with AgentController(
        ScriptedProvider([call("work")], "ok"), controllers=[plain], tools=[work], response_listener=look
    ) as agent:
        await (await agent.send("hi")).wait_closed()
    assert seen == [(asyncio.get_running_loop(), threading.get_ident())] * 3


async def test_a_tool_never_ends_a_send_by_itself() -> None:
    """TC-51, TC-55: one that raises, one that is unknown, arguments that are no JSON: the model goes on, the end is none of it."""

    def fall() -> str:
        """Falls."""
        raise RuntimeError("no text of mine reaches the model")

    script = [call("fall"), call("nosuch"), call("a__touch", "{no json")]
    told = Told()
    plain = Plain(told, "a")
    provider = ScriptedProvider(script, "ok")
    async with AgentController(provider, controllers=[plain], tools=[fall]) as agent:
        reply = await agent.send("hi")
        assert (await reply.result()).text == "ok"
        await reply.wait_closed()
    results = [message for message in provider.requests[-1].messages if message.role == "tool"]
    assert [message.is_error for message in results] == [True, True, True]
    assert "no text of mine" not in str(provider.requests)
    (event,) = plain.responses
    assert (event.ending, event.error, event.text) == ("completed", None, "ok")
    assert event.metadata is not None


async def test_a_get_tools_that_fails_in_a_send_refuses_it() -> None:
    """TC-2, TC-64: asked once a send, behind every on_request; it may fail there, before the commit."""
    rig = Rig("ok")
    rig.second.at["tools"] = BOOM
    assert await ended(rig, rig.agent.send("hi")) is BOOM
    rig.check("ab", rl=False, ends=True)
    rig.second.at.clear()
    await (await rig.agent.send("hi")).result()
    await rig.agent.aclose()


async def test_an_unasked_cancelled_error_is_the_hooks_failure() -> None:
    """TC-20: nobody cancelled the send: it fails with an error that says whose hook did."""
    for is_async in (False, True):
        rig = Rig("ok", second={"request": asyncio.CancelledError(), "is_async": is_async})
        error = await ended(rig, rig.agent.send("hi"))
        assert isinstance(error, HookError)
        assert "on_request of b" in str(error)
        rig.check("ab", rl=False, ends=True)
        await rig.agent.aclose()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_settles_the_send_and_goes_on(stop: type[BaseException]) -> None:
    """TC-20: no further hook is called; it propagates."""
    told = Told()
    seen = {}

    async def main() -> None:
        agent = AgentController(
            ScriptedProvider("ok"), controllers=[Plain(told, "a"), Plain(told, "b", request=stop())]
        )
        seen["agent"] = agent
        await agent.send("hi")

    with pytest.raises(stop):
        asyncio.run(main())
    assert [name for name in told.names() if name.startswith("response")] == []
    reply = seen["agent"].last_reply
    assert reply.ending == "failed"
    assert seen["agent"].state is AgentState.IDLE


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_in_a_commit_commits_nothing(stop: type[BaseException]) -> None:
    """TC-20, TC-75: the failed end is on the record, no state has changed, no further hook is called; it propagates."""

    class Ending(Number):
        async def prepare(self, value: int, reply: object) -> object:
            raise stop

    seen = {}
    journal = MemoryJournal()

    async def main() -> None:
        told = Told()
        seen["numbers"] = numbers = [Number("a", told), Ending("b", told)]
        seen["agent"] = agent = AgentController(
            ScriptedProvider([call("a__add", {"by": 1}), call("b__add", {"by": 2})], "ok"),
            controllers=numbers,
            journal=journal,
        )
        await (await agent.send("hi")).wait()

    with pytest.raises(stop):
        asyncio.run(main())
    agent, numbers = seen["agent"], seen["numbers"]
    reply = agent.last_reply
    assert reply.outcome == Failed(
        "commit", "b", "the state of b could not be committed: no state was changed", retryable=False
    )
    assert [number.state for number in numbers] == [None, None]
    assert [name for name in numbers[0].told.names() if name.startswith("response")] == []

    async def recorded() -> list[object]:
        return [record.fact for record in (await journal.read(reply.id, after=0)).records]

    facts = asyncio.run(recorded())
    assert facts[-1].outcome == reply.outcome
    assert not [fact for fact in facts if getattr(fact, "name", "") == "controllers/committed"]


async def test_a_rejected_message_calls_no_hook() -> None:
    """TC-13, TC-29, TC-30: refused, the draft stays, the next send works."""
    rig = Rig("ok", interceptor=lambda event: event.reject("no") if event.text == "bad" else None)
    with pytest.raises(SendRefused) as caught:
        await rig.agent.send("bad")
    assert (caught.value.reason, caught.value.reply.user_message.text) == ("no", "bad")
    assert caught.value.reply.ending == "rejected"
    assert rig.calls() == []
    assert rig.log.names() == ["state", "state"]
    await (await rig.agent.send("good")).result()
    rig.check("ab", rl=True, ends=True)
    await rig.agent.aclose()


async def test_a_hook_that_takes_too_long_is_cancelled() -> None:
    """TC-96: a HookTimeout, as if it had raised it."""
    clock = StepClock()
    cancelled = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    rig = Rig("ok", first={"request": lambda event: forever(), "is_async": True}, clock=clock, hook_timeout=3)
    sending = asyncio.ensure_future(rig.agent.send("hi"))
    await clock.until_sleeping()
    await clock.advance(2.9)
    assert not sending.done()
    await clock.advance(0.2)
    error = await ended(rig, sending)
    assert isinstance(error, HookTimeout)
    assert (error.key, error.hook, error.seconds) == ("a", "on_request", 3)
    assert isinstance(error, TimeoutError)
    assert cancelled == [True]
    rig.check("a", rl=False, ends=True)
    assert rig.ends[0].ending == "timed_out"
    await rig.agent.aclose()


async def test_the_time_of_the_whole_send_counts_before_the_commit() -> None:
    """TC-95: timed out in a hook: nothing was sent."""
    clock = StepClock()
    rig = Rig(
        "ok",
        second={"request": lambda event: asyncio.Event().wait(), "is_async": True},
        clock=clock,
        reply_timeout=5,
    )
    sending = asyncio.ensure_future(rig.agent.send("hi"))
    await clock.until_sleeping(2)
    await clock.advance(5)
    error = await ended(rig, sending)
    assert isinstance(error, ReplyTimeout)
    rig.check("ab", rl=False, ends=True)
    assert {event.ending for event in rig.ends} == {"timed_out"}
    assert rig.agent.messages == ()
    await rig.agent.aclose()


async def test_a_stop_in_a_hook_is_no_error() -> None:
    """TC-43: an async hook is cancelled, no later step begins, send() returns, end hooks run."""
    rig = Rig("ok", first={"request": lambda event: asyncio.Event().wait(), "is_async": True})
    sending = asyncio.ensure_future(rig.agent.send("hi"))
    await passes()
    assert rig.agent.state is AgentState.SENDING
    assert rig.agent.abort()
    assert rig.agent.state is AgentState.IDLE
    reply = await sending
    assert (reply.ending, reply.committed, reply.user_message.text) == ("cancelled", False, "hi")
    await passes()
    rig.check("a", rl=False, ends=True)
    assert (rig.ends[0].ending, rig.ends[0].error) == ("cancelled", None)
    assert rig.agent.messages == ()
    rig.first.at.clear()
    assert (await (await rig.agent.send("next")).result()).text == "ok"
    await rig.agent.aclose()


async def test_a_sync_hook_that_stops_its_send_returns_first() -> None:
    """TC-43."""
    rig = Rig("ok", first={"request": lambda event: rig.agent.abort() and None})
    reply = await rig.agent.send("hi")
    await passes()
    assert reply.ending == "cancelled"
    rig.check("a", rl=False, ends=True)
    await rig.agent.aclose()


async def test_a_stop_in_the_interceptor_tells_the_end_hooks() -> None:
    """TC-50, row "abort in phase 3"."""
    rig = Rig("ok", interceptor=lambda event: asyncio.Event().wait())
    sending = asyncio.ensure_future(rig.agent.send("hi"))
    await passes()
    rig.agent.abort()
    assert (await sending).ending == "cancelled"
    await passes()
    rig.check("", rl=False, ends=True)
    await rig.agent.aclose()


async def test_a_journal_that_refuses_the_commit() -> None:
    """TC-50: everybody was told of the request, so everybody is told of its end; the message was never shown."""
    journal = SlowJournal()
    journal.failure = JournalFull("disk")
    rig = Rig("ok", journal=journal)
    error = await ended(rig, rig.agent.send("hi"))
    assert isinstance(error, JournalFull)
    rig.check("ab", rl=True, ends=True)
    assert (rig.ends[0].ending, rig.ends[0].error) == ("failed", error)
    assert rig.agent.messages == ()
    journal.failure = None
    assert (await (await rig.agent.send("hi")).result()).text == "ok"
    await rig.agent.aclose()


async def test_a_stop_while_the_registration_is_written() -> None:
    """TC-50, AC-80: it is not undone: the message stays, the run ends cancelled."""
    journal = SlowJournal()
    rig = Rig("ok", journal=journal)
    journal.open.clear()
    sending = asyncio.ensure_future(rig.agent.send("hi"))
    while not journal.registrations:
        await asyncio.sleep(0)
    rig.agent.abort()
    reply = await sending
    journal.open.set()
    assert await reply.wait_closed(5)
    await passes()
    rig.check("ab", rl=True, ends=True)
    assert reply.ending == "cancelled"
    assert texts(rig.agent) == ["hi"]
    await rig.agent.aclose()


# After the commit


@pytest.mark.parametrize(
    ("script", "ending", "error"),
    [
        ([[failure("auth", "no")]], "failed", ProviderError),
        ([["part", failure("invalid_request", "no")]], "failed", ProviderError),
        ([["part", Cut()]], "unknown", StreamEndedEarly),
        ([["part", StreamEnd("content_filter")]], "incomplete", None),
        ([["part", StreamEnd("refusal")]], "incomplete", None),
        (["whole"], "completed", None),
        ([[StreamEnd("complete")]] * 3, "completed", None),
    ],
    ids=["provider", "stream", "eof", "filter", "refusal", "complete", "empty"],
)
async def test_how_a_committed_send_ends(script, ending, error) -> None:
    """TC-15, TC-16, TC-52, TC-55, TC-57: send() returns, the message stays, the partial text is told."""
    rig = Rig(*script)
    reply = await rig.agent.send("hi")
    await reply.wait()
    await passes()
    rig.check("ab", rl=True, ends=True)
    assert reply.ending == ending
    for event in [*rig.first.responses, *rig.second.responses, *rig.ends]:
        assert event.ending == ending
        assert event.text == reply.text
        assert (event.error is None) == (error is None)
        if error is not None:
            assert isinstance(event.error, error)
    assert texts(rig.agent)[0] == "hi"
    await rig.agent.aclose()


async def test_an_answer_that_the_output_limit_cut_has_no_error() -> None:
    """TC-18, TC-19: the word is the provider's own."""
    config = LoopConfig(limits=Limits(length_continuations=1))
    rig = Rig(*[["long", StreamEnd("length", raw_reason="MAX_TOKENS")]] * 2, config=config)
    reply = await rig.agent.send("hi")
    await reply.wait()
    await passes()
    assert reply.ending == "truncated"
    event = rig.ends[0]
    assert (event.ending, event.error, event.metadata.finish_reason) == ("truncated", None, "MAX_TOKENS")
    await rig.agent.aclose()


async def test_a_limit_of_the_loop_is_no_error() -> None:
    """TC-50."""
    rig = Rig([call("a__touch")], "never", config=LoopConfig(limits=Limits(turns=1)))
    reply = await rig.agent.send("hi")
    await reply.wait()
    await passes()
    assert (reply.ending, rig.ends[0].error) == ("incomplete", None)
    rig.check("ab", rl=True, ends=True)
    await rig.agent.aclose()


@pytest.mark.parametrize(
    ("options", "ending", "error"),
    [
        ({"send_timeout": 2, "stream_idle_timeout": 0}, "timed_out", SendTimeout),
        ({"reply_timeout": 2, "send_timeout": 0, "stream_idle_timeout": 0}, "timed_out", ReplyTimeout),
    ],
    ids=["silence", "the whole"],
)
async def test_a_model_that_takes_too_long(options, ending, error) -> None:
    """TC-50, TC-95: a send that ran out of its whole time is incomplete, and says why."""
    clock = StepClock()
    rig = Rig([Sleep(60), "late"], clock=clock, **options)
    sending = asyncio.ensure_future(rig.agent.send("hi"))
    for _ in range(5):
        await passes()
        await clock.advance(1)
    reply = await sending
    await reply.wait()
    await passes()
    rig.check("ab", rl=True, ends=True)
    assert reply.ending == ending
    assert isinstance(rig.ends[0].error, error)
    await rig.agent.aclose()


async def test_a_dribbling_answer_ends_by_the_time_of_the_whole() -> None:
    """TC-95: the limit is no limit on gaps."""
    clock = StepClock()
    pieces = [item for _ in range(20) for item in (Sleep(1), "x")]
    rig = Rig(["a", *pieces], clock=clock, reply_timeout=5, stream_idle_timeout=3)
    reply = await rig.agent.send("hi")
    for _ in range(8):
        await clock.advance(1)
        await passes()
    assert reply.ending == "timed_out"
    assert isinstance(rig.ends[0].error, ReplyTimeout)
    assert rig.ends[0].text.startswith("ax")
    await rig.agent.aclose()


async def test_a_stop_while_it_streams() -> None:
    """TC-50: no error, the partial text is told."""
    hold = Hold()
    rig = Rig(["some", hold], "ok")
    reply = await rig.agent.send("hi")
    await hold.reached()
    rig.agent.abort()
    assert await reply.wait_closed(5)
    await passes()
    rig.check("ab", rl=True, ends=True)
    assert (rig.ends[0].ending, rig.ends[0].error, rig.ends[0].text) == ("cancelled", None, "some")
    await rig.agent.aclose()


async def test_closing_tells_the_end_hooks_and_waits_for_them() -> None:
    """TC-14, TC-50: never skipped, whoever has gone."""
    hold = Hold()
    finished = []

    async def slow() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        finished.append(True)

    rig = Rig(["some", hold], first={"response": lambda event: slow(), "is_async": True})
    await rig.agent.send("hi")
    await hold.reached()
    await rig.agent.aclose()
    rig.check("ab", rl=True, ends=True)
    assert finished == [True]


# The end hooks themselves


async def test_an_end_hook_that_raises_changes_nothing() -> None:
    """TC-20, TC-53: outcome and conversation stand, the others are called, and are told of it."""
    told_errors = []
    rig = Rig(
        "ok",
        first={"response": BOOM},
        second={"response": ValueError("b")},
        on_callback_error=lambda error, name: told_errors.append((type(error), name)),
    )
    reply = await rig.agent.send("hi")
    assert (await reply.result()).text == "ok"
    rig.check("ab", rl=True, ends=True)
    assert [(e.key, e.hook, type(e.error)) for e in reply.hook_errors] == [
        ("b", "on_response", ValueError),
        ("a", "on_response", RuntimeError),
    ]
    assert [e.key for e in rig.first.responses[0].hook_errors] == ["b"]
    assert [e.key for e in rig.ends[0].hook_errors] == ["b", "a"]
    assert told_errors == [(ValueError, "on_response"), (RuntimeError, "on_response")]
    assert rig.agent.state is AgentState.COMPLETE
    await rig.agent.aclose()


async def test_the_first_error_is_the_callers() -> None:
    """TC-54: what an end hook raises while a failure is told does not hide it."""
    rig = Rig("ok", second={"request": BOOM}, first={"response": ValueError("later")})
    assert await ended(rig, rig.agent.send("hi")) is BOOM
    rig.check("ab", rl=False, ends=True)
    await rig.agent.aclose()


async def test_a_stop_in_an_end_hook_shows_the_end_at_once() -> None:
    """AC-82: it is too late for a stop: abort() says so, and what is fixed is shown without waiting for hooks."""
    gate = asyncio.Event()
    rig = Rig("ok", "two", first={"response": lambda event: gate.wait(), "is_async": True})
    reply = await rig.agent.send("hi")
    while not rig.first.responses:
        await asyncio.sleep(0)
    assert reply.phase == "ending"
    assert rig.agent.state is AgentState.STREAMING
    assert rig.agent.abort() is False
    assert reply.ending == "completed"
    assert rig.agent.state is AgentState.COMPLETE
    assert texts(rig.agent) == ["hi", "ok"]
    sending = asyncio.ensure_future(rig.agent.send("next"))
    await passes()
    assert rig.told.names().count("request a") == 1  # TC-23: not before the end hook of the send before
    gate.set()
    await (await sending).wait()
    await passes()
    rig.first.responses.clear()
    assert rig.told.names().count("request a") == 2
    await rig.agent.aclose()


async def test_the_way_is_free_when_the_end_hooks_are_over() -> None:
    """AC-39, TC-22: result() and the callbacks come last."""
    order = []
    rig = Rig("ok", first={"response": lambda event: order.append(("hook", rig.agent.state.value))})
    rig.agent.update_options(on_response_complete=lambda message: order.append(("complete", message.text)))
    reply = await rig.agent.send("hi")
    await reply.result()
    assert order == [("hook", "streaming"), ("complete", "ok")]
    await rig.agent.aclose()


# One send after another (TC-23)


async def test_a_failed_send_is_sent_again_in_the_except() -> None:
    """Proof 5: send 2's on_request never before send 1's on_response."""
    rig = Rig("ok", second={"request": BOOM})
    with contextlib.suppress(RuntimeError):
        await rig.agent.send("one")
    rig.second.at.clear()
    await (await rig.agent.send("two")).wait()
    await passes()
    names = [name for name in rig.calls() if name.endswith(" b")]
    assert names == ["request b", "response b", "request b", "response b"]
    await rig.agent.aclose()


async def test_sends_of_every_kind_are_told_in_turn() -> None:
    """Proof 5: after a stop, queued, and from a callback."""
    hold = Hold()
    rig = Rig(["one", hold], "two", "three", "four", when_busy="queue")
    agent = rig.agent
    first = await agent.send("1")
    await hold.reached()
    second = asyncio.ensure_future(agent.send("2"))
    third = asyncio.ensure_future(agent.send("3"))
    await passes()
    assert [reply.phase for reply in agent.queued] == ["queued", "queued"]
    agent.abort()
    for sending in (second, third):
        await (await sending).wait()
    await passes()
    agent.update_options(on_response_complete=None)
    assert first.ending == "cancelled"
    names = [name for name in rig.calls() if name.endswith(" a")]
    assert names == ["request a", "response a"] * 3
    await agent.aclose()


async def test_a_kind_of_send_is_told() -> None:
    """TC-24: retry, regenerate and continue skip the interceptor and call all else."""
    seen = []
    rig = Rig(
        [failure("auth", "no")], "ok", "other", "more", interceptor=lambda event: seen.append(event.kind)
    )
    agent = rig.agent
    await (await agent.send("hi")).wait()
    await passes()
    await (await agent.retry()).result()
    await (await agent.regenerate(agent.messages[-1].id)).result()
    assert [event.kind for event in rig.first.events] == ["send", "retry", "regenerate"]
    assert {event.text for event in rig.first.events} == {"hi"}
    assert seen == ["send"]
    await agent.aclose()


async def test_the_same_id_again_calls_no_hook() -> None:
    """TC-25, AC-41."""
    rig = Rig("ok", interceptor=lambda event: event.replace(text="other"), send_context="noon")
    first = await rig.agent.send("hi", id="s1")
    await first.wait()
    before = rig.calls()
    assert await rig.agent.send("hi", id="s1") is first
    assert rig.calls() == before
    await rig.agent.aclose()


@pytest.mark.parametrize("policy", ["raise", "drop"])
async def test_a_send_that_never_was_calls_no_hook(policy: str) -> None:
    """TC-50, TC-90: busy: raised, or dropped."""
    hold = Hold()
    rig = Rig(["a", hold])
    await rig.agent.send("one")
    await hold.reached()
    before = rig.calls()
    if policy == "raise":
        with pytest.raises(AgentBusy):
            await rig.agent.send("two")
    else:
        reply = await rig.agent.send("two", when_busy="drop")
        assert (reply.ending, type(reply.error)) == ("rejected", AgentBusy)
    assert rig.calls() == before
    await rig.agent.aclose()


@pytest.mark.parametrize("how", ["withdrawn", "closed"])
async def test_a_queued_send_that_leaves_calls_no_hook(how: str) -> None:
    """TC-50: withdrawn: cancelled; closed: abandoned."""
    hold = Hold()
    rig = Rig(["a", hold])
    await rig.agent.send("one")
    await hold.reached()
    before = rig.calls()
    sending = asyncio.ensure_future(rig.agent.send("two", when_busy="queue"))
    await passes()
    (queued,) = rig.agent.queued
    if how == "withdrawn":
        assert queued.abort()
        assert (await sending) is queued
        assert queued.ending == "cancelled"
        assert rig.calls() == before
        await rig.agent.aclose()
    else:
        await rig.agent.aclose()
        with pytest.raises(SendAbandoned):
            await sending
        assert queued.ending == "abandoned"
        assert rig.told.names().count("request a") == 1


# Commit


async def test_a_state_that_cannot_be_prepared_fails_the_send() -> None:
    """TC-75, AC-130: no state changed, the answer stays, on_error is told once, the journal says so."""
    told = Told()
    one, two = Number("one", told), Number("two", told)
    log = Log()
    two.fail["prepare"] = RuntimeError("the disk is full of secrets")
    script = [
        [call("one__add", {"by": 1}), call("two__add", {"by": 2})],
        "done",
        [call("one__add", {"by": 5})],
        "ok",
    ]
    async with AgentController(ScriptedProvider(*script), controllers=[one, two]) as agent:
        agent.subscribe(log)
        reply = await agent.send("go")
        outcome = await reply.wait()
        assert (outcome.kind, outcome.code, outcome.retryable) == ("commit", "two", False)
        assert "secret" not in str(outcome)
        assert isinstance(reply.error, CommitFailed)
        assert str(reply.error.__cause__) == "the disk is full of secrets"
        assert (one.state, two.state) == (None, None)
        assert one.changes == two.changes == []
        assert (agent.state, texts(agent)[-1], reply.partial) == (AgentState.ERROR, "done", None)
        assert [entry for entry in log.entries if entry[0] == "error"] == [("error", "CommitFailed")]
        assert one.responses[0].commits == {"one": "discarded", "two": "failed"}
        assert isinstance(one.responses[0].error, CommitFailed)
        with pytest.raises(ReplyFailed):
            await reply.result()
        ends = [r.fact for r in await agent.runs.events(reply.id) if r.fact.kind == "run_ended"]
        assert [end.outcome for end in ends] == [Failed("commit", "two", str(reply.error))]
        two.fail.clear()
        await (await agent.send("again")).result()
        assert (one.state, two.state) == (5, None)


async def test_what_apply_and_on_change_raise_is_a_logged_bug() -> None:
    """TC-77, proof 10: the next ones run, the outcome stands."""
    told = Told()
    one, two = Number("one", told), Number("two", told)
    one.fail["apply"] = RuntimeError("bug")
    two.on_change(raising(ValueError("listener")))
    script = [[call("one__add", {"by": 1}), call("two__add", {"by": 2})], "done"]
    async with AgentController(ScriptedProvider(*script), controllers=[one, two]) as agent:
        reply = await agent.send("go")
        await reply.result()
        assert (one.state, two.state) == (None, 2)
        assert [(e.key, e.hook) for e in reply.hook_errors] == [("one", "apply"), ("two", "on_change")]
        assert two.responses[0].commits == {"one": "committed", "two": "committed"}
        assert len(two.changes) == 1
