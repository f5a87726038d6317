"""Chat Completions bodies: the handed fixtures, and their kinds varied (PV-2 … PV-8, PV-12, PV-14)."""

from __future__ import annotations

import json
import random

import pytest

from pilothouse.core.assembly import Assembly
from pilothouse.providers.decode import decode
from pilothouse.providers.openai_chat import CompatProfile, OpenAIChatDecoder
from pilothouse.responses import BlockEnded, ReasoningDelta, StreamEnd, TextDelta, ToolCallDelta
from wirekit import WireCase, deliveries, wire_cases

SEED = random.randrange(10**6)


def chunk(delta=None, finish=None, **more) -> dict:
    return {
        "id": "c1",
        "model": "m",
        "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}],
        **more,
    }


def body(*chunks, done: bool = True) -> bytes:
    lines = [item if isinstance(item, str) else json.dumps(item) for item in chunks]
    return "".join(f"data: {line}\n\n" for line in [*lines, *(["[DONE]"] if done else [])]).encode()


def calls(*pieces, finish="tool_calls", **options) -> list:
    """The calls of a stream in which each item is one chunk's list of pieces."""
    got = decode(
        "openai-chat",
        body(*[chunk({"tool_calls": piece}) for piece in pieces], chunk(finish=finish)),
        **options,
    )
    assert got["terminal"] == "tool_calls", got
    return [(call["id"], call["name"], call.get("args", "ERROR")) for call in got["tool_calls"]]


def piece(index=None, wire_id=None, name=None, args=None) -> dict:
    out: dict = {}
    if index is not None:
        out["index"] = index
    if wire_id is not None:
        out["id"] = wire_id
    function = {key: value for key, value in (("name", name), ("arguments", args)) if value is not None}
    return {**out, "function": function} if function else out


@pytest.mark.parametrize("case", wire_cases("openai-chat"), ids=lambda case: case.id)
def test_handed_bodies_give_the_same_whatever_the_reads(case: WireCase) -> None:
    """Own chunks, one read, 1-byte reads and 50 random splits give what the fixture wants."""
    print(f"seed {SEED}")
    for how, chunks in deliveries(case, splits=50, seed=SEED):
        got = decode("openai-chat", chunks, **case.options)
        try:
            case.compare(got)
        except AssertionError as error:
            raise AssertionError(f"{how}: {got}") from error


@pytest.mark.parametrize("case", wire_cases("openai-chat"), ids=lambda case: case.id)
def test_proxies_may_add_crlf_and_keep_alives(case: WireCase) -> None:
    """CRLF, comments between the events and a BOM change nothing."""
    dressed = (
        case.body.replace(b"\r\n", b"\n").replace(b"\n\n", b"\n\n: keep-alive\n\n").replace(b"\n", b"\r\n")
    )
    case.compare(decode("openai-chat", b"\xef\xbb\xbf" + dressed, **case.options))


def test_a_cut_anywhere_is_never_a_success() -> None:
    """PV-2: without a reason or [DONE] no cut ends complete, tool_calls or length; none raises."""
    whole = body(
        chunk({"content": "Hé🌊"}), chunk({"tool_calls": [piece(0, "a", "f", '{"x":')]}), chunk({"tool_calls": [piece(0, args="1}")]}),
        done=False,
    )  # fmt: skip
    for at in range(len(whole) + 1):
        for end in ("eof", "reset"):
            got = decode("openai-chat", whole[:at], end=end)
            assert (got["terminal"], got["cause"]) == ("unknown", end), at
            assert "Hé🌊".startswith(got["text"])


# Routing of the pieces of calls


