"""Forms that a model fills (FM, proof 20)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Literal, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    BaseModel,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pilothouse import AgentController, MemoryJournal
from pilothouse.controllers import FieldPolicy, FormController, Option
from pilothouse.controllers.form.fields import MISSING, Shape, get_at
from pilothouse.controllers.form.filling import fill, flat, judge
from pilothouse.errors import ConfigError
from pilothouse.testing.scripted import Hold, ScriptedProvider, call, failure


class Address(BaseModel):
    street: str
    city: str = "Oban"


class Booking(BaseModel):
    name: Annotated[str, Field(min_length=2, description="Of the person.")]
    nights: Annotated[int, Field(ge=1, le=30, alias="numberOfNights")]
    arrival: date
    berth: Literal["pier", "buoy"] = "pier"
    extras: list[str] = []
    weight: int | str | None = None
    address: Address
    token: SecretStr | None = None
    note: Annotated[str, Field(exclude=True)] = ""

    @field_validator("name")
    @classmethod
    def no_digits(cls, value: str) -> str:
        if any(mark.isdigit() for mark in value):
            raise ValueError("a name has no digits")
        return value

    @model_validator(mode="after")
    def buoys_are_short(self) -> Booking:
        if self.berth == "buoy" and self.nights > 3:
            raise ValueError("three nights at most at a buoy")
        return self


GOOD = {"name": "Ada", "nights": 2, "arrival": "2026-05-01", "address.street": "Pier Road"}


def filled(*calls: dict[str, Any], model: Any = Booking) -> tuple[Any, Any, dict[str, Any]]:
    shape = Shape(model, {})
    draft: dict[str, Any] = {}
    refused: dict[str, Any] = {}
    result, judged = None, judge(shape, draft)
    for values in calls:
        wanted, refused = flat(shape, values)
        result, judged = fill(shape, draft, wanted)
        refused |= result.rejected
        draft = result.draft
    return result, judged, {path: reason for path, (_, reason) in refused.items()}


@pytest.mark.parametrize(
    ("values", "accepted", "rejected"),
    [
        ({}, [], {}),
        ({"name": "Ada"}, ["name"], {}),
        ({"name": "A"}, [], {"name": "at least 2 characters"}),
        ({"name": "Ada1", "nights": 2}, ["nights"], {"name": "a name has no digits"}),
        ({"nights": 31}, [], {"nights": "less than or equal to 30"}),
        ({"nights": "x"}, [], {"nights": "valid integer"}),
        ({"numberOfNights": 2}, [], {"numberOfNights": "unknown field"}),
        ({"nosuch": 1, "name": "Ada"}, ["name"], {"nosuch": "unknown field"}),
        ({"token": "hunter2"}, [], {"token": "unknown field"}),
        ({"note": "x"}, [], {"note": "unknown field"}),
        ({"address": {"street": "a", "city": "b"}}, ["address.street", "address.city"], {}),
        ({"address.street": "a"}, ["address.street"], {}),
        ({"address": {"street": 3}}, [], {"address.street": "valid string"}),
        ({"address": "here"}, [], {"address": "object of several fields"}),
        ({"address": {"zip": 3}}, [], {"address.zip": "unknown field"}),
        ({"extras": ["a", "b"]}, ["extras"], {}),
        ({"extras": ["a", 3]}, [], {"extras": "valid string"}),
        ({"weight": "heavy"}, ["weight"], {}),
        ({"weight": [1]}, [], {"weight": "valid"}),
        ({"berth": "sea"}, [], {"berth": "'pier' or 'buoy'"}),
        ({"arrival": "soon"}, [], {"arrival": "valid date"}),
        ({"name": None}, ["name"], {}),
    ],
)
def test_each_value_has_one_verdict(
    values: dict[str, Any], accepted: list[str], rejected: dict[str, str]
) -> None:
    """FM-4, FM-5: good values land whatever the others do; rejected ones do not."""
    result, _, refused = filled(values)
    assert result.accepted == accepted
    assert set(refused) == set(rejected)
    assert all(words in refused[path] for path, words in rejected.items())
    assert not set(refused) & set(accepted)
    given = {path: get_at(result.draft, path.split(".")) for path in rejected}
    assert all(found is MISSING for found in given.values())


def test_a_form_is_complete_normalized_and_judged_as_a_whole() -> None:
    """FM-4 (7), FM-6: rules of the form keep it incomplete; the draft becomes the model's own dump."""
    _, judged, _ = filled({"name": "Ada"})
    assert judged.missing == ("nights", "arrival", "address.street")
    result, judged, _ = filled({"name": "Ada"}, {**GOOD, "nights": "2"})
    assert judged.value is not None
    assert result.draft["nights"] == 2
    assert result.draft["address"] == {"street": "Pier Road", "city": "Oban"}
    assert "token" not in result.draft
    _, judged, refused = filled({**GOOD, "berth": "buoy", "nights": 9})
    assert judged.value is None
    assert refused == {}
    assert judged.rules == ("Value error, three nights at most at a buoy",)
    result, judged, _ = filled(GOOD, {"name": None})
    assert judged.missing == ("name",)
    assert result.draft["nights"] == 2


