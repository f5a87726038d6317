"""What a conversation shows of itself, read-only: the fields of `AgentController` that an interface looks at."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from types import MappingProxyType

from ..contracts import Journal
from ..core.lifecycle import AgentState
from ..messages import Message
from .reply import PartialResponse, Reply
from .sending import Sender
from .setup import Setup
from .stage import Stage


class Shown:
    """The reading side of `AgentController`."""

    __slots__ = ()

    _setup: Setup
    _stage: Stage
    _sender: Sender

    @property
    def state(self) -> AgentState:
        """What the conversation is doing."""
        return self._stage.state

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, finished ones only; a new tuple at every change."""
        return self._stage.messages

    @property
    def current_response_text(self) -> str:
        """Text of the response that streams, or of the last one that did; emptied at hand-over (AC-88)."""
        return self._stage.live_text

    @property
    def is_streaming(self) -> bool:
        """Streaming or paused."""
        return self._stage.is_in(AgentState.STREAMING, AgentState.PAUSED)

    @property
    def is_busy(self) -> bool:
        """Sending, streaming or paused."""
        return self._stage.busy

    @property
    def pause_requested(self) -> bool:
        """A pause that waits for the hand-over."""
        return self._stage.pause_requested

    @property
    def reply(self) -> Reply | None:
        """The live send."""
        return self._stage.reply

    @property
    def queued(self) -> tuple[Reply, ...]:
        """Sends that wait their turn."""
        return self._sender.queued

    @property
    def last_reply(self) -> Reply | None:
        """The send that ended last."""
        return self._stage.last_reply

    @property
    def partial(self) -> PartialResponse | None:
        """What arrived of the last send's unfinished response."""
        return None if self.last_reply is None else self.last_reply.partial

    @property
    def error(self) -> BaseException | None:
        """Set exactly while the state is `error`."""
        return self._stage.error

    @property
    def thread_id(self) -> str:
        """The conversation's name in the journal."""
        return self._sender.thread.id

    @property
    def options(self) -> Mapping[str, object]:
        """A sanitized copy; a disabled timeout reads `math.inf`."""
        return MappingProxyType({**self._setup.options, "params": deepcopy(self._setup.options["params"])})

    @property
    def journal(self) -> Journal | None:
        """The store that was given; None where runs are kept in memory."""
        return self._setup.journal

    @property
    def undelivered(self) -> tuple[Message, ...]:
        """Steering that the last run did not take; the next send gets it (AC-132)."""
        return tuple([item.message for item in self._sender.thread.leftover])

    def withdraw_undelivered(self, message_id: str) -> bool:
        """Takes such steering back, so that the next send does not get it; False if there is none."""
        thread = self._sender.thread
        kept = tuple([item for item in thread.leftover if item.message.id != message_id])
        found = len(kept) < len(thread.leftover)
        thread.leftover = kept
        return found
