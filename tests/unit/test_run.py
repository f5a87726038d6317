"""What the facts of a run add up to (`core/run.py`): numbers, times, acks, and a look-ahead that changes nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import astuple

from oracles.alphabet import HOST, NONE, OPERATION, RUNTIME, TOOL
from pilothouse.commands import Ack, Allow, Answer, Command, FollowUp, Replace, Request, Steer, Withdraw
from pilothouse.core.run import Phase, RunState, Terms, apply, fold, status_of
from pilothouse.errors import RunConflict, SeqConflict
from pilothouse.events import (
    AnyFact,
    CallObserved,
    CallProposed,
    CallStarted,
    CommandAnswered,
    CommandReceived,
    Completed,
    ContinuityLost,
    ContinuityRestored,
    Delivery,
    Failed,
    InputReturned,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    Noted,
    Opaque,
    OutputAdded,
    RequestClosed,
    RequestOpened,
    RequestResolved,
    RunAccepted,
    RunEnded,
    RunStarted,
    StopRequested,
    TurnEnded,
    TurnStarted,
    Unknown,
    ViolationRecorded,
)
from pilothouse.messages import Message, Text, ToolCall, Usage
from pilothouse.records import Record, RunSummary


def record(
    seq: int, fact: AnyFact | Opaque, lane: str = RUNTIME, causation: str | None = None, **changes: object
) -> Record:
    values = {"run_id": "r", "seq": seq, "at_ms": 1000 + seq, "lane": lane, "fence": 1, "event_id": f"e{seq}",
              "fact": fact, "digest": "", "chain": f"chain {seq}", "causation": causation}  # fmt: skip
    return Record(**(values | changes))


def folded(*facts: tuple | AnyFact) -> RunState:
    """A run of these facts behind its acceptance; a tuple gives lane and causation too."""
    steps = [(fact,) if not isinstance(fact, tuple) else fact for fact in facts]
    accepted = record(1, RunAccepted("thread", "spec", "default", "descriptor"), HOST)
    return fold([accepted, *[record(seq, *step) for seq, step in enumerate(steps, 2)]], "r", "start")


def received(command_id: str, body: object) -> tuple:
    return CommandReceived(Command(command_id, "r", body), f"digest of {command_id}"), HOST


def accepted(command_id: str) -> tuple:
    return CommandAnswered(command_id, "accepted"), HOST, command_id


def user(message_id: str) -> Message:
    return Message(message_id, "user", (Text("x"),))


# Order


def test_a_run_is_folded_from_one_on_without_a_gap() -> None:
    """RC-12: a gap, a repeat or another run is told, and nothing is folded."""
    state = folded(RunStarted())
    for wrong, error in (
        (record(2, Noted("n/x")), SeqConflict),
        (record(4, Noted("n/x")), SeqConflict),
        (record(3, RunEnded(Completed()), run_id="other"), RunConflict),
    ):
        with pytest.raises(error):
            apply(state, wrong)
        assert (state.seq, state.phase) == (2, Phase.RUNNING)
    with pytest.raises(SeqConflict) as caught:
        apply(state, record(7, Noted("n/x")))
    assert (caught.value.run_id, caught.value.expected, caught.value.actual) == ("r", 3, 7)
    with pytest.raises(SeqConflict):
        fold([record(2, RunStarted())], "r")


def test_it_knows_its_head_its_first_fact_and_when_it_changed() -> None:
    """§2.3: chain, tag and times of a view."""
    assert (RunState("r", "start").chain, RunState("r").terms, RunState("r").seq) == ("start", Terms(), 0)
    state = folded(RunStarted(), Noted("n/x"))
    assert (state.seq, state.chain, state.first_chain, state.updated_at_ms) == (3, "chain 3", "chain 1", 1003)
    assert (state.thread_id, state.run_id) == ("thread", "r")


def test_a_fact_of_a_newer_vocabulary_counts_and_means_nothing() -> None:
    """RC-9."""
    state = folded(RunStarted(), Opaque("moon_landed", {}))
    assert (state.seq, state.phase) == (3, Phase.RUNNING)


def test_terms_are_kept_and_not_folded() -> None:
    """RC-24, RC-26: they come from the registration."""
    terms = Terms(frozenset({"input"}), 3, wants_output=True)
    assert fold([], "r", "start", terms).terms == terms
    assert astuple(Terms()) == (frozenset({"input", "approval", "external"}), 64, False, frozenset())


# Flags


def test_a_restore_counts_until_the_runtime_tells_something() -> None:
    """RC-53: three takeovers without a new fact of the runtime end the tries."""
    lost, restored = (ContinuityLost(2, "eof"), HOST), (ContinuityRestored(3, "journal"), HOST)
    state = folded(RunStarted(), lost, restored, lost, restored, (Noted("n/x"), HOST))
    assert (state.takeovers, state.loss, state.loss_seq) == (2, None, 5)
    assert folded(RunStarted(), lost, restored, Noted("n/x")).takeovers == 0
    assert folded(RunStarted()).takeovers == 0


def test_a_violation_is_remembered_until_it_is_accepted() -> None:
    """RC-58."""
    violated = (ViolationRecorded("x", "y"), HOST), (ContinuityLost(3, "violation"), HOST)
    assert not folded(RunStarted()).violated
    state = folded(RunStarted(), *violated)
    assert state.violated
    assert (state.loss.cause, state.loss_seq) == ("violation", 4)
    assert not folded(RunStarted(), *violated, (ContinuityRestored(4, "journal"), HOST)).violated


def test_turns_and_attempts_are_open_or_not() -> None:
    """RC-50: what is in flight."""
    asked = ModelRequested(1, 1, "m")
    assert (folded(RunStarted()).turn, folded(RunStarted()).turn_open) == (0, False)
    state = folded(RunStarted(), TurnStarted(1), asked)
    assert (state.turn, state.turn_open, state.attempt) == (1, True, asked)
    state = folded(RunStarted(), TurnStarted(1), asked, ModelAttemptEnded(1, 1, "answered"), TurnEnded(1))
    assert (state.turn, state.turn_open, state.attempt, state.usage) == (1, False, None, None)
    assert folded(RunStarted(), TurnStarted(1), asked, RunEnded(Failed("x"))).attempt is None


def test_usage_is_the_sum_of_what_was_told() -> None:
    """§2.3."""
    facts = [
        fact
        for usage in (Usage(1), None, Usage(2, output=5))
        for fact in (ModelAttemptEnded(1, 1, "failed", usage=usage),)
    ]
    assert folded(RunStarted(), *facts).usage == Usage(3, output=5)


def test_an_end_keeps_its_outcome_and_what_it_delivers() -> None:
    """RC-26."""
    delivery = Delivery(("m",))
    state = folded(RunStarted(), MessageAdded(user("m")), RunEnded(Completed(), delivery))
    assert (state.outcome, state.delivery, state.last_message_id) == (Completed(), delivery, "m")
    assert (state.phase, state.status) == (Phase.TERMINAL, "completed")


def test_the_status_is_the_state_or_the_outcome_s_word() -> None:
    """RC-86."""
    assert status_of(Phase.WAITING, None) == "waiting"
    assert status_of(Phase.TERMINAL, Unknown(settled=True)) == "unknown"


def test_a_store_keeps_the_summary_of_the_fold() -> None:
    """JR-5."""
    assert folded().summary() == RunSummary("accepted", "accepted", updated_at_ms=1001)
    question = RequestOpened(Request("q", "input"))
    assert folded(RunStarted(), question).summary() == RunSummary("waiting", "waiting", True, False, 0, 1003)
    lost = (ContinuityLost(2, "eof"), HOST)
    assert folded(RunStarted(), lost).summary() == RunSummary("unknown", "unknown", False, True, 0, 1003)
    restored = folded(RunStarted(), lost, (ContinuityRestored(3, "journal"), HOST))
    assert restored.summary() == RunSummary("running", "running", False, False, 1, 1004)


# Commands


def test_an_ack_is_what_the_facts_say() -> None:
    """RC-37: state, seqs, code and message."""
    steer = received("s", Steer(user("m")))
    refused = (CommandAnswered("s", "rejected", "busy", "not now"), RUNTIME, "s")
    acks = [
        folded(RunStarted(), steer, *more).commands["s"].ack("r")
        for more in ((), (refused,), (accepted("s"),))
    ]
    assert acks == [
        Ack("s", "r", "received", received_seq=3),
        Ack("s", "r", "rejected", received_seq=3, answered_seq=4, code="busy", message="not now"),
        Ack("s", "r", "accepted", received_seq=3, answered_seq=4),
    ]
    applied = folded(RunStarted(), steer, accepted("s"), (MessageAdded(user("m")), RUNTIME, "s")).commands[
        "s"
    ]
    assert applied.ack("r", duplicate=True) == Ack("s", "r", "applied", True, 3, 4, 5)
    assert applied.digest == "digest of s"
    assert applied.command == steer[0].command


def test_inputs_are_queued_in_order_until_they_have_a_fate() -> None:
    """RC-43."""
    facts = (
        RunStarted(),
        received("a", Steer(user("m1"))),
        accepted("a"),
        received("b", FollowUp(user("m2"))),
        accepted("b"),
    )
    state = folded(*facts)
    assert list(state.queued) == state.left_over() == ["a", "b"]
    assert state.queued["b"] == facts[3][0].command
    state = folded(
        *facts, received("c", Withdraw("a")), accepted("c"), (InputReturned("a", "withdrawn"), HOST, "c")
    )
    assert list(state.queued) == ["b"]
    assert [state.commands[name].state for name in ("a", "b", "c")] == ["returned", "accepted", "applied"]
    assert state.commands["c"].applied_seq == 9
    state = folded(*facts, (InputReturned("a", "run_ended"), HOST, "a"))
    assert state.commands["a"].applied_seq == 0


def test_an_unanswered_input_is_left_over_and_not_queued() -> None:
    """RC-27: it gets its fate at the end too; an answer or a cancel is no input."""
    state = folded(
        RunStarted(),
        received("a", Steer(user("m1"))),
        received("b", Replace("a", user("m2"))),
        received("c", Answer("q", Allow())),
        received("d", Withdraw("a")),
        received("e", FollowUp(user("m3"))),
        (CommandAnswered("e", "rejected"), RUNTIME, "e"),
    )
    assert (state.queued, state.left_over()) == ({}, ["a", "b"])


def test_a_replacement_of_what_is_not_queued_any_more_goes_to_the_end() -> None:
    """RC-43."""
    state = folded(
        RunStarted(),
        received("a", Steer(user("m1"))),
        accepted("a"),
        received("b", Replace("gone", user("m2"))),
        accepted("b"),
    )
    assert list(state.queued) == ["a", "b"]


# Calls and requests


def test_calls_are_kept_in_the_order_of_their_proposal_with_their_turn() -> None:
    """§3.14."""
    message = Message("m", "assistant", (ToolCall("c1", TOOL), ToolCall("c2", TOOL)))
    state = folded(RunStarted(), TurnStarted(1), MessageAdded(message, 1), CallProposed("c0", TOOL))
    assert [(call.call_id, call.turn, call.index) for call in state.calls.values()] == [
        ("c1", 1, 0),
        ("c2", 1, 1),
        ("c0", 1, 0),
    ]
    assert folded(RunStarted(), MessageAdded(Message("m", "user", (ToolCall("c1", TOOL),)))).calls == {}


def test_the_requests_of_a_call_are_steps_of_it() -> None:
    """§3.14; those of no call, or of a call that is gone, are the run's alone."""
    approval = RequestOpened(Request("q", "approval", call_id="c", operation_digest=OPERATION))
    answer = received("a", Answer("q", Allow()))
    state = folded(
        RunStarted(), CallProposed("c", TOOL), approval, answer, (RequestResolved("q", Allow()), RUNTIME, "a")
    )
    assert (state.calls["c"].state, state.calls["c"].resolution, state.requests) == ("awaiting", Allow(), {})
    assert state.commands["a"].applied_seq == 6
    assert state.names.has("request", "q")


