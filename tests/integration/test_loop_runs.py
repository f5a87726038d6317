"""The agent loop driven by the run controller."""

from __future__ import annotations

from pilothouse.events import Cancelled, Completed, Unknown
from pilothouse.loop.agent import AgentLoop
from pilothouse.messages import Message, Text
from pilothouse.records import RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.testing import Hold, ScriptedProvider
from pilothouse.testing.scripted import Cut


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
