"""Bytes of an AG-UI stream to verified events: framing, old names, short forms, repairs (AG-191 … AG-195)."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.core.agui import events as agui
from pilothouse.core.agui.reading import ProtocolFault, Reader, TooLarge
from pilothouse.testing import endpoint as wire

START = {"type": "RUN_STARTED", "threadId": "t", "runId": "r"}
END = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}


def frames(*events: dict, ids: bool = False, newline: str = "\n") -> bytes:
    out = ""
    for number, event in enumerate(events, 1):
        head = f"id: {number}{newline}" if ids else ""
        out += f"{head}data: {json.dumps(event)}{newline}{newline}"
    return out.encode()


def read(data: bytes, reader: Reader | None = None, **options) -> list[agui.Event]:
    reader = reader or Reader(**options)
    found = [item.event for item in reader.feed(data)]
    return found + [item.event for item in reader.finish()]


def kinds(found: list[agui.Event]) -> list[str]:
    return [event.type for event in found]


STREAM = [
    START,
    *wire.reasoning("r1", "hm ", "ünïcödé \u2028"),
    *wire.text("a1", "Hel", "lo 🎉"),
    *wire.tool_call("c1", "look", '{"a"', ": 1}", parent="a1"),
    wire.result("c1", "ok"),
    {"type": "STATE_SNAPSHOT", "snapshot": {"n": 1}},
    END,
]


@given(st.data())
def test_any_split_of_the_bytes_gives_the_same_events(data) -> None:
    """AG-191: LF, CR, CRLF, comments, a byte-order mark; one read, one-byte reads, random splits."""
    newline = data.draw(st.sampled_from(["\n", "\r", "\r\n"]))
    whole = b"\xef\xbb\xbf: padding" + newline.encode() * 2 + frames(*STREAM, newline=newline)
    expected = read(whole)
    assert len(expected) == len(STREAM)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    reader = Reader()
    found = []
    for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        found += [item.event for item in reader.feed(whole[a:b])]
    assert found == expected


def test_one_byte_at_a_time() -> None:
    """AG-191."""
    whole = frames(*STREAM)
    reader = Reader()
    found = [item.event for at in range(len(whole)) for item in reader.feed(whole[at : at + 1])]
    assert found == read(whole)


@pytest.mark.parametrize("data", [b"data: {no json\n\n", b"data: [1]\n\n", b'data: "x"\n\n', b"data: {}\n\n"])
def test_a_frame_that_is_no_event_fails(data) -> None:
    """AG-191."""
    with pytest.raises(ProtocolFault):
        read(frames(START) + data)


def test_the_events_before_a_fault_are_told() -> None:
    """AG-195: text kept."""
    reader = Reader()
    told = []
    with pytest.raises(ProtocolFault):
        for item in reader.feed(
            frames(START, *wire.text("a", "kept"), {"type": "STEP_FINISHED", "stepName": "x"})
        ):
            told.append(item.event.type)
    assert told == ["RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]


def test_a_frame_has_a_limit() -> None:
    """AG-191."""
    with pytest.raises(TooLarge):
        read(b"data: " + b"x" * 2000, max_frame_bytes=1000)


def test_unknown_types_and_fields_are_dropped() -> None:
    """AG-193."""
    found = read(frames({**START, "future": 1}, {"type": "FUTURE_EVENT", "x": None}, END))
    assert kinds(found) == ["RUN_STARTED", "RUN_FINISHED"]


def test_an_unknown_outcome_is_no_success() -> None:
    """AG-193."""
    *_, last = read(frames(START, {**END, "outcome": {"type": "handed_over"}}))
    assert isinstance(last, agui.RunError)
    assert last.code == "outcome_unknown"
    assert "handed_over" in last.message


@pytest.mark.parametrize(
    "event",
    [
        {"type": "TEXT_MESSAGE_START", "messageId": 5},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "a", "delta": None},
        {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "n", "parentMessageId": None},
        {"type": "RUN_FINISHED", "threadId": "t"},
        {"type": "RUN_FINISHED", "threadId": "t", "runId": "r", "outcome": {"type": "interrupt"}},
        {"type": "MESSAGES_SNAPSHOT", "messages": [{"id": "x", "role": "wizard", "content": "?"}]},
    ],
)
def test_a_known_field_of_a_wrong_type_is_a_violation(event) -> None:
    """AG-193: null for an optional field too."""
    with pytest.raises(ProtocolFault):
        read(frames(START, event))


def test_null_may_be_repaired(caplog: pytest.LogCaptureFixture) -> None:
    """AG-195: nothing is guessed by leaving an absent field out."""
    call = {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "n", "parentMessageId": None}
    note = {"type": "CUSTOM", "name": "n", "value": None, "rawEvent": None}
    with caplog.at_level(logging.WARNING):
        found = read(frames(START, call, note), on_violation="repair")
    assert kinds(found) == ["RUN_STARTED", "TOOL_CALL_START", "CUSTOM"]
    assert found[2].value is None
    assert "left out" in caplog.text


def test_old_names_are_translated() -> None:
    """AG-193: THINKING_* had no ids."""
    old = [
        START,
        {"type": "THINKING_START", "title": "x"},
        {"type": "THINKING_TEXT_MESSAGE_START"},
        {"type": "THINKING_TEXT_MESSAGE_CONTENT", "delta": "hm"},
        {"type": "THINKING_TEXT_MESSAGE_END"},
        {"type": "THINKING_END"},
        {"type": "THINKING_TEXT_MESSAGE_START"},
        {"type": "THINKING_TEXT_MESSAGE_CONTENT", "delta": "well"},
        {"type": "THINKING_TEXT_MESSAGE_END"},
        END,
    ]
    found = read(frames(*old))
    assert kinds(found)[1:6] == [
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
        "REASONING_END",
    ]
    assert len({event.message_id for event in found[1:6]}) == 1
    assert found[6].message_id != found[1].message_id


def test_chunks_are_made_long() -> None:
    """AG-194: a lane closes at another lane's start, a snapshot or the finish."""
    chunks = [
        START,
        {"type": "TEXT_MESSAGE_CHUNK", "messageId": "a", "delta": "Hel"},
        {"type": "TEXT_MESSAGE_CHUNK", "delta": "lo"},
        {"type": "CUSTOM", "name": "note", "value": 1},
        {"type": "TEXT_MESSAGE_CHUNK", "delta": "!"},
        {
            "type": "TOOL_CALL_CHUNK",
            "toolCallId": "c",
            "toolCallName": "n",
            "parentMessageId": "a",
            "delta": "{",
        },
        {"type": "TOOL_CALL_CHUNK", "delta": "}"},
        {"type": "TOOL_CALL_CHUNK", "toolCallId": "d", "toolCallName": "n"},
        {"type": "REASONING_MESSAGE_CHUNK", "messageId": "r", "delta": "hm"},
        {"type": "STATE_SNAPSHOT", "snapshot": {}},
        {"type": "TEXT_MESSAGE_CHUNK", "messageId": "b", "delta": "bye"},
        END,
    ]
    assert kinds(read(frames(*chunks))) == [
        "RUN_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_CONTENT",
        "CUSTOM",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "TOOL_CALL_START",
        "TOOL_CALL_END",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
        "STATE_SNAPSHOT",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]