def test_only_a_blocking_request_makes_a_run_wait() -> None:
    """§3.5: and only one that has begun and is not stopping."""
    aside, question = (RequestOpened(Request(name, "input", blocking=name == "q")) for name in ("aside", "q"))
    assert folded(RunStarted(), aside).phase is Phase.RUNNING
    assert folded(RunStarted(), aside, question).phase is Phase.WAITING
    assert folded(RunStarted(), question, (StopRequested("x"), HOST)).phase is Phase.STOPPING


# The look-ahead


def test_a_fork_goes_its_own_way() -> None:
    """RC-12: what is judged and dropped leaves no trace."""
    state = folded(
        RunStarted(),
        received("a", Steer(user("m1"))),
        accepted("a"),
        CallProposed("c", TOOL),
        RequestOpened(Request("q", "input")),
    )
    before = {name: value for name, value in state.__dict__.items() if name != "names"}
    before = {name: dict(value) if isinstance(value, dict) else value for name, value in before.items()}
    ahead = state.fork()
    for fact in (
        (MessageAdded(user("m1")), RUNTIME, "a"),
        CallStarted("c", 1, TOOL, NONE),
        OutputAdded("o", "report"),
        RequestOpened(Request("q2", "input")),
        received("b", FollowUp(user("m2"))),
        RunEnded(Failed("x")),
    ):
        step = fact if isinstance(fact, tuple) else (fact,)
        apply(ahead, record(ahead.seq + 1, *step))
    after = {name: value for name, value in state.__dict__.items() if name != "names"}
    assert after == before
    assert not state.names.has("output", "o")
    assert ahead.phase is Phase.TERMINAL
    assert ahead.names.has("output", "o")
    assert ahead.names.has("message", "m1")


