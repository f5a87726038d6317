"""The effect ledger of a run: what the facts say about each tool call (run-controller §3.14).

Theory of operation: a call is *proposed* by an assistant message, may *await* a person or a client, is *started*
(durable before its function is entered, EF-1), may be *observed* (its raw end, where something still happens to it
before it is the result, EF-7) and is *finished* exactly once (EF-2). `MOVES` holds which fact takes a call where; a fact
that is not in the row of a state is illegal there. What the table cannot hold stands beside it as rules: `_may_start`
(EF-3, EF-4, PV-6), `_may_start_again` (EF-5), `_may_await`, `_same_attempt`, `_answers`, and the outcomes that each
state may end in.

`judge` copies nothing and changes nothing; `apply` returns the next state and believes that it was judged. A
`CallState` is immutable, so a reducer may judge several facts of one append one after the other and drop them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from ..commands import Allow, Deny, ExternalResult, Request, RequestKind, Resolution
from ..events import (
    CallFinished,
    CallObserved,
    CallProposed,
    CallStarted,
    Effect,
    Fact,
    Lane,
    RequestClosed,
    RequestOpened,
    RequestResolved,
)
from ..messages import JSON, CallOutcome, Message, Part, Text, ToolCall, Value
from .canonical import digest_of

Phase: TypeAlias = Literal[
    "proposed",  # the model wants it; nothing has happened
    "awaiting",  # an approval or an external result was asked for
    "started",  # its function may have been entered
    "observed",  # its function ended; the result is not there yet
    "finished",  # its one result is in the transcript
]

CallFact: TypeAlias = (
    RequestOpened | RequestResolved | RequestClosed | CallStarted | CallObserved | CallFinished
)

REPEATABLE: Final = frozenset[Effect]({"read", "idempotent", "human"})
"""Effect classes that may be entered again after an attempt of which nobody saw the end (EF-5)."""

UNKNOWN_TEXT: Final = (
    "This call was interrupted and its outcome is unknown: it may have happened. Check before you repeat it."
)
NOT_RUN_TEXT: Final = "This call was not run."


class CallState(Value):
    """A tool call as the facts so far know it; implements `contracts.CallFold`.

    Attributes:
        arguments: as proposed; from the start on, those that run.
        turn: in which it was proposed; `index` counts in its batch from 0.
        request_id: the last approval or external request; `request_kind` and `operation_digest` are its.
        resolution: how that request was answered, None while it was not.
        request_open: whether that request still waits.
        observed: the raw end, while the state is `observed`.
        outcome: of the one result, once finished.
    """

    call_id: str
    tool: str
    arguments: dict[str, JSON] = field(default_factory=dict)
    args_error: str | None = None
    state: Phase = "proposed"
    attempt: int = 0
    effect: Effect = "non_idempotent"
    key: str = ""
    mediated: bool = True
    turn: int = 0
    index: int = 0
    arguments_digest: str = ""
    request_id: str | None = None
    request_kind: RequestKind | None = None
    request_open: bool = False
    operation_digest: str | None = None
    resolution: Resolution | None = None
    observed: CallObserved | None = None
    outcome: CallOutcome | None = None

    @property
    def allowed(self) -> bool:
        """Whether a person said that it may run."""
        return type(self.resolution) is Allow

    @property
    def entered(self) -> bool:
        """Whether its function may have been entered."""
        return self.attempt > 0


# Identity of calls, operations and results


def arguments_digest(arguments: Mapping[str, JSON]) -> str:
    """Digest of frozen arguments: canonical, so the order of keys does not matter."""
    return digest_of(arguments)


def operation_digest(tool: str, digest: str, effect: Effect) -> str:
    """What an approval is bound to: the tool, the digest of exactly these arguments, the effect (EF-4)."""
    return sha256(f"{tool}\n{digest}\n{effect}".encode()).hexdigest()


def idempotency_key(run_id: str, call_id: str, digest: str) -> str:
    """Equal in all attempts of a call and after restarts (EF-3)."""
    return sha256(f"{run_id}\n{call_id}\n{digest}".encode()).hexdigest()


def result_id(call_id: str) -> str:
    """Id of the tool message that is the result of a call (EF-2)."""
    return f"result:{call_id}"


def result_message(end: CallFinished) -> Message:
    """The tool message of the transcript that a `call_finished` is."""
    return Message(result_id(end.call_id), "tool", end.content, call_id=end.call_id, is_error=end.is_error)


# The table


class Move(Struct, frozen=True):
    """Where a fact takes a call, and what else must hold: the rule returns why not, or an empty text."""

    to: Phase
    rule: Callable[[CallState, Any], str]


def _may_await(call: CallState, fact: RequestOpened) -> str:
    if fact.request.kind not in ("approval", "external"):
        return f"a call that has not started asks for approval or an external result, not {fact.request.kind}"
    return ""


def _may_await_more(call: CallState, fact: RequestOpened) -> str:
    if not call.allowed or fact.request.kind != "external":
        return "its approval is not given"
    return ""


def _asks(call: CallState, fact: RequestOpened) -> str:
    return "" if fact.request.kind == "input" else "it has started already"


def _answers(call: CallState, fact: RequestResolved) -> str:
    if fact.request_id != call.request_id or not call.request_open:
        return f"request {fact.request_id} is not what it waits for"
    fits = Allow if call.request_kind == "approval" else ExternalResult
    if not isinstance(fact.resolution, fits | Deny):
        return f"{type(fact.resolution).__name__} does not answer a request of kind {call.request_kind}"
    return ""


def _always(call: CallState, fact: Fact) -> str:
    return ""


def _may_start(call: CallState, fact: CallStarted) -> str:
    if call.args_error is not None:
        return "its arguments are not a JSON object"
    if fact.attempt != 1:
        return f"its first attempt has number 1, not {fact.attempt}"
    if fact.tool not in (call.tool, call.tool.strip()):
        return f"it was proposed for {call.tool}, not {fact.tool}"
    if fact.approved_by is not None and call.state == "proposed":
        return f"no request {fact.approved_by} was opened for it"
    return ""


def _may_start_allowed(call: CallState, fact: CallStarted) -> str:
    if not call.allowed:
        return "its approval is not given"
    if fact.approved_by != call.request_id:
        return f"it was allowed by {call.request_id}, not by {fact.approved_by}"
    assert isinstance(call.resolution, Allow)
    if call.operation_digest is None:
        return f"request {call.request_id} named no operation" if fact.mediated else _may_start(call, fact)
    if call.resolution.arguments is None:
        # An edit is validated, and so perhaps completed, before it runs: its digest is that of the start.
        given = operation_digest(fact.tool, fact.arguments_digest, fact.effect)
        if given != call.operation_digest:
            return "what starts is not what was allowed"
    return _may_start(call, fact)


def _may_start_again(call: CallState, fact: CallStarted) -> str:
    if fact.attempt != call.attempt + 1:
        return f"attempt {call.attempt + 1} comes next, not {fact.attempt}"
    same = (fact.tool, fact.arguments_digest, fact.effect, fact.key)
    if same != (call.tool, call.arguments_digest, call.effect, call.key):
        return "another attempt has the same tool, arguments, effect and key"
    undone = call.observed is not None and call.observed.not_run
    if not undone and (call.effect not in REPEATABLE or call.observed is not None):
        return f"nobody knows that attempt {call.attempt} did not happen"
    return ""


def _same_attempt(call: CallState, fact: CallObserved) -> str:
    return "" if fact.attempt == call.attempt else f"attempt {call.attempt} runs, not {fact.attempt}"


def _ends(*outcomes: CallOutcome) -> Callable[[CallState, CallFinished], str]:
    allowed = frozenset(outcomes)

    def rule(call: CallState, fact: CallFinished) -> str:
        if fact.outcome not in allowed and not (fact.outcome == "unknown" and not call.mediated):
            return f"it cannot end {fact.outcome}"
        if fact.attempt != call.attempt:
            return f"attempt {call.attempt} is the last one, not {fact.attempt}"
        return ""

    return rule


_ends_unrun = _ends("refused", "cancelled")
_ends_elsewhere = _ends("refused", "cancelled", "succeeded", "failed")


def _ends_awaiting(call: CallState, fact: CallFinished) -> str:
    external = type(call.resolution) is ExternalResult
    return (_ends_elsewhere if external else _ends_unrun)(call, fact)


_ends_run = _ends("succeeded", "failed", "cancelled", "unknown")

MOVES: Final[Mapping[Phase, Mapping[type[Fact], Move]]] = MappingProxyType(
    {
        "proposed": {
            RequestOpened: Move("awaiting", _may_await),
            CallStarted: Move("started", _may_start),
            CallFinished: Move("finished", _ends_unrun),
        },
        "awaiting": {
            RequestOpened: Move("awaiting", _may_await_more),
            RequestResolved: Move("awaiting", _answers),
            RequestClosed: Move("awaiting", _always),
            CallStarted: Move("started", _may_start_allowed),
            CallFinished: Move("finished", _ends_awaiting),
        },
        "started": {
            RequestOpened: Move("started", _asks),
            RequestResolved: Move("started", _always),
            RequestClosed: Move("started", _always),
            CallStarted: Move("started", _may_start_again),
            CallObserved: Move("observed", _same_attempt),
            CallFinished: Move("finished", _ends_run),
        },
        "observed": {
            RequestClosed: Move("observed", _always),
            CallStarted: Move("started", _may_start_again),
            CallFinished: Move("finished", _ends_run),
        },
        "finished": {
            RequestClosed: Move("finished", _always),
        },
    }
)
"""Which fact takes a call in which state where. `request_*` facts concern the call that their request names."""


# Folding


def propose(
    call: ToolCall | CallProposed, *, turn: int = 0, index: int | None = None, mediated: bool = True
) -> CallState:
    """The state of a call that a message or a `call_proposed` brings into being."""
    error = call.args_error if isinstance(call, ToolCall) else None
    place = index if index is not None else call.index if isinstance(call, CallProposed) else 0
    return CallState(
        call.call_id, call.tool, call.arguments, error, mediated=mediated, turn=turn, index=place
    )


def proposals(message: Message, *, turn: int = 0) -> tuple[CallState, ...]:
    """The calls that an assistant message proposes, in order."""
    return tuple([propose(call, turn=turn, index=index) for index, call in enumerate(message.tool_calls)])


def judge(call: CallState, fact: CallFact) -> str:
    """Why this fact is illegal for the call now; an empty text if it is legal."""
    move = MOVES[call.state].get(type(fact))
    if move is None:
        kind = fact.__struct_config__.tag
        return f"call {call.call_id} cannot take {kind} while {call.state}"
    if why := move.rule(call, fact):
        return f"call {call.call_id}: {why}"
    return ""


def apply(call: CallState, fact: CallFact) -> CallState:
    """The call after a fact that `judge` found legal."""
    return _EFFECTS[type(fact)](call, fact, MOVES[call.state][type(fact)].to)


def diagram() -> str:
    """The table as a Mermaid state diagram; the docs hold it and a test compares."""
    lines = ["stateDiagram-v2", "    [*] --> proposed: message_added"]
    for phase, row in MOVES.items():
        moves: dict[Phase, list[str]] = {}
        for kind, move in row.items():
            if move.to != phase or kind is CallStarted:
                moves.setdefault(move.to, []).append(str(kind.__struct_config__.tag))
        lines += [f"    {phase} --> {to}: {', '.join(names)}" for to, names in moves.items()]
    return "\n".join([*lines, "    finished --> [*]"]) + "\n"


def _opened(call: CallState, fact: RequestOpened, to: Phase) -> CallState:
    if to == "started":  # a tool asks while it runs: its requests are the run's, not steps of the call
        return call
    request: Request = fact.request
    return replace(
        call,
        state=to,
        request_id=request.id,
        request_kind=request.kind,
        request_open=True,
        operation_digest=request.operation_digest,
        resolution=None,
    )


def _resolved(call: CallState, fact: RequestResolved, to: Phase) -> CallState:
    if fact.request_id != call.request_id:
        return call
    return replace(call, request_open=False, resolution=fact.resolution)


def _closed(call: CallState, fact: RequestClosed, to: Phase) -> CallState:
    return replace(call, request_open=False) if fact.request_id == call.request_id else call


def _started(call: CallState, fact: CallStarted, to: Phase) -> CallState:
    return replace(
        call,
        state=to,
        tool=fact.tool,
        arguments=call.arguments if fact.arguments is None else fact.arguments,
        arguments_digest=fact.arguments_digest,
        attempt=fact.attempt,
        effect=fact.effect,
        key=fact.key,
        mediated=fact.mediated,
        observed=None,
    )


def _observed(call: CallState, fact: CallObserved, to: Phase) -> CallState:
    return replace(call, state=to, observed=fact)


def _finished(call: CallState, fact: CallFinished, to: Phase) -> CallState:
    return replace(call, state=to, outcome=fact.outcome, observed=None, request_open=False)


_EFFECTS: Final[Mapping[type[Fact], Callable[[CallState, Any, Phase], CallState]]] = MappingProxyType(
    {
        RequestOpened: _opened,
        RequestResolved: _resolved,
        RequestClosed: _closed,
        CallStarted: _started,
        CallObserved: _observed,
        CallFinished: _finished,
    }
)


# Ends that need no tool


_OBSERVED_ENDS: Final[Mapping[str, CallOutcome]] = MappingProxyType(
    {"returned": "succeeded", "reconciled": "succeeded", "raised": "failed"}
)


def settle(call: CallState, reason: str, *, by: Lane = "host") -> CallFinished:
    """The honest result of an open call that nothing more will happen to (RC-27, EF table "stop").

    What was observed is the result. A call that may have been entered, or that a foreign agent runs, is unknown;
    the others are cancelled, which means provably not run.
    """
    seen = call.observed
    if seen is not None and not seen.not_run:
        outcome = _OBSERVED_ENDS.get(seen.status) or _unconfirmed(call, seen)
        content = seen.content or text_parts(UNKNOWN_TEXT if outcome == "unknown" else "")
        error = seen.is_error or outcome != "succeeded"
        return CallFinished(call.call_id, outcome, content, error, reason, by=by, attempt=call.attempt)
    if seen is None and (call.entered or not call.mediated):
        return CallFinished(
            call.call_id, "unknown", text_parts(UNKNOWN_TEXT), True, reason, by=by, attempt=call.attempt
        )
    return CallFinished(
        call.call_id, "cancelled", text_parts(NOT_RUN_TEXT), True, reason, by=by, attempt=call.attempt
    )


def _unconfirmed(call: CallState, seen: CallObserved) -> CallOutcome:
    """A cancelled or timed-out end (LP-44): only a repeatable effect is known not to matter."""
    if call.effect not in REPEATABLE:
        return "unknown"
    return "cancelled" if seen.status == "cancelled" else "failed"


def text_parts(text: str) -> tuple[Part, ...]:
    """One text as the content of a result; none for an empty text."""
    return (Text(text),) if text else ()
