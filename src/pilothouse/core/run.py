"""What the facts of a run add up to: its state, folded one record at a time.

A run's phase follows from flags, by precedence: ended > lost > stopping > waiting (a blocking request is open) >
running (started) > accepted. Whether a fact may be stored at all is `rules.py`; what must stand in front of it is
`settling.py`. This file only folds what was stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from ..commands import (
    Ack,
    AckState,
    Answer,
    Cancel,
    Command,
    FollowUp,
    Replace,
    Request,
    RequestKind,
    Steer,
    Withdraw,
)
from ..errors import RunConflict, SeqConflict
from ..events import (
    CallFinished,
    CallObserved,
    CallProposed,
    CallStarted,
    Cancelled,
    CommandAnswered,
    CommandReceived,
    ContinuityLost,
    ContinuityRestored,
    Delivery,
    Failed,
    InputReturned,
    Lane,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    Outcome,
    OutputAdded,
    RequestClosed,
    RequestOpened,
    RequestResolved,
    RunAbandoned,
    RunAccepted,
    RunEnded,
    RunStarted,
    StartRefused,
    StopRequested,
    TurnEnded,
    TurnStarted,
    Unknown,
    ViolationRecorded,
)
from ..messages import Usage, Value
from ..records import Record, RunStateName, RunStatus, RunSummary
from . import calls as ledger
from .calls import CallState
from .names import Names

HOST: Final[Lane] = "host"
RUNTIME: Final[Lane] = "runtime"

TAKEOVERS_TRIED: Final = 3
"""A run that was taken over so often without a fact of its runtime is left to a person (RC-53)."""


class Phase(StrEnum):
    """The six states of a run."""

    ACCEPTED = "accepted"  # registered; the runtime has not begun
    RUNNING = "running"  # the runtime works
    WAITING = "waiting"  # running, with at least one blocking request open
    STOPPING = "stopping"  # a stop is durable: nothing new may start
    UNKNOWN = "unknown"  # continuity was lost: nobody knows what happened since
    TERMINAL = "terminal"  # it has its one end


STATE_NAMES: Final[dict[Phase, RunStateName]] = {phase: phase.value for phase in Phase}
"""The phases' words: `.value` is a Python call for each look."""


class Terms(Struct, frozen=True):
    """What a run was registered under, as far as its rules ask.

    Attributes:
        requests: the kinds that its runtime may open (RC-24).
        max_pending: how many of them may be open at once.
        wants_output: a completion must deliver an output, since the spec has a schema for one (RC-26).
        given: ids of the messages that the run was given; none of its own has one of them (RC-23).
    """

    requests: frozenset[RequestKind] = frozenset({"input", "approval", "external"})
    max_pending: int = 64
    wants_output: bool = False
    given: frozenset[str] = frozenset()


class CommandState(Value):
    """What the facts say of one command; the seqs are 0 where there is none yet."""

    command: Command
    digest: str
    received_seq: int
    answer: Literal["", "accepted", "rejected", "unsupported"] = ""
    code: str = ""
    message: str = ""
    answered_seq: int = 0
    applied_seq: int = 0
    returned: bool = False

    @property
    def state(self) -> AckState:
        """The ack's state (RC-37). A fate is final: what is answered after it changes nothing."""
        if self.returned:
            return "returned"
        if self.answer in ("rejected", "unsupported"):
            return self.answer
        if self.applied_seq:
            return "applied"
        return "accepted" if self.answer else "received"

    def ack(self, run_id: str, *, duplicate: bool = False) -> Ack:
        """The ack as the facts have it now."""
        return Ack(
            self.command.id,
            run_id,
            self.state,
            duplicate,
            self.received_seq,
            self.answered_seq,
            self.applied_seq,
            self.code,
            self.message,
        )