@pytest.mark.parametrize(
    ("pieces", "want"),
    [
        pytest.param(
            [[piece(3, "a", "f", "{}")], [piece(7, "b", "g", "{}")]],
            [("a", "f", {}), ("b", "g", {})],
            id="sparse indexes make no phantom",
        ),
        pytest.param(
            [[piece(1, "b", "g", '{"y"')], [piece(0, "a", "f", '{"x":1}')], [piece(1, args=":2}")]],
            [("b", "g", {"y": 2}), ("a", "f", {"x": 1})],
            id="order is by first appearance",
        ),
        pytest.param(
            [[piece(0, "a", None, '{"x":')], [piece(0, "", "f", "1}")]],
            [("a", "f", {"x": 1})],
            id="arguments before the name",
        ),
        pytest.param(
            [[piece(None, "a", None, '{"x":1}')], [piece(None, "a", "f")]],
            [("a", "f", {"x": 1})],
            id="id, arguments, then name, no index",
        ),
        pytest.param(
            [[piece(0, None, "f", '{"x":1}')], [piece(1, None, "g", '{"y":2}')]],
            [("call_1", "f", {"x": 1}), ("call_2", "g", {"y": 2})],
            id="no ids",
        ),
        pytest.param(
            [[piece(name="f", args='{"x":1}')], [piece(name="g", args='{"y":2}')]],
            [("call_1", "f", {"x": 1}), ("call_2", "g", {"y": 2})],
            id="neither ids nor indexes",
        ),
        pytest.param(
            [[piece(name="f", args='{"x":1}'), piece(name="f", args='{"x":2}')]],
            [("call_1", "f", {"x": 1}), ("call_2", "f", {"x": 2})],
            id="neither, equal names, one chunk",
        ),
        pytest.param(
            [[piece(0, name="f", args='{"x":1}'), piece(0, name="g", args='{"x":2}')]],
            [("call_1", "f", {"x": 1}), ("call_2", "g", {"x": 2})],
            id="all on index 0, no ids",
        ),
        pytest.param(
            [[piece(0, "a", "f", "")], [piece(0, "", "", '{"x":')], [piece(0, "", "", "1}")]],
            [("a", "f", {"x": 1})],
            id="empty ids and names overwrite nothing",
        ),
        pytest.param(
            [[piece(0, None, "f", "")], [piece(0, "late", None, '{"x":1}')]],
            [("late", "f", {"x": 1})],
            id="the id comes late",
        ),
        pytest.param(
            [[piece(0, "a", "f", '{"x":1}')], [piece(0, "b", "f", "")], [piece(0, None, None, '{"x":2}')]],
            [("a", "f", {"x": 1}), ("b", "f", {"x": 2})],
            id="a new id on a used index, its tail on the same",
        ),
        pytest.param(
            [
                [piece(0, "a", "f", '{"x":')],
                [piece(0, "b", "f", '{"x":')],
                [piece(0, "a", None, "1}")],
                [piece(0, "b", None, "2}")],
            ],
            [("a", "f", {"x": 1}), ("b", "f", {"x": 2})],
            id="two calls share an index, pieces go by id",
        ),
        pytest.param(
            [[piece(0, "a", "f", '{"x":1}')], [piece(0, "a", "g", '{"y":2}')]],
            [("a", "f", {"x": 1}), ("a_2", "g", {"y": 2})],
            id="id and index used again under another name",
        ),
        pytest.param(
            [[piece(0, "d", "f", '{"x":')], [piece(1, "d", "f", '{"x":')], [piece(1, "d", None, "2}")], [piece(0, "d", None, "1}")]],
            [("d", "f", {"x": 1}), ("d_2", "f", {"x": 2})],
            id="one id on two indexes, interleaved",
        ),
        pytest.param(
            [[piece(0, "a", "final_answer", '{"n":')], [piece(0, None, "final_answer", "7}")], [piece(0, "a", "final_answer", "")]],
            [("a", "final_answer", {"n": 7})],
            id="equal names again",
        ),
        pytest.param(
            [[piece(0, "a", "get_")], [piece(0, None, "ti")], [piece(0, None, "de", "{}")]],
            [("a", "get_tide", {})],
            id="a name in three pieces",
        ),
        pytest.param(
            [[piece(0, "a", "f", {"x": {"y": [1]}})], [piece(1, "b", "g", None)]],
            [("a", "f", {"x": {"y": [1]}}), ("b", "g", {})],
            id="object and missing arguments",
        ),
        pytest.param([[piece(0, "a", "f", "null")]], [("a", "f", {})], id="the text null"),
        pytest.param([[piece(0, 17, "f", "{}")]], [("17", "f", {})], id="a number as id"),
        pytest.param([[{"index": None, "id": None, "function": {"name": "f", "arguments": "{}"}}]], [("call_1", "f", {})], id="nulls"),
        pytest.param([[piece(0, "a", "f", "[1]")]], [("a", "f", "ERROR")], id="an array"),
    ],
)  # fmt: skip
def test_pieces_find_their_call(pieces, want) -> None:
    """PV-4, PV-5, PV-6 and the routing table of Chat Completions, one way of bending it a row."""
    assert calls(*pieces) == want


