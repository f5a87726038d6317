"""An OpenAI Responses stream to provider events.

A call *is* its `call_id`; an item's id, or its place in the output, only routes pieces. The final response's items
are authoritative: what they hold beyond what was streamed is told, nothing is told twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from ...messages import JSON, Usage
from ...responses import (
    BlockEnded,
    ErrorInfo,
    Notice,
    ProviderEvent,
    ReasoningDelta,
    ResponseStarted,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
    UsageUpdate,
)
from ..decoder import Decoder
from ..errors import classify
from ..frames import figure, mapping, objects, plain, raw_text, word


class _Event(Struct, gc=False):
    type: Any = None
    item_id: Any = None
    output_index: Any = None
    content_index: Any = None
    summary_index: Any = None
    delta: Any = None
    text: Any = None
    refusal: Any = None
    arguments: Any = None
    item: Any = None
    response: Any = None
    error: Any = None
    code: Any = None
    message: Any = None


_Kind: TypeAlias = Literal["message", "function_call", "reasoning", "other"]

_LIMITS: Final = ("max_output_tokens", "max_tokens", "length", "model_context_window_exceeded")


class _Item:
    """An item of the output while it is streamed."""

    __slots__ = (
        "announced",
        "call_id",
        "ended",
        "item_id",
        "kind",
        "name",
        "number",
        "place",
        "said",
        "summary",
        "wire_call_id",
    )

    def __init__(self, number: int, kind: _Kind, place: int | None) -> None:
        self.number = number
        self.kind: _Kind = kind
        self.place = place  # in the output
        self.item_id = ""
        self.name = ""
        self.wire_call_id = ""
        self.call_id = ""  # unique in the response
        self.said: list[str] = []  # text, summary or arguments so far
        self.summary = 0  # the summary part that is being streamed
        self.announced = False
        self.ended = False

    @property
    def text(self) -> str:
        """All that was said."""
        return "".join(self.said)


class OpenAIResponsesDecoder(Decoder[_Event]):
    """One Responses body."""

    message_type: ClassVar = _Event
    json_decoder: ClassVar = msgspec.json.Decoder(_Event)

    def __init__(self) -> None:
        super().__init__()
        self._started = False
        self._items: list[_Item] = []
        self._by_id: dict[str, _Item] = {}
        self._by_place: dict[int, _Item] = {}
        self._used: set[str] = set()
        self._refused = False

    # Messages

    def _on_message(self, message: _Event, event: str, out: list[ProviderEvent]) -> None:
        kind = message.type if message.type.__class__ is str else event
        take = _TAKE.get(kind)
        if take is not None:
            take(self, message, out)
        elif not message.error and kind not in _QUIET:
            out.append(Notice("unknown_event", kind))
        if message.error and not self.ended:  # last: what stands beside it was said before it
            self._fail(classify(message.error), out)

    def _on_state(self, event: _Event, out: list[ProviderEvent]) -> None:
        response = mapping(event.response)
        if not self._started and response:
            self._started = True
            out.append(ResponseStarted(word(response.get("id")) or None, word(response.get("model")) or None))
        self._figures(response, out)

    def _on_added(self, event: _Event, out: list[ProviderEvent]) -> None:
        item = mapping(event.item)
        entry = self._item_for(item, _place(event), out, begins=True)
        if entry.kind == "function_call":
            self._know_call(entry, item, out)

    def _on_text(self, event: _Event, out: list[ProviderEvent]) -> None:
        if event.delta and isinstance(event.delta, str):
            self._speak(self._route(event, "message"), event.delta, out)

    def _on_text_done(self, event: _Event, out: list[ProviderEvent]) -> None:
        """The whole text of a part; only of use where no piece of it came."""
        entry = self._route(event, "message")
        if not entry.said and isinstance(event.text, str):
            self._speak(entry, event.text, out)

    def _on_refusal(self, event: _Event, out: list[ProviderEvent]) -> None:
        self._refused = True
        if event.delta and isinstance(event.delta, str):
            self._speak(self._route(event, "message"), event.delta, out)

    def _on_refusal_done(self, event: _Event, out: list[ProviderEvent]) -> None:
        self._refused = True
        entry = self._route(event, "message")
        if not entry.said and isinstance(event.refusal, str):
            self._speak(entry, event.refusal, out)

    def _on_thought(self, event: _Event, out: list[ProviderEvent]) -> None:
        if not event.delta or not isinstance(event.delta, str):
            return
        entry = self._route(event, "reasoning")
        part = event.summary_index if type(event.summary_index) is int else 0
        if part != entry.summary and entry.said:
            self._speak(entry, "\n\n", out)
        entry.summary = part
        self._speak(entry, event.delta, out)

    def _on_arguments(self, event: _Event, out: list[ProviderEvent]) -> None:
        if event.delta:
            self._argue(self._route(event, "function_call"), raw_text(event.delta), out)

    def _on_arguments_done(self, event: _Event, out: list[ProviderEvent]) -> None:
        whole = raw_text(event.arguments)
        if whole:
            entry = self._route(event, "function_call")
            if whole.startswith(entry.text):
                self._argue(entry, whole[len(entry.text) :], out)

    def _on_item_done(self, event: _Event, out: list[ProviderEvent]) -> None:
        item = mapping(event.item)
        self._settle(self._item_for(item, _place(event), out), item, out)

    def _on_completed(self, event: _Event, out: list[ProviderEvent]) -> None:
        response = mapping(event.response)
        status = response.get("status")
        self._on_state(event, out)
        self._read_output(response.get("output"), out)
        if status == "failed" or response.get("error"):
            self._fail(classify(response.get("error") or response), out)
            return
        self._close_blocks(out)
        if status == "incomplete":
            self._end(_incomplete(response, out), out)
        else:
            self._end(self._normal_end(), out)

    def _on_incomplete(self, event: _Event, out: list[ProviderEvent]) -> None:
        response = mapping(event.response)
        self._on_state(event, out)
        self._read_output(response.get("output"), out)
        self._close_blocks(out)
        self._end(_incomplete(response, out), out)

    def _on_failed(self, event: _Event, out: list[ProviderEvent]) -> None:
        response = mapping(event.response)
        self._on_state(event, out)
        self._fail(classify(response.get("error") or event.error or "the response failed"), out)

    def _on_error(self, event: _Event, out: list[ProviderEvent]) -> None:
        flat = {"code": event.code, "message": event.message}
        self._fail(classify(event.error or {name: value for name, value in flat.items() if value}), out)

    # Items

    def _item_for(
        self, item: dict[str, JSON], place: int | None, out: list[ProviderEvent], *, begins: bool = False
    ) -> _Item:
        """The entry of an item: by its call id, its own id, its place; else a new one. `begins`: it was just added."""
        kind = _kind_of(item)
        call_id, item_id = word(item.get("call_id")), word(item.get("id"))
        found = (
            self._by_id.get(item_id) if item_id else None,
            self._by_place.get(place) if place is not None else None,
        )
        candidates = [one for one in found if one is not None and one.kind == kind]
        entry = next(iter(candidates), None)
        if kind == "function_call" and call_id:
            entry = self._call_for(call_id, candidates, place if begins else None)
        if entry is None:
            entry = self._open(kind, place)
            if kind == "reasoning":  # keeps its place before what follows it
                out.append(ReasoningDelta(entry.number, ""))
            elif kind == "other":
                out.append(Notice("unread_item", word(item.get("type"))))
        if item_id:
            entry.item_id = entry.item_id or item_id
            self._by_id[item_id] = entry
        if place is not None:
            self._by_place[place] = entry
        return entry

    def _call_for(self, call_id: str, candidates: list[_Item], begins: int | None) -> _Item | None:
        """A call is its call id; but one that begins at another place under a used id, or here under another, is another.

        `begins` is the place of an item that was just added.
        """
        same = [one for one in self._items if one.kind == "function_call" and one.wire_call_id == call_id]
        fitting = [one for one in candidates if one.wire_call_id in ("", call_id)]
        if len({one.item_id for one in fitting}) == 1:
            # The id is no help: the place, which comes last, decides.
            fitting.reverse()
        near = next(iter(fitting), None)
        if begins is not None:
            return next(
                (one for one in (near, *same) if one is not None and one.place in (None, begins)), None
            )
        return (
            near or next((one for one in same if not one.ended), None) or next(iter(same + candidates), None)
        )

    def _route(self, event: _Event, kind: _Kind) -> _Item:
        """The entry that a piece belongs to."""
        item_id, place = event.item_id, event.output_index
        entry = self._by_id.get(item_id) if item_id.__class__ is str else None
        if entry is None and place.__class__ is int:
            entry = self._by_place.get(place)
        if entry is None or entry.kind != kind:
            entry = self._open(kind, _place(event))
            if item_id and isinstance(item_id, str):
                self._by_id[item_id] = entry
            if entry.place is not None:
                self._by_place[entry.place] = entry
        return entry

    def _open(self, kind: _Kind, place: int | None) -> _Item:
        entry = _Item(len(self._items), kind, place)
        self._items.append(entry)
        return entry

    def _know_call(self, entry: _Item, item: dict[str, JSON], out: list[ProviderEvent]) -> None:
        """Takes a call's name and id; tells it, with what came of its arguments before, once the name is known."""
        entry.name = entry.name or word(item.get("name"))
        entry.wire_call_id = entry.wire_call_id or word(item.get("call_id"))
        if entry.announced or not entry.name:
            return
        entry.announced = True
        wanted = entry.wire_call_id or f"call_{entry.number + 1}"
        entry.call_id, count = wanted, 1
        while entry.call_id in self._used:
            count += 1
            entry.call_id = f"{wanted}_{count}"
        self._used.add(entry.call_id)
        out.append(
            ToolCallDelta(entry.number, entry.call_id, entry.name, entry.text, entry.wire_call_id or None)
        )

    def _argue(self, entry: _Item, piece: str, out: list[ProviderEvent]) -> None:
        if not piece:
            return
        entry.said.append(piece)
        if entry.announced:
            out.append(ToolCallDelta(entry.number, entry.call_id, "", piece, entry.wire_call_id or None))

    def _speak(self, entry: _Item, text: str, out: list[ProviderEvent]) -> None:
        if text:
            entry.said.append(text)
            out.append((TextDelta if entry.kind == "message" else ReasoningDelta)(entry.number, text))

    def _settle(self, entry: _Item, item: dict[str, JSON], out: list[ProviderEvent]) -> None:
        """Takes an item as it is in the end: tells what is missing and ends its block."""
        if entry.ended:
            return
        if entry.kind == "function_call":
            self._settle_call(entry, item, out)
        elif entry.kind == "message":
            parts = objects(item.get("content"))
            self._refused = self._refused or any(part.get("refusal") for part in parts)
            whole = "".join([_spoken(part) for part in parts])
            if whole.startswith(entry.text):
                self._speak(entry, whole[len(entry.text) :], out)
            kept = {name: value for name, value in item.items() if name not in ("content", "type", "role")}
            out.append(BlockEnded(entry.number, {"item": plain(kept)} if kept else None))
        else:
            if entry.kind == "reasoning" and not entry.said:
                self._speak(entry, _summary(item), out)
            out.append(BlockEnded(entry.number, raw=plain(item)))
        entry.ended = True

    def _settle_call(self, entry: _Item, item: dict[str, JSON], out: list[ProviderEvent]) -> None:
        self._know_call(entry, item, out)
        final = item.get("arguments")
        differs: str | None = None
        if final is not None and (final := raw_text(final)) != entry.text:
            if final.startswith(entry.text):
                self._argue(entry, final[len(entry.text) :], out)
            elif final:
                differs = final
        if not entry.name:
            out.append(Notice("call_without_name", entry.wire_call_id))
            return
        kept = {k: v for k, v in item.items() if k not in ("type", "arguments", "call_id", "name")}
        out.append(BlockEnded(entry.number, {"item": plain(kept)} if kept else None, differs))

    def _read_output(self, output: JSON, out: list[ProviderEvent]) -> None:
        """The final items. One whose ids all differ from the streamed ones is matched by its place."""
        for place, item in enumerate(output if isinstance(output, list) else []):
            if isinstance(item, dict):
                self._settle(self._item_for(item, place, out), item, out)

    def _close_blocks(self, out: list[ProviderEvent]) -> None:
        """What was streamed and never ended stays unfinished; a call that never got its name is noted."""
        for entry in self._items:
            if entry.kind == "function_call" and not entry.name and not entry.ended:
                out.append(Notice("call_without_name", entry.text[:500]))
                entry.ended = True

    # Figures and ends

    def _figures(self, response: dict[str, JSON], out: list[ProviderEvent]) -> None:
        usage = response.get("usage")
        if isinstance(usage, dict):
            out.append(UsageUpdate(usage_of(usage)))

    def _verdict(self, out: list[ProviderEvent]) -> StreamEnd | None:
        """Only its own last event ends a response [084]."""
        return None

    def _normal_end(self) -> StreamEnd:
        if self._refused:
            return StreamEnd("refusal", "completed")
        if any(entry.announced for entry in self._items):
            return StreamEnd("tool_calls", "completed")
        if any(entry.kind == "function_call" for entry in self._items):
            return StreamEnd("error", "completed", ErrorInfo("protocol", "a tool call without a name"))
        return StreamEnd("complete", "completed")


