"""An Anthropic Messages stream to provider events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import msgspec
from msgspec import Struct

from ...core.assembly import judge_arguments
from ...messages import JSON, StopReason, Usage
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
from ..frames import figure, mapping, merged, plain, raw_text, word


class _Delta(Struct, gc=False):
    type: Any = None
    text: Any = None
    thinking: Any = None
    signature: Any = None
    partial_json: Any = None
    stop_reason: Any = None


class _Message(Struct, gc=False):
    id: Any = None
    model: Any = None
    usage: Any = None
    stop_reason: Any = None


class _Event(Struct, gc=False):
    type: Any = None
    index: Any = None
    message: _Message | None = None
    content_block: Any = None
    delta: _Delta | None = None
    usage: Any = None
    error: Any = None
    code: Any = None  # of an error that stands flat in the event


_REASONS: Final[dict[str, StopReason]] = {
    "end_turn": "complete",
    "stop_sequence": "complete",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "length": "length",  # of compatible servers
    "model_context_window_exceeded": "length",
    "pause_turn": "pause_turn",
    "refusal": "refusal",
    "content_filter": "content_filter",
}


class _Block:
    """A content block while it is streamed."""

    __slots__ = ("call_id", "kind", "name", "number", "raw", "signature", "spoke", "texts", "wire_id")

    def __init__(self, number: int, raw: dict[str, JSON]) -> None:
        self.number = number
        self.raw = raw  # as it began
        self.kind = word(raw.get("type"))
        self.texts: list[str] = []  # thinking, or the input of a block that is not ours to read
        self.signature: list[str] = []
        self.name = word(raw.get("name"))
        self.wire_id = word(raw.get("id")) or None
        self.call_id = ""
        self.spoke = False  # a piece of it came

    def finished(self) -> dict[str, JSON] | None:
        """The block as it must go back, or None: a thought without a signature does not (PV-7)."""
        if self.kind == "thinking":
            signature = "".join(self.signature)
            if not signature:
                return None
            return {**self.raw, "thinking": "".join(self.texts), "signature": signature}
        if self.kind == "redacted_thinking":
            return self.raw if self.raw.get("data") else None
        if self.texts:
            value, why = judge_arguments("".join(self.texts))
            return {**self.raw, "input": value} if why is None else None
        return self.raw


class AnthropicDecoder(Decoder[_Event]):
    """One Messages response body."""

    message_type: ClassVar = _Event
    json_decoder: ClassVar = msgspec.json.Decoder(_Event)

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, _Block] = {}  # the open ones, by wire index
        self._numbers = 0
        self._ids: set[str] = set()
        self._native: dict[str, JSON] = {}
        self._reason: str | None = None
        self._called = False  # a call with a name came
        self._stopped = False  # by the dialect's own sign

    # Messages

    def _on_message(self, message: _Event, event: str, out: list[ProviderEvent]) -> None:
        kind = message.type
        take = _TAKE.get(kind) if kind.__class__ is str else None
        if take is None:
            take = _TAKE.get(event) if kind is None else None
        if take is not None:
            take(self, message, out)
        elif not message.error:
            out.append(Notice("unknown_event", word(kind) or event))
        if message.error and not self.ended:  # last: what stands beside it was said before it
            self._error(message, out)

    def _start(self, event: _Event, out: list[ProviderEvent]) -> None:
        message = event.message or _Message()
        out.append(ResponseStarted(word(message.id) or None, word(message.model) or None))
        self._figures(message.usage, out)

    def _begin(self, event: _Event, out: list[ProviderEvent]) -> None:
        index, raw = _index(event), mapping(event.content_block)
        if index in self._blocks:
            self._finish_block(self._blocks.pop(index), out)
        block = self._open(index, raw)
        if block.kind == "tool_use":
            self._announce(block, out)
        elif block.kind == "text":
            self._text(block, raw.get("text"), out)
        elif block.kind == "thinking":
            self._thought(block, raw.get("thinking"), out)
            if isinstance(signature := raw.get("signature"), str):
                block.signature.append(signature)
        elif block.kind != "redacted_thinking":
            out.append(Notice("unread_block", block.kind))

    def _open(self, index: int, raw: dict[str, JSON]) -> _Block:
        block = self._blocks[index] = _Block(self._numbers, raw)
        self._numbers += 1
        return block

    def _piece(self, event: _Event, out: list[ProviderEvent]) -> None:
        delta = event.delta
        if delta is None:
            return
        kind = delta.type
        index = event.index if event.index.__class__ is int else 0
        block = self._blocks.get(index)
        if block is None:  # a server that leaves the beginnings out
            names = {
                "thinking_delta": "thinking",
                "signature_delta": "thinking",
                "input_json_delta": "tool_use",
            }
            block = self._open(index, {"type": names.get(word(kind), "text")})
        if kind == "text_delta":
            self._text(block, delta.text, out)
        elif kind == "input_json_delta":
            self._input(block, delta.partial_json, out)
        elif kind == "thinking_delta":
            self._thought(block, delta.thinking, out)
        elif kind == "signature_delta":
            if isinstance(delta.signature, str):
                block.signature.append(delta.signature)
        else:
            out.append(Notice("unknown_delta", word(kind)))

    def _end_of_block(self, event: _Event, out: list[ProviderEvent]) -> None:
        block = self._blocks.pop(_index(event), None)
        if block is not None:
            self._finish_block(block, out)

    def _delta(self, event: _Event, out: list[ProviderEvent]) -> None:
        self._figures(event.usage, out)
        if event.delta is not None and event.delta.stop_reason:
            self._reason = word(event.delta.stop_reason)
            self.lingering = True

    def _stop(self, event: _Event, out: list[ProviderEvent]) -> None:
        self._stopped = True
        self._close_blocks(out)
        if self._reason is None:
            out.append(Notice("no_stop_reason"))
            self._end(self._normal_end("complete", None), out)
        elif (end := self._verdict(out)) is not None:
            self._end(end, out)

    def _error(self, event: _Event, out: list[ProviderEvent]) -> None:
        self._fail(
            classify(event.error or {"code": event.code, "message": "the stream reports an error"}), out
        )

    def _ping(self, event: _Event, out: list[ProviderEvent]) -> None:
        """A sign of life; nothing that a reader would wait for."""

    # Blocks

    def _text(self, block: _Block, text: JSON, out: list[ProviderEvent]) -> None:
        if text and isinstance(text, str):
            out.append(TextDelta(block.number, text))

    def _thought(self, block: _Block, text: JSON, out: list[ProviderEvent]) -> None:
        if isinstance(text, str):
            block.texts.append(text)
            if text:
                out.append(ReasoningDelta(block.number, text))

    def _input(self, block: _Block, piece: JSON, out: list[ProviderEvent]) -> None:
        if not isinstance(piece, str | dict):  # what is no object is kept as it is, to be refused
            piece = raw_text(piece)
        if not piece and isinstance(piece, str):
            return
        if block.kind != "tool_use":
            block.texts.append(raw_text(piece))
        elif block.name:
            block.spoke = True
            out.append(ToolCallDelta(block.number, block.call_id, "", piece, block.wire_id))

    def _announce(self, block: _Block, out: list[ProviderEvent]) -> None:
        if not block.name:
            return
        self._called = True
        wanted = block.wire_id or f"call_{block.number + 1}"
        block.call_id, count = wanted, 1
        while block.call_id in self._ids:
            count += 1
            block.call_id = f"{wanted}_{count}"
        self._ids.add(block.call_id)
        out.append(ToolCallDelta(block.number, block.call_id, block.name, "", block.wire_id))

    def _finish_block(self, block: _Block, out: list[ProviderEvent]) -> None:
        """Ends a block that is whole."""
        if block.kind == "text":
            out.append(BlockEnded(block.number))
        elif block.kind == "tool_use":
            given = block.raw.get("input")
            if not block.name:
                out.append(Notice("call_without_name", word(block.wire_id)))
                return
            if not block.spoke and given:  # it came whole at the beginning
                args = given if isinstance(given, str | dict) else raw_text(given)
                out.append(ToolCallDelta(block.number, block.call_id, "", args, block.wire_id))
            out.append(BlockEnded(block.number))
        else:
            redacted = block.kind == "redacted_thinking"
            out.append(BlockEnded(block.number, raw=plain(block.finished()), redacted=redacted))

    def _close_blocks(self, out: list[ProviderEvent]) -> None:
        """Ends what is open. Blocks that were cut stay unfinished: they do not go back as they are."""
        if self._reason is not None or self._stopped:
            for block in self._blocks.values():
                self._finish_block(block, out)
        self._blocks.clear()

    # Figures and ends

    def _figures(self, usage: JSON, out: list[ProviderEvent]) -> None:
        """Running totals; a figure that is not told again stays."""
        if isinstance(usage, dict):
            self._native = merged(self._native, usage)
            out.append(UsageUpdate(usage_of(self._native)))

    def _verdict(self, out: list[ProviderEvent]) -> StreamEnd | None:
        raw = self._reason
        if raw is None:
            return None
        reason = _REASONS.get(raw.lower())
        if reason is None:
            out.append(Notice("unknown_reason", raw))
            reason = "complete"
        return self._normal_end(reason, raw)

    def _normal_end(self, reason: StopReason, raw: str | None) -> StreamEnd:
        if reason not in ("complete", "tool_calls"):
            return StreamEnd(reason, raw)
        if self._called:
            return StreamEnd("tool_calls", raw)
        if reason == "tool_calls":
            return StreamEnd(
                "error", raw, ErrorInfo("protocol", "tool use was announced, but there is no call")
            )
        return StreamEnd("complete", raw)


_TAKE: Final[dict[str, Callable[[AnthropicDecoder, _Event, list[ProviderEvent]], None]]] = {
    "message_start": AnthropicDecoder._start,  # noqa: SLF001 - the class's own table
    "content_block_start": AnthropicDecoder._begin,  # noqa: SLF001
    "content_block_delta": AnthropicDecoder._piece,  # noqa: SLF001
    "content_block_stop": AnthropicDecoder._end_of_block,  # noqa: SLF001
    "message_delta": AnthropicDecoder._delta,  # noqa: SLF001
    "message_stop": AnthropicDecoder._stop,  # noqa: SLF001
    "ping": AnthropicDecoder._ping,  # noqa: SLF001
    "error": AnthropicDecoder._error,  # noqa: SLF001
}


def usage_of(native: dict[str, JSON]) -> Usage:
    """Figures as Anthropic spells them: `input_tokens` leaves the cached ones out, ours does not (PV-8)."""
    read = figure(native.get("cache_read_input_tokens"))
    write = figure(native.get("cache_creation_input_tokens"))
    fresh = figure(native.get("input_tokens"))
    details = mapping(native.get("output_tokens_details"))
    return Usage(
        input=None if fresh is None else fresh + (read or 0) + (write or 0),
        cache_read=read,
        cache_write=write,
        output=figure(native.get("output_tokens")),
        reasoning=figure(details.get("thinking_tokens", details.get("reasoning_tokens"))),
        native=native,
    )


def _index(event: _Event) -> int:
    return event.index if type(event.index) is int else 0


__all__ = ["AnthropicDecoder", "usage_of"]
