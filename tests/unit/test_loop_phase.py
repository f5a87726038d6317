"""The tool phase: checks, starts, results, stops, time limits, and what a resumed run does with open calls."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from pilothouse.core import calls as ledger
from pilothouse.core.calls import NOT_RUN_TEXT, UNKNOWN_TEXT
from pilothouse.errors import ConfigError, OutcomeUnknown, ToolError, ToolStopped, UsageError
from pilothouse.events import (
    CallFinished,
    CallObserved,
    CallProgress,
    CallStarted,
    Cancelled,
    Completed,
    Incomplete,
    RunEnded,
    TurnStarted,
)
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.config import Limits, LoopConfig
from pilothouse.loop.context import ToolContext, current_call
from pilothouse.loop.tools import NotRun, Tool, ToolResult, tool
from pilothouse.messages import Structured, Text
from pilothouse.testing import Hold, LoopRig, Meter, ScriptedProvider, StepClock
from pilothouse.testing.scripted import call, texts, thought


def rig(
    *tools: Any, script: Any, after: Any = "done", config: LoopConfig | None = None, **options: Any
) -> LoopRig:
    """A run whose first response is `script` and whose second is `after`."""
    provider = ScriptedProvider(script, after)
    clock = options.get("clock")
    loop = AgentLoop(provider, tools=tools, config=config, deps=options.pop("deps", None), clock=clock)
    made = LoopRig(loop, **options)
    made.provider = provider
    return made


def ends(run: LoopRig) -> dict[str, tuple[str, str]]:
    return {end.call_id: (end.outcome, end.reason) for end in run.of(CallFinished)}


def text_of(run: LoopRig, call_id: str) -> str:
    end = next(end for end in run.of(CallFinished) if end.call_id == call_id)
    return "".join(part.text for part in end.content if isinstance(part, Text))


class Log:
    """Tools that write down what happened to them."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.left: list[str] = []
        self.holds: dict[str, Hold] = {}

    def hold(self, name: str, **options: Any) -> Hold:
        return self.holds.setdefault(name, Hold(**options))

    def tool(self, **options: Any) -> Tool:
        @tool(**{"name": "work", "description": "Works.", **options})
        async def work(name: str) -> str:
            self.entered.append(name)
            if name in self.holds:
                await self.holds[name].wait()
            self.left.append(name)
            return f"did {name}"

        return work


def works(*names: str) -> list[Any]:
    return [call("work", {"name": name}, call_id=name) for name in names]


# Shape


async def test_a_turn_with_a_tool_is_these_facts_in_this_order() -> None:
    """LP-9: with tools."""
    run = rig(Log().tool(), script=works("a"))
    assert await run.run() == Completed()
    assert run.kinds == [
        "turn_started",
        "model_requested",
        "model_attempt_ended",
        "message_added",
        "call_started",
        "call_finished",
        "turn_ended",
        "turn_started",
        "model_requested",
        "model_attempt_ended",
        "message_added",
        "turn_ended",
        "run_ended",
    ]
    assert texts(run.messages) == [
        ("user", "Hello"),
        ("assistant", ""),
        ("tool", "did a"),
        ("assistant", "done"),
    ]
    assert len(run.appends) == 4  # neighbours share an append; the intent is durable before the tool runs


async def test_results_stand_in_call_order_and_are_recorded_in_the_order_of_their_ends() -> None:
    """LP-9, EF-2: three tools finishing in reverse."""
    log = Log()
    holds = [log.hold(name) for name in "abc"]
    run = rig(log.tool(), script=works("a", "b", "c"))
    task = run.begin()
    for hold in holds:
        await hold.reached()
    for hold in reversed(holds):
        hold.release()
        for _ in range(5):
            await asyncio.sleep(0)
    await task
    assert [end.call_id for end in run.of(CallFinished)] == ["c", "b", "a"]
    assert [message.call_id for message in run.provider.requests[1].messages[2:]] == ["a", "b", "c"]
    assert [message.call_id for message in run.messages[2:5]] == ["a", "b", "c"]


async def test_the_intent_is_durable_before_the_function_is_entered() -> None:
    """LP-10, EF-1, EF-3: with key, effect and the digest of exactly these arguments."""
    seen: list[Any] = []

    @tool(effect="idempotent")
    async def look(a: int, ctx: ToolContext[Any]) -> None:
        """Looks."""
        seen.append((run.of(CallStarted)[-1], ctx.idempotency_key, ctx.attempt, ctx.turn, ctx.call_id))

    run = rig(look, script=[call("look", {"a": "1"}, call_id="c")])
    await run.run()
    (start, key, attempt, turn, call_id) = seen[0]
    assert start.arguments == {"a": 1}
    assert start.arguments_digest == ledger.arguments_digest({"a": 1})
    assert start.key == key == ledger.idempotency_key("run", "c", start.arguments_digest)
    assert (start.effect, attempt, turn, call_id) == ("idempotent", 1, 1, "c")


