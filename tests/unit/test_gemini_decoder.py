"""Gemini bodies: the handed fixtures, and their kinds varied (PV-2 … PV-8, PV-12, PV-14)."""

from __future__ import annotations

import json
import random

import msgspec
import pytest

from pilothouse.core.assembly import Assembly
from pilothouse.core.canonical import encode
from pilothouse.core.pairing import repair
from pilothouse.messages import Message, Text
from pilothouse.providers.decode import assemble, decode
from pilothouse.providers.gemini import GeminiDecoder, from_wire, to_wire
from wirekit import WireCase, deliveries, problems, wire_cases

SEED = random.randrange(10**6)


def chunk(*parts: dict, reason: str | None = None, **more) -> dict:
    candidate: dict = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if reason:
        candidate["finishReason"] = reason
    return {"candidates": [candidate], "responseId": "r", "modelVersion": "gemini", **more}


def call(name: str, args=None, signature: str | None = None, **more) -> dict:
    part: dict = {"functionCall": {"name": name, **({} if args is None else {"args": args}), **more}}
    return {**part, "thoughtSignature": signature} if signature else part


def body(*chunks: dict) -> bytes:
    return "".join(f"data: {json.dumps(item)}\r\n\r\n" for item in chunks).encode()


def replayed(raw: bytes) -> list:
    """What goes back after the journal, repaired: the model's content and the made responses."""
    message = msgspec.json.decode(encode(assemble("gemini", [raw]).message()), type=Message)
    history, _ = repair([Message("u", "user", (Text("q"),)), message, Message("v", "user", (Text("go"),))])
    request = to_wire(history)
    assert problems("gemini", request) == []
    return request[1:]


@pytest.mark.parametrize("case", wire_cases("gemini"), ids=lambda case: case.id)
def test_handed_bodies_give_the_same_whatever_the_reads(case: WireCase) -> None:
    """Own chunks, one read, 1-byte reads and 50 random splits give what the fixture wants."""
    print(f"seed {SEED}")
    for how, chunks in deliveries(case, splits=50, seed=SEED):
        got = decode("gemini", chunks, **case.options)
        try:
            case.compare(got)
        except AssertionError as error:
            raise AssertionError(f"{how}: {got}") from error
    if "replay_signatures" in case.expect:
        contents = [content for content in replayed(case.body) if content["role"] == "model"]
        assert len(contents) == case.expect["replay_content_count"]
        parts = [part for content in contents for part in content["parts"]]
        signatures = [
            part.get("thoughtSignature")
            for part in parts
            if "functionCall" in part or "thoughtSignature" in part
        ]
        assert signatures == case.expect["replay_signatures"]


def test_a_cut_anywhere_is_never_a_success() -> None:
    """PV-2 [077]: without a finish reason every cut is unknown, also after whole calls."""
    whole = body(chunk({"text": "Hé🌊"}), chunk(call("f", {"x": 1})))
    for at in range(len(whole) + 1):
        assert decode("gemini", whole[:at])["terminal"] == "unknown"


@pytest.mark.parametrize(
    ("reason", "terminal", "kind"),
    [
        ("STOP", "complete", None), ("MAX_TOKENS", "length", None), ("SAFETY", "content_filter", None),
        ("RECITATION", "content_filter", None), ("PROHIBITED_CONTENT", "content_filter", None),
        ("OTHER", "complete", None), ("NEW_REASON", "complete", None),
        ("MALFORMED_FUNCTION_CALL", "error", "malformed_tool_call"),
        ("UNEXPECTED_TOOL_CALL", "error", "malformed_tool_call"),
    ],
)  # fmt: skip
def test_reasons_have_one_meaning_each(reason: str, terminal: str, kind: str | None) -> None:
    """The raw word is kept; the end is the same if the connection breaks after it."""
    for end in ("eof", "reset", "held-open"):
        got = decode("gemini", body(chunk({"text": "x"}), chunk(reason=reason)), end=end)
        assert (got["terminal"], got.get("error_kind"), got["raw_reason"]) == (terminal, kind, reason)


