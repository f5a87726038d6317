"""What a conversation shows: its state, its messages, its live text; and who is told of it.

All changes of what a reader can see are made here. The state goes by `core.lifecycle` alone; fields change first, the
host and the callbacks are told afterwards (AC-64); while paused, pieces wait in a buffer and nothing is lost (AC-54).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..contracts import GatePoint, Host
from ..core.lifecycle import AgentState, Input, step
from ..events import Cancelled, Completed, Outcome, Truncated
from ..messages import Message
from .notify import Notifier
from .reply import Reply

if TYPE_CHECKING:
    from .applying import Reading

logger = logging.getLogger("pilothouse.conversation")

Gates = Callable[[str, Sequence[GatePoint]], None]


class Stage:
    """The visible side of one conversation.

    `gates` shuts gates of a run, or opens all of them with none named.
    """

    def __init__(self, options: Callable[[], Mapping[str, Any]], host: Host | None, gates: Gates) -> None:
        self._options = options
        self._host = host
        self._gates = gates
        self.notifier = Notifier(lambda name: options()[name])
        self.state = AgentState.IDLE
        self.messages: tuple[Message, ...] = ()
        self.error: BaseException | None = None
        self.reply: Reply | None = None
        self.last_reply: Reply | None = None
        self.reading: Reading | None = None
        self.pause_requested = False
        self._live = ""
        self._fresh: list[str] = []  # pieces that nobody has read as text yet
        self._buffer: list[str] = []
        self._buffered = 0

    @property
    def live_text(self) -> str:
        """Text of the response that streams, or of the last one that did."""
        if self._fresh:
            # In place while nobody else holds the text: linear over a response, however often it is read.
            text, self._live = self._live, ""
            text += self._fresh[0] if len(self._fresh) == 1 else "".join(self._fresh)
            self._live = text
            self._fresh.clear()
        return self._live

    def is_in(self, *states: AgentState) -> bool:
        """Whether the state is one of these now; a callback may have changed it."""
        return self.state in states

    @property
    def busy(self) -> bool:
        """Whether a send is in progress."""
        return self.is_in(AgentState.SENDING, AgentState.STREAMING, AgentState.PAUSED)

    # Telling

    def tell(self) -> None:
        """The host first (fields are final), then the callbacks that are due."""
        if self._host is not None:
            try:
                self._host.request_update()
            except Exception:
                logger.exception("host.request_update failed")
        self.notifier.drain()

    def tell_state(self, reply: Reply | None = None) -> None:
        """Queues the state as it is now."""
        self.notifier.tell("on_state_change", self.state, fence=None if reply is None else reply.wanted)

    def tell_messages(self, reply: Reply | None = None) -> None:
        """Queues the messages as they are now."""
        fence = None if reply is None else reply.wanted
        self.notifier.tell("on_messages_change", self.messages, fence=fence)

    def change(self, entry: Input) -> bool:
        """The only way in which the state changes; True if it did."""
        before, self.state = self.state, step(self.state, entry)
        return before is not self.state

    # A send begins, is committed, ends

    def begin(self, reply: Reply) -> None:
        """Phase 2: the send is the live one."""
        self.reply, self.error, self.pause_requested = reply, None, False
        self.drop_buffer()
        self.change(Input.SEND)
        self.tell_state(reply)
        self.tell()

    def committed(self, reply: Reply, reading: Reading, messages: tuple[Message, ...]) -> None:
        """Phase 5: the run is registered, its message is shown."""
        self.reading = reading
        if messages != self.messages:
            self.messages = messages
            self.tell_messages(reply)
        self.tell()

    def refused(self, reply: Reply) -> None:
        """The send ended before its commit: as if nothing had been sent (AC-42)."""
        self.change(Input.REFUSED)
        self.forget(reply)
        self.tell_state()

    def forget(self, reply: Reply) -> None:
        """The send is over for the conversation."""
        if self.reply is reply:
            self.reply, self.reading = None, None
        self.last_reply = reply
        self.pause_requested = False

    def stopped(self, reply: Reply) -> None:
        """A live send is stopped: idle at once; what arrived and was not shown is kept apart (AC-79, AC-95)."""
        unapplied = self.drop_buffer()
        if self.reading is not None:
            reply.partial = self.reading.partial(unapplied)
        self.change(Input.ABORT)
        reply.stop()
        self.forget(reply)
        self.tell_state()

    def settle(
        self, reading: Reading, outcome: Outcome, final: Message | None, error: Exception | None
    ) -> None:
        """Phase 11: everything that the end changes, in one step, then the callbacks (AC-39, AC-61, AC-62)."""
        reply = reading.reply
        self._flush(reading)
        finished = isinstance(outcome, Completed | Truncated)
        if not finished:
            reply.partial = reading.partial()
        if final is not None:
            self.messages = (*self.messages, final)
        # Stopped by somebody else: by a command, a surface, a parent.
        self.change(Input.ABORT if isinstance(outcome, Cancelled) else reading.input_of(outcome))
        self.error = error if self.is_in(AgentState.ERROR) else None
        self.forget(reply)
        reply.end(outcome, error)
        if final is not None:
            self.tell_messages(reply)
        self.tell_state(reply)
        if finished and reply.messages:
            self.notifier.tell("on_response_complete", reply.messages[-1], fence=reply.wanted)
        if self.error is not None:
            logger.warning("reply %s failed: %s", reply.id, type(error).__name__)
            self.notifier.tell("on_error", error, fence=reply.wanted)
        self.tell()

    # A response streams

    def handed_over(self, reading: Reading) -> None:
        """A stream was handed over: phase 7, and again for each further response (AC-129)."""
        reply = reading.reply
        self.forget_text()
        paused, self.pause_requested = self.pause_requested, False
        changed = self.change(Input.HANDED_OVER_PAUSED if paused else Input.HANDED_OVER)
        self.notifier.tell("on_response_start", reply.response_id, fence=reply.wanted)
        if changed:
            if self.is_in(AgentState.PAUSED):
                self._shut(reply)
            self.tell_state(reply)
        reply.hand_over()
        self.tell()

    def piece(self, reading: Reading, piece: str) -> None:
        """A piece of text: applied, or buffered while paused (AC-22)."""
        if self.state is AgentState.PAUSED:
            self._buffer.append(piece)
            self._buffered += len(piece)
            if self._buffered >= self._options()["pause_buffer"]:
                self._gates(reading.reply.id, ("read",))
            return
        self._show(reading, piece)
        if self._host is not None:
            self.tell()

    def _show(self, reading: Reading, piece: str) -> None:
        self._fresh.append(piece)
        reading.applied(piece)
        if self.notifier.wants("on_response_chunk"):
            self.notifier.tell_now("on_response_chunk", piece, self.live_text, fence=reading.reply.wanted)

    def response_ended(self, reading: Reading) -> None:
        """A response is whole: what is buffered of it is shown (AC-55)."""
        if self._buffer:
            self._flush(reading)
            self.tell()

    def append(self, reading: Reading, message: Message) -> None:
        """A finished message enters; the live text is emptied if it was that (AC-89)."""
        self.messages = (*self.messages, message)
        if message.role == "assistant":
            self.forget_text()
        self.tell_messages(reading.reply)
        self.tell()

    def insert(self, reading: Reading, message: Message, later: set[str]) -> None:
        """A result enters in front of the results of later calls (EF-2)."""
        self.messages = inserted(self.messages, message, later)
        self.tell_messages(reading.reply)
        self.tell()

    # Pause

    def pause(self) -> None:
        """Suspends applying; remembered while sending (AC-53, AC-55, AC-56)."""
        if self.is_in(AgentState.SENDING):
            self.pause_requested = True
            self.tell()
        elif self.change(Input.PAUSE):
            assert self.reply is not None
            self._shut(self.reply)
            self.tell_state(self.reply)
            self.tell()

    def _shut(self, reply: Reply) -> None:
        points: tuple[GatePoint, ...] = ("request", "call")
        self._gates(reply.id, points if self._options()["pause_buffer"] else (*points, "read"))

    def resume(self) -> None:
        """Goes on: what was buffered is applied in order before this returns (AC-54, AC-128)."""
        self.pause_requested = False
        reply, reading = self.reply, self.reading
        if not self.change(Input.RESUME) or reply is None:
            return
        self.tell_state(reply)
        self.notifier.drain()
        if reading is not None:
            self._flush(reading)
        if self.is_in(AgentState.STREAMING) and self.reply is reply:
            self._gates(reply.id, ())
        self.tell()

    def _flush(self, reading: Reading) -> None:
        """Applies buffered pieces one by one; a pause or stop inside a callback ends it."""
        paused = self.is_in(AgentState.PAUSED)
        while self._buffer and not reading.reply.dead:
            piece = self._buffer.pop(0)
            self._buffered -= len(piece)
            self._show(reading, piece)
            self.notifier.drain()
            if not paused and self.is_in(AgentState.PAUSED):
                return

    def drop_buffer(self) -> str:
        """What was buffered and will not be shown."""
        left = "".join(self._buffer)
        self._buffer, self._buffered = [], 0
        return left

    def clear(self, messages: tuple[Message, ...]) -> None:
        """Another conversation is shown."""
        self.messages = messages
        self.last_reply = None

    def forget_text(self) -> None:
        """The live text is empty again."""
        self._live = ""
        self._fresh.clear()


def inserted(messages: tuple[Message, ...], message: Message, later: set[str]) -> tuple[Message, ...]:
    """Puts a result in front of the results of later calls."""
    at = len(messages)
    while at and messages[at - 1].id in later:
        at -= 1
    return (*messages[:at], message, *messages[at:])
