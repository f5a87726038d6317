"""What a reader sees of a conversation: messages in their order, which of them are open, and tool calls.

The storage under `core/display`: values are replaced, never changed; nothing here knows who tells them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ..messages import JSON, Part, Role, Unset
from ..projection import EMPTY, AgentMessage, AgentToolCall, Citation, Delivered, MessageDelivery

Content = str | tuple[Part, ...]


class ToldCall(NamedTuple):
    """A call as a whole message tells it."""

    id: str
    name: str
    args_text: str


class Told(NamedTuple):
    """A whole message as a backend tells it. `reasoning_id`: the id under which its reasoning was told."""

    id: str
    role: Role
    content: Content = ""
    reasoning: str | None = None
    reasoning_id: str = ""
    calls: tuple[ToldCall, ...] = ()
    tool_call_id: str | None = None
    error: str | None = None
    name: str | None = None
    run_id: str | None = None
    extra: Mapping[str, JSON] = EMPTY
    interrupted: Delivered | None = None
    """How it ended where it is not whole."""
    ledger: str | None = None


class Shown:
    """Messages and calls of one agent or subagent.

    Args:
        now: seconds of this client's clock, for how long reasoning took.

    Attributes:
        generation: of the attempt that is told now; empty before the first.
        attempt_run: the run id that its messages carry.
        continues: the attempt goes on with the message that was last before it (AG-58).
        streaming_attempt: an attempt is being told; only then can the end of a snapshot belong to it.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.generation = ""
        self.attempt_run: str | None = None
        self.continues = False
        self.streaming_attempt = False
        self._now = now
        self._order: list[str] = []
        self._shown: dict[str, AgentMessage] = {}
        self._calls: dict[str, AgentToolCall] = {}
        self._buffers: dict[str, list[str]] = {}
        self._alias: dict[str, str] = {}  # a backend's id -> the id that is shown
        self._answer_ids: dict[str, str] = {}  # shown id -> the id of the answer, where it is another one
        self._open: dict[str, None] = {}
        # Messages of the user that no run took in yet: they stand at the end.
        self._waiting: dict[str, None] = {}
        self._sent: set[str] = set()  # user messages of this attempt: no snapshot takes them away
        self._thinking: dict[str, float] = {}  # shown id -> when its reasoning began
        self._loose = ""  # a message that has reasoning and waits for its answer
        self._messages: tuple[AgentMessage, ...] | None = ()
        self._call_values: tuple[AgentToolCall, ...] | None = ()
        self._citations: dict[str, tuple[Citation, ...]] = {}

    @property
    def messages(self) -> tuple[AgentMessage, ...]:
        """All messages in display order."""
        if self._messages is None:
            self._messages = tuple([self._shown[name] for name in self._order])
        return self._messages

    @property
    def calls(self) -> tuple[AgentToolCall, ...]:
        """All calls in order of arrival."""
        if self._call_values is None:
            self._call_values = tuple(self._calls.values())
        return self._call_values

    def get(self, message_id: str) -> AgentMessage | None:
        """The message of an id, the shown one or another name of it."""
        return self._shown.get(self._alias.get(message_id, message_id))

    def call(self, call_id: str) -> AgentToolCall | None:
        """The call of an id."""
        return self._calls.get(call_id)

    def told_ids(self, shown_id: str) -> tuple[str, str]:
        """The backend's ids of a message: of the answer, and of its reasoning (empty where that has none)."""
        answer = self._answer_ids.get(shown_id)
        if answer is not None:
            return answer, shown_id
        return shown_id, ""

    @property
    def streaming(self) -> bool:
        """Whether a message is open."""
        return bool(self._open)

    def begin(self, generation: str, run_id: str | None = None, *, continues: bool = False) -> None:
        """Another attempt begins; what an earlier one left open is the caller's to end first."""
        self.generation, self.attempt_run, self.continues = generation, run_id, continues
        self.streaming_attempt = True
        self._loose = ""
        self._sent = set()
        self._buffers = {}

    def end(self, outcome: Delivered, reason: str | None = None) -> None:
        """Everything that is open is complete with this outcome."""
        for name in list(self._open):
            self._complete(name, outcome, reason)
        for name in list(self._thinking):
            self._stop_thinking(name)
        self._loose = ""
        self.streaming_attempt = False

    def start_over(self) -> None:
        """The backend tells this attempt again from its start: what it had shown is taken away."""
        generation = self.generation
        keep = [
            name
            for name in self._order
            if name in self._sent
            or self._shown[name].delivery.generation != generation
            or self._shown[name].role == "user"
        ]
        for name in set(self._order) - set(keep):
            del self._shown[name]
            self._open.pop(name, None)
        self._order = keep
        self._open, self._thinking, self._loose, self._buffers = {}, {}, "", {}
        self._messages = None

    def clear(self) -> None:
        """Another conversation: nothing is shown."""
        self.__init__(self._now)  # type: ignore[misc]

    def add_user(self, message_id: str, content: Content, *, sent: bool = True, waits: bool = False) -> None:
        """Shows a message of the user. One that `waits` for its turn stays behind all others until `release`."""
        static = MessageDelivery(message_id, "complete", "success")
        self._put(AgentMessage(message_id, "user", static, content))
        if waits:
            self._waiting[message_id] = None
        if sent:
            self._sent.add(message_id)

    def mark_sent(self, message_id: str) -> None:
        """A message of the user belongs to this attempt: no snapshot of it takes the message away."""
        self._sent.add(message_id)

    def waits(self, message_id: str) -> bool:
        """Whether a message of the user still waits for its turn."""
        return message_id in self._waiting

    def release(self, message_id: str) -> None:
        """A waiting message takes its place: behind what was said so far."""
        if message_id in self._waiting:
            del self._waiting[message_id]
            self._order.remove(message_id)
            self._order.insert(len(self._order) - len(self._waiting), message_id)
            self._messages = None

    def remove(self, message_id: str) -> None:
        """Takes a message back."""
        self._waiting.pop(message_id, None)
        if self._shown.pop(message_id, None) is not None:
            self._order.remove(message_id)
            self._open.pop(message_id, None)
            self._sent.discard(message_id)
            self._messages = None

    def cut(self, index: int) -> None:
        """Keeps the first messages only."""
        for name in self._order[index:]:
            del self._shown[name]
            self._open.pop(name, None)
        self._order = self._order[:index]
        kept = {call_id for message in self._shown.values() for call_id in message.tool_call_ids}
        dropped = [
            name for name, call in self._calls.items() if name not in kept and call.subagent_id is None
        ]
        for name in dropped:
            del self._calls[name]
        self._messages = self._call_values = None

    def _complete(self, shown: str, outcome: Delivered, reason: str | None) -> None:
        if shown not in self._open:
            return
        del self._open[shown]
        self._stop_thinking(shown)
        found = self._shown[shown]
        if found.delivery.phase == "complete":
            return  # a rewrite of one that was complete: the first outcome stays
        done = MessageDelivery(found.delivery.generation, "complete", outcome, reason)
        self._shown[shown] = replace(found, delivery=done)
        self._messages = None

    def _stop_thinking(self, shown: str) -> None:
        began = self._thinking.pop(shown, None)
        found = self._shown.get(shown)
        if began is not None and found is not None:
            took = max(self._now() - began, 0.0) + (found.reasoning_duration or 0.0)
            self._shown[shown] = replace(found, reasoning_duration=took)
            self._messages = None

    def cite(self, citations: Mapping[str, tuple[Citation, ...]]) -> None:
        """Citations by message id, also for messages that come later; twice is once (AG-208)."""
        for message_id, told in citations.items():
            shown = self._alias.get(message_id, message_id)
            self._citations[shown] = told
            found = self._shown.get(shown)
            if found is not None and found.citations != told:
                self._shown[shown] = replace(found, citations=told)
                self._messages = None

    def _put(self, message: AgentMessage) -> None:
        if message.id not in self._shown:
            self._order.insert(len(self._order) - len(self._waiting), message.id)
            if (cited := self._citations.get(message.id)) is not None:
                message = replace(message, citations=cited)
        self._shown[message.id] = message
        self._messages = None

    def _streaming(self) -> MessageDelivery:
        return MessageDelivery(self.generation, "streaming")

    def _again(self, before: MessageDelivery) -> MessageDelivery:
        """A rewrite of a completed message: complete, under a new generation (AG-54)."""
        name, _, number = before.generation.partition("/")
        return MessageDelivery(f"{name}/{int(number or 1) + 1}", "complete", before.outcome, before.reason)


def object_of(text: str, before: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """The text as an object; while it is none, the last good value (AG-170)."""
    if not text.rstrip().endswith("}"):  # no object yet: a long text is not read anew for each piece of it
        return before
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return before
    return value if isinstance(value, dict) else before


def parsed(result: JSON | Unset) -> JSON | Unset:
    """A text that is JSON, as its value; any other as it is (AG-171)."""
    if not isinstance(result, str):
        return result
    try:
        return msgspec.json.decode(result)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return result


def plain(content: Content) -> str:
    """The text of a content."""
    return content if isinstance(content, str) else "".join([getattr(part, "text", "") for part in content])


__all__ = ["Content", "Role", "Shown", "Told", "ToldCall", "object_of", "parsed", "plain"]