@pytest.mark.parametrize(
    "reason", ["MAX_TOKENS", "SAFETY", "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"]
)
def test_a_limit_filter_or_malformed_call_wins_over_calls(reason: str) -> None:
    """[071] [076]: whatever parts came, before or with the reason."""
    for chunks in ([chunk(call("f", {})), chunk(reason=reason)], [chunk(call("f", {}), reason=reason)]):
        assert decode("gemini", body(*chunks))["terminal"] not in ("tool_calls", "complete")


def test_a_blocked_prompt_is_the_filter() -> None:
    """[074]: no candidates at all; an unspecified reason means nothing."""
    got = decode("gemini", body({"promptFeedback": {"blockReason": "SAFETY", "safetyRatings": []}}))
    assert (got["terminal"], got["raw_reason"]) == ("content_filter", "SAFETY")
    got = decode(
        "gemini",
        body(
            {"promptFeedback": {"blockReason": "BLOCK_REASON_UNSPECIFIED"}},
            chunk({"text": "a"}, reason="STOP"),
        ),
    )
    assert got["terminal"] == "complete"


def test_each_part_is_a_call_of_its_own() -> None:
    """PV-5 [070] [072]: same names, no ids, ids repeated; made ids differ between the turns of a thread."""
    raw = body(
        chunk(call("f", {"x": 1}), call("f", {"x": 2})),
        chunk(call("g", None, id="i"), call("g", {}, id="i")),
        chunk(reason="STOP"),
    )
    got = decode("gemini", raw)
    assert [one["args"] for one in got["tool_calls"]] == [{"x": 1}, {"x": 2}, {}, {}]
    assert len({one["id"] for one in got["tool_calls"]}) == 4
    ids: set[str] = set()
    for turn in ("m1", "m2"):
        assembly = Assembly(turn, taken=ids)
        for event in GeminiDecoder().feed(raw):
            assembly.feed(event)
        made = {one.call_id for one in assembly.message().tool_calls}
        assert len(made) == 4
        assert not made & ids
        ids |= made


def test_signatures_stay_on_their_parts() -> None:
    """PV-7: on calls, on text, on a text part without text, on thoughts; none is invented, parts are not merged."""
    raw = body(
        chunk({"text": "hm ", "thought": True}),
        chunk({"text": "so", "thought": True, "thoughtSignature": "s0"}),
        chunk({"text": "Hel"}), chunk({"text": "lo"}),
        chunk({"text": "!", "thoughtSignature": "s1"}),
        chunk(call("f", {}, "s2"), call("g", {}), call("h", {}, None, id="given")),
        chunk({"text": "", "thoughtSignature": "s3"}, reason="STOP"),
    )  # fmt: skip
    got = decode("gemini", raw)
    assert (got["terminal"], got["reasoning"], got["text"]) == ("tool_calls", "hm so", "Hello!")
    model, responses, *_ = replayed(raw)
    assert model["parts"] == [
        {"text": "so", "thought": True, "thoughtSignature": "s0"},
        {"text": "Hello"},
        {"text": "!", "thoughtSignature": "s1"},
        {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "s2"},
        {"functionCall": {"name": "g", "args": {}}},
        {"functionCall": {"id": "given", "name": "h", "args": {}}},
        {"text": "", "thoughtSignature": "s3"},
    ]
    assert [part["functionResponse"]["name"] for part in responses["parts"]] == ["f", "g", "h"]
    assert responses["parts"][2]["functionResponse"]["id"] == "given"


def test_signatures_of_others_are_not_sent() -> None:
    """PV-7: only to the same provider."""
    message = assemble("gemini", [body(chunk(call("f", {}, "s"), reason="STOP"))]).message()
    assert "thoughtSignature" not in json.dumps(to_wire([message], "vertex"))