@settings(max_examples=60, deadline=None)
@given(st.permutations(sorted(GOOD)), st.integers(1, 3))
def test_the_order_of_fills_does_not_matter(order: list[str], size: int) -> None:
    """Proof 20, property: disjoint fields; and the dump validates to an equal model."""
    steps = [{path: GOOD[path] for path in order[at : at + size]} for at in range(0, len(order), size)]
    result, judged, _ = filled(*steps)
    assert judged.value is not None
    assert result.draft == filled(GOOD)[0].draft
    assert judge(Shape(Booking, {}), result.draft).value == judged.value


def test_validators_that_raise_anything_else() -> None:
    """FM-7: "not checkable yet" while something is missing, else one generic line; its text goes nowhere."""

    class Odd(BaseModel):
        one: int
        two: int

        @model_validator(mode="before")
        @classmethod
        def both(cls, data: Any) -> Any:
            if data["one"] > data["two"]:
                raise RuntimeError("SECRET")
            return data

    _, judged, refused = filled({"one": 1}, model=Odd)
    assert (judged.missing, judged.rules, refused) == (("two",), (), {})
    _, judged, _ = filled({"one": 2, "two": 1}, model=Odd)
    assert judged.rules == ("the form could not be checked",)
    _, judged, _ = filled({"one": 1, "two": 2}, model=Odd)
    assert judged.value is not None


def test_dataclasses_and_typed_dicts() -> None:
    """FM-15."""

    @dataclass
    class Plain:
        name: str
        tags: list[str] = field(default_factory=list)

    class Typed(TypedDict):
        name: str
        age: int

    form: FormController[Any] = FormController(Plain, value={"name": "Ada"})
    assert form.value == Plain("Ada")
    typed: FormController[Any] = FormController(Typed, value={"name": "Ada", "age": 3})
    assert typed.value == {"name": "Ada", "age": 3}
    assert FormController(Plain, value=Plain("Bo", ["x"])).draft == {"name": "Bo", "tags": ["x"]}
    for wrong in (int, "Booking", dict, Plain("x")):
        with pytest.raises(TypeError, match="pydantic model"):
            FormController(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="there is no 'nosuch'"):
        FormController(Plain, fields={"nosuch": FieldPolicy()})
    with pytest.raises(ConfigError, match="no field 'nosuch'"):
        FormController(Plain, value={"nosuch": 1})


def test_recursive_models_and_alias_choices() -> None:
    """FM-1: from the recursion on it is one value; aliases never reach the model."""

    class Node(BaseModel):
        name: Annotated[str, Field(validation_alias=AliasChoices("n", "label"))]
        inner: Node | None = None

    _, judged, refused = filled({"name": "a", "inner": {"name": "b"}}, model=Node)
    assert refused == {}
    assert judged.value.inner.name == "b"
    assert filled({"n": "a"}, model=Node)[2] == {"n": "unknown field"}


# In a conversation


def results(provider: ScriptedProvider) -> list[Any]:
    return [
        json.loads(m.text) if m.text.startswith("{") else m.text
        for m in provider.requests[-1].messages
        if m.role == "tool"
    ]


def fills(**values: Any) -> list[Any]:
    return [call("form__fill", {"values": values})]