async def test_refused_starts_enter_nothing() -> None:
    """EF-1: if the append is refused the function is not entered."""
    log = Log()
    run = rig(log.tool(), script=works("a"))
    record = run.port.record

    async def stop_first(*facts: Any) -> int:
        if any(isinstance(fact, CallStarted) for fact in facts):
            run.stop()
        return await record(*facts)

    run.port.record = stop_first
    assert await run.run() == Cancelled("stop")
    assert log.entered == []
    assert ends(run) == {"a": ("cancelled", "stop")}


async def test_tools_are_told_to_the_model() -> None:
    """TL-3: fixed when the request is built; a callable changes the next one."""
    log = Log()
    sets = [[log.tool()], [log.tool(), tool(description="x", name="other")(lambda: None)]]
    provider = ScriptedProvider(works("a"), "done")
    loop = AgentLoop(provider, tools=lambda: sets[min(len(provider.requests), 1)])
    run = LoopRig(loop)
    await run.run()
    assert [[spec.name for spec in request.tools] for request in provider.requests] == [
        ["work"],
        ["work", "other"],
    ]
    first, second = run.of(TurnStarted)
    assert first.tools_digest != second.tools_digest


def test_two_tools_of_one_name_are_refused() -> None:
    """§6"""
    with pytest.raises(ConfigError, match="two are called 'work'"):
        AgentLoop(ScriptedProvider(), tools=[Log().tool(), Log().tool()])


async def test_plain_functions_are_tools() -> None:
    """§2.1: ToolLike."""

    def double(n: int) -> int:
        """Doubles."""
        return 2 * n

    run = rig(double, script=[call("double", {"n": 2}, call_id="c")])
    assert await run.run() == Completed()
    assert text_of(run, "c") == "4"


# Refusals


async def test_calls_that_cannot_run_are_refused_and_the_others_run() -> None:
    """LP-27 steps 1, 3, 4; [016] [157]: honest texts, the batch's other calls run."""
    log = Log()
    script = [
        call("wrok", {"name": "x"}, call_id="typo"),
        call("work", '{"name": "x', call_id="cut"),
        call("work", "[1]", call_id="list"),
        call("work", {"nme": 1}, call_id="bad"),
        call(" work ", {"name": "ok"}, call_id="blanks"),
    ]
    run = rig(log.tool(), script=script)
    assert await run.run() == Completed()
    assert ends(run) == {
        "typo": ("refused", "unknown_tool"),
        "cut": ("refused", "invalid_args"),
        "list": ("refused", "invalid_args"),
        "bad": ("refused", "invalid_args"),
        "blanks": ("succeeded", ""),
    }
    assert text_of(run, "typo") == "There is no tool 'wrok'. Available: work. Did you mean 'work'?"
    assert '{\\"name\\": \\"x' in text_of(run, "cut")
    assert "nme: there is no such argument" in text_of(run, "bad")
    assert log.entered == ["ok"]
    assert [message.call_id for message in run.messages[2:7]] == ["typo", "cut", "list", "bad", "blanks"]


async def test_a_call_without_any_tool_is_refused() -> None:
    run = rig(script=[call("x", call_id="c")])
    assert await run.run() == Completed()
    assert "no tools are available" in text_of(run, "c")


async def test_prepare_may_mend_arguments_and_say_what_is_wrong() -> None:
    """LP-27 step 4"""

    def prepare(given: Any) -> Any:
        if given.get("n") == 0:
            raise ToolError("n counts from 1")
        if given.get("n") == 9:
            raise KeyError("secret")
        return {"n": given["number"]} if "number" in given else given

    @tool(prepare=prepare)
    async def f(n: int) -> int:
        """F."""
        return n

    script = [
        call("f", {"number": 3}, call_id="a"),
        call("f", {"n": 0}, call_id="b"),
        call("f", {"n": 9}, call_id="c"),
    ]
    run = rig(f, script=script)
    await run.run()
    assert ends(run) == {
        "a": ("succeeded", ""),
        "b": ("refused", "invalid_args"),
        "c": ("refused", "hook_error"),
    }
    assert text_of(run, "b") == "n counts from 1"
    assert "secret" not in repr(run.facts)


