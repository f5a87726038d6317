"""What a run tells, applied to its conversation: pieces, messages, states, the end (AC §3.2 … §3.5, §3.8).

One `Reading` a send. It is called in the step that publishes an item. Once its reply is dead it tells nobody anything
any more; what the run still records of finished messages and results is added to the messages without a word, so that
they stay what the journal says (AC-65, AC-120).
"""

from __future__ import annotations

from asyncio import CancelledError, get_running_loop
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from ..core.calls import result_message
from ..core.lifecycle import Input
from ..core.state_notes import NOTE
from ..errors import ProviderError, ReplyTimeout, SendTimeout, StreamEndedEarly, StreamIdleTimeout
from ..events import (
    CallFinished,
    CallStarted,
    Cancelled,
    CommandReceived,
    Completed,
    ContinuityLost,
    Delta,
    Failed,
    Incomplete,
    InputReturned,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    Noted,
    Outcome,
    OwnershipTold,
    RequestClosed,
    RequestOpened,
    RequestResolved,
    ResponseStream,
    RunAbandoned,
    RunEnded,
    StartRefused,
    StopRequested,
    TextTold,
    Truncated,
    TurnStarted,
    Unknown,
)
from ..messages import Message
from ..responses import ErrorInfo
from ..runs.ring import Item
from .leftover import Inputs, Leftover
from .reply import PartialResponse, Reply, ReplyPhase
from .stage import inserted

if TYPE_CHECKING:
    from .sending import Sender


