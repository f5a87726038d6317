"""A run of the loop without tools: its facts, how responses end, retry, stop, pause, resume."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pilothouse.errors import ConfigError, OutcomeError, StartRefused, UsageError
from pilothouse.events import (
    CallFinished,
    Cancelled,
    Completed,
    Failed,
    Incomplete,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    ReasoningTold,
    ResponseStream,
    RunEnded,
    TextTold,
    Truncated,
    TurnEnded,
)
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.config import Limits, LoopConfig, RetryPolicy
from pilothouse.messages import Message, Model, Text, Usage
from pilothouse.responses import ModelSettings, StreamEnd, TextDelta
from pilothouse.testing import Hold, LoopRig, Meter, ScriptedProvider, StepClock
from pilothouse.testing.scripted import Cut, call, failure, texts, thought

PLAIN = [
    "turn_started",
    "model_requested",
    "model_attempt_ended",
    "message_added",
    "turn_ended",
    "run_ended",
]


def quick(**changes: Any) -> LoopConfig:
    """A configuration whose retries do not wait."""
    return LoopConfig(**({"retry": RetryPolicy(base=0)} | changes))


def rig(*scripts: Any, config: LoopConfig | None = None, **options: Any) -> LoopRig:
    provider = ScriptedProvider(*scripts)
    made = LoopRig(AgentLoop(provider, config=config or quick(), clock=options.get("clock")), **options)
    made.provider = provider
    return made


# Shape


async def test_texts_that_take_turns_are_told_where_they_go_on() -> None:
    """RC-20: the offset of a piece is that of its own text, whichever was told before it, on any port."""
    pieces = [TextDelta(0, "one "), TextDelta(1, "two "), TextDelta(0, "more"), TextDelta(1, "and more")]
    run = rig(pieces)
    assert await run.run() == Completed()
    told = [(body.index, body.offset, body.text) for body in run.told if isinstance(body, TextTold)]
    assert told == [(0, 0, "one "), (1, 0, "two "), (0, 4, "more"), (1, 4, "and more")]


async def test_a_text_answer_is_these_facts_and_deltas_in_this_order() -> None:
    """LP-3, LP-9: text only."""
    run = rig([thought("hm"), "Hel", "lo", Usage(input=3, output=2)])
    assert await run.run() == Completed()
    assert run.kinds == PLAIN
    assert [type(body) for body in run.told] == [ResponseStream, ReasoningTold, TextTold, TextTold]
    assert [(body.text, body.offset) for body in run.told if isinstance(body, TextTold)] == [
        ("Hel", 0),
        ("lo", 3),
    ]
    ended = run.of(ModelAttemptEnded)[0]
    assert (ended.end, ended.usage) == ("answered", Usage(input=3, output=2, total=5))
    message_id = run.of(ModelRequested)[0].message_id
    assert run.of(MessageAdded)[0].message.id == message_id
    assert run.of(RunEnded)[0].delivery.message_ids == (message_id,)
    assert run.of(TurnEnded)[0].stop_reason == "complete"
    assert texts(run.messages) == [("user", "Hello"), ("assistant", "Hello")]


async def test_the_request_holds_history_and_input_and_the_callers_lists_stay() -> None:
    """LP-1, LP-2: the input is not recorded again, nobody's list is changed."""
    history = [Message("1", "user", (Text("a"),)), Message("2", "assistant", (Text("b"),))]
    run = rig("ok", history=history)
    await run.run()
    assert texts(run.provider.requests[0].messages) == [
        ("user", "a"),
        ("assistant", "b"),
        ("user", "Hello"),
    ]
    assert len(history) == 2
    assert len(run.of(MessageAdded)) == 1


async def test_continue_calls_the_model_with_what_is_there() -> None:
    """LP-1"""
    run = rig("ok", prompt=(), history=[Message("1", "user", (Text("a"),))])
    assert await run.run() == Completed()
    assert texts(run.provider.requests[0].messages) == [("user", "a")]


async def test_options_of_the_run_win() -> None:
    """§2.1"""
    options = {
        "loop.model": "other",
        "loop.settings": {"temperature": 0.5},
        "loop.system_prompt": "Be brief.",
    }
    run = rig("ok", options=options, config=quick(settings=ModelSettings(top_p=0.1)))
    await run.run()
    request = run.provider.requests[0]
    assert (request.model.id, request.model.context_window) == ("other", 0)
    assert (request.settings.temperature, request.settings.top_p) == (0.5, 0.1)
    assert request.system_prompt == "Be brief."