async def test_effect_and_resource_may_depend_on_the_arguments() -> None:
    """TL-4"""

    def effect(args: Any) -> Any:
        return {"look": "read", "write": "idempotent"}.get(args["what"], "nonsense")

    @tool(effect=effect)
    async def f(what: str) -> None:
        """F."""

    script = [call("f", {"what": what}, call_id=what) for what in ("look", "write", "else")]
    run = rig(f, script=script)
    await run.run()
    assert {start.call_id: start.effect for start in run.of(CallStarted)} == {
        "look": "read",
        "write": "idempotent",
    }
    assert ends(run)["else"] == ("refused", "hook_error")


# Concurrency


async def test_the_second_call_starts_before_the_first_has_ended() -> None:
    """LP-30"""
    log = Log()
    first, second = log.hold("a"), log.hold("b")
    run = rig(log.tool(), script=works("a", "b"))
    task = run.begin()
    await first.reached()
    await second.reached()
    assert log.left == []
    first.release()
    second.release()
    await task


@pytest.mark.parametrize("by", ["config", "tool"])
async def test_sequential_calls_run_one_at_a_time_in_source_order(by: str) -> None:
    """LP-30: one sequential tool serialises the batch."""
    log = Log()
    config = LoopConfig(tool_execution="sequential") if by == "config" else None
    options = {"execution": "sequential"} if by == "tool" else {}
    free = Log()
    free.entered, free.left = log.entered, log.left
    run = rig(
        log.tool(**options),
        free.tool(name="free"),
        script=[*works("a"), call("free", {"name": "x"}), *works("b")],
        config=config,
    )
    await run.run()
    assert log.entered == log.left == ["a", "x", "b"]
    order = [fact.kind for fact in run.facts if fact.kind in ("call_started", "call_finished")]
    assert order == ["call_started", "call_finished"] * 3


async def test_calls_of_one_resource_wait_for_each_other_and_not_for_others() -> None:
    """TL-4"""
    log = Log()
    hold = log.hold("a1")
    run = rig(log.tool(resource=lambda args: args["name"][0]), script=works("a1", "a2", "b1"))
    task = run.begin()
    await hold.reached()
    for _ in range(5):
        await asyncio.sleep(0)
    assert log.entered == ["a1", "b1"]
    hold.release()
    await task
    assert log.entered == ["a1", "b1", "a2"]


async def test_at_most_so_many_run_at_once() -> None:
    """LP-30"""
    log = Log()
    holds = [log.hold(name) for name in "abc"]
    run = rig(log.tool(), script=works("a", "b", "c"), config=LoopConfig(limits=Limits(parallel_tools=2)))
    task = run.begin()
    await holds[1].reached()
    await asyncio.sleep(0)
    assert log.entered == ["a", "b"]
    holds[0].release()
    await holds[2].reached()
    holds[1].release()
    holds[2].release()
    await task


async def test_human_calls_come_one_at_a_time_beside_the_others() -> None:
    """TL-4"""
    log = Log()
    hold = log.hold("h1")
    other = Log()
    other.entered = log.entered
    run = rig(
        log.tool(effect="human"),
        other.tool(name="other"),
        script=[*works("h1", "h2"), call("other", {"name": "x"}, call_id="x")],
    )
    task = run.begin()
    await hold.reached()
    await asyncio.sleep(0)
    assert log.entered == ["h1", "x"]
    hold.release()
    await task
    assert log.entered == ["h1", "x", "h2"]


async def test_runs_of_one_loop_share_resources_and_nothing_else() -> None:
    """[164], TL-4"""
    log = Log()
    hold = log.hold("a")
    loop = AgentLoop(ScriptedProvider(works("a"), works("b"), "x", "y"), tools=[log.tool(resource="file")])
    first, second = LoopRig(loop, run_id="1"), LoopRig(loop, run_id="2")
    task = first.begin()
    await hold.reached()
    other = second.begin()
    for _ in range(5):
        await asyncio.sleep(0)
    assert log.entered == ["a"]
    hold.release()
    await asyncio.gather(task, other)
    assert log.entered == ["a", "b"]


async def test_siblings_do_not_hide_each_other() -> None:
    """LP-31, [158]"""

    @tool
    async def bad() -> None:
        """Bad."""
        raise ValueError("x")

    run = rig(bad, Log().tool(), script=[call("bad", call_id="x"), *works("a")])
    assert await run.run() == Completed()
    assert ends(run) == {"x": ("failed", ""), "a": ("succeeded", "")}


# Results


