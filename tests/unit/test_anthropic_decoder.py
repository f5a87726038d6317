"""Anthropic Messages bodies: the handed fixtures, and their kinds varied (PV-2 … PV-8, PV-12, PV-14)."""

from __future__ import annotations

import json
import random

import msgspec
import pytest

from pilothouse.core.canonical import encode
from pilothouse.messages import Message, Text
from pilothouse.providers.anthropic import AnthropicDecoder, from_wire, to_wire
from pilothouse.providers.decode import assemble, decode
from pilothouse.responses import StreamEnd, TextDelta
from wirekit import WireCase, deliveries, wire_cases

SEED = random.randrange(10**6)
USAGE = {
    "input_tokens": 40,
    "cache_creation_input_tokens": 5,
    "cache_read_input_tokens": 100,
    "output_tokens": 1,
}


def start(**usage) -> dict:
    return {
        "type": "message_start",
        "message": {"id": "msg_1", "model": "claude", "usage": {**USAGE, **usage}},
    }


def begin(index: int, kind: str, **fields) -> dict:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def piece(index: int, kind: str, value: str) -> dict:
    field = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(
        kind, "partial_json"
    )
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, field: value}}


def stop(index: int) -> dict:
    return {"type": "content_block_stop", "index": index}


def text(index: int, *texts: str) -> list[dict]:
    return [begin(index, "text", text=""), *[piece(index, "text_delta", part) for part in texts], stop(index)]


def tool(index: int, call_id: str, name: str, *parts: str) -> list[dict]:
    deltas = [piece(index, "input_json_delta", part) for part in parts]
    return [begin(index, "tool_use", id=call_id, name=name, input={}), *deltas, stop(index)]


def end(reason: str | None, **usage) -> list[dict]:
    return [
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage or None},
        {"type": "message_stop"},
    ]


def body(*events) -> bytes:
    flat = [item for event in events for item in (event if isinstance(event, list) else [event])]
    return "".join(f"event: {item['type']}\ndata: {json.dumps(item)}\n\n" for item in flat).encode()


def replayed(raw: bytes) -> list:
    """What goes back to the provider after a round trip through the journal."""
    message = msgspec.json.decode(encode(assemble("anthropic", [raw]).message()), type=Message)
    return to_wire([Message("u", "user", (Text("q"),)), message])[1:]


@pytest.mark.parametrize("case", wire_cases("anthropic"), ids=lambda case: case.id)
def test_handed_bodies_give_the_same_whatever_the_reads(case: WireCase) -> None:
    """Own chunks, one read, 1-byte reads and 50 random splits give what the fixture wants."""
    print(f"seed {SEED}")
    for how, chunks in deliveries(case, splits=50, seed=SEED):
        got = decode("anthropic", chunks, **case.options)
        try:
            case.compare(got)
        except AssertionError as error:
            raise AssertionError(f"{how}: {got}") from error
    if "replay_blocks" in case.expect:
        assert replayed(case.body)[0]["content"] == case.expect["replay_blocks"]


@pytest.mark.parametrize("case", wire_cases("anthropic"), ids=lambda case: case.id)
def test_event_names_and_pings_may_be_missing_or_added(case: WireCase) -> None:
    """The data says what it is: without `event:` lines, with pings and comments between, all is the same."""
    bare = b"\n".join(line for line in case.body.split(b"\n") if not line.startswith(b"event:"))
    case.compare(decode("anthropic", bare, **case.options))
    dressed = case.body.replace(b"\n\n", b'\n\n: hi\n\nevent: ping\ndata: {"type": "ping"}\n\n')
    case.compare(decode("anthropic", dressed, **case.options))


def test_a_cut_anywhere_is_never_a_success() -> None:
    """PV-2 [060]: without a stop reason or message_stop every cut is unknown."""
    whole = body(start(), text(0, "Hé🌊"), tool(1, "a", "f", '{"x":', "1}"))
    for at in range(len(whole) + 1):
        got = decode("anthropic", whole[:at])
        assert got["terminal"] == "unknown", (at, got)


@pytest.mark.parametrize(
    ("reason", "terminal"),
    [
        ("end_turn", "complete"), ("stop_sequence", "complete"), ("max_tokens", "length"), ("weird", "complete"),
        ("model_context_window_exceeded", "length"), ("pause_turn", "pause_turn"), ("refusal", "refusal"),
    ],
)  # fmt: skip
def test_reasons_have_one_meaning_each(reason: str, terminal: str) -> None:
    """[061] [062]: the raw word is kept; a strange one is a normal end with a notice (PV-14)."""
    got = decode("anthropic", body(start(), text(0, "x"), end(reason)))
    assert (got["terminal"], got["raw_reason"]) == (terminal, reason)


def test_the_end_needs_a_reason_or_message_stop_not_both() -> None:
    """PV-2: either sign is the dialect's own."""
    reason_only = body(start(), text(0, "x"), end("end_turn")[:1])
    for how in ("eof", "reset", "held-open"):
        assert decode("anthropic", reason_only, end=how)["terminal"] == "complete"
    stop_only = decode("anthropic", body(start(), text(0, "x"), {"type": "message_stop"}))
    assert (stop_only["terminal"], stop_only["notices"]) == ("complete", ["no_stop_reason"])


