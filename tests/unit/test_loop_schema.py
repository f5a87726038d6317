"""Signatures as JSON schemas, and a model's arguments as the values that a function gets."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field, PlainSerializer, SecretStr

from pilothouse.core.calls import arguments_digest
from pilothouse.errors import ToolDefinitionError
from pilothouse.events import CallFinished, CallStarted, Completed
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.config import LoopConfig
from pilothouse.loop.context import ToolContext
from pilothouse.loop.hooks import CallCheck
from pilothouse.loop.schema import InvalidArguments
from pilothouse.loop.stuck import StuckToolConfig
from pilothouse.loop.tools import Tool, tool
from pilothouse.testing import LoopRig, ScriptedProvider, StepClock
from pilothouse.testing.scripted import call


class Port(BaseModel):
    name: str
    depth: float = 1.0


class Colour(Enum):
    RED = "red"


@dataclass
class Box:
    width: int


def made(function: Any, **options: Any) -> Tool:
    return tool(description="x", **options)(function)


def properties(function: Any) -> dict[str, Any]:
    return made(function).spec.parameters["properties"]


# Schemas


def test_a_schema_is_an_object_without_titles_the_same_each_time() -> None:
    """TL-2"""

    def get_tide(port: str, *, day: dt.date | None = None, n: int = 3, ports: list[Port] = []) -> None:
        pass

    schema = made(get_tide).spec.parameters
    assert schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["port"],
        "properties": {
            "port": {"type": "string"},
            "day": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
            "n": {"type": "integer", "default": 3},
            "ports": {"type": "array", "items": {"$ref": "#/$defs/Port"}, "default": []},
        },
        "$defs": {
            "Port": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "depth": {"type": "number", "default": 1.0}},
            }
        },
    }
    assert json.dumps(schema) == json.dumps(made(get_tide).spec.parameters)


def test_a_parameter_called_title_stays() -> None:
    """TL-2: titles are keywords, not names."""

    def f(title: str, properties: str) -> None:
        pass

    assert properties(f) == {"title": {"type": "string"}, "properties": {"type": "string"}}


@pytest.mark.parametrize(
    "doc",
    [
        "Tide.\n\nMore.\n\nArgs:\n    port: Port name.\n    day: The day.\n",
        "Tide.\n\nMore.\n\nParameters\n----------\nport : str\n    Port name.\nday : str\n    The day.\n",
        "Tide.\n\nMore.\n\n:param port: Port name.\n:param day: The day.\n",
    ],
)
def test_descriptions_come_from_the_docstring(doc: str) -> None:
    """TL-1: Google, NumPy and Sphinx; a Field's own description wins."""

    def f(port: str, day: Annotated[str, Field(description="Own.")]) -> None:
        pass

    f.__doc__ = doc
    spec = tool(f).spec
    assert spec.description == "Tide.\n\nMore."
    assert spec.parameters["properties"]["port"]["description"] == "Port name."
    assert spec.parameters["properties"]["day"]["description"] == "Own."


def test_a_tool_without_any_description_warns() -> None:
    """TL-1"""

    def f() -> None:
        pass

    with pytest.warns(UserWarning, match="no description"):
        tool(f)


def test_the_context_is_given_and_not_in_the_schema() -> None:
    """TL-2: any name, parametrised or optional."""

    def f(a: int, whatever: ToolContext[str]) -> None:
        pass

    def g(a: int, c: ToolContext[Any] | None = None) -> None:
        pass

    assert (made(f).context_name, made(g).context_name) == ("whatever", "c")
    assert list(properties(f)) == list(properties(g)) == ["a"]


def test_methods_partials_and_callable_objects_are_tools() -> None:
    """TL-2"""

    class Thing:
        """A thing."""

        def method(self, a: int) -> int:
            return a

        def __call__(self, b: int) -> int:
            return b

    def f(a: int, b: int) -> int:
        return a + b

    assert list(properties(Thing().method)) == ["a"]
    assert list(properties(Thing())) == ["b"]
    assert made(Thing()).name == "Thing"
    partial = made(functools.partial(f, 1))
    assert (partial.name, list(partial.spec.parameters["properties"])) == ("f", ["b"])


