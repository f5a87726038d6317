"""What the facts and deltas of one of our runs mean to a reader: a run's records to a `Display`.

The same for a run that is live here, one that another process drives, and one that happened before. Text is told once,
whoever tells it first: every piece says where in its part it stands (RC-20).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..core.calls import result_id
from ..core.display import Content, Display, Told, ToldCall
from ..core.run import Phase, RunState, apply
from ..events import (
    SUBAGENT,
    ArgumentsTold,
    CallFinished,
    CallProposed,
    CallStarted,
    ChildTold,
    Delta,
    Extension,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    Noted,
    PartialSaved,
    ReasoningTold,
    TextTold,
)
from ..messages import Context, Message, Part, Reasoning, Structured, Text, ToolCall, Usage
from ..projection import AgentEvent, AgentUsage, CustomEvent, Delivered, UsageEntry
from ..records import HistoryMessage, Record

if TYPE_CHECKING:
    from .children import Children

_HIDDEN: Final = (Reasoning, ToolCall, Context)

INTERRUPTED: Final[Mapping[str, Delivered]] = MappingProxyType(
    {
        "cancelled": "aborted",
        "failed": "error",
        "error": "error",
        "unknown": "interrupted",
        "interrupted": "interrupted",
    }
)
"""How a message that is not whole is shown, by how its run or request ended."""


def content_of(parts: Sequence[Part]) -> Content:
    """What a reader sees of a message's parts: a text, or parts where there is more than text."""
    seen = [part for part in parts if not isinstance(part, _HIDDEN)]
    if all(isinstance(part, Text) for part in seen):
        return "".join([part.text for part in seen if isinstance(part, Text)])
    return tuple(seen)


def told_message(
    message: Message, run_id: str | None = None, *, interrupted: Delivered | None = None
) -> Told:
    """A whole message."""
    calls = tuple(
        [ToldCall(call.call_id, call.tool, _arguments(call)) for call in message.tool_calls if call.tool]
    )
    reasoning = message.reasoning
    return Told(
        message.id,
        message.role,
        content_of(message.parts),
        reasoning or None,
        calls=calls,
        tool_call_id=message.call_id,
        run_id=run_id,
        interrupted=interrupted,
    )


def told_history(path: Iterable[HistoryMessage]) -> list[Told]:
    """A path of the thread, interrupted messages included and marked."""
    out = []
    for entry in path:
        ended = None if entry.complete else INTERRUPTED.get(entry.end, "success")
        told = told_message(entry.message, entry.run_id or None, interrupted=ended)
        if entry.message.role == "tool":
            told = told._replace(
                ledger=entry.call_outcome or None, error=_error(entry.call_outcome, told.content)
            )
        out.append(told)
    return out


def _arguments(call: ToolCall) -> str:
    if call.raw_arguments:
        return call.raw_arguments
    return msgspec.json.encode(call.arguments).decode() if call.arguments else ""


def _error(outcome: str, content: Content) -> str | None:
    if outcome in ("", "succeeded"):
        return None
    text = content if isinstance(content, str) else "".join([getattr(part, "text", "") for part in content])
    return text or outcome


