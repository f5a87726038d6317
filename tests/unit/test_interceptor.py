"""The interceptor: replaces, refuses, postpones, before anything has happened (TC §3.3)."""

from __future__ import annotations

import asyncio
import gc
import threading
from weakref import ref

import pytest

from controlkit import Plain, Told
from convkit import Log, passes, texts
from pilothouse import AgentController, AgentState, Attachment, MemoryJournal, PromptEvent
from pilothouse.errors import (
    ConfigError,
    MessageTooLong,
    PostponeTimeout,
    SendAbandoned,
    SendRefused,
    UsageError,
)
from pilothouse.loop.tools import tool
from pilothouse.messages import Text
from pilothouse.testing import Hold, ScriptedProvider, StepClock
from pilothouse.testing.scripted import call


def picture(name: str = "p.png") -> object:
    return Attachment(data=b"data", mime_type="image/png", filename=name)


def agent_with(interceptor, *scripts, **options):
    told = Told()
    controller = Plain(told, "a")
    agent = AgentController(
        ScriptedProvider(*(scripts or ["ok"])), controllers=[controller], interceptor=interceptor, **options
    )
    return agent, controller


# Replacing and refusing


async def test_the_replacement_is_all_that_anybody_sees() -> None:
    """TC-27: message, history, hooks, model; the original only in the events, never in the journal."""
    journal = MemoryJournal()
    agent, controller = agent_with(lambda event: event.replace(text="clean"), journal=journal)
    async with agent:
        reply = await agent.send("dirty", [picture()])
        await reply.result()
        assert [message.text for message in agent.messages][:1] == ["clean"]
        assert len(agent.messages[0].attachments) == 1
        (event,) = controller.events
        assert (event.text, event.original_text, len(event.attachments)) == ("clean", "dirty", 1)
        assert agent.provider.requests[0].messages[-1].text == "clean"
        stored = [record.body for record in await agent.runs.events(reply.id)]
        spec = await agent.runs.registered(reply.id)
        assert b"dirty" not in b"".join(stored)
        assert "dirty" not in repr(spec)


async def test_attachments_can_be_replaced_too() -> None:
    """TC-26, TC-27."""
    agent, controller = agent_with(lambda event: event.replace(attachments=[picture("q.png")]))
    async with agent:
        reply = await agent.send("look", [picture()])
        await reply.result()
        assert [part.filename for part in agent.messages[0].attachments] == ["q.png"]
        assert controller.events[0].text == "look"


async def test_the_limits_hold_for_a_replacement() -> None:
    """TC-27: guards are applied again; the failure is told like any other."""
    agent, controller = agent_with(lambda event: event.replace(text="x" * 11), max_message_length=10)
    async with agent:
        with pytest.raises(MessageTooLong):
            await agent.send("short")
        assert [event.ending for event in controller.responses] == ["failed"]


@pytest.mark.parametrize(
    ("text", "attachments", "verdict"),
    [("hi", [], "empty after interception"), ("hi", [1], None), ("", [], None), ("  ", [], None)],
)
async def test_a_blank_replacement_is_a_refusal(text, attachments, verdict) -> None:
    """TC-28: if the text was not blank before, and no attachment is left."""
    agent, _ = agent_with(lambda event: event.replace(text=" "))
    async with agent:
        given = [picture() for _ in attachments]
        if verdict is None:
            await (await agent.send(text, given)).wait()
        else:
            with pytest.raises(SendRefused) as caught:
                await agent.send(text, given)
            assert caught.value.reason == verdict


async def test_a_blank_message_is_given_to_the_interceptor() -> None:
    """TC-26: it is a legal send here."""
    seen = []
    agent, _ = agent_with(lambda event: seen.append(event.text))
    async with agent:
        await (await agent.send("")).wait()
    assert seen == [""]


async def test_a_refusal_keeps_the_draft_and_leaves_no_trace() -> None:
    """TC-29, TC-41: text and attachments stay on the reply."""
    agent, controller = agent_with(lambda event: event.reject())
    log = Log()
    agent.subscribe(log)
    async with agent:
        with pytest.raises(SendRefused) as caught:
            await agent.send("hi", [picture()])
        reply = caught.value.reply
        assert caught.value.reason is None
        assert (reply.user_message.text, len(reply.user_message.attachments)) == ("hi", 1)
        assert (agent.state, agent.messages, agent.last_reply) == (AgentState.IDLE, (), reply)
        assert "error" not in log.names()
        assert controller.events == controller.responses == []
        assert await agent.runs.thread_head(agent.thread_id) is None