def test_extra_arguments_are_admitted_by_kwargs() -> None:
    """TL-2"""

    def f(a: int, **rest: Any) -> None:
        pass

    assert made(f).spec.parameters["additionalProperties"] is True
    assert made(f).accept({"a": 1, "z": 2}).values == {"a": 1, "z": 2}


def _positional(a: int, /) -> None:
    pass


def _star(*a: int) -> None:
    pass


def _untyped(a) -> None:  # type: ignore[no-untyped-def]
    pass


def _no_schema(ok: int, a: object, b: Tool) -> None:
    pass


def _secret(a: SecretStr) -> None:
    pass


class Login(BaseModel):
    password: SecretStr


def _deep_secret(a: list[Login]) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (_positional, "a"),
        (_star, r"\*a"),
        (_untyped, "a"),
        (_no_schema, "b"),
        (_secret, "a"),
        (_deep_secret, "a"),
    ],
)
def test_what_no_model_can_give_is_refused_and_named(function: Any, named: str) -> None:
    """TL-2"""
    with pytest.raises(ToolDefinitionError, match=f"parameter {named}"):
        made(function)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"name": "1st"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"effect": "writes"}, "effect"),
        ({"execution": "fast"}, "execution"),
        ({"timeout": 0}, "timeout"),
        ({"colour": 1}, "colour"),
    ],
)
def test_wrong_options_are_refused_when_the_tool_is_made(options: dict[str, Any], word: str) -> None:
    """TL-1, §6"""
    with pytest.raises(ToolDefinitionError, match=word):
        made(lambda: None, **{"name": "f", **options})


def test_pydantic_is_imported_at_the_first_tool() -> None:
    """TL-2"""
    code = "import sys, pilothouse.loop.agent, pilothouse.loop.tools; print([m for m in ('pydantic', 'docstring_parser') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Arguments


def accepted(hint: Any, value: Any) -> Any:
    def f(x) -> None:  # type: ignore[no-untyped-def]
        pass

    f.__annotations__ = {"x": hint}
    return made(f).accept({"x": value}).values["x"]


@pytest.mark.parametrize(
    ("hint", "given", "got"),
    [
        (int, "42", 42),
        (int, 42.0, 42),
        (int, True, 1),
        (float, "4.5", 4.5),
        (float, "4e2", 400.0),
        (bool, "TRUE", True),
        (bool, 1, True),
        (bool, 0, False),
        (str, 4, "4"),
        (str, 4.5, "4.5"),
        (str, True, "true"),
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Port, '{"name": "Husum"}', Port(name="Husum")),
        (list[Port], '[{"name": "Husum"}]', [Port(name="Husum")]),
        (int | None, "", None),
        (int | None, "null", None),
        (dt.date | None, "None", None),
        (int | str, "7", "7"),
        (int | str, 7, 7),
        (str | None, "null", "null"),
        (Colour, "red", Colour.RED),
        (Box, {"width": "3"}, Box(3)),
        (Literal["a", "b"], "a", "a"),
        (Any, [1], [1]),
    ],
)
def test_what_models_mean_is_understood(hint: Any, given: Any, got: Any) -> None:
    """TL-6: the lax mode, and the second chance only for what failed."""
    value = accepted(hint, given)
    assert (value, type(value)) == (got, type(got))


@pytest.mark.parametrize(
    ("hint", "given"),
    [
        (int, 4.5),
        (int, ""),
        (float, "NaN"),
        (float, float("inf")),
        (bool, 2),
        (bool, "maybe"),
        (str, [1]),
        (list[int], "[1, x"),
        (list[int], "7"),
        (Port, "null"),
    ],
)
def test_what_does_not_fit_is_refused(hint: Any, given: Any) -> None:
    """TL-6"""
    with pytest.raises(InvalidArguments):
        accepted(hint, given)