async def test_what_a_tool_says_reaches_the_model_and_what_it_hides_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """TL-11: a secret in an exception appears in no fact, delta or message; the traceback is in the log."""

    @tool(expose_errors=(LookupError,))
    async def fails(how: str) -> None:
        """Fails."""
        if how == "tool":
            raise ToolError("no such port")
        if how == "exposed":
            raise KeyError("husum")
        if how == "both":
            raise ExceptionGroup("g", [ToolError("one"), IndexError("two")])
        if how == "mixed":
            raise ExceptionGroup("g", [ToolError("one"), ValueError("SECRET-2")])
        raise ValueError("SECRET-1")

    kinds = ("tool", "exposed", "both", "mixed", "hidden")
    run = rig(fails, script=[call("fails", {"how": kind}, call_id=kind) for kind in kinds])
    with caplog.at_level(logging.ERROR):
        await run.run()
    assert {outcome for outcome, _ in ends(run).values()} == {"failed"}
    assert [text_of(run, kind) for kind in kinds[:3]] == ["no such port", "'husum'", "one\ntwo"]
    hidden = text_of(run, "hidden")
    assert hidden.startswith("fails: internal error in the tool, not in your arguments (reference ")
    everything = repr((run.facts, run.told, [request.messages for request in run.provider.requests]))
    assert "SECRET" not in everything
    assert "SECRET-1" in caplog.text
    assert hidden.split("reference ")[1][:8] in caplog.text


async def test_a_result_that_is_no_json_says_that_the_tool_ran() -> None:
    """TL-13, [101]"""

    @tool
    async def odd() -> object:
        """Odd."""
        return object()

    @tool
    def forgetful() -> object:
        """Forgets to await."""
        return asyncio.sleep(0)

    run = rig(odd, forgetful, script=[call("odd", call_id="a"), call("forgetful", call_id="b")])
    assert await run.run() == Completed()
    assert ends(run) == {"a": ("failed", "bad_result"), "b": ("failed", "bad_result")}
    assert text_of(run, "a") == "odd ran, but what it returned has no JSON form: object."


async def test_a_cancellederror_from_inside_is_the_tools_error() -> None:
    """LP-46, [160]: nobody asked it to stop."""

    @tool
    async def odd() -> None:
        """Odd."""
        raise asyncio.CancelledError

    run = rig(odd, script=[call("odd", call_id="a")])
    assert await run.run() == Completed()
    assert ends(run) == {"a": ("failed", "cancelled_inside")}


async def test_an_exit_is_no_tool_text() -> None:
    """LP-46: KeyboardInterrupt and SystemExit never become tool text."""

    class Exit(SystemExit):
        pass

    @tool
    def leaves() -> None:
        """Leaves."""
        raise Exit

    run = rig(leaves, script=[call("leaves")])
    with pytest.raises(Exit):
        await run.run()
    assert run.of(CallFinished) == []
    assert run.of(RunEnded) == []
    await run.loop.aclose()


async def test_terminate_ends_the_asking_only_if_all_say_so() -> None:
    """LP-6"""

    @tool(terminate=True)
    async def finish() -> str:
        """Ends."""
        return "bye"

    @tool
    async def maybe(end: bool) -> ToolResult:
        """Maybe."""
        return ToolResult((Text("x"),), terminate=end)

    run = rig(finish, maybe, script=[call("finish"), call("maybe", {"end": True})])
    assert await run.run() == Completed(stopped_by="terminate")
    assert len(run.provider.requests) == 1
    run = rig(finish, maybe, script=[call("finish"), call("maybe", {"end": False})])
    assert await run.run() == Completed()
    assert len(run.provider.requests) == 2


# Context, threads, progress


async def test_tools_get_deps_and_their_call_also_in_threads() -> None:
    """TL-2, TL-8: injected by type, current_call by context variable."""

    @tool
    async def a(ctx: ToolContext[str]) -> str:
        """A."""
        assert current_call() is ctx
        return ctx.deps

    @tool
    def b(context: ToolContext[str]) -> str:
        """B."""
        assert current_call() is context
        return f"{context.deps} {threading.current_thread() is threading.main_thread()}"

    run = rig(a, b, script=[call("a", call_id="a"), call("b", call_id="b")], deps="dep")
    await run.run()
    assert (text_of(run, "a"), text_of(run, "b")) == ("dep", "dep False")
    with pytest.raises(UsageError, match="outside of a tool"):
        current_call()


