"""Every cell of the reducer's table, and the conditions beside it (run-controller §3.5, RC-21 … RC-29)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from oracles.alphabet import HOST, NONE, OPERATION, RUNTIME, TOOL
from oracles.desk import RUN_ID, Desk
from pilothouse.commands import (
    Allow,
    Answer,
    Cancel,
    Command,
    Deny,
    ExternalResult,
    FollowUp,
    InputAnswer,
    Replace,
    Request,
    Steer,
)
from pilothouse.core.rules import ENDINGS, LEGAL, TABLE, Refused, Violation, diagram, judge
from pilothouse.core.run import Phase, RunState, Terms
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
    ContinuityRestored,
    Delivery,
    Failed,
    HistoryCompacted,
    Incomplete,
    InputReturned,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    Noted,
    OutputAdded,
    PartialSaved,
    RequestClosed,
    RequestOpened,
    RequestResolved,
    RunAbandoned,
    RunAccepted,
    RunEnded,
    RunStarted,
    StartRefused,
    StopRequested,
    Truncated,
    TurnEnded,
    TurnStarted,
    Unknown,
    ViolationRecorded,
)
from pilothouse.messages import Message, Text, ToolCall
from pilothouse.records import Draft

Step = tuple[AnyFact, str, str | None]  # fact, lane, causation


def user(message_id: str) -> Message:
    return Message(message_id, "user", (Text("and this"),))


def received(command_id: str, body: object) -> Step:
    return CommandReceived(Command(command_id, RUN_ID, body), "digest"), HOST, None


def told(fact: AnyFact, causation: str | None = None) -> Step:
    return fact, RUNTIME, causation


def written(fact: AnyFact, causation: str | None = None) -> Step:
    return fact, HOST, causation


def desk(*steps: Step) -> Desk:
    """A run after these facts, all of which are legal."""
    made = Desk()
    for fact, lane, causation in steps:
        verdict, made = made.offer((Draft(fact, causation=causation), lane))
        assert verdict.kind == "legal", (fact, verdict)
    return made


STEER = received("steer", Steer(user("m-steer")))
PROPOSED = told(CallProposed("c1", TOOL))
STARTED = told(CallStarted("c1", 1, TOOL, NONE))
TURN = told(TurnStarted(1))
ASKED = told(ModelRequested(1, 1, "m1"))
ASIDE = told(RequestOpened(Request("aside", "input", blocking=False)))
BLOCK = told(RequestOpened(Request("block", "input")))

# What a fact needs in front of it to be legal where its cell says so; where the run has begun, and where it has not.
NEEDS: dict[str, tuple[Step, ...]] = {
    "command_answered": (STEER,),
    "input_returned": (STEER,),
    "turn_ended": (TURN,),
    "model_requested": (TURN,),
    "model_attempt_ended": (TURN, ASKED),
    "call_started": (PROPOSED,),
    "call_observed": (PROPOSED, STARTED),
    "call_finished": (PROPOSED, STARTED),
    "request_resolved": (received("answer aside", Answer("aside", InputAnswer(1))), ASIDE),
    "request_closed": (ASIDE,),
    "partial_saved": (),
}
ENTER: dict[str, tuple[Step, ...]] = {
    "accepted": (),
    "running": (),
    "waiting": (BLOCK,),
    "stopping": (written(StopRequested("enough")),),
    "unknown": (written(ContinuityLost(1, "eof")),),
    "terminal": (told(RunEnded(Incomplete("limit"))),),
}
ROWS: dict[str, tuple[Step, str]] = {
    #                                                                    accepted  running waiting  stopping unknown terminal
    "run_accepted": (written(RunAccepted("t", "s", "b", "d")),           ".        .       .        .        .        ."),
    "start_refused": (written(StartRefused("full")),                     "terminal .       .        .        .        ."),
    "command_received": (received("new", Cancel("enough")),              "=        =       =        =        .        ."),
    "stop_requested": (written(StopRequested("enough")),                 "stopping stopping stopping .       .        ."),
    "command_answered": (told(CommandAnswered("steer", "accepted"), "steer"), "=   =       =        =        R        R"),
    "noted": (told(Noted("test/note")),                                  "=        =       =        =        R        R"),
    "input_returned": (told(InputReturned("steer", "expired")),          "=        =       =        =        R        R"),
    "run_started": (told(RunStarted(())),                                "running  V       V        V        R        R"),
    "turn_started": (told(TurnStarted(1)),                               "V        =       =        R        R        R"),
    "model_requested": (told(ModelRequested(1, 1, "m1")),                "V        =       =        R        R        R"),
    "call_proposed": (told(CallProposed("c2", TOOL)),                    "V        =       =        R        R        R"),
    "call_started": (told(CallStarted("c1", 1, TOOL, NONE)),             "V        =       =        R        R        R"),
    "history_compacted": (told(HistoryCompacted(())),                    "V        =       =        R        R        R"),
    "request_opened": (told(RequestOpened(Request("q", "input"))),       "V        waiting =        R        R        R"),
    "request_opened aside": (told(RequestOpened(Request("q", "input", blocking=False))), "V = =     R        R        R"),
    "request_resolved": (told(RequestResolved("aside", InputAnswer(1)), "answer aside"), "V = =     =        R        R"),
    "request_closed": (told(RequestClosed("aside", "superseded")),       "V        =       =        =        R        R"),
    "request_closed last": (told(RequestClosed("block", "superseded")),  "V        V       running  V        R        R"),
    "message_added": (told(MessageAdded(user("m1"))),                    "V        =       =        =        R        R"),
    "message_added steer": (told(MessageAdded(user("m2")), "steer"),     "V        =       =        R        R        R"),
    "output_added": (told(OutputAdded("o1", "report")),                  "V        =       =        =        R        R"),
    "model_attempt_ended": (told(ModelAttemptEnded(1, 1, "failed")),     "V        =       =        =        R        R"),
    "turn_ended": (told(TurnEnded(1)),                                   "V        =       =        =        R        R"),
    "call_observed": (told(CallObserved("c1", 1, "returned")),           "V        =       =        =        R        R"),
    "call_finished": (told(CallFinished("c1", "succeeded", attempt=1)),  "V        =       =        =        R        R"),
    "partial_saved": (written(PartialSaved("m", "text", 0, 0, "x")),     ".        =       =        =        .        ."),
    "run_ended completed": (told(RunEnded(Completed())),                 "V        terminal V       terminal R        R"),
    "run_ended truncated": (told(RunEnded(Truncated())),                 "V        terminal V       terminal R        R"),
    "run_ended incomplete": (told(RunEnded(Incomplete("limit", "x"))),   "terminal terminal terminal terminal R       R"),
    "run_ended failed": (told(RunEnded(Failed("provider"))),             "terminal terminal terminal terminal R       R"),
    "run_ended cancelled": (told(RunEnded(Cancelled("enough"))),         "V        V       V        terminal R        R"),
    "run_ended unknown": (told(RunEnded(Unknown("eof"))),                "V        V       V        V        R        R"),
    "continuity_lost": (written(ContinuityLost(1, "eof")),               "unknown  unknown unknown  unknown  .        ."),
    "violation_recorded": (written(ViolationRecorded("x", "y")),         "=        =       =        =        .        ."),
    "continuity_restored": (written(ContinuityRestored(0, "journal")),   ".        .       .        .        before   ."),
    "run_abandoned": (written(RunAbandoned("nobody knows")),             ".        .       .        .        terminal ."),
}  # fmt: skip
CELLS = [
    (row, phase, cell)
    for row, (_, cells) in ROWS.items()
    for phase, cell in zip(ENTER, cells.split(), strict=True)
]
STEERED = (STEER,)


def scene(row: str, phase: str) -> Desk:
    """A run in a phase, with what the fact of that row needs."""
    needs = STEERED if row.endswith("steer") else NEEDS.get(row.partition(" ")[0], ())
    if phase == "accepted":
        return desk(*[step for step in needs if step[1] == HOST])
    return desk(told(RunStarted()), *needs, *ENTER[phase])


@pytest.mark.parametrize(("row", "phase", "cell"), CELLS)
def test_each_cell_stays_moves_refuses_or_violates(row: str, phase: str, cell: str) -> None:
    """§3.5: the verdict, and the phase after it; a refusal's code is the phase's."""
    made = scene(row, phase)
    fact, lane, causation = ROWS[row][0]
    if isinstance(fact, ContinuityRestored):
        fact = replace(fact, loss_seq=made.state.loss_seq)
    assert made.state.phase == phase
    # Another event id, so that a repeat of what the scene holds is judged as well.
    draft = Draft(fact, event_id="other", causation=causation)
    verdict = judge(made.state, draft, lane)
    match cell:
        case "V":
            assert isinstance(verdict, Violation)
        case "R":
            code = {"stopping": "stopping", "unknown": "unknown", "terminal": "ended"}[phase]
            assert isinstance(verdict, Refused)
            assert verdict.code == code
        case ".":
            assert isinstance(verdict, Refused)
        case _:
            assert verdict == LEGAL
            after = made.copy()
            after.put(draft, lane)  # without what the port puts in front
            expected = {"=": phase, "before": "running"}.get(cell, cell)
            assert after.state.phase == expected


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("phase", ENTER)
def test_a_wrong_lane_is_refused_and_uses_no_number(row: str, phase: str) -> None:
    """§3.3: lanes; those that both write are left to the cells."""
    (fact, lane, causation), _ = ROWS[row]
    if type(fact) in (CommandAnswered, CallFinished, RequestClosed, InputReturned):
        return
    if type(fact) is RunEnded and phase == "stopping":
        return  # RC-40, below
    made = scene(row, phase)
    before = made.state.seq
    other = RUNTIME if lane == HOST else HOST
    verdict, after = made.offer((Draft(fact, causation=causation), other))
    assert (verdict.kind, verdict.code) == ("refused", "wrong_lane")
    assert after.state.seq == before


def test_restored_is_what_it_was_before_the_loss() -> None:
    """§3.5: `→ as before`, from each state that can be lost."""
    for phase in ("accepted", "running", "waiting", "stopping"):
        begun = () if phase == "accepted" else (told(RunStarted()),)
        lost = desk(*begun, *ENTER[phase], written(ContinuityLost(1, "eof")))
        _, after = lost.offer((Draft(ContinuityRestored(lost.state.loss_seq, "journal")), HOST))
        assert after.state.phase == phase


def test_another_loss_is_not_restored() -> None:
    """RC-54: the restore names the loss that is recorded."""
    lost = desk(told(RunStarted()), written(ContinuityLost(1, "eof")))
    assert isinstance(judge(lost.state, Draft(ContinuityRestored(99, "journal")), HOST), Refused)


def test_run_accepted_is_the_first_fact_and_no_other() -> None:
    """§3.5: seq 1 and nothing else."""
    assert desk().state.seq == 1
    assert all(cell == "." for cell in TABLE[RunAccepted].values())


def test_while_stopping_only_a_cancel_is_received() -> None:
    """§3.5, §3.7: every other command is refused."""
    stopping = desk(told(RunStarted()), *ENTER["stopping"]).state
    steer, cancel = Draft(STEER[0]), Draft(received("again", Cancel("enough"))[0])
    assert judge(stopping, steer, HOST) == Refused("stopping")
    assert judge(stopping, cancel, HOST) is LEGAL


def test_a_run_begins_once_also_after_a_stop() -> None:
    """§3.5: `run_started` once; a stop before the start does not forbid it."""
    begun = desk(told(RunStarted()), *ENTER["stopping"]).state
    fresh = desk(*ENTER["stopping"]).state
    again = Draft(RunStarted(), event_id="again")
    assert isinstance(judge(begun, again, RUNTIME), Violation)
    assert judge(fresh, again, RUNTIME) is LEGAL


@pytest.mark.parametrize("fact", [Noted("test/x"), RunStarted(), CommandAnswered("steer", "rejected")])
def test_a_refusal_to_start_comes_before_any_fact_of_the_runtime(fact: AnyFact) -> None:
    """RC-34, §3.8: what the runtime tells first is a start, so that it cannot be refused afterwards."""
    made = desk(STEER, (fact, RUNTIME, getattr(fact, "command_id", None)))
    assert isinstance(judge(made.state, Draft(StartRefused("full")), HOST), Refused)


# RC-21, RC-22


def test_an_answer_names_a_received_command_once_and_is_caused_by_it() -> None:
    """RC-21."""
    made = desk(told(RunStarted()), STEER)
    answer = CommandAnswered("steer", "accepted")
    assert isinstance(judge(made.state, Draft(answer), RUNTIME), Violation)
    assert isinstance(judge(made.state, Draft(answer, causation="other"), RUNTIME), Violation)
    unknown = Draft(CommandAnswered("nobody", "accepted"), causation="nobody")
    assert isinstance(judge(made.state, unknown, RUNTIME), Violation)
    _, made = made.offer((Draft(answer, causation="steer"), RUNTIME))
    again = Draft(CommandAnswered("steer", "rejected"), causation="steer")
    assert isinstance(judge(made.state, again, RUNTIME), Violation)


def test_an_effect_of_an_unanswered_command_accepts_it_first() -> None:
    """RC-22: the implied acceptance stands in front, in the same append."""
    made = desk(told(RunStarted()), STEER)
    before = made.state.seq
    _, made = made.offer((Draft(MessageAdded(user("m2")), causation="steer"), RUNTIME))
    command = made.state.commands["steer"]
    assert (command.answered_seq, command.applied_seq) == (before + 1, before + 2)
    assert command.state == "applied"


@pytest.mark.parametrize("answer", ["rejected", "unsupported"])
def test_an_effect_of_a_refused_command_is_a_violation(answer: str) -> None:
    """RC-22."""
    made = desk(told(RunStarted()), STEER, told(CommandAnswered("steer", answer), "steer"))
    verdict = judge(made.state, Draft(MessageAdded(user("m2")), causation="steer"), RUNTIME)
    assert isinstance(verdict, Violation)


def test_a_second_effect_and_one_of_nobody_are_violations() -> None:
    """RC-22."""
    made = desk(told(RunStarted()), STEER, told(MessageAdded(user("m2")), "steer"))
    for causation in ("steer", "nobody"):
        draft = Draft(MessageAdded(user("m3")), causation=causation)
        assert isinstance(judge(made.state, draft, RUNTIME), Violation)


def test_a_message_is_caused_by_an_input_only() -> None:
    """§3.3: its causation is the steer or follow-up that it is."""
    made = desk(told(RunStarted()), BLOCK, received("answer", Answer("block", InputAnswer(1))))
    draft = Draft(MessageAdded(user("m3")), causation="answer")
    assert isinstance(judge(made.state, draft, RUNTIME), Violation)


def test_an_input_that_was_returned_has_no_effect_any_more() -> None:
    """RC-37: one fate an input."""
    made = desk(told(RunStarted()), STEER, written(InputReturned("steer", "withdrawn")))
    draft = Draft(MessageAdded(user("m2")), causation="steer")
    assert isinstance(judge(made.state, draft, RUNTIME), Violation)
    assert made.state.commands["steer"].state == "returned"
    again = Draft(InputReturned("steer", "expired"), event_id="other")
    assert isinstance(judge(made.state, again, RUNTIME), Violation)


def test_an_answer_to_what_was_returned_changes_nothing() -> None:
    """RC-37: the runtime may answer while the host takes it back; the fate stays."""
    for answer in ("accepted", "rejected"):
        made = desk(told(RunStarted()), STEER, written(InputReturned("steer", "withdrawn")))
        _, made = made.offer((Draft(CommandAnswered("steer", answer), causation="steer"), RUNTIME))
        assert made.state.commands["steer"].state == "returned"
        assert not made.state.queued


# RC-23, RC-24


def test_a_message_id_is_new_in_the_run_whatever_its_event_id() -> None:
    """RC-23: a foreign runtime gives event ids of its own; its own partial may have the id."""
    made = desk(told(RunStarted()), written(PartialSaved("m1", "text", 0, 0, "Hel")))
    _, made = made.offer((Draft(MessageAdded(user("m1")), event_id="native-1"), RUNTIME))
    assert made.state.seq == 4
    again = Draft(MessageAdded(user("m1")), event_id="native-2")
    assert isinstance(judge(made.state, again, RUNTIME), Violation)


def test_no_message_of_a_run_has_the_id_of_one_that_it_was_given() -> None:
    """RC-23: what the user said is in the history already, and stays what it was."""
    made = desk(told(RunStarted()))
    made.state.terms = Terms(given=frozenset({"m1"}))
    assert isinstance(judge(made.state, Draft(MessageAdded(user("m1"))), RUNTIME), Violation)
    assert judge(made.state, Draft(MessageAdded(user("m2"))), RUNTIME) is LEGAL
    delivered = Draft(RunEnded(Completed(), Delivery(("m1",))))
    assert isinstance(judge(made.state, delivered, RUNTIME), Violation)


def test_an_output_is_added_once() -> None:
    """RC-13, RC-26."""
    made = desk(told(RunStarted()), told(OutputAdded("o1", "report")))
    again = Draft(OutputAdded("o1", "report", 2), event_id="native")
    assert isinstance(judge(made.state, again, RUNTIME), Violation)


def test_a_call_is_proposed_once_in_the_life_of_a_run() -> None:
    """§3.14: open, finished, or twice in one message; each has exactly one result (EF-2)."""
    call = ToolCall("c1", TOOL)
    once = Message("m1", "assistant", (call,))
    twice = Message("m2", "assistant", (call, call))
    assert isinstance(judge(desk(told(RunStarted())).state, Draft(MessageAdded(twice)), RUNTIME), Violation)
    made = desk(told(RunStarted()), told(MessageAdded(once)))
    for _ in range(2):
        for fact in (MessageAdded(Message("m3", "assistant", (call,))), CallProposed("c1", TOOL)):
            assert isinstance(judge(made.state, Draft(fact, event_id="native"), RUNTIME), Violation)
        _, made = made.offer((Draft(CallFinished("c1", "cancelled")), RUNTIME))
    assert not made.state.calls


def test_a_request_is_of_a_declared_kind() -> None:
    """RC-24."""
    state = RunState(RUN_ID, terms=Terms(requests=frozenset({"input"})))
    state.started, state.phase = True, Phase.RUNNING
    for kind, legal in (("input", True), ("approval", False), ("external", False)):
        verdict = judge(state, Draft(RequestOpened(Request("q", kind))), RUNTIME)
        assert (verdict is LEGAL) == legal
        assert legal or isinstance(verdict, Violation)


def test_a_request_id_is_never_used_again() -> None:
    """RC-24, RC-25: open, resolved or closed."""
    answered = received("answer", Answer("block", InputAnswer(1)))
    ends = (told(RequestResolved("block", InputAnswer(1)), "answer"), told(RequestClosed("block", "expired")))
    for steps in ((), (ends[0],), (ends[1],)):
        made = desk(told(RunStarted()), BLOCK, answered, *steps)
        again = Draft(RequestOpened(Request("block", "input", prompt="again")), event_id="native")
        assert isinstance(judge(made.state, again, RUNTIME), Violation)


def test_more_than_max_pending_requests_are_refused() -> None:
    """RC-24: an honest limit, not a violation."""
    made = desk(told(RunStarted()), BLOCK, ASIDE)
    for count, verdict in ((2, Refused("max_pending", "2 requests are open")), (3, LEGAL)):
        made.state.terms = Terms(max_pending=count)
        assert judge(made.state, Draft(RequestOpened(Request("q", "input"))), RUNTIME) == verdict


# RC-25


@pytest.mark.parametrize(
    ("kind", "resolution", "fits"),
    [
        ("input", InputAnswer(1), True), ("input", Allow(), False), ("input", ExternalResult(), False),
        ("approval", Allow(), True), ("approval", InputAnswer(1), False), ("approval", ExternalResult(), False),
        ("external", ExternalResult(), True), ("external", Allow(), False), ("external", InputAnswer(1), False),
        ("input", Deny(), True), ("approval", Deny(), True), ("external", Deny(), True),
    ],
)  # fmt: skip
def test_a_resolution_fits_the_kind_of_its_request(kind: str, resolution: object, fits: bool) -> None:
    """RC-25; a denial is legal for every kind."""
    made = desk(
        told(RunStarted()),
        told(RequestOpened(Request("q", kind))),
        received("answer", Answer("q", resolution)),
    )
    verdict = judge(made.state, Draft(RequestResolved("q", resolution), causation="answer"), RUNTIME)
    assert isinstance(verdict, type(LEGAL) if fits else Violation)


def test_a_runtime_cannot_answer_itself() -> None:
    """RC-25, RC-42: no answer, one for another request, one that says something else, one that was refused."""
    made = desk(
        told(RunStarted()),
        told(RequestOpened(Request("q", "approval"))),
        BLOCK,
        received("denial", Answer("q", Deny("no"))),
        received("other", Answer("block", InputAnswer(1))),
        STEER,
    )
    allowed = RequestResolved("q", Allow())
    for causation in (None, "nobody", "steer", "other", "denial"):
        assert isinstance(judge(made.state, Draft(allowed, causation=causation), RUNTIME), Violation)
    denied = Draft(RequestResolved("q", Deny("no")), causation="denial")
    assert judge(made.state, denied, RUNTIME) is LEGAL
    _, made = made.offer((Draft(CommandAnswered("denial", "rejected"), causation="denial"), RUNTIME))
    assert isinstance(judge(made.state, denied, RUNTIME), Violation)
    edited = RequestResolved("q", Allow(arguments={"amount": 1_000_000}))
    _, made = made.offer((Draft(received("allow", Answer("q", Allow()))[0]), HOST))
    assert isinstance(judge(made.state, Draft(edited, causation="allow"), RUNTIME), Violation)


def test_only_a_pending_request_is_resolved_or_closed() -> None:
    """RC-25: an end is final; the late answer of a closed request goes back to its sender (RC-37)."""
    made = desk(
        told(RunStarted()),
        BLOCK,
        received("answer", Answer("block", InputAnswer(1))),
        written(RequestClosed("block", "expired")),
    )
    assert made.state.commands["answer"].state == "returned"
    late = Draft(RequestResolved("block", InputAnswer(1)), causation="answer")
    assert isinstance(judge(made.state, late, RUNTIME), Violation)
    again = Draft(RequestClosed("block", "superseded"))
    assert isinstance(judge(made.state, again, RUNTIME), Violation)


def test_a_question_of_a_tool_can_be_answered_after_the_tool_has_ended() -> None:
    """RC-25: the run's requests are no steps of a call that runs, was observed or is finished."""
    question = told(RequestOpened(Request("ask", "input", call_id="c1")))
    answer = received("answer", Answer("ask", InputAnswer(1)))
    for steps in (
        (),
        (told(CallObserved("c1", 1, "timed_out")),),
        (told(CallFinished("c1", "failed", attempt=1)),),
    ):
        made = desk(told(RunStarted()), PROPOSED, STARTED, question, answer, *steps)
        resolved = Draft(RequestResolved("ask", InputAnswer(1)), causation="answer")
        assert judge(made.state, resolved, RUNTIME) is LEGAL