def test_all_violations_are_told_at_once_with_their_paths() -> None:
    """TL-6, LP-27 step 4: missing, wrong, deep and unknown ones, and the arguments."""

    def f(port: str, items: list[Port], n: int) -> None:
        pass

    given = {"items": [{"name": "a"}, {"name": "b", "depth": "deep"}], "n": "", "dry_run": True}
    with pytest.raises(InvalidArguments) as caught:
        made(f).accept(given)
    text = str(caught.value)
    assert text.startswith("The arguments of f do not fit its schema:\n")
    assert "- port: is required and missing" in text
    assert "- items[1].depth: Input should be a valid number" in text
    assert "- n: Input should be a valid integer" in text
    assert "- dry_run: there is no such argument" in text
    assert '"depth": "deep"' in text
    assert given == {"items": [{"name": "a"}, {"name": "b", "depth": "deep"}], "n": "", "dry_run": True}


def test_huge_arguments_are_shown_in_part() -> None:
    def f(n: int) -> None:
        pass

    with pytest.raises(InvalidArguments) as caught:
        made(f).accept({"n": "x" * 10_000})
    assert len(str(caught.value)) < 2_500


def test_the_input_is_never_changed() -> None:
    """TL-6"""

    def f(ports: list[Port], n: int | None) -> None:
        pass

    given = {"ports": ['{"name": "x"}', {"name": "y"}], "n": ""}
    frozen = made(f).accept(given)
    assert given == {"ports": ['{"name": "x"}', {"name": "y"}], "n": ""}
    assert frozen.json == {"ports": [{"name": "x", "depth": 1.0}, {"name": "y", "depth": 1.0}], "n": None}


def test_frozen_arguments_hold_defaults_and_the_values_come_from_them() -> None:
    """TL-7"""
    today = dt.date(2026, 1, 2)

    def g(day: dt.date, n: int = 3, name: str = None) -> None:  # type: ignore[assignment] # noqa: RUF013
        pass

    frozen = made(g).accept({"day": "2026-01-02"})
    assert frozen.json == {"day": "2026-01-02", "n": 3, "name": None}
    assert frozen.values == {"day": today, "n": 3, "name": None}
    assert made(g).thaw(frozen.json) == frozen.values
    assert made(g).accept({"day": "2026-01-02", "name": "x"}).json["name"] == "x"


def test_a_type_that_does_not_read_back_what_it_wrote_is_to_blame() -> None:
    """TL-7: what runs would not be what was approved."""
    twice = Annotated[int, AfterValidator(lambda value: value + 1)]
    lossy = Annotated[dt.date, PlainSerializer(lambda value: "soon")]

    def f(x: twice) -> None:
        pass

    def g(x: lossy) -> None:
        pass

    f.__annotations__["x"], g.__annotations__["x"] = twice, lossy
    with pytest.raises(InvalidArguments, match="because of its own types"):
        made(f).accept({"x": 1})
    with pytest.raises(InvalidArguments, match="because of its own types"):
        made(g).accept({"x": "2026-01-02"})


def test_a_tool_can_still_be_called_as_what_it_is() -> None:
    @tool(effect="read")
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    assert add(1, b=2) == 3
    assert repr(add) == "<Tool add (read)>"


# Whose the arguments are


@pytest.mark.parametrize("kind", [dict[str, Any], Any, dict, list])
async def test_what_a_function_does_to_its_arguments_changes_neither_record_nor_request(kind: Any) -> None:
    """LP-2, TL-7: they are the function's own copy."""
    given: Any = [[1]] if kind is list else {"items": [1]}

    async def work(data: Any, more: list[int] = []) -> str:
        (data[0] if isinstance(data, list) else data["items"]).append("changed")
        data.clear()
        more.append(1)
        return f"{len(more)}"

    work.__annotations__["data"] = kind
    kept = made(work)
    calls = [call("work", {"data": given}, call_id=name) for name in "ab"]
    provider = ScriptedProvider(calls, "done")
    run = LoopRig(AgentLoop(provider, tools=[kept]))
    assert await run.run() == Completed()
    sent = [one.arguments for message in provider.requests[1].messages for one in message.tool_calls]
    assert sent == [{"data": given}] * 2
    assert [end.content[0].text for end in run.of(CallFinished)] == ["1", "1"]
    assert {fact.arguments_digest for fact in run.of(CallStarted)} == {
        arguments_digest({"data": given, "more": []})
    }