class RunState:
    """The fold of a run's facts. Bounded: open things only, no transcript (RC-72). Written by `apply` alone."""

    def __init__(self, run_id: str, chain: str = "", terms: Terms | None = None) -> None:
        self.run_id = run_id
        self.terms = terms or Terms()
        self.thread_id = ""
        self.seq = 0
        self.chain = chain
        self.first_chain = ""
        self.phase = Phase.ACCEPTED
        self.started = False
        self.stop: StopRequested | None = None
        self.stop_seq = 0
        self.loss: ContinuityLost | None = None
        self.loss_seq = 0
        self.violated = False
        self.outcome: Outcome | None = None
        self.delivery: Delivery | None = None
        self.turn = 0
        self.turn_open = False
        self.attempt: ModelRequested | None = None
        self.last_message_id: str | None = None
        self.usage: Usage | None = None
        self.calls: dict[str, CallState] = {}  # open ones, in order of proposal
        self.requests: dict[str, Request] = {}
        self.commands: dict[str, CommandState] = {}
        self.queued: dict[str, Command] = {}  # accepted inputs without a fate, in order
        self.names = Names()  # used up: messages, outputs, ended requests, finished calls
        self.takeovers = 0  # restores since the last runtime fact (RC-53)
        self.updated_at_ms = 0
        self.bytes = 0  # of all bodies, for the limit of a run

    @property
    def state(self) -> Phase:
        """The state's name, as contracts.RunFold calls it."""
        return self.phase

    @property
    def status(self) -> RunStatus:
        """The state, or once ended the outcome's word (RC-86)."""
        return status_of(self.phase, self.outcome)

    @property
    def resting(self) -> bool:
        """Whether nothing is in flight: a run that only waits for answers can lose nothing (RC-50)."""
        if self.phase is not Phase.WAITING or self.attempt is not None:
            return False
        if any(self._undelivered(command) for command in self.commands.values()):
            return False
        asked = {request.call_id for request in self.requests.values()}
        return all(
            call.call_id in asked for call in self.calls.values() if call.state in ("started", "observed")
        )

    @staticmethod
    def _undelivered(command: CommandState) -> bool:
        """An answer that was received and had no effect yet: it is in flight (RC-41)."""
        return command.state == "received" and isinstance(command.command.body, Answer)

    def fork(self) -> RunState:
        """An independent copy, for looking ahead of the journal; what it holds is small and open."""
        twin = object.__new__(RunState)
        twin.__dict__.update(self.__dict__)
        twin.names = self.names.copy()
        twin.calls = dict(self.calls)
        twin.requests = dict(self.requests)
        twin.commands = dict(self.commands)
        twin.queued = dict(self.queued)
        return twin

    def left_over(self) -> list[str]:
        """The inputs that have no fate yet, answered or not: each gets one before the end (RC-27, RC-37)."""
        return [
            *self.queued,
            *[
                command_id
                for command_id, command in self.commands.items()
                if command.state == "received"
                and isinstance(command.command.body, Steer | FollowUp | Replace)
            ],
        ]

    def blocking(self) -> bool:
        """Whether a blocking request is open."""
        return any(request.blocking for request in self.requests.values())

    def settle_phase(self) -> None:
        """Recomputes the phase from the flags, by precedence."""
        if self.outcome is not None:
            self.phase = Phase.TERMINAL
        elif self.loss is not None:
            self.phase = Phase.UNKNOWN
        elif self.stop is not None:
            self.phase = Phase.STOPPING
        elif self.requests and self.blocking():
            self.phase = Phase.WAITING
        else:
            self.phase = Phase.RUNNING if self.started else Phase.ACCEPTED

    def summary(self) -> RunSummary:
        """What a store keeps beside the facts."""
        waits = self.phase is Phase.WAITING
        return RunSummary(
            STATE_NAMES[self.phase],
            status_of(self.phase, self.outcome),
            waits and self.resting,
            self.loss is not None,
            self.takeovers,
            self.updated_at_ms,
        )


def status_of(phase: Phase, outcome: Outcome | None) -> RunStatus:
    """The word of a run for lists and views."""
    if outcome is None:
        return STATE_NAMES[phase]  # type: ignore[return-value]
    return outcome.__struct_config__.tag  # type: ignore[return-value]


# Folding


def apply(state: RunState, record: Record) -> None:
    """Folds one stored record in.

    Raises:
        RunConflict: the record is of another run.
        SeqConflict: its number is not the next one.
    """
    if record.run_id != state.run_id:
        raise RunConflict(record.run_id)
    if record.seq != state.seq + 1:
        raise SeqConflict(state.run_id, state.seq + 1, record.seq)
    absorb(state, record)


