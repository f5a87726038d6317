"""The run reducer as `specs/run-controller.md` §3.5, §3.14 tell it: an oracle that shares no code with `core/`.

It was written from the page alone and knows the vocabulary structs only. It is slow, copies everything, remembers
every id for ever and derives the phase anew each time: nothing that the real one does for speed is repeated here.

Where the page leaves a choice, the choice is marked `Read:` below and listed in `docs/design/reducer.md`.

`Oracle.offer((draft, lane), …)` answers as the writer must: `legal`, with the facts that came in front, or one of
`duplicate`, `refused`, `violation`, `never` (a cell where the controller never writes), and then nothing changed.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pilothouse import commands as cmd
from pilothouse import events as ev
from pilothouse.records import Draft

HOST, RUNTIME, EITHER = {"host"}, {"runtime"}, {"host", "runtime"}

LANES: dict[type, set[str]] = {
    ev.RunAccepted: HOST, ev.StartRefused: HOST, ev.RunStarted: RUNTIME, ev.CommandReceived: HOST,
    ev.CommandAnswered: EITHER, ev.StopRequested: HOST, ev.TurnStarted: RUNTIME, ev.TurnEnded: RUNTIME,
    ev.ModelRequested: RUNTIME, ev.ModelAttemptEnded: RUNTIME, ev.MessageAdded: RUNTIME, ev.PartialSaved: HOST,
    ev.OutputAdded: RUNTIME, ev.HistoryCompacted: RUNTIME, ev.CallProposed: RUNTIME, ev.CallStarted: RUNTIME,
    ev.CallObserved: RUNTIME, ev.CallFinished: EITHER, ev.RequestOpened: RUNTIME, ev.RequestResolved: RUNTIME,
    ev.RequestClosed: EITHER, ev.InputReturned: EITHER, ev.Noted: RUNTIME, ev.ViolationRecorded: HOST,
    ev.ContinuityLost: HOST, ev.ContinuityRestored: HOST, ev.RunAbandoned: HOST, ev.RunEnded: RUNTIME,
}  # fmt: skip


def lane_fits(fact: ev.Fact, lane: str, phase: str) -> bool:
    """§3.3. Read: the end that the writer records for a stopped runtime (RC-40) is written on the host's lane."""
    if isinstance(fact, ev.RunEnded) and lane == "host" and phase == "stopping":
        return isinstance(fact.outcome, ev.Cancelled) or fact.outcome == ev.Incomplete("limit", "deadline")
    return lane in LANES[type(fact)]


# §3.5, copied cell by cell. "=" stays, ">" moves, "R" refused, "V" violation, "." never written there.
PHASES = ("accepted", "running", "waiting", "stopping", "unknown", "terminal")
TABLE: dict[str, str] = {
    "start_refused":            "> . . > . .",
    "command_received":         "= = = = . .",
    "stop_requested":           "> > > . . .",
    "command_answered":         "= = = = R R",
    "noted":                    "= = = = R R",
    "input_returned":           "= = = = R R",
    "run_started":              "> V V = R R",
    "turn_started":             "V = = R R R",
    "model_requested":          "V = = R R R",
    "call_proposed":            "V = = R R R",
    "call_started":             "V = = R R R",
    "history_compacted":        "V = = R R R",
    "request_opened":           "V > = R R R",
    "request_resolved":         "V = > = R R",
    "request_closed":           "V = > = R R",
    "message_added":            "V = = = R R",
    "output_added":             "V = = = R R",
    "model_attempt_ended":      "V = = = R R",
    "turn_ended":               "V = = = R R",
    "call_observed":            "V = = = R R",
    "call_finished":            "V = = = R R",
    "partial_saved":            ". = = = . .",
    "run_ended completed":      "V > V > R R",
    "run_ended truncated":      "V > V > R R",
    "run_ended incomplete":     "> > > > R R",
    "run_ended failed":         "> > > > R R",
    "run_ended cancelled":      "V V V > R R",
    "run_ended unknown":        "V V V V R R",  # no row: not an end that a runtime can tell
    "continuity_lost":          "> > > > . .",
    "violation_recorded":       "= = = = . .",
    "continuity_restored":      ". . . . > .",
    "run_abandoned":            ". . . . > .",
    "run_accepted":             ". . . . . .",
}  # fmt: skip
CODE = {"stopping": "stopping", "unknown": "unknown", "terminal": "ended"}


