"""What the writer puts in front of a fact, and the ids that facts have of themselves (RC-13, RC-22, RC-27)."""

from __future__ import annotations

import pytest

from oracles.alphabet import HOST, NONE, OPERATION, RUNTIME, TOOL
from oracles.desk import RUN_ID, Desk
from pilothouse.commands import Allow, Answer, Command, InputAnswer, Request, Steer
from pilothouse.core.canonical import KINDS
from pilothouse.core.settling import event_id_of, expand
from pilothouse.events import (
    AnyFact,
    CallFinished,
    CallObserved,
    CallProposed,
    CallStarted,
    Cancelled,
    CommandAnswered,
    CommandReceived,
    Completed,
    ContinuityLost,
    Failed,
    Incomplete,
    InputReturned,
    MessageAdded,
    Noted,
    PartialSaved,
    RequestClosed,
    RequestOpened,
    RequestResolved,
    RunAbandoned,
    RunEnded,
    RunStarted,
    StartRefused,
    StopRequested,
    Truncated,
    TurnStarted,
)
from pilothouse.messages import Message, Text, ToolCall
from pilothouse.records import Draft

MESSAGE = MessageAdded(Message("m2", "user", (Text("and this"),)))


def after(*facts: tuple[AnyFact, str] | tuple[AnyFact, str, str]) -> Desk:
    """A run after these facts."""
    made = Desk()
    for fact, lane, *cause in facts:
        verdict, made = made.offer((Draft(fact, causation=cause[0] if cause else None), lane))
        assert verdict.kind == "legal", (fact, verdict)
    return made


def received(command_id: str, body: object) -> tuple[AnyFact, str]:
    return CommandReceived(Command(command_id, RUN_ID, body), "digest"), HOST


STEER = received("steer", Steer(MESSAGE.message))


def front(made: Desk, fact: AnyFact, lane: str = RUNTIME, causation: str | None = None) -> list[AnyFact]:
    return [draft.fact for draft, _ in expand(made.state, Draft(fact, causation=causation), lane)]


# run_started


@pytest.mark.parametrize(
    "fact",
    [TurnStarted(1), Noted("test/x"), CommandAnswered("steer", "accepted"), MESSAGE, RunEnded(Completed()),
     RunEnded(Truncated()), RunEnded(Cancelled("enough"))],
)  # fmt: skip
@pytest.mark.parametrize("stopping", [False, True])
def test_a_start_stands_in_front_of_the_first_fact_of_a_runtime(fact: AnyFact, stopping: bool) -> None:
    """§3.5: if it did not record it itself."""
    made = after(STEER, *([(StopRequested("enough"), HOST)] if stopping else []))
    assert front(made, fact)[0] == RunStarted()


def test_no_start_stands_in_front_of_a_start_or_of_an_early_incomplete_or_failed_end() -> None:
    """§3.5: failing straight from accepted is legal."""
    for fact in (RunStarted(), RunEnded(Incomplete("limit")), RunEnded(Failed("provider"))):
        assert front(after(), fact) == []


def test_no_start_stands_in_front_of_what_the_host_writes_or_of_a_later_fact() -> None:
    """§3.5."""
    assert front(after(STEER), CommandAnswered("steer", "accepted"), HOST) == []
    assert front(after((RunStarted(), RUNTIME)), TurnStarted(1)) == []
    for end in ((ContinuityLost(1, "eof"), HOST), (RunEnded(Failed("x")), RUNTIME)):
        assert front(after(end), TurnStarted(1)) == []


# Implied acceptance


def test_an_effect_accepts_its_command_unless_that_is_answered() -> None:
    """RC-22."""
    made = after((RunStarted(), RUNTIME), STEER)
    assert front(made, MESSAGE, causation="steer") == [CommandAnswered("steer", "accepted", implied=True)]
    assert front(made, MESSAGE, causation="nobody") == []
    made = after((RunStarted(), RUNTIME), STEER, (CommandAnswered("steer", "accepted"), HOST, "steer"))
    assert front(made, MESSAGE, causation="steer") == []


