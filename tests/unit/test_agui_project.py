"""The projector, case by case; the properties are in tests/property."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import UNSET

from aguikit import LEGACY, NAMES, Client, Tape, project
from pilothouse.commands import Allow, Answer, Command, Request, Steer
from pilothouse.core.agui import events as agui
from pilothouse.core.agui.content import snapshot
from pilothouse.core.agui.ends import Names, error_text, one_line
from pilothouse.core.agui.frames import Frame, Snapshot, StateAt
from pilothouse.core.agui.position import Position
from pilothouse.core.agui.project import Projector
from pilothouse.core.agui.verify import Verifier
from pilothouse.events import (
    CallFinished,
    CallStarted,
    Cancelled,
    CommandReceived,
    Completed,
    ContinuityLost,
    ContinuityRestored,
    Failed,
    Incomplete,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    RequestOpened,
    RequestResolved,
    RunAbandoned,
    RunEnded,
    RunStarted,
    StopRequested,
    TextTold,
    Truncated,
    TurnStarted,
    Unknown,
)
from pilothouse.messages import File, Image, Message, Reasoning, Text, ToolCall, Usage
from pilothouse.records import HistoryMessage

FIXTURES = Path(__file__).parents[1] / "fixtures"
EXPECT = {
    entry["id"]: entry["expect"]
    for entry in json.loads((FIXTURES / "index.json").read_text("utf-8"))["fixtures"]
}


def neutral(name: str) -> list[list[str]]:
    return json.loads(next(FIXTURES.glob(f"{name}-*.json")).read_text("utf-8"))["neutral_events"]


class Scribe:
    """Turns neutral events of the fixtures into a run."""

    def __init__(self) -> None:
        self.tape = Tape()
        self.tape.fact(RunStarted())
        self.message: list | None = None
        self.calls: dict[str, str] = {}
        self.number = 0
        self.index = -1
        self.kind = ""

    def write(self, events: list[list[str]]) -> Tape:
        for word, *rest in events:
            getattr(self, word)(*rest)
        return self.tape

    def _open(self, kind: str) -> str:
        if self.message is None:
            self.number += 1
            self.index, self.kind = -1, ""
            self.message = []
            self.tape.fact(TurnStarted(self.number), ModelRequested(self.number, 1, f"m{self.number}"))
        if kind != self.kind:
            self.index, self.kind = self.index + 1, kind
        return f"m{self.number}"

    def text(self, piece: str) -> None:
        message_id = self._open("text")
        self.message.append(Text(piece))
        self.tape.tell(message_id, "text", self.index, piece)

    def tool_start(self, call_id: str, tool: str) -> None:
        message_id = self._open(call_id)
        self.message.append(ToolCall(call_id, tool))
        self.tape.tell(message_id, "arguments", self.index, "", call_id, tool)

    def tool_args(self, call_id: str, piece: str) -> None:
        call = self.message[-1]
        self.message[-1] = ToolCall(call_id, call.tool, raw_arguments=call.raw_arguments + piece)
        self.tape.tell(f"m{self.number}", "arguments", self.index, piece, call_id, call.tool)

    def tool_end(self, call_id: str) -> None:
        pass

    def _close(self) -> None:
        if self.message is not None:
            message = Message(f"m{self.number}", "assistant", tuple(self.message))
            self.tape.fact(ModelAttemptEnded(self.number, 1, "answered"), MessageAdded(message, self.number))
            self.message = None

    def tool_result(self, call_id: str, text: str) -> None:
        self._close()
        call = self.tape.state.calls[call_id]
        if call.state != "started":
            self.tape.fact(CallStarted(call_id, 1, call.tool, "d"))
        self.tape.fact(CallFinished(call_id, "succeeded", (Text(text),), attempt=1))

    def error(self, text: str) -> None:
        self.tape.save()
        self.tape.fact(ModelAttemptEnded(self.number, 1, "failed"))
        self.failure = Failed("auth", None, text)

    def resume(self, call_id: str, answer: str) -> None:
        assert answer == "approve"
        command = Command("agui:second", "run-1", Answer(f"ask-{call_id}", Allow()))
        self.tape.fact(CommandReceived(command, "d"), lane="host")
        self.second = self.tape.state.seq
        self.tape.fact(RequestResolved(f"ask-{call_id}", Allow()), causation=command.id)

    def end(self, how: str) -> None:
        if how == "complete":
            self._close()
            self.tape.fact(RunEnded(Completed()))
        elif how == "cancelled":
            self.tape.save()
            self.tape.fact(StopRequested("stop"), lane="host")
            self.tape.fact(ModelAttemptEnded(self.number, 1, "cancelled"), RunEnded(Cancelled("stop")))
        elif how == "error":
            self.tape.fact(RunEnded(self.failure))
        else:
            self._close()
            call = next(iter(self.tape.state.calls.values()))
            self.tape.fact(RequestOpened(Request(f"ask-{call.call_id}", "approval", call_id=call.call_id)))


def types(frames: list[Frame]) -> list[str]:
    words = {Snapshot: "SNAPSHOT", StateAt: "STATE"}
    return [
        words.get(type(frame.event)) or frame.event.type for frame in frames if frame.position is not None
    ]


def bare(**options: object) -> Projector:
    return Projector(NAMES, final_snapshot=False, **options)


@pytest.mark.parametrize("source", ["live", "journal"])
def test_text_then_tool(source: str) -> None:
    """Fixture 175: text ends before the call, the later text has another id, the parent was really sent."""
    tape = Scribe().write(neutral("175"))
    frames = project(tape.items if source == "live" else tape.records, bare())
    assert types(frames) == EXPECT["175"]["types"]
    starts = [frame.event for frame in frames if isinstance(frame.event, agui.TextMessageStart)]
    assert len({start.message_id for start in starts}) == 2
    call = next(frame.event for frame in frames if isinstance(frame.event, agui.ToolCallStart))
    assert call.parent_message_id == starts[0].message_id


@pytest.mark.parametrize("source", ["live", "journal"])
def test_abort_with_open_parts(source: str) -> None:
    """Fixture 176: what is open is closed before the one terminal event, in a replay too."""
    tape = Scribe().write(neutral("176"))
    frames = project(tape.items if source == "live" else tape.records, bare())
    *wanted, _ = EXPECT["176"]["types"]
    assert types(frames) == [*wanted, "RUN_FINISHED"]
    assert frames[-1].event.outcome == agui.CancelledEnd()


@pytest.mark.parametrize("source", ["live", "journal"])
def test_error_terminal(source: str) -> None:
    """Fixture 177: the cause is told in one line, once."""
    tape = Scribe().write(neutral("177"))
    frames = project(tape.items if source == "live" else tape.records, bare())
    assert types(frames) == EXPECT["177"]["types"]
    assert EXPECT["177"]["message_contains"] in frames[-1].event.message


def test_interrupt_and_resume() -> None:
    """Fixture 179: two segments, RUN_STARTED once in each, the result under the real id of the call."""
    scribe = Scribe()
    tape = scribe.write(neutral("179"))
    first = project(tape.items, bare(until=scribe.second))
    assert types(first)[-1] == "RUN_FINISHED"
    assert [ask.tool_call_id for ask in first[-1].event.outcome.interrupts] == ["c1"]
    second = project(
        tape.items, Projector(Names("thread-1", "second"), since=scribe.second, final_snapshot=False)
    )
    second = [frame for frame in second if frame.position is not None]
    assert types(second)[:2] == ["RUN_STARTED", "TOOL_CALL_RESULT"]
    assert second[0].event.run_id == "second"
    assert second[1].event.tool_call_id == "c1"
    assert types(second).count("RUN_STARTED") == types(first).count("RUN_STARTED") == 1
    for frames in (first, second):
        told = [frame.event for frame in frames if frame.position is not None]
        Verifier().check_all([event for event in told if not isinstance(event, StateAt)])


def test_a_run_at_rest_pauses_where_it_is_followed_live() -> None:
    """SV §6.1: a segment ends at a pause; the follower has nothing more to give at that moment."""
    scribe = Scribe()
    events = neutral("179")
    scribe.write(events[:4])
    projector = bare()
    frames = [frame for item in scribe.tape.items for frame in projector.feed(item)]
    assert not projector.ended
    frames += projector.rest()
    assert projector.ended
    places = [frame.position for frame in frames if frame.position is not None]
    assert places == sorted(set(places))
    again = bare(cursor=places[-1])
    repeated = [frame for item in scribe.tape.items for frame in again.feed(item)] + again.rest()
    assert [frame.event.type for frame in repeated] == ["RUN_FINISHED"]  # SV-49


def test_pending_client_calls_have_no_outcome_in_the_legacy_profile() -> None:
    """SV-91: the only form that works for CopilotKit, assistant-ui and 1.0 alike."""
    tape = Tape()
    tape.fact(RunStarted(), ModelRequested(1, 1, "m1"))
    tape.fact(
        MessageAdded(Message("m1", "assistant", (ToolCall("c1", "pick"),)), 1),
        ModelAttemptEnded(1, 1, "answered"),
    )
    tape.fact(RequestOpened(Request("x1", "external", call_id="c1")))
    for names, outcome in ((NAMES, agui.Success(["c1"])), (LEGACY, UNSET)):
        projector = Projector(names)
        for item in tape.items:
            projector.feed(item)
        assert projector.rest()[-1].event.outcome == outcome


def ended(outcome: object, names: Names = NAMES) -> list[agui.Event]:
    tape = Tape()
    tape.fact(RunStarted())
    if isinstance(outcome, Cancelled):
        tape.fact(StopRequested("stop"), lane="host")
    tape.fact(RunEnded(outcome))
    return [frame.event for frame in project(tape.items, Projector(names, final_snapshot=False))][1:]


@pytest.mark.parametrize(
    ("outcome", "new", "legacy"),
    [
        (Completed(), ["RUN_FINISHED:success"], ["RUN_FINISHED:success"]),
        (Truncated(), ["CUSTOM:pilothouse.truncated", "RUN_FINISHED:success"], None),
        (Incomplete("limit", "deadline"), ["CUSTOM:pilothouse.incomplete", "RUN_FINISHED:success"], None),
        (Incomplete("refusal"), ["CUSTOM:pilothouse.incomplete", "RUN_FINISHED:success"], None),
        (Cancelled("stop"), ["RUN_FINISHED:cancelled"], ["CUSTOM:pilothouse.cancelled", "RUN_FINISHED:"]),
        (
            Cancelled("superseded"),
            ["RUN_FINISHED:cancelled"],
            ["CUSTOM:pilothouse.cancelled", "RUN_FINISHED:"],
        ),
        (Failed("idle_timeout"), ["RUN_ERROR:idle_timeout"], None),
        (Failed("auth", "401"), ["RUN_ERROR:401"], None),
        (Failed("start_refused", "no_seat"), ["RUN_ERROR:no_seat"], None),
        (Unknown("eof"), ["RUN_ERROR:outcome_unknown"], None),
    ],
    ids=repr,
)
def test_the_terminal_table(outcome: object, new: list[str], legacy: list[str] | None) -> None:
    """RC-86, SV-90, SV-91: the AG-UI columns, row by row, in both profiles."""

    def said(event: agui.Event) -> str:
        if isinstance(event, agui.RunError):
            return f"RUN_ERROR:{event.code}"
        if isinstance(event, agui.Custom):
            return f"CUSTOM:{event.name}"
        kind = "" if event.outcome is UNSET else event.outcome.__struct_config__.tag
        return f"RUN_FINISHED:{kind}"

    assert [said(event) for event in ended(outcome)] == new
    assert [said(event) for event in ended(outcome, LEGACY)] == (legacy or new)


def test_falling_short_is_said_in_the_result() -> None:
    """RC-86: `result.pilothouse` names outcome and reason."""
    assert ended(Truncated())[-1].result == {"pilothouse": {"outcome": "truncated", "reason": "truncated"}}
    assert ended(Incomplete("limit", "turns"))[-1].result == {
        "pilothouse": {"outcome": "incomplete", "reason": "limit", "limit": "turns"}
    }


def lose(*after: object) -> Tape:
    tape = Tape()
    tape.fact(RunStarted(), ModelRequested(1, 1, "m1"))
    tape.tell("m1", "text", 0, "half an ans")
    tape.save()
    tape.fact(ContinuityLost(tape.state.seq, "owner_lost", "the process is gone"), lane="host")
    for fact in after:
        tape.fact(fact, lane="host" if isinstance(fact, ContinuityRestored | RunAbandoned) else "runtime")
    return tape


def test_a_lost_run_ends_as_unknown_and_keeps_its_text() -> None:
    """SV-55: unknown is told as such, behind what was seen."""
    frames = project(lose().items)
    assert types(frames)[-2:] == ["TEXT_MESSAGE_END", "RUN_ERROR"]
    assert frames[-1].event.code == "outcome_unknown"
    assert "the process is gone" in frames[-1].event.message


def test_an_abandoned_run_says_so() -> None:
    """RC-86: settled unknown is another code."""
    frames = project(lose(RunAbandoned("enough", "me")).items)
    assert frames[-1].event.code == "abandoned"


def test_a_recovered_run_goes_on_in_the_same_stream() -> None:
    """SV-94: whoever joins later sees one run, with a note where it was taken up again."""
    tape = lose(ContinuityRestored(5, "journal"), ModelAttemptEnded(1, 1, "interrupted"))
    tape.fact(ModelRequested(1, 2, "m2"), MessageAdded(Message("m2", "assistant", (Text("whole"),)), 1))
    tape.fact(RunEnded(Completed()))
    shown = Client().take(event for event, _ in tape.fill(project(tape.items)))
    assert shown.notes == ["pilothouse.recovered"]
    assert [shown.find(name)["content"] for name in ("m1", "m2")] == ["half an ans", "whole"]


def test_steering_is_shown_behind_the_message_that_is_being_made() -> None:
    """SV-77: one open part at a time; every follower sees what was taken in."""
    tape = Tape()
    tape.fact(RunStarted(), ModelRequested(1, 1, "m1"))
    tape.tell("m1", "text", 0, "I am ")
    command = Command("k", "run-1", Steer(Message("s1", "user", (Text("faster"),))))
    tape.fact(CommandReceived(command, "d"), lane="host")
    tape.fact(MessageAdded(command.body.message, 1), causation="k")
    tape.tell("m1", "text", 0, "working")
    tape.fact(MessageAdded(Message("m1", "assistant", (Text("I am working"),)), 1), RunEnded(Completed()))
    events = [frame.event for frame in project(tape.items) if not isinstance(frame.event, Snapshot)]
    Verifier().check_all(events)
    opened = [(event.message_id, event.role) for event in events if isinstance(event, agui.TextMessageStart)]
    assert opened == [("m1", "assistant"), ("s1", "user")]


def test_a_final_text_that_is_no_extension_is_corrected_by_a_snapshot() -> None:
    """SV-81: after the end, never by more deltas."""
    tape = Tape()
    tape.fact(RunStarted(), ModelRequested(1, 1, "m1"))
    tape.tell("m1", "text", 0, "The wrong")
    tape.fact(MessageAdded(Message("m1", "assistant", (Text("Another text"),)), 1), RunEnded(Failed("bug")))
    told = tape.fill(project(tape.items))
    kinds = [event.type for event, _ in told]
    assert kinds[3:5] == ["TEXT_MESSAGE_END", "MESSAGES_SNAPSHOT"]
    assert Client().take(event for event, _ in told).find("m1")["content"] == "Another text"


def test_parallel_calls_are_told_one_after_the_other() -> None:
    """SV-77: interleaved arguments are held back; once a call's are whole, the next one streams."""
    tape = Tape()
    tape.fact(RunStarted(), ModelRequested(1, 1, "m1"))
    for index, call_id, piece in [(0, "a", '{"x"'), (1, "b", '{"y"'), (0, "a", ":1}"), (1, "b", ":2}")]:
        tape.tell("m1", "arguments", index, piece, call_id, "t")
    projector = bare()
    events = [frame.event for item in tape.items for frame in projector.feed(item)]
    assert [(event.type, event.tool_call_id) for event in events[1:]] == [
        ("TOOL_CALL_START", "a"), ("TOOL_CALL_ARGS", "a"), ("TOOL_CALL_ARGS", "a"), ("TOOL_CALL_END", "a"),
        ("TOOL_CALL_START", "b"), ("TOOL_CALL_ARGS", "b"), ("TOOL_CALL_ARGS", "b"),
    ]  # fmt: skip