_TAKE: Final[dict[str, Callable[[OpenAIResponsesDecoder, _Event, list[ProviderEvent]], None]]] = {
    "response.created": OpenAIResponsesDecoder._on_state,  # noqa: SLF001 - the class's own table
    "response.in_progress": OpenAIResponsesDecoder._on_state,  # noqa: SLF001
    "response.queued": OpenAIResponsesDecoder._on_state,  # noqa: SLF001
    "response.output_item.added": OpenAIResponsesDecoder._on_added,  # noqa: SLF001
    "response.output_text.delta": OpenAIResponsesDecoder._on_text,  # noqa: SLF001
    "response.output_text.done": OpenAIResponsesDecoder._on_text_done,  # noqa: SLF001
    "response.refusal.delta": OpenAIResponsesDecoder._on_refusal,  # noqa: SLF001
    "response.refusal.done": OpenAIResponsesDecoder._on_refusal_done,  # noqa: SLF001
    "response.reasoning_summary_text.delta": OpenAIResponsesDecoder._on_thought,  # noqa: SLF001
    "response.reasoning_text.delta": OpenAIResponsesDecoder._on_thought,  # noqa: SLF001
    "response.function_call_arguments.delta": OpenAIResponsesDecoder._on_arguments,  # noqa: SLF001
    "response.function_call_arguments.done": OpenAIResponsesDecoder._on_arguments_done,  # noqa: SLF001
    "response.output_item.done": OpenAIResponsesDecoder._on_item_done,  # noqa: SLF001
    "response.completed": OpenAIResponsesDecoder._on_completed,  # noqa: SLF001
    "response.done": OpenAIResponsesDecoder._on_completed,  # noqa: SLF001
    "response.incomplete": OpenAIResponsesDecoder._on_incomplete,  # noqa: SLF001
    "response.failed": OpenAIResponsesDecoder._on_failed,  # noqa: SLF001
    "response.cancelled": OpenAIResponsesDecoder._on_failed,  # noqa: SLF001
    "error": OpenAIResponsesDecoder._on_error,  # noqa: SLF001
    "response.error": OpenAIResponsesDecoder._on_error,  # noqa: SLF001
}
_QUIET: Final = frozenset(
    {
        "response.content_part.added",
        "response.content_part.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.done",
        "response.reasoning_text.done",
        "response.output_text.annotation.added",
        "keepalive",
        "ping",
    }
)


