"""AG-UI events to parts of a UI message stream: every kind, every end, and whole random runs (server page §9)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from aguikit import Item, Tape, invent
from pilothouse.commands import Request
from pilothouse.core.agui import events as agui
from pilothouse.core.agui.ends import Names, ending, pausing
from pilothouse.core.agui.project import Projector
from pilothouse.core.aisdk.parts import DONE, ENDS, Chunk, Translator, UIFlow, message_id, run_id_of, written
from pilothouse.events import (
    Cancelled,
    Completed,
    Delta,
    Failed,
    Incomplete,
    Outcome,
    TextTold,
    Truncated,
    Unknown,
)
from pilothouse.records import Record

NAMES = Names("thread-1", "run-1", profile="legacy", steps=True)
KNOWN = {
    "start", "start-step", "finish-step", "finish", "error", "abort", "text-start", "text-delta", "text-end",
    "reasoning-start", "reasoning-delta", "reasoning-end", "tool-input-start", "tool-input-delta",
    "tool-input-available", "tool-input-error", "tool-output-available", "tool-output-error", "tool-output-denied",
    "tool-approval-request",
}  # fmt: skip


def told(tape: Tape, items: Sequence[Item]) -> list[Chunk]:
    """All parts of a stream that ended, from its start."""
    projector = Projector(NAMES, final_snapshot=False, flow=UIFlow)
    frames = []
    for item in items:
        frames += projector.feed(item)
    frames += [*projector.rest(), *projector.finish()]
    translator = Translator(message_id("run-1"))
    return [chunk for event, _ in tape.fill(frames, "legacy") for chunk in translator.take(event)]


class Page:
    """What the client makes of parts; it fails as the client does."""

    def __init__(self) -> None:
        self.messages: dict[str, list[dict[str, Any]]] = {}
        self.parts: list[dict[str, Any]] = []
        self.open: dict[str, dict[str, Any]] = {}
        self.ends: list[str] = []

    def take(self, chunks: Iterable[Chunk]) -> Page:
        for chunk in chunks:
            assert not self.ends, "something behind the end"
            self._take(chunk)
        return self

    def _take(self, chunk: Chunk) -> None:
        kind = chunk["type"]
        if kind.startswith("data-pilothouse-"):
            assert chunk["transient"] is True
            return
        assert kind in KNOWN, kind
        family, _, step = kind.partition("-")
        match (family, step):
            case ("start", ""):
                self.parts = self.messages[chunk["messageId"]] = []  # a client that resumes replaces it
            case ("text" | "reasoning", "start"):
                assert not self.open, "two open parts"
                part = self.open[chunk["id"]] = {"type": family, "id": chunk["id"], "text": ""}
                self.parts.append(part)
            case ("text" | "reasoning", "delta"):
                self.open[chunk["id"]]["text"] += chunk["delta"]
            case ("text" | "reasoning", "end"):
                assert self.open.pop(chunk["id"])["text"]
            case ("tool", "input-start"):
                assert not self.open
                self.parts.append({"type": "tool", "id": chunk["toolCallId"], "tool": chunk["toolName"]})
            case ("tool", "input-delta"):
                part = self._tool(chunk)
                part["raw"] = part.get("raw", "") + chunk["inputTextDelta"]
            case ("tool", _):
                self._tool(chunk)[step] = {name: value for name, value in chunk.items() if name != "type"}
            case ("start", "step"):
                self.parts.append({"type": "step-start"})
        if kind in ENDS:
            assert not self.open, "a part is open behind the end"
            self.ends.append(kind)

    def _tool(self, chunk: Chunk) -> dict[str, Any]:
        return next(part for part in self.parts if part.get("id") == chunk["toolCallId"])


@pytest.mark.parametrize("seed", range(150))
def test_any_run_is_legal_and_ends_once(seed: int) -> None:
    """SV-200, SV-201, fixture 181: only known types, no part open behind the one end, `[DONE]` behind it alone."""
    tape = invent(seed)
    chunks = told(tape, tape.items)
    page = Page().take(chunks)
    assert len(page.ends) == 1
    data = b"".join([written(chunk) for chunk in chunks])
    assert data.endswith(DONE)
    assert data.count(DONE) == 1


@pytest.mark.parametrize("seed", range(40))
def test_cut_behind_every_part_the_replay_replaces_the_message(seed: int) -> None:
    """SV-202, fixture 182: what was seen before a cut, then all of it from `start`, is the unbroken message once."""
    tape = invent(seed)
    whole = told(tape, tape.items)
    wanted = Page().take(whole).messages
    earlier = {"m1": [{"type": "text", "id": "x", "text": "previous answer"}]}
    for cut in range(len(whole)):
        page = Page()
        page.messages.update(earlier)
        page.take(whole[:cut])
        page.open.clear()  # the client begins a new state
        assert page.take(told(tape, tape.items)).messages == {**earlier, **wanted}
    # From the journal alone, as after a restart.
    assert Page().take(told(tape, tape.records)).messages == wanted


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        (Completed(), {"type": "finish", "finishReason": "stop"}),
        (Truncated(), {"type": "finish", "finishReason": "length"}),
        (Incomplete("limit", "turns"), {"type": "finish", "finishReason": "other"}),
        (Cancelled("stop"), {"type": "abort", "reason": "stop"}),
        (Cancelled("superseded"), {"type": "abort", "reason": "superseded"}),
        (Failed("auth", None, "HTTP 401"), {"type": "error", "errorText": "the provider refused the credentials (HTTP 401)"}),
        (Unknown("owner_lost"), {"type": "error", "errorText": "the outcome is unknown: owner lost"}),
        (
            Unknown("owner_lost", "enough", settled=True),
            {"type": "error", "errorText": "the outcome is unknown, and was left so: enough"},
        ),
    ],
)  # fmt: skip
def test_each_outcome_has_its_end(outcome: Outcome, end: Chunk) -> None:
    """SV-201, the table of ends, both profiles of what is read."""
    for profile in ("legacy", "1.0"):
        names = Names("t", "r", profile=profile)  # type: ignore[arg-type]
        translator = Translator("m")
        made = [chunk for event in ending(names, outcome) for chunk in translator.take(event)]
        if profile == "1.0" and end["type"] == "abort":  # that profile does not tell the reason
            end = {"type": "abort", "reason": "cancelled"}
        assert [chunk for chunk in made if chunk["type"] in ENDS] == [end]


@pytest.mark.parametrize("kind", ["approval", "external", "input"])
def test_each_wait_ends_with_the_calls(kind: Any) -> None:
    """SV-201, SV-203: `tool-calls`; an approval is asked at its call, what the protocol cannot ask is a note."""
    translator = Translator("m")
    translator.take(agui.ToolCallStart("c1", "buy", "m1"))
    waiting = pausing(NAMES, [Request("q1", kind, call_id="c1", prompt="Well?")])
    made = [chunk for event in waiting for chunk in translator.take(event)]
    assert made[-1] == {"type": "finish", "finishReason": "tool-calls"}
    before = {
        "approval": [{"type": "tool-approval-request", "approvalId": "q1", "toolCallId": "c1"}],
        "external": [],
    }
    if kind in before:
        assert made[:-1] == before[kind]
    else:
        assert [chunk["type"] for chunk in made[:-1]] == ["data-pilothouse-request"]


def test_every_kind_of_event_gives_known_parts_or_none() -> None:
    """SV-200: no other type ever: an unknown one fails the client's run."""
    given: list[agui.Event] = [
        agui.RunStarted("t", "r"), agui.StepStarted("turn 1"), agui.StepFinished("turn 1"),
        agui.TextMessageStart("m", "assistant"), agui.TextMessageContent("m", "a"), agui.TextMessageEnd("m"),
        agui.TextMessageChunk("m", "assistant", "a"), agui.ToolCallStart("c", "t"), agui.ToolCallArgs("c", "{"),
        agui.ToolCallEnd("c"), agui.ToolCallChunk("c", "t", "m", "{"), agui.ToolCallResult("r", "c", "x", "tool"),
        agui.StateSnapshot({"a": 1}), agui.StateDelta([]), agui.MessagesSnapshot([]),
        agui.ActivitySnapshot("a", "subagent", {}), agui.ActivityDelta("a", "subagent", []),
        agui.ReasoningStart("n"), agui.ReasoningMessageStart("n", "reasoning"), agui.ReasoningMessageContent("n", "h"),
        agui.ReasoningMessageEnd("n"), agui.ReasoningMessageChunk("n", "h"), agui.ReasoningEnd("n"),
        agui.ReasoningEncryptedValue("message", "n", "x"), agui.SubagentStarted("s", subagent_run_id="s"),
        agui.SubagentFinished(subagent_run_id="s"), agui.SubagentError("no", subagent_run_id="s"), agui.Raw({}),
        agui.Custom("somebody.else", None), agui.TextMessageContent("m", "theirs", subagent_run_id="s"),
    ]  # fmt: skip
    ends: list[agui.Event] = [agui.RunFinished("t", "r", outcome=agui.Success()), agui.RunError("no")]
    assert {type(event) for event in (*given, *ends)} == set(agui.TYPES.values())
    for end in ends:
        translator = Translator("m")
        page = Page().take([chunk for event in (*given, end) for chunk in translator.take(event)])
        assert page.messages["m"][1] == {"type": "text", "id": "m", "text": "a"}
        (tool,) = [part for part in page.parts if part["type"] == "tool"]
        assert tool["input-error"]["input"] == "{"