def test_a_call_without_a_name_never_runs() -> None:
    """PV-5: beside a good one it is only noted; alone, the response contradicts itself."""
    assert calls([piece(0, "a", "f", "{}")], [piece(1, "b", None, '{"y":1}')]) == [("a", "f", {})]
    alone = decode(
        "openai-chat", body(chunk({"tool_calls": [piece(1, "b", None, "{}")]}), chunk(finish="stop"))
    )
    assert (alone["terminal"], alone["error_kind"], alone["tool_calls"]) == ("error", "protocol", [])


def test_tool_calls_that_never_came_are_a_contradiction() -> None:
    """LP-17 [057] in this dialect."""
    got = decode("openai-chat", body(chunk({"content": "x"}), chunk(finish="tool_calls")))
    assert (got["terminal"], got["error_kind"]) == ("error", "protocol")


def test_the_old_function_call_field_is_a_call() -> None:
    """Servers from before `tool_calls` stream one call in `function_call`."""
    got = decode(
        "openai-chat",
        body(
            chunk({"function_call": {"name": "f", "arguments": ""}}),
            chunk({"function_call": {"arguments": '{"x":1}'}}),
            chunk(finish="function_call"),
        ),
    )
    assert got["tool_calls"] == [{"id": "call_1", "name": "f", "args": {"x": 1}}]


def test_a_message_instead_of_a_delta_is_read() -> None:
    """Some servers put the whole message in the last chunk's `message`."""
    got = decode(
        "openai-chat",
        body({"choices": [{"index": 0, "message": {"content": "all"}, "finish_reason": "stop"}]}),
    )
    assert (got["terminal"], got["text"]) == ("complete", "all")


# Ends


@pytest.mark.parametrize(
    ("reason", "terminal"),
    [
        ("stop", "complete"), ("STOP", "complete"), ("eos", "complete"), ("weird", "complete"),
        ("length", "length"), ("max_tokens", "length"), ("model_length", "length"),
        ("content_filter", "content_filter"), ("sensitive", "content_filter"),
        ("error", "error"), ("insufficient_system_resource", "error"), ("abort", "error"),
    ],
)  # fmt: skip
def test_reasons_have_one_meaning_each(reason: str, terminal: str) -> None:
    """The raw word is kept; a strange one is a normal end with a notice (PV-14)."""
    got = decode("openai-chat", body(chunk({"content": "x"}), chunk(finish=reason)))
    assert (got["terminal"], got["raw_reason"], got["text"]) == (terminal, reason, "x")
    assert any("unknown_reason" in notice for notice in got.get("notices", [])) == (reason == "weird")