@pytest.mark.parametrize(
    "options",
    [
        {"loop.model": 3},
        {"loop.settings": {"temperature": "hot"}},
        {"loop.settings": 4},
        {"loop.limits": []},
        {"loop.limits": {"nonsense": 1}},
        {"loop.limits": {"turns": "x"}},
        {"loop.send_timeout_ms": -1},
    ],
)
async def test_options_that_cannot_work_refuse_the_start(options: dict[str, Any]) -> None:
    """§6: nothing was recorded."""
    run = rig("ok", options=options)
    with pytest.raises(StartRefused, match=r"loop\."):
        await run.run()
    assert run.kinds == []


async def test_limits_of_a_run_may_lower_and_never_raise() -> None:
    """§2.1"""
    run = rig("ok", options={"loop.limits": {"turns": 0, "requests": 999}})
    assert await run.run() == Incomplete("limit", "turns")
    assert run.provider.requests == []


async def test_several_providers_are_chosen_by_the_models_provider() -> None:
    """§2.7"""
    one, two = ScriptedProvider("one"), ScriptedProvider("two")
    providers = {"a": one, "b": two}
    assert (await AgentLoop(providers).ask("x")).text == "one"
    config = LoopConfig(model=Model("m", "b"))
    assert (await AgentLoop(providers, config=config).ask("x")).text == "two"
    with pytest.raises(ConfigError, match="no provider 'c'"):
        AgentLoop(providers, config=LoopConfig(model=Model("m", "c")))
    with pytest.raises(ConfigError, match="empty"):
        AgentLoop({})


# ask


async def test_ask_returns_everything_and_raises_for_nothing() -> None:
    """§2.1"""
    loop = AgentLoop(ScriptedProvider(["Hi", Usage(input=1, output=1)], failure("auth", "no key")))
    good = await loop.ask("Hello")
    assert (good.text, good.turns, good.requests, good.tool_calls) == ("Hi", 1, 1, 0)
    assert good.usage == Usage(input=1, output=1, total=2)
    good.raise_for_outcome()
    bad = await loop.ask("Hello")
    assert bad.outcome == Failed("auth", message="no key")
    with pytest.raises(OutcomeError, match="no key"):
        bad.raise_for_outcome()


async def test_nothing_to_answer_is_refused_before_a_run_exists() -> None:
    """LP-1"""
    loop = AgentLoop(ScriptedProvider())
    with pytest.raises(UsageError, match="nothing to answer"):
        await loop.ask()
    with pytest.raises(UsageError, match="nothing to answer"):
        await loop.ask(history=[Message("1", "assistant", (Text("a"),))])


# Ends


@pytest.mark.parametrize(
    ("script", "outcome", "attempt"),
    [
        ("ok", Completed(), "answered"),
        (["part", StreamEnd("length")], Truncated(), "answered"),
        (["no", StreamEnd("refusal")], Incomplete("refusal"), "answered"),
        ([StreamEnd("content_filter")], Incomplete("content_filter"), "answered"),
        (failure("auth", "bad key", code="k"), Failed("auth", "k", "bad key"), "failed"),
        (["part", failure("server_error", "x")], Failed("server_error", None, "x", True), "failed"),
        (["part", Cut()], None, "interrupted"),
        (["part", Cut(ConnectionResetError())], None, "interrupted"),
    ],
)
async def test_each_end_of_a_response_leads_to_its_outcome(script: Any, outcome: Any, attempt: str) -> None:
    """§3.3; [017] [060] [163]: an unknown end after visible output is no end of the run."""
    run = rig(script)
    assert await run.run() == outcome
    assert run.of(ModelAttemptEnded)[0].end == attempt
    assert len(run.provider.requests) == 1
    assert run.kinds[-1] == ("run_ended" if outcome is not None else "model_attempt_ended")
    assert (run.of(MessageAdded) != []) == (attempt == "answered")


async def test_pause_turn_goes_on_at_once_a_bounded_number_of_times() -> None:
    """[062]"""
    paused = ["x", StreamEnd("pause_turn")]
    run = rig(paused, "done")
    assert await run.run() == Completed()
    assert texts(run.provider.requests[1].messages)[-1] == ("assistant", "x")
    run = rig(paused, paused, paused, config=quick(limits=Limits(pauses=2)))
    assert await run.run() == Incomplete("limit", "pauses")
    assert len(run.provider.requests) == 3


