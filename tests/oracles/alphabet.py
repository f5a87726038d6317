"""A small alphabet of facts: every kind, each where it can and where it cannot be, a few of them with a twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from pilothouse.commands import Allow, Answer, Cancel, Command, Deny, Request, Steer
from pilothouse.core.calls import arguments_digest, operation_digest
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

from .desk import RUN_ID
from .reducer import Contract, Oracle

HOST, RUNTIME = "host", "runtime"
TOOL: Final = "pay"
NONE: Final = arguments_digest({})
OPERATION: Final = operation_digest(TOOL, NONE, "non_idempotent")
CONTRACT: Final = Contract(operations={OPERATION: (TOOL, NONE, "non_idempotent")})


Offer: TypeAlias = tuple[tuple[Draft, str], ...]


class Letter(NamedTuple):
    """One append: one draft, or several that are written together."""

    name: str
    offer: Offer | Callable[[Oracle], Offer]  # a function where the fact names a number of the run

    def spell(self, oracle: Oracle) -> Offer:
        """The drafts, in this state."""
        return self.offer(oracle) if callable(self.offer) else self.offer


Alphabet: TypeAlias = tuple[Letter, ...]


def _user(message_id: str) -> Message:
    return Message(message_id, "user", (Text("and this"),))


def _command(command_id: str, body: object) -> tuple[AnyFact, str | None]:
    return CommandReceived(Command(command_id, RUN_ID, body), f"digest of {command_id}"), None


def _restored(oracle: Oracle) -> Offer:
    made = _RESTORED.setdefault(oracle.lost_seq, ContinuityRestored(oracle.lost_seq, "journal"))
    return ((Draft(made), HOST),)


_RESTORED: dict[int, ContinuityRestored] = {}
ASSISTANT: Final = Message("m1", "assistant", (Text("I pay."), ToolCall("c1", TOOL)))


def _answered(command_id: str, answer: str) -> tuple[AnyFact, str | None]:
    return CommandAnswered(command_id, answer), command_id


_HOST: Final[dict[str, tuple[AnyFact, str | None] | Callable[[Oracle], Offer]]] = {
    "accepted": (RunAccepted("thread", "spec", "default", "descriptor 2"), None),
    "start refused": (StartRefused("full"), None),
    "receive steer": _command("steer", Steer(_user("m2"))),
    "receive cancel": _command("cancel", Cancel("enough")),
    "receive cancel 2": _command("cancel 2", Cancel("enough!")),
    "receive allow": _command("allow", Answer("q1", Allow())),
    "receive deny": _command("deny", Answer("q1", Deny("no"))),
    "steer is accepted": _answered("steer", "accepted"),
    "cancel is accepted": _answered("cancel", "accepted"),
    "cancel 2 is accepted": _answered("cancel 2", "accepted"),
    "stop": (StopRequested("enough"), "cancel"),
    "withdraw": (InputReturned("steer", "withdrawn"), None),
    "partial": (PartialSaved("m1", "text", 0, 0, "I p"), None),
    "expire": (RequestClosed("q1", "expired"), None),
    "settle call": (CallFinished("c1", "cancelled", reason="by hand", by="host"), None),
    "violation": (ViolationRecorded("illegal", "because"), None),
    "lose": (ContinuityLost(0, "eof"), None),
    "restore": _restored,
    "abandon": (RunAbandoned("nobody knows", "me"), None),
    "confirm stop": (RunEnded(Cancelled("enough")), None),
    "turn on the wrong lane": (TurnStarted(1), None),
}

_RUNTIME: Final[dict[str, tuple[AnyFact, str | None]]] = {
    "start": (RunStarted(), None),
    "turn": (TurnStarted(1), None),
    "turn ends": (TurnEnded(1), None),
    "ask model": (ModelRequested(1, 1, "m1"), None),
    "model answered": (ModelAttemptEnded(1, 1, "answered"), None),
    "message": (MessageAdded(ASSISTANT, 1), None),
    "steer is told": (MessageAdded(_user("m2")), "steer"),
    "nobody's message": (MessageAdded(_user("m3")), "nobody"),
    "output": (OutputAdded("o1", "report", 1), None),
    "compact": (HistoryCompacted((), (), "summary"), None),
    "propose": (CallProposed("c1", TOOL), None),
    "start call": (CallStarted("c1", 1, TOOL, NONE), None),
    "start allowed call": (CallStarted("c1", 1, TOOL, NONE, approved_by="q1"), None),
    "start call again": (CallStarted("c1", 2, TOOL, NONE), None),
    "call returned": (CallObserved("c1", 1, "returned"), None),
    "call was not run": (CallObserved("c1", 1, "cancelled", not_run=True), None),
    "call succeeded": (CallFinished("c1", "succeeded", attempt=1), None),
    "call cancelled": (CallFinished("c1", "cancelled"), None),
    "approval": (RequestOpened(Request("q1", "approval", call_id="c1", operation_digest=OPERATION)), None),
    "question": (RequestOpened(Request("q2", "input", blocking=False)), None),
    "allowed": (RequestResolved("q1", Allow()), "allow"),
    "denied": (RequestResolved("q1", Deny("no")), "deny"),
    "allows itself": (RequestResolved("q1", Allow()), "deny"),
    "close": (RequestClosed("q1", "superseded"), None),
    "close question": (RequestClosed("q2", "superseded"), None),
    "steer is rejected": _answered("steer", "rejected"),
    "allow is rejected": _answered("allow", "rejected"),
    "return": (InputReturned("steer", "expired"), None),
    "note": (Noted("test/note"), None),
    "complete": (RunEnded(Completed(), Delivery()), None),
    "deliver": (RunEnded(Completed(), Delivery(("m1",), ("o1",))), None),
    "truncate": (RunEnded(Truncated()), None),
    "incomplete": (RunEnded(Incomplete("limit")), None),
    "fail": (RunEnded(Failed("provider")), None),
    "cancelled": (RunEnded(Cancelled("enough")), None),
    "end unknown": (RunEnded(Unknown("eof")), None),
    "stop on the wrong lane": (StopRequested("enough"), None),
}


def _letters(lane: str, facts: dict) -> Alphabet:
    return tuple(
        Letter(name, made if callable(made) else ((Draft(made[0], causation=made[1]), lane),))
        for name, made in facts.items()
    )


def _native(name: str, fact: AnyFact, event_id: str) -> Letter:
    """An event with an id of its own, beside what it names: what a foreign runtime gives."""
    return Letter(name, ((Draft(fact, event_id=event_id), RUNTIME),))


FULL: Final[Alphabet] = (
    *_letters(HOST, _HOST),
    *_letters(RUNTIME, _RUNTIME),
    _native("native start", RunStarted(), "native-start"),
    _native("native message", MessageAdded(ASSISTANT, 1), "native-message"),
    _native("native call", CallProposed("c1", TOOL), "native-call"),
    _native("native end", RunEnded(Completed()), "native-end"),
    _native("native question", RequestOpened(Request("q2", "input", blocking=False)), "native-question"),
    _native("reserved id", Noted("test/note"), "host:stop"),
)
_KNOWN: Final = {letter.name: letter for letter in FULL}


def _append(name: str, *letters: str) -> Letter:
    """Several letters in one append, as the controller or the loop writes them."""
    return Letter(name, tuple(item for made in letters for item in _KNOWN[made].offer))


# Every kind of fact, and in one append what is written in one: so that short words come far.
SMALL: Final[Alphabet] = (
    _append("steer", "receive steer", "steer is accepted"),
    _append("cancel", "receive cancel", "cancel is accepted", "stop"),
    _append("cancel again", "receive cancel 2", "cancel 2 is accepted"),
    _append("ask", "turn", "ask model"),
    _append("answer", "partial", "model answered", "message", "output"),
    _append("allow and start", "allowed", "start allowed call"),
    _append("give up", "violation", "lose"),
    *[
        _KNOWN[name]
        for name in (
            "start refused", "receive allow", "expire", "withdraw", "restore", "abandon",
            "confirm stop", "start", "turn ends", "steer is told", "steer is rejected",
            "compact", "approval", "question", "close question", "start call", "call returned", "call succeeded",
            "propose", "note", "deliver", "incomplete", "cancelled", "stop on the wrong lane",
        )
    ],
)  # fmt: skip

__all__ = ["CONTRACT", "FULL", "HOST", "RUNTIME", "SMALL", "Alphabet", "Letter", "Offer"]
