"""Structured output: the final answer as a validated value."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel, Field, field_validator

from pilothouse.conversation.controller import AgentController
from pilothouse.errors import ReplyIncomplete, StartRefused, UsageError
from pilothouse.events import Completed, Incomplete, ModelRequested, OutputAdded, RunEnded
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.config import LoopConfig
from pilothouse.loop.output import NotOutput, output_by, output_of
from pilothouse.loop.tools import tool
from pilothouse.messages import Message, Text
from pilothouse.records import RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.testing import LoopRig, ScriptedProvider
from pilothouse.testing.scripted import call


class Tide(BaseModel):
    port: str
    height: float = Field(gt=0)


@dataclass
class Point:
    x: int


GOOD = '{"port": "Husum", "height": 3.5}'


def rig(*scripts: Any, **options: Any) -> LoopRig:
    config = options.pop("config", None)
    tools = options.pop("tools", ())
    provider = ScriptedProvider(*scripts)
    run = LoopRig(AgentLoop(provider, output_type=Tide, config=config, tools=tools), **options)
    run.provider = provider
    return run


async def test_a_valid_answer_is_the_output_and_is_delivered() -> None:
    run = rig(GOOD)
    assert await run.run() == Completed()
    (added,) = run.of(OutputAdded)
    assert added.content == json.loads(GOOD)
    assert run.of(RunEnded)[0].delivery.outputs == (added.output_id,)
    assert run.provider.requests[0].settings.response_schema["required"] == ["port", "height"]


async def test_ask_gives_the_value() -> None:
    loop = AgentLoop(ScriptedProvider(f"```json\n{GOOD}\n```", "[1, 2]"), output_type=Tide)
    assert (await loop.ask("x")).output == Tide(port="Husum", height=3.5)
    assert (await AgentLoop(ScriptedProvider('{"x": "4"}'), output_type=Point).ask("x")).output == Point(4)
    assert (await AgentLoop(ScriptedProvider("[1]"), output_type=list[int]).ask("x")).output == [1]
    assert (await AgentLoop(ScriptedProvider("hi")).ask("x")).output is None


async def test_an_invalid_answer_is_asked_for_again_a_bounded_number_of_times() -> None:
    run = rig('{"port": "Husum", "height": -1}', "sorry", GOOD)
    assert await run.run() == Completed()
    told = [request.messages[-1].text for request in run.provider.requests[1:]]
    assert "height: Input should be greater than 0" in told[0]
    assert "must be one JSON value" in told[1]
    assert len(run.of(OutputAdded)) == 1
    run = rig("a", "b", "c")
    assert await run.run() == Incomplete("limit", "output_retries")
    assert len(run.provider.requests) == 3
    run = rig("a", config=LoopConfig(output_retries=0))
    assert await run.run() == Incomplete("limit", "output_retries")


async def test_tools_come_first_and_a_run_that_ends_without_an_answer_has_no_output() -> None:
    @tool(terminate=True)
    async def finish() -> str:
        """Ends."""
        return "bye"

    @tool
    async def look() -> str:
        """Looks."""
        return "3.5"

    assert await rig([call("look")], GOOD, tools=[look]).run() == Completed()
    assert await rig([call("finish")], tools=[finish]).run() == Incomplete("no_output")


async def test_steering_after_the_answer_asks_for_another_one() -> None:
    run = rig(GOOD, '{"port": "Büsum", "height": 2}')
    run.follow_up("and Büsum?")
    assert await run.run() == Completed()
    assert [fact.content["port"] for fact in run.of(OutputAdded)] == ["Husum", "Büsum"]
    assert len(run.of(RunEnded)[0].delivery.outputs) == 1


async def test_resumed_it_repairs_no_more_often_and_records_no_output_twice() -> None:
    scripts = ["a", "b", GOOD]
    whole = rig(*scripts)
    assert await whole.run() == Completed()
    for cut in whole.appends:
        answered = sum(record.fact.kind == "model_attempt_ended" for record in whole.records[:cut])
        run = rig(*scripts[answered:], records=whole.records[:cut])
        assert await run.resume() == Completed()
        assert len(run.of(OutputAdded)) == 1
        assert [message.text for message in run.messages] == [message.text for message in whole.messages]
    assert len(whole.of(ModelRequested)) == 3


async def test_a_run_may_bring_its_own_schema() -> None:
    """RC-26"""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    provider = ScriptedProvider('{"n": "x"}', '{"n": 1}')
    async with RunController(AgentLoop(provider)) as runs:
        message = Message("m", "user", (Text("x"),))
        run = await runs.start(RunSpec("r", "t", (message,), output_schema=schema))
        assert (await run.wait()).outcome == Completed()
        outputs = [record.fact for record in await run.events() if isinstance(record.fact, OutputAdded)]
    assert [output.content for output in outputs] == [{"n": 1}]
    assert provider.requests[0].settings.response_schema == schema


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"port": "x"}', "[" * 10_000])
def test_what_is_no_such_value_says_why(text: str) -> None:
    with pytest.raises(NotOutput):
        output_of(Tide).parse(text)
    with pytest.raises(NotOutput):
        output_by({"type": "object", "required": ["n"]}).parse(text)


async def test_a_reply_gives_its_value_as_the_type_that_is_asked_for() -> None:
    """Also from an answer in a fence, from one that was asked for again, and any number of times."""
    provider = ScriptedProvider("A storm.", f"```json\n{GOOD}\n```")
    async with AgentController(AgentLoop(provider, output_type=Tide)) as agent:
        reply = await agent.send("Husum?")
        assert await reply.output(Tide) == await reply.output(Tide) == Tide(port="Husum", height=3.5)
        assert await reply.output(dict[str, Any]) == json.loads(GOOD)
        with pytest.raises(UsageError, match="is no Point"):
            await reply.output(Point)


async def test_a_reply_without_a_value_says_why() -> None:
    """The agent gives none, or the send did not complete."""
    async with AgentController(ScriptedProvider("A storm.")) as agent:
        with pytest.raises(UsageError, match="output_type="):
            await (await agent.send("Husum?")).output(Tide)
    loop = AgentLoop(ScriptedProvider("No."), output_type=Tide, config=LoopConfig(output_retries=0))
    async with AgentController(loop) as agent:
        with pytest.raises(ReplyIncomplete, match="output_retries"):
            await (await agent.send("Husum?")).output(Tide)


class Picky(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def check(cls, name: str) -> str:
        if name == "odd":
            raise KeyError("a word of the type's own")
        return name


class Strict(BaseModel, strict=True):
    day: date


@pytest.mark.parametrize(
    ("kind", "bad", "good"),
    [
        (dict, '{"n": 1e999}', '{"n": 1}'),
        (list, "[" * 98 + "]" * 98, "[1]"),
        (Picky, '{"name": "odd"}', '{"name": "a"}'),
        (Strict, '{"day": "soon"}', '{"day": "2026-01-02"}'),
    ],
)
async def test_an_answer_that_cannot_be_taken_is_asked_for_again(kind: Any, bad: str, good: str) -> None:
    """Structured output: what no fact could hold, or a type's own code chokes on, is an answer like any other bad one."""
    provider = ScriptedProvider(bad, good)
    result = await AgentLoop(provider, output_type=kind).ask("x")
    assert (result.outcome, result.turns) == (Completed(), 2)
    assert "a word of the type's own" not in provider.requests[1].messages[-1].text


@pytest.mark.parametrize("schema", [5, "x", [], True])
async def test_a_schema_that_is_none_is_refused_before_the_start(schema: Any) -> None:
    """§6: nothing is recorded."""
    rig = LoopRig(AgentLoop(ScriptedProvider("never")))
    rig.start = replace(rig.start, spec=replace(rig.start.spec, output_schema=schema))
    with pytest.raises(StartRefused, match="output_schema"):
        await rig.run()


@pytest.mark.parametrize("prompt", [5, [], {}])
async def test_a_prompt_option_that_is_no_text_is_refused_before_the_start(prompt: Any) -> None:
    """§6, §2.1"""
    rig = LoopRig(AgentLoop(ScriptedProvider("never")), options={"loop.system_prompt": prompt})
    with pytest.raises(StartRefused, match="system_prompt"):
        await rig.run()