# Settling


def calls(*states: str) -> list[tuple]:
    """Calls c0, c1, … in these states."""
    facts: list[tuple] = []
    for index, state in enumerate(states):
        call_id = f"c{index}"
        kind, _, detail = state.partition(" ")
        facts.append((CallProposed(call_id, TOOL), RUNTIME))
        if kind == "awaiting":
            request = Request(f"q{index}", "approval", call_id=call_id, operation_digest=OPERATION)
            facts.append((RequestOpened(request), RUNTIME))
        if kind in ("started", "observed"):
            effect = detail if detail in ("read", "idempotent", "human") else "non_idempotent"
            started = CallStarted(call_id, 1, TOOL, NONE, effect, mediated=detail != "foreign")
            facts.append((started, RUNTIME))
        if kind == "observed":
            facts.append((CallObserved(call_id, 1, detail, (Text("seen"),)), RUNTIME))
    return facts


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("proposed", "cancelled"),
        ("awaiting", "cancelled"),
        ("started", "unknown"),
        ("started read", "unknown"),
        ("started foreign", "unknown"),
        ("observed returned", "succeeded"),
        ("observed raised", "failed"),
        ("observed cancelled", "unknown"),
        ("observed timed_out", "unknown"),
        ("observed reconciled", "succeeded"),
    ],
)
@pytest.mark.parametrize("end", ["incomplete", "failed", "cancelled", "abandoned"])
def test_an_end_gives_each_open_call_its_one_result(state: str, outcome: str, end: str) -> None:
    """RC-27, EF-2: a call that never ran is cancelled, one that may have run is unknown, one that was seen is that."""
    steps = {
        "incomplete": [(RunEnded(Incomplete("limit")), RUNTIME)],
        "failed": [(RunEnded(Failed("provider")), RUNTIME)],
        "cancelled": [(StopRequested("enough"), HOST), (RunEnded(Cancelled("enough")), RUNTIME)],
        "abandoned": [(ContinuityLost(1, "eof"), HOST), (RunAbandoned("nobody knows"), HOST)],
    }[end]
    made = after((RunStarted(), RUNTIME), *calls(state), *steps[:-1])
    facts = front(made, *steps[-1])
    results = [fact for fact in facts if isinstance(fact, CallFinished)]
    assert [(result.call_id, result.outcome, result.by) for result in results] == [("c0", outcome, "host")]
    verdict, made = made.offer((Draft(steps[-1][0]), steps[-1][1]))
    assert verdict.kind == "legal"
    assert made.state.phase == "terminal"
    assert [made.state.calls, made.state.requests, made.state.queued] == [{}, {}, {}]


def test_an_end_settles_all_that_is_open_in_the_same_append() -> None:
    """RC-27: calls in order, then requests, then inputs; answered or not."""
    made = after(
        (RunStarted(), RUNTIME),
        *calls("started", "awaiting", "proposed"),
        (RequestOpened(Request("ask", "input", blocking=False)), RUNTIME),
        STEER,
        received("later", Steer(MESSAGE.message)),
        (CommandAnswered("later", "accepted"), HOST, "later"),
        received("answer", Answer("ask", InputAnswer(1))),
    )
    facts = front(made, RunEnded(Failed("provider")))
    assert [fact.kind for fact in facts] == ["call_finished"] * 3 + ["request_closed"] * 2 + [
        "input_returned"
    ] * 2
    assert [fact.call_id for fact in facts[:3]] == ["c0", "c1", "c2"]
    assert {fact.reason for fact in facts[3:]} == {"run_ended"}
    _, ended = made.offer((Draft(RunEnded(Failed("provider"))), RUNTIME))
    states = {key: command.state for key, command in ended.state.commands.items()}
    assert states == {"steer": "returned", "later": "returned", "answer": "returned"}


