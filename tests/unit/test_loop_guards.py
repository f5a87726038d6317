"""Guards of the loop: window and relief, repairs, breakers, limits, silence; and what is recorded of a request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from pilothouse.core.breaker import RepetitionBreaker, ToolMisuseBreaker
from pilothouse.core.window import message_tokens
from pilothouse.errors import ConfigError, StartRefused
from pilothouse.events import (
    CallFinished,
    Cancelled,
    Completed,
    Failed,
    HistoryCompacted,
    Incomplete,
    ModelAttemptEnded,
    Noted,
)
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.config import Limits, LoopConfig, RetryPolicy
from pilothouse.loop.context import ToolContext
from pilothouse.loop.dump import Redactor
from pilothouse.loop.handoff import Handoff
from pilothouse.loop.hooks import NextTurn, OverWindow, Relief
from pilothouse.loop.subagent import agent_tool
from pilothouse.loop.tools import tool
from pilothouse.messages import Message, Model, Price, Text, Usage
from pilothouse.responses import ModelRequest, ModelSettings, StreamEnd
from pilothouse.testing import Hold, LoopRig, ScriptedProvider, StepClock
from pilothouse.testing.scripted import call, failure, texts

SMALL = Model("small", "scripted", 20_000, 1_000)


def rig(*scripts: Any, tools: Any = (), model: Model = SMALL, **options: Any) -> LoopRig:
    config = options.pop("config", None) or LoopConfig(retry=RetryPolicy(base=0))
    provider = ScriptedProvider(*scripts, model=model)
    made = LoopRig(AgentLoop(provider, tools=tools, config=config, clock=options.get("clock")), **options)
    made.provider = provider
    return made


def user(tokens: int, message_id: str) -> Message:
    return Message(message_id, "user", (Text("x" * 4 * tokens),))


def notes(run: LoopRig, name: str) -> list[Any]:
    return [fact.data for fact in run.of(Noted) if fact.name == name]


@tool(effect="read")
async def look(n: int) -> str:
    """Looks."""
    return f"saw {n}"


# The window


def _exact(tokens: int) -> list[Message]:
    """A history that makes the request exactly so large."""
    rest = message_tokens(Message("i", "user", (Text("Hello"),)))
    return [user(tokens - rest - message_tokens(user(0, "")), "h")]


async def test_equal_fits_and_one_more_does_not() -> None:
    """LP-12: equal is not over; nothing is sent."""
    assert await rig("ok", history=_exact(20_000)).run() == Completed()
    run = rig("never", history=_exact(20_001))
    outcome = await run.run()
    assert isinstance(outcome, Failed)
    assert (outcome.kind, run.provider.requests) == ("context_overflow", [])
    assert notes(run, "loop/guard")[0]["estimate"] == 20_001


async def test_the_owners_cap_is_the_window() -> None:
    """§2.2: lower or higher; None changes nothing; below 16,384 refused."""
    low = LoopConfig(context_window_cap=16_384)
    assert isinstance(await rig("x", history=_exact(17_000), config=low).run(), Failed)
    high = LoopConfig(context_window_cap=30_000)
    assert await rig("x", history=_exact(25_000), config=high).run() == Completed()
    with pytest.raises(ConfigError, match="16384"):
        LoopConfig(context_window_cap=16_383)


async def test_a_window_that_nobody_knows_is_no_guard() -> None:
    """LP-12: unknown or 0 = off"""
    assert await rig("x", model=Model("m"), history=_exact(10**6)).run() == Completed()


async def test_what_the_provider_counted_counts() -> None:
    """LP-12: anchored on the last accepted response; pending input counts."""
    run = rig([call("look", {"n": 1}), Usage(input=19_990, output=20)], tools=[look])
    outcome = await run.run()
    assert isinstance(outcome, Failed)
    assert outcome.kind == "context_overflow"


async def test_relief_is_adopted_for_this_and_all_later_requests() -> None:
    """LP-13: recorded; the transcript stays; a resumed run starts from it."""
    asked: list[OverWindow] = []

    async def relief(over: OverWindow) -> list[Message]:
        asked.append(over)
        return [user(10, "summary"), over.messages[-1]]

    config = LoopConfig(over_window_relief=relief)
    scripts = [[call("look", {"n": 1}, call_id="c1")], "ok"]
    run = rig(*scripts, tools=[look], history=_exact(21_000), config=config)
    assert await run.run() == Completed()
    assert [len(request.messages) for request in run.provider.requests] == [2, 4]
    (over,) = asked
    assert (over.cause, over.window) == ("estimate", 20_000)
    assert over.estimate > 21_000  # the tools' schemas count too
    compacted = run.of(HistoryCompacted)[0]
    assert (compacted.kept, compacted.method) == (("input",), "over_window_relief")
    assert texts(run.messages)[0] == ("user", "Hello")
    for cut in [at for at in run.appends if at > run.facts.index(compacted)]:
        answered = sum(record.fact.kind == "model_attempt_ended" for record in run.records[:cut])
        again = rig(
            *scripts[answered:],
            tools=[look],
            history=_exact(21_000),
            config=config,
            records=run.records[:cut],
        )
        assert await again.resume() == Completed()
        assert all(len(request.messages) in (2, 4) for request in again.provider.requests)
    assert len(asked) == 1


@pytest.mark.parametrize("bad", [None, [1], "text", RuntimeError("secret"), "too large"])
async def test_relief_that_does_not_help_is_the_refusal(bad: Any) -> None:
    """LP-13, §2.4: noted, then refused; nothing is sent, the user's text is kept [167]."""

    def relief(over: OverWindow) -> Any:
        if isinstance(bad, Exception):
            raise bad
        return list(over.messages) if bad == "too large" else bad

    run = rig("never", history=_exact(21_000), config=LoopConfig(over_window_relief=relief))
    outcome = await run.run()
    assert isinstance(outcome, Failed)
    assert (outcome.kind, run.provider.requests) == ("context_overflow", [])
    assert "secret" not in repr(run.facts)