def test_results_are_values_and_say_how_they_fell_short() -> None:
    """SV-200: objects as such; refused after an approval is denied, which was asked; failed is an error; unknown calls are not told."""

    def result(call: str, text: str, outcome: str) -> agui.ToolCallResult:
        said = {"pilothouse": {"outcome": outcome}}
        return agui.ToolCallResult(f"result:{call}", call, text, "tool", metadata=said)

    translator = Translator(None, has=["a", "b", "c", "d", "e", "mine"], answered=["mine"])
    translator.asked("c", "q-c", known=False)
    translator.asked("d", "q-d", known=True)
    assert translator.take(agui.RunStarted("t", "r2")) == [{"type": "start"}]
    assert translator.take(agui.StepStarted("turn 1")) == []  # the client's message has it
    made = [
        chunk
        for event in (
            result("a", '{"t": 3.1}', "succeeded"), result("b", "[x", "succeeded"), result("c", "Refused", "refused"),
            result("d", "Refused", "refused"), result("e", "Error: no", "failed"), result("mine", "5", "succeeded"),
            result("nobody's", "5", "succeeded"),
        )
        for chunk in translator.take(event)
    ]  # fmt: skip
    assert made == [
        {"type": "tool-output-available", "toolCallId": "a", "output": {"t": 3.1}},
        {"type": "tool-output-available", "toolCallId": "b", "output": "[x"},
        {"type": "tool-approval-request", "approvalId": "q-c", "toolCallId": "c"},
        {"type": "tool-output-denied", "toolCallId": "c"},
        {"type": "tool-output-denied", "toolCallId": "d"},
        {"type": "tool-output-error", "toolCallId": "e", "errorText": "Error: no"},
    ]


def test_flowing_text_is_written_as_its_parts_are() -> None:
    """SV-43, SV-44: the short way gives, byte for byte, what the long way gives, and several pieces as one."""
    tape = invent(3)
    for seed in range(60):
        tape = invent(seed)
        projector = Projector(NAMES, final_snapshot=False, flow=UIFlow)
        translator = Translator("m")
        for item in tape.items:
            flow = projector.flow
            if (
                flow is not None
                and type(item) is Delta
                and isinstance(item.body, TextTold)
                and flow.take(item)
            ):
                chunk = {"type": "text-delta", "id": item.body.message_id, "delta": item.body.text}
                assert flow.write() == written(chunk)
                continue
            assert isinstance(item, Record | Delta)
            for event, _ in tape.fill(projector.feed(item), "legacy"):
                translator.take(event)


def test_ids_of_runs_are_found_again() -> None:
    """SV-202: the message of a run is named by it."""
    assert run_id_of(message_id("r:1")) == "r:1"
    assert run_id_of("u1") is None
    assert json.loads(written({"type": "start", "messageId": "\u2028"})[6:])["messageId"] == "\u2028"