@pytest.mark.parametrize("reason", ["length", "content_filter", "error"])
def test_a_limit_filter_or_error_wins_over_calls(reason: str) -> None:
    """LP-4: whatever the order of the chunks, and also if a normal reason follows."""
    call = chunk({"tool_calls": [piece(0, "a", "f", "{}")]})
    for chunks in (
        [call, chunk(finish=reason)],
        [chunk(finish=reason), call],
        [call, chunk(finish=reason), chunk(finish="stop")],
    ):
        got = decode("openai-chat", body(*chunks))
        assert got["terminal"] == reason
        assert got["tool_calls"] == [{"id": "a", "name": "f", "args": {}}]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"error": {"message": "m", "type": "server_error", "code": None}}, "server_error"),
        ({"error": {"message": "m", "code": "rate_limit_exceeded"}}, "rate_limit"),
        ({"error": {"message": "Overloaded", "code": 503}}, "overloaded"),
        ({"error": "the model is overloaded"}, "overloaded"),
        ({"error": {"message": "m", "metadata": {"raw": '{"type":"error","error":{"type":"overloaded_error"}}'}}}, "overloaded"),
        ({"choices": [{"index": 0, "delta": {}, "finish_reason": "error", "error": {"code": 429, "message": "m"}}]}, "rate_limit"),
        ({"error": {"message": "m", "type": "insufficient_quota"}, "choices": [{"index": 0, "delta": {"content": "x"}}]}, "quota"),
        ({"object": "error", "message": "maximum context length is 8192 tokens", "code": 400}, "context_overflow"),
        ({"message": "Internal error", "code": 500}, "server_error"),
        ({"detail": "something broke"}, "server_error"),
    ],
)  # fmt: skip
def test_an_error_in_the_stream_ends_it_wherever_it_stands(error: dict, kind: str) -> None:
    """PV-9 inside a 200: by its own type, code or status; the text before and beside it is kept, none after it."""
    for before in ([], [chunk({"content": "part"})]):
        got = decode("openai-chat", body(*before, error, chunk({"content": "more"}), chunk(finish="stop")))
        assert (got["terminal"], got["error_kind"]) == ("error", kind)
        beside = "x" if "content" in str(error) else ""
        assert got["text"] == ("part" if before else "") + beside


@pytest.mark.parametrize("tail", ['event: error\ndata: {"message":"m","code":"overloaded"}\n\n', 'error: {"code":503,"message":"m"}\n\n', "event: error\ndata: overloaded, sorry\n\n"])  # fmt: skip
def test_an_error_event_needs_no_error_object(tail: str) -> None:
    """The event's name says it; also in the field `error`, and as plain text."""
    got = decode(
        "openai-chat", body(chunk({"content": "a"}), done=False) + tail.encode() + b"data: [DONE]\n\n"
    )
    assert (got["terminal"], got["error_kind"], got["text"]) == ("error", "overloaded", "a")


def test_error_null_means_nothing() -> None:
    """README of the fixtures, *What wins*."""
    got = decode("openai-chat", body(chunk({"content": "a"}, error=None), chunk(finish="stop", error=None)))
    assert got["terminal"] == "complete"


def test_the_end_after_a_reason_needs_neither_done_nor_a_clean_close() -> None:
    """PV-2: once the reason was seen, EOF, reset and a held socket are the same normal end."""
    for end in ("eof", "reset", "held-open"):
        got = decode("openai-chat", body(chunk({"content": "a"}), chunk(finish="stop"), done=False), end=end)
        assert got["terminal"] == "complete"


def test_a_silent_open_stream_is_stalled() -> None:
    """The fixtures' word for what the loop's idle limit will say."""
    got = decode("openai-chat", body(chunk({"content": "a"}), done=False), end="held-open")
    assert (got["terminal"], got["error_kind"]) == ("error", "stalled")


def test_done_settles_at_once() -> None:
    """[019]: the end is told with [DONE]; nothing later counts."""
    decoder = OpenAIChatDecoder()
    events = decoder.feed(body(chunk({"content": "a"}), chunk(finish="stop")))
    assert events[-1] == StreamEnd("complete", "stop")
    assert decoder.ended
    assert decoder.feed(body(chunk({"content": "b"}))) == []
    assert decoder.finish("reset") == []


def test_refusals_are_an_end_of_their_own() -> None:
    """The refusal's text is the answer that a reader sees."""
    got = decode("openai-chat", body(chunk({"refusal": "I can't"}), chunk(finish="stop")))
    assert (got["terminal"], got["text"]) == ("refusal", "I can't")


