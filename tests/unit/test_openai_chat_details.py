"""OpenRouter's reasoning objects: kept raw, back to the same kind of server only (PV-7)."""

from __future__ import annotations

import json

import msgspec
import pytest

from pilothouse.core.assembly import Assembly
from pilothouse.core.canonical import encode
from pilothouse.messages import Message, Reasoning
from pilothouse.providers.openai_chat import CompatProfile, OpenAIChatDecoder, from_wire, to_wire
from pilothouse.providers.openai_chat.profile import OPENROUTER

TEXT = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
SUMMARY = {"type": "reasoning.summary", "format": "openai-responses-v1", "index": 0}
SEALED = {
    "type": "reasoning.encrypted",
    "data": "gAAA",
    "id": "rs_1",
    "format": "openai-responses-v1",
    "index": 1,
}


def answer(*deltas: dict, profile: CompatProfile = OPENROUTER, finish: str = "stop") -> Message:
    """The message of a stream of deltas, after the journal."""
    items = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    items.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    raw = "".join(f"data: {json.dumps(item)}\n\n" for item in items).encode() + b"data: [DONE]\n\n"
    decoder = OpenAIChatDecoder(profile)
    assembly = Assembly("m", tag=profile.tag)
    for at in range(0, len(raw), 7):
        for event in decoder.feed(raw[at : at + 7]):
            assembly.feed(event)
    assert assembly.end is not None
    return msgspec.json.decode(encode(assembly.message()), type=Message)


def test_pieces_are_joined_and_go_back_whole_and_unchanged() -> None:
    """Text and signature in several chunks, unknown fields included, in order; shown once."""
    said = answer(
        {"reasoning": "Let me ", "reasoning_details": [{**TEXT, "text": "Let me "}]},
        {"reasoning": "think.", "reasoning_details": [{**TEXT, "text": "think.", "new_field": 1}]},
        {"reasoning_details": [{**TEXT, "signature": "sig", "text": None}]},
        {"content": "Four."},
    )
    assert (said.reasoning, said.text) == ("Let me think.", "Four.")
    (sent,) = to_wire([said], OPENROUTER)
    assert sent["reasoning_details"] == [
        {**TEXT, "text": "Let me think.", "new_field": 1, "signature": "sig"}
    ]
    assert "reasoning" not in sent
    (back,) = to_wire(from_wire([sent], OPENROUTER), OPENROUTER)
    assert back == sent


def test_encrypted_objects_beside_calls_and_summaries() -> None:
    """Nothing of them is shown; those of two calls stay two; told again they are one."""
    second = {**SEALED, "id": "rs_2", "data": "hBBB"}
    said = answer(
        {"reasoning_details": [{**SUMMARY, "summary": "Sums "}]},
        {"reasoning_details": [{**SUMMARY, "summary": "up."}, SEALED]},
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]},
        {"reasoning_details": [second]},
        {"reasoning_details": [second]},
        finish="tool_calls",
    )
    assert said.reasoning == "Sums up."
    (sent,) = to_wire([said], OPENROUTER)
    assert sent["reasoning_details"] == [{**SUMMARY, "summary": "Sums up."}, SEALED, second]
    assert len(sent["tool_calls"]) == 1


@pytest.mark.parametrize(
    "profile", [CompatProfile(), CompatProfile(tag="other", reasoning_details=True)], ids=lambda p: p.tag
)
def test_they_go_to_no_other_server(profile: CompatProfile) -> None:
    """PV-7."""
    said = answer({"content": "x", "reasoning_details": [SEALED]})
    assert [part.raw for part in said.parts if isinstance(part, Reasoning)] == [
        {"reasoning_details": [SEALED]}
    ]
    assert to_wire([said], profile) == [{"role": "assistant", "content": "x"}]


def test_an_unsigned_text_whose_maker_signs_stays_behind() -> None:
    """PV-7: cut before its signature; one of a maker who does not sign goes back."""
    open_text = {"type": "reasoning.text", "text": "t", "format": "unknown", "index": 1}
    said = answer(
        {"content": "x", "reasoning_details": [{**TEXT, "text": "cut"}, open_text]}, finish="length"
    )
    assert to_wire([said], OPENROUTER)[0]["reasoning_details"] == [open_text]


@pytest.mark.parametrize("odd", ["text", 5, {}, [None], ["x"], [{"type": 7, "text": 3}], {"type": "reasoning.text", "text": "t"}])  # fmt: skip
def test_odd_shapes_do_no_harm(odd: object) -> None:
    """PV-14."""
    said = answer({"content": "x", "reasoning_details": odd})
    assert said.text == "x"
    assert to_wire([said], OPENROUTER)[0]["content"] == "x"


def test_other_servers_are_not_asked_for_them() -> None:
    """A profile without them ignores the field."""
    assert answer({"content": "x", "reasoning_details": [SEALED]}, profile=CompatProfile()).reasoning == ""