async def test_a_providers_overflow_is_relieved_once_and_then_final() -> None:
    """LP-13, LP-18: discarded, then one request."""

    def relief(over: OverWindow) -> list[Message]:
        return [over.messages[-1]]

    config = LoopConfig(over_window_relief=relief)
    history = [user(5, "h")]
    run = rig(failure("context_overflow"), "ok", config=config, history=history)
    assert await run.run() == Completed()
    assert [(end.end, end.why) for end in run.of(ModelAttemptEnded)] == [
        ("discarded", "overflow"),
        ("answered", ""),
    ]
    assert run.kinds.index("model_attempt_ended") < run.kinds.index("history_compacted")
    assert len(run.provider.requests[1].messages) == 1
    run = rig(failure("context_overflow"), failure("context_overflow"), config=config, history=history)
    outcome = await run.run()
    assert isinstance(outcome, Failed)
    assert outcome.kind == "context_overflow"
    assert len(run.provider.requests) == 2
    run = rig(failure("context_overflow"))
    assert isinstance(await run.run(), Failed)
    assert len(run.provider.requests) == 1


async def test_relief_is_possible_again_for_the_next_response() -> None:
    """LP-13: at most once a response."""
    asked: list[int] = []

    def relief(over: OverWindow) -> list[Message]:
        asked.append(len(over.messages))
        return list(over.messages[-1:]) if len(asked) == 1 else list(over.messages[-2:])

    config = LoopConfig(over_window_relief=relief)
    scripts = [failure("context_overflow"), [call("look", {"n": 1})], failure("context_overflow"), "ok"]
    run = rig(*scripts, tools=[look], config=config, history=[user(5, "h")])
    assert await run.run() == Completed()
    assert len(asked) == 2


async def test_a_stop_during_relief_cancels() -> None:
    """LP-13"""

    async def relief(over: OverWindow) -> Any:
        run.stop()
        await asyncio.Event().wait()

    run = rig("never", history=_exact(21_000), config=LoopConfig(over_window_relief=relief))
    assert await run.run() == Cancelled("stop")


async def test_a_steer_during_relief_changes_nothing() -> None:
    """LP-13, [122]"""

    async def relief(over: OverWindow) -> list[Message]:
        run.steer("hey")
        await asyncio.sleep(0)
        return [over.messages[-1]]

    run = rig("ok", "ok", history=_exact(21_000), config=LoopConfig(over_window_relief=relief))
    assert await run.run() == Completed()
    assert len(run.of(HistoryCompacted)) == 1


