"""Hooks around requests and turns: what they may change, and what their failure means."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pilothouse.errors import ConfigError
from pilothouse.events import Cancelled, Completed, Failed, HistoryCompacted, Incomplete, Noted
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.config import LoopConfig
from pilothouse.loop.hooks import CallCheck, NextTurn, TransformInfo, TurnInfo
from pilothouse.loop.tools import tool
from pilothouse.messages import Message, Model, Text, ToolCall
from pilothouse.responses import ModelSettings
from pilothouse.testing import LoopRig, ScriptedProvider, StepClock
from pilothouse.testing.scripted import call, failure, texts


def rig(*scripts: Any, tools: Any = (), **options: Any) -> LoopRig:
    config = options.pop("config", None)
    provider = options.pop("provider", None) or ScriptedProvider(*scripts)
    made = LoopRig(AgentLoop(provider, tools=tools, config=config, clock=options.get("clock")), **options)
    made.provider = provider
    return made


def user(text: str, message_id: str) -> Message:
    return Message(message_id, "user", (Text(text),))


@tool(effect="read")
async def work() -> str:
    """Works."""
    return "done"


# What every hook sees


async def test_the_context_that_a_hook_sees_stays_as_it_was() -> None:
    """§2.4: each hook is given the messages of its moment, and may keep them; they are not copied for it."""
    seen: list[TurnInfo | CallCheck] = []
    config = LoopConfig(before_tool_call=seen.append, should_stop_after_turn=seen.append)
    run = rig([call("work")], [call("work")], "ok", tools=[work], config=config)
    assert await run.run() == Completed()
    assert [type(info).__name__ for info in seen] == [
        "CallCheck",
        "TurnInfo",
        "CallCheck",
        "TurnInfo",
        "TurnInfo",
    ]
    shown = [info.history if isinstance(info, CallCheck) else info.context for info in seen]
    assert [len(messages) for messages in shown] == [2, 3, 4, 5, 6]
    assert [message.role for message in shown[1]] == ["user", "assistant", "tool"]
    assert shown[1][-1].role == "tool"
    assert [message.role for message in shown[1][1:]] == ["assistant", "tool"]


# transform_context


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_transform_rewrites_the_payload_and_nothing_else(kind: str) -> None:
    """§2.4, LP-2: it gets a copy; the transcript and the next request know nothing of it."""
    seen: list[TransformInfo] = []

    def change(messages: list[Message], info: TransformInfo) -> list[Message]:
        seen.append(info)
        messages.append(user("extra", f"x{info.turn}"))
        return messages

    async def later(messages: list[Message], info: TransformInfo) -> list[Message]:
        await asyncio.sleep(0)
        return change(messages, info)

    config = LoopConfig(transform_context=change if kind == "sync" else later)
    run = rig([call("work")], "ok", tools=[work], config=config)
    assert await run.run() == Completed()
    assert [request.messages[-1].text for request in run.provider.requests] == ["extra", "extra"]
    assert len(run.provider.requests[1].messages) == 4
    assert "extra" not in str(texts(run.messages))
    assert [(info.turn, info.attempt) for info in seen] == [(1, 1), (2, 1)]


async def test_a_transform_that_wants_no_change_returns_none() -> None:
    run = rig("ok", config=LoopConfig(transform_context=lambda *_: None))
    await run.run()
    assert texts(run.provider.requests[0].messages) == [("user", "Hello")]


@pytest.mark.parametrize("bad", [KeyError("secret"), "text", [1]])
async def test_a_transform_that_fails_ends_the_run_and_sends_nothing(bad: Any) -> None:
    """§2.4: it may be the filter that hides secrets."""

    def change(*_: Any) -> Any:
        if isinstance(bad, Exception):
            raise bad
        return bad

    run = rig("never", config=LoopConfig(transform_context=change))
    outcome = await run.run()
    assert isinstance(outcome, Failed)
    assert outcome.kind == "hook"
    assert "secret" not in outcome.message
    assert run.provider.requests == []
    assert run.kinds[-2:] == ["turn_ended", "run_ended"]


async def test_a_payload_is_repaired_before_it_is_sent() -> None:
    """LP-40, LP-41: calls without results, results without calls; the transcript stays; one note a run."""
    history = [
        user("a", "1"),
        Message("2", "assistant", (ToolCall("c1", "t"),)),
        Message("3", "tool", (Text("x"),), call_id="gone"),
    ]
    run = rig([call("work")], "ok", tools=[work], history=history)
    assert await run.run() == Completed()
    first, second = run.provider.requests
    assert [(message.role, message.call_id) for message in first.messages][1:3] == [
        ("assistant", None),
        ("tool", "c1"),
    ]
    assert "gone" in repr(first.messages[-1])
    assert "gone" not in repr(second.messages)
    assert [fact.name for fact in run.of(Noted) if fact.name != "loop/request"] == ["loop/pairing"]
    again = rig("ok", tools=[work], history=history, records=run.records[: run.appends[0]])
    await again.resume()
    assert "gone" not in repr(again.provider.requests[0].messages)


# prepare_next_turn


async def test_the_next_turn_may_have_another_model_prompt_tools_and_settings() -> None:
    """LP-5; and a resumed run still has them (LP-49)."""
    one, two = ScriptedProvider([call("work")]), ScriptedProvider([call("work")], "ok")
    other = Model("big", "b", 1000)

    def prepare(info: TurnInfo) -> NextTurn | None:
        if info.turn > 1:
            return None
        assert [result.text for result in info.results] == ["done"]
        return NextTurn(
            model=other, system_prompt="New.", settings=ModelSettings(temperature=1.0), tools=[work, extra]
        )

    @tool
    async def extra() -> None:
        """Extra."""

    config = LoopConfig(prepare_next_turn=prepare)
    loop = AgentLoop({"a": one, "b": two}, tools=[work], config=config, system_prompt="Old.")
    run = LoopRig(loop)
    assert await run.run() == Completed()
    assert (one.requests[0].system_prompt, one.requests[0].model.provider) == ("Old.", "a")
    for request in two.requests:
        assert (request.model, request.system_prompt, request.settings.temperature) == (other, "New.", 1.0)
        assert [spec.name for spec in request.tools] == ["work", "extra"]
    resumed = ScriptedProvider("ok")
    loop = AgentLoop({"a": ScriptedProvider(), "b": resumed}, tools=[work], system_prompt="Old.")
    cut = next(n for n, fact in enumerate(run.facts) if fact.kind == "turn_ended" and fact.turn == 2)
    again = LoopRig(loop, records=run.records[: cut + 1])
    assert await again.resume() == Completed()
    assert (resumed.requests[0].model, resumed.requests[0].system_prompt) == (other, "New.")
    assert resumed.requests[0].settings.temperature == 1.0


async def test_a_new_context_replaces_the_old_one_for_all_later_requests_and_not_the_transcript() -> None:
    """LP-5, RC-82: recorded as history_compacted; a resumed run starts from it."""

    def prepare(info: TurnInfo) -> NextTurn | None:
        if info.turn == 1:
            return NextTurn(messages=[user("summary", "s"), *info.context[-2:]])
        return None

    history = [user(f"old {n}", f"h{n}") for n in range(3)]
    scripts = [[call("work", call_id="c1")], [call("work", call_id="c2")], "ok"]
    config = LoopConfig(prepare_next_turn=prepare)
    run = rig(*scripts, tools=[work], history=history, config=config)
    assert await run.run() == Completed()
    compacted = run.of(HistoryCompacted)[0]
    assert [message.text for message in compacted.messages] == ["summary"]
    assert compacted.kept == ("run-1-1", "result:c1")
    assert compacted.method == "prepare_next_turn"
    assert [len(request.messages) for request in run.provider.requests] == [4, 3, 5]
    assert run.messages[0].text == "Hello"
    for cut in [at for at in run.appends if at > run.facts.index(compacted)]:
        answered = sum(record.fact.kind == "model_attempt_ended" for record in run.records[:cut])
        again = rig(*scripts[answered:], tools=[work], history=history, records=run.records[:cut])
        await again.resume()
        for old, new in zip(run.provider.requests[answered:], again.provider.requests, strict=True):
            assert [_shape(message) for message in old.messages] == [
                _shape(message) for message in new.messages
            ]


def _shape(message: Message) -> tuple[str, str, Any]:
    return message.role, message.text, message.call_id


async def test_a_model_that_nobody_serves_fails_as_configuration() -> None:
    """LP-5"""
    change = NextTurn(model=Model("x", "nobody"))
    config = LoopConfig(prepare_next_turn=lambda _: change)
    run = LoopRig(AgentLoop({"a": ScriptedProvider("ok")}, config=config))
    outcome = await run.run()
    assert isinstance(outcome, Failed)
    assert outcome.kind == "config"


async def test_it_runs_after_the_last_turn_too_and_not_after_a_failed_one() -> None:
    """LP-5"""
    turns: list[int] = []

    def prepare(info: TurnInfo) -> None:
        turns.append(info.turn)

    await rig("ok", config=LoopConfig(prepare_next_turn=prepare)).run()
    await rig(failure("auth"), config=LoopConfig(prepare_next_turn=prepare)).run()
    assert turns == [1]


@pytest.mark.parametrize("bad", [ValueError("x"), "text", NextTurn(messages=[1])])  # type: ignore[list-item]
async def test_a_prepare_that_fails_ends_the_run(bad: Any) -> None:
    """§2.4"""

    async def prepare(_: Any) -> Any:
        if isinstance(bad, Exception):
            raise bad
        return bad

    run = rig("ok", config=LoopConfig(prepare_next_turn=prepare))
    outcome = await run.run()
    assert isinstance(outcome, Failed)
    assert outcome.kind == "hook"


# should_stop_after_turn


@pytest.mark.parametrize("says", [True, "enough"])
async def test_a_host_may_end_the_run_with_a_turn_and_nothing_is_polled(says: Any) -> None:
    """LP-3"""
    run = rig([call("work")], tools=[work], config=LoopConfig(should_stop_after_turn=lambda _: says))
    run.follow_up("later")
    assert await run.run() == Completed(stopped_by="should_stop_after_turn")
    assert len(run.provider.requests) == 1


async def test_a_host_that_says_no_or_nothing_changes_nothing() -> None:
    for says in (False, "", None):
        run = rig("ok", config=LoopConfig(should_stop_after_turn=lambda _, says=says: says))
        assert await run.run() == Completed()


async def test_a_stop_hook_that_fails_ends_incomplete() -> None:
    """§2.4"""

    def fails(_: Any) -> bool:
        raise ValueError

    run = rig("ok", config=LoopConfig(should_stop_after_turn=fails))
    assert await run.run() == Incomplete("hook_error")


# All hooks


async def test_a_stop_wins_over_a_hook_that_hangs() -> None:
    """§2.4"""
    entered = asyncio.Event()

    async def hangs(*_: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    for name in ("transform_context", "prepare_next_turn", "should_stop_after_turn", "get_steering_messages"):
        entered.clear()
        run = rig("ok", config=LoopConfig(**{name: hangs}))
        task = run.begin()
        await entered.wait()
        run.stop()
        await task
        assert run.outcome == Cancelled("stop")


async def test_a_hook_over_its_time_has_failed() -> None:
    """§2.4: hook_timeout"""
    clock = StepClock()

    async def hangs(*_: Any) -> None:
        await asyncio.Event().wait()

    run = rig("ok", config=LoopConfig(transform_context=hangs, hook_timeout=3), clock=clock)
    task = run.begin()
    await clock.advance(3)
    await task
    assert run.outcome == Failed("hook", message="transform_context took too long")


async def test_a_hook_that_cancels_itself_has_failed_and_the_run_is_not_lost() -> None:
    """LP-46: a CancelledError born inside is the hook's."""

    async def odd(*_: Any) -> None:
        raise asyncio.CancelledError

    run = rig("ok", config=LoopConfig(transform_context=odd))
    outcome = await run.run()
    assert isinstance(outcome, Failed)


