"""What a conversation shows: its state, its messages, its live text; and who is told of it.

All changes of what a reader can see are made here. The state goes by `core.lifecycle` alone; fields change first, the
host and the callbacks are told afterwards (AC-64); while paused, pieces wait in a buffer and nothing is lost (AC-54).
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from ..cancel import LEAVING
from ..contracts import GatePoint, Host
from ..core.lifecycle import AgentState, Input, step
from ..errors import RunUnknown
from ..events import Cancelled, Completed, Outcome, Truncated
from ..messages import Message
from .notify import CHUNK, Notifier
from .reply import Reply
from .setup import Setup

if TYPE_CHECKING:
    from .applying import Reading

logger = logging.getLogger("pilothouse.conversation")

PAUSED: Final = AgentState.PAUSED
"""For what is asked with each piece: a member of an enum, looked up in its class, takes 70 ns."""


class Stage:
    """The visible side of one conversation."""

    __slots__ = (
        "_buffer",
        "_buffered",
        "_fresh",
        "_gates",
        "_host",
        "_live",
        "_setup",
        "error",
        "last_reply",
        "messages",
        "notifier",
        "pause_requested",
        "reading",
        "reply",
        "state",
    )

    def __init__(self, setup: Setup, host: Host | None) -> None:
        self._host = host
        self._setup = setup
        self._gates = setup.gate
        self.notifier = Notifier(lambda name: setup.options[name])
        self.state = AgentState.IDLE
        self.messages: tuple[Message, ...] = ()
        self.error: BaseException | None = None
        self.reply: Reply | None = None
        self.last_reply: Reply | None = None
        self.reading: Reading | None = None
        self.pause_requested = False
        self._live = ""
        self._fresh: list[str] = []  # pieces that nobody has read as text yet
        self._buffer: deque[str] | None = None  # made at the first pause: 0.6 kB
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
            except LEAVING:
                raise
            except BaseException as error:  # noqa: BLE001 - a host cannot break the machine
                self.notifier.failed(error, "request_update")
        self.notifier.drain()

    def tell_state(self) -> None:
        """Queues the state as it is now; a stop does not take it back, every observer sees every change (AC-64)."""
        self.notifier.tell("on_state_change", self.state)

    def tell_messages(self) -> None:
        """Queues the messages as they are now."""
        self.notifier.tell("on_messages_change", self.messages)

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
        self.tell_state()
        self.tell()

    def committed(self, reply: Reply, reading: Reading, messages: tuple[Message, ...]) -> None:
        """Phase 5: the run is registered, its message is shown."""
        self.reading = reading
        if messages != self.messages:
            self.messages = messages
            self.tell_messages()
        self.tell()

    def refused(self, reply: Reply) -> None:
        """The send ended before its commit: as if nothing had been sent (AC-42)."""
        self.change(Input.REFUSED)
        self.forget(reply)
        self.tell_state()

    def reopened(self, reply: Reply) -> None:
        """The send was known already: the state goes back, and it is not the one that ended last (AC-41)."""
        before = self.last_reply
        self.refused(reply)
        self.last_reply = before

    def show(self, messages: tuple[Message, ...], last: Reply | None) -> None:
        """A thread was loaded."""
        if messages != self.messages:
            self.messages = messages
            self.tell_messages()
        self.last_reply = last

    def lost(self, error: BaseException) -> None:
        """Nobody knows how the loaded thread's last run ended (AC-122)."""
        if self.state is not AgentState.ERROR:
            self.state = AgentState.ERROR
            self.tell_state()
        self.error = error

    def found(self) -> None:
        """Somebody knows by now: the run was taken up again, or left at that."""
        if isinstance(self.error, RunUnknown) and self.change(Input.ABORT):
            self.error = None
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
        if reply.dead:  # reset in a callback of the flush
            return
        finished = isinstance(outcome, Completed | Truncated)
        if not finished:
            reply.partial = reading.partial()
        self.drop_buffer()
        if final is not None:
            self.messages = (*self.messages, final)
        # Stopped by somebody else: by a command, a surface, a parent.
        self.change(Input.ABORT if isinstance(outcome, Cancelled) else reading.input_of(outcome))
        self.error = error if self.is_in(AgentState.ERROR) else None
        self.forget(reply)
        reply.end(outcome, error)
        if final is not None:
            self.tell_messages()
        self.tell_state()
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
            self.tell_state()
        reply.hand_over()
        self.tell()

    def piece(self, reading: Reading, piece: str, *, held: bool = False) -> None:
        """A piece of text: applied, or buffered while paused (AC-22). `held`: it was buffered, and its time has come."""
        if self.state is PAUSED and not held:
            self._hold(reading, piece)
            return
        reading.reply.add_piece(piece)
        notifier = self.notifier
        callback = self._setup.options[CHUNK]
        if callback is None and not notifier.observed:
            self._fresh.append(piece)
        else:
            if self._fresh:
                self._fresh.append(piece)
                text = self.live_text
            else:
                text, self._live = self._live, ""  # in place, as there
                text += piece
                self._live = text
            notifier.tell_piece(callback, piece, text, reading.wanted)
        if self._host is not None and not held:
            self.tell()

    def _hold(self, reading: Reading, piece: str) -> None:
        if self._buffer is None:
            self._buffer = deque()
        self._buffer.append(piece)
        self._buffered += len(piece)
        if self._buffered >= reading.reply.options["pause_buffer"]:
            self._gates(reading.reply.id, ("read",))

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
        self.tell_messages()
        self.tell()

    def insert(self, reading: Reading, message: Message, later: set[str]) -> None:
        """A result enters in front of the results of later calls (EF-2)."""
        self.messages = inserted(self.messages, message, later)
        self.tell_messages()
        self.tell()

    def insert_quietly(self, message: Message, later: set[str]) -> None:
        """As `insert`, of a send that is dead: nobody is told."""
        if all(known.id != message.id for known in self.messages):
            self.messages = inserted(self.messages, message, later)

    # Pause

    def pause(self) -> None:
        """Suspends applying; remembered while sending (AC-53, AC-55, AC-56)."""
        if self.is_in(AgentState.SENDING):
            if not self.pause_requested:
                self.pause_requested = True
                self.tell()
        elif self.change(Input.PAUSE):
            assert self.reply is not None
            self._shut(self.reply)
            self.tell_state()
            self.tell()

    def _shut(self, reply: Reply) -> None:
        if reply.deadline is not None:
            reply.deadline.hold("paused")
        points: tuple[GatePoint, ...] = ("request", "call")
        self._gates(reply.id, points if reply.options["pause_buffer"] else (*points, "read"))

    def resume(self) -> None:
        """Goes on: what was buffered is applied in order before this returns (AC-54, AC-128)."""
        forgotten, self.pause_requested = self.pause_requested, False
        reply, reading = self.reply, self.reading
        if not self.change(Input.RESUME) or reply is None:
            if forgotten:
                self.tell()
            return
        if reply.deadline is not None:
            reply.deadline.go("paused")
        self.tell_state()
        if reading is not None:
            self.notifier.then(lambda: self._go_on(reading))
        self.tell()

    def _go_on(self, reading: Reading) -> None:
        """Applies what is buffered, each piece behind the callbacks of the one before: a pause or stop in one ends it.

        Inside a callback it happens after that callback (AC-64).
        """
        if self.reading is not reading or not self.is_in(AgentState.STREAMING):
            return
        if self._buffer:
            self._apply_next(reading)
            self.notifier.then(lambda: self._go_on(reading))
        else:
            self._gates(reading.reply.id, ())

    def _flush(self, reading: Reading) -> None:
        """Applies all that is buffered of a response that has come to its end; a stop in a callback ends it."""
        while self._buffer and not reading.reply.dead:
            self._apply_next(reading)
            self.notifier.drain()

    def _apply_next(self, reading: Reading) -> None:
        assert self._buffer is not None
        piece = self._buffer.popleft()
        self._buffered -= len(piece)
        self.piece(reading, piece, held=True)

    def drop_buffer(self) -> str:
        """What was buffered and will not be shown."""
        left = "".join(self._buffer or ())
        self._buffer = None
        self._buffered = 0
        return left

    def clear(self, messages: tuple[Message, ...]) -> None:
        """Another conversation is shown."""
        self.messages = messages
        self.last_reply = None

    def silence_last(self) -> None:
        """What is still to be told of the end of the last send is not told (AC-65)."""
        if self.last_reply is not None:
            self.last_reply.silence()

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
