"""Random conversations, cut anywhere, give requests that a strict provider takes (PV-13, LP-40, LP-41)."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dialects import DIALECTS, Dialect
from pilothouse.core.pairing import repair
from pilothouse.messages import (
    Context,
    Image,
    Message,
    Reasoning,
    Structured,
    Text,
    ToolCall,
)
from wirekit import problems

TEXTS = st.sampled_from(["", " ", "hi", "a\0b", "\ud83d", "😀", "{}", "日本"])
IDS = st.sampled_from(["", "a", "b", "a_2", "call 1", "x" * 70, "x" * 71, "日"])
ARGUMENTS = st.sampled_from(
    [("{}", None), ("", None), ("null", None), ('{"x":1}', None), ('{"x"', "cut"), ('{"s":"\\ud83d"}', None)]
)
SIGNED = {"type": "thinking", "thinking": "t", "signature": "s"}
RAW = [
    ("", None),
    ("anthropic", SIGNED),
    ("anthropic", {**SIGNED, "signature": ""}),
    ("anthropic", {"type": "redacted_thinking", "data": "d"}),
    ("anthropic", {"type": "server_tool_use", "id": "s", "name": "n", "input": {}}),
    ("openai-responses", {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "e"}),
    ("openai-responses", {"type": "reasoning", "id": "rs", "summary": []}),
    ("gemini", {"text": "t", "thought": True, "thoughtSignature": "s"}),
    ("openai-chat", None),
]
THOUGHTS = st.builds(lambda text, raw: Reasoning(text, raw[1], raw[0]), TEXTS, st.sampled_from(RAW))


@st.composite
def call(draw) -> ToolCall:
    raw, why = draw(ARGUMENTS)
    value = json.loads(raw) if why is None and raw[:1] == "{" else {}
    return ToolCall(draw(IDS), draw(st.sampled_from(["f", "g", "g", ""])), value, raw, why)


@st.composite
def message(draw) -> Message:
    number = draw(st.integers(0, 99))
    kind = draw(st.sampled_from(["user", "user", "assistant", "assistant", "tool", "tool", "system"]))
    text = st.builds(Text, TEXTS)
    if kind == "assistant":
        reason = draw(st.sampled_from(["complete", "tool_calls", "pause_turn", "length"]))
        parts = draw(st.lists(text | call() | THOUGHTS, max_size=4))
        return Message(f"m{number}", "assistant", tuple(parts), stop_reason=reason)
    if kind == "tool":
        parts = draw(st.lists(text | st.builds(Structured, st.just({"n": 1})), max_size=2))
        return Message(f"m{number}", "tool", tuple(parts), call_id=draw(IDS), is_error=draw(st.booleans()))
    if kind == "system":
        return Message(f"m{number}", "system", tuple(draw(st.lists(text, max_size=1))))
    image = st.just(Image("image/png", data=b"x"))
    return Message(
        f"m{number}", "user", tuple(draw(st.lists(text | st.builds(Context, TEXTS) | image, max_size=3)))
    )


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=st.lists(message(), max_size=12))
def test_whatever_the_history_the_request_is_valid(dialect: Dialect, history: list[Message]) -> None:
    """LP-41: valid, the same twice, idempotent, and stable when it is read back and written again."""
    history = [*history, Message("last", "user", (Text("go"),))]
    repaired, _ = repair(history, dialect.rules)
    request = dialect.to_wire(repaired)
    assert problems(dialect.name, request) == []
    assert repair(repaired, dialect.rules)[0] is repaired
    assert dialect.to_wire(repair(history, dialect.rules)[0]) == request
    back = dialect.from_wire(request)
    assert dialect.to_wire(repair(back, dialect.rules)[0]) == request


@st.composite
def conversation(draw) -> list[Message]:
    """A clean conversation: rounds of calls with their results."""
    out: list[Message] = []
    for turn in range(draw(st.integers(1, 4))):
        out.append(Message(f"u{turn}", "user", (Text(f"question {turn}"),)))
        for number in range(draw(st.integers(0, 2))):
            ids = [f"c{turn}{number}{at}" for at in range(draw(st.integers(1, 3)))]
            out.append(Message(f"a{turn}{number}", "assistant", tuple(ToolCall(one, "f") for one in ids)))
            out += [Message(f"r{one}", "tool", (Text(one),), call_id=one) for one in ids]
        out.append(Message(f"e{turn}", "assistant", (Text(f"answer {turn}"),)))
    return out


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(whole=conversation(), first=st.integers(0, 40), last=st.integers(0, 40))
def test_every_window_of_a_conversation_is_valid(
    dialect: Dialect, whole: list[Message], first: int, last: int
) -> None:
    """No cut at either end leaves a call or a result alone; what is clean is not touched."""
    assert repair(whole, dialect.rules)[0] is whole
    window = [
        *whole[first % len(whole) : len(whole) - last % len(whole)],
        Message("last", "user", (Text("go"),)),
    ]
    repaired, _ = repair(window, dialect.rules)
    assert problems(dialect.name, dialect.to_wire(repaired)) == []
    text = json.dumps(dialect.to_wire(repaired))
    for kept in window:
        if kept.role == "user":
            assert kept.text in text