def test_calls_decide_over_a_normal_end_but_not_over_others() -> None:
    """LP-4: end_turn with a call is tool_calls; a limit, refusal or pause runs none."""
    call = tool(0, "a", "f", '{"x":1}')
    assert decode("anthropic", body(start(), call, end("end_turn")))["terminal"] == "tool_calls"
    assert decode("anthropic", body(start(), call, {"type": "message_stop"}))["terminal"] == "tool_calls"
    for reason, terminal in (("max_tokens", "length"), ("refusal", "refusal"), ("pause_turn", "pause_turn")):
        assert decode("anthropic", body(start(), call, end(reason)))["terminal"] == terminal


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "overloaded_error", "message": "m"}, "overloaded"),
        ({"type": "rate_limit_error", "message": "m"}, "rate_limit"),
        ({"type": "api_error", "message": "m"}, "server_error"),
        ({"type": "authentication_error", "message": "m"}, "auth"),
        (
            {"type": "invalid_request_error", "message": "prompt is too long: 5 tokens > 4 maximum"},
            "context_overflow",
        ),
    ],
)
def test_an_error_event_ends_it_by_its_type(error: dict, kind: str) -> None:
    """PV-9 [050] [051]: the text before it is kept, nothing after it counts."""
    failed = {"type": "error", "error": error}
    got = decode("anthropic", body(start(), text(0, "part"), failed, text(1, "more"), end("end_turn")))
    assert (got["terminal"], got["error_kind"], got["text"]) == ("error", kind, "part")
    bare = f"event: error\ndata: {json.dumps({'error': error})}\n\n".encode()
    assert decode("anthropic", bare)["error_kind"] == kind


def test_thinking_goes_back_byte_for_byte_in_its_place() -> None:
    """PV-7 [054]: signed, empty and redacted blocks, unknown fields, in order, after the journal."""
    raw = body(
        start(),
        begin(0, "thinking", thinking="", signature="", estimate={"a": [1, None]}),
        piece(0, "thinking_delta", "Look "), piece(0, "thinking_delta", "up."),
        piece(0, "signature_delta", "c2ln"), piece(0, "signature_delta", "bmF0dXJl"), stop(0),
        begin(1, "redacted_thinking", data="ZW5j"), stop(1),
        begin(2, "thinking", thinking="", signature=""), piece(2, "signature_delta", "b25seQ=="), stop(2),
        text(3, "Now."),
        tool(4, "toolu_1", "f", "{}"),
        end("tool_use"),
    )  # fmt: skip
    assert replayed(raw) == [
        {
            "role": "assistant",
            "content": [
                {
                    "type": "thinking",
                    "thinking": "Look up.",
                    "signature": "c2lnbmF0dXJl",
                    "estimate": {"a": [1, None]},
                },
                {"type": "redacted_thinking", "data": "ZW5j"},
                {"type": "thinking", "thinking": "", "signature": "b25seQ=="},
                {"type": "text", "text": "Now."},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
            ],
        }
    ]


def test_unsigned_and_unfinished_thoughts_are_shown_but_do_not_go_back() -> None:
    """PV-7 [102]: no signature is blank or invented."""
    unsigned = body(
        start(),
        begin(0, "thinking", thinking=""),
        piece(0, "thinking_delta", "hm"),
        stop(0),
        text(1, "x"),
        end("end_turn"),
    )
    assert decode("anthropic", unsigned)["reasoning"] == "hm"
    assert replayed(unsigned)[0]["content"] == [{"type": "text", "text": "x"}]
    cut = body(
        start(),
        begin(0, "thinking", thinking=""),
        piece(0, "thinking_delta", "hm"),
        piece(0, "signature_delta", "s"),
    )
    assert assemble("anthropic", [cut]).message().parts[0].raw is None


def test_foreign_reasoning_is_left_out() -> None:
    """PV-7: a block of another provider does not go to this one, nor ours to another."""
    message = assemble(
        "anthropic",
        [body(start(), begin(0, "redacted_thinking", data="x"), stop(0), text(1, "t"), end("end_turn"))],
    ).message()
    assert len(to_wire([Message("u", "user", (Text("q"),)), message], "other")[1]["content"]) == 1
    assert len(to_wire([Message("u", "user", (Text("q"),)), message])[1]["content"]) == 2


def test_a_pause_sends_back_what_it_got() -> None:
    """[062]: blocks that are the provider's own business go back as they were, also without any text."""
    query = begin(0, "server_tool_use", id="srv_1", name="web_search", input={})
    raw = body(
        start(),
        query,
        piece(0, "input_json_delta", '{"query":'),
        piece(0, "input_json_delta", '"x"}'),
        stop(0),
        end("pause_turn"),
    )
    got = decode("anthropic", raw)
    assert (got["terminal"], got["tool_calls"]) == ("pause_turn", [])
    assert replayed(raw)[0]["content"] == [
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}
    ]


