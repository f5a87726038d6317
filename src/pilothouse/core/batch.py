"""Drafts become the next records of a run: judged, numbered, sealed and folded, with what must stand in front of each.

Pure: the writer of a run calls it on its look-ahead, and stores what comes out in one append.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

from ..commands import Cancel
from ..events import (
    CallFinished,
    CommandAnswered,
    CommandReceived,
    ContinuityLost,
    ContinuityRestored,
    InputReturned,
    Lane,
    PartialSaved,
    RequestClosed,
    RunAbandoned,
    RunEnded,
    StartRefused,
    StopRequested,
    ViolationRecorded,
)
from ..records import Draft, Record
from .canonical import NotJSON, misshapen, seal
from .rules import LEGAL, Refused, Violation, judge
from .run import Phase, RunState, absorb
from .settling import SETTLED, event_id_of, expand

Written: TypeAlias = tuple[Draft, Lane]


class Room(Struct, frozen=True):
    """How much one run may hold. From `facts` and `bytes` on it takes only what settles and ends it."""

    facts: int
    bytes: int
    fact_bytes: int

    def full(self, state: RunState) -> bool:
        """Whether only what settles and ends the run is still taken."""
        return state.seq >= self.facts or state.bytes >= self.bytes


class NotLegal(NamedTuple):
    """Why one draft of an append, by its place, could not be the next fact, and what would have stood before it."""

    verdict: Refused | Violation
    place: int
    made: list[Record]


KEPT_ROOM: Final = (
    CallFinished,
    CommandAnswered,
    ContinuityLost,
    ContinuityRestored,
    InputReturned,
    PartialSaved,  # in front of a stop or an end; the live run saves none besides
    RequestClosed,
    RunAbandoned,
    RunEnded,
    StartRefused,
    StopRequested,
    ViolationRecorded,
)
"""What a full run still takes: it can always be stopped, settled and ended (RC §3.12)."""


def make(
    state: RunState, drafts: Sequence[Written], *, at_ms: int, fence: int, room: Room
) -> list[Record] | NotLegal:
    """The records of an append, folded into `state`; whoever gives a state keeps what it was, for what is not legal.

    Raises:
        TypeError, AttributeError, KeyError: a mistake in the rules, not in a draft.
    """
    made: list[Record] = []
    for place, (draft, lane) in enumerate(drafts):
        fact = draft.fact
        verdict: object
        try:
            if not state.started or draft.causation is not None or type(fact) in SETTLED:
                for front, front_lane in expand(state, draft, lane):
                    made.append(_next(state, front, front_lane, at_ms, fence))
            verdict = judge(state, draft, lane)
            if verdict is LEGAL and (state.seq >= room.facts or state.bytes >= room.bytes):  # `full`, inline
                verdict = _kept(state, draft)
            if verdict is LEGAL:
                record = _next(state, draft, lane, at_ms, fence)
                if len(record.body) <= room.fact_bytes:
                    made.append(record)
                    continue
                verdict = Refused("too_large", f"{fact.kind} of {len(record.body)} bytes")
        except NotJSON as error:
            verdict = Refused("invalid_fact", str(error))
        except (AttributeError, KeyError, TypeError):  # a fact of the wrong shape confuses the rules
            if not (why := misshapen(fact)):
                raise
            verdict = Refused("invalid_fact", why)
        assert isinstance(verdict, Refused | Violation)
        if isinstance(verdict, Violation) and (why := misshapen(fact)):
            verdict = Refused("invalid_fact", why)
        return NotLegal(verdict, place, made)
    return made


def _next(state: RunState, draft: Draft, lane: Lane, at_ms: int, fence: int) -> Record:
    fact, seq = draft.fact, state.seq + 1
    event_id = draft.event_id or event_id_of(fact, seq, lane)
    record = seal(
        state.run_id, seq, at_ms, lane, fence, fact, event_id, draft.causation, draft.source, state.chain
    )
    absorb(state, record)
    return record


def _kept(state: RunState, draft: Draft) -> object:
    fact = draft.fact
    cancels = isinstance(fact, CommandReceived) and isinstance(fact.command.body, Cancel)
    if cancels or state.phase is Phase.STOPPING or isinstance(fact, KEPT_ROOM):
        return LEGAL
    return Refused("run_full", f"the run has {state.seq} facts of {state.bytes} bytes")


__all__ = ["KEPT_ROOM", "NotLegal", "Room", "Written", "make"]
