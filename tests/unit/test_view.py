"""The bounded view of a run (RC-30, RC-50)."""

from __future__ import annotations

import pytest

from oracles.alphabet import HOST, NONE, OPERATION, RUNTIME, TOOL
from oracles.desk import RUN_ID, Desk
from pilothouse.commands import Command, Request, Steer
from pilothouse.core.canonical import digest_of
from pilothouse.core.view import TEXT_LIMIT, view, view_digest
from pilothouse.events import (
    AnyFact,
    CallProposed,
    CallStarted,
    Cancelled,
    CommandAnswered,
    CommandReceived,
    Completed,
    ContinuityLost,
    Failed,
    Incomplete,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    RequestOpened,
    RunAbandoned,
    RunEnded,
    RunStarted,
    StopRequested,
    Truncated,
    TurnStarted,
)
from pilothouse.messages import Message, Text, Usage
from pilothouse.records import CallView, Descriptor, Draft, Registration, RunSpec, RunView

SPEC = RunSpec(RUN_ID, "thread", (Message("input", "user", (Text("hi"),)),), tenant="acme")
REGISTRATION = Registration(SPEC, digest_of(SPEC), "default", "descriptor", "identity", 5)
DESCRIPTOR = Descriptor(
    "test",
    commands=("steer", "follow_up", "answer", "cancel", "withdraw", "replace"),
    cancel="confirmed",
    recovery="journal",
)
BEGUN = (RunStarted(), RUNTIME)
LOST = (ContinuityLost(2, "eof", "why"), HOST)
LONG = "x" * 2_000


def seen(
    *facts: tuple[AnyFact, str], ownership: str = "here", descriptor: Descriptor | None = DESCRIPTOR
) -> RunView:
    return view(after(*facts).state, REGISTRATION, fence=1, ownership=ownership, descriptor=descriptor)


def after(*facts: tuple[AnyFact, str]) -> Desk:
    made = Desk()
    for fact, lane in facts:
        cause = fact.command_id if isinstance(fact, CommandAnswered) else None
        verdict, made = made.offer((Draft(fact, causation=cause), lane))
        assert verdict.kind == "legal", (fact, verdict)
    return made


def steer(command_id: str) -> list[tuple[AnyFact, str]]:
    command = Command(command_id, RUN_ID, Steer(Message(f"m-{command_id}", "user")))
    return [(CommandReceived(command, "digest"), HOST), (CommandAnswered(command_id, "accepted"), HOST)]


def test_it_shows_what_is_open_and_nothing_of_the_transcript() -> None:
    """RC-30: pending and calls sorted by id, inputs in their order."""
    found = seen(
        BEGUN,
        *steer("b"),
        *steer("a"),
        (CallProposed("c2", TOOL), RUNTIME),
        (CallProposed("c1", TOOL), RUNTIME),
        (CallStarted("c1", 1, TOOL, NONE), RUNTIME),
        (RequestOpened(Request("r2", "approval", call_id="c2", operation_digest=OPERATION)), RUNTIME),
        (RequestOpened(Request("r1", "input")), RUNTIME),
        (MessageAdded(Message("m", "assistant", (Text("never shown here"),))), RUNTIME),
    )
    assert [request.id for request in found.requests] == ["r1", "r2"]
    assert found.queued == ("b", "a")
    assert found.calls == (CallView("c1", TOOL, "started", 1), CallView("c2", TOOL, "awaiting"))
    assert (found.state, found.status, found.thread_id, found.tenant) == (
        "waiting",
        "waiting",
        "thread",
        "acme",
    )
    assert "never shown here" not in str(found)


@pytest.mark.parametrize(
    ("outcome", "status", "stopped"),
    [
        (Completed(), "completed", False),
        (Truncated(), "truncated", False),
        (Incomplete("limit"), "incomplete", False),
        (Failed("provider"), "failed", False),
        (Cancelled("enough"), "cancelled", True),
    ],
)
def test_an_ended_run_has_its_outcome_s_word_and_nothing_open(
    outcome: object, status: str, stopped: bool
) -> None:
    """RC-30, RC-86: terminal ⇒ nothing pending, queued or open; nothing can be asked any more."""
    opened = () if status in ("completed", "truncated") else (
        (CallProposed("c1", TOOL), RUNTIME), (RequestOpened(Request("r1", "input")), RUNTIME),
    )  # fmt: skip
    stop = ((StopRequested("enough"), HOST),) if stopped else ()
    found = seen(BEGUN, *steer("a"), *opened, *stop, (RunEnded(outcome), RUNTIME), ownership="none")
    assert (found.state, found.status, found.outcome) == ("terminal", status, outcome)
    assert (found.requests, found.queued, found.calls, found.can) == ((), (), (), ())


def test_texts_are_cut() -> None:
    """RC-30: whatever a runtime told, a view stays small."""
    waiting = seen(BEGUN, (RequestOpened(Request("r1", "input", prompt=LONG)), RUNTIME))
    assert len(waiting.requests[0].prompt) == TEXT_LIMIT
    failed = seen(BEGUN, (RunEnded(Failed("provider", message=LONG)), RUNTIME))
    assert len(failed.outcome.message) == TEXT_LIMIT
    lost = seen(BEGUN, (ContinuityLost(2, "error", LONG), HOST))
    assert len(lost.unknown.reason) == TEXT_LIMIT
    stopped = seen(BEGUN, (StopRequested(LONG), HOST), (RunEnded(Cancelled(LONG)), RUNTIME))
    assert len(stopped.outcome.reason) == TEXT_LIMIT
    assert seen(BEGUN, (RunEnded(Failed("provider", message="short")), RUNTIME)).outcome.message == "short"