def row_of(fact: ev.Fact) -> str:
    """The row of the table that a fact is judged by."""
    return f"run_ended {type(fact.outcome).__name__.lower()}" if isinstance(fact, ev.RunEnded) else fact.kind


def cell(fact: ev.Fact, phase: str) -> str:
    """What the table says."""
    return TABLE[row_of(fact)].split()[PHASES.index(phase)]


class Verdict(NamedTuple):
    kind: str  # legal | duplicate | refused | violation | never
    code: str = ""
    seq: int = 0  # of the fact, or of what it repeats


LEGAL, VIOLATION, NEVER = Verdict("legal"), Verdict("violation"), Verdict("never")


@dataclass(frozen=True)
class Contract:
    """What a run was registered with, as far as the reducer cares."""

    requests: frozenset[str] = frozenset({"input", "approval", "external"})
    max_pending: int = 64
    wants_output: bool = False
    # What a digest stands for: operation_digest -> (tool, arguments digest, effect); arguments -> their digest.
    operations: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    tool: str
    state: str = "proposed"
    mediated: bool = True
    attempt: int = 0
    effect: str = ""
    digest: str = ""
    not_run: bool = False
    request: str | None = None
    answer: Any = None  # None: pending or never asked; "closed"; or the resolution


@dataclass(frozen=True)
class Input:
    """A received command and what became of it."""

    body: cmd.CommandBody
    answer: str = ""
    fate: str = ""  # applied | returned


def name_of(fact: ev.Fact) -> tuple | None:
    """What a fact names: two facts with one name are one fact, or a conflict (RC-13). None: names nothing."""
    match fact:
        case ev.RunAccepted() | ev.RunStarted() | ev.StopRequested() | ev.StartRefused() | ev.RunAbandoned():
            return (fact.kind,)
        case ev.RunEnded():
            return ("run_ended",)
        case ev.CommandReceived():
            return ("command", fact.command.id, "received")
        case ev.CommandAnswered():
            return ("command", fact.command_id, "answered")
        case ev.InputReturned():
            return ("command", fact.command_id, "returned")
        case ev.TurnStarted() | ev.TurnEnded():
            return (fact.kind, fact.turn)
        case ev.ModelRequested() | ev.ModelAttemptEnded():
            return (fact.kind, fact.turn, fact.attempt)
        case ev.MessageAdded():
            return ("message", fact.message.id)
        case ev.PartialSaved():
            return ("partial", fact.message_id, fact.part, fact.index, fact.offset)
        case ev.OutputAdded():
            return ("output", fact.output_id)
        case ev.CallProposed():
            return ("call", fact.call_id, "proposed")
        case ev.CallStarted() | ev.CallObserved():
            return (fact.kind, fact.call_id, fact.attempt)
        case ev.CallFinished():
            return ("call", fact.call_id, "finished")
        case ev.RequestOpened():
            return ("request", fact.request.id, "opened")
        case ev.RequestResolved() | ev.RequestClosed():
            return (fact.kind, fact.request_id)
    return None