async def test_a_model_fills_a_form_over_two_calls() -> None:
    """FM-3, FM-5, FM-10: verdicts and state; committed with the send, `on_change` in the order of the model."""
    form = FormController(Booking)
    heard: list[Any] = []
    form.on_change(heard.append)
    provider = ScriptedProvider(
        [call("form__state")],
        [call("form__fill", {"values": {"nights": 40, "name": "Ada"}})],
        [call("form__fill", {"values": {k: v for k, v in GOOD.items() if k != "name"}})],
        [call("form__fill", {"values": [1]})],
        "Booked.",
    )
    async with AgentController(provider, controllers=[form]) as agent:
        reply = await agent.send("book")
        await reply.result()
        empty, first, second, wrong = results(provider)
        assert empty["missing"] == ["name", "nights", "arrival", "address.street"]
        assert first["accepted"] == ["name"]
        assert first["rejected"][0]["path"] == "nights"
        assert second["complete"] is True
        assert "must be an object" in wrong
        assert form.value is not None
        assert form.value.name == "Ada"
        assert agent.shared_state["form"]["complete"] is True
        (change,) = heard
        assert [path for path, _, _ in change.fields][:2] == ["name", "nights"]
        assert {mark.path for mark in form.changes} >= {"name", "nights"}
        assert all(mark.reply_id == reply.id for mark in form.changes)
    system = provider.requests[0].system_prompt or ""
    assert "- nights (int, at least 1, at most 30, required)" in system
    assert "token" not in system
    assert len({json.dumps([tool.name for tool in request.tools]) for request in provider.requests}) == 1


async def test_an_interface_sees_the_form_of_an_answer_under_way_if_it_asks() -> None:
    """TC-124, issue 7: staged beside committed; nothing of it is left once the answer has failed."""
    form = FormController(Booking)
    hold = Hold()
    provider = ScriptedProvider(fills(name="Ada"), [hold, failure("auth", "no")])
    async with AgentController(provider, controllers=[form]) as agent:

        async def shown(**given: str) -> Any:
            return json.loads((await agent.export("form", "form", given)).data)["values"]

        reply = await agent.send("x")
        await hold.reached()
        assert (await shown(), await shown(staged="0")) == ({}, {})
        assert await shown(staged="1") == {"name": "Ada"}
        hold.release()
        await reply.wait()
        assert await shown(staged="1") == {}
        with pytest.raises(ValueError, match="staged must be 0 or 1"):
            await shown(staged="yes")
        with pytest.raises(ValueError, match="no parameter 'limit'"):
            await shown(limit="1")


async def test_a_failed_send_leaves_no_mark() -> None:
    """FM-10, FM-12: values of a failed send are gone, with their marks."""
    form = FormController(Booking, value={"name": "Bo"})
    provider = ScriptedProvider(fills(name="Ada"), failure("auth", "no"))
    async with AgentController(provider, controllers=[form]) as agent:
        await (await agent.send("x")).wait()
    assert form.draft == {"name": "Bo"}
    assert form.changes == ()


async def test_what_the_person_edits_meanwhile_wins() -> None:
    """FM-11: that field is left out and named; the others are committed."""
    form = FormController(Booking, value={"name": "Bo"})
    heard: list[Any] = []
    hold = Hold()
    provider = ScriptedProvider(fills(name="Ada", nights=3), [hold, "ok"])
    async with AgentController(provider, controllers=[form]) as agent:
        reply = await agent.send("x")
        await hold.reached()
        assert form.edit("name", "Cleo").accepted
        form.on_change(heard.append)
        hold.release()
        await reply.result()
    assert form.draft == {"name": "Cleo", "nights": 3}
    assert heard[-1].kept == ("name",)
    assert [mark.path for mark in form.changes] == ["nights"]


async def test_revert_over_three_sends() -> None:
    """FM-12: back to what was there before the model's first change."""
    form = FormController(Booking, value={"name": "Bo"})
    provider = ScriptedProvider(
        fills(name="Onny"), "ok", fills(name="Twoy"), "ok", fills(name="Threey", nights=2), "ok"
    )
    async with AgentController(provider, controllers=[form]) as agent:
        for _ in range(3):
            await (await agent.send("x")).result()
    assert form.draft["name"] == "Threey"
    assert form.revert("name")
    assert form.draft["name"] == "Bo"
    assert not form.revert("name")
    assert form.revert("nights")
    assert "nights" not in form.draft
    assert form.edit("nights", 99).reason
    assert not form.edit("nights", 99).accepted
    form.reset()
    assert form.draft == {"name": "Bo"}