async def test_sync_tools_overlap_and_do_not_block_the_event_loop() -> None:
    """TL-8, [159]"""
    both = threading.Barrier(2, timeout=10)
    inside = asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool
    def meet() -> str:
        """Meets."""
        loop.call_soon_threadsafe(inside.set)
        both.wait()
        assert threading.current_thread().daemon
        return "met"

    run = rig(meet, script=[call("meet", call_id="a"), call("meet", call_id="b")])
    task = run.begin()
    await inside.wait()  # the event loop is free while they run
    await task
    assert {outcome for outcome, _ in ends(run).values()} == {"succeeded"}
    await run.loop.aclose()


async def test_progress_is_coalesced_and_dropped_after_the_end() -> None:
    """TL-9"""
    kept: list[ToolContext[Any]] = []

    @tool
    async def talks(ctx: ToolContext[Any]) -> None:
        """Talks."""
        kept.append(ctx)
        for n in range(100):
            ctx.progress(f"step {n}", fraction=n / 50, data=n)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ctx.progress("x" * 600)

    run = rig(talks, script=[call("talks", call_id="c")])
    await run.run()
    kept[0].progress("late")
    await asyncio.sleep(0)
    told = [body for body in run.told if isinstance(body, CallProgress)]
    assert [(body.text, body.fraction, len(body.details)) for body in told] == [
        ("step 99", 1.0, 16),
        ("x" * 512, 1.0, 0),
    ]


async def test_progress_may_be_a_part() -> None:
    """§2.5: a text is the text, anything else is a detail."""

    @tool
    async def draws(ctx: ToolContext[Any]) -> None:
        """Draws."""
        ctx.progress(Text("sketched"), fraction=0.5)
        ctx.progress(Structured({"lines": 3}), data="more")

    run = rig(draws, script=[call("draws", call_id="c")])
    await run.run()
    (told,) = [body for body in run.told if isinstance(body, CallProgress)]
    assert (told.text, told.fraction) == ("sketched", 0.5)
    assert told.details == ({"type": "structured", "data": {"lines": 3}}, "more")


async def test_progress_works_from_a_thread() -> None:
    """TL-9"""

    @tool
    def talks(ctx: ToolContext[Any]) -> None:
        """Talks."""
        ctx.progress("half", fraction=0.5)

    run = rig(talks, script=[call("talks", call_id="c")])
    await run.run()
    assert CallProgress("c", "half", 0.5) in run.told
    await run.loop.aclose()


# Time limits


async def test_a_tool_over_its_time_is_stopped_and_the_run_goes_on() -> None:
    """TL-5, LP-44: by effect."""
    for effect, end in [
        ("read", ("failed", "timeout")),
        ("idempotent", ("failed", "timeout")),
        ("non_idempotent", ("unknown", "timeout")),
    ]:
        clock, log = StepClock(), Log()
        log.hold("a")
        run = rig(log.tool(effect=effect, timeout=5), script=works("a"), clock=clock)
        task = run.begin()
        await clock.advance(5)
        await task
        assert run.outcome == Completed()
        assert ends(run) == {"a": end}
    assert UNKNOWN_TEXT in text_of(run, "a")


async def test_the_configurations_limit_holds_for_tools_without_their_own() -> None:
    """§2.3; None is no limit; a person is not hurried (TL-4)."""
    clock, log = StepClock(), Log()
    log.hold("a")
    run = rig(log.tool(), script=works("a"), clock=clock, config=LoopConfig(tool_timeout=2))
    task = run.begin()
    await clock.advance(2)
    await task
    for options in ({"timeout": None}, {"effect": "human", "timeout": 1}):
        clock, log = StepClock(), Log()
        hold = log.hold("a")
        run = rig(log.tool(**options), script=works("a"), clock=clock)
        task = run.begin()
        await clock.advance(10_000)
        assert not task.done()
        hold.release()
        await task


async def test_a_tool_knows_its_time() -> None:
    clock = StepClock()
    left: list[float | None] = []

    @tool(timeout=5)
    async def f(ctx: ToolContext[Any]) -> None:
        """F."""
        left.append(ctx.remaining())
        await clock.sleep(2)
        left.append(ctx.remaining())

    run = rig(f, script=[call("f")], clock=clock)
    task = run.begin()
    await clock.advance(2)
    await task
    assert left == [5, 3]


# Stop


STOPPED = {
    ("read", "obeys"): ("cancelled", "user"),
    ("idempotent", "obeys"): ("cancelled", "user"),
    ("non_idempotent", "obeys"): ("unknown", "user"),
    ("non_idempotent", "safe"): ("cancelled", "user"),
    ("non_idempotent", "says"): ("cancelled", "user"),
    ("read", "doubts"): ("unknown", "outcome_unknown"),
    ("non_idempotent", "returns"): ("succeeded", ""),
    ("non_idempotent", "raises"): ("unknown", "user"),
    ("read", "deaf"): ("cancelled", "user"),
    ("non_idempotent", "deaf"): ("unknown", "user"),
}


