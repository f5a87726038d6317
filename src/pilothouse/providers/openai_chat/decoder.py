"""A Chat Completions stream to provider events."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec
from msgspec import Struct

from ...messages import JSON, StopReason, Usage
from ...responses import (
    BlockEnded,
    ErrorInfo,
    ErrorKind,
    Notice,
    ProviderEvent,
    ReasoningDelta,
    ResponseStarted,
    StreamEnd,
    TextDelta,
    UsageUpdate,
)
from ..decoder import Decoder
from ..errors import classify
from ..frames import figure, mapping, money, number, raw_text, word
from .calls import CallRouter, add_piece, announce
from .details import ReasoningDetails
from .profile import CompatProfile
from .think import ThinkTags


class _Function(Struct, gc=False):
    name: Any = None
    arguments: Any = None


class _Call(Struct, gc=False):
    index: Any = None
    id: Any = None
    function: _Function | None = None


class _Delta(Struct, gc=False):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: Any = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None


class _Choice(Struct, gc=False):
    index: Any = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: Any = None
    error: Any = None
    usage: Any = None


class _Chunk(Struct, gc=False):
    id: Any = None
    model: Any = None
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    # of an error that stands flat in the chunk
    object: Any = None
    type: Any = None
    code: Any = None
    status: Any = None
    message: Any = None
    detail: Any = None
    x_groq: Any = None


_REASONS: Final[dict[str, StopReason]] = {
    "stop": "complete",
    "end_turn": "complete",
    "stop_sequence": "complete",
    "eos": "complete",
    "eos_token": "complete",
    "tool_calls": "tool_calls",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "content_filter",
    "content_filtered": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
    "blocked": "content_filter",
    "recitation": "content_filter",
    "refusal": "refusal",
}
_ERRORS: Final[dict[str, ErrorKind]] = {
    "error": "server_error",
    "failed": "server_error",
    "abort": "server_error",
    "aborted": "server_error",
    "network_error": "server_error",
    "timeout": "server_error",
    "insufficient_system_resource": "overloaded",
    "malformed_function_call": "malformed_tool_call",
}


class OpenAIChatDecoder(Decoder[_Chunk]):
    """One Chat Completions response body; `profile` says which server's habits to expect."""

    message_type: ClassVar = _Chunk
    json_decoder: ClassVar = msgspec.json.Decoder(_Chunk)

    def __init__(self, profile: CompatProfile | None = None) -> None:
        super().__init__()
        profile = profile or CompatProfile()
        self._reasoning_fields = profile.reasoning_fields
        self._details = ReasoningDetails() if profile.reasoning_details else None
        self._think = (
            ThinkTags(inside=profile.think_tags == "implicit") if profile.think_tags != "off" else None
        )
        self._started = False
        self._choice: int | None = None  # the index of the choice that is read
        self._reason: str | None = None
        self._refused = False
        self._calls = CallRouter()
        self._blocks = 0  # numbers given so far
        self._open: type[TextDelta | ReasoningDelta] | None = None  # what kind of text is being streamed
        self._block = -1  # its number

    # Messages

    def _on_message(self, message: _Chunk, event: str, out: list[ProviderEvent]) -> None:
        if message.usage is not None:
            self._on_usage(message.usage, out)
        if not self._started and (message.id or message.model):
            self._started = True
            out.append(ResponseStarted(word(message.id) or None, word(message.model) or None))
        for choice in message.choices or ():  # first: what stands beside an error was said before it
            self._on_choice(choice, out)
            if self.ended:
                return
        if message.error:
            self._fail(classify(message.error), out)
        elif not message.choices:
            self._on_bare(message, out)

    def _on_bare(self, message: _Chunk, out: list[ProviderEvent]) -> None:
        """A chunk without choices: figures, or an error that stands flat in it."""
        if message.x_groq is not None:
            groq = mapping(message.x_groq)
            self._on_usage(groq.get("usage"), out)
            if groq.get("error"):
                self._fail(classify(groq["error"]), out)
                return
        said = message.message or message.detail
        if message.object == "error" or message.type == "error" or (said and message.choices is None):
            names = ("type", "code", "status", "message", "detail")
            self._fail(classify({name: value for name in names if (value := getattr(message, name))}), out)

    def _on_choice(self, choice: _Choice, out: list[ProviderEvent]) -> None:
        index = choice.index
        if index.__class__ is int and index != self._choice:
            if self._choice is not None:  # one request asks for one choice
                out.append(Notice("other_choice", str(index)))
                return
            self._choice = index
        delta = choice.delta or choice.message
        if delta is not None:
            self._on_delta(delta, out)
        if choice.usage is not None:
            self._on_usage(choice.usage, out)
        if choice.error:
            self._fail(classify(choice.error), out)
        elif choice.finish_reason:
            self._on_reason(word(choice.finish_reason))

    def _on_delta(self, delta: _Delta, out: list[ProviderEvent]) -> None:
        for field in self._reasoning_fields:
            thought = getattr(delta, field, None)
            if thought:
                self._on_reasoning(thought, out)
                break
        else:
            thought = None
        if self._details is not None and delta.reasoning_details:
            said = self._details.add(delta.reasoning_details)
            if said and not thought:
                self._on_reasoning(said, out)
        content = delta.content
        if content:
            if content.__class__ is str:
                self._on_text(content, out)
            else:
                self._on_parts(content, out)
        if delta.refusal and isinstance(delta.refusal, str):
            self._refused = True
            self._say(TextDelta, delta.refusal, out)
        if delta.tool_calls:
            self._calls.next_chunk()
            for piece in delta.tool_calls:
                self._on_call(piece, out)
        elif delta.function_call is not None:
            self._calls.next_chunk()
            self._on_call(_Call(None, None, delta.function_call), out)

    def _on_text(self, text: str, out: list[ProviderEvent]) -> None:
        if self._think is None:
            self._say(TextDelta, text, out)
            return
        for kind, piece in self._think.feed(text):
            self._say(TextDelta if kind == "text" else ReasoningDelta, piece, out)

    def _on_reasoning(self, thought: Any, out: list[ProviderEvent]) -> None:
        text = thought if isinstance(thought, str) else "".join(_texts_of(thought))
        if text:
            self._stop_thinking_of_tags(out)
            self._say(ReasoningDelta, text, out)

    def _on_parts(self, parts: Any, out: list[ProviderEvent]) -> None:
        """Content as a list of parts, as Mistral's reasoning models send it."""
        for part in parts if isinstance(parts, list) else [parts]:
            kind = mapping(part).get("type")
            if kind in ("thinking", "reasoning"):
                self._on_reasoning(part, out)
            elif text := "".join(_texts_of(part)):
                self._on_text(text, out)
            else:
                out.append(Notice("unknown_part", str(kind)))

    def _on_call(self, piece: _Call, out: list[ProviderEvent]) -> None:
        function = piece.function
        index = number(piece.index)
        wire_id = word(piece.id)
        name = word(function.name) if function is not None else ""
        args = function.arguments if function is not None else None
        if not isinstance(args, str | dict):  # what is no object is kept as it is, to be refused
            args = "" if args is None else raw_text(args)
        call = self._calls.find(index, wire_id, name, args)
        if call is None:
            self._shut(out)
            call = self._calls.open(self._blocks, index, wire_id)
            self._blocks += 1
        self._calls.touch(call, index, wire_id)
        add_piece(call, name, args, out)

    def _on_usage(self, usage: JSON, out: list[ProviderEvent]) -> None:
        if isinstance(usage, dict):
            out.append(UsageUpdate(usage_of(usage)))

    def _on_reason(self, reason: str) -> None:
        """The last reason counts, but a normal one does not replace a limit, filter or error."""
        self.lingering = True
        if self._reason is None or _REASONS.get(self._reason.lower(), "") in ("complete", "tool_calls"):
            self._reason = reason

    # Blocks

    def _say(self, kind: type[TextDelta | ReasoningDelta], text: str, out: list[ProviderEvent]) -> None:
        if self._open is not kind:
            self._shut(out)
            self._open = kind
            self._block = self._blocks
            self._blocks += 1
        out.append(kind(self._block, text))

    def _shut(self, out: list[ProviderEvent]) -> None:
        if self._open is not None:
            out.append(BlockEnded(self._block))
            self._open = None

    def _stop_thinking_of_tags(self, out: list[ProviderEvent]) -> None:
        """A server that has a reasoning field writes no tags: what looks like one is text."""
        if self._think is not None:
            think, self._think = self._think, None
            for _, piece in think.flush():
                self._say(TextDelta, piece, out)

    def _close_blocks(self, out: list[ProviderEvent]) -> None:
        if self._think is not None:
            for kind, piece in self._think.flush():
                self._say(TextDelta if kind == "text" else ReasoningDelta, piece, out)
        self._shut(out)
        for call in self._calls.calls:
            announce(call, out)
        if self._details is not None and (kept := self._details.finished()):
            out.append(BlockEnded(self._blocks, raw={"reasoning_details": kept}))
            self._blocks += 1

    # Ends

    def _on_done(self, out: list[ProviderEvent]) -> None:
        self._close_blocks(out)
        end = self._verdict(out)
        if end is None:  # servers that never give a reason say at least that they are done [018]
            out.append(Notice("no_finish_reason"))
            end = self._normal_end("complete", None)
        self._end(end, out)

    def _verdict(self, out: list[ProviderEvent]) -> StreamEnd | None:
        raw = self._reason
        if raw is None:
            return None
        name = raw.lower()
        kind = _ERRORS.get(name) or ("malformed_tool_call" if "malformed" in name else None)
        if kind is not None:
            return StreamEnd("error", raw, ErrorInfo(kind, f"the response ended with the reason {raw!r}"))
        reason = _REASONS.get(name)
        if reason is None:
            out.append(Notice("unknown_reason", raw))
            reason = "complete"
        return self._normal_end(reason, raw)

    def _normal_end(self, reason: StopReason, raw: str | None) -> StreamEnd:
        """Calls decide over the wording of a normal end; a limit, filter or refusal decides over calls (LP-4)."""
        if reason not in ("complete", "tool_calls"):
            return StreamEnd(reason, raw)
        if self._refused:
            return StreamEnd("refusal", raw)
        if any(call.name for call in self._calls.calls):
            return StreamEnd("tool_calls", raw)
        if reason == "tool_calls" or any(call.has_arguments for call in self._calls.calls):
            return StreamEnd(
                "error", raw, ErrorInfo("protocol", "tool calls were announced, but none has a name")
            )
        return StreamEnd("complete", raw)