def test_text_behind_a_call_reopens_its_message() -> None:
    """SV-77: the same model message, the same id; clients append."""
    tape = Tape()
    tape.fact(RunStarted(), ModelRequested(1, 1, "m1"))
    parts = (Text("before "), ToolCall("c", "t", raw_arguments="{}"), Text("after"))
    tape.fact(MessageAdded(Message("m1", "assistant", parts), 1), CallStarted("c", 1, "t", "d"))
    tape.fact(CallFinished("c", "succeeded", (Text("1"),), attempt=1), RunEnded(Completed()))
    shown = Client().take(event for event, _ in tape.fill(project(tape.items)))
    assert shown.find("m1")["content"] == "before after"


def test_usage_is_told_by_model_and_absent_when_unknown() -> None:
    """SV §6.2: never zero."""
    tape = Tape()
    tape.fact(RunStarted(), ModelRequested(1, 1, "m1", "p", "big"))
    tape.fact(
        ModelAttemptEnded(1, 1, "failed", usage=Usage(5, output=1)), ModelRequested(1, 2, "m2", "p", "small")
    )
    tape.fact(ModelAttemptEnded(1, 2, "discarded"), ModelRequested(1, 3, "m3", "p", "big"))
    tape.fact(ModelAttemptEnded(1, 3, "answered", usage=Usage(7, cache_read=2)))
    tape.fact(MessageAdded(Message("m3", "assistant", (Text("x"),)), 1), RunEnded(Completed()))
    assert project(tape.items)[-1].event.usage == [
        agui.TokenUsage("p", "big", input_tokens=12, output_tokens=1, cached_input_tokens=2)
    ]
    assert b"usage" not in agui.encode(ended(Completed())[-1])