@pytest.mark.parametrize(("effect", "way"), STOPPED)
async def test_a_stopped_call_says_what_is_known_of_it(effect: Any, way: str) -> None:
    """LP-43, LP-44, EF-10, [112]"""
    clock = StepClock()
    started, late = asyncio.Event(), asyncio.Event()

    @tool(effect=effect, cancel_safe=way == "safe")
    async def f(ctx: ToolContext[Any]) -> str:
        """F."""
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert ctx.cancelled.is_set()
            assert ctx.cancelled.reason == "user"
            if way == "says":
                raise ToolStopped("stopped in time") from None
            if way == "doubts":
                raise OutcomeUnknown("perhaps sent") from None
            if way == "raises":
                raise ValueError from None
            if way == "returns":
                return "done after all"
            if way == "deaf":
                await late.wait()
                return "late"
            raise
        return ""

    log = Log()
    run = rig(f, log.tool(), script=[call("f", call_id="f")], clock=clock)
    task = run.begin()
    await started.wait()
    run.stop()
    await clock.advance(1.4)
    assert task.done() == (way != "deaf")
    await clock.advance(0.1)
    await task
    assert run.outcome == Cancelled("stop")
    assert ends(run) == {"f": STOPPED[effect, way]}
    assert len(run.provider.requests) == 1
    facts = len(run.facts)
    assert run.loop.abandoned == (way == "deaf")
    late.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert run.loop.abandoned == 0
    assert len(run.facts) == facts  # EF-12: the late end is dropped
    if way == "deaf":
        assert run.of(CallFinished)[0].marks == ("abandoned",)


async def test_a_call_that_had_not_been_entered_at_the_stop_is_not_run() -> None:
    """LP-43: its start is on record, its function has not taken its first step: it takes none, and the result says so."""
    log = Log()

    def watch(_: int, item: Any) -> None:
        if isinstance(item, CallStarted) and item.call_id == "a":
            asyncio.get_running_loop().call_soon(run.stop)

    run = rig(log.tool(), script=works("a", "b"), on_seen=watch)
    assert await run.run() == Cancelled("stop")
    assert log.entered == []
    assert ends(run) == {"a": ("cancelled", "stop"), "b": ("cancelled", "stop")}
    assert text_of(run, "a") == NOT_RUN_TEXT


async def test_what_a_tool_returns_in_the_step_in_which_it_stops_its_own_run_is_its_result() -> None:
    """LP-43: a stop keeps what was done."""

    @tool
    async def last() -> str:
        """Stops."""
        run.stop()
        return "done"

    run = rig(last, script=[call("last", call_id="c")])
    assert await run.run() == Cancelled("stop")
    assert ends(run) == {"c": ("succeeded", "")}


async def test_a_deaf_thread_is_left_and_the_run_ends() -> None:
    """LP-45, TL-8: a run ends within its grace whatever its tools do."""
    clock = StepClock()
    inside, leave = threading.Event(), threading.Event()

    @tool(resource="file")
    def deaf() -> None:
        """Deaf."""
        inside.set()
        leave.wait(30)

    run = rig(deaf, script=[call("deaf", call_id="c")], clock=clock)
    task = run.begin()
    await asyncio.to_thread(inside.wait, 10)
    run.stop()
    await clock.advance(1.5)
    await task
    assert ends(run) == {"c": ("unknown", "user")}
    assert run.loop.abandoned == 1
    leave.set()
    while run.loop.abandoned:
        await asyncio.sleep(0.001)
    await run.loop.aclose()


async def test_a_sync_tool_can_look_at_the_stop() -> None:
    """TL-10"""
    inside = threading.Event()

    @tool(effect="read")
    def looks(ctx: ToolContext[Any]) -> None:
        """Looks."""
        inside.set()
        while not ctx.cancelled.is_set():
            threading.Event().wait(0.001)
        ctx.cancelled.raise_if_set()

    run = rig(looks, script=[call("looks", call_id="c")])
    task = run.begin()
    await asyncio.to_thread(inside.wait, 10)
    run.stop()
    await task
    assert ends(run) == {"c": ("cancelled", "user")}
    await run.loop.aclose()