# The ledger


def test_one_allow_permits_one_call_of_just_this_operation() -> None:
    """EF-4: pending, denied, of another request, of other arguments: a violation."""
    approval = told(RequestOpened(Request("q", "approval", call_id="c1", operation_digest=OPERATION)))
    allow = received("allow", Answer("q", Allow()))
    start = CallStarted("c1", 1, TOOL, NONE, approved_by="q")
    asked = desk(told(RunStarted()), PROPOSED, approval, allow)
    assert isinstance(judge(asked.state, Draft(start), RUNTIME), Violation)
    assert isinstance(judge(asked.state, Draft(replace(start, approved_by=None)), RUNTIME), Violation)
    _, allowed = asked.offer((Draft(RequestResolved("q", Allow()), causation="allow"), RUNTIME))
    assert judge(allowed.state, Draft(start), RUNTIME) is LEGAL
    for change in (
        {"approved_by": None},
        {"approved_by": "other"},
        {"arguments_digest": "other"},
        {"effect": "read"},
        {"tool": "other"},
        {"attempt": 2},
        {"call_id": "c9"},
    ):
        assert isinstance(judge(allowed.state, Draft(replace(start, **change)), RUNTIME), Violation), change
    _, started = allowed.offer((Draft(start), RUNTIME))
    assert isinstance(judge(started.state, Draft(replace(start, attempt=2)), RUNTIME), Violation)


