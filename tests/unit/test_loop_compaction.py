"""Compaction: a summary by a model, at safe borders, on the record."""

from __future__ import annotations

from typing import Any

import pytest

from pilothouse.core.pairing import repair
from pilothouse.errors import ConfigError
from pilothouse.events import Cancelled, Completed, Failed, HistoryCompacted, Noted
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.compaction import HEADER, Compactor, safe_border
from pilothouse.loop.config import LoopConfig
from pilothouse.messages import Image, Message, Model, Text, ToolCall, Usage
from pilothouse.responses import StreamEnd
from pilothouse.testing import Hold, LoopRig, ScriptedProvider
from pilothouse.testing.scripted import failure, texts

SMALL = Model("small", "scripted", 20_000)


def said(role: Any, text: str, message_id: str) -> Message:
    return Message(message_id, role, (Text(text),))


def conversation(rounds: int, size: int = 4_000) -> list[Message]:
    """Rounds of a question, a tool round and an answer, each of about `size` characters."""
    out: list[Message] = []
    for n in range(rounds):
        out += [
            said("user", f"question {n} " + "x" * (size // 2), f"u{n}"),
            Message(f"c{n}", "assistant", (ToolCall(f"call{n}", "look", {"n": n}, f'{{"n":{n}}}'),)),
            Message(f"result:call{n}", "tool", (Text(f"saw {n} " + "y" * (size // 2)),), call_id=f"call{n}"),
            said("assistant", f"answer {n}", f"a{n}"),
        ]
    return out


def rig(summaries: Any, *scripts: Any, history: Any, **options: Any) -> LoopRig:
    writer = ScriptedProvider(*summaries, model=Model("writer", "w", 8_000))
    config = LoopConfig(over_window_relief=Compactor(writer, keep=0.3))
    provider = ScriptedProvider(*scripts, model=SMALL)
    run = LoopRig(AgentLoop(provider, config=config), history=history, **options)
    run.provider, run.writer = provider, writer
    return run


@pytest.mark.parametrize("room", [0, 100, 1_000, 3_000, 10_000])
def test_a_border_stands_before_a_user_message_and_splits_no_round(room: int) -> None:
    messages = conversation(6)
    border = safe_border(messages, room)
    assert messages[border].role == "user"
    assert repair(messages[border:])[1] is None
    assert repair(messages[:border])[1] is None


def test_the_last_user_message_is_kept_whatever_its_size_and_nothing_may_be_left_out_of_one() -> None:
    messages = [*conversation(2), said("user", "x" * 100_000, "last")]
    assert safe_border(messages, 10) == len(messages) - 1
    assert safe_border([said("user", "x", "1")], 10) == 0
    assert safe_border([], 10) == 0


async def test_an_over_full_context_is_summarised_and_the_run_goes_on() -> None:
    """LP-13, RC-82: the newer part stays, the transcript keeps everything."""
    run = rig([["They asked about tides.", Usage(input=50, output=5)]], "ok", history=conversation(25))
    run.writer.add(*["more"] * 20)
    assert await run.run() == Completed()
    (request,) = run.provider.requests
    assert request.messages[0].text.startswith(HEADER)
    assert request.messages[-1].text == "Hello"
    assert repair(request.messages)[1] is None
    compacted = run.of(HistoryCompacted)[0]
    assert compacted.method == "compaction"
    assert [message.id for message in compacted.messages] == [request.messages[0].id]
    assert compacted.kept == tuple(message.id for message in request.messages[1:])
    guard = next(fact.data for fact in run.of(Noted) if fact.name == "loop/guard")
    assert (guard["action"], guard["method"]) == ("relief", "compaction")
    assert "question 0" in run.writer.requests[0].messages[0].text
    assert len(run.writer.requests) > 1  # the writer's own window is smaller than what is to be summarised
    assert "Summary so far" in run.writer.requests[1].messages[0].text


async def test_what_it_used_counts() -> None:
    """LP-21"""
    run = rig(
        [["short", Usage(input=50, output=5)]] * 20,
        ["ok", Usage(input=1, output=1)],
        history=conversation(25),
    )
    await run.run()
    ended = next(fact for fact in run.facts if fact.kind == "turn_ended")
    assert ended.usage.input == 50 * len(run.writer.requests) + 1


@pytest.mark.parametrize("script", [failure("auth", "secret"), [], ["x", StreamEnd("refusal")]])
async def test_without_a_summary_it_is_the_refusal(script: Any) -> None:
    """LP-13: noted without the provider's words; nothing is sent."""
    run = rig([script] * 3, "never", history=conversation(25))
    outcome = await run.run()
    assert isinstance(outcome, Failed)
    assert outcome.kind == "context_overflow"
    assert run.provider.requests == []
    assert "secret" not in repr(run.facts)


async def test_a_stop_ends_the_summary_too() -> None:
    """LP-13"""
    hold = Hold()
    run = rig([["a", hold]], "never", history=conversation(25))
    task = run.begin()
    await hold.reached()
    run.stop()
    await task
    assert run.outcome == Cancelled("stop")
    assert run.writer.open == 0


async def test_a_run_may_ask_for_it() -> None:
    """On demand: before the first request, whatever the size; later runs of the path start from it."""
    run = rig(["The story so far."], "ok", history=conversation(3), options={"loop.compact": True})
    run.writer.add(*["again"] * 3)
    assert await run.run() == Completed()
    assert texts(run.provider.requests[0].messages)[0][1].startswith(HEADER)
    assert run.of(HistoryCompacted)[0].method == "compaction"
    again = LoopRig(
        AgentLoop(ScriptedProvider("ok", model=SMALL)),
        history=conversation(3),
        options={"loop.compact": True},
        records=run.records[: run.appends[1]],
    )
    await again.resume()
    assert len(again.of(HistoryCompacted)) == 1


async def test_where_nothing_can_be_left_out_nothing_changes() -> None:
    run = rig([], "ok", history=[], options={"loop.compact": True})
    assert await run.run() == Completed()
    assert run.of(HistoryCompacted) == []


async def test_long_messages_and_media_are_told_in_short() -> None:
    messages = [
        Message("1", "user", (Text("a" * 10_000 + "END"), Image("image/png", data=b"x"))),
        said("assistant", "b", "2"),
    ]
    run = rig(["ok"], "ok", history=messages, options={"loop.compact": True})
    await run.run()
    told = run.writer.requests[0].messages[0].text
    assert len(told) < 5_000
    assert "END" in told
    assert "sends image" in told


def test_a_part_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ConfigError, match="keep"):
        Compactor(ScriptedProvider(), keep=1)