# Bodies that are no stream


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b'{"error":{"message":"m","type":"overloaded_error"}}', "overloaded"),
        (b'\n [ {"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"m"}} ]', "rate_limit"),
        (b"<html><body>Bad gateway</body></html>", "malformed"),
        (b'{"object":"chat.completion","choices":[]}', "malformed"),
        (b"upstream connect error or disconnect", "malformed"),
        (b"data: not json\n\n", "malformed"),
        (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: <html>\n\n', "malformed"),
    ],
)
def test_a_200_that_is_no_stream_is_an_error(raw: bytes, kind: str) -> None:
    """PV-12 [078]: an error in any JSON shape by its class, else malformed with the beginning kept."""
    for chunks in ([raw], [raw[at : at + 1] for at in range(len(raw))]):
        got = decode("openai-chat", chunks)
        assert (got["terminal"], got["error_kind"]) == ("error", kind)


@pytest.mark.parametrize(
    "raw", [b"", b"\n\n", b": OPENROUTER PROCESSING\n\n", b"\xef\xbb", b"event: x\n", b"da", b"data"]
)
def test_a_body_without_anything_is_unknown(raw: bytes) -> None:
    """PV-2: a silent end is not an error and not a success."""
    assert decode("openai-chat", raw)["terminal"] == "unknown"


# Text


def test_missing_blank_lines_lose_nothing() -> None:
    """Data lines that run together are glued JSON [033]."""
    raw = body(chunk({"content": "a"}), chunk({"content": "b"}), chunk(finish="stop")).replace(b"\n\n", b"\n")
    got = decode("openai-chat", raw)
    assert (got["terminal"], got["text"]) == ("complete", "ab")


def test_surrogate_halves_are_joined_over_deltas_and_lone_ones_replaced() -> None:
    """PV-4: every told piece is well-formed; a half that stays alone is U+FFFD, NUL too; over other chunks between."""
    raw = body(
        '{"choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}',
        '{"choices":[{"index":0,"delta":{"content":""}}]}',
        '{"choices":[{"index":0,"delta":{"content":"\\ude00b\\u0000"}}]}',
        '{"choices":[{"index":0,"delta":{"content":"\\ude00 \\ud83d"}}]}',
        chunk(finish="stop"),
    )
    decoder = OpenAIChatDecoder()
    events = decoder.feed(raw)
    texts = [event.text for event in events if isinstance(event, TextDelta)]
    for text in texts:
        text.encode()
    assert "".join(texts) == "a😀b\ufffd\ufffd \ufffd"
    assert isinstance(events[-1], StreamEnd)


def test_surrogate_halves_are_joined_in_reasoning_and_arguments() -> None:
    """PV-4 for the other kinds of text."""
    raw = body(
        '{"choices":[{"index":0,"delta":{"reasoning":"\\ud83d"}}]}',
        '{"choices":[{"index":0,"delta":{"reasoning":"\\ude00"}}]}',
        '{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\\"s\\":\\"\\ud83d"}}]}}]}',
        '{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\\ude00\\"}"}}]}}]}',
        chunk(finish="tool_calls"),
    )
    got = decode("openai-chat", raw)
    assert got["reasoning"] == "😀"
    assert got["tool_calls"] == [{"id": "a", "name": "f", "args": {"s": "😀"}}]


@pytest.mark.parametrize("between", [{"reasoning": "t"}, {"tool_calls": [piece(0, "a", "f", "{}")]}], ids=str)
def test_surrogate_halves_meet_over_other_blocks(between: dict) -> None:
    """PV-4 [100]: whatever a server says between the halves; where the other one does not come, U+FFFD stands in its block."""
    half = '{"choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}'
    other = '{"choices":[{"index":0,"delta":{"content":"\\ude00b"}}]}'
    assert decode("openai-chat", body(half, chunk(between), other, chunk(finish="stop")))["text"] == "a😀b"
    assert (
        decode("openai-chat", body(half, chunk(between), chunk({"content": "b"}, "stop")))["text"]
        == "a\ufffdb"
    )
    assert decode("openai-chat", body(half, chunk(between), chunk(finish="stop")))["text"] == "a\ufffd"
    for raw in (body(half, chunk(between), other, done=False), body(half, chunk(between), done=False)):
        blocks = Assembly("m")
        decoder = OpenAIChatDecoder()
        for event in [*decoder.feed(raw), *decoder.finish("eof")]:
            blocks.feed(event)