@pytest.mark.parametrize("fact", [CallStarted("x", 1, TOOL, NONE), CallObserved("x", 1, "returned"),
                                  CallFinished("x", "succeeded"), RequestOpened(Request("q", "approval", call_id="x"))])  # fmt: skip
def test_a_call_that_nobody_proposed_is_a_violation(fact: AnyFact) -> None:
    """§3.14."""
    assert isinstance(judge(desk(told(RunStarted())).state, Draft(fact), RUNTIME), Violation)


# RC-26, RC-28, RC-29, RC-40


@pytest.mark.parametrize("outcome", [Completed(), Truncated()])
def test_who_completes_has_nothing_open(outcome: Completed | Truncated) -> None:
    """RC-26: no request, blocking or not; no mediated call. An unmediated one is settled (RC-27)."""
    end = Draft(RunEnded(outcome))
    for steps in ((ASIDE,), (PROPOSED,), (PROPOSED, STARTED)):
        assert isinstance(judge(desk(told(RunStarted()), *steps).state, end, RUNTIME), Violation)
    foreign = told(CallStarted("c1", 1, TOOL, NONE, mediated=False))
    verdict, after = desk(told(RunStarted()), PROPOSED, foreign).offer((end, RUNTIME))
    assert verdict.kind == "legal"
    assert not after.state.calls


