"""The kinds of fault behind the handed fixtures, bent into every dialect and put at every place (agent-loop §7.1).

What the fixtures show once is done here to all of them: each field of another type, an error at each place, signs of
life between the frames, other line ends.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
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
    encode([got.usage, got.end.error, got.notices])
    assert msgspec.json.decode(encode(message), type=Message) == message
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


@pytest.mark.parametrize("case", [case for case in wire_cases(*BY_NAME) if well_formed(case)], ids=lambda case: case.id)  # fmt: skip
def test_what_stands_beside_an_error_is_kept(case: WireCase) -> None:
    """PV-2 [050]: the error is put into each frame itself; the text of that frame was said before it."""
    frames = frames_of(case.body)
    for at, (event, data) in enumerate(frames):
        try:
            message = json.loads(data)
        except ValueError:
            continue
        error = ERRORS[case.dialect].get("error", {"code": "overloaded", "message": "Overloaded"})
        spoilt = json.dumps({**message, "error": error}).encode()
        before = decode(case.dialect, framed(frames[: at + 1]), end="held-open")
        if decode(case.dialect, framed(frames[:at]), end="held-open").get("error_kind") is None:
            continue  # it had ended before
        if before["terminal"] not in ("unknown", "error"):
            continue  # it ends in this frame
        got = decode(case.dialect, framed([*frames[:at], (event, spoilt), *frames[at + 1 :]]))
        assert (got["terminal"], got.get("error_kind")) == ("error", "overloaded"), at
        assert got["text"] == before["text"], at


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


# One call, one text: how each dialect says it


def said(dialect: str, *, text: list[str] | None = None, args: list[Any] | None = None, **more: Any) -> bytes:
    """A response with a text in pieces or a call with arguments in pieces; `name`, `call_id`, `reason`."""
    return framed([(b"", json.dumps(frame).encode()) for frame in _SAY[dialect](text, args, more)])


def _chat(text: list[str] | None, args: list[Any] | None, more: dict[str, Any]) -> list[Any]:
    deltas: list[Any] = [{"content": piece} for piece in text or []]
    for number, piece in enumerate(args or []):
        call: dict[str, Any] = {"index": 0, "function": {"arguments": piece}}
        if not number:
            call |= {"id": more.get("call_id", "c1")}
            call["function"]["name"] = more.get("name", "f")
        deltas.append({"tool_calls": [call]})
    frames: list[Any] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    reason = more.get("reason", "tool_calls" if args else "stop")
    return [*frames, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}]


def _anthropic(text: list[str] | None, args: list[Any] | None, more: dict[str, Any]) -> list[Any]:
    block: dict[str, Any] = {"type": "text", "text": ""}
    deltas: list[Any] = [{"type": "text_delta", "text": piece} for piece in text or []]
    if args is not None:
        block = {
            "type": "tool_use",
            "id": more.get("call_id", "c1"),
            "name": more.get("name", "f"),
            "input": {},
        }
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in args]
    reason = more.get("reason", "tool_use" if args else "end_turn")
    return [
        {"type": "message_start", "message": {"id": "m"}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *[{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas],
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason}},
        {"type": "message_stop"},
    ]


def _gemini(text: list[str] | None, args: list[Any] | None, more: dict[str, Any]) -> list[Any]:
    parts: list[Any] = [{"text": piece} for piece in text or []]
    if args is not None:
        whole = args[0] if len(args) == 1 else "".join(args)
        parts = [
            {"functionCall": {"name": more.get("name", "f"), "args": whole, "id": more.get("call_id", "c1")}}
        ]
    frames: list[Any] = [{"candidates": [{"content": {"parts": [part]}}]} for part in parts]
    return [*frames, {"candidates": [{"finishReason": more.get("reason", "STOP")}]}]


def _responses(text: list[str] | None, args: list[Any] | None, more: dict[str, Any]) -> list[Any]:
    item: dict[str, Any] = {"type": "message", "id": "i"}
    pieces = [{"type": "response.output_text.delta", "delta": piece} for piece in text or []]
    done: dict[str, Any] = {"content": [{"type": "output_text", "text": "".join(text or [])}]}
    if args is not None:
        item = {
            "type": "function_call",
            "id": "i",
            "call_id": more.get("call_id", "c1"),
            "name": more.get("name", "f"),
        }
        pieces = [{"type": "response.function_call_arguments.delta", "delta": piece} for piece in args]
        done = {"arguments": args[0] if len(args) == 1 else "".join(args)}
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        *[{**piece, "output_index": 0, "item_id": "i"} for piece in pieces],
        {"type": "response.output_item.done", "output_index": 0, "item": {**item, **done}},
        {"type": "response.completed", "response": {"id": "r", "output": [{**item, **done}]}},
    ]


_SAY = {"openai-chat": _chat, "anthropic": _anthropic, "gemini": _gemini, "openai-responses": _responses}
NESTED = '{"a":' + "[" * 200 + "]" * 200 + "}"
ARGUMENTS: list[tuple[list[Any], Any]] = [
    ([""], {}), ([" \n"], {}), (["null"], {}), (['"null"'], {}), (["{}"], {}), ([{}], {}), ([None], {}),
    ([{"a": 1}], {"a": 1}), (['{"a":', "1}"], {"a": 1}), (['{"a":1,"a":2}'], {"a": 2}),
    (['{"a":"\\ud83d"}'], {"a": "\ufffd"}), (['{"a":"\\u0000"}'], {"a": "\ufffd"}), (['{"ä":"😀"}'], {"ä": "😀"}),
    (['{"a":' + "9" * 30 + "}"], {"a": int("9" * 30)}), ([json.dumps({"a": "x" * 1_000_000})], {"a": "x" * 1_000_000}),
    (["[1]"], ...), (["5"], ...), (["true"], ...), (['"x"'], ...), (['{"a":NaN}'], ...), (['{"a":1e999}'], ...),
    (['{"a":1}x'], ...), (['{"a":1}{"b":2}'], ...), (['{"a":1'], ...), (["{'a':1}"], ...), ([NESTED], ...),
    (['{"a":"\n"}'], ...), (['{"a":1,}'], ...), ([[1]], ...), ([5], ...), ([True], ...), ([float("nan")], ...),
    ([{"a": float("nan")}], ...), ([json.loads(NESTED)], ...), (['{"a":' + "9" * 5000 + "}"], ...),
]  # fmt: skip


@every_dialect
@pytest.mark.parametrize(("args", "want"), ARGUMENTS, ids=lambda value: ascii(value)[:30])
def test_arguments_are_one_strict_object_or_none(dialect: Dialect, args: list[Any], want: Any) -> None:
    """PV-6 [010] [011] [016]: the same in every dialect; what is no object is marked, never emptied."""
    got = decode(dialect.name, said(dialect.name, args=args))
    (call,) = got["tool_calls"]
    assert got["terminal"] == "tool_calls"
    assert call.get("args", ...) == want
    assert call.get("args_error", False) is (want is ...)
    check(dialect, said(dialect.name, args=args), "eof")


@every_dialect
@pytest.mark.parametrize(
    ("pieces", "want"),
    [
        (["a\ud83d", "\ude00b"], "a😀b"), (["a\ud83d", "b"], "a\ufffdb"), (["\ude00", "x\ud83d"], "\ufffdx\ufffd"),
        (["\ud83d", "\ud83d\ude00", "\ude00"], "\ufffd😀\ufffd"), (["x\0", "y"], "x\ufffdy"), (["", "\u2028"], "\u2028"),
    ],
    ids=ascii,
)  # fmt: skip
def test_half_characters_wait_for_their_other_half(dialect: Dialect, pieces: list[str], want: str) -> None:
    """PV-4 [040] [100], over chunks, in every dialect."""
    body = said(dialect.name, text=pieces)
    assert decode(dialect.name, body)["text"] == want
    assert decode(dialect.name, one_byte_reads(body))["text"] == want


@every_dialect
@pytest.mark.parametrize("call_id", ["", None, 7, {"a": 1}, "ö", "x" * 200, " ", "a\0"], ids=ascii)
@pytest.mark.parametrize("name", ["größe_日本", "a.b/c", " ", "a\0b", "\ud83d", "n" * 300, "2x"], ids=ascii)
def test_ids_and_names_that_a_model_makes_up(dialect: Dialect, call_id: Any, name: str) -> None:
    """PV-5, PV-13: the call is told and refused by the loop; the next request is one that a strict server takes."""
    (call,) = (
        assemble(dialect.name, [said(dialect.name, args=["{}"], name=name, call_id=call_id)])
        .message()
        .tool_calls
    )
    assert call.call_id
    assert call.tool
    messages = [Message("u", "user", (Text("q"),)), Message("a", "assistant", (call,))]
    messages.append(Message("r", "tool", (Text("no such tool"),), call_id=call.call_id))
    provider = dialect.provider("m")  # the official address: names are bent for it
    wire = provider.to_wire(repair(messages, provider.wire_rules)[0])
    assert problems(dialect.name, wire) == []
    names = [item["name"] for item in _objects(wire) if "name" in item]
    assert names
    for sent in names:
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}|[A-Za-z0-9_-]{1,64}", sent), sent
    assert len(set(names)) == 1  # the result names its call


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict):
        yield value
    for item in items:
        yield from _objects(item)


@pytest.mark.parametrize(
    ("dialect", "reason", "want"),
    [
        ("openai-chat", "LENGTH", "length"), ("openai-chat", "MAX_TOKENS", "length"), ("openai-chat", "Stop", "complete"),
        ("openai-chat", "SAFETY", "content_filter"), ("openai-chat", "odd", "complete"), ("openai-chat", "error", "error"),
        ("anthropic", "MAX_TOKENS", "length"), ("anthropic", "length", "length"), ("anthropic", "odd", "complete"),
        ("gemini", "max_tokens", "length"), ("gemini", "safety", "content_filter"), ("gemini", "stop", "complete"),
        ("gemini", "malformed_function_call", "error"), ("gemini", "ODD", "complete"),
    ],
)  # fmt: skip
def test_reasons_in_other_spellings(dialect: str, reason: str, want: str) -> None:
    """PV-2, PV-14: proxies write them in their own way; a truncated answer must not pass for a finished one."""
    got = decode(dialect, said(dialect, text=["t"], reason=reason))
    assert (got["terminal"], got["raw_reason"], got["text"]) == (want, reason, "t")


@every_dialect
@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"Overloaded","code":503}}\n',
        b'{"response":"hel\n{"error":{"message":"Overloaded","code":503}}\n',
        b'[\n{"error":{"message":"Overloaded","code":503}},\n{"x":1}\n',
        b'{"done":false}\n{"error":{"message":"Overloaded","code":503}}\r\n{"done":true}\n',
        b'<html>\n{"error":{"message":"Overloaded","code":503}}\n',
    ],
)
def test_an_error_on_a_line_of_its_own_need_not_wait_for_the_end(dialect: Dialect, body: bytes) -> None:
    """PV-12 [078]: JSON lines where a stream was asked for, on a connection that stays open; any reads."""
    for chunks in ([body], one_byte_reads(body)):
        got = decode(dialect.name, chunks, end="held-open")
        assert (got["terminal"], got["error_kind"], got["error_message"]) == (
            "error",
            "overloaded",
            "Overloaded",
        )


def test_a_figure_that_no_response_can_have_is_none() -> None:
    """PV-8: what a store could not count does not get into the facts; zero is a figure."""
    for told, want in (
        (0, 0),
        (2**53, None),
        (10**40, None),
        (-1, None),
        (None, None),
        ("5", None),
        (1.0, 1),
    ):
        usage = {"choices": [], "usage": {"prompt_tokens": told, "completion_tokens": 1}}
        body = framed([(b"", json.dumps(usage).encode()), (b"", b"[DONE]")])
        assert decode("openai-chat", body)["usage"].get("input") == want, told


@every_dialect
@pytest.mark.parametrize("call", [False, True])
def test_the_dialects_own_sign_is_enough_on_a_socket_that_stays_open(dialect: Dialect, call: bool) -> None:
    """PV-2 [019]: nobody waits for the connection to close."""
    body = said(dialect.name, args=['{"a":1}']) if call else said(dialect.name, text=["t"])
    for chunks in ([body], one_byte_reads(body)):
        got = decode(dialect.name, chunks, end="held-open")
        assert got["terminal"] == ("tool_calls" if call else "complete")


@every_dialect
def test_a_connection_that_breaks_inside_a_call_runs_nothing(dialect: Dialect) -> None:
    """PV-2 [060]: wherever it breaks before the sign, the end is unknown and its cause is kept."""
    body = said(dialect.name, args=['{"path":', '"/a"', "}"])
    ended = 0
    for at in range(len(body)):
        got = decode(dialect.name, [body[:at]], end="reset")
        assert got["terminal"] in ("unknown", "tool_calls"), at
        if got["terminal"] == "unknown":
            assert got["cause"] == "reset"
        else:
            ended += 1
            assert got["tool_calls"][0]["args"] == {"path": "/a"}
    assert ended < len(body) / 2


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize(
    ("call_ids", "item_ids", "places"),
    [
        (["c", "c"], ["i1", "i2"], [0, 1]), (["c", "c"], ["i", "i"], [0, 1]), (["c", "c"], [None, None], [0, 1]),
        (["c1", "c2"], ["i", "i"], [0, 1]), (["c1", "c2"], ["i1", "i2"], [0, 0]), (["c1", "c2"], [None, None], [0, 1]),
        (["", ""], [None, None], [0, 1]), (["", ""], ["i1", "i2"], [3, 7]),
    ],
    ids=repr,
)  # fmt: skip
def test_two_calls_stay_two_in_responses(call_ids, item_ids, places, final: bool, done: bool) -> None:
    """PV-5 [005] [014] [080] [085] [086]: ids and places that are used twice or missing, with or without last words."""
    frames: list[Any] = []
    output = []
    for number, (call_id, item_id, place) in enumerate(zip(call_ids, item_ids, places, strict=True)):
        item = {
            "type": "function_call",
            "call_id": call_id,
            "name": "f",
            **({"id": item_id} if item_id else {}),
        }
        whole = {**item, "arguments": f'{{"n":{number}}}'}
        where = {"output_index": place, "item_id": item_id}
        frames.append({"type": "response.output_item.added", "item": {**item, "arguments": ""}, **where})
        frames.append(
            {"type": "response.function_call_arguments.delta", "delta": whole["arguments"], **where}
        )
        if done:
            frames.append({"type": "response.output_item.done", "item": whole, **where})
        output.append(whole)
    frames.append({"type": "response.completed", "response": {"id": "r", "output": output if final else []}})
    got = decode("openai-responses", framed([(b"", json.dumps(frame).encode()) for frame in frames]))
    assert [call["args"] for call in got["tool_calls"]] == [{"n": 0}, {"n": 1}]
    assert len({call["id"] for call in got["tool_calls"]}) == 2