class Oracle:
    """One run. `terminal_rule=False` makes the broken twin that a test of the test must catch."""

    def __init__(self, contract: Contract | None = None, *, terminal_rule: bool = True) -> None:
        self.contract = contract or Contract()
        self.terminal_rule = terminal_rule
        self.seq = 1  # run_accepted
        self.started = False
        self.told = False  # a runtime fact is stored
        self.stop: ev.StopRequested | None = None
        self.lost: ev.ContinuityLost | None = None
        self.outcome: ev.Outcome | None = None
        self.stored: dict[tuple, tuple[int, Any, str]] = {}
        self.inputs: dict[str, Input] = {}
        self.pending: dict[str, cmd.Request] = {}
        self.opened: dict[str, cmd.Request] = {}
        self.calls: dict[str, Call] = {}
        self.messages: set[str] = set()
        self.outputs: set[str] = set()
        self.turn, self.turn_open = 0, False
        self.asked: tuple[int, int] | None = None
        self.lost_seq = 0

    def copy(self) -> Oracle:
        """A twin that goes its own way."""
        twin = copy.copy(self)
        for name in ("stored", "pending", "opened", "inputs", "calls", "messages", "outputs"):
            setattr(twin, name, copy.copy(getattr(self, name)))
        return twin

    def _change(self, where: dict, key: str, **changes: Any) -> None:
        where[key] = dataclasses.replace(where[key], **changes)

    @property
    def phase(self) -> str:
        """Precedence terminal > unknown > stopping > waiting > running > accepted."""
        if self.outcome is not None:
            return "terminal"
        if self.lost is not None:
            return "unknown"
        if self.stop is not None:
            return "stopping"
        if not self.started:
            return "accepted"
        return "waiting" if any(request.blocking for request in self.pending.values()) else "running"

    @property
    def open_calls(self) -> dict[str, Call]:
        return {key: call for key, call in self.calls.items() if call.state != "finished"}

    @property
    def left_over(self) -> set[str]:
        """Steers and follow-ups without a fate (RC-27, RC-37)."""
        return {
            key for key, item in self.inputs.items()
            if isinstance(item.body, cmd.Steer | cmd.FollowUp | cmd.Replace)
            and not item.fate and item.answer in ("", "accepted")
        }  # fmt: skip

    @property
    def queued(self) -> set[str]:
        """Those that were accepted."""
        return {key for key in self.left_over if self.inputs[key].answer}

    # Judging

    def offer(self, *drafts: tuple[Draft, str]) -> tuple[Verdict, Oracle]:
        """One append, all or none (RC-12): the verdict, and the run after it, itself if nothing changed."""
        ahead, verdict = self, LEGAL
        for draft, lane in drafts:
            verdict = ahead._verdict(draft, lane)
            if verdict.kind == "legal":
                ahead = ahead.copy() if ahead is self else ahead
                ahead._commit(draft, lane)
            elif verdict.kind != "duplicate":  # which changes nothing, and the others of its append stand
                return verdict, self
        if ahead is self:
            return verdict, self
        return Verdict("legal", seq=verdict.seq or ahead.seq), ahead

    def _verdict(self, draft: Draft, lane: str) -> Verdict:
        fact = draft.fact
        content = (fact, draft.causation, draft.source)
        name = ("event", draft.event_id) if draft.event_id else name_of(fact)
        known = self.stored.get(name) if name is not None else None
        if known is not None and known[1:] == (content, lane):
            return Verdict("duplicate", seq=known[0])
        if not lane_fits(fact, lane, self.phase):
            return Verdict("refused", "wrong_lane")
        if lane == "runtime" and (draft.event_id or "").startswith("host:"):
            return Verdict("refused", "invalid_fact")  # RC-13: reserved
        first = self._begins(fact, lane)
        verdict = self._judge(fact, draft.causation, "running" if first and self.stop is None else self.phase)
        if verdict.kind == "legal" and known is not None:
            verdict = VIOLATION  # RC-13. Read: an honest race is refused before its id is looked at
        if verdict.kind == "violation" and lane == "host":
            return NEVER  # only a runtime's draft can be one
        return verdict

    def _commit(self, draft: Draft, lane: str) -> None:
        """Applies what is legal, with all that has to come in front of it (RC-22, RC-27)."""
        fact = draft.fact
        name = ("event", draft.event_id) if draft.event_id else name_of(fact)
        if self._begins(fact, lane):
            self._store(ev.RunStarted(), None, "runtime", ("run_started",), None)
        for extra, its_lane in list(self._in_front(fact, draft.causation)):
            self._store(extra.fact, extra.causation, its_lane, name_of(extra.fact), None)
        self._store(fact, draft.causation, lane, name, draft.source)

    def _begins(self, fact: ev.Fact, lane: str) -> bool:
        """§3.5: the port puts `run_started` in front of a first fact, not of an incomplete or failed end."""
        early = isinstance(fact, ev.RunEnded) and isinstance(fact.outcome, ev.Incomplete | ev.Failed)
        waits = lane == "runtime" and not self.started and self.phase in ("accepted", "stopping")
        return waits and not early and not isinstance(fact, ev.RunStarted)

    def judge(self, fact: ev.Fact, causation: str | None = None) -> Verdict:
        """The verdict without what comes in front: one cell of the table and the conditions of §3.5."""
        return self._judge(fact, causation, self.phase)

    def _judge(self, fact: ev.Fact, causation: str | None, phase: str) -> Verdict:
        match cell(fact, phase):
            case "V":
                return VIOLATION
            case "R":
                return Verdict("refused", CODE[phase])
            case ".":
                return NEVER
        return getattr(self, f"_{fact.kind}", self._free)(fact, causation)

    def _free(self, fact: Any, causation: str | None) -> Verdict:
        return LEGAL

    def _start_refused(self, fact: ev.StartRefused, causation: str | None) -> Verdict:
        return NEVER if self.told else LEGAL

    def _run_started(self, fact: ev.RunStarted, causation: str | None) -> Verdict:
        return VIOLATION if self.started else LEGAL

    def _command_received(self, fact: ev.CommandReceived, causation: str | None) -> Verdict:
        if self.phase == "stopping" and not isinstance(fact.command.body, cmd.Cancel):
            return NEVER
        return NEVER if fact.command.id in self.inputs else LEGAL

    def _command_answered(self, fact: ev.CommandAnswered, causation: str | None) -> Verdict:
        """RC-21."""
        known = self.inputs.get(fact.command_id)
        return LEGAL if known and not known.answer and causation == fact.command_id else VIOLATION

    def _input_returned(self, fact: ev.InputReturned, causation: str | None) -> Verdict:
        """RC-37: one fate an input."""
        return LEGAL if fact.command_id in self.left_over else VIOLATION

    def _effect_of(self, causation: str, *kinds: type) -> bool:
        """RC-22: whether an effect may name this command as its cause."""
        known = self.inputs.get(causation)
        return bool(
            known and isinstance(known.body, kinds) and known.answer in ("", "accepted") and not known.fate
        )

    def _message_added(self, fact: ev.MessageAdded, causation: str | None) -> Verdict:
        """RC-22, RC-23; a consumed input is refused after a stop."""
        if causation is not None:
            if not self._effect_of(causation, cmd.Steer, cmd.FollowUp, cmd.Replace):
                return VIOLATION
            if self.phase == "stopping":
                return Verdict("refused", "stopping")
        if fact.message.id in self.messages:
            return VIOLATION
        proposed = (
            [call.call_id for call in fact.message.tool_calls] if fact.message.role == "assistant" else []
        )
        new = len(set(proposed)) == len(proposed) and not set(proposed) & set(self.calls)
        return LEGAL if new else VIOLATION

    def _turn_started(self, fact: ev.TurnStarted, causation: str | None) -> Verdict:
        """Read: turns are numbered from 1 and do not overlap; requests and attempts belong to the open turn."""
        return VIOLATION if self.turn_open or fact.turn != self.turn + 1 else LEGAL

    def _turn_ended(self, fact: ev.TurnEnded, causation: str | None) -> Verdict:
        return LEGAL if self.turn_open and fact.turn == self.turn else VIOLATION

    def _model_requested(self, fact: ev.ModelRequested, causation: str | None) -> Verdict:
        if self.asked is not None or not self.turn_open or fact.turn != self.turn:
            return VIOLATION
        return LEGAL

    def _model_attempt_ended(self, fact: ev.ModelAttemptEnded, causation: str | None) -> Verdict:
        return LEGAL if self.asked == (fact.turn, fact.attempt) else VIOLATION

    def _output_added(self, fact: ev.OutputAdded, causation: str | None) -> Verdict:
        return VIOLATION if fact.output_id in self.outputs else LEGAL

    def _request_opened(self, fact: ev.RequestOpened, causation: str | None) -> Verdict:
        """RC-24, and the row *awaiting* of §3.14."""
        request = fact.request
        if request.kind not in self.contract.requests or request.id in self.opened:
            return VIOLATION
        if request.call_id is not None and request.kind != "input":
            call = self.calls.get(request.call_id)
            if call is None or call.state != "proposed":
                return VIOLATION
        return Verdict("refused", "max_pending") if len(self.pending) >= self.contract.max_pending else LEGAL

    def _request_resolved(self, fact: ev.RequestResolved, causation: str | None) -> Verdict:
        """RC-25, RC-42: pending, kinds match, and somebody has answered just this."""
        request = self.pending.get(fact.request_id)
        if request is None or causation is None or not self._effect_of(causation, cmd.Answer):
            return VIOLATION
        wanted = {"input": cmd.InputAnswer, "approval": cmd.Allow, "external": cmd.ExternalResult}[
            request.kind
        ]
        body = self.inputs[causation].body
        fits = isinstance(fact.resolution, wanted | cmd.Deny)
        return (
            LEGAL
            if fits and body.request_id == request.id and body.resolution == fact.resolution
            else VIOLATION
        )

    def _request_closed(self, fact: ev.RequestClosed, causation: str | None) -> Verdict:
        return LEGAL if fact.request_id in self.pending else VIOLATION

    def _call_proposed(self, fact: ev.CallProposed, causation: str | None) -> Verdict:
        return VIOLATION if fact.call_id in self.calls else LEGAL

    def _call_started(self, fact: ev.CallStarted, causation: str | None) -> Verdict:
        """§3.14, EF-4, EF-5."""
        call = self.calls.get(fact.call_id)
        if call is None or call.state == "finished" or call.tool != fact.tool:
            return VIOLATION
        if call.state in ("started", "observed"):
            again = (
                call.not_run if call.state == "observed" else call.effect in ("read", "idempotent", "human")
            )
            same = (fact.attempt, fact.arguments_digest) == (call.attempt + 1, call.digest)
            return LEGAL if again and same else VIOLATION
        if fact.attempt != 1:
            return VIOLATION
        if call.state == "proposed":
            return LEGAL if fact.approved_by is None else VIOLATION
        if not isinstance(call.answer, cmd.Allow) or fact.approved_by != call.request:
            return VIOLATION
        return LEGAL if self._allowed(call) == (fact.tool, fact.arguments_digest, fact.effect) else VIOLATION

    def _allowed(self, call: Call) -> tuple[str, str, str]:
        """The one operation that an allow permits: what was asked, or with the arguments that the person edited."""
        asked = self.opened[call.request or ""]
        tool, digest, effect = self.contract.operations[asked.operation_digest or ""]
        edited = call.answer.arguments
        return tool, digest if edited is None else self.contract.arguments[repr(edited)], effect

    def _call_observed(self, fact: ev.CallObserved, causation: str | None) -> Verdict:
        call = self.calls.get(fact.call_id)
        return LEGAL if call and call.state == "started" and call.attempt == fact.attempt else VIOLATION

    def _call_finished(self, fact: ev.CallFinished, causation: str | None) -> Verdict:
        """EF-2, and the column *next* of §3.14."""
        call = self.calls.get(fact.call_id)
        if call is None or call.state == "finished" or fact.attempt != call.attempt:
            return VIOLATION  # Read: it says of which attempt it is the end
        ends = {"cancelled"}
        if call.state in ("proposed", "awaiting"):
            ends |= {
                "refused"
            }  # Read: before a start only; a limit may refuse what a person allowed (agent-loop 3.6)
        if isinstance(call.answer, cmd.ExternalResult):
            ends |= {"succeeded", "failed"}
        if call.state in ("started", "observed"):
            ends |= {"succeeded", "failed", "unknown"}
        return LEGAL if fact.outcome in ends else VIOLATION

    def _continuity_restored(self, fact: ev.ContinuityRestored, causation: str | None) -> Verdict:
        return LEGAL if fact.loss_seq == self.lost_seq else NEVER

    def _run_ended(self, fact: ev.RunEnded, causation: str | None) -> Verdict:
        """RC-26."""
        handed = fact.delivery
        if not isinstance(fact.outcome, ev.Completed | ev.Truncated):
            return LEGAL if handed == ev.Delivery() else VIOLATION
        if self.pending or any(call.mediated for call in self.open_calls.values()):
            return VIOLATION
        if not (set(handed.message_ids) <= self.messages and set(handed.outputs) <= self.outputs):
            return VIOLATION
        if handed.artifacts or handed.unresolved or handed.supports:
            return VIOLATION  # no fact of this oracle's alphabets has one
        return VIOLATION if self.contract.wants_output and not handed.outputs else LEGAL

    # What comes in front

    def _in_front(self, fact: ev.Fact, causation: str | None) -> Iterable[tuple[Draft, str]]:
        effect = isinstance(fact, ev.MessageAdded | ev.RequestResolved) and causation is not None
        if effect and not self.inputs[causation].answer:
            accepted = ev.CommandAnswered(causation, "accepted", implied=True)
            yield Draft(accepted, causation=causation), "host"
        if isinstance(fact, ev.RunEnded | ev.RunAbandoned | ev.StartRefused):
            for key, call in self.open_calls.items():
                never_ran = call.state in ("proposed", "awaiting") and call.mediated
                outcome = "cancelled" if never_ran else "unknown"
                yield Draft(ev.CallFinished(key, outcome, by="host", attempt=call.attempt)), "host"
            for key in self.pending:
                yield Draft(ev.RequestClosed(key, "run_ended")), "host"
            for key in sorted(self.left_over):
                yield Draft(ev.InputReturned(key, "run_ended")), "host"

    # Applying

    def _store(
        self, fact: ev.Fact, causation: str | None, lane: str, name: tuple | None, source: str | None
    ) -> None:
        self.seq += 1
        if name is not None:
            self.stored[name] = (self.seq, (fact, causation, source), lane)
        self.told = self.told or lane == "runtime"
        self._apply(fact, causation)

    def _apply(self, fact: ev.Fact, causation: str | None) -> None:
        match fact:
            case ev.RunStarted():
                self.started = True
            case ev.StartRefused():
                self.outcome = (
                    ev.Cancelled(self.stop.reason, self.stop.source) if self.stop
                    else ev.Failed("start_refused", fact.code, fact.message, fact.retryable)
                )  # fmt: skip
            case ev.CommandReceived():
                self.inputs[fact.command.id] = Input(fact.command.body)
            case ev.CommandAnswered():
                self._change(self.inputs, fact.command_id, answer=fact.answer)
                cancels = isinstance(self.inputs[fact.command_id].body, cmd.Cancel)
                if fact.answer == "accepted" and cancels and self.stop:
                    self._change(self.inputs, fact.command_id, fate="applied")  # RC-39
            case ev.StopRequested():
                self.stop = fact
                if causation in self.inputs:
                    self._change(self.inputs, causation, fate="applied")
            case ev.MessageAdded():
                self.messages.add(fact.message.id)
                if causation is not None:
                    self._change(self.inputs, causation, fate="applied")
                if fact.message.role == "assistant":
                    for part in fact.message.tool_calls:
                        self.calls[part.call_id] = Call(part.tool)
            case ev.OutputAdded():
                self.outputs.add(fact.output_id)
            case ev.CallProposed():
                self.calls[fact.call_id] = Call(fact.tool)
            case ev.CallStarted():
                self._change(
                    self.calls, fact.call_id, state="started", attempt=fact.attempt, mediated=fact.mediated,
                    effect=fact.effect, digest=fact.arguments_digest, not_run=False,
                )  # fmt: skip
            case ev.CallObserved():
                self._change(self.calls, fact.call_id, state="observed", not_run=fact.not_run)
            case ev.CallFinished():
                self._change(self.calls, fact.call_id, state="finished")
            case ev.RequestOpened():
                self.pending[fact.request.id] = self.opened[fact.request.id] = fact.request
                if fact.request.call_id is not None and fact.request.kind != "input":
                    asks = fact.request.id
                    self._change(
                        self.calls, fact.request.call_id, state="awaiting", request=asks, answer=None
                    )
            case ev.RequestResolved():
                self._retire(fact.request_id, fact.resolution)
                self._change(self.inputs, causation or "", fate="applied")
            case ev.RequestClosed():
                self._retire(fact.request_id, "closed")
                for key, known in list(self.inputs.items()):
                    of_it = isinstance(known.body, cmd.Answer) and known.body.request_id == fact.request_id
                    if of_it and not known.fate and known.answer in ("", "accepted"):
                        self._change(self.inputs, key, fate="returned")
            case ev.InputReturned():
                self._change(self.inputs, fact.command_id, fate="returned")
            case ev.ContinuityLost():
                self.lost, self.lost_seq = fact, self.seq
            case ev.ContinuityRestored():
                self.lost = None
            case ev.TurnStarted():
                self.turn, self.turn_open = fact.turn, True
            case ev.TurnEnded():
                self.turn_open = False
            case ev.ModelRequested():
                self.asked = (fact.turn, fact.attempt)
            case ev.ModelAttemptEnded():
                self.asked = None
            case ev.RunAbandoned():
                assert self.lost is not None
                self.outcome = ev.Unknown(self.lost.cause, fact.reason, settled=True, by=fact.by)
            case ev.RunEnded():
                self.outcome = fact.outcome if self.terminal_rule else None

    def _retire(self, request_id: str, answer: Any) -> None:
        del self.pending[request_id]
        for key, call in list(self.calls.items()):
            if call.request == request_id and call.state == "awaiting":
                self._change(self.calls, key, answer=answer)

    # What is compared

    def ack(self, command_id: str) -> str:
        """RC-37."""
        known = self.inputs[command_id]
        return known.fate or known.answer or "received"

    def key(self) -> tuple:
        """All that later verdicts can depend on, numbers aside. Facts of an alphabet are told apart by identity."""
        return (
            self.phase, self.started, self.told, self.stop is None, self.turn, self.turn_open, self.asked,
            frozenset([(key, id(content[0]), content[1], lane) for key, (_, content, lane) in self.stored.items()])
            if self.outcome is None else frozenset(self.stored),
            frozenset([(key, item.answer, item.fate) for key, item in self.inputs.items()]),
            frozenset(self.pending), frozenset(self.opened), frozenset(self.messages), frozenset(self.outputs),
            frozenset([
                (key, call.state, call.attempt, call.not_run, call.request, repr(call.answer))
                for key, call in self.calls.items()
            ]),
        )  # fmt: skip


__all__ = ["PHASES", "TABLE", "Call", "Contract", "Oracle", "Verdict", "cell", "name_of", "row_of"]