def test_what_is_delivered_was_added_in_this_run() -> None:
    """RC-26; and only a completion delivers."""
    made = desk(told(RunStarted()), told(MessageAdded(user("m1"))), told(OutputAdded("o1", "report")))
    for delivery, legal in (
        (Delivery(("m1",), ("o1",)), True),
        (Delivery(("m1", "m2")), False),
        (Delivery(("o1",)), False),
        (Delivery((), ("m1",)), False),
    ):
        verdict = judge(made.state, Draft(RunEnded(Completed(), delivery)), RUNTIME)
        assert (verdict is LEGAL) == legal, delivery
        assert legal or isinstance(verdict, Violation)
    failed = RunEnded(Failed("provider"), Delivery(("m1",)))
    assert isinstance(judge(made.state, Draft(failed), RUNTIME), Violation)


def test_a_schema_wants_an_output() -> None:
    """RC-26."""
    made = desk(told(RunStarted()), told(OutputAdded("o1", "report")))
    made.state.terms = Terms(wants_output=True)
    assert isinstance(judge(made.state, Draft(RunEnded(Completed())), RUNTIME), Violation)
    assert judge(made.state, Draft(RunEnded(Completed(), Delivery((), ("o1",)))), RUNTIME) is LEGAL
    assert judge(made.state, Draft(RunEnded(Failed("provider"))), RUNTIME) is LEGAL