async def test_a_refusal_is_final_and_the_last_reason_counts() -> None:
    """TC-31."""

    def refuse(event):
        event.reject("first")
        event.replace(text="better")
        event.reject("second")
        event.reject()

    agent, _ = agent_with(refuse)
    async with agent:
        with pytest.raises(SendRefused, match="second"):
            await agent.send("hi")


async def test_what_an_interceptor_returns_would_be_lost() -> None:
    """TC-32: sync and async."""

    async def later(event):
        return "text"

    for interceptor in (lambda event: "text", later):
        agent, controller = agent_with(interceptor)
        async with agent:
            with pytest.raises(TypeError, match="must return None, got str"):
                await agent.send("hi")
            assert [event.ending for event in controller.responses] == ["failed"]
            assert controller.responses[0].begun == frozenset()


async def test_an_interceptor_must_be_callable() -> None:
    """TC §8."""
    with pytest.raises(ConfigError, match="interceptor must be callable, got str"):
        AgentController(ScriptedProvider("ok"), interceptor="no")


# Postponing


async def test_a_postponed_send_waits_and_claims_the_way() -> None:
    """TC-33, TC-35: sending, nothing shown, no hook; the verdict is what the event says then."""
    held = []
    agent, controller = agent_with(lambda event: held.append(event.postpone(timeout=5)))
    async with agent:
        sending = asyncio.ensure_future(agent.send("hi"))
        await passes()
        assert (agent.state, agent.messages, sending.done()) == (AgentState.SENDING, (), False)
        assert controller.events == []
        held[0].event.replace(text="later")
        assert held[0].done is False
        assert held[0].proceed() is True
        reply = await sending
        await reply.result()
        assert texts(agent)[0] == "later"
        assert (held[0].proceed(), held[0].fail(ValueError()), held[0].done) == (False, False, True)


async def test_proceeding_inside_the_interceptor() -> None:
    """TC-35: before it returned."""

    def now(event):
        event.replace(text="before")
        assert event.postpone(timeout=5).proceed()

    agent, _ = agent_with(now)
    async with agent:
        await (await agent.send("hi")).result()
        assert texts(agent)[0] == "before"


async def test_a_refusal_while_it_waits() -> None:
    """TC-35."""
    held = []
    agent, controller = agent_with(lambda event: held.append(event.postpone(timeout=5)))
    async with agent:
        sending = asyncio.ensure_future(agent.send("hi"))
        await passes()
        held[0].event.reject("after all")
        held[0].proceed()
        with pytest.raises(SendRefused, match="after all"):
            await sending
        assert controller.responses == []


@pytest.mark.parametrize("how", ["fail", "time"])
async def test_a_postponed_send_that_fails(how: str) -> None:
    """TC-36: the cause, or a PostponeTimeout; end hooks are told, the caller too."""
    clock = StepClock()
    held = []
    agent, controller = agent_with(lambda event: held.append(event.postpone(timeout=5)), clock=clock)
    sending = asyncio.ensure_future(agent.send("hi"))
    await passes()
    cause = ValueError("moderation is down")
    if how == "fail":
        held[0].fail(cause)
    else:
        await clock.until_sleeping()
        await clock.advance(5)
    with pytest.raises((ValueError, PostponeTimeout)) as caught:
        await sending
    assert (caught.value is cause) == (how == "fail")
    (event,) = controller.responses
    assert event.error is caught.value
    assert event.ending == ("failed" if how == "fail" else "timed_out")
    assert held[0].proceed() is False
    await agent.aclose()


async def test_the_time_of_the_whole_send_stands_still_meanwhile() -> None:
    """TC-95: a postponement has a limit of its own."""
    clock = StepClock()
    held = []
    agent, _ = agent_with(lambda event: held.append(event.postpone(timeout=50)), clock=clock, reply_timeout=5)
    sending = asyncio.ensure_future(agent.send("hi"))
    await passes()
    await clock.advance(20)
    assert not sending.done()
    held[0].proceed()
    assert (await (await sending).result()).text == "ok"
    await agent.aclose()


