"""The one table of endings: what each way in which a run or send can end is called elsewhere (RC-86).

`Outcome` alone says how something ended. Every other word for it (the status of a view, the `Ending` of a reply, the
state of a conversation, the delivery of its messages, the status of an `Agent`, the last frame on AG-UI) is a cell of
`ENDINGS` and is kept nowhere. `case_of` finds the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from ..commands import Request
from ..errors import AgentBusy, HookTimeout, PostponeTimeout, ReplyTimeout, SendAbandoned, SendRefused
from ..events import Cancelled, Completed, Failed, Incomplete, Outcome, Truncated, Unknown
from ..messages import Value
from ..projection import Delivered
from ..records import RunStatus

Ending: TypeAlias = Literal[
    "completed", "truncated", "incomplete", "cancelled", "failed", "timed_out", "unknown", "rejected", "abandoned"
]  # fmt: skip
"""How a reply ended, in the words of seed 003."""

SUPERSEDED: Final = "superseded"
"""The reason of a cancel by which a newer send took the place of this one."""

DEADLINE: Final = "deadline"

_TIMED_OUT: Final = frozenset({"send_timeout", "idle_timeout", "stalled"})


class Case(Enum):
    """The rows of the table."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    DEADLINE = "incomplete: its time was up"
    INCOMPLETE = "incomplete: any other declared reason"
    CANCELLED = "cancelled"
    SUPERSEDED = "cancelled: a newer send took its place"
    TIMED_OUT = "failed: the model was silent"
    FAILED = "failed: anything else"
    UNKNOWN = "unknown, and evidence may still change that"
    ABANDONED = "unknown, and a person decided to leave it at that"
    REFUSED = "no run: refused or busy"
    REFUSED_CLOSED = "no run: closed while it waited"
    REFUSED_LATE = "no run: a hook or the send took too long"
    REFUSED_BROKEN = "no run: anything else"
    ASKING = "none: waits for an approval or input"
    AWAITING = "none: waits for external results only"


Frame: TypeAlias = Literal[
    "success",  # RUN_FINISHED with outcome success
    "noted_success",  # a note, then success whose result says how it fell short
    "cancelled",  # RUN_FINISHED with outcome cancelled
    "error",  # RUN_ERROR with the failure's own code
    "outcome_unknown",  # RUN_ERROR with that code
    "abandoned",  # RUN_ERROR with that code
    "problem",  # a problem document, or RUN_ERROR with the code of the refusal
    "interrupt",  # STATE_SNAPSHOT, MESSAGES_SNAPSHOT, RUN_FINISHED with the interrupts
    "pending_calls",  # RUN_FINISHED with outcome success that names the calls
]
"""The last frame on AG-UI 1.0. The legacy profile differs for `cancelled` (a note, no outcome) and `pending_calls` (no
outcome) alone."""


class Words(Value):
    """One row.

    Attributes:
        status: of a run's view; None where no run exists.
        ending: of a reply; None while it waits.
        state: of the conversation; empty where it does not change.
        result: what `Reply.result()` does: `message`, `waits`, `error` (that error), or the exception's name.
        delivery: of the messages that were open; None where there are none left.
        reason: the finer word of that delivery; `own` means the outcome's own reason.
        agent: status of an `Agent`.
        frame: last on AG-UI.
    """

    status: RunStatus | None
    ending: Ending | None
    state: Literal["complete", "idle", "error", "streaming", ""]
    result: str
    delivery: Delivered | None
    reason: str | None
    agent: Literal["idle", "error", "running"]
    frame: Frame


# fmt: off
ENDINGS: Final[Mapping[Case, Words]] = MappingProxyType({
    Case.COMPLETED: Words("completed", "completed", "complete", "message", "success", None, "idle", "success"),
    Case.TRUNCATED: Words("truncated", "truncated", "complete", "message", "success", "truncated", "idle", "noted_success"),
    Case.DEADLINE: Words("incomplete", "timed_out", "complete", "ReplyIncomplete", "success", DEADLINE, "idle", "noted_success"),
    Case.INCOMPLETE: Words("incomplete", "incomplete", "complete", "ReplyIncomplete", "success", "own", "idle", "noted_success"),
    Case.CANCELLED: Words("cancelled", "cancelled", "idle", "ReplyCancelled", "aborted", None, "idle", "cancelled"),
    Case.SUPERSEDED: Words("cancelled", "cancelled", "idle", "ReplyCancelled", "interrupted", SUPERSEDED, "running", "cancelled"),
    Case.TIMED_OUT: Words("failed", "timed_out", "error", "ReplyFailed", "error", None, "error", "error"),
    Case.FAILED: Words("failed", "failed", "error", "ReplyFailed", "error", None, "error", "error"),
    Case.UNKNOWN: Words("unknown", "unknown", "error", "ReplyFailed", "interrupted", None, "error", "outcome_unknown"),
    Case.ABANDONED: Words("unknown", "unknown", "error", "ReplyFailed", "interrupted", "abandoned", "idle", "abandoned"),
    Case.REFUSED: Words(None, "rejected", "", "error", None, None, "idle", "problem"),
    Case.REFUSED_CLOSED: Words(None, "abandoned", "idle", "error", None, None, "idle", "problem"),
    Case.REFUSED_LATE: Words(None, "timed_out", "idle", "error", None, None, "idle", "problem"),
    Case.REFUSED_BROKEN: Words(None, "failed", "idle", "error", None, None, "idle", "problem"),
    Case.ASKING: Words("waiting", None, "streaming", "waits", "paused", None, "idle", "interrupt"),
    Case.AWAITING: Words("waiting", None, "streaming", "waits", "paused", None, "idle", "pending_calls"),
})
# fmt: on


def case_of(outcome: Outcome) -> Case:
    """The row of an outcome."""
    match outcome:
        case Completed():
            return Case.COMPLETED
        case Truncated():
            return Case.TRUNCATED
        case Incomplete(reason="limit", limit="deadline"):
            return Case.DEADLINE
        case Incomplete():
            return Case.INCOMPLETE
        case Cancelled(reason="superseded"):
            return Case.SUPERSEDED
        case Cancelled():
            return Case.CANCELLED
        case Failed(kind=kind):
            return Case.TIMED_OUT if kind in _TIMED_OUT else Case.FAILED
        case Unknown(settled=settled):
            return Case.ABANDONED if settled else Case.UNKNOWN


def case_of_refusal(error: BaseException) -> Case:
    """The row of a send that ended before there was a run."""
    if isinstance(error, SendRefused | AgentBusy):
        return Case.REFUSED
    if isinstance(error, SendAbandoned):
        return Case.REFUSED_CLOSED
    late = isinstance(error, HookTimeout | PostponeTimeout | ReplyTimeout)
    return Case.REFUSED_LATE if late else Case.REFUSED_BROKEN


def case_of_wait(requests: tuple[Request, ...]) -> Case:
    """The row of a run that waits for these requests."""
    external = all(request.kind == "external" for request in requests)
    return Case.AWAITING if external else Case.ASKING


def words(outcome: Outcome) -> Words:
    """The row of an outcome, its own reason filled in."""
    return ENDINGS[case_of(outcome)]


def reason_of(outcome: Outcome) -> str | None:
    """The finer word of the delivery of the messages that this outcome left open."""
    found = words(outcome).reason
    if found == "own":
        assert isinstance(outcome, Incomplete)
        return outcome.reason
    return found


__all__ = [
    "ENDINGS",
    "SUPERSEDED",
    "Case",
    "Ending",
    "Frame",
    "Words",
    "case_of",
    "case_of_refusal",
    "case_of_wait",
    "reason_of",
    "words",
]