def test_a_lag_is_healed_by_the_next_fragment() -> None:
    """SV-43, SV-46: what was missed is told from the journal, once."""
    tape = Tape()
    tape.fact(RunStarted(), ModelRequested(1, 1, "m1"))
    for piece in "abcdef":
        tape.tell("m1", "text", 0, piece)
    tape.save()
    tape.tell("m1", "text", 0, "g")
    tape.tell("m1", "text", 0, "h")
    missed = [item for item in tape.items if getattr(item, "n", 0) not in (3, 4)]
    projector = bare()
    pieces = []
    for item in missed:
        pieces += [
            frame.event.delta
            for frame in projector.feed(item)
            if isinstance(frame.event, agui.TextMessageContent)
        ]
    assert pieces == ["a", "b", "cdef", "g", "h"]


def test_a_snapshot_carries_media_results_and_calls() -> None:
    """SV §6.2: the conversation in the words of the protocol, in both profiles."""
    path = [
        HistoryMessage(Message("s", "system", (Text("be kind"),)), "r"),
        HistoryMessage(
            Message(
                "u", "user", (Text("look"), Image("image/png", data=b"\x00"), File("text/x", "http://x/y"))
            ),
            "r",
        ),
        HistoryMessage(Message("a", "assistant", (Reasoning("hm"), ToolCall("c", "t", {"x": 1}))), "r"),
        HistoryMessage(
            Message("result:c", "tool", (Text("no"),), call_id="c", is_error=True),
            "r",
            call_outcome="refused",
        ),
        HistoryMessage(Message("p", "assistant", (Text("half"),)), "r", complete=False, end="unknown"),
    ]
    new = json.loads(agui.encode(agui.MessagesSnapshot(snapshot(path, profile="1.0"))))["messages"]
    assert new[1]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image", "source": {"type": "data", "value": "AA==", "mimeType": "image/png"}},
        {"type": "document", "source": {"type": "url", "value": "http://x/y", "mimeType": "text/x"}},
    ]
    assert new[2] == {"role": "reasoning", "id": "a:reasoning-0", "content": "hm"}
    assert new[3]["toolCalls"][0]["function"] == {"name": "t", "arguments": '{"x":1}'}
    assert new[4] == {
        "role": "tool",
        "id": "result:c",
        "content": "Refused: no",
        "toolCallId": "c",
        "error": "Refused: no",
    }
    assert new[5]["content"] == "half"
    old = json.loads(agui.encode(agui.MessagesSnapshot(snapshot(path, profile="legacy"))))
    assert [message["role"] for message in old["messages"]] == [
        "system",
        "user",
        "reasoning",
        "assistant",
        "tool",
        "assistant",
    ]
    assert old["messages"][1]["content"][1] == {"type": "binary", "mimeType": "image/png", "data": "AA=="}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Incorrect API key provided: sk-abcdef1234567890", "Incorrect API key provided: …"),
        ("bad token=abcdefgh12345678", "bad …"),
        ("cannot open /home/me/secret/key.pem\nTraceback (most recent call last)", "cannot open …"),
        ("https://user:pass@host/v1 refused", "https://…host/v1 refused"),
        ("HTTP 401 from provider", "HTTP 401 from provider"),
        ("x" * 31, "x" * 31),
        ("", ""),
    ],
)
def test_an_error_is_one_line_without_secrets(said: str, told: str) -> None:
    """SV-95."""
    assert one_line(said) == told


def test_full_detail_is_told_by_option_only() -> None:
    """SV-95, `error_detail`."""
    failed = Failed("auth", None, "no: sk-abcdef1234567890")
    assert error_text(failed) == "the provider refused the credentials (no: …)"
    assert error_text(failed, "full") == "no: sk-abcdef1234567890"


def test_a_piece_of_an_unrecorded_message_streams_from_its_first_character() -> None:
    """A foreign runtime need not record its model requests."""
    tape = Tape()
    tape.fact(RunStarted())
    tape.delta(TextTold("m1", 0, "he", 0))
    tape.delta(TextTold("m1", 0, "y", 2))
    projector = bare()
    frames = [frame for item in tape.items for frame in projector.feed(item)]
    assert types(frames) == [
        "RUN_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_CONTENT",
    ]
    assert frames[-1].position == Position(2, 0, 3)