async def test_completions_from_threads_race_and_one_wins() -> None:
    """TC-37: first completion, from any thread."""
    for _ in range(20):
        held = []
        agent, _ = agent_with(lambda event, held=held: held.append(event.postpone(timeout=50)))
        sending = asyncio.ensure_future(agent.send("hi"))
        await passes()
        won = []
        barrier = threading.Barrier(4)

        def decide(postponed=held[0], won=won, barrier=barrier):
            barrier.wait()
            won.append(postponed.proceed())

        threads = [threading.Thread(target=decide) for _ in range(4)]
        for thread in threads:
            thread.start()
        await (await sending).wait()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert sorted(won) == [False, False, False, True]
        await agent.aclose()


async def test_an_interceptor_that_raises_after_postponing() -> None:
    """TC-38: the send fails, the handle is inert."""
    held = []

    def both(event):
        held.append(event.postpone(timeout=5))
        raise ValueError("changed my mind")

    agent, controller = agent_with(both)
    async with agent:
        with pytest.raises(ValueError, match="changed my mind"):
            await agent.send("hi")
        assert held[0].proceed() is False
        assert [event.ending for event in controller.responses] == ["failed"]


async def test_closing_abandons_a_postponed_send() -> None:
    """TC-39: no hook; the handle says that it is too late."""
    held = []
    agent, controller = agent_with(lambda event: held.append(event.postpone(timeout=5)))
    sending = asyncio.ensure_future(agent.send("hi"))
    await passes()
    await agent.aclose()
    with pytest.raises(SendAbandoned) as caught:
        await sending
    assert caught.value.reply.ending == "abandoned"
    assert caught.value.reply.user_message.text == "hi"
    assert controller.events == controller.responses == []
    assert held[0].proceed() is False


@pytest.mark.parametrize("how", ["abort", "reset"])
async def test_stopping_a_postponed_send(how: str) -> None:
    """TC-39: cancelled, with end hooks."""
    held = []
    agent, controller = agent_with(lambda event: held.append(event.postpone(timeout=5)))
    async with agent:
        sending = asyncio.ensure_future(agent.send("hi"))
        await passes()
        getattr(agent, how)()
        assert agent.state is AgentState.IDLE
        assert (await sending).ending == "cancelled"
        await passes()
        assert [event.ending for event in controller.responses] == ["cancelled"]
        assert held[0].proceed() is False


async def test_after_the_verdict_nothing_can_be_changed() -> None:
    """TC-33, TC-34."""
    events = []
    agent, _ = agent_with(events.append)
    async with agent:
        await (await agent.send("hi")).result()
    (event,) = events
    for change in (
        lambda: event.replace(text="x"),
        event.reject,
        lambda: event.postpone(timeout=1),
    ):
        with pytest.raises(UsageError):
            change()


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 2_147_484])
def test_a_postponement_needs_a_time(timeout: float) -> None:
    """TC §8."""
    with pytest.raises(ValueError, match="timeout must be above 0"):
        PromptEvent("hi").postpone(timeout=timeout)


def test_the_event_can_be_tested_alone() -> None:
    """TC §2, §8: a public constructor; bad values are refused."""
    event = PromptEvent("hi", [picture()], kind="steer")
    with pytest.raises(UsageError, match="steer"):
        event.postpone(timeout=1)
    with pytest.raises(TypeError):
        event.replace(text=5)
    with pytest.raises(TypeError, match=r"attachments\[0\]"):
        event.replace(attachments=["no"])
    assert (event.text, event.original_text) == ("hi", "hi")
    event = PromptEvent("hi")
    postponed = event.postpone(timeout=1)
    with pytest.raises(UsageError, match="twice"):
        event.postpone(timeout=1)
    with pytest.raises(TypeError):
        postponed.fail(None)


class Kept:
    """Stands for the content of an attachment: it can be watched."""


