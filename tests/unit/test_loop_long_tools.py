"""Tools that take long, say much, or go on elsewhere: supervision, large results, jobs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pilothouse.errors import ConfigError
from pilothouse.events import (
    CallFinished,
    CallHeartbeat,
    CallStarted,
    Cancelled,
    Completed,
    Failed,
    Noted,
)
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.config import LoopConfig
from pilothouse.loop.context import ToolContext
from pilothouse.loop.dump import Redactor
from pilothouse.loop.stuck import StuckToolConfig, StuckWatch
from pilothouse.loop.tools import tool
from pilothouse.messages import ArtifactRef, Structured, Text
from pilothouse.testing import LoopRig, ScriptedProvider, StepClock
from pilothouse.testing.scripted import call, failure

# Supervision

CONFIG = StuckToolConfig(floor=100, heartbeat=20, grace=10)


def watched(effect: Any, attempt: int = 1) -> list[tuple[float, str]]:
    """What happens to a call that never ends, and when."""
    watch = StuckWatch(CONFIG, effect, attempt, None, 0.0)
    done: list[tuple[float, str]] = []
    while (due := watch.due) is not None and due <= 220:
        while (action := watch.take(due)) is not None:
            done.append((due, action))
    return done


BEATS = [(50.0 + 20 * n, "heartbeat") for n in range(9)]


@pytest.mark.parametrize(
    ("effect", "attempt", "stages"),
    [
        ("read", 1, [(100.0, "retry")]),
        ("idempotent", 1, [(100.0, "retry")]),
        ("read", 2, [(100.0, "yield"), (110.0, "give_up")]),
        ("non_idempotent", 1, [(100.0, "yield"), (200.0, "give_up")]),
    ],
)
def test_each_stage_has_its_time(effect: Any, attempt: int, stages: Any) -> None:
    """§3.12: heartbeats from T/2 on; retry only where repeatable."""
    assert sorted(watched(effect, attempt)) == sorted([*stages, *BEATS])


def test_the_threshold_is_the_larger_of_floor_and_declared_time() -> None:
    """§3.12"""
    config = StuckToolConfig(floor=300, factor=2)
    assert [config.threshold(declared) for declared in (None, 100, 200)] == [300, 300, 400]


@pytest.mark.parametrize(
    "wrong", [{"floor": -1}, {"factor": -1}, {"heartbeat": 0}, {"grace": -1}, {"mode": "x"}]
)
def test_wrong_figures_are_refused_and_no_grace_is_legal(wrong: Any) -> None:
    """§3.12"""
    with pytest.raises(ConfigError, match="stuck_tool"):
        StuckToolConfig(**wrong)
    StuckToolConfig(grace=0)
    with pytest.raises(TypeError):
        StuckToolConfig(nonsense=1)  # type: ignore[call-arg]


class Slow:
    """A run with one call of a tool that waits until it is released or stopped."""

    def __init__(self, effect: Any, *, obeys: bool = True, hands_over: bool = False, **options: Any) -> None:
        self.clock = StepClock()
        self.attempts = 0
        self.release = asyncio.Event()
        self.late = asyncio.Event()
        config = options.pop("config", CONFIG)

        @tool(effect=effect, timeout=None, **options)
        async def slow(ctx: ToolContext[Any]) -> Any:
            """Slow."""
            self.attempts += 1
            ctx.progress(f"attempt {self.attempts}")
            waits = [self.release.wait()]
            if hands_over:
                waits.append(ctx.yield_requested.wait())
            tasks = [asyncio.ensure_future(wait) for wait in waits]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                if not obeys:
                    await self.late.wait()
                raise
            finally:
                for task in tasks:
                    task.cancel()
            if self.release.is_set():
                return "done"
            return ctx.detach(self.release.wait(), name="slow work", log="slow.log")

        self.loop = AgentLoop(
            ScriptedProvider([call("slow", call_id="s")], "done"),
            tools=[slow],
            config=LoopConfig(stuck_tool=config, run_idle_timeout=0),
            clock=self.clock,
        )
        self.run = LoopRig(self.loop, clock=self.clock)
        self.task = self.run.begin()

    @property
    def end(self) -> CallFinished:
        return self.run.of(CallFinished)[0]

    @property
    def stages(self) -> list[str]:
        return [fact.data["stage"] for fact in self.run.of(Noted) if fact.name == "loop/stuck"]

    async def leave(self) -> None:
        self.release.set()
        self.late.set()
        await self.task
        for _ in range(5):
            await asyncio.sleep(0)
        await self.loop.aclose()


async def test_a_stuck_call_that_may_be_repeated_is_made_once_more() -> None:
    """§3.12: the same call, same key, attempt 2; marked retried."""
    slow = Slow("read")
    await slow.clock.advance(100)
    assert slow.attempts == 2
    slow.release.set()
    await slow.task
    assert slow.run.outcome == Completed()
    assert (slow.end.outcome, slow.end.marks, slow.end.attempt) == ("succeeded", ("retried",), 2)
    first, second = slow.run.of(CallStarted)
    assert first.key == second.key
    assert slow.stages == ["retry"]
    beats = [body for body in slow.run.told if isinstance(body, CallHeartbeat)]
    assert [(body.elapsed_ms, body.attempt) for body in beats] == [(50_000, 1), (70_000, 1), (90_000, 1)]
    await slow.leave()


async def test_stuck_twice_it_is_given_up_and_the_turn_goes_on() -> None:
    """§3.12: naming call, time and last output."""
    slow = Slow("read")
    await slow.clock.advance(220)
    await slow.task
    assert slow.run.outcome == Completed()
    assert (slow.end.outcome, slow.end.reason) == ("failed", "stuck")
    text = slow.end.content[0].text
    assert "slow ran for" in text
    assert "it said last: attempt 2" in text
    assert slow.stages == ["retry", "yield", "give_up"]
    await slow.leave()


async def test_a_deaf_stuck_call_is_abandoned_and_tried_again() -> None:
    """§3.12: cancel, grace, the same call once more."""
    slow = Slow("idempotent", obeys=False)
    await slow.clock.advance(111)
    assert slow.attempts == 2
    assert slow.loop.abandoned == 1
    await slow.leave()
    assert slow.end.outcome == "succeeded"


async def test_a_deaf_call_that_holds_a_resource_is_not_tried_again() -> None:
    """LP-45: it keeps its resource, so there is nothing to try with."""
    slow = Slow("idempotent", obeys=False, resource="file")
    await slow.clock.advance(111)
    await slow.task
    assert (slow.attempts, slow.end.outcome, slow.end.reason) == (1, "failed", "stuck")
    await slow.leave()


async def test_a_stuck_call_that_must_not_be_repeated_is_asked_and_then_unknown() -> None:
    """§3.12: for us never repeated."""
    slow = Slow("non_idempotent")
    await slow.clock.advance(150)
    assert slow.attempts == 1
    await slow.clock.advance(60)
    await slow.task
    assert (slow.end.outcome, slow.end.reason) == ("unknown", "stuck")
    assert slow.stages == ["yield", "give_up"]
    await slow.leave()


async def test_a_hand_over_is_the_result() -> None:
    """§3.12, TL-17: marked backgrounded, with job and log; the job goes on and ends with the loop."""
    slow = Slow("non_idempotent", hands_over=True)
    await slow.clock.advance(100)
    await slow.task
    assert (slow.end.outcome, slow.end.marks) == ("succeeded", ("backgrounded",))
    assert (
        slow.end.content[0].text
        == "slow work goes on in the background as job job-1. Its output goes to slow.log."
    )
    assert len(slow.loop._tool_host.jobs) == 1
    await slow.loop.aclose()
    assert slow.loop._tool_host.jobs == {}
    await slow.leave()


async def test_a_call_that_ends_in_the_grace_was_not_stuck() -> None:
    """LP-48"""
    clock = StepClock()

    @tool(effect="read", timeout=None)
    async def slow() -> str:
        """Slow."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "just in time"
        return ""

    loop = AgentLoop(
        ScriptedProvider([call("slow", call_id="s")], "done"),
        tools=[slow],
        config=LoopConfig(stuck_tool=CONFIG),
        clock=clock,
    )
    run = LoopRig(loop, clock=clock)
    task = run.begin()
    await clock.advance(101)
    await task
    end = run.of(CallFinished)[0]
    assert (end.outcome, end.marks) == ("succeeded", ())
    assert not [fact for fact in run.of(Noted) if fact.name == "loop/stuck"]