def test_broken_utf8_is_replaced_and_does_not_end_the_response() -> None:
    """UTF-8 whatever the header says."""
    raw = b'data: {"choices":[{"index":0,"delta":{"content":"a\xffb"}}]}\n\n' + body(chunk(finish="stop"))
    assert decode("openai-chat", raw)["text"] == "a\ufffdb"


def test_fields_of_another_type_are_dropped_not_fatal() -> None:
    """Null, missing and bent fields are legal [026]."""
    raw = body(
        {"choices": [{"index": "0", "delta": "x"}], "usage": "none"},
        {"choices": {"index": 0}},
        {"choices": None},
        {"choices": [None, {"delta": {"content": 5, "tool_calls": "no"}}]},
        "null",
        "7",
        chunk({"content": "ok"}),
        chunk(finish="stop"),
    )
    got = decode("openai-chat", raw)
    assert (got["terminal"], got["text"]) == ("complete", "ok")


def test_content_parts_are_text_and_thoughts() -> None:
    """Mistral's reasoning models stream lists."""
    raw = body(
        chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}),
        chunk({"content": [{"type": "text", "text": "yes"}, {"type": "reference", "reference_ids": [1]}]}),
        chunk(finish="stop"),
    )
    got = decode("openai-chat", raw)
    assert (got["reasoning"], got["text"], got["notices"]) == ("hm", "yes", ["unknown_part: reference"])


def test_another_choice_is_not_mixed_in() -> None:
    """One choice is read; others are noted."""
    raw = body(
        chunk({"content": "a"}), {"choices": [{"index": 1, "delta": {"content": "b"}}]}, chunk(finish="stop")
    )
    got = decode("openai-chat", raw)
    assert (got["text"], got["notices"]) == ("a", ["other_choice: 1"])


def test_a_single_choice_of_another_number_is_the_answer() -> None:
    """It need not be number 0."""
    raw = body({"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"}]})
    assert decode("openai-chat", raw)["text"] == "b"


# Reasoning


def test_reasoning_and_text_are_blocks_of_their_own() -> None:
    """PV-7: each stretch is one block, in the order in which a reader meets them."""
    decoder = OpenAIChatDecoder()
    raw = body(
        chunk({"reasoning": "a"}),
        chunk({"reasoning": "b", "content": "c"}),
        chunk({"reasoning_content": "d"}),
    )
    assert [event for event in decoder.feed(raw) if isinstance(event, ReasoningDelta | TextDelta | BlockEnded)] == [
        ReasoningDelta(0, "a"), ReasoningDelta(0, "b"), BlockEnded(0), TextDelta(1, "c"), BlockEnded(1), ReasoningDelta(2, "d"), BlockEnded(2),
    ]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("mode", "text", "reasoning", "answer"),
    [
        ("explicit", "<think>a</think>b", "a", "b"),
        ("explicit", "x < y <think>a < b</think> <thin", "a < b", "x < y  <thin"),
        ("explicit", "<think>never closed", "never closed", ""),
        ("explicit", "no tags </think> here", "", "no tags </think> here"),
        ("implicit", "a</think>b", "a", "b"),
        ("implicit", "a</think>b<think>c</think>d", "ac", "bd"),
        ("off", "<think>a</think>b", "", "<think>a</think>b"),
    ],
)
def test_think_tags_over_any_chunking(mode: str, text: str, reasoning: str, answer: str, size: int) -> None:
    """[028] [029]: tags never leak, a lone < is flushed, tags are parsed only if asked for."""
    parts = [chunk({"content": text[at : at + size]}) for at in range(0, len(text), size)]
    got = decode("openai-chat", body(*parts, chunk(finish="stop")), think_tags=mode)
    assert (got["reasoning"], got["text"]) == (reasoning, answer)


def test_a_reasoning_field_turns_the_tags_off() -> None:
    """A tag that a model quotes does not end its thought."""
    got = decode(
        "openai-chat",
        body(
            chunk({"reasoning_content": "r"}),
            chunk({"content": "say <think>x</think>"}),
            chunk(finish="stop"),
        ),
        think_tags="explicit",
    )
    assert (got["reasoning"], got["text"]) == ("r", "say <think>x</think>")