def usage_of(native: dict[str, JSON]) -> Usage:
    """Figures as Chat Completions servers spell them."""
    prompt, completion = (
        mapping(native.get("prompt_tokens_details")),
        mapping(native.get("completion_tokens_details")),
    )

    def first(*values: JSON) -> int | None:
        return next((found for value in values if (found := figure(value)) is not None), None)

    return Usage(
        input=figure(native.get("prompt_tokens")),
        cache_read=first(
            prompt.get("cached_tokens"), native.get("prompt_cache_hit_tokens"), native.get("cached_tokens")
        ),
        cache_write=first(prompt.get("cache_write_tokens"), native.get("cache_creation_input_tokens")),
        output=figure(native.get("completion_tokens")),
        reasoning=first(completion.get("reasoning_tokens"), native.get("reasoning_tokens")),
        total=figure(native.get("total_tokens")),
        native=native,
        cost=None if (cost := native.get("cost")) is None else _cost(cost, native),
    )


def _cost(cost: JSON, native: dict[str, JSON]) -> str | None:
    """OpenRouter tells its own price, and beside it what the provider takes from the user's own key; Perplexity a sum."""
    if isinstance(cost, dict):
        return money(cost.get("total_cost"))
    told = money(cost)
    upstream = mapping(native.get("cost_details")).get("upstream_inference_cost")
    if told is None or native.get("is_byok") is not True or (more := money(upstream)) is None:
        return told
    return (Usage(cost=told) + Usage(cost=more)).cost


def _texts_of(part: Any) -> list[str]:
    """All texts of a content part, however deep."""
    if isinstance(part, str):
        return [part]
    if isinstance(part, list):
        return [text for item in part for text in _texts_of(item)]
    if not isinstance(part, dict):
        return []
    keys = ("text", "thinking", "content", "summary", "reasoning")
    return [text for key in keys for text in _texts_of(part.get(key))]


__all__ = ["OpenAIChatDecoder", "usage_of"]