async def test_calls_cut_by_the_output_limit_are_refused_and_asked_for_again() -> None:
    """LP-15, [015] [076] [081]: none runs even if its JSON parses; the next request has the full budget."""
    cut = [call("write", {"a": 1}, call_id="c1"), StreamEnd("length")]
    run = rig(cut, "done", config=quick(settings=ModelSettings(max_output_tokens=10)))
    assert await run.run() == Completed()
    end = run.of(CallFinished)[0]
    assert (end.outcome, end.reason) == ("refused", "truncated")
    assert "smaller pieces" in run.messages[2].text
    assert [request.settings.max_output_tokens for request in run.provider.requests] == [10, 8192]
    assert run.kinds == [*PLAIN[:4], "call_finished", "turn_ended", *PLAIN]


async def test_length_turns_in_a_row_are_bounded() -> None:
    """LP-15"""
    cuts = [[call("write", {}, call_id=f"c{n}"), StreamEnd("length")] for n in range(3)]
    run = rig(*cuts, config=quick(limits=Limits(length_continuations=2)))
    assert await run.run() == Truncated()
    assert len(run.of(CallFinished)) == 3


async def test_calls_of_a_filtered_response_are_refused() -> None:
    """LP-4: a filter wins over calls; every call has its result."""
    run = rig([call("t"), StreamEnd("content_filter")])
    assert await run.run() == Incomplete("content_filter")
    assert run.of(CallFinished)[0].outcome == "refused"


async def test_announced_calls_that_never_came_are_a_protocol_error_asked_for_once_more() -> None:
    """LP-17, [057]"""
    announced = StreamEnd("tool_calls")
    run = rig(announced, "ok")
    assert await run.run() == Completed()
    run = rig(announced, announced)
    outcome = await run.run()
    assert isinstance(outcome, Failed)
    assert outcome.kind == "protocol"


# Empty completions


@pytest.mark.parametrize("blank", [[], [" \n"], [thought("hm")]])
async def test_an_empty_completion_is_asked_again_and_then_accepted(blank: list[Any]) -> None:
    """LP-16, [030]"""
    run = rig(blank, "ok")
    assert await run.run() == Completed()
    assert [(end.end, end.why) for end in run.of(ModelAttemptEnded)] == [
        ("discarded", "empty"),
        ("answered", ""),
    ]
    run = rig(blank, blank)
    assert await run.run() == Completed(empty=True)
    run = rig(blank, config=quick(max_empty_retries=0))
    assert await run.run() == Completed(empty=True)
    assert len(run.provider.requests) == 1


# Retry


PASSING = ["rate_limit", "overloaded", "server_error", "transport"]
ONCE = ["malformed", "protocol", "malformed_tool_call"]
FINAL = ["auth", "quota", "context_overflow", "invalid_request", "send_timeout", "idle_timeout", "bug"]


@pytest.mark.parametrize(
    ("kind", "requests"),
    [(kind, 4) for kind in PASSING] + [(kind, 2) for kind in ONCE] + [(kind, 1) for kind in FINAL],
)
async def test_only_what_can_pass_is_asked_again(kind: Any, requests: int) -> None:
    """LP-18"""
    run = rig(*[failure(kind)] * 4)
    outcome = await run.run()
    assert isinstance(outcome, Failed)
    assert outcome.kind == kind
    assert len(run.provider.requests) == requests
    assert run.kinds.count("model_attempt_ended") == requests


async def test_a_silent_end_before_anything_was_visible_is_asked_again() -> None:
    """§3.3: interrupted, then retried; nothing was told twice."""
    run = rig([StreamEnd("unknown", cause="eof")], [thought(""), Cut()], "ok")
    assert await run.run() == Completed()
    assert [end.end for end in run.of(ModelAttemptEnded)] == ["failed", "interrupted", "answered"]


async def test_retries_wait_longer_each_time_and_say_so() -> None:
    """LP-19, LP-20"""
    clock = StepClock()
    policy = RetryPolicy(base=2, factor=2, jitter=0)
    run = rig(*[failure("overloaded")] * 3, "ok", config=LoopConfig(retry=policy), clock=clock)
    task = run.begin()
    for delay in (2, 4, 8):
        before = len(run.provider.requests)
        await clock.advance(delay - 0.1)
        assert len(run.provider.requests) == before or before == 0
        await clock.advance(0.1)
    await task
    assert run.outcome == Completed()
    assert [end.retry_after_ms for end in run.of(ModelAttemptEnded)] == [2000, 4000, 8000, None]