@pytest.mark.parametrize(
    "chunk",
    [
        {"type": "TEXT_MESSAGE_CHUNK", "delta": "x"},
        {"type": "TOOL_CALL_CHUNK", "delta": "x"},
        {"type": "TOOL_CALL_CHUNK", "toolCallId": "c", "delta": "x"},
        {"type": "REASONING_MESSAGE_CHUNK", "delta": "x"},
    ],
)
def test_the_first_chunk_names_its_lane(chunk) -> None:
    """AG-194."""
    with pytest.raises(ProtocolFault, match="first chunk"):
        read(frames(START, chunk))


def test_what_can_be_repaired_without_guessing(caplog: pytest.LogCaptureFixture) -> None:
    """AG-195: open parts at the finish, content without a start; one warning each, the rest fails."""
    with caplog.at_level(logging.WARNING):
        found = read(
            frames(
                START,
                {"type": "TEXT_MESSAGE_CONTENT", "messageId": "a", "delta": "x"},
                *wire.tool_call("c", "n")[:1],
                {"type": "STEP_STARTED", "stepName": "s"},
                END,
            ),
            on_violation="repair",
        )
    assert kinds(found) == [
        "RUN_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TOOL_CALL_START",
        "STEP_STARTED",
        "TOOL_CALL_END",
        "TEXT_MESSAGE_END",
        "STEP_FINISHED",
        "RUN_FINISHED",
    ]
    assert caplog.text.count("repaired") == 2
    with pytest.raises(ProtocolFault):
        read(frames(START, {"type": "TEXT_MESSAGE_END", "messageId": "z"}), on_violation="repair")
    with pytest.raises(ProtocolFault):
        read(frames({"type": "STEP_STARTED", "stepName": "s"}), on_violation="repair")


