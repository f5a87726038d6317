"""Provider events to one message (PV-4 … PV-8)."""

from __future__ import annotations

import msgspec
import pytest

from pilothouse.core.assembly import Assembly, judge_arguments
from pilothouse.core.canonical import encode
from pilothouse.events import ArgumentsTold, ReasoningTold, TextTold
from pilothouse.messages import Message, Reasoning, Text, ToolCall, Usage
from pilothouse.responses import (
    BlockEnded,
    Notice,
    ReasoningDelta,
    ResponseStarted,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
    UsageUpdate,
)


def assembled(*events, **options) -> Assembly:
    assembly = Assembly("m1", **options)
    for event in events:
        assembly.feed(event)
    return assembly


def test_pieces_are_told_with_their_part_and_offset() -> None:
    """A follower can put each piece in its place without knowing the message."""
    assembly = Assembly("m1")
    told = [
        assembly.feed(event)
        for event in (
            ReasoningDelta(0, "hm"),
            TextDelta(1, "日本"),
            TextDelta(1, "🌊"),
            TextDelta(1, "!"),
            ToolCallDelta(2, "c1", "f", "", "c1"),
            ToolCallDelta(2, "c1", "", '{"a"', "c1"),
            ToolCallDelta(2, "c1", "", ":1}", "c1"),
        )
    ]
    assert told == [
        ReasoningTold("m1", 0, "hm", 0),
        TextTold("m1", 1, "日本", 0),
        TextTold("m1", 1, "🌊", 2),
        TextTold("m1", 1, "!", 3),
        ArgumentsTold("m1", 2, "c1", "", 0, "f"),
        ArgumentsTold("m1", 2, "c1", '{"a"', 0, "f"),
        ArgumentsTold("m1", 2, "c1", ":1}", 4, "f"),
    ]


def test_interleaved_blocks_stay_apart_and_in_order_of_their_numbers() -> None:
    """PV-4: blocks are keyed by number, also when a later one speaks first."""
    message = assembled(
        ToolCallDelta(1, "b", "g", '{"y":', "b"),
        ToolCallDelta(0, "a", "f", '{"x":1', "a"),
        ToolCallDelta(1, "b", "", "2}", "b"),
        ToolCallDelta(0, "a", "", "}", "a"),
        StreamEnd("tool_calls"),
    ).message()
    assert message == Message(
        "m1",
        "assistant",
        (ToolCall("a", "f", {"x": 1}, '{"x":1}'), ToolCall("b", "g", {"y": 2}, '{"y":2}')),
        stop_reason="tool_calls",
    )


@pytest.mark.parametrize("raw", ["", "null", '"null"', "  ", "{}", " { } "])
def test_no_arguments_mean_an_empty_object(raw: str) -> None:
    """PV-6 [011]: empty, missing and null arguments run the tool with {}."""
    assert judge_arguments(raw) == ({}, None)


@pytest.mark.parametrize(
    "raw",
    [
        '{"a":1',
        '{"a":NaN}',
        "[1]",
        "3",
        '"text"',
        "{'a':1}",
        '{"a":1}{"b":2}',
        '{"a":1e999}',
        "{" * 500,
        "true",
    ],
)
def test_what_is_not_one_strict_object_is_an_error_and_never_salvaged(raw: str) -> None:
    """PV-6 [016]: such a call has no arguments and says why; its text is kept."""
    value, why = judge_arguments(raw)
    assert value == {}
    assert why
    call = assembled(ToolCallDelta(0, "a", "f", raw, "a")).message().tool_calls[0]
    assert (call.arguments, call.raw_arguments, bool(call.args_error)) == ({}, raw, True)


def test_arguments_that_cannot_be_stored_are_an_error() -> None:
    """Deeper than a fact may be: the call is refused instead of the run breaking later."""
    assert judge_arguments('{"a":' * 150 + "1" + "}" * 150)[1]


def test_lone_surrogates_and_nul_in_arguments_are_replaced() -> None:
    """Every value can be written; whole pairs are untouched."""
    value, why = judge_arguments('{"a":"\\ud83d","b":"\\ud83d\\ude00","c":"x\\u0000y"}')
    assert why is None
    assert value == {"a": "\ufffd", "b": "😀", "c": "x\ufffdy"}
    encode(value)


def test_an_object_is_taken_as_it_is() -> None:
    """PV-6 [010]; told twice it is one, told beside text it is no JSON any more."""
    once = assembled(ToolCallDelta(0, "a", "f", {"x": [1]}, "a"), ToolCallDelta(0, "a", "", {"x": [1]}, "a"))
    assert once.message().tool_calls == (ToolCall("a", "f", {"x": [1]}, '{"x":[1]}'),)
    mixed = assembled(ToolCallDelta(0, "a", "f", {"x": 1}, "a"), ToolCallDelta(0, "a", "", '{"y":2}', "a"))
    assert mixed.message().tool_calls[0].args_error
    two = assembled(ToolCallDelta(0, "a", "f", {"x": 1}, "a"), ToolCallDelta(0, "a", "", {"y": 2}, "a"))
    assert two.message().tool_calls[0].args_error


