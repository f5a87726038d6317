"""A run's messages, put together from its facts: what was said, in the order in which a reader should meet it.

Results of tools stand behind the message that asked for them, in call order, whatever the order in which they came
(EF-2). A message known only from saved fragments is there too, not complete, with how it ended (RC-19, RC-68). The
path for a runtime (RC-82) is another projection of the same facts: complete messages only, compactions applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..events import (
    CallFinished,
    CallProposed,
    HistoryCompacted,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    PartialSaved,
    RunEnded,
)
from ..messages import Message, Part, Reasoning, Text, ToolCall
from ..records import HistoryMessage, Record, RunSpec
from .calls import result_message


class Partial:
    """A message of which only fragments are known: text by part, in order of appearance."""

    def __init__(self) -> None:
        self.parts: dict[tuple[str, int], list[str]] = {}
        self.calls: dict[int, tuple[str, str]] = {}

    def add(self, fact: PartialSaved) -> None:
        """Takes a fragment; a part's fragments come in order and without gaps."""
        self.parts.setdefault((fact.part, fact.index), []).append(fact.text)
        if fact.call_id is not None:
            self.calls[fact.index] = (fact.call_id, fact.tool)

    def message(self, message_id: str) -> Message:
        """What is known of it. Its calls were never proposed: they carry `args_error`."""
        parts: list[Part] = []
        for (kind, index), pieces in sorted(self.parts.items(), key=lambda item: item[0][1]):
            text = "".join(pieces)
            if kind == "text":
                parts.append(Text(text))
            elif kind == "reasoning":
                parts.append(Reasoning(text))
            else:
                call_id, tool = self.calls.get(index, (f"{message_id}:{index}", ""))
                parts.append(ToolCall(call_id, tool, raw_arguments=text, args_error="interrupted"))
        return Message(message_id, "assistant", tuple(parts))


_ENDS = {"cancelled": "cancelled", "failed": "error", "interrupted": "unknown", "discarded": "discarded"}


class Transcript:
    """The messages of one run, folded record by record."""

    def __init__(self, spec: RunSpec) -> None:
        self._run_id = spec.run_id
        self._keys: list[str] = []
        self._known: dict[str, HistoryMessage] = {}
        self._partials: dict[str, Partial] = {}
        self._attempt: str | None = None
        self.compaction: HistoryCompacted | None = None
        self.compacted_at = 0
        for message in spec.input:
            self._put(HistoryMessage(message, spec.run_id, 1))

    def _put(self, entry: HistoryMessage) -> None:
        key = entry.message.id
        if key not in self._known and key not in self._keys[-64:] and key not in self._keys:
            self._keys.append(key)
        self._known[key] = entry

    def add(self, record: Record) -> None:
        """Folds one record in; facts that say nothing of messages pass."""
        fact = record.fact
        match fact:
            case MessageAdded():
                self._partials.pop(fact.message.id, None)
                self._put(HistoryMessage(fact.message, self._run_id, record.seq))
                self._keys += [f"result:{call.call_id}" for call in fact.message.tool_calls]
            case CallProposed():
                self._keys.append(f"result:{fact.call_id}")
            case CallFinished():
                message = result_message(fact)
                self._put(HistoryMessage(message, self._run_id, record.seq, call_outcome=fact.outcome))
            case PartialSaved():
                self._fragment(fact, record.seq)
            case ModelRequested():
                self._attempt = fact.message_id
            case ModelAttemptEnded():
                self._close_partial(_ENDS.get(fact.end, ""))
            case RunEnded():
                self._close_partial(str(fact.outcome.__struct_config__.tag))
            case HistoryCompacted():
                self.compaction, self.compacted_at = fact, record.seq
            case _:
                pass

    def _fragment(self, fact: PartialSaved, seq: int) -> None:
        partial = self._partials.get(fact.message_id)
        if partial is None:
            partial = self._partials[fact.message_id] = Partial()
            self._put(
                HistoryMessage(Message(fact.message_id, "assistant"), self._run_id, seq, complete=False)
            )
        partial.add(fact)

    def _close_partial(self, end: str) -> None:
        message_id, self._attempt = self._attempt, None
        partial = self._partials.pop(message_id or "", None)
        if message_id is None or partial is None:
            return
        if end == "discarded":  # asked again: what it had is no part of the conversation
            self._keys.remove(message_id)
            del self._known[message_id]
            return
        seq = self._known[message_id].seq
        self._known[message_id] = HistoryMessage(
            partial.message(message_id), self._run_id, seq, complete=False, end=end
        )

    def messages(self) -> list[HistoryMessage]:
        """All of them, in reading order; a partial that nobody closed has an empty `end`."""
        out = []
        for key in self._keys:
            if (entry := self._known.get(key)) is None:
                continue  # a call that has no result yet
            if (partial := self._partials.get(key)) is not None:
                entry = HistoryMessage(partial.message(key), self._run_id, entry.seq, complete=False)
            out.append(entry)
        return out


def cut_after(path: Sequence[HistoryMessage], keep_through: str | None) -> Sequence[HistoryMessage]:
    """The path up to and including that message, and the results of its calls are not included unless named.

    None keeps everything.

    Raises:
        KeyError: no such message on the path.
    """
    if keep_through is None:
        return path
    for index, entry in enumerate(path):
        if entry.message.id == keep_through:
            return path[: index + 1]
    raise KeyError(keep_through)


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


def for_runtime(path: Sequence[HistoryMessage], compactions: Sequence[HistoryCompacted]) -> list[Message]:
    """The path as a runtime is given it: complete messages, the last compaction on the path applied (RC-82)."""
    complete = [entry.message for entry in path if entry.complete]
    if not compactions:
        return complete
    last = compactions[-1]
    kept = set(last.kept)
    known = {message.id: index for index, message in enumerate(complete)}
    border = max((known[message_id] for message_id in kept if message_id in known), default=-1)
    old = [message for message in complete[: border + 1] if message.id in kept]
    return [*last.messages, *old, *complete[border + 1 :]]


__all__ = ["Partial", "Transcript", "cut_after", "for_runtime", "last_exchange", "wants_answer"]
