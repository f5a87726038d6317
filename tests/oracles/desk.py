"""The reducer of `core/` at work as its writer uses it, without a journal: what is compared with the oracle."""

from __future__ import annotations

from typing import Any

from pilothouse.core.rules import LEGAL, Refused, judge
from pilothouse.core.run import RunState, apply
from pilothouse.core.settling import event_id_of, expand
from pilothouse.events import Fact, RunAccepted
from pilothouse.records import Draft, Record

from .reducer import Oracle, Verdict

RUN_ID = "run"


class Desk:
    """A run of which only the fold and the stored contents are kept."""

    def __init__(self) -> None:
        self.state = RunState(RUN_ID)
        self.stored: dict[str, tuple[int, Any, str]] = {}
        self.put(Draft(RunAccepted("thread", "spec", "default", "descriptor")), "host")

    def copy(self) -> Desk:
        """A twin that goes its own way."""
        twin = Desk.__new__(Desk)
        twin.state, twin.stored = self.state.fork(), dict(self.stored)
        return twin

    def offer(self, *drafts: tuple[Draft, str]) -> tuple[Verdict, Desk]:
        """One append, all or none: the verdict, and the run after it, itself if nothing changed."""
        ahead, verdict = self, Verdict("legal")
        for draft, lane in drafts:
            verdict, ahead = ahead._offer(draft, lane, self)
            if verdict.kind not in ("legal", "duplicate"):
                return verdict, self
        return (verdict if ahead is self else Verdict("legal", seq=verdict.seq)), ahead

    def _offer(self, draft: Draft, lane: str, kept: Desk) -> tuple[Verdict, Desk]:
        event_id = draft.event_id or event_id_of(draft.fact, self.state.seq + 1, lane)
        known = self.stored.get(event_id)
        if known is not None and known[1:] == ((draft.fact, draft.causation, draft.source), lane):
            return Verdict("duplicate", seq=known[0]), self
        ahead = self
        for front, of in expand(self.state, draft, lane):
            if event_id_of(front.fact, 0, of) in self.stored:
                return Verdict("violation", f"conflict in front: {front}"), self
            ahead = ahead.copy() if ahead is kept else ahead
            ahead.put(front, of)
        verdict = judge(ahead.state, draft, lane)
        if verdict is not LEGAL:
            kind = "refused" if isinstance(verdict, Refused) else "violation"
            return Verdict(kind, verdict.code), self
        if known is not None:
            return Verdict("violation", "conflict"), self
        ahead = ahead.copy() if ahead is kept else ahead
        ahead.put(draft, lane)
        return Verdict("legal", seq=ahead.state.seq), ahead

    def put(self, draft: Draft, lane: str) -> None:
        """Folds a fact in, unjudged."""
        seq = self.state.seq + 1
        event_id = draft.event_id or event_id_of(draft.fact, seq, lane)
        content = (draft.fact, draft.causation, draft.source)
        apply(self.state, Record(RUN_ID, seq, 0, lane, 1, event_id, content[0], "", "", b"", *content[1:]))
        self.stored[event_id] = (seq, content, lane)

    def key(self) -> tuple:
        """All of the fold that later verdicts can depend on, numbers aside."""
        state = self.state
        return (
            state.phase, state.started, state.turn, state.turn_open, state.attempt is None, state.violated,
            frozenset(state.requests), tuple(state.queued),
            frozenset([(call.call_id, call.state, call.attempt, call.request_open) for call in state.calls.values()]),
            frozenset([(key, command.state) for key, command in state.commands.items()]),
        )  # fmt: skip


def agree(told: Verdict, found: Verdict) -> bool:
    """Whether the reducer's verdict is the oracle's."""
    if told.kind == "never":  # a cell that the controller never writes: anything but storing it
        return found.kind in ("refused", "violation")
    if told.kind == "violation":
        return found.kind == "violation"
    return told == found


def folded_alike(oracle: Oracle, desk: Desk) -> list[str]:
    """What differs between the two folds; empty if nothing does."""
    state = desk.state
    pairs = {
        "seq": (oracle.seq, state.seq),
        "phase": (oracle.phase, state.phase.value),
        "outcome": (oracle.outcome, state.outcome),
        "started": (oracle.started, state.started),
        "pending": (sorted(oracle.pending), sorted(state.requests)),
        "queued": (sorted(oracle.queued) if oracle.outcome is None else [], sorted(state.queued)),
        "calls": (
            sorted((key, call.state, call.attempt) for key, call in oracle.open_calls.items()),
            sorted((call.call_id, call.state, call.attempt) for call in state.calls.values()),
        ),
        "acks": (
            {key: oracle.ack(key) for key in oracle.inputs},
            {key: command.state for key, command in state.commands.items()},
        ),
    }
    return [
        f"{name}: {told!r} told, {found!r} found" for name, (told, found) in pairs.items() if told != found
    ]


__all__ = ["RUN_ID", "Desk", "Fact", "agree", "folded_alike"]
