"""The agent loop driven by the run controller."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pilothouse.events import CallFinished, CallStarted, Cancelled, Completed, Incomplete, Unknown
from pilothouse.loop.agent import AgentLoop
from pilothouse.messages import Message, Text
from pilothouse.records import Parent, RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RESERVED_FACTS, RunLimits
from pilothouse.testing import Hold, ScriptedProvider
from pilothouse.testing.scripted import Cut, call


def spec(run_id: str) -> RunSpec:
    return RunSpec(run_id, "thread", (Message(f"{run_id}-in", "user", (Text("Hello"),)),))


async def test_a_run_completes_and_its_history_has_the_answer() -> None:
    async with RunController(AgentLoop(ScriptedProvider(["Hel", "lo"]))) as controller:
        run = await controller.start(spec("r1"))
        result = await run.result(timeout=5)
        assert result.outcome == Completed()
        assert [entry.message.text for entry in await controller.history("r1")] == ["Hello", "Hello"]


async def test_a_stop_closes_the_stream_and_keeps_what_was_said() -> None:
    """LP-43, RC-19: the writer keeps the partial."""
    hold = Hold()
    provider = ScriptedProvider(["par", "tial", hold])
    async with RunController(AgentLoop(provider)) as controller:
        run = await controller.start(spec("r1"))
        await hold.reached()
        ack = await controller.cancel("r1", "enough")
        assert ack.state == "applied"
        result = await run.wait(timeout=5)
        assert result.outcome == Cancelled("enough")
        assert provider.open == 0
        last = (await controller.history("r1"))[-1]
        assert (last.message.text, last.complete) == ("partial", False)


async def test_a_silent_end_is_unknown_and_a_recovery_asks_again() -> None:
    """PV-2, LP-49"""
    provider = ScriptedProvider(["par", Cut()], "whole")
    async with RunController(AgentLoop(provider)) as controller:
        run = await controller.start(spec("r1"))
        result = await run.wait(timeout=5)
        assert isinstance(result.outcome, Unknown)
        await controller.recover("r1")
        result = await run.wait(timeout=5)
        assert result.outcome == Completed()
        texts = [(entry.message.text, entry.complete) for entry in await controller.history("r1")]
        assert texts == [("Hello", True), ("par", False), ("whole", True)]


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("room", range(4, 44, 3))
async def test_a_full_run_ends_as_such_and_the_thread_goes_on(room: int, parallel: int) -> None:
    """RC §3.12, AC-39: wherever it fills up the run ends by its limit, each call that began has its result, none began twice."""
    entered: list[int] = []

    async def count(n: int) -> int:
        """Count.

        Args:
            n: a number
        """
        entered.append(n)
        return n

    def ask(turn: int) -> list[object]:
        return [call("count", {"n": turn * 10 + each}) for each in range(parallel)]

    provider = ScriptedProvider(*[ask(turn) for turn in range(12)], "done")
    limits = RunLimits(max_run_facts=RESERVED_FACTS + room)
    async with RunController(AgentLoop(provider, tools=[count]), limits=limits) as controller:
        run = await controller.start(spec("r1"))
        result = await run.wait(timeout=5)
        assert result.outcome == Incomplete("limit", "run_full")
        facts = [record.fact for record in await run.events()]
        began = [fact.call_id for fact in facts if isinstance(fact, CallStarted)]
        done = [fact.call_id for fact in facts if isinstance(fact, CallFinished)]
        assert len(entered) == len(set(entered)) == len(began)
        assert set(began) <= set(done)
        assert len(done) == len(set(done))
        follow = replace(spec("r2"), parent=Parent("r1"), input=(Message("r2-in", "user", (Text("and?"),)),))
        assert (await (await controller.start(follow)).wait(timeout=5)).outcome in (
            Completed(), Incomplete("limit", "run_full"),
        )  # fmt: skip