async def test_a_call_that_is_made_once_more_gets_the_same_arguments() -> None:
    """LP-48, TL-7: whatever became of the first one's."""
    seen: list[Any] = []
    clock = StepClock()

    class Order(BaseModel):
        items: list[int]

    async def work(order: Order, data: dict[str, Any]) -> str:
        seen.append((list(order.items), dict(data)))
        order.items.clear()
        data.clear()
        if len(seen) == 1:
            await asyncio.Event().wait()
        return "done"

    work.__annotations__.update(order=Order, data=dict[str, Any])
    kept = made(work, effect="read", timeout=None)
    provider = ScriptedProvider([call("work", {"order": {"items": [1]}, "data": {"a": 1}})], "done")
    config = LoopConfig(stuck_tool=StuckToolConfig(floor=10.0))
    run = LoopRig(AgentLoop(provider, tools=[kept], config=config, clock=clock), clock=clock)
    task = run.begin()
    while not seen:
        await asyncio.sleep(0)
    await clock.advance(11)
    await task
    assert run.outcome == Completed()
    assert seen == [([1], {"a": 1})] * 2


async def test_what_a_hook_does_to_the_arguments_it_is_shown_has_no_effect() -> None:
    """Agent-loop §7.3, §2.4: it gets a copy."""

    def hook(check: CallCheck) -> None:
        check.args["data"]["items"].append("changed")
        check.args["data"] = "other"  # type: ignore[index]

    async def work(data: dict[str, Any]) -> str:
        return json.dumps(data)

    work.__annotations__["data"] = dict[str, Any]
    kept = made(work)
    provider = ScriptedProvider([call("work", {"data": {"items": [1]}})], "done")
    run = LoopRig(AgentLoop(provider, tools=[kept], config=LoopConfig(before_tool_call=hook)))
    assert await run.run() == Completed()
    assert run.of(CallFinished)[0].content[0].text == '{"items": [1]}'
    assert run.of(CallStarted)[0].arguments is None


# Signatures that people write


class Strict(BaseModel, strict=True):
    day: dt.date


async def outcome_of(function: Any, arguments: dict[str, Any]) -> str:
    kept = made(function, name="work")
    run = LoopRig(AgentLoop(ScriptedProvider([call("work", arguments)], "done"), tools=[kept]))
    assert await run.run() == Completed()
    return str(run.of(CallFinished)[0].content[0].text)


async def test_a_strict_type_takes_the_json_of_its_values() -> None:
    """TL-6: a date is text in JSON; nothing else could ever be given."""

    async def work(order: Strict) -> str:
        return order.day.isoformat()

    work.__annotations__["order"] = Strict
    assert await outcome_of(work, {"order": {"day": "2026-01-02"}}) == "2026-01-02"
    assert "valid date" in await outcome_of(work, {"order": {"day": "soon"}})


async def test_a_value_that_can_be_gone_through_once_is_there_for_the_function() -> None:
    """TL-7: looking at it must not use it up."""

    async def work(numbers: Iterable[int]) -> str:
        return str(list(numbers))

    work.__annotations__["numbers"] = Iterable[int]
    assert await outcome_of(work, {"numbers": [1, 2]}) == "[1, 2]"


async def test_a_default_may_be_a_field() -> None:
    """TL-1, TL-2: as in a model; its default, bounds and description count."""

    async def work(
        count: int = Field(default=7, ge=1, description="How many."), *, name: str = Field()
    ) -> str:
        return f"{name} {count}"

    work.__annotations__.update(count=int, name=str)
    kept = made(work)
    count = kept.spec.parameters["properties"]["count"]
    assert (count["default"], count["minimum"], count["description"]) == (7, 1, "How many.")
    assert kept.spec.parameters["required"] == ["name"]
    assert await outcome_of(work, {"name": "a"}) == "a 7"
    assert "greater than or equal" in await outcome_of(work, {"name": "a", "count": 0})


async def test_a_context_may_be_annotated() -> None:
    """TL-2: injected, not in the schema."""

    async def work(ctx: Any) -> str:
        return str(ctx.call_id)

    work.__annotations__["ctx"] = Annotated[ToolContext[Any], "given"]
    assert made(work).spec.parameters["properties"] == {}
    assert await outcome_of(work, {})