class Telling:
    """Folds one run into a display.

    Attributes:
        state: the fold of its facts.
        current: its attempt is the display's; a run that was stopped or left tells its results only.
        events: what no value holds, since it was taken last.
        inputs: steering that the run took in, by message id, since it was taken last.
    """

    def __init__(self, display: Display, run_id: str, children: Children | None = None) -> None:
        self.state = RunState(run_id)
        self._children = children
        self.current = True
        self.events: list[AgentEvent] = []
        self.inputs: list[str] = []
        self._display = display
        self._lengths: dict[tuple[str, str, int], int] = {}
        self._named: set[str] = set()
        self._whole: set[str] = set()  # messages of which nothing is to come: pieces of them are late
        self._request: ModelRequested | None = None
        self._unknown_results = False
        self._spent: dict[tuple[str, str], Usage] = {}

    @property
    def usage(self) -> AgentUsage | None:
        """Tokens so far, one entry a provider and model; None if nothing was told."""
        entries = tuple(
            [
                UsageEntry(
                    provider or None,
                    model or None,
                    usage.input,
                    usage.output,
                    usage.total,
                    usage.reasoning,
                    usage.cache_read,
                    usage.cache_write,
                )
                for (provider, model), usage in self._spent.items()
            ]
        )
        return AgentUsage(entries) if entries else None

    @property
    def uncertain(self) -> bool:
        """Whether a call was started and nobody knows its result."""
        started = any(call.state in ("started", "observed") for call in self.state.calls.values())
        return started or self._unknown_results

    @property
    def pausing(self) -> bool:
        """Whether the run only waits for answers."""
        return self.state.phase is Phase.WAITING and self.state.resting

    def take(self, item: Record | Delta) -> None:
        """Takes the next fact or delta."""
        if isinstance(item, Delta):
            if self.current:
                self._delta(item.body)
            return
        apply(self.state, item)
        rule = _FACTS.get(type(item.fact))
        if rule is not None:
            rule(self, item.fact)

    # A child, told by its parent's run: nobody here has all of its facts

    def hear(self, body: TextTold | ReasoningTold) -> None:
        """Takes a piece."""
        self._delta(body)

    def see(self, fact: MessageAdded | CallStarted | CallFinished) -> None:
        """Takes a fact."""
        _FACTS[type(fact)](self, fact)

    # Pieces

    def _delta(self, body: Any) -> None:
        match body:
            case TextTold(message_id, index, text, offset):
                self._piece("text", message_id, index, offset, text)
            case ReasoningTold(message_id, index, text, offset):
                self._piece("reasoning", message_id, index, offset, text)
            case ArgumentsTold(message_id, index, call_id, text, offset, tool):
                self._arguments(message_id, index, offset, text, call_id, tool)
            case Extension(name, data):
                self.events.append(CustomEvent(name, data))
            case ChildTold() if self._children is not None:  # of the run that is shown
                self._children.take(body)
            case _:
                pass

    def _fresh(self, kind: str, message_id: str, index: int, offset: int, text: str) -> str:
        """What of a piece was not told yet: nothing of one behind a gap, which its fact will close."""
        key = (kind, message_id, index)
        known = self._lengths.get(key, 0)
        if message_id in self._whole or offset > known or offset + len(text) <= known:
            return ""
        self._lengths[key] = offset + len(text)
        return text[known - offset :]

    def _piece(self, kind: str, message_id: str, index: int, offset: int, text: str) -> None:
        fresh = self._fresh(kind, message_id, index, offset, text)
        if not fresh:
            return
        self._begin(message_id)
        if kind == "text":
            self._display.thought(message_id)
            self._display.text(message_id, fresh)
        else:
            self._display.think(message_id, fresh, own=True)

    def _begin(self, message_id: str) -> None:
        if message_id not in self._named:
            self._named.add(message_id)
            self._display.open(message_id)

    def _arguments(
        self, message_id: str, index: int, offset: int, text: str, call_id: str, tool: str
    ) -> None:
        self._begin(message_id)
        if call_id not in self._named:
            if not tool:  # broken off before it had a name: nobody can be shown it
                return
            self._named.add(call_id)
            self._display.call_start(call_id, tool, message_id)
        fresh = self._fresh("arguments", message_id, index, offset, text)
        if fresh:
            self._display.call_args(call_id, fresh)

    # Facts

    def _partial(self, fact: PartialSaved) -> None:
        if not self.current:
            return
        if fact.part == "arguments":
            call_id = fact.call_id or f"{fact.message_id}:{fact.index}"
            self._arguments(fact.message_id, fact.index, fact.offset, fact.text, call_id, fact.tool)
        else:
            self._piece(fact.part, fact.message_id, fact.index, fact.offset, fact.text)

    def _message(self, fact: MessageAdded) -> None:
        message = fact.message
        if message.role == "user":
            self.inputs.append(message.id)
            self._display.release(message.id)
            if self._display.get(message.id) is None:
                self._display.add_user(message.id, content_of(message.parts), sent=False)
        elif self.current:
            self._named.add(message.id)
            self._whole.add(message.id)
            self._display.finish(told_message(message, self.state.run_id))
            if message.role != "assistant":
                self._display.complete(message.id)

    def _requested(self, fact: ModelRequested) -> None:
        self._request = fact

    def _attempt_ended(self, fact: ModelAttemptEnded) -> None:
        asked = self._request
        if fact.usage is not None and asked is not None:
            key = (asked.provider, asked.model)
            before = self._spent.get(key)
            self._spent[key] = fact.usage if before is None else before + fact.usage
        if fact.end == "discarded" and asked is not None and self.current:
            self._display.remove(asked.message_id)
            self._named.discard(asked.message_id)
            self._whole.add(asked.message_id)
            for part in [part for part in self._lengths if part[1] == asked.message_id]:
                del self._lengths[part]

    def _proposed(self, fact: CallProposed) -> None:
        if self.current:
            self._display.call_start(fact.call_id, fact.tool)
            self._display.call_args(fact.call_id, msgspec.json.encode(fact.arguments).decode())
            self._display.call_end(fact.call_id)

    def _started(self, fact: CallStarted) -> None:
        self._display.call_runs(fact.call_id, arguments=fact.arguments)

    def _finished(self, fact: CallFinished) -> None:
        if self._children is not None and self.current:
            self._children.finish(fact)
        self._unknown_results = self._unknown_results or fact.outcome == "unknown"
        content = content_of(fact.content)
        text = (
            content if isinstance(content, str) else "".join([getattr(part, "text", "") for part in content])
        )
        structured = next((part.data for part in fact.content if isinstance(part, Structured)), text)
        self._display.call_result(
            fact.call_id,
            structured,
            error=_error("" if fact.outcome == "succeeded" else fact.outcome, fact.error or content),
            ledger=fact.outcome,
            message=Told(
                result_id(fact.call_id),
                "tool",
                content,
                tool_call_id=fact.call_id,
                run_id=self.state.run_id,
            ),
        )

    def _noted(self, fact: Noted) -> None:
        if (
            fact.name == SUBAGENT
            and self._children is not None
            and self.current
            and isinstance(fact.data, dict)
        ):
            call = self._display.call(str(fact.data.get("call_id")))
            task = None if call is None else call.args.get("task")
            self._children.begin(fact, task if isinstance(task, str) else "", self._display.generation)
        if not fact.name.startswith("pilothouse/"):
            self.events.append(CustomEvent(fact.name, fact.data))


_FACTS: Final[Mapping[type, Any]] = MappingProxyType(
    {
        PartialSaved: Telling._partial,  # noqa: SLF001 - the class's own table
        MessageAdded: Telling._message,  # noqa: SLF001
        ModelRequested: Telling._requested,  # noqa: SLF001
        ModelAttemptEnded: Telling._attempt_ended,  # noqa: SLF001
        CallProposed: Telling._proposed,  # noqa: SLF001
        CallStarted: Telling._started,  # noqa: SLF001
        CallFinished: Telling._finished,  # noqa: SLF001
        Noted: Telling._noted,  # noqa: SLF001
    }
)


__all__ = ["Telling", "content_of", "told_history", "told_message"]
