"""Steering, follow-ups and the soft yield: what lands where, what is left, and who is asked to hand over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pilothouse.commands import Command, Steer
from pilothouse.errors import ConfigError
from pilothouse.events import (
    CallFinished,
    Completed,
    Incomplete,
    MessageAdded,
    RequestClosed,
    RequestOpened,
    TurnStarted,
)
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.config import Limits, LoopConfig
from pilothouse.loop.context import ToolContext, current_yield_token
from pilothouse.loop.hooks import NextTurn, TurnInfo
from pilothouse.loop.tools import tool
from pilothouse.loop.yielding import Notifier
from pilothouse.messages import Image, Message, Text
from pilothouse.testing import Hold, LoopRig, ScriptedProvider, StepClock
from pilothouse.testing.scripted import call, texts


def rig(*scripts: Any, tools: Any = (), **options: Any) -> LoopRig:
    config = options.pop("config", None)
    provider = ScriptedProvider(*scripts)
    made = LoopRig(AgentLoop(provider, tools=tools, config=config, clock=options.get("clock")), **options)
    made.provider = provider
    return made


def said(run: LoopRig) -> list[tuple[int, str]]:
    """Turn and text of each user message of the run."""
    return [(fact.turn, fact.message.text) for fact in run.of(MessageAdded) if fact.message.role == "user"]


def user(text: str, message_id: str) -> Message:
    return Message(message_id, "user", (Text(text),))


# Steering


async def test_the_first_poll_lands_in_turn_1() -> None:
    """LP-3, LP-22"""
    run = rig("ok")
    run.steer("be brief")
    assert await run.run() == Completed()
    assert said(run) == [(1, "be brief")]
    assert texts(run.provider.requests[0].messages) == [("user", "Hello"), ("user", "be brief")]
    assert len(run.of(TurnStarted)) == 1


async def test_a_host_may_forego_the_first_poll() -> None:
    """LP-1: loop.first_poll"""
    run = rig("ok", "more", options={"loop.first_poll": False})
    run.steer("later")
    await run.run()
    assert said(run) == [(2, "later")]


async def test_one_at_a_time_makes_a_turn_each_and_all_makes_one() -> None:
    """LP-23"""
    run = rig("1", "2", "3")
    for text in ("a", "b", "c"):
        run.steer(text)
    await run.run()
    assert said(run) == [(1, "a"), (2, "b"), (3, "c")]
    run = rig("1", config=LoopConfig(steering_mode="all"))
    for text in ("a", "b", "c"):
        run.steer(text)
    await run.run()
    assert said(run) == [(1, "a"), (1, "b"), (1, "c")]


async def test_steering_during_a_stream_lands_behind_the_answer_and_aborts_nothing() -> None:
    """LP-25"""
    hold = Hold()
    run = rig(["a", hold, "b"], "c")
    task = run.begin()
    await hold.reached()
    run.steer("and?")
    hold.release()
    await task
    assert texts(run.messages) == [
        ("user", "Hello"),
        ("assistant", "ab"),
        ("user", "and?"),
        ("assistant", "c"),
    ]


async def test_steering_lands_behind_the_results_of_a_batch() -> None:
    """LP-25"""
    hold = Hold()

    @tool
    async def work() -> str:
        """Works."""
        await hold.wait()
        return "done"

    run = rig([call("work", call_id="c")], "ok", tools=[work])
    task = run.begin()
    await hold.reached()
    run.steer("hurry")
    hold.release()
    await task
    assert [role for role, _ in texts(run.messages)] == ["user", "assistant", "tool", "user", "assistant"]
    assert said(run) == [(2, "hurry")]


async def test_steering_that_comes_last_still_lands() -> None:
    """LP-3: the closing poll."""

    def seen(_: int, body: Any) -> None:
        if getattr(body, "text", "") == "first":
            run.steer("one more")

    run = rig(["first"], "second", on_seen=seen)
    assert await run.run() == Completed()
    assert said(run) == [(2, "one more")]


async def test_batches_are_capped_and_the_rest_is_returned() -> None:
    """LP-24: cap n = n batches, the first poll included; none is lost."""
    run = rig("1", "2", config=LoopConfig(max_steering_turns=2))
    ids = [run.steer(text) for text in ("a", "b", "c")]
    assert await run.run() == Completed()
    assert said(run) == [(1, "a"), (2, "b")]
    states = [run.port.state.commands[command_id].state for command_id in ids]
    assert states == ["applied", "applied", "returned"]
    run = rig("1", config=LoopConfig(max_steering_turns=0))
    run.steer("never")
    await run.run()
    assert said(run) == []


async def test_a_run_at_its_last_turn_takes_nothing_that_it_could_not_answer() -> None:
    """LP-22, LP-38: each item has one fate."""
    asked: list[int] = []

    def source(info: Any) -> list[str]:
        asked.append(info.turn)
        return ["more"]

    config = LoopConfig(get_steering_messages=source, limits=Limits(turns=1))
    run = rig("1", config=config)
    assert await run.run() == Completed()
    assert asked == [1]


# Sources


async def test_a_hosts_source_is_drained_before_the_inbox() -> None:
    """LP-22"""
    offered = [["host"]]
    config = LoopConfig(get_steering_messages=lambda _: offered.pop() if offered else [])
    run = rig("1", "2", config=config)
    run.steer("inbox")
    await run.run()
    assert said(run) == [(1, "host"), (2, "inbox")]


async def test_a_source_may_offer_again_what_is_there_already() -> None:
    """LP-22: after a crash; an id that the thread has is skipped."""

    async def source(_: Any) -> list[Message]:
        return [user("old", "h1"), user("new", "n1"), user("new", "n1")]

    config = LoopConfig(get_steering_messages=source, steering_mode="all")
    run = rig("1", config=config, history=[user("old", "h1")])
    await run.run()
    assert said(run) == [(1, "new")]


async def test_items_of_a_wrong_type_or_size_are_noted_and_skipped() -> None:
    """§6: the sender keeps them."""
    picture = Message("p", "user", (Image("image/png", data=b"x"),))
    items = [3, "", Message("a", "assistant", (Text("x"),)), "x" * 1_000_001, picture, "good"]
    offers = [items]
    config = LoopConfig(get_steering_messages=lambda _: offers.pop() if offers else [], steering_mode="all")
    run = rig("1", config=config)
    await run.run()
    assert said(run) == [(1, ""), (1, "good")]
    assert sum(fact.kind == "noted" and fact.name == "loop/hook" for fact in run.facts) == 4


@pytest.mark.parametrize("bad", [RuntimeError("secret"), "a string", {"a": 1}])
async def test_a_source_that_fails_counts_as_empty(bad: Any) -> None:
    """§2.4: noted, never orphans a call."""

    async def source(_: Any) -> Any:
        if isinstance(bad, Exception):
            raise bad
        return bad

    config = LoopConfig(get_steering_messages=source, get_follow_up_messages=source)
    run = rig("1", config=config)
    assert await run.run() == Completed()
    assert "secret" not in repr(run.facts)
    assert any(fact.kind == "noted" for fact in run.facts)


# Follow-ups


async def test_follow_ups_come_when_the_run_would_stop_and_not_before() -> None:
    """LP-3, LP-22: after the tool turns; steering once more afterwards."""

    @tool
    async def work() -> str:
        """Works."""
        return "done"

    run = rig([call("work")], "a", "b", "c", tools=[work])
    run.follow_up("then this")
    run.follow_up("and that")
    assert await run.run() == Completed()
    assert said(run) == [(3, "then this"), (4, "and that")]


async def test_follow_up_batches_are_capped() -> None:
    """LP-24"""
    config = LoopConfig(get_follow_up_messages=lambda _: ["again"], limits=Limits(follow_up_batches=3))
    run = rig("1", "2", "3", "4", config=config)
    assert await run.run() == Completed()
    assert len(said(run)) == 3


async def test_follow_ups_in_one_batch() -> None:
    """LP-23"""
    run = rig("1", "2", config=LoopConfig(follow_up_mode="all"))
    run.follow_up("a")
    run.follow_up("b")
    await run.run()
    assert said(run) == [(2, "a"), (2, "b")]


# Policies


def _waiting_tools(hold: Hold) -> list[Any]:
    @tool(execution="sequential")
    async def first(ctx: ToolContext[Any]) -> str:
        """First."""
        await hold.wait()
        return f"first {ctx.yield_requested.is_set()}"

    @tool
    async def second() -> str:
        """Second."""
        return "second"

    return [first, second]


@pytest.mark.parametrize(
    ("policy", "ends"),
    [
        ("boundary", {"a": ("succeeded", ""), "b": ("succeeded", "")}),
        ("skip_unstarted", {"a": ("succeeded", ""), "b": ("cancelled", "steering")}),
        ("stop_now", {"a": ("unknown", "steering"), "b": ("cancelled", "steering")}),
    ],
)
async def test_what_steering_does_to_calls_is_the_policys(policy: Any, ends: Any) -> None:
    """LP-25"""
    hold = Hold()
    script = [call("first", call_id="a"), call("second", call_id="b")]
    run = rig(script, "ok", tools=_waiting_tools(hold), config=LoopConfig(steering_policy=policy))
    task = run.begin()
    await hold.reached()
    run.steer("stop that")
    hold.release()
    await task
    assert run.outcome == Completed()
    assert {end.call_id: (end.outcome, end.reason) for end in run.of(CallFinished)} == ends
    assert said(run) == [(2, "stop that")]


@pytest.mark.parametrize("policy", ["skip_unstarted", "stop_now"])
async def test_steering_that_waits_already_keeps_the_whole_batch_from_starting(policy: Any) -> None:
    """LP-25"""
    hold = Hold()
    run = rig(
        [hold, call("first", call_id="a")],
        "ok",
        tools=_waiting_tools(hold),
        config=LoopConfig(steering_policy=policy),
    )
    task = run.begin()
    await hold.reached()
    run.steer("do not")
    hold.release()
    await task
    assert [(end.outcome, end.reason) for end in run.of(CallFinished)] == [("cancelled", "steering")]


# The soft yield


async def _yields(trigger: Any, **config: Any) -> tuple[LoopRig, list[str]]:
    """Runs an aware tool that waits for the token, and an unaware one; `trigger(run)` is called while they run."""
    log: list[str] = []

    @tool
    async def aware() -> str:
        """Aware."""
        token = current_yield_token()
        log.append("waits")
        await token.wait()
        log.append("yields")
        return "handed over"

    @tool
    async def unaware() -> str:
        """Unaware."""
        return "done"

    run = rig(
        [call("aware", call_id="a"), call("unaware", call_id="b")],
        "ok",
        "ok",
        tools=[aware, unaware],
        config=LoopConfig(**config),
    )
    task = run.begin()
    for _ in range(5):
        await asyncio.sleep(0)
    await trigger(run)
    await asyncio.wait_for(task, 5)
    return run, log


async def test_an_aware_tool_hands_over_when_a_steer_arrives() -> None:
    """LP-26: it asks, it does not cancel."""

    async def steer(run: LoopRig) -> None:
        run.steer("hey")

    run, log = await _yields(steer)
    assert log == ["waits", "yields"]
    assert [end.outcome for end in run.of(CallFinished)] == ["succeeded"] * 2


async def test_a_steer_from_before_the_phase_counts() -> None:
    """LP-26"""
    hold = Hold()
    seen: list[bool] = []

    @tool
    async def look(ctx: ToolContext[Any]) -> None:
        """Looks."""
        seen.append(ctx.yield_requested.is_set())

    run = rig([hold, call("look")], "ok", tools=[look])
    task = run.begin()
    await hold.reached()
    run.steer("hey")
    hold.release()
    await task
    assert seen == [True]


async def test_a_notification_of_the_host_yields_and_its_subscription_ends_with_the_phase() -> None:
    """LP-26: Notifier; nothing is left subscribed."""
    notifier = Notifier()

    async def notify(_: LoopRig) -> None:
        notifier.notify()

    _, log = await _yields(notify, steering_notifications=notifier)
    assert log == ["waits", "yields"]
    assert notifier._waiting == set()
    await _yields(_steer, steering_notifications=notifier)
    assert notifier._waiting == set()


async def _steer(run: LoopRig) -> None:
    run.steer("hey")


async def test_a_probe_of_the_host_yields() -> None:
    """LP-26: asked without draining, on a slow timer."""
    answers = [True, False, False]
    clock = StepClock()
    log: list[str] = []

    async def pending() -> bool:
        log.append("asked")
        return answers.pop()

    @tool
    async def aware(ctx: ToolContext[Any]) -> None:
        """Aware."""
        await ctx.yield_requested.wait()
        log.append("yields")

    run = rig(
        [call("aware")], "ok", tools=[aware], clock=clock, config=LoopConfig(has_pending_steering=pending)
    )
    task = run.begin()
    await clock.advance(2)
    assert log == ["asked", "asked"]
    await clock.advance(2)
    await task
    assert log == ["asked"] * 3 + ["yields"]


async def test_watchers_that_fail_are_no_reason_to_fail() -> None:
    """§2.4: polling at boundaries goes on."""

    class Broken:
        def __aiter__(self) -> Any:
            return self._items()

        async def _items(self) -> Any:
            raise RuntimeError("x")
            yield

    class Ended(Broken):
        async def _items(self) -> Any:
            return
            yield

    async def pending() -> bool:
        raise RuntimeError("x")

    for source in (Broken(), Ended()):
        run, log = await _yields(_steer, steering_notifications=source, has_pending_steering=pending)
        assert log == ["waits", "yields"]
        assert run.outcome == Completed()


def test_a_one_shot_iterator_is_refused() -> None:
    """§2.2"""

    async def items() -> Any:
        yield 1

    with pytest.raises(ConfigError, match="one-shot"):
        LoopConfig(steering_notifications=items())


async def test_outside_of_a_phase_the_yield_token_never_fires() -> None:
    assert not current_yield_token().is_set()


# Resume


async def test_resumed_between_turns_nothing_is_polled_twice_and_caps_hold() -> None:
    """LP-49, LP-24: after any append."""
    config = LoopConfig(max_steering_turns=2)
    whole = rig("1", "2", "3", config=config)
    for text in ("a", "b", "c"):
        whole.steer(text)
    whole.follow_up("f")
    assert await whole.run() == Completed()
    assert said(whole) == [(1, "a"), (2, "b"), (3, "f")]
    for cut in whole.appends[4:]:
        answered = sum(record.fact.kind == "model_attempt_ended" for record in whole.records[:cut])
        run = rig(*["1", "2", "3"][answered:], config=config, records=whole.records[:cut])
        assert await run.resume() == Completed()
        assert said(run) == said(whole)


async def test_a_stop_while_a_source_is_asked_wins() -> None:
    """§2.4"""

    async def source(_: Any) -> list[str]:
        run.stop()
        return ["x"]

    run = rig("1", config=LoopConfig(get_steering_messages=source))
    outcome = await run.run()
    assert not isinstance(outcome, Completed | Incomplete)
    assert run.provider.requests == []


# Ids


@pytest.mark.parametrize("mode", ["all", "one_at_a_time"])
async def test_the_same_message_sent_twice_is_two_messages(mode: Any) -> None:
    """LP-22, RC-23: two commands, each with its own fate, whatever the ids of their messages."""
    run = rig("ok", "and ok", config=LoopConfig(steering_mode=mode))
    for number in (1, 2):
        run.port.command(Command(f"c{number}", "run", Steer(user("again", "same"))))
    assert await run.run() == Completed()
    assert [text for _, text in said(run)] == ["again", "again"]
    ids = [fact.message.id for fact in run.of(MessageAdded)]
    assert len(set(ids)) == len(ids)


async def test_a_message_whose_id_was_left_out_of_the_context_is_another_one() -> None:
    """LP-22, RC-23, LP-5: the thread still has it, the context does not; after a crash neither."""

    def make() -> AgentLoop:
        def forget(info: TurnInfo) -> NextTurn:
            return NextTurn(messages=[user(f"so far: {info.turn}", f"sum-{info.turn}")])

        config = LoopConfig(prepare_next_turn=forget)
        return AgentLoop(ScriptedProvider("ok", "ok", "ok", "ok", "ok"), config=config)

    run = LoopRig(make())
    for number in (1, 2, 3):
        run.port.command(Command(f"c{number}", "run", Steer(user("again", "same"))))
    assert await run.run() == Completed()
    assert [text for _, text in said(run)] == ["again"] * 3
    for cut in run.appends[:-1]:
        again = LoopRig(make(), records=run.records[:cut])
        assert await again.resume() == Completed()


async def test_a_source_may_offer_again_what_was_left_out_of_the_context() -> None:
    """LP-22: once in the thread, once told."""
    config = LoopConfig(
        prepare_next_turn=lambda info: NextTurn(messages=[user("so far", f"sum-{info.turn}")]),
        get_steering_messages=lambda info: [user("again", "same")],
    )
    run = rig("ok", "ok", "ok", config=config)
    assert await run.run() == Completed()
    assert [text for _, text in said(run)] == ["again"]


@pytest.mark.parametrize("policy", ["skip_unstarted", "stop_now"])
async def test_a_request_that_steering_closed_is_closed_at_once(policy: Any) -> None:
    """LP-25, LP-28: nobody is asked in vain while another call of the batch still runs."""
    hold = Hold(deaf=True)

    @tool(approval=True)
    async def asks() -> str:
        """Asks."""
        return "never"

    @tool
    async def slow() -> str:
        """Takes its time."""
        await hold.wait()
        return "did"

    config = LoopConfig(steering_policy=policy, cancel_grace=30.0)
    run = rig([call("asks", call_id="a"), call("slow", call_id="b")], "ok", tools=[asks, slow], config=config)
    task = run.begin()
    await hold.reached()
    while not run.of(RequestOpened):
        await asyncio.sleep(0)
    run.steer("stop that")
    for _ in range(20):
        await asyncio.sleep(0)
    assert [fact.reason for fact in run.of(RequestClosed)] == ["superseded"]
    assert [(end.call_id, end.reason) for end in run.of(CallFinished)] == [("a", "steering")]
    hold.release()
    await task
    assert run.outcome == Completed()
