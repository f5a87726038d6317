"""A recorded run as a test, and assertions on what a run recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pilothouse.commands import Allow, Deny, InputAnswer
from pilothouse.errors import ToolError
from pilothouse.events import CallFinished, CallStarted, Completed, RequestOpened
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.approval import ApprovalPolicy
from pilothouse.loop.compaction import Compactor
from pilothouse.loop.config import Limits, LoopConfig, RetryPolicy
from pilothouse.loop.context import ToolContext
from pilothouse.loop.hooks import CallDone, Override
from pilothouse.loop.tools import tool
from pilothouse.messages import ArtifactRef, Message, Model, Text, Usage
from pilothouse.records import Record
from pilothouse.testing import LoopRig, RecordedRun, RunFacts, ScriptedProvider
from pilothouse.testing.scripted import Cut, call, failure, thought

ENTERED: list[str] = []


@tool(effect="read")
async def look(path: str) -> dict[str, str]:
    """Looks."""
    ENTERED.append(path)
    return {"path": path}


@tool(approval=True)
async def write(path: str) -> str:
    """Writes."""
    ENTERED.append(path)
    if path == "locked":
        raise ToolError("it is locked")
    return "written"


TOOLS = [look, write]
CONFIG = LoopConfig(retry=RetryPolicy(base=0))


def make(provider: Any, wrap: Any, *, tools: Any = TOOLS, **changes: Any) -> AgentLoop:
    return AgentLoop(provider, tools=[wrap(one) for one in tools], config=CONFIG.copy_with(**changes))


async def recorded(**options: Any) -> RecordedRun:
    """A run with a retry, reasoning, parallel calls, approvals, a failure, steering and a follow-up."""
    scripts = [
        failure("overloaded"),
        [
            thought("hm"),
            "I look. ",
            call("look", {"path": "a"}, call_id="1"),
            call("write", {"path": "b"}, call_id="2"),
            Usage(input=5, output=5),
        ],
        [
            call("write", {"path": "locked"}, call_id="3"),
            call("write", {"path": "c"}, call_id="4"),
            call("nope", call_id="5"),
        ],
        "nearly",
        "done",
    ]
    provider = ScriptedProvider(*scripts)

    def seen(_: int, item: Any) -> None:
        if isinstance(item, RequestOpened):
            resolution = Deny("not c") if item.request.data["arguments"]["path"] == "c" else Allow()
            asyncio.get_running_loop().call_soon(run.answer, item.request.id, resolution)
        if getattr(item, "text", "") == "nearly":
            run.steer("hurry up")

    run = LoopRig(AgentLoop(provider, tools=TOOLS, config=CONFIG), on_seen=seen, **options)
    assert await run.run() == Completed()
    return RecordedRun(run.start.spec, (), run.records)


async def test_a_recorded_run_does_the_same_again_without_calling_anything(tmp_path: Path) -> None:
    """Issue 5, 8: saved, read back, played again."""
    recording = await recorded()
    recording.save(tmp_path / "run.json")
    again = RecordedRun.load(tmp_path / "run.json")
    assert [record.fact for record in again.records] == [record.fact for record in recording.records]
    ENTERED.clear()
    await again.replay(make)
    await again.replay(make, strict=True)
    assert ENTERED == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"approval": ApprovalPolicy(mode="never")}, "request_opened"),
        ({"limits": Limits(turns=1)}, "limit"),
        ({"tools": [look]}, "call_finished|request_opened"),
        ({"steering_mode": "all", "max_steering_turns": 0}, "message_added|turn_started|run_ended"),
        ({"retry": RetryPolicy(attempts=1)}, "run_ended|turn_ended|model_requested"),
    ],
)
async def test_a_loop_that_would_do_something_else_fails_the_test(change: dict[str, Any], words: str) -> None:
    recording = await recorded()
    with pytest.raises(AssertionError, match=words):
        await recording.replay(lambda provider, wrap: make(provider, wrap, **change), timeout=2)


async def test_what_a_model_is_sent_is_compared_if_it_is_to_be() -> None:
    recording = await recorded()

    def other(provider: Any, wrap: Any) -> AgentLoop:
        return AgentLoop(
            provider, tools=[wrap(one) for one in TOOLS], config=CONFIG, system_prompt="Be brief."
        )

    await recording.replay(other)
    with pytest.raises(AssertionError, match="request_digest"):
        await recording.replay(other, strict=True)


async def test_runs_that_were_stopped_or_cut_can_be_played_too() -> None:
    provider = ScriptedProvider(["a", "b"])
    run = LoopRig(
        AgentLoop(provider, config=CONFIG),
        on_seen=lambda _, item: getattr(item, "kind", "") == "model_requested" and run.stop(),
    )
    await run.run()
    await RecordedRun(run.start.spec, (), run.records).replay(make)


@pytest.mark.parametrize(
    "scripts",
    [
        [["half", Cut()]],
        [["half", failure("overloaded")]],
        [failure("overloaded"), ["half", failure("overloaded")]],
        [failure("overloaded")] * 4,
        [failure("auth")],
        [[Cut()], "done"],
    ],
)
async def test_a_run_whose_response_broke_off_does_the_same_again(scripts: list[Any]) -> None:
    """LP-18: what somebody has seen is not asked for again, and what nobody has seen is."""
    run = LoopRig(AgentLoop(ScriptedProvider(*scripts), tools=TOOLS, config=CONFIG))
    await run.run()
    await RecordedRun(run.start.spec, (), run.records).replay(make)
    await RecordedRun(run.start.spec, (), run.records).replay(make, strict=True)


async def test_human_tools_stay_as_they_are() -> None:
    @tool(effect="human")
    async def ask(ctx: ToolContext[Any]) -> str:
        """Asks."""
        return str(await ctx.ask("?"))

    def seen(_: int, item: Any) -> None:
        if isinstance(item, RequestOpened):
            asyncio.get_running_loop().call_soon(run.answer, item.request.id, InputAnswer("yes"))

    run = LoopRig(AgentLoop(ScriptedProvider([call("ask", call_id="a")], "done"), tools=[ask]), on_seen=seen)
    await run.run()
    await RecordedRun(run.start.spec, (), run.records).replay(
        lambda provider, wrap: make(provider, wrap, tools=[ask])
    )


# Assertions on runs


async def test_assertions_say_what_a_run_did() -> None:
    facts = RunFacts((await recorded()).records)
    facts.assert_valid()
    facts.assert_called("look", path="a")
    facts.assert_called("write", 2)
    facts.assert_called("write", 0, path="c")
    assert facts.outcome == Completed()
    assert facts.result("3").outcome == "failed"
    assert [message.role for message in facts.messages][:2] == ["assistant", "tool"]
    with pytest.raises(AssertionError, match="was not called at all"):
        facts.assert_called("look", path="b")
    with pytest.raises(AssertionError, match="not called 3 times"):
        facts.assert_called("write", 3)
    with pytest.raises(AssertionError, match="no result"):
        facts.result("x")


async def test_a_run_that_breaks_the_rules_is_found_out() -> None:
    records = (await recorded()).records

    def with_fact(fact: Any) -> RunFacts:
        return RunFacts([*records, Record("run", 99, 0, "runtime", 1, "x", fact, "", "")])

    with pytest.raises(AssertionError, match="more than one result"):
        with_fact(CallFinished("1", "succeeded")).assert_valid()
    with pytest.raises(AssertionError, match="run again"):
        with_fact(CallStarted("2", 2, "write", "")).assert_valid()
    without = [
        record
        for record in records
        if getattr(record.fact, "call_id", "") != "1" or record.fact.kind != "call_finished"
    ]
    with pytest.raises(AssertionError, match="has its result"):
        RunFacts(without).assert_valid()
    assert RunFacts([]).outcome is None


# What is around a recording: functions, large results, hooks after a call, summaries


def shout(path: str) -> str:
    """Shouts."""
    ENTERED.append(path)
    return f"{path}!"


async def of(loop: AgentLoop, history: tuple[Message, ...] = (), tmp_path: Path | None = None) -> RecordedRun:
    run = LoopRig(loop, history=history)
    await run.run()
    recording = RecordedRun(run.start.spec, history, run.records)
    if tmp_path is not None:
        recording.save(tmp_path / "run.json")
        recording = RecordedRun.load(tmp_path / "run.json")
    ENTERED.clear()
    return recording


@pytest.mark.parametrize("strict", [False, True])
async def test_a_plain_function_is_wrapped_like_a_tool(*, strict: bool) -> None:
    """ToolLike: what a loop takes as a tool is taken here, too, and not called."""
    script = [call("shout", {"path": "a"})], "done"
    recording = await of(AgentLoop(ScriptedProvider(*script), tools=[shout]))
    await recording.replay(lambda provider, wrap: AgentLoop(provider, tools=[wrap(shout)]), strict=strict)
    assert ENTERED == []


@pytest.mark.parametrize("strict", [False, True])
async def test_a_result_that_was_spilled_and_read_again_is_played(tmp_path: Path, *, strict: bool) -> None:
    """TL-15: the bytes are not in the recording, and need not be: what was read of them is."""

    @tool(effect="read")
    async def dump(size: int) -> dict[str, str]:
        """Dumps."""
        return {"all": "é" * size}

    def read(request: Any) -> Any:
        parts = [part for message in request.messages for part in message.parts]
        (left_out,) = [part.digest for part in parts if isinstance(part, ArtifactRef)]
        return [call("read_artifact", {"id": left_out, "offset": 5_001, "length": 20})]

    script = [call("dump", {"size": 100_000})], read, "done"
    recording = await of(AgentLoop(ScriptedProvider(*script), tools=[dump]), tmp_path=tmp_path)
    assert "bytes follow" in str([record.fact for record in recording.records])
    await recording.replay(lambda provider, wrap: AgentLoop(provider, tools=[wrap(dump)]), strict=strict)


@pytest.mark.parametrize("strict", [False, True])
async def test_a_hook_after_a_call_gets_what_it_got_then(tmp_path: Path, *, strict: bool) -> None:
    """EF-7: not what it had made of that."""

    def louder(done: CallDone) -> Override:
        return Override(parts=(Text("".join(p.text for p in done.result if isinstance(p, Text)) + "!"),))

    def made(provider: Any, wrap: Any) -> AgentLoop:
        return AgentLoop(provider, tools=[wrap(shout)], config=LoopConfig(after_tool_call=louder))

    script = [call("shout", {"path": "a"})], "done"
    recording = await of(made(ScriptedProvider(*script), lambda given: given), tmp_path=tmp_path)
    assert "a!!" in str([record.fact for record in recording.records])
    await recording.replay(made, strict=strict)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("summary", ["They talked.", failure("auth")], ids=["told", "failed"])
async def test_a_summary_is_played_and_no_model_is_asked_for_it(
    tmp_path: Path, summary: Any, *, strict: bool
) -> None:
    """LP-13: what is left out is decided anew, in the recorded words; a compaction that failed fails again."""
    history = tuple(
        Message(f"{role}{turn}", role, (Text(role * 900),))
        for turn in range(12)
        for role in ("user", "assistant")
    )
    model = Model("small", "scripted", 20_000, 1_000)

    def made(provider: Any, _: Any, writer: Any = None) -> AgentLoop:
        relief = Compactor(writer or ScriptedProvider(), keep=0.2)
        return AgentLoop(provider, config=LoopConfig(model=model, over_window_relief=relief))

    writer = ScriptedProvider([summary, Usage(input=9, output=3)] if isinstance(summary, str) else summary)
    loop = made(ScriptedProvider("well"), None, writer)
    recording = await of(loop, history, tmp_path)
    assert len(writer.requests) == 1
    await recording.replay(made, strict=strict)