async def test_a_cut_answer_without_a_token_from_a_full_window_is_an_overflow() -> None:
    """PV-9: silent overflow."""
    full = [Usage(input=19_900, output=0), StreamEnd("length")]
    outcome = await rig(full).run()
    assert isinstance(outcome, Failed)
    assert outcome.kind == "context_overflow"


# Pairing


async def test_a_pairing_error_is_healed_once() -> None:
    """LP-18, §3.9"""
    pairing = failure("invalid_request", code="tool_pairing")
    run = rig(pairing, "ok")
    assert await run.run() == Completed()
    assert run.of(ModelAttemptEnded)[0].why == "pairing"
    run = rig(pairing, pairing)
    assert isinstance(await run.run(), Failed)
    run = rig(failure("invalid_request"))
    assert isinstance(await run.run(), Failed)
    assert len(run.provider.requests) == 1


# Breakers


def looks(*numbers: Any) -> list[Any]:
    return [[call("look", {"n": n}, call_id=f"c{at}")] for at, n in enumerate(numbers)]


async def test_a_model_that_repeats_itself_is_told_then_refused_then_stopped() -> None:
    """§3.9, [155]: once, only in the next payload; the end is ours; every call has its result."""
    run = rig(*looks(*[1] * 9), tools=[look])
    assert await run.run() == Incomplete("breaker")
    assert [end.outcome for end in run.of(CallFinished)] == ["succeeded"] * 5 + ["refused"] * 3
    told = [
        at for at, request in enumerate(run.provider.requests) if "same outcome" in repr(request.messages[-1])
    ]
    assert told == [3, 6, 7]  # the note, then the refusals' own words
    assert "[Note" in run.provider.requests[3].messages[-1].text
    assert [data["action"] for data in notes(run, "loop/guard")] == ["note"]
    assert not any("[Note" in message.text for message in run.messages)