async def test_the_servers_hint_is_followed_and_one_that_is_too_long_fails_at_once() -> None:
    """LP-20, [107]"""
    clock = StepClock()
    run = rig(failure("rate_limit", retry_after_ms=500), "ok", config=LoopConfig(), clock=clock)
    task = run.begin()
    await clock.advance(0.5)
    await task
    assert run.outcome == Completed()
    run = rig(failure("rate_limit", retry_after_ms=61_000), config=LoopConfig(), clock=clock)
    assert await run.run() == Failed("rate_limit", None, "rate_limit", True, 61_000)


async def test_a_wait_that_does_not_fit_the_deadline_fails_at_once() -> None:
    """LP-20"""
    clock = StepClock()
    config = LoopConfig(retry=RetryPolicy(base=2, jitter=0))
    run = rig(failure("overloaded"), config=config, clock=clock, deadline_ms=clock.time_ms() + 1500)
    assert await run.run() == Failed("overloaded", None, "overloaded", True, 2000)


async def test_a_stop_ends_a_wait_at_once() -> None:
    """LP-20"""
    clock = StepClock()
    run = rig(failure("overloaded"), config=LoopConfig(), clock=clock)
    task = run.begin()
    await clock.until_sleeping()
    run.stop()
    await task
    assert run.outcome == Cancelled("stop")
    assert len(run.provider.requests) == 1


async def test_usage_of_failed_and_discarded_attempts_counts() -> None:
    """LP-21"""
    run = rig([Usage(input=2, output=0), failure("overloaded")], [Usage(input=3, output=0)], ["ok"])
    await run.run()
    assert run.port.state.usage == Usage(input=5, output=0, total=5)
    assert run.of(TurnEnded)[0].usage == Usage(input=5, output=0, total=5)


async def test_requests_are_limited_over_all_attempts() -> None:
    """LP-38"""
    run = rig(*[failure("overloaded")] * 4, config=quick(limits=Limits(requests=2)))
    assert await run.run() == Incomplete("limit", "requests")
    assert len(run.provider.requests) == 2


# Silence


async def test_the_time_for_sending_runs_over_all_attempts() -> None:
    """LP-51"""
    clock = StepClock()
    config = LoopConfig(retry=RetryPolicy(base=0.2, factor=1, jitter=0), send_timeout=0.5)
    run = rig(failure("overloaded"), [Hold()], config=config, clock=clock)
    task = run.begin()
    await clock.advance(0.5)
    await task
    assert run.outcome is not None
    assert run.outcome.kind == "send_timeout"
    run = rig(failure("overloaded"), config=config, clock=clock, options={"loop.send_timeout_ms": 100})
    assert await run.run() == Failed("overloaded", None, "overloaded", True, 200)


async def test_a_response_that_falls_silent_fails_and_is_not_retried() -> None:
    """LP-18, LP-51: what had come stays as partial."""
    clock = StepClock()
    options = {"loop.stream_idle_timeout_ms": 300}
    run = rig(["a", Hold()], clock=clock, options=options)
    task = run.begin()
    await clock.advance(0.3)
    await task
    assert run.outcome == Failed("idle_timeout", None, "the response fell silent", True)
    assert run.provider.open == 0
    assert run.of(MessageAdded) == []


# Stop and pause


async def test_stopped_at_any_fact_or_delta_it_ends_cancelled_and_nothing_starts_later() -> None:
    """LP-42, LP-43: at every index, with two responses, reasoning and a retry."""
    scripts = [failure("overloaded"), [thought("hm"), "Hel", "lo", StreamEnd("pause_turn")], "Bye"]
    whole = rig(*scripts)
    await whole.run()
    last = whole.facts[whole.appends[-2] :]
    for index in range(len(whole.seen)):
        run = rig(*scripts, on_seen=lambda at, _, index=index: at == index and run.stop())
        outcome = await run.run()
        if whole.seen.index(last[0]) <= index:  # the facts of the last append are one: it has ended already
            assert outcome == Completed()
            continue
        assert outcome == Cancelled("stop")
        assert run.provider.open == 0
        assert run.kinds.count("run_ended") == 1
        after = run.kinds[run.kinds.index("run_ended") :]
        assert after == ["run_ended"]
        starts = [fact.kind for fact in run.facts[_stop_index(run) :]]
        assert not {"turn_started", "model_requested"} & set(starts)


def _stop_index(run: LoopRig) -> int:
    return next(index for index, fact in enumerate(run.facts) if fact.kind == "stop_requested")


async def test_a_stop_before_the_run_asks_nothing() -> None:
    """[114]"""
    run = rig("ok")
    run.stop()
    assert await run.run() == Cancelled("stop")
    assert run.provider.requests == []