def absorb(state: RunState, record: Record) -> None:
    """Folds in a record that was made for this state: it is the next one."""
    fact, chain = record.fact, record.chain
    state.seq = record.seq
    state.chain = chain
    state.updated_at_ms = record.at_ms
    state.bytes += len(record.body)
    if not state.first_chain:
        state.first_chain = chain
    if state.takeovers and record.lane == RUNTIME:
        state.takeovers = 0
    folder = _FOLD.get(type(fact))
    if folder is not None:
        folder(state, fact, record)


def fold(records: Iterable[Record], run_id: str, chain: str = "", terms: Terms | None = None) -> RunState:
    """Folds a whole run from its first fact on."""
    state = RunState(run_id, chain, terms)
    for record in records:
        apply(state, record)
    return state


def _fold_accepted(state: RunState, fact: RunAccepted, _record: Record) -> None:
    state.thread_id = fact.thread_id


def _fold_started(state: RunState, _fact: RunStarted, _record: Record) -> None:
    state.started = True
    state.settle_phase()


def _fold_refused(state: RunState, fact: StartRefused, _record: Record) -> None:
    # RC-28: a refusal after a stop is the stop.
    if state.stop is not None:
        state.outcome = Cancelled(state.stop.reason, state.stop.source)
    else:
        state.outcome = Failed("start_refused", fact.code, fact.message, fact.retryable)
    state.settle_phase()


def _fold_received(state: RunState, fact: CommandReceived, record: Record) -> None:
    state.commands[fact.command.id] = CommandState(fact.command, fact.digest, record.seq)


def _fold_answered(state: RunState, fact: CommandAnswered, record: Record) -> None:
    command = state.commands[fact.command_id]
    # RC-39: a cancel of a run that is stopping already is applied to the stop that is there.
    stopping = fact.answer == "accepted" and isinstance(command.command.body, Cancel)
    state.commands[fact.command_id] = replace(
        command,
        answer=fact.answer,
        code=fact.code,
        message=fact.message,
        answered_seq=record.seq,
        applied_seq=state.stop_seq if stopping else 0,
    )
    if fact.answer != "accepted" or command.returned:
        return
    match command.command.body:
        case Steer() | FollowUp():
            state.queued[fact.command_id] = command.command
        case Replace(command_id=old):
            _put_in_place(state, old, command.command)
        case _:
            pass


def _put_in_place(state: RunState, old: str, new: Command) -> None:
    """The new input goes in front of the old one (RC-43), which its own fact returns in the same append."""
    queued: dict[str, Command] = {}
    for command_id, command in state.queued.items():
        if command_id == old:
            queued[new.id] = new
        queued[command_id] = command
    queued.setdefault(new.id, new)
    state.queued = queued


def _fold_stop(state: RunState, fact: StopRequested, record: Record) -> None:
    state.stop, state.stop_seq = fact, record.seq
    _applied(state, record.causation, record.seq)
    state.settle_phase()


def _fold_turn_started(state: RunState, fact: TurnStarted, _record: Record) -> None:
    state.turn, state.turn_open = fact.turn, True


def _fold_turn_ended(state: RunState, _fact: TurnEnded, _record: Record) -> None:
    state.turn_open = False


def _fold_requested(state: RunState, fact: ModelRequested, _record: Record) -> None:
    state.attempt = fact


def _fold_attempt_ended(state: RunState, fact: ModelAttemptEnded, _record: Record) -> None:
    if fact.usage is not None:
        state.usage = fact.usage if state.usage is None else state.usage + fact.usage
    state.attempt = None


def _fold_message(state: RunState, fact: MessageAdded, record: Record) -> None:
    message = fact.message
    state.last_message_id = message.id
    state.names.add("message", message.id)
    if message.role == "assistant":
        for call in ledger.proposals(message, turn=fact.turn):
            state.calls[call.call_id] = call
    if record.causation is not None:
        _applied(state, record.causation, record.seq)
        state.queued.pop(record.causation, None)


def _applied(state: RunState, cause: str | None, seq: int) -> None:
    if cause is not None and (command := state.commands.get(cause)) is not None:
        state.commands[cause] = replace(command, applied_seq=seq)


def _returned(state: RunState, command_id: str) -> None:
    state.commands[command_id] = replace(state.commands[command_id], returned=True)