def test_a_refused_start_has_failed_or_was_cancelled_if_a_stop_was_asked_for() -> None:
    """RC-28."""
    refused = written(StartRefused("full", "no room", True))
    assert desk(refused).state.outcome == Failed("start_refused", "full", "no room", retryable=True)
    stop = written(StopRequested("enough", "parent"))
    assert desk(stop, refused).state.outcome == Cancelled("enough", "parent")


def test_after_an_end_everything_is_refused_but_an_exact_repeat() -> None:
    """RC-29."""
    end = Draft(RunEnded(Completed()))
    made = desk(told(RunStarted()), told(Noted("test/x")))
    _, made = made.offer((end, RUNTIME))
    before = made.state.seq
    verdict, made = made.offer((end, RUNTIME))
    assert (verdict.kind, verdict.seq) == ("duplicate", before)
    other = Draft(RunEnded(Failed("provider")))
    assert judge(made.state, other, RUNTIME) == Refused("ended")
    assert made.state.outcome == Completed()


def test_the_writer_ends_only_a_stopped_run() -> None:
    """RC-40, RC-45: cancelled, or incomplete where the deadline stopped it; nothing else and nowhere else."""
    stopping = desk(told(RunStarted()), *ENTER["stopping"]).state
    running = desk(told(RunStarted())).state
    for outcome, legal in (
        (Cancelled("enough"), True),
        (Incomplete("limit", "deadline"), True),
        (Incomplete("limit"), False),
        (Completed(), False),
        (Failed("provider"), False),
    ):
        assert (judge(stopping, Draft(RunEnded(outcome)), HOST) is LEGAL) == legal
        assert judge(running, Draft(RunEnded(outcome)), HOST).code == "wrong_lane"