async def test_advice_does_nothing() -> None:
    """LP-48: advisory notes and cancels nothing."""
    slow = Slow("read", config=StuckToolConfig(floor=100, grace=10, mode="advisory"))
    await slow.clock.advance(500)
    assert slow.attempts == 1
    assert slow.stages == ["retry"]
    await slow.leave()
    assert slow.end.outcome == "succeeded"


@pytest.mark.parametrize("options", [{"supervised": False}, {"effect": "human"}, {"name": "excluded"}])
async def test_some_tools_are_not_supervised(options: Any) -> None:
    """§3.12"""
    clock = StepClock()
    hold = asyncio.Event()

    @tool(timeout=None, **{"name": "slow", **options})
    async def slow() -> None:
        """Slow."""
        await hold.wait()

    config = StuckToolConfig(floor=1, exclude=frozenset({"excluded"}))
    loop = AgentLoop(
        ScriptedProvider([call(slow.name)], "done"),
        tools=[slow],
        config=LoopConfig(stuck_tool=config, run_idle_timeout=0),
        clock=clock,
    )
    run = LoopRig(loop, clock=clock)
    task = run.begin()
    await clock.advance(1_000)
    assert run.told == [] or not any(isinstance(body, CallHeartbeat) for body in run.told)
    hold.set()
    await task
    assert run.of(CallFinished)[0].outcome == "succeeded"