async def test_the_content_is_let_go_of_with_the_verdict() -> None:
    """TC-41: a handle that somebody keeps holds neither."""
    held = []
    agent, _ = agent_with(lambda event: held.append(event.postpone(timeout=5)))
    async with agent:
        sending = asyncio.ensure_future(agent.send("hi", [picture()]))
        await passes()
        event = held[0].event
        assert len(event.attachments) == len(event.original_attachments) == 1
        held[0].proceed()
        await (await sending).result()
        assert event.attachments == event.original_attachments == ()


# Steering


async def steered(interceptor, say):
    """A run in its first tool, and what comes of steering it."""
    gate = asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        await gate.wait()
        return "waited"

    provider = ScriptedProvider([call("wait")], "done", "more")
    agent = AgentController(provider, tools=[wait], interceptor=interceptor)
    async with agent:
        reply = await agent.send("go")
        while reply.phase != "working":
            await asyncio.sleep(0)
        try:
            return await say(reply), [message.text for message in await _end(agent, gate, reply)], provider
        except BaseException as error:
            return error, [message.text for message in await _end(agent, gate, reply)], provider


async def _end(agent, gate, reply):
    gate.set()
    await reply.result()
    return agent.messages


@pytest.mark.parametrize("kind", ["steer", "follow_up"])
async def test_steering_passes_the_interceptor(kind: str) -> None:
    """TC-26: by whatever path; the replacement is what the model reads."""
    seen = []

    def look(event):
        seen.append((event.kind, event.text, event.reply_id))
        if event.kind != "send":
            event.replace(text="polite")

    ack, found, provider = await steered(look, lambda reply: getattr(reply.run, kind)("rude"))
    assert ack.state in ("accepted", "applied")
    assert [entry[:2] for entry in seen] == [("send", "go"), (kind, "rude")]
    assert "polite" in found
    assert "rude" not in repr(provider.requests)


async def test_refused_steering_changes_nothing() -> None:
    """TC-26: the caller is told, the run goes on without it; postponing is no answer."""
    error, found, _ = await steered(
        lambda event: event.reject("no") if event.kind == "steer" else None,
        lambda reply: reply.run.steer("rude"),
    )
    assert isinstance(error, SendRefused)
    assert error.reason == "no"
    assert "rude" not in found
    error, _, _ = await steered(
        lambda event: event.postpone(timeout=5) if event.kind == "steer" else None,
        lambda reply: reply.run.steer("wait"),
    )
    assert isinstance(error, UsageError)


async def test_a_repeated_steer_is_the_same_command() -> None:
    """RC-36: the same id with the same words is acknowledged again, whatever they were replaced by."""
    calls = []

    def count(event):
        calls.append(event.kind)
        event.replace(text=f"number {len(calls)}")

    async def twice(reply):
        first = await reply.run.steer("say", id="c1")
        second = await reply.run.steer("say", id="c1")
        return first, second

    (first, second), found, _ = await steered(count, twice)
    assert second.duplicate
    assert found.count("number 2") == 1
    assert first.command_id == second.command_id == "c1"


async def test_left_over_steering_is_not_asked_again() -> None:
    """AC-132, TC-26: it has passed already when it was said."""
    seen = []
    hold = Hold()
    provider = ScriptedProvider(["a", hold], "b", "c")
    from pilothouse.loop.config import LoopConfig

    agent = AgentController(
        provider,
        interceptor=lambda event: seen.append((event.kind, event.text)),
        config=LoopConfig(max_steering_turns=0),
    )
    async with agent:
        reply = await agent.send("one")
        await hold.reached()
        await reply.run.steer("later")
        hold.release()
        await reply.wait()
        await passes()
        if agent.undelivered:
            await (await agent.send("two")).wait()
    assert seen.count(("steer", "later")) == 1


async def test_nothing_of_a_message_is_kept_by_its_reply_once_it_is_gone() -> None:
    """TC-41."""

    def fail(event):
        raise ValueError("no")

    agent = AgentController(ScriptedProvider("ok"), interceptor=fail)
    with pytest.raises(ValueError, match="no"):
        await agent.send([Text("hi")])
    gone = ref(agent.last_reply)
    agent.reset()
    await passes()
    gc.collect()
    assert gone() is None
    await agent.aclose()