def test_blocks_may_interleave_and_indexes_be_used_again() -> None:
    """PV-4: pieces go by index; a beginning on an open index ends the block before."""
    raw = body(
        start(),
        begin(0, "tool_use", id="a", name="f", input={}), begin(1, "tool_use", id="b", name="g", input={}),
        piece(1, "input_json_delta", '{"y":'), piece(0, "input_json_delta", '{"x":1}'), piece(1, "input_json_delta", "2}"),
        stop(1), stop(0),
        begin(0, "text", text="in"), piece(0, "text_delta", "itial"), begin(0, "text", text=""), piece(0, "text_delta", "!"),
        end("tool_use"),
    )  # fmt: skip
    got = decode("anthropic", raw)
    assert [(call["id"], call["args"]) for call in got["tool_calls"]] == [("a", {"x": 1}), ("b", {"y": 2})]
    assert got["text"] == "initial!"


def test_no_argument_piece_means_an_empty_object() -> None:
    """PV-6 [011] in this dialect; input that came whole at the beginning is taken."""
    raw = body(
        start(),
        tool(0, "a", "f"),
        tool(1, "b", "f", ""),
        [begin(2, "tool_use", id="c", name="f", input={"x": 1}), stop(2)],
        end("tool_use"),
    )
    assert [call["args"] for call in decode("anthropic", raw)["tool_calls"]] == [{}, {}, {"x": 1}]


def test_ids_missing_or_repeated_are_made_unique() -> None:
    """PV-5."""
    raw = body(start(), tool(0, "a", "f"), tool(1, "a", "f"), tool(2, "", "f"), end("tool_use"))
    ids = [call["id"] for call in decode("anthropic", raw)["tool_calls"]]
    assert ids[:2] == ["a", "a_2"]
    assert len({*ids}) == 3


def test_a_call_without_a_name_never_runs() -> None:
    """PV-5, LP-17 [057]."""
    got = decode("anthropic", body(start(), tool(0, "a", "", "{}"), end("tool_use")))
    assert (got["error_kind"], got["tool_calls"]) == ("protocol", [])


def test_deltas_without_beginnings_are_read() -> None:
    """Servers that leave block starts out lose no text."""
    raw = body(start(), piece(0, "text_delta", "a"), piece(1, "thinking_delta", "t"), end("end_turn"))
    got = decode("anthropic", raw)
    assert (got["text"], got["reasoning"]) == ("a", "t")


def test_figures_are_running_totals_with_cached_input_in_them() -> None:
    """PV-8: `message_delta` replaces; the whole prompt counts; null erases nothing."""
    assembly = assemble(
        "anthropic", [body(start(), text(0, "x"), end("end_turn", output_tokens=7, input_tokens=None))]
    )
    usage = assembly.usage
    assert usage is not None
    assert (usage.input, usage.cache_read, usage.cache_write, usage.output, usage.total) == (
        145,
        100,
        5,
        7,
        152,
    )
    assert decode("anthropic", body(start()))["usage"]["input"] == 40


def test_unknown_kinds_are_counted_and_ignored() -> None:
    """PV-14 [064]: events, deltas, missing fields, wrong types."""
    raw = body(
        start(),
        {"type": "future_event", "x": 1},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "future_delta"}},
        {"type": "content_block_delta", "index": 0, "delta": None},
        {"type": "content_block_start", "index": None, "content_block": None},
        {"type": "content_block_stop"},
        {"type": "message_delta"},
        text(3, "ok"),
        end("end_turn"),
    )
    got = decode("anthropic", raw)
    assert (got["terminal"], got["text"]) == ("complete", "ok")
    assert "unknown_event: future_event" in got["notices"]
    assert "unknown_delta: future_delta" in got["notices"]


def test_surrogate_halves_are_joined_over_deltas() -> None:
    """PV-4 in this dialect."""
    raw = body(start(), begin(0, "text", text="")) + (
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\ud83d"}}\n\n'
        b'data: {"type":"ping"}\n\n'
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\ude00"}}\n\n'
    )
    decoder = AnthropicDecoder()
    events = decoder.feed(raw + body(stop(0), end("end_turn")))
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["😀"]
    assert events[-1] == StreamEnd("complete", "end_turn")


def test_stored_conversations_are_read_whatever_they_hold() -> None:
    """from_wire: strings, images, documents, results with blocks, thinking of others."""
    png = {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}
    stored = [
        {"role": "user", "content": [{"type": "image", "source": png}, {"type": "document", "source": {"type": "url", "url": "https://x.invalid/a.pdf"}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": [{"type": "text", "text": "e"}, {"type": "image", "source": png}]}, {"type": "text", "text": "go"}]},
    ]  # fmt: skip
    messages = from_wire(stored)
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user"]
    assert messages[2].is_error
    again = to_wire(messages)
    assert again[0]["content"][0]["source"] == png
    assert again[2]["content"][0]["content"][1]["source"] == png
