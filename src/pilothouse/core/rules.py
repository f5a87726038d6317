"""Which fact is legal when.

Rule 1: everything that decides whether a fact may be stored is here (and, for calls, in `calls.py`). Rule 2: this file
knows nothing of who asks; it is given a state, a draft and a lane.

`TABLE` says for each fact and phase where the fact leads: `=` stays, a phase's name moves (`?` behind it: only if a
blocking request says so; `before`: to what it was before the loss), `R` is refused (an honest race: nothing is stored,
the run goes on), `V` is a violation (the runtime broke the contract), `.` is never written there by the controller.
The row of `run_ended` depends on the outcome: `ENDINGS`. What tables cannot hold is in `CONDITIONS`, one function a
fact. `judge` looks and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from ..commands import Answer, Cancel, Deny, FollowUp, Replace, Request, Steer
from ..events import (
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
    Lane,
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
from ..records import Draft
from . import calls as ledger
from .run import HOST, RUNTIME, CommandState, Phase, RunState


class Legal(NamedTuple):
    """The fact may be stored."""


class Refused(NamedTuple):
    """An honest race or a bad form: nothing is stored, the run goes on."""

    code: str
    why: str = ""


class Violation(NamedTuple):
    """The runtime broke the contract."""

    code: str
    why: str


Verdict: TypeAlias = Legal | Refused | Violation
LEGAL: Final = Legal()
NOTHING: Final = Delivery()

ID_LIMIT: Final = 200
HOST_PREFIX: Final = "host:"
"""What the ids of the controller's own facts begin with: no runtime can be in their way (RC-13)."""

_COLUMNS: Final = tuple(Phase)


def _row(cells: str) -> dict[Phase, str]:
    return dict(zip(_COLUMNS, cells.split(), strict=True))


_WORK: Final = _row("V         =         =         R         R         R")
_RESULT: Final = _row("V         =         =         =         R         R")
_REMARK: Final = _row("=         =         =         =         R         R")

TABLE: Final[dict[type, dict[Phase, str]]] = {
    #                       accepted  running   waiting   stopping  unknown   terminal
    RunAccepted: _row("      .         .         .         .         .         ."),
    StartRefused: _row("     terminal  .         .         terminal  .         ."),
    CommandReceived: _row("  =         =         =         =         .         ."),
    StopRequested: _row("    stopping  stopping  stopping  .         .         ."),
    CommandAnswered: _REMARK,
    Noted: _REMARK,
    InputReturned: _REMARK,
    RunStarted: _row("       running   V         V         =         R         R"),
    TurnStarted: _WORK,
    ModelRequested: _WORK,
    CallProposed: _WORK,
    CallStarted: _WORK,
    HistoryCompacted: _WORK,
    RequestOpened: _row("    V         waiting?  =         R         R         R"),
    RequestResolved: _row("  V         =         running?  =         R         R"),
    RequestClosed: _row("    V         =         running?  =         R         R"),
    MessageAdded: _RESULT,
    OutputAdded: _RESULT,
    ModelAttemptEnded: _RESULT,
    TurnEnded: _RESULT,
    CallObserved: _RESULT,
    CallFinished: _RESULT,
    PartialSaved: _row("     .         =         =         =         .         ."),
    RunEnded: _row("         ?         ?         ?         ?         R         R"),  # by outcome: ENDINGS
    ViolationRecorded: _REMARK,
    ContinuityLost: _row("   unknown   unknown   unknown   unknown   .         ."),
    ContinuityRestored: _row(".         .         .         .         before    ."),
    RunAbandoned: _row("     .         .         .         .         terminal  ."),
}

ENDINGS: Final[dict[type, dict[Phase, str]]] = {
    #                       accepted  running   waiting   stopping  unknown   terminal
    Completed: _row("        V         terminal  V         terminal  R         R"),
    Truncated: _row("        V         terminal  V         terminal  R         R"),
    Incomplete: _row("       terminal  terminal  terminal  terminal  R         R"),
    Failed: _row("           terminal  terminal  terminal  terminal  R         R"),
    Cancelled: _row("        V         V         V         terminal  R         R"),
    Unknown: _row("          V         V         V         V         R         R"),
}

LANES: Final[dict[type, tuple[Lane, ...]]] = {
    RunAccepted: (HOST,),
    StartRefused: (HOST,),
    CommandReceived: (HOST,),
    CommandAnswered: (HOST, RUNTIME),
    StopRequested: (HOST,),
    PartialSaved: (HOST,),
    CallFinished: (HOST, RUNTIME),
    RequestClosed: (HOST, RUNTIME),
    InputReturned: (HOST, RUNTIME),
    ViolationRecorded: (HOST,),
    ContinuityLost: (HOST,),
    ContinuityRestored: (HOST,),
    RunAbandoned: (HOST,),
    RunEnded: (HOST, RUNTIME),  # the host's only after a stop: `_confirms_stop`
}
_RUNTIME_ONLY: Final[tuple[Lane, ...]] = (RUNTIME,)