async def test_a_stop_disarms_supervision() -> None:
    """LP-48"""
    slow = Slow("read", obeys=False)
    await slow.clock.advance(99)
    slow.run.stop()
    await slow.clock.advance(5)
    await slow.task
    assert slow.run.outcome == Cancelled("stop")
    assert slow.end.reason == "user"
    assert slow.stages == []
    await slow.leave()


async def test_the_expected_time_of_a_call_is_its_declared_one() -> None:
    """§3.12"""

    def expected(args: Any) -> float:
        raise ValueError("x")

    slow = Slow("read", expected=lambda args: 100)
    await slow.clock.advance(150)
    assert slow.attempts == 1
    await slow.clock.advance(60)
    assert slow.attempts == 2
    await slow.leave()
    slow = Slow("read", expected=expected)
    await slow.clock.advance(101)
    assert slow.attempts == 2
    await slow.leave()


# Large results


def spilling(value: Any, **options: Any) -> LoopRig:
    @tool(effect="read", **options)
    async def large() -> Any:
        """Large."""
        return value

    provider = ScriptedProvider([call("large", call_id="l")], "done")
    run = LoopRig(
        AgentLoop(provider, tools=[large], config=LoopConfig(spill_above=8_192, result_limit=100_000))
    )
    run.provider = provider
    return run


async def test_a_large_text_becomes_an_artifact_with_both_ends_in_the_transcript() -> None:
    """TL-15: cut at characters, also in multi-byte ones."""
    text = "".join(f"{n:06d}ö€𝄞" for n in range(1000))
    run = spilling(text)
    await run.run()
    shown, ref = run.of(CallFinished)[0].content
    assert isinstance(ref, ArtifactRef)
    assert run.port.artifacts[ref.digest].decode() == text
    head, tail = shown.text.split("\n[…")[0], shown.text.split("…]\n")[1]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert 4_090 <= len(head.encode()) <= 4_096
    assert 2_040 <= len(tail.encode()) <= 2_048
    assert f"of {len(text.encode())} bytes" in shown.text
    assert ref.digest in shown.text


async def test_a_text_at_the_border_stays() -> None:
    """TL-15"""
    run = spilling("x" * 8_192)
    await run.run()
    assert run.of(CallFinished)[0].content == (Text("x" * 8_192),)
    assert not any(
        "read_artifact" in [spec.name for spec in request.tools] for request in run.provider.requests
    )
    run = spilling("x" * 8_193)
    await run.run()
    assert len(run.of(CallFinished)[0].content) == 2
    run = spilling("x" * 8_193, spill_above=10_000)
    await run.run()
    assert len(run.of(CallFinished)[0].content) == 1