def _fold_output(state: RunState, fact: OutputAdded, _record: Record) -> None:
    state.names.add("output", fact.output_id)


def _fold_proposed(state: RunState, fact: CallProposed, _record: Record) -> None:
    state.calls[fact.call_id] = ledger.propose(fact, turn=state.turn)


def _fold_call(state: RunState, fact: CallStarted | CallObserved, _record: Record) -> None:
    state.calls[fact.call_id] = ledger.apply(state.calls[fact.call_id], fact)


def _fold_finished(state: RunState, fact: CallFinished, _record: Record) -> None:
    del state.calls[fact.call_id]
    state.names.add("call", fact.call_id)


def _fold_call_of_request(state: RunState, call_id: str | None, fact: ledger.CallFact) -> None:
    if call_id is not None and (call := state.calls.get(call_id)) is not None:
        state.calls[call_id] = ledger.apply(call, fact)


def _fold_opened(state: RunState, fact: RequestOpened, _record: Record) -> None:
    request = fact.request
    state.requests[request.id] = request
    _fold_call_of_request(state, request.call_id, fact)
    state.settle_phase()


def _fold_resolved(state: RunState, fact: RequestResolved, record: Record) -> None:
    request = state.requests.pop(fact.request_id)
    state.names.add("request", fact.request_id)
    _fold_call_of_request(state, request.call_id, fact)
    _applied(state, record.causation, record.seq)
    state.settle_phase()


def _fold_closed(state: RunState, fact: RequestClosed, _record: Record) -> None:
    request = state.requests.pop(fact.request_id)
    state.names.add("request", fact.request_id)
    _fold_call_of_request(state, request.call_id, fact)
    for command in list(state.commands.values()):
        body = command.command.body
        of_it = isinstance(body, Answer) and body.request_id == fact.request_id
        if of_it and command.state in ("received", "accepted"):
            _returned(state, command.command.id)
    state.settle_phase()


def _fold_returned(state: RunState, fact: InputReturned, record: Record) -> None:
    state.queued.pop(fact.command_id, None)
    _returned(state, fact.command_id)
    cause = state.commands.get(record.causation or "")
    if cause is not None and isinstance(cause.command.body, Withdraw):
        _applied(state, cause.command.id, record.seq)


def _fold_violation(state: RunState, _fact: ViolationRecorded, _record: Record) -> None:
    state.violated = True


def _fold_lost(state: RunState, fact: ContinuityLost, record: Record) -> None:
    state.loss, state.loss_seq = fact, record.seq
    state.settle_phase()


def _fold_restored(state: RunState, _fact: ContinuityRestored, _record: Record) -> None:
    state.loss, state.violated = None, False
    state.takeovers += 1
    state.settle_phase()


def _fold_abandoned(state: RunState, fact: RunAbandoned, _record: Record) -> None:
    cause = state.loss.cause if state.loss is not None else "owner_lost"
    state.outcome = Unknown(cause, fact.reason, settled=True, by=fact.by)
    state.settle_phase()


def _fold_ended(state: RunState, fact: RunEnded, _record: Record) -> None:
    state.outcome, state.delivery = fact.outcome, fact.delivery
    state.attempt = None
    state.settle_phase()


_FOLD: Final[dict[type, Callable[[RunState, Any, Record], None]]] = {
    RunAccepted: _fold_accepted,
    RunStarted: _fold_started,
    StartRefused: _fold_refused,
    CommandReceived: _fold_received,
    CommandAnswered: _fold_answered,
    StopRequested: _fold_stop,
    TurnStarted: _fold_turn_started,
    TurnEnded: _fold_turn_ended,
    ModelRequested: _fold_requested,
    ModelAttemptEnded: _fold_attempt_ended,
    MessageAdded: _fold_message,
    OutputAdded: _fold_output,
    CallProposed: _fold_proposed,
    CallStarted: _fold_call,
    CallObserved: _fold_call,
    CallFinished: _fold_finished,
    RequestOpened: _fold_opened,
    RequestResolved: _fold_resolved,
    RequestClosed: _fold_closed,
    InputReturned: _fold_returned,
    ViolationRecorded: _fold_violation,
    ContinuityLost: _fold_lost,
    ContinuityRestored: _fold_restored,
    RunAbandoned: _fold_abandoned,
    RunEnded: _fold_ended,
}