def usage_of(native: dict[str, JSON]) -> Usage:
    """Figures as the Responses API spells them."""
    asked, said = mapping(native.get("input_tokens_details")), mapping(native.get("output_tokens_details"))
    return Usage(
        input=figure(native.get("input_tokens")),
        cache_read=figure(asked.get("cached_tokens")),
        output=figure(native.get("output_tokens")),
        reasoning=figure(said.get("reasoning_tokens")),
        total=figure(native.get("total_tokens")),
        native=native,
    )


def _incomplete(response: dict[str, JSON], out: list[ProviderEvent]) -> StreamEnd:
    reason = word(mapping(response.get("incomplete_details")).get("reason"))
    if reason == "content_filter":
        return StreamEnd("content_filter", reason)
    if reason not in _LIMITS:
        out.append(Notice("unknown_reason", reason))
    return StreamEnd("length", reason or "incomplete")


def _kind_of(item: dict[str, JSON]) -> _Kind:
    kind = item.get("type")
    return kind if kind in ("message", "function_call", "reasoning") else "other"


def _place(event: _Event) -> int | None:
    return event.output_index if type(event.output_index) is int else None


def _spoken(part: dict[str, JSON]) -> str:
    return word(part.get("text")) or word(part.get("refusal"))


def _summary(item: dict[str, JSON]) -> str:
    parts = [*objects(item.get("summary")), *objects(item.get("content"))]
    return "\n\n".join([text for part in parts if (text := word(part.get("text")))])


__all__ = ["OpenAIResponsesDecoder", "usage_of"]