@given(st.integers(0, len(STREAM)), st.integers(0, 400), st.booleans())
def test_a_reconnection_has_no_gap_and_no_duplicate(done: int, more: int, again: bool) -> None:
    """§3.15 Ends: frames that were read are dropped by id, whatever the server repeats."""
    whole = frames(*STREAM, ids=True)
    ends = [0, *[len(frames(*STREAM[: n + 1], ids=True)) for n in range(len(STREAM))]]
    cut = min(ends[done] + more, len(whole))
    reader = Reader()
    found = [item.event for item in reader.feed(whole[:cut])]
    last = int(reader.last_id or 0)
    reader.reconnect()
    begin = ends[max(last - 1, 0)] if again else ends[last]
    found += [item.event for item in reader.feed(whole[begin:])]
    starts = [at for at, event in enumerate(found) if isinstance(event, agui.RunStarted)]
    assert len(starts) == (
        2 if again and last == 1 else 1
    )  # told again from its start: it replaces what was told
    assert found[starts[-1] :] == read(whole)


def test_a_server_may_start_over() -> None:
    """§3.15 Ends: RUN_STARTED of the same run again, with ids."""
    reader = Reader()
    first = frames(START, *wire.text("a", "x", end=False), ids=True)
    found = [item.event.type for item in reader.feed(first)]
    reader.reconnect()
    found += [item.event.type for item in reader.feed(frames(START, *wire.text("a", "y"), END, ids=True))]
    assert found.count("RUN_STARTED") == 2
    assert found[-1] == "RUN_FINISHED"
    assert found.count("TEXT_MESSAGE_START") == 2


def test_a_run_started_twice_is_a_violation_without_ids() -> None:
    """AG-195: repaired where it was asked for."""
    twice = frames(START, *wire.text("a", "x", end=False), START, *wire.text("a", "y"), END)
    with pytest.raises(ProtocolFault, match="RUN_STARTED"):
        read(twice)
    assert kinds(read(twice, on_violation="repair"))[-1] == "RUN_FINISHED"


def test_a_cut_frame_is_no_event() -> None:
    """§5.14: cut inside a frame and inside a character."""
    whole = frames(START, *wire.text("a", "🎉"))
    for cut in (len(whole) - 3, whole.index(b"\\ud83c") + 3):
        reader = Reader()
        found = kinds(
            [item.event for item in reader.feed(whole[:cut])] + [item.event for item in reader.finish()]
        )
        assert found[:2] == ["RUN_STARTED", "TEXT_MESSAGE_START"]
        assert "RUN_FINISHED" not in found