async def test_stopped_at_any_index_no_call_starts_later_and_each_has_one_result() -> None:
    """LP-42, LP-43; issue 2, step 5: text, reasoning, two tools and a final answer."""
    script = [thought("hm"), "Let me see", *works("a", "b")]
    whole = rig(Log().tool(), script=script, after=["The ", "end"])
    await whole.run()
    last = whole.appends[-2]
    stopped = 0
    for index in range(len(whole.seen)):
        log = Log()
        run = rig(
            log.tool(),
            script=script,
            after=["The ", "end"],
            on_seen=lambda at, _, index=index: at == index and run.stop(),
        )
        outcome = await run.run()
        if whole.seen[index] in whole.facts[last:]:
            assert outcome == Completed()
            continue
        stopped += 1
        assert outcome == Cancelled("stop")
        at = next(n for n, fact in enumerate(run.facts) if fact.kind == "stop_requested")
        assert not {"turn_started", "model_requested", "call_started"} & {
            fact.kind for fact in run.facts[at:]
        }
        assert run.provider.open == 0
        proposed = [part.call_id for message in run.messages for part in message.tool_calls]
        assert sorted(ends(run)) == sorted(proposed)
        assert len(run.of(CallFinished)) == len(proposed)
        assert len(log.entered) == len(run.of(CallStarted)) or not log.entered
    assert stopped > 10


async def test_an_outer_cancellation_writes_results_and_passes() -> None:
    """LP-46: and no task of the run is left."""
    log = Log()
    hold = log.hold("a")
    run = rig(log.tool(), script=works("a"))
    task = run.begin()
    await hold.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends(run) == {"a": ("unknown", "cancelled")}
    assert run.outcome is None
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("tool")] == []


async def test_a_shutdown_keeps_results_and_leaves_the_rest_for_a_recovery() -> None:
    """RC-52"""
    log = Log()
    hold = log.hold("a")
    run = rig(log.tool(execution="sequential"), script=works("a", "b"))
    task = run.begin()
    await hold.reached()
    run.port.scope.fire("closing", "shutdown")
    await task
    assert ends(run) == {"a": ("unknown", "shutdown")}
    assert run.outcome is None
    log = Log()
    again = rig(log.tool(), script="done", records=run.records)
    assert await again.resume() == Completed()
    assert log.entered == ["b"]


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("effect", ["read", "idempotent"])
async def test_a_call_that_a_shutdown_cut_is_made_again_if_it_may_be(effect: str, deaf: bool) -> None:
    """RC-52, EF-5: whoever goes on has the same of it as after a crash, and no result that says that it was stopped."""
    log = Log()
    hold = log.hold("a", deaf=deaf)
    config = LoopConfig(cancel_grace=0)
    run = rig(log.tool(effect=effect), script=works("a"), config=config)
    task = run.begin()
    await hold.reached()
    run.port.scope.fire("closing", "shutdown")
    await task
    assert (ends(run), run.outcome) == ({}, None)
    hold.release()
    log = Log()
    again = rig(log.tool(effect=effect), script="done", records=run.records)
    assert await again.resume() == Completed()
    assert (log.entered, text_of(again, "a")) == (["a"], "did a")


# Limits


async def test_calls_are_limited_and_the_run_ends_after_the_batch() -> None:
    """LP-38"""
    log = Log()
    config = LoopConfig(limits=Limits(tool_calls=1))
    run = rig(log.tool(), script=works("a", "b"), config=config)
    assert await run.run() == Incomplete("limit", "tool_calls")
    assert log.entered == ["a"]
    assert ends(run)["b"] == ("refused", "limit")
    log = Log()
    run = rig(log.tool(), script=works("a", "b"), config=LoopConfig(limits=Limits(per_tool={"work": 0})))
    assert await run.run() == Incomplete("limit", "tool_calls")
    assert log.entered == []


# Resume


EFFECTS = ["read", "idempotent", "human", "non_idempotent"]