# Usage


@pytest.mark.parametrize(
    "where",
    [
        lambda usage: [chunk({"content": "a"}, usage=usage), chunk(finish="stop", usage=None)],
        lambda usage: [{"choices": [], "usage": usage}, chunk({"content": "a"}), chunk(finish="stop")],
        lambda usage: [chunk({"content": "a"}), {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": usage}]}],
        lambda usage: [chunk({"content": "a"}), chunk(finish="stop"), {"choices": [], "x_groq": {"usage": usage}}],
        lambda usage: [chunk({"content": "a"}), chunk(finish="stop"), {"usage": usage}],
    ],
)  # fmt: skip
def test_figures_are_read_on_any_chunk(where) -> None:
    """PV-8 [020]: with or without choices, before or after the reason."""
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_cache_hit_tokens": 4}
    assert decode("openai-chat", body(*where(usage)))["usage"] == {"input": 5, "output": 2, "cached": 4}


@pytest.mark.parametrize(
    ("usage", "wanted"),
    [
        ({"cost": 0.00014}, "0.00014"),  # OpenRouter
        ({"cost": "1e-5"}, "0.00001"),
        ({"cost": 0.01, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.2}}, "0.21"),
        ({"cost": 0.01, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.01}}, "0.01"),
        ({"cost": {"input_tokens_cost": 0.1, "total_cost": 0.3}}, "0.3"),  # Perplexity
        ({"cost": -1}, None),
        ({"cost": "free"}, None),
        ({"cost": None}, None),
        ({}, None),
    ],
    ids=repr,
)
def test_a_told_cost_is_a_decimal_string(usage: dict, wanted: str | None) -> None:
    """PV-8: money where the provider tells it, no float; kept when later figures have none."""
    later = chunk(usage={"prompt_tokens": 1, "completion_tokens": 1})
    decoder = OpenAIChatDecoder()
    assembly = Assembly("m")
    for event in decoder.feed(body(chunk({"content": "a"}, "stop", usage=usage), later)):
        assembly.feed(event)
    assert assembly.usage is not None
    assert assembly.usage.cost == wanted


def test_early_figures_survive_a_cut() -> None:
    """PV-8."""
    got = decode(
        "openai-chat", body(chunk({"content": "a"}, usage={"prompt_tokens": 5}), done=False), end="reset"
    )
    assert got["usage"] == {"input": 5}


def test_call_deltas_are_deterministic_in_ids_and_blocks() -> None:
    """The decoder's own ids are unique in the response; the assembly makes them unique in the thread."""
    raw = body(
        chunk({"content": "x"}),
        chunk({"tool_calls": [piece(0, None, "f", "{}"), piece(1, "call_1", "g", "{}")]}),
    )
    events = [
        event for event in OpenAIChatDecoder(CompatProfile()).feed(raw) if isinstance(event, ToolCallDelta)
    ]
    assert events == [
        ToolCallDelta(1, "call_1", "f", "{}", None),
        ToolCallDelta(2, "call_1_2", "g", "{}", "call_1"),
    ]


def test_a_frame_that_never_ends_is_malformed() -> None:
    """The buffer is bounded; what was said before is kept."""
    from pilothouse.core.sse import SSEReader

    decoder = OpenAIChatDecoder()
    decoder._reader = SSEReader(max_frame_bytes=1000)
    events = decoder.feed(body(chunk({"content": "a"}), done=False))
    for _ in range(20):
        events += decoder.feed(b"data: " + b"x" * 100)
    assert [type(event) for event in events].count(StreamEnd) == 1
    assert events[-1].error.kind == "malformed"


def test_a_list_in_one_frame_is_read_item_by_item() -> None:
    """Gateways that batch chunks."""
    raw = body(
        json.dumps(
            [
                chunk({"content": "a"}),
                chunk({"content": "b"}),
                chunk(finish="stop"),
                {"error": {"message": "late"}},
            ]
        )
    )
    got = decode("openai-chat", raw)
    assert (got["text"], got["terminal"]) == ("ab", "error")