# What limits, rests and closes


def test_the_bytes_of_a_run_are_those_of_its_bodies() -> None:
    """RC §3.12: what `max_run_bytes` is compared with."""
    state = RunState("r")
    assert (state.bytes, state.updated_at_ms, state.loss_seq, state.thread_id, state.first_chain) == (
        0,
        0,
        0,
        "",
        "",
    )
    for seq, size in enumerate((7, 11), 1):
        apply(state, record(seq, Noted("n/x"), body=b"x" * size))
    assert state.bytes == 18


def test_a_run_that_waits_rests_unless_an_answer_is_under_way() -> None:
    """RC-41, RC-50: an answer that was received and had no effect is in flight; answered or of no use, it is not."""
    waiting = (RunStarted(), RequestOpened(Request("q", "input")))
    answer = received("a", Answer("q", Allow()))
    assert folded().resting is False
    assert folded(RunStarted()).resting is False
    assert folded(*waiting).resting is True
    assert folded(*waiting, answer).resting is False
    assert folded(*waiting, answer, accepted("a")).resting is True
    assert folded(*waiting, received("s", Steer(user("m1")))).resting is True
    call = (CallProposed("c", TOOL), CallStarted("c", 1, TOOL, "digest"))
    observed = CallObserved("c", 1, "returned")
    assert folded(RunStarted(), *call, RequestOpened(Request("q", "input"))).resting is False
    assert folded(RunStarted(), *call, observed, RequestOpened(Request("q", "input"))).resting is False
    assert folded(RunStarted(), *call, RequestOpened(Request("q", "input", call_id="c"))).resting is True


@pytest.mark.parametrize("answered", [True, False])
def test_a_closed_request_returns_its_answers_and_frees_its_call(answered: bool) -> None:
    """RC-25, RC-37: received or accepted, an answer that had no effect is returned; nothing is open for the call."""
    facts = [
        RunStarted(),
        CallProposed("c", TOOL),
        RequestOpened(Request("q", "approval", call_id="c", operation_digest=OPERATION)),
        received("a", Answer("q", Allow())),
        *([accepted("a")] if answered else []),
    ]
    before = folded(*facts)
    assert before.calls["c"].request_open
    state = folded(*facts, (RequestClosed("q", "expired"), HOST))
    assert state.commands["a"].state == "returned"
    assert not state.calls["c"].request_open
    assert state.phase is Phase.RUNNING