_REFUSALS: Final = {Phase.STOPPING: "stopping", Phase.UNKNOWN: "unknown", Phase.TERMINAL: "ended"}


# Judging


def judge(state: RunState, draft: Draft, lane: Lane) -> Verdict:
    """Says whether a draft may be the next fact. Looks only; copies nothing."""
    fact = draft.fact
    kind = type(fact)
    if draft.event_id is None:
        plain = _PLAIN[state.phase][lane]
        if kind in plain:
            condition = plain[kind]
            return LEGAL if condition is None else condition(state, fact, draft.causation) or LEGAL
    lanes, row, condition = _RULES[kind]
    if lane not in lanes or (
        kind is RunEnded and lane == HOST and not _confirms_stop(state, fact)  # type: ignore[arg-type]
    ):
        return Refused("wrong_lane", f"{fact.kind} is not written by the {lane}")
    if draft.event_id is not None and (why := _event_id_fault(draft.event_id, lane)):
        return Refused("invalid_fact", f"event_id: {why}")
    cell = row[state.phase]
    if cell == "?":
        cell = ENDINGS[type(fact.outcome)][state.phase]  # type: ignore[union-attr]
    if cell == "V":
        return Violation("illegal", f"{fact.kind} while {state.phase.value}")
    if cell == "R":
        return Refused(_REFUSALS[state.phase])
    if cell == ".":
        return Refused("illegal", f"{fact.kind} while {state.phase.value}")
    return LEGAL if condition is None else condition(state, fact, draft.causation) or LEGAL


_Problem: TypeAlias = Refused | Violation | None


def _confirms_stop(state: RunState, fact: RunEnded) -> bool:
    """The one end that the writer tells: of an in-process runtime that left because of our stop (RC-40, RC-45)."""
    confirmed = isinstance(fact.outcome, Cancelled) or fact.outcome == Incomplete("limit", "deadline")
    return state.phase is Phase.STOPPING and confirmed


def _event_id_fault(event_id: str, lane: Lane) -> str:
    """Why this cannot be the id of an event (RC-1, RC-13)."""
    if not 1 <= len(event_id) <= ID_LIMIT:
        return f"an id has 1 to {ID_LIMIT} characters"
    if any(ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) <= 0xDFFF for char in event_id):
        return "an id has no control characters and no surrogates"
    return "host: is reserved" if lane == RUNTIME and event_id.startswith(HOST_PREFIX) else ""


def _cause(state: RunState, causation: str, *, effect: str) -> _Problem:
    """A cause must be a received command that has had no effect and was not rejected (RC-22)."""
    command = state.commands.get(causation)
    if command is None:
        return Violation("unknown_cause", f"{effect} names command {causation}, which was not received")
    if command.state in ("rejected", "unsupported", "returned"):
        return Violation("dead_cause", f"{effect} names command {causation}, which was {command.state}")
    if command.applied_seq:
        return Violation("second_effect", f"command {causation} already had its effect")
    return None


def _run_started(state: RunState, _fact: RunStarted, _cause_id: str | None) -> _Problem:
    return Violation("illegal", "run_started twice") if state.started else None


def _start_refused(state: RunState, _fact: StartRefused, _cause_id: str | None) -> _Problem:
    return Refused("illegal", "start_refused after run_started") if state.started else None


def _command_received(state: RunState, fact: CommandReceived, _cause_id: str | None) -> _Problem:
    if state.phase is Phase.STOPPING and not isinstance(fact.command.body, Cancel):
        return Refused("stopping")
    return None


def _command_answered(state: RunState, fact: CommandAnswered, causation: str | None) -> _Problem:
    command = state.commands.get(fact.command_id)
    if command is None or causation != fact.command_id:
        return Violation("unknown_cause", f"answer to command {fact.command_id}, which was not received")
    if command.answer:
        return Violation("second_answer", f"command {fact.command_id} was answered already")
    return None


def _message_added(state: RunState, fact: MessageAdded, causation: str | None) -> _Problem:
    message = fact.message
    if state.names.has("message", message.id) or message.id in state.terms.given:
        return Violation("message_repeated", f"message {message.id} was added already")
    if causation is not None and (problem := _input_consumed(state, causation)):
        return problem
    if message.role != "assistant":
        return None
    proposed: set[str] = set()
    for call in message.tool_calls:
        if call.call_id in proposed or (problem := _call_new(state, call.call_id)):
            return problem or Violation("call_repeated", f"call {call.call_id} is in the message twice")
        proposed.add(call.call_id)
    return None


