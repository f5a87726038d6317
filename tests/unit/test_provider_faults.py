"""The kinds of fault behind the handed fixtures, bent into every dialect and put at every place (agent-loop §7.1).

What the fixtures show once is done here to all of them: each field of another type, an error at each place, signs of
life between the frames, other line ends.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from dialects import BY_NAME, DIALECTS, Dialect
from pilothouse.core.canonical import encode
from pilothouse.core.pairing import repair
from pilothouse.messages import Message, Text
from pilothouse.providers.decode import assemble, decode
from pilothouse.testing.fuzz import one_byte_reads
from wirekit import WireCase, problems, wire_cases

Frame = tuple[bytes, bytes]
every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)

ODD: list[Any] = [
    None, 0, -1, 1.5, True, "", "x", [], {}, [1], [None], [[]], ["x"], {"a": 1}, [{}], [{"a": None}], 10**40,
    "\ud83d", {"type": "x"}, [[{}]], {"text": 5}, float("nan"),
]  # fmt: skip
ERRORS: dict[str, dict[str, Any]] = {
    "openai-chat": {"error": {"message": "Overloaded", "type": "overloaded_error", "code": 503}},
    "openai-responses": {"type": "error", "code": "overloaded", "message": "Overloaded"},
    "anthropic": {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    "gemini": {"error": {"code": 503, "status": "UNAVAILABLE", "message": "Overloaded"}},
}
SIGNS_OF_LIFE = [
    b": keep-alive\n\n",
    b":\n\n",
    b"\n\n\n",
    b"data:\n\n",
    b"data: \n\n",
    b"event: ping\n\n",
    b'event: ping\ndata: {"type": "ping"}\n\n',
    b"id: 7\n\n",
    b"retry: 3000\n\n",
    b"data: {}\n\n",
    b"data: null\n\n",
]


def frames_of(body: bytes) -> list[Frame]:
    """Event name and data of each frame."""
    out = []
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = block.split(b"\n")
        event = [line[6:].strip() for line in lines if line.startswith(b"event:")]
        data = [line[5:].strip() for line in lines if line.startswith(b"data:")]
        if data:
            out.append(((event or [b""])[0], b"\n".join(data)))
    return out


def framed(frames: list[Frame]) -> bytes:
    return b"".join(
        (b"event: " + event + b"\n" if event else b"")
        + b"data: "
        + data.replace(b"\n", b"\ndata: ")
        + b"\n\n"
        for event, data in frames
    )


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value in a JSON value."""
    yield here
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*here, key))


def bent(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """The value with another one at a place; `...` takes it away."""
    if not place:
        return new
    value = copy.deepcopy(value)
    holder = value
    for key in place[:-1]:
        holder = holder[key]
    if new is ...:
        del holder[place[-1]]
    else:
        holder[place[-1]] = new
    return value


def check(dialect: Dialect, body: bytes, end: str) -> None:
    """One end, all of it storable, and what goes back is a valid request."""
    got = assemble(dialect.name, [body], end=end)
    assert got.end is not None
    assert (got.end.error is not None) == (got.end.reason == "error")
    message = got.message()
    encode([message, got.usage, got.end.error, got.notices])
    assert len({call.call_id for call in message.tool_calls}) == len(message.tool_calls)
    history = [Message("u", "user", (Text("q"),)), message, Message("v", "user", (Text("go"),))]
    assert problems(dialect.name, dialect.to_wire(repair(history, dialect.rules)[0])) == []


@every_dialect
def test_every_field_may_be_of_any_type(dialect: Dialect) -> None:
    """PV-1, PV-14: each value of each frame of each fixture, replaced by odd ones or missing."""
    for case in wire_cases(dialect.name):
        frames = frames_of(case.body)
        for at, (event, data) in enumerate(frames):
            if not data.startswith(b"{"):
                continue
            try:
                value = json.loads(data)
            except ValueError:
                continue
            for place in places(value):
                for new in [*ODD, *([...] if place else [])]:
                    odd = json.dumps(bent(value, place, new)).encode()
                    body = framed([*frames[:at], (event, odd), *frames[at + 1 :]])
                    try:
                        check(dialect, body, case.end)
                    except Exception as error:
                        raise AssertionError(f"{case.id}, frame {at}, {place} = {new!r}") from error


def well_formed(case: WireCase) -> bool:
    return case.think_tags == "off" and case.expect["terminal"] in ("complete", "tool_calls", "length")


@pytest.mark.parametrize("case", [case for case in wire_cases(*BY_NAME) if well_formed(case)], ids=lambda case: case.id)  # fmt: skip
def test_an_error_at_any_place_ends_the_response(case: WireCase) -> None:
    """PV-2 [050] [051]: with and without an event name, followed by the rest and `[DONE]`; what came before is kept."""
    whole = decode(case.dialect, case.body, **case.options)
    frames = frames_of(case.body)
    error = json.dumps(ERRORS[case.dialect]).encode()
    for at in range(len(frames)):
        for event in (b"", b"error"):
            body = framed([*frames[:at], (event, error), *frames[at:], (b"", b"[DONE]")])
            if decode(case.dialect, framed(frames[:at]), end="held-open").get("error_kind") is None:
                continue  # it had ended before
            got = decode(case.dialect, one_byte_reads(body), **case.options)
            assert (got["terminal"], got.get("error_kind")) == ("error", "overloaded"), (at, event)
            assert whole["text"].startswith(got["text"])
            assert got["error_message"] == "Overloaded"


@pytest.mark.parametrize("sign", SIGNS_OF_LIFE, ids=repr)
@pytest.mark.parametrize("case", [case for case in wire_cases(*BY_NAME) if case.id[:3] != "078"], ids=lambda case: case.id)  # fmt: skip
def test_signs_of_life_change_nothing(case: WireCase, sign: bytes) -> None:
    """PV-12 [025]: between all frames, in every dialect, with each kind of line end; notices aside."""
    whole = decode(case.dialect, case.body, **case.options)
    body = case.body.replace(b"\r\n", b"\n")
    many = sign + body.replace(b"\n\n", b"\n\n" + sign)
    for ends in (b"\n", b"\r\n", b"\r"):
        got = decode(case.dialect, many.replace(b"\n", ends), **case.options)
        got.pop("notices", None)
        assert got == {key: value for key, value in whole.items() if key != "notices"}, ends
