"""The AG-UI verifier (agent-contract §3.15)."""

from __future__ import annotations

import pytest

from pilothouse.core.agui import events as agui
from pilothouse.core.agui.verify import LEGAL, Phase, Verifier, Violation

START = agui.RunStarted("t", "r")
FINISH = agui.RunFinished("t", "r")
ERROR = agui.RunError("broke")


def text(message_id: str = "m", *, end: bool = True) -> list[agui.Event]:
    opened = [agui.TextMessageStart(message_id, "assistant"), agui.TextMessageContent(message_id, "a")]
    return [*opened, agui.TextMessageEnd(message_id)] if end else opened


def sub(event_type: type, *fields: object, of: str = "s1") -> agui.Event:
    return event_type(*fields, subagent_run_id=of)


LEGAL_STREAMS = [
    [START, FINISH],
    [ERROR],
    [START, ERROR],
    [START, FINISH, ERROR],
    [START, FINISH, agui.RunStarted("t", "r2"), *text(), FINISH],
    [START, ERROR, agui.RunStarted("t", "r2"), FINISH],
    [START, *text(), *text(), FINISH],  # a closed id may be opened again
    [START, *text(end=False), ERROR],  # an error needs nothing closed
    [START, agui.TextMessageStart("u", "user"), agui.TextMessageContent("u", ""), agui.TextMessageEnd("u"), FINISH],
    [START, agui.ToolCallResult("x", "never-announced", "1"), FINISH],
    [START, agui.ToolCallStart("c", "f", "unknown"), agui.ToolCallArgs("c", "{}"), agui.ToolCallEnd("c"), FINISH],
    [START, agui.ReasoningStart("r"), agui.ReasoningMessageStart("r", "reasoning"),
     agui.ReasoningMessageContent("r", "hm"), agui.ReasoningMessageEnd("r"), agui.ReasoningEnd("r"), FINISH],
    [START, agui.StepStarted("s"), agui.StepFinished("s"), agui.StepStarted("s"), agui.StepFinished("s"), FINISH],
    [START, agui.StateDelta([{"op": "add", "path": "/a", "value": None}]), agui.Custom("x", None), FINISH],
    [START, agui.ActivityDelta("a", "plan", [{"op": "remove", "path": ""}]), FINISH],
    [START, sub(agui.SubagentStarted, "helper"), sub(agui.TextMessageStart, "m", "assistant"),
     agui.TextMessageContent("m", "a"), agui.TextMessageEnd("m"), sub(agui.SubagentFinished), FINISH],
]  # fmt: skip


@pytest.mark.parametrize("stream", LEGAL_STREAMS)
def test_legal_streams_pass(stream: list[agui.Event]) -> None:
    Verifier().check_all(stream)


VIOLATIONS = [
    ([FINISH], "begins with RUN_STARTED"),
    (text()[:1], "begins with RUN_STARTED"),
    ([START, START], "has not ended"),
    ([START, FINISH, *text()[:1]], "has finished"),
    ([START, ERROR, FINISH], "has failed"),
    ([START, *text(end=False), FINISH], "still open: text message m"),
    ([START, *text(end=False), agui.TextMessageStart("m", "assistant")], "open already"),
    ([START, agui.TextMessageContent("m", "a")], "not open"),
    ([START, agui.TextMessageEnd("m")], "not open"),
    ([START, agui.ToolCallArgs("c", "a")], "not open"),
    ([START, agui.ToolCallStart("c", "f"), FINISH], "still open: tool call c"),
    ([START, agui.ReasoningMessageContent("r", "a")], "not open"),
    ([START, agui.ReasoningStart("r"), FINISH], "reasoning span r"),
    ([START, agui.ReasoningMessageStart("r", "reasoning"), FINISH], "reasoning message r"),
    ([START, agui.StepFinished("s")], "not open"),
    ([START, agui.StepStarted("s"), agui.StepStarted("s")], "open already"),
    ([START, agui.StepStarted("s"), sub(agui.StepFinished, "s")], "not open"),
    ([START, agui.RunFinished("t", "r", outcome=agui.Interrupted([]))], "at least one"),
    ([START, agui.StateDelta([{"op": "set", "path": "/a"}])], "RFC 6902"),
    ([START, agui.StateDelta([{"op": "add", "path": "/a"}])], "RFC 6902"),
    ([START, agui.StateDelta([{"op": "remove", "path": "a"}])], "JSON pointer"),
    ([START, sub(agui.SubagentFinished)], "not active"),
    ([START, agui.SubagentStarted("x")], "names no subagent"),
    ([START, sub(agui.SubagentStarted, "x"), FINISH], "still open: subagent s1"),
    ([START, sub(agui.SubagentStarted, "x"), sub(agui.SubagentStarted, "x")], "started before"),
    ([START, sub(agui.TextMessageStart, "m", "assistant"), sub(agui.TextMessageEnd, "m", of="s2")], "belongs to s1"),
    ([START, sub(agui.TextMessageStart, "m", "assistant"), sub(agui.ToolCallStart, "c", "f", "m", of="s2")],
     "parent message m belongs to s1"),
    ([START, agui.MessagesSnapshot([], subagent_run_id="s1")], "cannot belong to a subagent"),
]  # fmt: skip


@pytest.mark.parametrize(("stream", "why"), VIOLATIONS)
def test_violations_are_named(stream: list[agui.Event], why: str) -> None:
    """Each rule of the table, broken by the last event; nothing before it is in the way."""
    verifier = Verifier()
    for event in stream[:-1]:
        verifier.check(event)
    with pytest.raises(Violation, match=why):
        verifier.check(stream[-1])


@pytest.mark.parametrize(
    "event",
    [
        agui.RunFinished("t", "r", outcome=agui.CancelledEnd()),
        agui.RunFinished("t", "r", outcome=agui.Success(["c"])),
        sub(agui.SubagentStarted, "x"),
        sub(agui.TextMessageStart, "m", "assistant"),
    ],
)
def test_the_legacy_profile_refuses_what_old_clients_cannot_take(event: agui.Event) -> None:
    """SV-91."""
    for profile, legal in (("1.0", True), ("legacy", False)):
        verifier = Verifier(profile)
        verifier.check(START)
        if legal:
            verifier.check(event)
        else:
            with pytest.raises(Violation):
                verifier.check(event)


def test_a_stream_without_an_end_is_told_apart() -> None:
    with pytest.raises(ValueError, match="without RUN_FINISHED"):
        Verifier().check_all([START, *text()])


def test_every_kind_of_event_is_legal_somewhere() -> None:
    assert set().union(*LEGAL.values()) == set(agui.TYPES)
    assert set(LEGAL) == set(Phase)