def test_a_completion_settles_foreign_calls_and_inputs_only() -> None:
    """RC-27: what is ours is a violation instead (RC-26)."""
    made = after((RunStarted(), RUNTIME), *calls("started foreign", "started"), STEER)
    facts = front(made, RunEnded(Completed()))
    assert [type(fact) for fact in facts] == [CallFinished, InputReturned]
    assert facts[0].call_id == "c0"


def test_a_refused_start_returns_what_was_queued() -> None:
    """RC-27, RC-37."""
    made = after(STEER)
    assert front(made, StartRefused("full"), HOST) == [InputReturned("steer", "run_ended")]


def test_an_answer_that_had_its_effect_keeps_it() -> None:
    """RC-37: applied, not returned, when the run ends."""
    made = after(
        (RunStarted(), RUNTIME),
        (RequestOpened(Request("ask", "approval")), RUNTIME),
        received("answer", Answer("ask", Allow())),
        (RequestResolved("ask", Allow()), RUNTIME, "answer"),
        (RunEnded(Completed()), RUNTIME),
    )
    assert made.state.commands["answer"].state == "applied"


# Event ids


def test_what_names_something_has_one_id_and_what_names_nothing_its_number() -> None:
    """RC-13."""
    assert event_id_of(MESSAGE, 5) == event_id_of(MESSAGE, 9) == "message:m2"
    assert event_id_of(CallStarted("c", 2, TOOL, NONE), 5) == "call:c:started:2"
    assert event_id_of(Noted("test/x"), 5) != event_id_of(Noted("test/x"), 6)
    ends = {event_id_of(fact, 1) for fact in (RunEnded(Completed()), StartRefused("x"), RunAbandoned("x"))}
    assert len(ends) == 1
    request_ends = (RequestClosed("q", "expired"), RequestResolved("q", Allow()))
    assert len({event_id_of(fact, 1) for fact in request_ends}) == 1


def test_fragments_are_told_apart_by_their_place() -> None:
    """RC-19: a fragment is stored once; a call that was only named is one too."""
    places = [("m", "text", 0, 0, "a"), ("m", "text", 0, 1, "a"), ("m", "text", 1, 0, "a"), ("m", "reasoning", 0, 0, "a"),
              ("n", "text", 0, 0, "a"), ("m", "text", 0, 0, "")]  # fmt: skip
    assert len({event_id_of(PartialSaved(*place), 1, HOST) for place in places}) == len(places)


def test_the_ids_of_the_host_are_out_of_a_runtimes_reach() -> None:
    """RC-13: `host:` is reserved."""
    for fact in (StopRequested("x"), Noted("test/x"), CallFinished("c", "unknown"), RunAbandoned("x")):
        assert event_id_of(fact, 3, HOST) == f"host:{event_id_of(fact, 3, RUNTIME)}"


def test_every_kind_has_an_id() -> None:
    """No fact falls through: the kinds without a name of their own are these."""
    unnamed = {"noted", "history_compacted", "violation_recorded", "continuity_lost", "continuity_restored"}
    from oracles.alphabet import FULL

    facts = [draft.fact for letter in FULL if not callable(letter.offer) for draft, _ in letter.offer]
    for fact in facts:
        assert (event_id_of(fact, 1) != event_id_of(fact, 2)) == (fact.kind in unnamed), fact
    assert {fact.kind for fact in facts} | {"continuity_restored"} == KINDS


def test_a_call_of_an_assistant_message_is_settled_like_a_proposed_one() -> None:
    """§3.14: an assistant message proposes its calls."""
    message = Message("m1", "assistant", (ToolCall("c1", TOOL),))
    made = after((MessageAdded(message, 1), RUNTIME))
    (result,) = front(made, RunEnded(Incomplete("limit")))
    assert (result.call_id, result.outcome) == ("c1", "cancelled")