def test_usage_is_summed_over_attempts() -> None:
    """§2.3."""
    found = seen(
        BEGUN,
        (TurnStarted(1), RUNTIME),
        (ModelRequested(1, 1, "m"), RUNTIME),
        (ModelAttemptEnded(1, 1, "failed", usage=Usage(10, output=1)), RUNTIME),
        (ModelRequested(1, 2, "m"), RUNTIME),
        (ModelAttemptEnded(1, 2, "answered", usage=Usage(20, output=2)), RUNTIME),
        (ModelRequested(1, 3, "m"), RUNTIME),
        (ModelAttemptEnded(1, 3, "failed"), RUNTIME),
    )
    assert found.usage == Usage(30, output=3)
    assert found.turn == 1


@pytest.mark.parametrize(
    ("facts", "can"),
    [
        ((), ("steer", "follow_up", "withdraw", "replace", "cancel")),
        ((BEGUN,), ("steer", "follow_up", "withdraw", "replace", "cancel")),
        (
            (BEGUN, (RequestOpened(Request("r1", "input", blocking=False)), RUNTIME)),
            ("steer", "follow_up", "withdraw", "replace", "answer", "cancel"),
        ),
        ((BEGUN, (StopRequested("enough"), HOST)), ("cancel",)),
        ((BEGUN, LOST), ()),
        ((BEGUN, (RunEnded(Completed()), RUNTIME)), ()),
    ],
)
def test_it_says_which_commands_are_accepted_now(facts: tuple, can: tuple[str, ...]) -> None:
    """§3.7."""
    assert seen(*facts).can == can
    assert seen(*facts, descriptor=None).can == ()
    assert seen(*facts, descriptor=Descriptor("test")).can == ()
    deaf = Descriptor("test", commands=DESCRIPTOR.commands, cancel="none")
    assert seen(*facts, descriptor=deaf).can == tuple(kind for kind in can if kind != "cancel")


@pytest.mark.parametrize(
    ("recovery", "ways"),
    [("journal", ("recover", "abandon")), ("replay", ("recover", "abandon")), ("query", ("check_status", "abandon")),
     (None, ("abandon",))],
)  # fmt: skip
def test_an_unknown_run_says_why_and_what_can_help(recovery: str | None, ways: tuple[str, ...]) -> None:
    """§3.10."""
    unknown = seen(BEGUN, LOST, ownership="none", descriptor=Descriptor("test", recovery=recovery)).unknown
    assert (unknown.cause, unknown.reason, unknown.loss_seq, unknown.ways) == ("eof", "why", 3, ways)
    assert seen(BEGUN, LOST, ownership="none", descriptor=None).unknown.ways == ("abandon",)


def test_an_abandoned_run_keeps_why_and_needs_no_way_out() -> None:
    """RC-60."""
    found = seen(BEGUN, LOST, (RunAbandoned("nobody knows", "me"), HOST), ownership="none")
    assert (found.state, found.status) == ("terminal", "unknown")
    assert (found.unknown.cause, found.unknown.ways) == ("eof", ())
    assert (found.outcome.settled, found.outcome.by) == (True, "me")


def test_an_orphan_is_shown_as_unknown_unless_it_rests_or_has_ended() -> None:
    """RC-50: without a write."""
    found = seen(BEGUN, ownership="orphaned")
    assert (found.state, found.status, found.unknown.cause) == ("unknown", "unknown", "owner_lost")
    resting = seen(BEGUN, (RequestOpened(Request("r1", "input")), RUNTIME), ownership="orphaned")
    assert (resting.state, resting.unknown) == ("waiting", None)
    assert seen(BEGUN, (RunEnded(Completed()), RUNTIME), ownership="orphaned").status == "completed"


def test_a_run_with_something_in_flight_does_not_rest() -> None:
    """RC-50: an open model request, or a started call that waits for nobody."""
    question = (RequestOpened(Request("r1", "input")), RUNTIME)
    asking = [(TurnStarted(1), RUNTIME), (ModelRequested(1, 1, "m"), RUNTIME)]
    calling = [(CallProposed("c1", TOOL), RUNTIME), (CallStarted("c1", 1, TOOL, NONE), RUNTIME)]
    assert not after(BEGUN).state.resting
    assert after(BEGUN, question).state.resting
    assert not after(BEGUN, *asking, question).state.resting
    assert not after(BEGUN, *calling, question).state.resting
    human = (RequestOpened(Request("r2", "input", call_id="c1")), RUNTIME)
    assert after(BEGUN, *calling, human).state.resting
    assert after(BEGUN, (CallProposed("c1", TOOL), RUNTIME), question).state.resting
    assert not after(BEGUN, question, (StopRequested("enough"), HOST)).state.resting


def test_the_digest_covers_the_facts_and_not_who_looks() -> None:
    """RC-30."""
    found = seen(BEGUN)
    elsewhere = seen(BEGUN, ownership="elsewhere", descriptor=None)
    assert view_digest(found) == view_digest(elsewhere) == view_digest(seen(BEGUN))
    assert view_digest(found) != view_digest(seen(BEGUN, (TurnStarted(1), RUNTIME)))
    orphan = seen(BEGUN, ownership="orphaned")
    assert view_digest(orphan) == view_digest(found)