async def test_options_fixed_and_searched() -> None:
    """FM-8: value or label; a search must come first; a failing one is said; 200,000 options; labels of one line."""

    async def ports(text: str, limit: int) -> list[Option]:
        if text == "boom":
            raise RuntimeError("SECRET")
        return [Option(f"id{at}", f"Port\n{at}") for at in range(200_000) if text in str(at)][:limit]

    class Trip(BaseModel):
        kind: str = ""
        port: str = ""

    form = FormController(
        Trip,
        fields={
            "kind": FieldPolicy(options=[Option("s", "Sail"), Option("m", "Motor"), "row"]),
            "port": FieldPolicy(options=ports),
        },
    )
    provider = ScriptedProvider(
        fills(kind="sail"),
        fills(kind="plane", port="id7"),
        [call("form__options", {"field": "port", "text": "boom"})],
        [call("form__options", {"field": "port", "text": "19999", "limit": 5})],
        [call("form__options", {"field": "port", "text": "none of them"})],
        fills(port="Port 19999"),
        "ok",
        fills(port="Port 19999", kind="row"),
        "ok",
    )
    async with AgentController(provider, controllers=[form]) as agent:
        await (await agent.send("x")).result()
        sail, refused, boom, found, none, port = results(provider)
        assert sail["values"]["kind"] == "s"
        reasons = {one["path"]: one["reason"] for one in refused["rejected"]}
        assert "the nearest are" in reasons["kind"]
        assert "call `options`" in reasons["port"]
        assert boom == "options are not available"
        assert len(found["options"]) == 5
        assert "more than 5" in found["note"]
        assert found["options"][0]["label"] == "Port 19999"
        assert none["note"] == "no matches"
        assert port["values"]["port"] == "id19999"
        await (await agent.send("y")).result()
        assert results(provider)[-1]["rejected"][0]["path"] == "port"  # found in another send
        assert form.draft == {"kind": "row", "port": "id19999"}
        assert all("SECRET" not in str(request.messages) for request in provider.requests)


async def test_what_is_hidden_read_only_masked_or_to_be_asked() -> None:
    """TC-101, FM-2, FM-9: in no state, schema or error; read-only is shown; masked is writable."""
    form = FormController(
        Booking,
        value={
            "name": "Ada",
            "nights": 2,
            "arrival": "2026-05-01",
            "address": {"street": "HIDDEN"},
            "token": "HIDDEN",
        },
        fields={
            "address": FieldPolicy(hidden=True),
            "name": FieldPolicy(read_only=True),
            "nights": FieldPolicy(mask=True),
            "arrival": FieldPolicy(ask=True),
        },
    )
    provider = ScriptedProvider(
        [call("form__state")],
        [call("form__fill", {"values": {"name": "Bo", "address.street": "x", "nights": 3, "arrival": None}})],
        "ok",
    )
    async with AgentController(provider, controllers=[form]) as agent:
        await (await agent.send("x")).result()
    state, told = results(provider)
    assert state["values"]["nights"] is None
    assert state["has a value that is not shown"] == ["nights"]
    assert {one["path"]: one["reason"] for one in told["rejected"]} == {
        "name": "this field is read-only",
        "address.street": "unknown field",
    }
    assert told["ask the person for"] == ["arrival"]
    assert form.draft["nights"] == 3
    for request in provider.requests:
        assert "HIDDEN" not in (request.system_prompt or "") + str(request.messages)
        assert "address" not in (request.system_prompt or "")


async def test_a_stored_form_under_a_changed_model() -> None:
    """FM-14: known fields are kept, unknown ones dropped, invalid ones missing and listed."""

    class New(BaseModel):
        name: str
        nights: Annotated[int, Field(le=1)]

    journal = MemoryJournal()
    form = FormController(Booking)
    async with AgentController(
        ScriptedProvider(fills(**GOOD), "ok"), controllers=[form], journal=journal, thread_id="t"
    ) as agent:
        await (await agent.send("x")).result()
    changed = FormController(New)
    async with AgentController(
        ScriptedProvider(), controllers=[changed], journal=journal, thread_id="t"
    ) as agent:
        assert changed.draft == {"name": "Ada"}
        assert changed.missing == ("nights",)
        assert [error.path for error in changed.errors] == ["nights"]
        assert agent.restore_errors == {}
    again = FormController(Booking)
    async with AgentController(ScriptedProvider(), controllers=[again], journal=journal, thread_id="t"):
        assert again.value == form.value
        assert again.revert("name")
        assert "name" not in again.draft


