"""Stored conversations in any state of disrepair are read, repaired and written as valid requests (PV-13)."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dialects import DIALECTS, Dialect
from pilothouse.core.canonical import encode
from pilothouse.core.pairing import repair
from wirekit import problems

TEXT = st.sampled_from(["", " ", "hi", "a\0b", "\ud83d", "{}", "日本"])
ID = st.sampled_from(["", "a", "b", "a_2", "call 1", "x" * 70, None, 7])
NAME = st.sampled_from(["f", "g", "", None])
RAW = st.sampled_from(["{}", "", "null", '{"x":1}', '{"x"', "[1]", '{"s":"\\ud83d"}', None, {"x": 1}, [1], 5])
ODD = st.sampled_from(
    [None, "", "text", 5, [], {}, [None], [{}], ["x"], [{"type": "odd", "x": 1}], {"type": "odd"}]
)


def some(**fields) -> st.SearchStrategy[dict]:
    """An object in which any field may be missing."""
    return st.fixed_dictionaries({}, optional=fields)


def listed(*kinds) -> st.SearchStrategy:
    return st.lists(st.one_of(*kinds), max_size=4)


CHAT_PART = some(
    type=st.sampled_from(["text", "image_url", "refusal", "odd"]),
    text=TEXT,
    refusal=TEXT,
    image_url=st.just({"url": "data:image/png;base64,AA=="}),
)
CHAT_CALL = some(id=ID, type=st.just("function"), function=st.one_of(ODD, some(name=NAME, arguments=RAW)))
CHAT = some(
    role=st.sampled_from(["user", "assistant", "tool", "system", "developer", "odd"]),
    content=st.one_of(TEXT, ODD, listed(CHAT_PART)),
    tool_calls=st.one_of(ODD, listed(CHAT_CALL)),
    tool_call_id=ID,
    reasoning_content=TEXT,
)  # fmt: skip
ANTHROPIC_BLOCK = st.one_of(
    some(type=st.just("text"), text=TEXT),
    some(type=st.just("thinking"), thinking=TEXT, signature=st.sampled_from(["", "s", None])),
    some(type=st.just("redacted_thinking"), data=st.sampled_from(["", "d"])),
    some(type=st.just("tool_use"), id=ID, name=NAME, input=RAW),
    some(type=st.just("tool_result"), tool_use_id=ID, content=st.one_of(TEXT, ODD, listed(some(type=st.just("text"), text=TEXT))), is_error=st.booleans()),
    some(type=st.just("image"), source=st.one_of(ODD, st.just({"type": "base64", "media_type": "image/png", "data": "AA=="}))),
    some(type=st.just("server_tool_use"), id=ID),
)  # fmt: skip
ANTHROPIC = some(
    role=st.sampled_from(["user", "assistant"]), content=st.one_of(TEXT, ODD, listed(ANTHROPIC_BLOCK))
)
RESPONSES = st.one_of(
    some(type=st.just("message"), role=st.sampled_from(["user", "assistant", "developer"]), id=st.just("msg_1"), content=st.one_of(TEXT, ODD, listed(some(type=st.sampled_from(["output_text", "input_text"]), text=TEXT)))),
    some(role=st.sampled_from(["user", "assistant"]), content=TEXT),
    some(type=st.just("function_call"), id=ID, call_id=ID, name=NAME, arguments=RAW),
    some(type=st.just("function_call_output"), call_id=ID, output=st.one_of(TEXT, ODD)),
    some(type=st.just("reasoning"), id=st.just("rs"), summary=st.just([]), encrypted_content=st.sampled_from(["e", None])),
    some(type=st.just("web_search_call"), id=st.just("ws")),
)  # fmt: skip
GEMINI_PART = st.one_of(
    some(text=TEXT, thought=st.booleans(), thoughtSignature=st.just("s")),
    some(functionCall=st.one_of(ODD, some(name=NAME, args=RAW, id=ID)), thoughtSignature=st.just("s")),
    some(
        functionResponse=st.one_of(
            ODD, some(name=NAME, id=ID, response=st.one_of(ODD, st.just({"output": "x"})))
        )
    ),
    some(inlineData=st.one_of(ODD, st.just({"mimeType": "image/png", "data": "AA=="}))),
)
GEMINI = some(role=st.sampled_from(["user", "model"]), parts=st.one_of(ODD, listed(GEMINI_PART)))

STORED = {"openai-chat": CHAT, "anthropic": ANTHROPIC, "openai-responses": RESPONSES, "gemini": GEMINI}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_was_stored_becomes_a_valid_request(dialect: Dialect, data: st.DataObject) -> None:
    """Never raises; valid; the same twice; the stored list stays; every message read can be journaled."""
    stored = data.draw(st.lists(STORED[dialect.name], max_size=8))
    before = json.dumps(stored)
    messages = dialect.from_wire(stored)
    for message in messages:
        encode(message)
    repaired, _ = repair(messages, dialect.rules)
    request = dialect.to_wire(repaired)
    assert problems(dialect.name, request) == []
    assert json.dumps(stored) == before
    assert dialect.to_wire(repair(dialect.from_wire(stored), dialect.rules)[0]) == request
    again = dialect.to_wire(repair(dialect.from_wire(request), dialect.rules)[0])
    assert problems(dialect.name, again) == []