def test_a_second_cancel_is_applied_to_the_stop_that_is_there() -> None:
    """RC-39: accepted without an effect of its own; a deadline's stop counts too."""
    again = received("again", Cancel("now!")), told(CommandAnswered("again", "accepted"), "again")
    for stop in (written(StopRequested("deadline", "deadline")), written(StopRequested("enough"), "first")):
        first = received("first", Cancel("enough"))
        made = desk(told(RunStarted()), first, stop, again[0], written(*again[1][0::2]))
        command = made.state.commands["again"]
        assert (command.state, command.applied_seq) == ("applied", made.state.stop_seq)
        assert made.state.stop == stop[0]


def test_a_replacement_keeps_the_place_and_the_old_one_is_returned() -> None:
    """RC-43."""
    steps: list[Step] = []
    for name in ("a", "b", "c"):
        steps += [received(name, Steer(user(f"m-{name}"))), written(CommandAnswered(name, "accepted"), name)]
    made = desk(
        told(RunStarted()),
        *steps,
        received("new", Replace("b", user("m-new"))),
        written(CommandAnswered("new", "accepted"), "new"),
        written(InputReturned("b", "replaced"), "new"),
    )
    assert list(made.state.queued) == ["a", "new", "c"]
    assert [made.state.commands[name].state for name in ("b", "new")] == ["returned", "accepted"]
    _, made = made.offer((Draft(MessageAdded(user("m-new")), causation="new"), RUNTIME))
    assert list(made.state.queued) == ["a", "c"]
    assert made.state.commands["new"].state == "applied"