def test_ids_are_unique_in_the_thread() -> None:
    """PV-5 [014] [072]: used ones are rewritten, missing ones made; the wire id is kept beside."""
    ids = iter(["used", "fresh"])
    message = assembled(
        ToolCallDelta(0, "used", "f", "", "used"),
        ToolCallDelta(1, "call_1", "f", ""),
        ToolCallDelta(2, "used_2", "f", "", "used_2"),
        taken={"used"},
        ids=lambda: next(ids),
        tag="t",
    ).message()
    assert [call.call_id for call in message.tool_calls] == ["used_2", "fresh", "used_2_2"]
    assert [call.provider_data for call in message.tool_calls] == [
        {"wire_id": "used", "tag": "t"},
        None,
        {"wire_id": "used_2", "tag": "t"},
    ]


def test_an_id_that_cannot_be_written_becomes_one_that_can() -> None:
    """PV-5, PV-13: keys are made of it; what an adapter of one's own gives is anything."""
    message = assembled(
        ToolCallDelta(0, "c\ud83d", "f", "", "c\ud83d"), ToolCallDelta(1, "c\0", "f", "", "c\0")
    ).message()
    assert [call.call_id for call in message.tool_calls] == ["c\ufffd", "c\ufffd_2"]


def test_made_ids_differ_between_messages() -> None:
    """PV-5: without a maker they carry the message's id, so they do not start anew each turn."""
    event = ToolCallDelta(0, "call_1", "f", "")
    first, second = Assembly("m1"), Assembly("m2")
    first.feed(event)
    second.feed(event)
    assert first.message().tool_calls[0].call_id != second.message().tool_calls[0].call_id


def test_a_call_without_a_name_is_no_part_and_loses_nothing_before_its_name() -> None:
    """PV-5: it is told and kept once its name is known."""
    assembly = Assembly("m1")
    assert assembly.feed(ToolCallDelta(0, "a", "", '{"x"', "a")) is None
    assert assembly.message().parts == ()
    assert assembly.feed(ToolCallDelta(0, "a", "f", ":1}", "a")) == ArgumentsTold(
        "m1", 0, "a", '{"x":1}', 0, "f"
    )
    assert assembly.message().tool_calls == (ToolCall("a", "f", {"x": 1}, '{"x":1}'),)


def test_reasoning_is_tagged_when_its_block_ended() -> None:
    """PV-7: raw and tag come with the end of the block; an unfinished one does not go back as reasoning."""
    raw = {"type": "thinking", "thinking": "", "signature": "s"}
    message = assembled(
        ReasoningDelta(0, ""),
        BlockEnded(0, raw=raw),
        BlockEnded(1, raw={"type": "redacted_thinking", "data": "x"}, redacted=True),
        ReasoningDelta(2, "half"),
        tag="anthropic",
    ).message()
    assert message.parts == (
        Reasoning("", raw, "anthropic"),
        Reasoning("", {"type": "redacted_thinking", "data": "x"}, "anthropic", redacted=True),
        Reasoning("half"),
    )


def test_signatures_on_text_and_calls_travel_with_their_part() -> None:
    """PV-7: provider_data says whose it is, also on a text part without text."""
    message = assembled(
        TextDelta(0, "x"),
        BlockEnded(0, {"signature": "a"}),
        ToolCallDelta(1, "c", "f", {}, None),
        BlockEnded(1, {"signature": "b"}),
        BlockEnded(2, {"signature": "c"}),
        tag="gemini",
    ).message()
    assert [part.provider_data for part in message.parts] == [
        {"signature": "a", "tag": "gemini"},
        {"signature": "b", "tag": "gemini"},
        {"signature": "c", "tag": "gemini"},
    ]
    assert type(message.parts[2]) is Text


def test_the_last_figure_of_each_kind_wins() -> None:
    """PV-8 [020] [021] [023]: replaced, never summed, never erased; the total is made only where it was not told."""
    assembly = assembled(
        UsageUpdate(Usage(input=10, output=1, native={"a": 1})), UsageUpdate(Usage(output=3, reasoning=2))
    )
    assert assembly.usage == Usage(input=10, output=3, reasoning=2, total=13, native={"a": 1})
    assembly.feed(UsageUpdate(Usage(total=99)))
    assert assembly.usage is not None
    assert assembly.usage.total == 99
    assert Assembly("m").usage is None


def test_only_content_is_visible() -> None:
    """Openings, empty deltas and figures are nothing that a reader saw (LP-19)."""
    assembly = assembled(
        ResponseStarted("r"),
        TextDelta(0, ""),
        UsageUpdate(Usage(input=1)),
        ToolCallDelta(1, "a", "f", "", "a"),
        Notice("n"),
    )
    assert not assembly.visible
    assembly.feed(ToolCallDelta(1, "a", "", "{", "a"))
    assert assembly.visible


def test_nothing_counts_after_the_end() -> None:
    """PV-1: one end, last."""
    assembly = assembled(
        ResponseStarted(None, None),
        ResponseStarted("r", "m"),
        TextDelta(0, "a"),
        StreamEnd("complete", "stop"),
        TextDelta(0, "b"),
        StreamEnd("error"),
    )
    assert assembly.started == ResponseStarted("r", "m")
    assert assembly.message().text == "a"
    assert assembly.end == StreamEnd("complete", "stop")


def test_the_message_is_the_same_after_the_journal() -> None:
    """PV-7: raw blocks are equal after a round trip, unknown fields and empty texts included."""
    raw = {"type": "thinking", "thinking": "", "signature": "s", "new": [None, {"x": 1.5}]}
    message = assembled(
        ReasoningDelta(0, ""), BlockEnded(0, raw=raw), TextDelta(1, "t"), tag="anthropic"
    ).message()
    assert msgspec.json.decode(encode(message), type=Message) == message