class Reading:
    """Folds one run's items into its conversation."""

    def __init__(self, sender: Sender, reply: Reply) -> None:
        self._sender = sender
        self._stage = sender.stage
        self._reply = self.reply = reply
        self.wanted = reply.wanted  # bound once: it is the fence of every piece
        self._held: Message | None = None  # an answer that is final if the run ends now
        self._open = False  # a response is being streamed
        self._message_id = ""  # of that response
        self._model: str | None = None
        self._from = 0  # where the text of that response begins in the reply's pieces
        self._calls: list[str] = []  # of the last message, in order
        self._error: ErrorInfo | None = None
        self._asked: set[str] = set()  # open requests
        self._inputs: Inputs | None = None
        self._late: list[Message] = []  # recorded after the stop

    def take(self, item: Item) -> None:
        """Takes an item; an end is noticed also when the reply is dead."""
        if type(item) is Delta:
            body = item.body
            if self._reply.dead:
                return
            if type(body) is TextTold and body.message_id == self._message_id and body.text:
                self._stage.piece(self, body.text)
            else:
                self._delta(item)
            return
        fact = item.fact  # type: ignore[union-attr]
        kind = type(fact)
        if kind in _ENDS:
            self._ended(_outcome(fact))  # type: ignore[arg-type]
        elif kind in _INPUTS:
            self._inputs = self._inputs or Inputs(self._reply.id)
            self._inputs.add(fact)
        elif not self._reply.dead:
            act = _ACTS.get(kind)
            if act is not None:
                act(self, fact)
        elif kind is Noted:
            self.noted(fact)  # type: ignore[arg-type]
        elif isinstance(fact, MessageAdded):
            self._late.append(fact.message)
        elif isinstance(fact, CallFinished):
            self._late.append(result_message(fact))

    def partial(self, unapplied: str = "") -> PartialResponse | None:
        """The unfinished response, if one is open; `unapplied` arrived and was never shown."""
        if not self._open:
            return None
        return PartialResponse(self._reply.id, self._reply.response_id, self._text(), unapplied)

    # Deltas

    def _delta(self, delta: Delta) -> None:
        body = delta.body
        kind = type(body)
        if kind is TextTold:
            if body.message_id != self._message_id:  # type: ignore[union-attr]
                self._handed_over(ResponseStream(body.message_id))  # type: ignore[union-attr]
                if self._reply.dead:  # stopped in a callback
                    return
            if body.text:  # type: ignore[union-attr]
                self._stage.piece(self, body.text)  # type: ignore[union-attr]
        elif kind is ResponseStream:
            self._handed_over(body)  # type: ignore[arg-type]
        elif kind is OwnershipTold:
            if body.ownership == "elsewhere":  # type: ignore[union-attr]
                self._ended(Unknown("owner_lost", "another process has taken the run over"))
            elif body.ownership == "orphaned":  # type: ignore[union-attr]
                self._ended(Unknown("journal_unavailable", "the journal cannot store how it ended"))
            elif body.ownership == "stalled":  # type: ignore[union-attr]
                self._close(Unknown("journal_unavailable", "the journal is away"))
        elif self._reply.foreign and not self._reply.handed_over:  # its first delta of any kind (AC-108)
            self._handed_over(ResponseStream(getattr(body, "message_id", self._reply.id)))

    def _text(self) -> str:
        """What was shown of the response that is being streamed."""
        return self._reply.text_from(self._from)

    def _handed_over(self, told: ResponseStream) -> None:
        reply = self._reply
        self._flush_held()
        self._open = True
        self._from = reply.pieces
        self._message_id = told.message_id
        self._model = told.model
        reply.response_id = told.response_id or told.message_id
        reply.phase = ReplyPhase.READING
        self._stage.handed_over(self)

    # Facts

    def call_started(self, _: CallStarted) -> None:
        """Tools run."""
        self._reply.phase = ReplyPhase.WORKING

    def requested(self, _: TurnStarted | ModelRequested) -> None:
        """The model is asked: what was streamed before is over."""
        self._flush_held()
        self._open, self._from = False, self._reply.pieces
        self._reply.phase = ReplyPhase.WAITING

    def request_opened(self, fact: RequestOpened) -> None:
        """Somebody is asked: the limit of the whole send stands still (TC-95)."""
        self._asked.add(fact.request.id)
        self._reply.phase = ReplyPhase.ASKING
        if self._reply.deadline is not None:
            self._reply.deadline.hold("asking")

    def request_over(self, fact: RequestResolved | RequestClosed) -> None:
        """Nobody is asked that any more."""
        self._asked.discard(fact.request_id)
        if not self._asked:
            self._reply.phase = ReplyPhase.WORKING
            if self._reply.deadline is not None:
                self._reply.deadline.go("asking")

    def attempt_ended(self, fact: ModelAttemptEnded) -> None:
        """A response came to its end, one way or another."""
        self._error = fact.error
        reply = self._reply
        reply.usage, reply.model = fact.usage, self._model
        if reply.call is not None:
            reply.metadata = reply.call.metadata
            word = reply.metadata.get("finish_reason")
            reply.finish_reason = word if isinstance(word, str) else None
            if fact.end != "answered":
                reply.signal.set(fact.error.kind if fact.error is not None else fact.end)
        else:
            reply.finish_reason = fact.why or None
            told = {"model": self._model, "usage": fact.usage, "finish_reason": fact.why or None}
            reply.metadata = {
                name: msgspec.to_builtins(item) for name, item in told.items() if item is not None
            }
        if fact.end == "answered":
            self._open = False
            self._stage.response_ended(self)
        elif fact.end == "discarded":
            self._open, self._from = False, reply.pieces

    def message_added(self, fact: MessageAdded) -> None:
        """A message is whole: it enters, or waits for the next fact if the send may end with it."""
        message = fact.message
        self._flush_held()
        if message.role != "assistant":
            self._append(message)
            return
        self._show_untold(message)
        if self._reply.dead:
            self._late.append(message)
            return
        self._calls = [f"result:{call.call_id}" for call in message.tool_calls]
        if self._calls:
            self._append(message)
        else:
            self._held = message

    def _show_untold(self, message: Message) -> None:
        """A runtime may give a message whole, or the rest of one: all text of a send is told (AC-102, AC-108)."""
        if not self._reply.foreign:
            return
        if message.id != self._message_id:
            self._handed_over(ResponseStream(message.id))
        self._stage.response_ended(self)
        told = self._text()
        if message.text.startswith(told) and len(message.text) > len(told) and not self._reply.dead:
            self._stage.piece(self, message.text[len(told) :])
            self._stage.response_ended(self)
        self._open = False

    def _flush_held(self) -> None:
        """A held answer was not the last one: it enters the conversation, and the live text is emptied (AC-89)."""
        held, self._held = self._held, None
        if held is not None:
            self._append(held)

    def _append(self, message: Message) -> None:
        self._reply.messages += (message,)
        self._stage.append(self, message)

    def call_finished(self, fact: CallFinished) -> None:
        """A result stands in call order, whatever the order in which they come (EF-2)."""
        message = result_message(fact)
        if message.id not in self._calls:
            self._append(message)
            return
        later = set(self._calls[self._calls.index(message.id) + 1 :])
        self._reply.messages = inserted(self._reply.messages, message, later)
        self._stage.insert(self, message, later)

    def noted(self, fact: Noted) -> None:
        """A change of the shared state is durable."""
        if fact.name == NOTE and self._sender.thread.id == self._reply.thread_id:
            self._sender.setup.shared.take(fact.data)

    # The end

    def _ended(self, outcome: Outcome) -> None:
        reply = self._reply
        if reply.dead:
            self._settle_late()
        try:
            self._close(outcome, outcome)
        except (KeyboardInterrupt, SystemExit, CancelledError) as error:
            # Out of a callback, and not swallowed (AC-66); but the run that has its end is over first.
            get_running_loop().call_soon(_raise, error)
        finally:
            self._sender.settled(self)
            self._sender.run_over(reply)

    def _close(self, outcome: Outcome, recorded: Outcome | None = None) -> None:
        """The send is over for the conversation; what a host plugged in around it is told first."""
        reply = self._reply
        around = reply.around
        if not reply.dead and around is not None:
            self._stage.response_ended(self)  # all that arrived is in the text that hooks are given
        if around is None:
            if reply.changes is not None:
                reply.changes.closed = True
            if not reply.dead:
                self._settle(outcome)
        elif reply.dead:
            assert reply.outcome is not None
            around.ended(reply.outcome, reply.error, lambda: None, recorded)
        else:
            around.ended(outcome, self._told(outcome), lambda: self._settle_last(outcome), recorded)

    def _settle_last(self, outcome: Outcome) -> None:
        if not self._reply.dead:
            self._settle(outcome)
            self._sender.settled_way()

    def _told(self, outcome: Outcome) -> Exception | None:
        """What end hooks are given as the error: a send that ran out of time has one, too."""
        if isinstance(outcome, Incomplete) and (outcome.reason, outcome.limit) == ("limit", "deadline"):
            return ReplyTimeout(self._reply.id, self._reply.options["reply_timeout"])
        return self._exception(outcome)

    def _settle(self, outcome: Outcome) -> None:
        """The send is over for the conversation; a journal that is away catches up later (AC-101)."""
        reply = self._reply
        held, self._held = self._held, None
        if held is not None:
            reply.messages += (held,)
        error = self._exception(outcome)
        if error is not None:
            reply.signal.set(getattr(outcome, "kind", "unknown"))
        self._stage.settle(self, outcome, held, error)

    def _settle_late(self) -> None:
        """What became durable in spite of the stop belongs to the path: it enters without a word."""
        if self._held is not None:
            self._late.insert(0, self._held)
        reply = self._reply
        for message in self._late:
            if message.role == "assistant":
                self._calls = [f"result:{call.call_id}" for call in message.tool_calls]
                reply.partial = None
            later = (
                set(self._calls[self._calls.index(message.id) + 1 :]) if message.id in self._calls else set()
            )
            reply.messages = inserted(reply.messages, message, later)
            if self._sender.thread.id == reply.thread_id:
                self._stage.insert_quietly(message, later)

    def leftover(self) -> tuple[Leftover, ...]:
        """Inputs that the run returned at its end although nobody stopped it (AC-132)."""
        return () if self._inputs is None else self._inputs.left()

    def _exception(self, outcome: Outcome) -> Exception | None:
        """What `on_error` is given: the provider's own exception where there is one."""
        if isinstance(outcome, Unknown):
            return StreamEndedEarly(f"nobody knows how the response ended: {outcome.reason or outcome.cause}")
        if not isinstance(outcome, Failed):
            return None
        if self._reply.changes is not None and self._reply.changes.error is not None:
            return self._reply.changes.error
        call = self._reply.call
        timed_out = outcome.kind in ("send_timeout", "idle_timeout")
        if call is not None and call.raised is not None and not timed_out:
            return call.raised
        info = self._error
        if info is None or info.kind != outcome.kind:
            info = ErrorInfo(outcome.kind, outcome.message, outcome.code)  # type: ignore[arg-type]
        text = outcome.message or info.message or outcome.kind
        options = self._reply.options
        match outcome.kind:
            case "send_timeout":
                return SendTimeout(f"no response within {options['send_timeout']:g} s", info)
            case "idle_timeout":
                count = len(self._text())
                limit = options["stream_idle_timeout"]
                return StreamIdleTimeout(f"stream silent for {limit:g} s after {count} characters", info)
            case _:
                return ProviderError(text, info)

    def input_of(self, outcome: Outcome) -> Input:
        """Which input of the table an end is."""
        if isinstance(outcome, Completed | Truncated | Incomplete | Cancelled):
            return Input.FINISHED
        return Input.BROKE if self._reply.handed_over else Input.NO_STREAM


_ENDS: Final = frozenset({RunEnded, RunAbandoned, StartRefused, ContinuityLost})
_INPUTS: Final = frozenset({CommandReceived, InputReturned, StopRequested})

_ACTS: Final[dict[type, Callable[[Reading, Any], None]]] = {
    MessageAdded: Reading.message_added,
    CallStarted: Reading.call_started,
    CallFinished: Reading.call_finished,
    RequestOpened: Reading.request_opened,
    RequestResolved: Reading.request_over,
    RequestClosed: Reading.request_over,
    TurnStarted: Reading.requested,
    ModelRequested: Reading.requested,
    ModelAttemptEnded: Reading.attempt_ended,
    Noted: Reading.noted,
}


def _raise(error: BaseException) -> NoReturn:
    raise error


def _outcome(fact: RunEnded | RunAbandoned | StartRefused | ContinuityLost) -> Outcome:
    match fact:
        case RunEnded(outcome=outcome):
            return outcome
        case StartRefused(code=code, message=message, retryable=retryable):
            return Failed("start_refused", code, message, retryable)
        case ContinuityLost(cause=cause, reason=reason):
            return Unknown(cause, reason)
        case RunAbandoned(reason=reason, by=by):
            return Unknown("eof", reason, settled=True, by=by)
