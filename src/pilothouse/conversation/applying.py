"""What a run tells, applied to its conversation: pieces, messages, states, the end (AC §3.2 … §3.5, §3.8).

One `Reading` a send. It is called in the step that publishes an item, and drops everything once its reply is dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.calls import result_message
from ..core.lifecycle import Input
from ..errors import ProviderError, SendTimeout, StreamEndedEarly, StreamIdleTimeout
from ..events import (
    CallFinished,
    CallStarted,
    Cancelled,
    Completed,
    ContinuityLost,
    Delta,
    Failed,
    Incomplete,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    Outcome,
    RequestOpened,
    ResponseStream,
    RunAbandoned,
    RunEnded,
    StartRefused,
    TextTold,
    Truncated,
    TurnStarted,
    Unknown,
)
from ..messages import Message
from ..responses import ErrorInfo
from ..runs.ring import Item
from .reply import PartialResponse, Reply, ReplyPhase
from .stage import inserted

if TYPE_CHECKING:
    from .sending import Sender


class Reading:
    """Folds one run's items into its conversation."""

    def __init__(self, sender: Sender, reply: Reply) -> None:
        self._sender = sender
        self._stage = sender.stage
        self._reply = reply
        self._held: Message | None = None  # an answer that is final if the run ends now
        self._open = False  # a response is being streamed
        self._pieces: list[str] = []  # of the response that is being streamed
        self._calls: list[str] = []  # of the last message, in order
        self._error: ErrorInfo | None = None

    def __call__(self, item: Item) -> None:
        """Takes an item; an end is noticed also when the reply is dead."""
        if type(item) is Delta:
            if not self._reply.dead:
                self._delta(item)
            return
        fact = item.fact  # type: ignore[union-attr]
        if isinstance(fact, RunEnded | RunAbandoned | StartRefused | ContinuityLost):
            self._ended(fact)
        elif not self._reply.dead:
            self._fact(fact)

    @property
    def reply(self) -> Reply:
        """Whose send this is."""
        return self._reply

    def partial(self, unapplied: str = "") -> PartialResponse | None:
        """The unfinished response, if one is open; `unapplied` arrived and was never shown."""
        if not self._open:
            return None
        return PartialResponse(self._reply.id, self._reply.response_id, "".join(self._pieces), unapplied)

    # Deltas

    def _delta(self, delta: Delta) -> None:
        body = delta.body
        kind = type(body)
        if kind is TextTold:
            if body.text:  # type: ignore[union-attr]
                self._stage.piece(self, body.text)  # type: ignore[union-attr]
        elif kind is ResponseStream:
            self._handed_over(body)  # type: ignore[arg-type]

    def applied(self, piece: str) -> None:
        """The conversation showed a piece."""
        self._pieces.append(piece)
        self._reply.add_piece(piece)

    def _handed_over(self, told: ResponseStream) -> None:
        reply = self._reply
        self._flush_held()
        self._open = True
        self._pieces = []
        reply.response_id = told.response_id or told.message_id
        reply.phase = ReplyPhase.READING
        self._stage.handed_over(self)

    # Facts

    def _fact(self, fact: object) -> None:
        match fact:
            case MessageAdded():
                self._message(fact.message)
            case CallStarted():
                self._reply.phase = ReplyPhase.WORKING
            case RequestOpened():
                self._reply.phase = ReplyPhase.ASKING
            case CallFinished():
                self._result(fact)
            case TurnStarted() | ModelRequested():
                self._flush_held()
                self._reply.phase = ReplyPhase.WAITING
            case ModelAttemptEnded():
                self._attempt_ended(fact)
            case _:
                pass

    def _attempt_ended(self, fact: ModelAttemptEnded) -> None:
        self._error = fact.error
        if fact.end == "answered":
            self._open = False
            self._stage.response_ended(self)
        elif fact.end == "discarded":
            self._open, self._pieces = False, []

    def _message(self, message: Message) -> None:
        self._flush_held()
        if message.role != "assistant":
            self._append(message)
            return
        self._calls = [f"result:{call.call_id}" for call in message.tool_calls]
        if self._calls:
            self._append(message)
        else:
            self._held = message

    def _flush_held(self) -> None:
        """A held answer was not the last one: it enters the conversation, and the live text is emptied (AC-89)."""
        held, self._held = self._held, None
        if held is not None:
            self._append(held)

    def _append(self, message: Message) -> None:
        self._reply.messages += (message,)
        self._stage.append(self, message)

    def _result(self, fact: CallFinished) -> None:
        """A result stands in call order, whatever the order in which they come (EF-2)."""
        message = result_message(fact)
        if message.id not in self._calls:
            self._append(message)
            return
        later = set(self._calls[self._calls.index(message.id) + 1 :])
        self._reply.messages = inserted(self._reply.messages, message, later)
        self._stage.insert(self, message, later)

    # The end

    def _ended(self, fact: RunEnded | RunAbandoned | StartRefused | ContinuityLost) -> None:
        reply = self._reply
        if not reply.dead:
            outcome = _outcome(fact)
            held, self._held = self._held, None
            if held is not None:
                reply.messages += (held,)
            error = self._exception(outcome)
            self._stage.settle(self, outcome, held, error)
            self._sender.settled()
        self._sender.run_over(reply)

    def _exception(self, outcome: Outcome) -> Exception | None:
        """What `on_error` is given: the provider's own exception where there is one."""
        if isinstance(outcome, Unknown):
            return StreamEndedEarly(f"nobody knows how the response ended: {outcome.reason or outcome.cause}")
        if not isinstance(outcome, Failed):
            return None
        raised = self._sender.raised(self._reply)
        if raised is not None:
            return raised
        info = self._error
        if info is None or info.kind != outcome.kind:
            info = ErrorInfo(outcome.kind, outcome.message, outcome.code)  # type: ignore[arg-type]
        text = outcome.message or info.message or outcome.kind
        count = len("".join(self._pieces))
        match outcome.kind:
            case "send_timeout":
                return SendTimeout(text, info)
            case "idle_timeout":
                return StreamIdleTimeout(f"{text} after {count} characters", info)
            case _:
                return ProviderError(text, info)

    def input_of(self, outcome: Outcome) -> Input:
        """Which input of the table an end is."""
        if isinstance(outcome, Completed | Truncated | Incomplete | Cancelled):
            return Input.FINISHED
        return Input.BROKE if self._reply.handed_over else Input.NO_STREAM


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
