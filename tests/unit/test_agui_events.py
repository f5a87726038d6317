"""AG-UI events on the wire (AG-190, AG-193, SV-41)."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.core.agui import events as agui


def test_optional_means_absent() -> None:
    """AG-190: never null; a note's value may be."""
    finished = agui.RunFinished("t", "r", outcome=agui.Success())
    assert json.loads(agui.encode(finished)) == {
        "type": "RUN_FINISHED", "threadId": "t", "runId": "r", "outcome": {"type": "success"},
    }  # fmt: skip
    assert b'"value":null' in agui.encode(agui.Custom("x", None))


def test_unknown_events_and_fields_are_dropped() -> None:
    """AG-193."""
    assert agui.decode(b'{"type":"NEW_THING","a":1}') is None
    assert agui.decode(b'{"type":"TEXT_MESSAGE_END","messageId":"m","extra":1}') == agui.TextMessageEnd("m")


@pytest.mark.parametrize(
    "data",
    [
        b'{"type":"TEXT_MESSAGE_END"}',
        b'{"type":"TEXT_MESSAGE_END","messageId":7}',
        b'{"type":"TEXT_MESSAGE_END","messageId":"m","subagentRunId":null}',
        b'{"type":"REASONING_MESSAGE_START","messageId":"m","role":"assistant"}',
        b'{"type":"STATE_DELTA","delta":{}}',
        b"[]",
        b"{",
        b"{}",
    ],
)
def test_a_known_field_of_a_wrong_type_is_an_error(data: bytes) -> None:
    """AG-193."""
    with pytest.raises(msgspec.DecodeError):
        agui.decode(data)


@given(st.text())
def test_no_text_can_break_a_frame(text: str) -> None:
    """SV-41, fixture 183: no line end of any reader is in the bytes, and the text comes back."""
    data = agui.encode(agui.TextMessageContent("m", text))
    assert len(data.decode().splitlines()) == 1
    assert agui.decode(data) == agui.TextMessageContent("m", text)


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    """SV-41, RC-4: no content makes a write fail."""
    event = agui.decode(agui.encode(agui.TextMessageContent("m", "a\ud800b")))
    assert event == agui.TextMessageContent("m", "a\ufffdb")