def _input_consumed(state: RunState, causation: str) -> _Problem:
    """A message that is a steer or follow-up: only while nothing has become of that, and not after a stop."""
    command = state.commands.get(causation)
    if command is not None and not isinstance(command.command.body, Steer | FollowUp | Replace):
        return Violation("wrong_cause", f"message_added names a {_body(command)} command")
    if problem := _cause(state, causation, effect="message_added"):
        return problem
    return Refused("stopping") if state.phase is Phase.STOPPING else None


def _call_new(state: RunState, call_id: str) -> Violation | None:
    if call_id in state.calls or state.names.has("call", call_id):
        return Violation("call_repeated", f"call {call_id} was proposed already")
    return None


def _output_added(state: RunState, fact: OutputAdded, _cause_id: str | None) -> _Problem:
    if state.names.has("output", fact.output_id):
        return Violation("output_repeated", f"output {fact.output_id} was added already")
    return None


def _body(command: CommandState) -> str:
    return str(command.command.body.__struct_config__.tag)


def _model_attempt_ended(state: RunState, fact: ModelAttemptEnded, _cause_id: str | None) -> _Problem:
    open_ = state.attempt
    if open_ is None or (open_.turn, open_.attempt) != (fact.turn, fact.attempt):
        return Violation("no_attempt", f"attempt {fact.turn}.{fact.attempt} is not open")
    return None


def _model_requested(state: RunState, fact: ModelRequested, _cause_id: str | None) -> _Problem:
    if state.attempt is not None:
        return Violation(
            "attempt_open", f"attempt {state.attempt.turn}.{state.attempt.attempt} has not ended"
        )
    if not state.turn_open or fact.turn != state.turn:
        return Violation("no_turn", f"turn {fact.turn} is not open")
    return None


def _turn_started(state: RunState, fact: TurnStarted, _cause_id: str | None) -> _Problem:
    if state.turn_open or fact.turn != state.turn + 1:
        return Violation("turn_order", f"turn {fact.turn} after turn {state.turn}")
    return None


def _turn_ended(state: RunState, fact: TurnEnded, _cause_id: str | None) -> _Problem:
    if not state.turn_open or fact.turn != state.turn:
        return Violation("turn_order", f"turn {fact.turn} is not open")
    return None


def _call_proposed(state: RunState, fact: CallProposed, _cause_id: str | None) -> _Problem:
    return _call_new(state, fact.call_id)


def _call(
    state: RunState, fact: CallStarted | CallObserved | CallFinished, _cause_id: str | None
) -> _Problem:
    call = state.calls.get(fact.call_id)
    if call is None:
        return Violation("unknown_call", f"call {fact.call_id} is not open")
    why = ledger.judge(call, fact)
    return Violation("ledger", why) if why else None


def _call_of_request(state: RunState, call_id: str | None, fact: ledger.CallFact) -> _Problem:
    if call_id is None:
        return None
    call = state.calls.get(call_id)
    if call is None:
        return (
            None
            if isinstance(fact, RequestClosed)
            else Violation("unknown_call", f"call {call_id} is not open")
        )
    why = ledger.judge(call, fact)
    return Violation("ledger", why) if why else None


def _request_opened(state: RunState, fact: RequestOpened, _cause_id: str | None) -> _Problem:
    request = fact.request
    if request.kind not in state.terms.requests:
        return Violation("request_undeclared", f"the runtime does not declare {request.kind} requests")
    if request.id in state.requests or state.names.has("request", request.id):
        return Violation("request_repeated", f"request {request.id} was opened already")
    if problem := _call_of_request(state, request.call_id, fact):
        return problem
    if len(state.requests) >= state.terms.max_pending:
        return Refused("max_pending", f"{len(state.requests)} requests are open")
    return None


def _request_resolved(state: RunState, fact: RequestResolved, causation: str | None) -> _Problem:
    request = state.requests.get(fact.request_id)
    if request is None:
        return Violation("request_not_pending", f"request {fact.request_id} is not open")
    if not answers(request, fact.resolution):
        return Violation("answer_mismatch", f"{request.kind} request {request.id} resolved by another kind")
    command = None if causation is None else state.commands.get(causation)
    if causation is None or command is None or not isinstance(command.command.body, Answer):
        return Violation("unknown_cause", f"request {request.id} resolved without an answer")
    if command.command.body.request_id != request.id:
        return Violation("wrong_cause", f"the answer {causation} is for another request")
    if command.command.body.resolution != fact.resolution:  # nobody but its sender says what it says (RC-42)
        return Violation("answer_mismatch", f"the answer {causation} says something else")
    if problem := _cause(state, causation, effect="request_resolved"):
        return problem
    call = state.calls.get(request.call_id or "")
    if call is None or call.request_id != request.id:
        return None  # what a running or finished call had asked is the run's alone
    return _call_of_request(state, request.call_id, fact)