async def test_a_batch_that_is_made_again_and_again_is_a_loop_whatever_its_size() -> None:
    """§3.9, [155], LP-39: told, refused as a whole, stopped; and the same if it was resumed at any append."""
    batch = [call("look", {"n": n}) for n in range(5)]
    scripts = [batch] * 12
    whole = rig(*scripts, tools=[look])
    assert await whole.run() == Incomplete("breaker")
    outcomes = [end.outcome for end in whole.of(CallFinished)]
    assert outcomes == ["succeeded"] * 25 + ["refused"] * 15
    assert "[Note" in whole.provider.requests[3].messages[-1].text
    for cut in whole.appends[:: max(1, len(whole.appends) // 12)]:
        run = rig(*scripts, tools=[look], records=whole.records[:cut])
        assert await run.resume() == Incomplete("breaker")
        assert [end.outcome for end in run.of(CallFinished)] == outcomes


async def test_breakers_that_are_off_change_nothing() -> None:
    """LP-39: None leaves payloads byte-identical."""
    run = rig(*looks(*[1] * 9), "ok", tools=[look], config=LoopConfig(repetition_breaker=None))
    assert await run.run() == Completed()
    assert not any("[Note" in repr(request.messages) for request in run.provider.requests)


async def test_equal_rejections_are_told_and_refused() -> None:
    """§3.9: invalid arguments and unknown tools; before any hook."""
    asked: list[Any] = []
    config = LoopConfig(tool_misuse_breaker=ToolMisuseBreaker(), before_tool_call=asked.append)
    run = rig(*looks(*["x"] * 9), tools=[look], config=config)
    assert await run.run() == Incomplete("breaker")
    assert [end.reason for end in run.of(CallFinished)] == ["invalid_args"] * 6 + ["breaker"] * 3
    assert "Read its contract again: look" in run.provider.requests[3].messages[-1].text
    assert asked == []
    unknown = [[call("nope", call_id=f"c{n}")] for n in range(9)]
    assert await rig(*unknown, tools=[look], config=config).run() == Incomplete("breaker")


async def test_resumed_the_breakers_know_what_they_knew() -> None:
    """LP-39: rebuilt from facts, at every append."""
    breaker = ToolMisuseBreaker(note_after=2, refuse_after=3, stop_after_refusals=1)
    config = LoopConfig(
        tool_misuse_breaker=breaker, repetition_breaker=RepetitionBreaker(note_after=2, refuse_after=3)
    )
    scripts = looks(1, 1, "x", "x", "x", "x")
    whole = rig(*scripts, tools=[look], config=config)
    assert await whole.run() == Incomplete("breaker")
    for cut in whole.appends:
        answered = sum(record.fact.kind == "model_attempt_ended" for record in whole.records[:cut])
        run = rig(*scripts[answered:], tools=[look], config=config, records=whole.records[:cut])
        assert await run.resume() == Incomplete("breaker")
        assert [end.reason for end in run.of(CallFinished)] == [end.reason for end in whole.of(CallFinished)]
        for old, new in zip(whole.provider.requests[answered:], run.provider.requests, strict=True):
            assert texts(old.messages) == texts(new.messages)


# Limits


async def test_tokens_are_limited_with_what_is_reserved() -> None:
    """LP-38: at most one reservation over; discarded attempts count."""
    spent = Usage(input=900, output=50)
    scripts = [[*script, spent] for script in looks(1, 2, 3)]
    for limits, requests in [
        ({"input_tokens": 1_000}, 1),
        ({"output_tokens": 60}, 1),
        ({"output_tokens": 120}, 2),
        ({"total_tokens": 1_000}, 1),
    ]:
        (name,) = limits
        config = LoopConfig(limits=Limits(**limits), settings=ModelSettings(max_output_tokens=50))
        run = rig(*scripts, tools=[look], config=config)
        assert await run.run() == Incomplete("limit", name)
        assert len(run.provider.requests) == requests, limits
    config = LoopConfig(limits=Limits(output_tokens=400), settings=ModelSettings(max_output_tokens=500))
    assert await rig("never", config=config).run() == Incomplete("limit", "output_tokens")


async def test_an_output_budget_is_lowered_to_what_is_left() -> None:
    """LP-38"""
    config = LoopConfig(limits=Limits(total_tokens=3_000))
    run = rig("ok", model=Model("m", "p", 0, 8_000), config=config)
    assert await run.run() == Completed()
    assert 2_900 < (run.provider.requests[0].settings.max_output_tokens or 0) < 3_000


async def test_attempts_without_figures_count_as_estimated() -> None:
    """PV-8, LP-38"""
    config = LoopConfig(limits=Limits(output_tokens=1_100), settings=ModelSettings(max_output_tokens=1_000))
    run = rig([call("look", {"n": 1}), "x" * 4_000], "never", tools=[look], config=config)
    assert await run.run() == Incomplete("limit", "output_tokens")


async def _ends_of_resumed(make: Callable[[], AgentLoop]) -> tuple[LoopRig, list[tuple[object, int]]]:
    """A run, and how it ends after a crash behind each of its calls: outcome and turns."""
    whole = LoopRig(make())
    await whole.run()
    ends = []
    for cut in [at for at, fact in enumerate(whole.facts, 1) if fact.kind == "call_started"]:
        again = LoopRig(make(), records=whole.records[:cut])
        ends.append((await again.resume(), again.port.state.turn))
    return whole, ends


@pytest.mark.parametrize("told", [None, Usage(input=400, output=20)])
@pytest.mark.parametrize("limit", [{"total_tokens": 3_000}, {"input_tokens": 2_500}, {"cost": "2.5"}])
async def test_a_resumed_run_has_used_what_it_had_used(limit: dict[str, Any], told: Usage | None) -> None:
    """LP-38, LP-49: attempts whose provider told nothing count as estimated after a crash, too."""

    def answer(request: ModelRequest) -> list[Any]:
        return [call("look", {"n": len(request.messages)}), "x" * 800, *([] if told is None else [told])]

    def make() -> AgentLoop:
        settings = ModelSettings(max_output_tokens=100)
        config = LoopConfig(limits=Limits(**limit), settings=settings)
        return AgentLoop(
            ScriptedProvider(answer, repeat=True, model=PRICED),
            tools=[look],
            config=config,
            system_prompt="x",
        )

    whole, ends = await _ends_of_resumed(make)
    assert len(ends) > 2
    assert whole.outcome == Incomplete("limit", next(iter(limit)))
    assert set(ends) == {(whole.outcome, whole.port.state.turn)}


async def test_what_a_call_used_elsewhere_is_used_after_a_crash_too() -> None:
    """LP-38, LP-49: tokens and money of a sub-agent count against the run's limits."""

    @tool(effect="read")
    async def delegate(n: int, ctx: ToolContext[Any]) -> str:
        """Works elsewhere."""
        ctx.charge(Usage(input=300, output=20, cost="0.5"))
        return f"did {n}"

    for limit in ({"total_tokens": 2_000}, {"cost": "1.8"}):

        def make(limit: dict[str, Any] = limit) -> AgentLoop:
            config = LoopConfig(limits=Limits(**limit), settings=ModelSettings(max_output_tokens=10))
            provider = ScriptedProvider(
                lambda request: [call("delegate", {"n": len(request.messages)}), Usage(input=10, output=1)],
                repeat=True,
                model=PRICED,
            )
            return AgentLoop(provider, tools=[delegate], config=config)

        whole, ends = await _ends_of_resumed(make)
        assert len(ends) > 2
        assert whole.outcome == Incomplete("limit", next(iter(limit)))
        assert set(ends) == {(whole.outcome, whole.port.state.turn)}


async def test_what_a_smaller_context_cost_is_used_after_a_crash_too() -> None:
    """LP-21, LP-49"""

    def relief(over: OverWindow) -> Relief:
        return Relief([over.messages[-1]], "short", Usage(input=900, output=100), PRICED)

    def make() -> AgentLoop:
        config = LoopConfig(
            over_window_relief=relief,
            limits=Limits(total_tokens=1_400),
            settings=ModelSettings(max_output_tokens=10),
        )
        provider = ScriptedProvider(
            lambda request: [call("look", {"n": len(request.messages)}), Usage(input=50, output=1)],
            repeat=True,
            model=SMALL,
        )
        return AgentLoop(provider, tools=[look], config=config)

    history = [user(30_000, "big"), Message("said", "assistant", (Text("yes"),), stop_reason="complete")]
    whole = LoopRig(make(), history=history)
    assert await whole.run() == Incomplete("limit", "total_tokens")
    cut = next(at for at, fact in enumerate(whole.facts, 1) if fact.kind == "call_started")
    again = LoopRig(make(), history=history, records=whole.records[:cut])
    assert await again.resume() == whole.outcome
    assert again.port.state.turn == whole.port.state.turn


PRICED = Model("m", "p", 0, 100, prices=Price("1000", "1000"))


async def test_cost_is_limited_and_told() -> None:
    """LP-38, §2.1"""
    config = LoopConfig(limits=Limits(cost="1.2"), settings=ModelSettings(max_output_tokens=100))
    spent = Usage(input=900, output=50)
    provider = ScriptedProvider(*[[*script, spent] for script in looks(1, 2)], model=PRICED)
    result = await AgentLoop(provider, tools=[look], config=config).ask("x")
    assert result.outcome == Incomplete("limit", "cost")
    assert (result.cost, result.requests) == (
        Decimal("0.95"),
        1,
    )  # the next prompt alone would cost as much again
    with pytest.raises(ConfigError, match="no prices"):
        AgentLoop(ScriptedProvider(), config=config)


async def test_a_limit_on_money_of_a_model_without_prices_says_what_to_do() -> None:
    """LP-38, §6: where it is given, per run, and where another model comes in between; nothing is sent, and it says why."""
    free = Model("free", "scripted")
    bounded = LoopConfig(limits=Limits(cost="5"))
    why = r"limits\.cost: model \S+ has no prices.*give its Model prices, or limit tokens instead"
    for made in (
        lambda: AgentLoop(ScriptedProvider(model=free), config=bounded),
        lambda: AgentLoop(
            ScriptedProvider(model=PRICED),
            config=bounded,
            handoffs=[Handoff(name="a", description="x", model=free)],
        ),
        lambda: agent_tool(
            AgentLoop(ScriptedProvider(model=free)), name="a", description="x", limits={"cost": 1}
        ),
    ):
        with pytest.raises(ConfigError, match=why):
            made()
    for option, model in ({"loop.limits": {"cost": 1}}, free), ({"loop.model": "other"}, PRICED):
        provider = ScriptedProvider("hi", model=model)
        loop = AgentLoop(provider, config=bounded if model is PRICED else None)
        with pytest.raises(StartRefused, match=why):
            await LoopRig(loop, options=option).run()
        assert provider.requests == []
    changing = LoopConfig(limits=Limits(cost="5"), prepare_next_turn=lambda _: NextTurn(model=free))
    outcome = await rig(*looks(1), "no", tools=[look], model=PRICED, config=changing).run()
    assert isinstance(outcome, Failed)
    assert outcome.kind == "config"
    assert re.match(why, outcome.message)
    provider = ScriptedProvider([call("hand_over_to_a")], "no", model=PRICED)
    loop = AgentLoop(provider, handoffs=[Handoff(name="a", description="x", model=free)])
    outcome = await LoopRig(loop, options={"loop.limits": {"cost": 1}}).run()
    assert isinstance(outcome, Failed)
    assert outcome.kind == "config"
    assert re.match(why, outcome.message)


async def test_a_cost_that_the_provider_told_counts() -> None:
    """LP-38, PV-8: before the prices, and where there are none."""
    config = LoopConfig(limits=Limits(cost="1.2"), settings=ModelSettings(max_output_tokens=100))
    spent = Usage(input=9, output=5, cost="1.15")
    provider = ScriptedProvider(*[[*script, spent] for script in looks(1, 2)], model=PRICED)
    result = await AgentLoop(provider, tools=[look], config=config).ask("x")
    assert (result.outcome, result.cost) == (Incomplete("limit", "cost"), Decimal("1.15"))
    result = await AgentLoop(ScriptedProvider(["hi", spent])).ask("x")
    assert result.cost == Decimal("1.15")


async def test_turns_without_a_single_success_are_limited() -> None:
    """LP-38: limit errors"""
    bad = [[call("nope", {"n": n}, call_id=f"c{n}")] for n in range(5)]
    run = rig(*bad, config=LoopConfig(limits=Limits(consecutive_errors=3)))
    assert await run.run() == Incomplete("limit", "errors")
    assert len(run.provider.requests) == 3
    mixed = [*bad[:2], *looks(1), *bad[2:4], "ok"]
    config = LoopConfig(limits=Limits(consecutive_errors=3))
    assert await rig(*mixed, tools=[look], config=config).run() == Completed()
    again = rig(*bad[2:], config=config, records=run.records[: run.appends[1]])
    assert await again.resume() == Incomplete("limit", "errors")


async def test_the_time_for_work_ends_a_stream_a_tool_and_a_wait() -> None:
    """LP-38: deadline; what is under way is cancelled."""

    @tool(effect="read")
    async def slow() -> None:
        """Slow."""
        await asyncio.Event().wait()

    config = LoopConfig(limits=Limits(deadline=5), retry=RetryPolicy(base=10, jitter=0))
    for script in ([Hold()], ["a", Hold()], [call("slow")]):
        clock = StepClock()
        run = rig(script, tools=[slow], config=config, clock=clock)
        task = run.begin()
        await clock.advance(5)
        await task
        assert run.outcome == Incomplete("limit", "deadline")
        assert run.provider.open == 0
    clock = StepClock()
    run = rig(failure("overloaded"), config=config, clock=clock)
    assert await run.run() == Failed("overloaded", None, "overloaded", True, 10_000)


async def test_waiting_for_a_person_is_no_work() -> None:
    """LP-37"""
    from pilothouse.commands import Allow

    @tool(approval=True)
    async def write() -> str:
        """Writes."""
        return "ok"

    clock = StepClock()
    run = rig(
        [call("write")], "done", tools=[write], config=LoopConfig(limits=Limits(deadline=5)), clock=clock
    )
    task = run.begin()
    await clock.advance(1_000)
    run.answer(next(iter(run.port.state.requests)), Allow())
    await task
    assert run.outcome == Completed()
    run = rig("done", config=LoopConfig(limits=Limits(deadline=5)), clock=clock)
    run.port.pause()
    task = run.begin()
    await clock.advance(1_000)
    run.port.resume()
    await task
    assert run.outcome == Completed()


async def test_a_run_that_falls_silent_is_stalled() -> None:
    """§3.9: the last net of a loop used alone; in a stream and in a hook; 0 is off."""

    async def hangs(*_: Any) -> None:
        await asyncio.Event().wait()

    for script, config in [([Hold()], {}), (["a", Hold()], {}), ("x", {"transform_context": hangs})]:
        clock = StepClock()
        run = rig(script, config=LoopConfig(**config), clock=clock)
        task = run.begin()
        await clock.advance(479)
        assert not task.done()
        await clock.advance(1)
        await task
        assert isinstance(run.outcome, Failed)
        assert run.outcome.kind == "stalled"
        assert run.provider.open == 0
    clock = StepClock()
    hold = Hold()
    run = rig([hold], config=LoopConfig(run_idle_timeout=0), clock=clock)
    task = run.begin()
    await clock.advance(10_000)
    hold.release()
    await task


# What was sent


async def test_every_request_has_its_manifest() -> None:
    """LP-50: figures, tool names once, a chain whose prefix does not move; never its content."""
    run = rig(*looks(1), "ok", tools=[look])
    await run.run()
    first, second = notes(run, "loop/request")
    assert (first["messages"], second["messages"]) == (1, 3)
    assert (first["tools"], "tools" in second) == (["look"], False)
    assert first["last"] == "Hello"
    assert first["chain"] != second["chain"]
    again = rig(*looks(1), "ok", tools=[look])
    await again.run()
    assert notes(again, "loop/request") == [first, second]
    assert "raw_wire_dump" not in first


SECRET = "open-sesame-4711"


async def test_a_dump_is_off_by_default_redacted_and_capped() -> None:
    """LP-50, §7.18: secrets of every kind are in no dump."""
    prompt = f"my key is {SECRET}, sk-abcdefghijklmnop and Bearer abcdefghijkl; eyJhbGciOi.eyJzdWIiOi.c2ln"
    pem = "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----"
    config = LoopConfig(
        wire_dump=True, redactor=Redactor([SECRET]), settings=ModelSettings(extra={"api_key": "hunter2"})
    )
    run = rig("ok", prompt=f"{prompt} {pem} {'QUJD' * 200}", config=config)
    await run.run()
    dump = notes(run, "loop/request")[0]["raw_wire_dump"]
    for secret in (
        SECRET,
        "sk-abcdefghijklmnop",
        "abcdefghijkl;",
        "eyJhbGciOi",
        "AAAA",
        "hunter2",
        "QUJDQUJDQUJD",
    ):
        assert secret not in dump
    assert "[base64, 800 characters" in dump
    assert "my key is" in dump
    capped = rig("ok", prompt="ö" * 1000, config=config.copy_with(wire_dump_limit=101))
    await capped.run()
    data = notes(capped, "loop/request")[0]
    assert len(data["raw_wire_dump"].encode()) <= 101
    assert data["raw_wire_dump_bytes"] > 2000
    assert SECRET not in repr(config)


async def test_a_redactor_that_fails_gives_no_dump() -> None:
    """LP-50: and the note says so."""

    class Broken(str):
        __slots__ = ()

        def replace(self, *_: Any) -> str:
            raise RuntimeError("x")

    config = LoopConfig(wire_dump=True, redactor=Redactor(["a"]))
    run = rig("ok", prompt=[Message("m", "user", (Text(Broken("text")),))], config=config)
    await run.run()
    assert notes(run, "loop/request")[0]["raw_wire_dump_failed"] is True
    with pytest.raises(ConfigError, match="patterns"):
        Redactor(patterns=["("])


@pytest.mark.parametrize(
    "told",
    [
        Usage(input="5"),  # type: ignore[arg-type]
        Usage(input=5.5, output=1),  # type: ignore[arg-type]
        Usage(input=1, output=1, cost="free"),
        Usage(input=1, output=1, cost="NaN"),
        Usage(input=1, output=1, cost=0.5),  # type: ignore[arg-type]
    ],
)
async def test_figures_that_are_none_are_not_taken(told: Usage) -> None:
    """PV-8, §6: the answer stands, and counts as estimated."""
    limits = Limits(cost="5", total_tokens=10_000)
    run = rig(["ok", told], model=PRICED, config=LoopConfig(limits=limits))
    assert await run.run() == Completed()
    assert texts(run.messages)[-1] == ("assistant", "ok")
    assert run.of(ModelAttemptEnded)[0].usage is None