async def test_hooks_see_what_is_durable() -> None:
    """LP-10: the turn is recorded before somebody else's code sees it."""
    kinds: list[str] = []

    def prepare(_: Any) -> None:
        kinds.extend(run.kinds[-1:])

    run = rig("ok", config=LoopConfig(prepare_next_turn=prepare))
    await run.run()
    assert kinds == ["turn_ended"]


# LoopConfig


def test_a_configuration_is_checked_copied_and_compared_by_identity() -> None:
    """§2.2, §6"""
    config = LoopConfig()
    copy = config.copy_with(max_empty_retries=3)
    assert (copy.max_empty_retries, config.max_empty_retries) == (3, 1)
    assert config != LoopConfig()
    assert len({config, copy}) == 2
    with pytest.raises(ConfigError, match="nonsense"):
        config.copy_with(nonsense=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_empty_retries": -1},
        {"max_steering_turns": -1},
        {"tool_execution": "fast"},
        {"steering_policy": "x"},
        {"steering_mode": "x"},
        {"cancel_grace": -1},
        {"send_timeout": 0},
        {"hook_timeout": 0},
        {"yield_probe_interval": 0},
    ],
)
def test_a_setting_that_cannot_work_is_refused_naming_field_and_value(wrong: dict[str, Any]) -> None:
    """§6"""
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"{name} .*{wrong[name]!r}"):
        LoopConfig(**wrong)