def test_a_follow_up_is_consumed_like_a_steer() -> None:
    """RC-43: applied is marked by its message."""
    follow_up = received("later", FollowUp(user("m2")))
    made = desk(told(RunStarted()), follow_up, written(CommandAnswered("later", "accepted"), "later"))
    _, made = made.offer((Draft(MessageAdded(user("m2")), causation="later"), RUNTIME))
    assert (made.state.commands["later"].state, made.state.queued) == ("applied", {})


# Identity


@pytest.mark.parametrize("event_id", ["", "x" * 201, "a\x00b", "a\nb", "a\x7f", "a\ud800"])
def test_an_event_id_has_one_to_200_fit_characters(event_id: str) -> None:
    """RC-1."""
    state = desk(told(RunStarted())).state
    verdict = judge(state, Draft(Noted("test/x"), event_id=event_id), RUNTIME)
    assert isinstance(verdict, Refused)
    assert verdict.code == "invalid_fact"


def test_no_runtime_takes_an_id_of_the_host() -> None:
    """RC-13: `host:` is reserved."""
    state = desk(told(RunStarted())).state
    assert isinstance(judge(state, Draft(Noted("test/x"), event_id="host:stop"), RUNTIME), Refused)
    assert judge(state, Draft(StopRequested("x"), event_id="host:mine"), HOST) is LEGAL