def test_calls_come_directly_after_the_user() -> None:
    """PV-13: neighbouring messages of the model are one content."""
    message = assemble("gemini", [body(chunk(call("f", {}), reason="STOP"))]).message()
    said = Message("s", "assistant", (Text("Looking."),))
    history, _ = repair([Message("u", "user", (Text("q"),)), said, message])
    assert problems("gemini", to_wire(history)) == []


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (body({"error": {"code": 503, "message": "m", "status": "UNAVAILABLE"}}), "overloaded"),
        (body(chunk({"text": "x"}), {"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}}), "rate_limit"),
        (b'[{"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT","details":[{"@type":"t","reason":"API_KEY_INVALID"}]}}]', "auth"),
        (b'[{"candidates":[]}]', "malformed"),
    ],
)  # fmt: skip
def test_errors_are_read_in_any_shape(raw: bytes, kind: str) -> None:
    """PV-9, PV-12 [078]."""
    got = decode("gemini", raw)
    assert (got["terminal"], got["error_kind"]) == ("error", kind)


def test_figures_are_running_totals() -> None:
    """PV-8: output is candidates and thoughts; a chunk that leaves one out erases nothing."""
    raw = body(
        chunk({"text": "a"}, usageMetadata={"promptTokenCount": 10, "cachedContentTokenCount": 4, "thoughtsTokenCount": 5, "totalTokenCount": 15}),
        chunk({"text": "b"}, usageMetadata={"promptTokenCount": 10, "candidatesTokenCount": 2, "totalTokenCount": 17}),
        chunk(reason="STOP"),
    )  # fmt: skip
    assert decode("gemini", raw)["usage"] == {"input": 10, "output": 7, "cached": 4, "reasoning": 5}
    cut = decode("gemini", raw[: raw.index(b'"b"')])
    assert cut["usage"]["output"] == 5


def test_odd_parts_and_fields_are_legal() -> None:
    """PV-14: null and missing content, unknown parts, other candidates."""
    raw = body(
        {"candidates": None},
        {"candidates": [{"index": 0}]},
        {"candidates": [{"content": {"parts": None}}]},
        {"candidates": [{"content": {"parts": [{}, {"executableCode": {"code": "1"}}, {"text": "ok"}]}}, {"index": 1, "content": {"parts": [{"text": "no"}]}}]},
        chunk(call("", {})),
        chunk(reason="STOP"),
    )  # fmt: skip
    got = decode("gemini", raw)
    assert got["text"] == "ok"
    assert (got["terminal"], got["error_kind"]) == ("error", "protocol")
    assert "other_candidate: 1" in got["notices"]


def test_stored_contents_are_read_whatever_they_hold() -> None:
    """from_wire: responses by id or by name and order, media, responses without a call."""
    stored = [
        {"role": "user", "parts": [{"inlineData": {"mimeType": "audio/wav", "data": "AAA="}}]},
        {"role": "model", "parts": [call("f", {"x": 1}, id="i1"), call("g", {}), call("g", {})]},
        {"role": "user", "parts": [
            {"functionResponse": {"name": "g", "response": {"output": "first"}}},
            {"functionResponse": {"name": "f", "id": "i1", "response": {"a": 1}}},
            {"functionResponse": {"name": "g", "response": {"error": "second"}}},
            {"functionResponse": {"name": "gone", "response": {}}},
        ]},
    ]  # fmt: skip
    assert problems("gemini", stored)
    messages, done = repair(from_wire(stored))
    request = to_wire(messages)
    assert problems("gemini", request) == []
    assert len(done.dropped) == 1
    assert [part["functionResponse"]["response"] for part in request[2]["parts"]] == [
        {"output": '{"a":1}'},
        {"output": "first"},
        {"error": "second"},
    ]
    assert request[0]["parts"][0] == stored[0]["parts"][0]