async def test_a_second_stop_changes_nothing() -> None:
    """LP-42"""
    hold = Hold()
    run = rig([hold])
    task = run.begin()
    await hold.reached()
    run.stop("first")
    await task
    assert run.outcome == Cancelled("first")
    assert run.kinds.count("run_ended") == 1


async def test_a_deadline_ends_incomplete() -> None:
    """RC-45, §2.5"""
    hold = Hold()
    run = rig([hold])
    task = run.begin()
    await hold.reached()
    run.port.cancel("late", "deadline")
    await task
    assert run.outcome == Incomplete("limit", "deadline")


async def test_a_cancelled_task_passes_its_cancellation_on() -> None:
    """LP-46: and records no end."""
    hold = Hold()
    run = rig([hold])
    task = run.begin()
    await hold.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.outcome is None
    assert run.provider.open == 0


async def test_a_shutdown_leaves_the_run_as_it_is() -> None:
    """RC-52: no end is recorded; the attempt is interrupted, so that a recovery asks again."""
    hold = Hold()
    run = rig(["a", hold])
    task = run.begin()
    await hold.reached()
    run.port.scope.fire("closing", "shutdown")
    await task
    assert run.outcome is None
    assert run.kinds[-1] == "model_attempt_ended"
    assert run.of(ModelAttemptEnded)[0].end == "interrupted"


async def test_paused_it_sends_and_reads_nothing() -> None:
    """RC-83"""
    clock = StepClock()
    run = rig(["a", "b"], on_seen=lambda _, body: isinstance(body, TextTold) and run.port.pause("read"))
    run.port.pause("request")
    task = run.begin()
    await clock.advance(1)
    assert run.provider.requests == []
    run.port.resume()
    await clock.advance(1)
    assert [body.text for body in run.told if isinstance(body, TextTold)] == ["a"]
    run.port.resume()
    await clock.advance(1)
    run.port.resume()
    await task
    assert run.outcome == Completed()


async def test_a_stop_opens_the_gate() -> None:
    """RC-83"""
    run = rig("ok")
    run.port.pause()
    task = run.begin()
    await asyncio.sleep(0)
    run.stop()
    await task
    assert run.outcome == Cancelled("stop")


# Resume


async def test_resumed_after_any_fact_it_comes_to_the_same_end() -> None:
    """LP-49: a cut after every append; what is known is not asked again."""
    scripts = [
        failure("overloaded"),
        ["one", StreamEnd("pause_turn")],
        [call("t", call_id="c1"), StreamEnd("length")],
        [],
        "end",
    ]
    whole = rig(*scripts)
    assert await whole.run() == Completed()
    for cut in whole.appends:
        prefix = whole.records[:cut]
        asked = [record.fact for record in prefix if isinstance(record.fact, ModelRequested)]
        ended = sum(isinstance(record.fact, ModelAttemptEnded) for record in prefix)
        run = rig(*scripts[ended:], records=prefix)
        assert await run.resume() == Completed(), cut
        assert texts(run.messages) == texts(whole.messages), cut
        if len(asked) > ended:
            assert run.of(ModelAttemptEnded)[ended].why == "recovered"
            assert run.of(ModelRequested)[-1].message_id not in {fact.message_id for fact in asked}
        for request in run.provider.requests:
            ids = [message.id for message in request.messages]
            assert len(ids) == len(set(ids))


async def test_resumed_after_an_unknown_end_it_asks_again_in_the_same_turn() -> None:
    """LP-49: the partial stays, the new answer has a new id."""
    lost = rig(["par", Cut()])
    assert await lost.run() is None
    run = rig("whole", records=lost.records)
    assert await run.resume() == Completed()
    assert run.port.state.turn == 1
    assert run.kinds == [*PLAIN[:3], *PLAIN[1:]]
    first, second = run.of(ModelRequested)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.message_id != second.message_id


async def test_resumed_under_a_stop_it_makes_no_request() -> None:
    """RC-53"""
    lost = rig(["par", Cut()])
    await lost.run()
    run = rig("never", records=lost.records)
    run.stop()
    assert await run.resume() == Cancelled("stop")
    assert run.provider.requests == []


async def test_an_ended_run_is_not_resumed() -> None:
    whole = rig("ok")
    await whole.run()
    run = rig("never", records=whole.records)
    assert await run.resume() == Completed()
    assert run.provider.requests == []


# Cost


async def test_a_turn_costs_no_task_and_no_pass_and_a_delta_nothing() -> None:
    """performance.md: at most 3 passes a turn, 0 a delta, no task besides the run's."""
    run = rig(["x"] * 500)
    async with Meter() as meter:
        await run.run()
    assert (meter.tasks, meter.passes) == (0, 0)