class Stay(BaseModel):
    arrival: int
    departure: int
    address: Address = Address(street="Quay")
    secret: Annotated[int, PlainSerializer(lambda value: 1 // (value - 7))] = 0

    @field_validator("departure")
    @classmethod
    def later(cls, value: int, info: ValidationInfo) -> int:
        if value <= info.data.get("arrival", 0):
            raise ValueError("before the arrival")
        return value


@pytest.mark.parametrize(
    "edits",
    [
        [],
        [("departure", 3)],
        [("departure", 3), ("arrival", 5)],  # the departure is not valid any more, and stays
        [("arrival", 1), ("departure", 3)],
        [("address.city", "Brest"), ("address.city", None)],
    ],
)
@pytest.mark.parametrize("value", [None, {"address": {}}, {"arrival": 1}])
async def test_a_form_that_is_opened_again_is_what_it_was(value: Any, edits: list[tuple[str, Any]]) -> None:
    """FM-14, TC-113: to the byte: no default is added, nothing is lost that was there, valid or not."""
    form = FormController(Stay, value=value)
    for path, given_value in edits:
        form.edit(path, given_value)
    assert form.state is not None
    stored = json.dumps(form.encode(form.state))
    again = FormController(Stay)
    await again.restore(again.decode(json.loads(stored), 1))
    assert again.state is not None
    assert json.dumps(again.encode(again.state)) == stored
    assert (again.draft, again.missing, again.errors) == (form.draft, form.missing, form.errors)


async def test_a_value_that_cannot_be_shown_is_an_error_of_its_own() -> None:
    """FM-13: the rest of the state works, for the person, the model and an interface."""
    form = FormController(Stay)
    values = {"arrival": 1, "departure": 3, "secret": 7}
    provider = ScriptedProvider([call("form__fill", {"values": values})], [call("form__state")], "ok")
    async with AgentController(provider, controllers=[form]) as agent:
        await (await agent.send("x")).result()
        assert [(error.path, error.message) for error in form.errors] == [
            ("secret", "this value cannot be shown")
        ]
        assert form.complete
        assert form.value == Stay(arrival=1, departure=3, secret=7)
        filled_in, state = results(provider)
        assert filled_in["accepted"] == ["arrival", "departure", "secret"]
        assert state["values"]["arrival"] == 1
        assert "ZeroDivision" not in str(provider.requests[-1].messages)
        shown: Any = agent.shared_state["form"]
        assert shown["values"]["departure"] == 3
        assert {one["path"]: one["error"] for one in shown["fields"]}[
            "secret"
        ] == "this value cannot be shown"


async def test_a_model_as_the_first_value_is_kept_with_its_secrets() -> None:
    """FM-2: the draft is JSON that the journal can hold, and gives an equal model again."""
    first = Booking(
        name="Ada", numberOfNights=2, arrival=date(2026, 5, 1), address=Address(street="Quay"), token=SecretStr("x7"), note="n"
    )  # fmt: skip
    journal = MemoryJournal()
    for value in (first, None):
        form = FormController(Booking, value=value)
        provider = ScriptedProvider([call("form__state")], "ok")
        async with AgentController(provider, controllers=[form], journal=journal, thread_id="t") as agent:
            await (await agent.send("x")).result()
            assert form.value == first
            assert "x7" not in str(provider.requests) + str(agent.shared_state)


async def test_a_nested_model_that_has_a_default() -> None:
    """FM-4, FM-6: nothing of it is missing; what is written is merged into it by field."""
    form = FormController(Stay)
    assert form.missing == ("arrival", "departure")
    assert form.edit("address.city", "Brest").accepted
    assert form.draft == {"address": {"street": "Quay", "city": "Brest"}}
    assert form.edit("address.street", None).accepted
    assert form.missing == ("arrival", "departure", "address.street")