async def test_large_data_is_spilled_with_its_text() -> None:
    """TL-15"""
    run = spilling([{"n": n} for n in range(2_000)])
    await run.run()
    content = run.of(CallFinished)[0].content
    assert [type(part) for part in content] == [Text, ArtifactRef]
    run = spilling(Structured({"a": "x" * 9_000}))
    await run.run()
    assert [type(part) for part in run.of(CallFinished)[0].content] == [Text, ArtifactRef]


async def test_a_result_beyond_the_limit_is_an_error_that_says_that_it_ran() -> None:
    """TL-15, §6"""
    run = spilling("x" * 100_001)
    await run.run()
    end = run.of(CallFinished)[0]
    assert (end.outcome, end.reason) == ("failed", "bad_result")
    assert "100001 bytes" in end.content[0].text


async def test_what_was_left_out_can_be_read_in_that_thread_and_nothing_else_can() -> None:
    """TL-15: the tool is offered once something was spilled, in later runs of the thread too."""

    @tool(effect="read")
    async def large() -> str:
        """Large."""
        return "ä" * 10_000

    def read(request: Any) -> list[Any]:
        ref = next(
            part for message in request.messages for part in message.parts if isinstance(part, ArtifactRef)
        )
        return [
            call("read_artifact", {"id": ref.digest, "offset": 0, "length": 5}, call_id="r1"),
            call("read_artifact", {"id": ref.digest, "offset": 19_999}, call_id="r2"),
            call("read_artifact", {"id": "0" * 64}, call_id="r3"),
        ]

    provider = ScriptedProvider([call("large", call_id="l")], read, "done", "done")
    loop = AgentLoop(provider, tools=[large], config=LoopConfig(spill_above=8_192))
    run = LoopRig(loop)
    assert await run.run() == Completed()
    names = [[spec.name for spec in request.tools] for request in provider.requests]
    assert names == [["large"], ["large", "read_artifact"], ["large", "read_artifact"]]
    texts = {end.call_id: end.content[0].text for end in run.of(CallFinished)}
    assert texts["r1"] == "ää\n[19995 bytes follow]"
    assert texts["r2"] == "(no output)"  # half a character
    assert "no artifact" in texts["r3"]
    later = LoopRig(loop, history=run.messages, run_id="later", prompt="and?")
    await later.run()
    assert "read_artifact" in [spec.name for spec in provider.requests[-1].tools]


# Jobs


async def test_jobs_can_be_handed_over_from_threads_and_their_errors_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """TL-17"""
    ran = asyncio.Event()

    async def job() -> None:
        ran.set()
        raise ValueError("job failed")

    @tool
    def starts(ctx: ToolContext[Any]) -> Any:
        """Starts."""
        assert threading.current_thread() is not threading.main_thread()
        return ctx.detach(job(), name="job")

    loop = AgentLoop(ScriptedProvider([call("starts", call_id="s")], "done"), tools=[starts])
    run = LoopRig(loop)
    await run.run()
    await ran.wait()
    for _ in range(3):
        await asyncio.sleep(0)
    assert run.of(CallFinished)[0].marks == ("backgrounded",)
    assert "job failed" in caplog.text
    await loop.aclose()


# Error texts


async def test_secrets_are_in_no_recorded_error() -> None:
    """LP-50: the redactor also runs over error texts."""
    end = failure("auth", "key sk-abcdefghijklmnop is wrong", native={"key": "sk-abcdefghijklmnop"})
    run = LoopRig(AgentLoop(ScriptedProvider(end)))
    outcome = await run.run()
    assert outcome == Failed("auth", message="key [redacted] is wrong")
    assert "sk-abc" not in repr(run.facts)

    class Broken(str):
        __slots__ = ()

        def replace(self, *_: Any) -> str:
            raise RuntimeError

    config = LoopConfig(redactor=Redactor(["x"]))
    run = LoopRig(AgentLoop(ScriptedProvider(failure("auth", Broken("words"))), config=config))
    assert await run.run() == Failed("auth")
