"""The projector: a run's facts and deltas to the AG-UI events of one of its segments, with positions.

One machine makes all streams (SV-48): a new run, a join from the start, a resumption from any position. Theory of
operation: facts are folded one by one, each by its row in `_ROWS`. Facts up to the cursor are folded silently. What a
fact adds to the message that is being streamed is told at positions inside that message, behind the fact *before* it;
then the fact's own frames follow, at the position of the fact. So frames depend on facts and on how far the reader is,
never on how text was cut into pieces, and a resumption from any of them goes on exactly there.

While the journal knows that a message is being made, other messages (steering) wait for its end: they are told in the
step of the fact that ends it. Which fact that is can be read from facts alone.

Deltas are only text that comes earlier than its fact. They are taken while it is certain that none was missed since
the last fact that holds all text told before it; else text waits for the next such fact (SV-46).

Nothing here awaits: a snapshot of messages, which only the journal has, is a `Snapshot` to be filled in by the shell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

from ...commands import Request
from ...events import (
    SUBAGENT,
    CallFinished,
    CallProposed,
    CallStarted,
    ChildTold,
    ContinuityLost,
    ContinuityRestored,
    Delta,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    Noted,
    PartialSaved,
    RunAbandoned,
    RunEnded,
    StartRefused,
    TurnEnded,
    TurnStarted,
    Unknown,
)
from ...messages import JSON, Message, ToolCall, Usage
from ...records import Record
from ..calls import result_id
from ..delivery import Case, case_of_wait
from ..run import Phase, RunState, apply
from ..state_notes import NOTE, STAGED
from . import events as agui
from .children import Children
from .content import arguments_text, plain_text, result_text, sealed
from .ends import Names, ending, pausing, token_usage
from .events import Event
from .frames import KINDS, Frame, Snapshot, StartOver, StateAt, Told, call_of, numbered
from .notes import EPHEMERAL, call, whole
from .position import DONE, Position
from .streamed import Kind, Streamed
from .wire import Flow

_ALWAYS: Final = -1
"""Followed live since before the attachment told anything."""


class Projector:
    """Projects one segment for one reader.

    Args:
        names: what the frames echo and how they are written.
        cursor, tag: what the reader has, and of which lifetime of the run; None from the start.
        joined: the reader does not know what the run answers: it is told before anything else.
        since, until: the facts of the segment; `until` is the first one of the next segment.
        final_snapshot: whether MESSAGES_SNAPSHOT stands before a finish.
        known: ids of user messages that the reader has sent itself: they are not told.
        flow: makes the short way for flowing text, in the words of the reader's protocol.

    Attributes:
        ended: the terminal event was given.
        seq: the last fact that was folded.
    """

    def __init__(
        self,
        names: Names,
        *,
        cursor: Position | None = None,
        tag: str = "",
        joined: bool = False,
        since: int = 1,
        until: int | None = None,
        final_snapshot: bool = True,
        known: Collection[str] = (),
        flow: type[Flow] = Flow,
    ) -> None:
        self.ended = False
        self.seq = 0
        self._flow_of = flow
        self._names = names
        self._cursor = cursor
        self._tag = tag
        self._joined = joined
        self._since = since
        self._until = until
        self._final_snapshot = final_snapshot
        self._known = known
        self._state: RunState | None = None
        self._loud = False
        self._skip = 0  # frames of the present fact that the reader has
        self._count = 0  # frames that the present fact made so far
        self._mute = False  # the reader has what the present fact adds to the streamed message
        self._frames: list[Frame] = []
        self._staged: dict[str, JSON] = {}  # keys of AI controllers, by the call that staged for them
        self._own: list[Event | Snapshot | StateAt | None] = []  # None: has its place, and is not told
        self._end: tuple[Event, ...] = ()
        self._current: Streamed | None = None
        self._left: Streamed | None = None  # interrupted last: its maker may go on with it
        self._pending: Position | None = None  # the cursor, until it is known in which message it stands
        self._held: list[Event | None] = []
        self._request: ModelRequested | None = None
        self._spent: list[tuple[str, str, Usage]] = []
        self._told_lost = False
        self._based = False  # the segment has told the state as a whole: changes can follow (SV-80)
        self._step = ""  # the turn that is open, as a step
        self._next_n = 1
        self._chain = 1  # of deltas without a gap
        self._live_since = _ALWAYS  # the fact behind which it began
        self._flow: Flow | None = None
        self._children = Children(names.profile)

    @property
    def tag(self) -> str:
        """Tells the run's lifetimes apart; empty before its first fact."""
        return "" if self._state is None else self._state.first_chain[:8]

    @property
    def begun(self) -> bool:
        """Whether the reader knows that the run began."""
        return self._loud and self.seq >= self._since

    @property
    def may_pause(self) -> bool:
        """Nothing is in flight in the run: if nothing more is there at present, it is at rest."""
        return self._waiting and self._current is None and self._state is not None and self._state.resting

    def feed(self, item: Record | Delta) -> list[Frame]:
        """Takes the next fact or delta; returns what is to be sent because of it.

        Raises:
            StartOver: the reader's cursor cannot be gone on from.
        """
        if self._flow is not None:
            self._next_n = self._flow.next_n
            self._flow = None
        if type(item) is Delta:
            return self._delta(item)
        assert isinstance(item, Record)
        return self._fact(item)

    # Facts

    def _fact(self, record: Record) -> list[Frame]:
        if self.ended:
            return []
        if record.seq == self._until:
            return self.rest(pause=True)
        if self._told_lost:
            raise StartOver
        state = self._state
        if state is None:
            state = self._state = RunState(record.run_id)
        apply(state, record)
        if record.seq == 1 and self._tag and self._tag != self.tag:
            raise StartOver
        self._skip = self._count = 0
        if not self._loud:
            self._reach(record.seq)
        if record.seq == self._since:
            self._open_segment()
        if (row := _ROWS.get(type(record.fact))) is not None:
            row(self, record.fact, record)
        return self._close_step(record)

    def _reach(self, seq: int) -> None:
        """A fact of which the reader has only some frames is told again without them."""
        cursor = self._cursor
        if cursor is None:
            self._loud = seq >= self._since
        elif seq == cursor.seq and cursor.inside_fact:
            self._start_over_with_children()
            self._loud = self._mute = True
            self._skip = cursor.nth

    def _close_step(self, record: Record) -> list[Frame]:
        """Gives the fact's own frames their positions. From here on everything stands behind this fact."""
        frames, self._frames = self._frames, []
        self.seq = record.seq
        self._mute = False
        if self._loud:
            # Where a pause may follow, this fact's frames are not all of its place.
            frames += self._number(last=self._current is not None or not self._waiting)
            return frames
        self._count, self._own = len(self._own), []
        cursor = self._cursor
        if cursor is not None and record.seq >= cursor.seq:
            self._start_over_with_children()
            self._loud, self._skip = True, DONE
            self._told_lost = type(record.fact) is ContinuityLost and cursor == Position(record.seq)
            self._place(cursor)
        return []

    def _start_over_with_children(self) -> None:
        """What a sub-agent said has no positions: nobody can go on in the middle of it (SV-47)."""
        if self._children.open:
            raise StartOver

    def _place(self, cursor: Position) -> None:
        if cursor.part < 0:
            return
        if self._current is not None:
            self._current.go_on_from(cursor)
        else:
            self._pending = cursor

    @property
    def _waiting(self) -> bool:
        return self._state is not None and self._state.phase is Phase.WAITING

    def _number(self, *, last: bool, terminal: bool = False) -> list[Frame]:
        """Positions for own frames (`frames.numbered`)."""
        own, self._own = self._own, []
        place = (-1, 0, False) if self._current is None else self._current.place
        before, self._count = self._count, self._count + len(own)
        at = Position(self.seq, *place)
        return numbered(own, at, before=before, known=self._skip, last=last, terminal=terminal)

    def _emit(self, event: Event, part: int, offset: int, ended: bool, nth: int) -> None:
        """A frame of the streamed message; it stands behind the fact before the present one."""
        if not self._mute:
            self._frames.append(Frame(event, Position(self.seq, part, offset, ended, nth)))

    def _advance(self, *, over: bool = False) -> None:
        if self._loud and self._current is not None:
            self._current.advance(self._emit, over=over)

    # The streamed message

    def _stream(self, message_id: str, since: int, *, recorded: bool) -> Streamed:
        """Begins a message, or goes on with one that was interrupted. Any other is over."""
        self._interrupt()
        left, self._left = self._left, None
        made = left if left is not None and left.id == message_id else Streamed(message_id, since)
        made.recorded = recorded
        if self._pending is not None:
            made.go_on_from(self._pending)
            self._pending = None
        self._current = made
        return made

    def _interrupt(self) -> None:
        """The streamed message ends without a final text: what is known of it is all there is."""
        current = self._current
        if current is None:
            return
        self._advance(over=True)
        current.sent_all()
        self._current, self._left = None, current

    def _release(self) -> None:
        """What waited for the streamed message is told."""
        self._own += self._held
        self._held = []

    def _tell(self, told: Iterable[Event | None]) -> None:
        """Other messages: at once, or behind the one that is being streamed."""
        current = self._current
        if current is not None and (current.recorded or current.begun):
            self._held += told
        else:
            self._own += told

    # Rows: what a fact adds

    def _open_segment(self) -> None:
        names = self._names
        started = agui.RunStarted(names.thread_id, names.run_id, agui.PROTOCOL_VERSION)
        self._own.append(started)
        if self._joined:
            scope: Literal["front", "path"] = "front" if self._since == 1 else "path"
            self._own.append(Snapshot(scope, self._since - 1))
            self._own.append(StateAt(self._since - 1))
        if self._step:  # a turn that was open where the segment before paused
            self._own.append(agui.StepStarted(self._step))

    def _turn_started(self, fact: TurnStarted, _record: Record) -> None:
        if self._names.steps:
            self._close_turn()
            self._step = f"turn {fact.turn}"
            self._own.append(agui.StepStarted(self._step))

    def _turn_ended(self, _fact: TurnEnded, _record: Record) -> None:
        if self._step:
            self._interrupt()
            self._release()
            self._close_turn()

    def _close_turn(self) -> None:
        if self._step:
            self._own.append(agui.StepFinished(self._step))
            self._step = ""

    def _noted(self, fact: Noted, record: Record) -> None:
        """A change of the shared state; the first of a segment is told as the whole of it, whoever reads."""
        if fact.name == STAGED and isinstance(fact.data, dict):
            self._staged[str(fact.data.get("call_id"))] = fact.data.get("key")
        if record.seq < self._since:
            return
        if fact.name == SUBAGENT:
            self._own += self._children.begin(fact)
        if fact.name != NOTE:
            return
        delta = fact.data.get("delta") if isinstance(fact.data, dict) else None
        if self._based and isinstance(delta, list):
            self._own.append(agui.StateDelta(delta))
        else:
            self._own.append(StateAt(record.seq))
            self._based = True

    def _requested(self, fact: ModelRequested, record: Record) -> None:
        self._request = fact
        if self._current is None or self._current.id != fact.message_id:
            self._stream(fact.message_id, record.seq, recorded=True)
            self._release()

    def _attempt_ended(self, fact: ModelAttemptEnded, record: Record) -> None:
        request = self._request
        if fact.usage is not None:
            asked = ("", "") if request is None else (request.provider, request.model)
            self._spent.append((*asked, fact.usage))
        current = self._current
        if fact.end == "answered" or current is None or (request and request.message_id != current.id):
            return
        if fact.end != "discarded":
            self._interrupt()
        elif current.begun:  # asked again: what the reader saw of it is no part of the conversation
            self._interrupt()
            self._own.append(Snapshot("path", record.seq))
        else:
            self._current = None
        self._release()

    def _partial(self, fact: PartialSaved, record: Record) -> None:
        current = self._current
        if current is None or current.id != fact.message_id:
            if current is not None and current.recorded:
                return  # of another message: it is told when it is whole
            current = self._stream(fact.message_id, 0, recorded=True)
        current.recorded = True
        part = current.part(fact.part, fact.index, fact.call_id or "", fact.tool)
        if part is not None and part.take(fact.offset, fact.text):
            self._advance()

    def _message(self, fact: MessageAdded, record: Record) -> None:
        message = fact.message
        if message.role == "assistant":
            self._answer(message, record)
        elif message.role == "tool":
            text = plain_text(message.parts)
            self._own.append(agui.ToolCallResult(message.id, message.call_id or "", text, "tool"))
        elif message.id in self._known:
            self._tell([None for _ in whole(message)])
        else:
            self._tell(whole(message))

    def _answer(self, message: Message, record: Record) -> None:
        current = self._current
        if current is None or current.id != message.id:
            if current is not None and current.recorded:
                self._held += whole(message)
                return
            current = self._stream(message.id, record.seq, recorded=False)
        fits = current.finish(message)
        empty = not current.parts and not current.begun
        self._advance(over=True)
        self._current = None
        if empty:
            self._own += whole(message)
        if not fits:
            self._own.append(Snapshot("path", record.seq))
        if self._names.encrypted:
            self._own += sealed(message)
        self._release()

    def _proposed(self, fact: CallProposed, _record: Record) -> None:
        proposed = ToolCall(fact.call_id, fact.tool, fact.arguments)
        self._tell(call(fact.call_id, fact.tool, arguments_text(proposed), None))

    def _call_started(self, fact: CallStarted, _record: Record) -> None:
        if self._loud:
            said = {"id": fact.call_id, "phase": "started", "tool": fact.tool}
            self._frames.append(Frame(agui.Custom("pilothouse.tool", said), None))

    def _call_finished(self, fact: CallFinished, _record: Record) -> None:
        self._end_child(fact)
        text = result_text(fact.outcome, fact.content)
        said = {"pilothouse": {"outcome": fact.outcome}}
        result = agui.ToolCallResult(result_id(fact.call_id), fact.call_id, text, "tool", metadata=said)
        self._own.append(result)
        staged = self._staged.pop(fact.call_id, None)
        if staged is not None and fact.outcome == "succeeded" and not fact.is_error:
            # An interface may look at it already.
            self._own.append(agui.Custom("pilothouse.staged", {"key": staged}))

    def _end_child(self, fact: CallFinished) -> None:
        """A call that is a run of its own is over; how much of it was streamed is no matter of positions."""
        if (child := self._children.open.get(fact.call_id)) is not None:
            ended = list(self._children.interrupt(child))
            if self._loud:
                self._frames += [Frame(event, None) for event in ended]
            failed = fact.outcome != "succeeded" or fact.is_error
            self._own += self._children.finish(fact.call_id, failed=failed)

    def _suspend_children(self) -> None:
        told = [Frame(event, None) for event in self._children.suspend()]
        if self._loud:
            self._frames += told

    def _lost(self, _fact: ContinuityLost, _record: Record) -> None:
        self._interrupt()

    def _restored(self, fact: ContinuityRestored, _record: Record) -> None:
        self._release()
        self._own.append(agui.Custom("pilothouse.recovered", {"method": fact.method}))

    def _ended(self, _fact: RunEnded | StartRefused | RunAbandoned, record: Record) -> None:
        assert self._state is not None
        assert self._state.outcome is not None
        self._interrupt()
        self._release()
        self._close_turn()
        self._end = ending(self._names, self._state.outcome, token_usage(self._spent))
        *notes, terminal = self._end
        self._own += notes
        if self._final_snapshot and isinstance(terminal, agui.RunFinished):
            self._own.append(Snapshot("path", record.seq))
        self._own.append(terminal)
        self.ended = self._loud

    # Where nothing follows

    def rest(self, *, pause: bool = False) -> list[Frame]:
        """What is to be sent when nothing more is there at present: a run at rest pauses.

        Raises:
            StartOver: the cursor is ahead of the run.
        """
        if self.ended or self._state is None:
            return []
        if not self._loud:
            raise StartOver
        self._advance()
        if pause or self.may_pause:
            self._suspend_children()
        frames, self._frames = self._frames, []
        if pause or self.may_pause:
            requests = [request for _, request in sorted(self._state.requests.items())]
            if requests:
                self._pause(requests)
                frames += self._number(last=True, terminal=True)
                self.ended = True
        return frames

    def _pause(self, requests: Sequence[Request]) -> None:
        """A pause for a person may be long: the reader leaves with the state and the conversation as they are (RC-86)."""
        if self._step:  # the next segment begins it again
            self._own.append(agui.StepFinished(self._step))
        if case_of_wait(tuple(requests)) is Case.ASKING:
            self._own.append(StateAt(self.seq))
            if self._final_snapshot:
                self._own.append(Snapshot("path", self.seq))
        self._own += pausing(self._names, requests, token_usage(self._spent))

    def finish(self) -> list[Frame]:
        """What is to be sent when nothing more will come: the run's end if it was not told, else its loss.

        Raises:
            StartOver: the cursor is ahead of the run.
        """
        state = self._state
        if self.ended or state is None:
            return []
        if not self._loud:
            raise StartOver
        self.ended = True
        if self._end:  # the reader had it before it came back
            return [Frame(self._end[-1], None)]
        loss = state.loss
        outcome = Unknown("owner_lost") if loss is None else Unknown(loss.cause, loss.reason)
        self._interrupt()
        self._suspend_children()
        frames, self._frames = self._frames, []
        self._release()
        self._close_turn()
        self._own += ending(self._names, outcome, token_usage(self._spent))
        told = self._number(last=True, terminal=True)
        if loss is None:  # no fact says it, so no position can
            told = [Frame(frame.event, None) for frame in told]
        return frames + told

    # Deltas

    def _delta(self, delta: Delta) -> list[Frame]:
        if delta.n != self._next_n:
            self._chain += 1
            self._live_since = delta.after_seq if delta.n != 1 else _ALWAYS
        self._next_n = delta.n + 1
        if not self._loud or self.ended:
            return []
        body = delta.body
        kind = KINDS.get(type(body))
        if kind is not None:
            return self._told(body, kind, delta.after_seq)  # type: ignore[arg-type]
        if isinstance(body, ChildTold):
            return [Frame(event, None) for event in self._children.told(body)]
        if (made := EPHEMERAL.get(type(body))) is None:
            return []
        note = made(body)
        return [Frame(note.event, None, note.key)]

    def _told(self, body: Told, kind: Kind, after_seq: int) -> list[Frame]:
        """A piece of a message's text."""
        current = self._current
        if current is None or current.id != body.message_id:
            current = self._unrecorded(body, after_seq)
        if current is None or (current.chain != self._chain and not self._complete(current, body)):
            return []
        part = current.part(kind, body.index, *call_of(body))
        if part is None or not part.take(body.offset, body.text):
            return []
        self._advance()
        frames, self._frames = self._frames, []
        if (flowing := current.flowing()) is not None:
            part, content = flowing
            self._flow = self._flow_of(
                part, current.id, current.at, seq=self.seq, tag=self.tag, content=content, next_n=self._next_n
            )
        return frames

    @property
    def flow(self) -> Flow | None:
        """The short way for the next deltas, if there is one: see `Flow`. It is over when anything is fed."""
        return self._flow

    def _complete(self, current: Streamed, body: Told) -> bool:
        """Whether no piece before this one is missing: from here on all are taken until a delta is."""
        if current.since <= self._live_since and not current.goes_on(body.index, body.offset):
            return False
        current.chain = self._chain
        return True

    def _unrecorded(self, body: Told, after_seq: int) -> Streamed | None:
        """A message that the journal does not know yet: it is taken from its first piece on.

        A piece that was told before a fact that is folded already may be of a message that has ended.
        """
        current = self._current
        if (current is not None and current.recorded) or after_seq < self.seq:
            return None
        first = body.index == 0 and body.offset == 0
        if not first and self._live_since != _ALWAYS:
            return None
        made = self._stream(body.message_id, 0, recorded=False)
        made.chain = self._chain
        return made


_ROWS: Final[Mapping[type, Callable[[Projector, Any, Record], None]]] = MappingProxyType(
    {
        ModelRequested: Projector._requested,  # noqa: SLF001 - the class's own table
        ModelAttemptEnded: Projector._attempt_ended,  # noqa: SLF001
        PartialSaved: Projector._partial,  # noqa: SLF001
        MessageAdded: Projector._message,  # noqa: SLF001
        CallProposed: Projector._proposed,  # noqa: SLF001
        CallStarted: Projector._call_started,  # noqa: SLF001
        CallFinished: Projector._call_finished,  # noqa: SLF001
        TurnStarted: Projector._turn_started,  # noqa: SLF001
        TurnEnded: Projector._turn_ended,  # noqa: SLF001
        Noted: Projector._noted,  # noqa: SLF001
        ContinuityLost: Projector._lost,  # noqa: SLF001
        ContinuityRestored: Projector._restored,  # noqa: SLF001
        RunEnded: Projector._ended,  # noqa: SLF001
        StartRefused: Projector._ended,  # noqa: SLF001
        RunAbandoned: Projector._ended,  # noqa: SLF001
    }
)
"""What a fact adds; a fact without a row is told by what follows from it."""


__all__ = ["Projector"]