# Turns


def test_turns_and_attempts_are_told_in_order() -> None:
    """§3.3: a turn follows the one before it, an attempt is of the open turn and ends once."""
    made = desk(told(RunStarted()), TURN, ASKED)
    for fact in (
        TurnStarted(2),
        TurnEnded(2),
        ModelRequested(1, 2, "m"),
        ModelAttemptEnded(1, 2, "failed"),
        ModelAttemptEnded(2, 1, "failed"),
    ):
        assert isinstance(judge(made.state, Draft(fact), RUNTIME), Violation), fact
    made = desk(told(RunStarted()), TURN, told(TurnEnded(1)))
    for fact in (TurnStarted(1), TurnStarted(3), TurnEnded(1), ModelRequested(1, 1, "m"),
                 ModelRequested(2, 1, "m"), ModelAttemptEnded(1, 1, "failed")):  # fmt: skip
        assert isinstance(judge(made.state, Draft(fact, event_id="other"), RUNTIME), Violation), fact
    assert judge(made.state, Draft(TurnStarted(2)), RUNTIME) is LEGAL


def test_the_diagram_names_every_phase_and_every_move() -> None:
    """The docs' picture comes from the tables."""
    drawn = diagram()
    assert all(phase.value in drawn for phase in Phase)
    moves = {
        cell.rstrip("?")
        for row in (*TABLE.values(), *ENDINGS.values())
        for cell in row.values()
        if cell not in ("=", "R", "V", ".", "?")
    }
    assert moves == {"running", "waiting", "stopping", "unknown", "terminal", "before"}


def test_a_stop_that_no_command_caused_applies_none() -> None:
    """RC-39: a deadline's stop, or one that names something else."""
    for causation in (None, "deadline"):
        made = desk(
            told(RunStarted()),
            received("first", Cancel("enough")),
            written(StopRequested("d", "deadline"), causation),
        )
        assert made.state.commands["first"].state == "received"
        assert made.state.state == "stopping"