def answers(request: Request, resolution: object) -> bool:
    """Whether this kind of resolution fits the request; a denial always does."""
    if isinstance(resolution, Deny):
        return True
    kind = resolution.__struct_config__.tag  # type: ignore[attr-defined]
    return bool(kind == {"input": "input", "approval": "allow", "external": "external"}[request.kind])


def _request_closed(state: RunState, fact: RequestClosed, _cause_id: str | None) -> _Problem:
    if fact.request_id not in state.requests:
        return Violation("request_not_pending", f"request {fact.request_id} is not open")
    return _call_of_request(state, state.requests[fact.request_id].call_id, fact)


def _input_returned(state: RunState, fact: InputReturned, _cause_id: str | None) -> _Problem:
    if fact.command_id not in state.queued and fact.command_id not in state.left_over():
        return Violation("not_queued", f"input {fact.command_id} is not queued")
    return None


def _run_ended(state: RunState, fact: RunEnded, _cause_id: str | None) -> _Problem:
    """RC-26: who completes has nothing open and delivers what is there."""
    given = fact.delivery
    if not isinstance(fact.outcome, Completed | Truncated):
        return None if given == NOTHING else Violation("delivery", "only a completed run delivers")
    if state.requests:
        return Violation("requests_open", f"completed with open requests: {', '.join(state.requests)}")
    if still := [call.call_id for call in state.calls.values() if call.mediated]:
        return Violation("calls_open", f"completed with open calls: {', '.join(still)}")
    for kind, names in (("message", given.message_ids), ("output", given.outputs)):
        for name in names:
            if not state.names.has(kind, name):
                return Violation("delivery", f"{kind} {name} is delivered and was never added")
    if state.terms.wants_output and not given.outputs:
        return Violation("no_output", "the specification wants an output and none is delivered")
    return None


def _continuity_restored(state: RunState, fact: ContinuityRestored, _cause_id: str | None) -> _Problem:
    return None if fact.loss_seq == state.loss_seq else Refused("illegal", "another loss is recorded")


CONDITIONS: Final[dict[type, Callable[[RunState, Any, str | None], _Problem]]] = {
    RunStarted: _run_started,
    StartRefused: _start_refused,
    CommandReceived: _command_received,
    CommandAnswered: _command_answered,
    MessageAdded: _message_added,
    OutputAdded: _output_added,
    ModelRequested: _model_requested,
    ModelAttemptEnded: _model_attempt_ended,
    TurnStarted: _turn_started,
    TurnEnded: _turn_ended,
    CallProposed: _call_proposed,
    CallStarted: _call,
    CallObserved: _call,
    CallFinished: _call,
    RequestOpened: _request_opened,
    RequestResolved: _request_resolved,
    RequestClosed: _request_closed,
    InputReturned: _input_returned,
    RunEnded: _run_ended,
    ContinuityRestored: _continuity_restored,
}

_RULES: Final = {
    kind: (LANES.get(kind, _RUNTIME_ONLY), row, CONDITIONS.get(kind)) for kind, row in TABLE.items()
}
"""The three tables side by side."""

_PLAIN: Final = {
    phase: {
        lane: {
            kind: condition
            for kind, (lanes, row, condition) in _RULES.items()
            if lane in lanes and row[phase] not in ("V", "R", ".", "?")
        }
        for lane in (HOST, RUNTIME)
    }
    for phase in Phase
}
"""By phase and lane, the facts about which only their condition has something to say: nearly all that are written."""


def diagram() -> str:
    """The tables as a Mermaid state diagram; the docs hold it and a test compares."""
    moves: dict[tuple[Phase, str], list[str]] = {}
    rows = [(kind.__struct_config__.tag, row) for kind, row in TABLE.items()]  # type: ignore[attr-defined]
    rows += [(f"run_ended {kind.__struct_config__.tag}", row) for kind, row in ENDINGS.items()]  # type: ignore[attr-defined]
    for name, row in rows:
        for phase, cell in row.items():
            to = cell.rstrip("?")
            if to in set(Phase) - {phase} or to == "before":
                moves.setdefault((phase, "running" if to == "before" else to), []).append(str(name))
    lines = ["stateDiagram-v2", "    [*] --> accepted: run_accepted"]
    lines += [f"    {phase.value} --> {to}: {', '.join(names)}" for (phase, to), names in moves.items()]
    return "\n".join([*lines, "    terminal --> [*]"]) + "\n"
