"""A run's messages, put together from its facts: what was said, in the order in which a reader should meet it.

Results of tools stand behind the message that asked for them, in call order, whatever the order in which they came
(EF-2). A message known only from saved fragments is there too, not complete, with how it ended (RC-19, RC-68). The
path for a runtime (RC-82) is another projection of the same facts: complete messages only, compactions applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..events import (
    CallFinished,
    CallProposed,
    ContinuityLost,
    HistoryCompacted,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    PartialSaved,
    RunAbandoned,
    RunEnded,
)
from ..messages import MEDIA, Message, Part, Reasoning, Text, ToolCall
from ..records import HistoryMessage, Record, RunSpec
from .calls import result_id, result_message


class Partial:
    """A message of which only fragments are known: text by part, in order of appearance.

    `end` says how it ended, empty while more may come; `seq` is that of its first fragment.
    """

    def __init__(self, message_id: str, seq: int) -> None:
        self.message_id = message_id
        self.seq = seq
        self.end = ""
        self._parts: dict[tuple[str, int], list[str]] = {}
        self._lengths: dict[tuple[str, int], int] = {}
        self._calls: dict[int, tuple[str, str]] = {}

    def add(self, fact: PartialSaved) -> None:
        """Takes a fragment; of one that was told again only what is new counts (RC-20)."""
        part = (fact.part, fact.index)
        length = self._lengths.get(part, 0)
        text = fact.text[max(length - fact.offset, 0) :]
        self._parts.setdefault(part, []).append(text)
        self._lengths[part] = length + len(text)
        if fact.call_id is not None:
            self._calls[fact.index] = (fact.call_id, fact.tool)

    def message(self) -> Message:
        """What is known of it. Its calls were never proposed: they carry `args_error`."""
        parts: list[Part] = []
        for (kind, index), pieces in sorted(self._parts.items(), key=lambda item: item[0][1]):
            text = "".join(pieces)
            if kind == "text":
                parts.append(Text(text))
            elif kind == "reasoning":
                parts.append(Reasoning(text))
            else:
                call_id, tool = self._calls.get(index, (f"{self.message_id}:{index}", ""))
                parts.append(ToolCall(call_id, tool, raw_arguments=text, args_error="interrupted"))
        return Message(self.message_id, "assistant", tuple(parts))


_ENDS = {"cancelled": "cancelled", "failed": "error", "interrupted": "unknown", "discarded": "discarded"}


class Compaction(NamedTuple):
    """A `history_compacted` on a path: it stands behind the first `place` entries of it."""

    place: int
    fact: HistoryCompacted
    run_id: str
    seq: int


class Transcript:
    """The messages of one run, folded record by record."""

    def __init__(self, spec: RunSpec) -> None:
        self._run_id = spec.run_id
        # In reading order, by message id; None holds the place of a result that is to come.
        self._entries: dict[str, HistoryMessage | Partial | None] = {
            message.id: HistoryMessage(message, spec.run_id, 1) for message in spec.input
        }
        self._attempt: str | None = None
        self._compacted: list[tuple[HistoryCompacted, int]] = []

    def add(self, record: Record) -> None:
        """Folds one record in; facts that say nothing of messages pass."""
        fact = record.fact
        match fact:
            case MessageAdded():
                message = fact.message
                self._entries[message.id] = HistoryMessage(message, self._run_id, record.seq)
                if message.role == "assistant":
                    for call in message.tool_calls:
                        self._entries.setdefault(result_id(call.call_id))
            case CallProposed():
                self._entries.setdefault(result_id(fact.call_id))
            case CallFinished():
                result = result_message(fact)
                entry = HistoryMessage(result, self._run_id, record.seq, call_outcome=fact.outcome)
                self._entries[result.id] = entry
            case PartialSaved():
                self._fragment(fact, record.seq)
            case ModelRequested():
                self._attempt = fact.message_id
            case ModelAttemptEnded():
                self._attempt_ended(_ENDS.get(fact.end, ""))
            case ContinuityLost() | RunAbandoned():
                self._all_ended("unknown")
            case RunEnded():
                self._all_ended(str(fact.outcome.__struct_config__.tag))
            case HistoryCompacted():
                self._compacted.append((fact, record.seq))
            case _:
                pass

    def _fragment(self, fact: PartialSaved, seq: int) -> None:
        entry = self._entries.get(fact.message_id)
        if entry is None:
            entry = self._entries[fact.message_id] = Partial(fact.message_id, seq)
        if isinstance(entry, Partial):  # else the whole message has superseded it
            entry.end = ""
            entry.add(fact)

    def _attempt_ended(self, end: str) -> None:
        message_id, self._attempt = self._attempt, None
        entry = self._entries.get(message_id or "")
        if not isinstance(entry, Partial):
            return
        entry.end = end
        if end == "discarded":  # asked again: what it had is no part of the conversation
            del self._entries[entry.message_id]

    def _all_ended(self, end: str) -> None:
        for entry in self._entries.values():
            if isinstance(entry, Partial) and not entry.end:
                entry.end = end

    def messages(self) -> list[HistoryMessage]:
        """All of them, in reading order; a partial that may go on has an empty `end`."""
        out = []
        for entry in self._entries.values():
            if isinstance(entry, Partial):
                out.append(
                    HistoryMessage(entry.message(), self._run_id, entry.seq, complete=False, end=entry.end)
                )
            elif entry is not None:
                out.append(entry)
        return out

    def compactions(self, messages: Sequence[HistoryMessage], front: int) -> list[Compaction]:
        """Where the context was replaced. `messages` are this run's; `front` is how many entries stand before them."""
        found = []
        for fact, seq in self._compacted:
            before = [index for index, entry in enumerate(messages, 1) if entry.seq < seq]
            found.append(Compaction(front + (before[-1] if before else 0), fact, self._run_id, seq))
        return found