@pytest.mark.parametrize("effect", EFFECTS)
async def test_resumed_after_any_append_a_non_idempotent_tool_ran_at_most_once(effect: Any) -> None:
    """LP-49, EF table, [135]: never run again by itself; results reused; same key."""
    first = Log()
    whole = rig(first.tool(effect=effect), script=works("a", "b"))
    await whole.run()
    for cut in whole.appends:
        prefix = whole.records[:cut]
        started = {record.fact.call_id for record in prefix if isinstance(record.fact, CallStarted)}
        finished = {record.fact.call_id for record in prefix if isinstance(record.fact, CallFinished)}
        answered = sum(record.fact.kind == "model_attempt_ended" for record in prefix)
        scripts = [works("a", "b"), "done"][answered:]
        log = Log()
        loop = AgentLoop(ScriptedProvider(*scripts), tools=[log.tool(effect=effect)])
        run = LoopRig(loop, records=prefix)
        assert await run.resume() == Completed(), cut
        in_doubt = started - finished
        if effect == "non_idempotent":
            assert not set(log.entered) & started
            assert {
                call_id: end for call_id, end in ends(run).items() if call_id in in_doubt
            } == dict.fromkeys(in_doubt, ("unknown", "interrupted"))
        else:
            assert set(log.entered) == {"a", "b"} - finished
            for start in run.of(CallStarted):
                if start.attempt == 2:
                    assert start.key == next(s.key for s in run.of(CallStarted) if s.call_id == start.call_id)
        assert len(run.of(CallFinished)) == 2
        assert [message.call_id for message in run.messages[2:4]] == ["a", "b"]


def _cut_after_start(run: LoopRig) -> list[Any]:
    return run.records[: next(n for n, fact in enumerate(run.facts) if isinstance(fact, CallStarted)) + 1]


@pytest.mark.parametrize(
    ("answer", "entered", "end"),
    [
        (ToolResult((Text("it did"),)), 0, ("succeeded", "reconciled")),
        (NotRun(), 1, ("succeeded", "")),
        (None, 0, ("unknown", "interrupted")),
        (RuntimeError("far side away"), 0, ("unknown", "interrupted")),
        (ToolResult(structured=object()), 0, ("unknown", "interrupted")),
    ],
)
async def test_a_tool_that_can_be_asked_settles_what_is_in_doubt(answer: Any, entered: int, end: Any) -> None:
    """LP-49: reconcile(key)."""
    keys: list[str] = []

    async def reconcile(key: str) -> Any:
        keys.append(key)
        if isinstance(answer, Exception):
            raise answer
        return answer

    whole = rig(Log().tool(), script=works("a"))
    await whole.run()
    log = Log()
    loop = AgentLoop(ScriptedProvider("done"), tools=[log.tool(reconcile=reconcile)])
    run = LoopRig(loop, records=_cut_after_start(whole))
    assert await run.resume() == Completed()
    assert keys == [whole.of(CallStarted)[0].key]
    assert len(log.entered) == entered
    assert ends(run) == {"a": end}
    assert len(run.of(CallObserved)) == isinstance(answer, NotRun) + (end[1] == "reconciled")


async def test_a_tool_that_is_gone_or_changed_leaves_its_call_unknown() -> None:
    """LP-49"""
    whole = rig(Log().tool(effect="read"), script=works("a"))
    await whole.run()
    cut = _cut_after_start(whole)
    run = LoopRig(AgentLoop(ScriptedProvider("done")), records=cut)
    assert await run.resume() == Completed()
    assert ends(run) == {"a": ("unknown", "tool_gone")}

    @tool(effect="read", name="work")
    async def other(name: bytes, n: ledger.Phase) -> None:
        """Other."""

    run = LoopRig(AgentLoop(ScriptedProvider("done"), tools=[other]), records=cut)
    assert await run.resume() == Completed()
    assert ends(run) == {"a": ("unknown", "tool_changed")}


# Cost


async def test_a_call_costs_one_task_and_few_passes() -> None:
    """performance.md: one task a supervised call, at most 6 passes; it has 2, flat in the history."""

    @tool(effect="read")
    async def fast(n: int) -> int:
        """Fast."""
        return n

    for history in (1, 200):
        scripts = [[call("fast", {"n": n}, call_id=f"c{n}")] for n in range(history)]
        run = LoopRig(
            AgentLoop(
                ScriptedProvider(*scripts, "done"), tools=[fast], config=LoopConfig(limits=Limits(turns=999))
            )
        )
        async with Meter() as meter:
            assert await run.run() == Completed()
        assert meter.tasks == history
        assert meter.passes == 2 * history


class Outcome(BaseException):
    """As test runners and other event loops have them: no exception of this program, and no end of it either."""


@pytest.mark.parametrize("sync", [True, False])
async def test_any_exception_but_the_end_of_the_process_is_a_tools_error(sync: bool) -> None:
    """LP-46, TL-11: only KeyboardInterrupt and SystemExit are no tool's business."""

    def fail() -> str:
        raise Outcome("secret")

    async def fail_later() -> str:
        raise Outcome("secret")

    made = tool(name="work", description="x")(fail if sync else fail_later)
    run = rig(made, script=[call("work", {}, call_id="a")])
    assert await run.run() == Completed()
    assert ends(run) == {"a": ("failed", "")}
    assert "secret" not in text_of(run, "a")