def cut_after(path: Sequence[HistoryMessage], keep_through: str | None) -> Sequence[HistoryMessage]:
    """The path up to and including that message; None keeps everything.

    Raises:
        KeyError: no such message on the path.
    """
    if keep_through is None:
        return path
    for length in range(len(path), 0, -1):  # most hang on the last message
        if path[length - 1].message.id == keep_through:
            return path if length == len(path) else path[:length]
    raise KeyError(keep_through)


def with_results(path: Sequence[HistoryMessage], keep_through: str | None) -> str | None:
    """Where a cut behind that message really is: behind the results of its calls, where they are known.

    A call is kept together with what it came to: without that a model would be told that nobody knows.
    """
    at = next((at for at in range(len(path) - 1, -1, -1) if path[at].message.id == keep_through), len(path))
    while at + 1 < len(path) and path[at + 1].message.role == "tool":
        at += 1
    return path[at].message.id if at < len(path) else keep_through


def wants_answer(message: Message) -> bool:
    """Whether a conversation that ends with this message can go on without new input."""
    return message.role in ("user", "tool")


def last_exchange(path: Iterable[HistoryMessage]) -> str | None:
    """The last committed message that wants an answer: where a retry goes on from (RC-68).

    That is a user message, or the last result of a batch all of whose results are there.
    """
    found = None
    waiting: set[str] = set()
    for entry in path:
        if not entry.complete:
            continue
        message = entry.message
        if message.role == "assistant":
            waiting = {call.call_id for call in message.tool_calls}
        elif message.role == "tool":
            waiting.discard(message.call_id or "")
            if not waiting:
                found = message.id
        elif message.role == "user":
            found = message.id
    return found


def for_runtime(path: Sequence[HistoryMessage], compactions: Sequence[Compaction]) -> list[Message]:
    """The path as a runtime is given it: complete messages, the compactions on it applied (RC-82).

    What each replaced is what stood before it: its new messages come first, then those that stay, as a resumed
    runtime has it. One behind the end of the path is not on it.
    """
    if not compactions:
        return [entry.message for entry in path if entry.complete]
    context: list[tuple[Message, HistoryMessage | None]] = []
    taken = 0
    for compaction in compactions:
        if compaction.place > len(path):
            break
        context += [(entry.message, entry) for entry in path[taken : compaction.place]]
        taken = compaction.place
        kept = set(compaction.fact.kept)
        stays = [
            (message, entry) for message, entry in context if message.id in kept or _later(entry, compaction)
        ]
        context = [*[(message, None) for message in compaction.fact.messages], *stays]
    context += [(entry.message, entry) for entry in path[taken:]]
    return [message for message, entry in context if entry is None or entry.complete]


def kept_apart(messages: Iterable[Message]) -> bool:
    """Whether a part of these stands for bytes that the journal keeps apart (AC-116)."""
    for message in messages:  # a loop, since it looks at a whole history
        for part in message.parts:
            if isinstance(part, MEDIA) and part.artifact is not None and part.data is None:
                return True
    return False


def _later(entry: HistoryMessage | None, compaction: Compaction) -> bool:
    """Whether a result came after the compaction, though its call stands before it."""
    return entry is not None and entry.run_id == compaction.run_id and entry.seq > compaction.seq


__all__ = [
    "Compaction",
    "Partial",
    "Transcript",
    "cut_after",
    "for_runtime",
    "last_exchange",
    "wants_answer",
    "with_results",
]
