"""A Gemini `streamGenerateContent` stream to provider events."""

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
    ToolCallDelta,
    UsageUpdate,
)
from ..decoder import Decoder
from ..errors import classify
from ..frames import figure, mapping, merged, raw_text, word
from .partial import GrowingCall


class _Part(Struct, gc=False):
    text: Any = None
    thought: Any = None
    thoughtSignature: Any = None  # noqa: N815 - the wire's name
    functionCall: Any = None  # noqa: N815
    inlineData: Any = None  # noqa: N815
    fileData: Any = None  # noqa: N815
    executableCode: Any = None  # noqa: N815
    codeExecutionResult: Any = None  # noqa: N815


class _Content(Struct, gc=False):
    parts: list[_Part] | None = None


class _Candidate(Struct, gc=False):
    content: _Content | None = None
    index: Any = None
    finishReason: Any = None  # noqa: N815
    finishMessage: Any = None  # noqa: N815


class _Feedback(Struct, gc=False):
    blockReason: Any = None  # noqa: N815


class _Chunk(Struct, gc=False):
    candidates: list[_Candidate] | None = None
    usageMetadata: Any = None  # noqa: N815
    modelVersion: Any = None  # noqa: N815
    responseId: Any = None  # noqa: N815
    promptFeedback: _Feedback | None = None  # noqa: N815
    error: Any = None
    # of an error that stands flat in the chunk
    code: Any = None
    status: Any = None
    message: Any = None


_REASONS: Final[dict[str, StopReason]] = {
    "STOP": "complete",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "LANGUAGE": "content_filter",
    "MODEL_ARMOR": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
}
_ERRORS: Final[dict[str, ErrorKind]] = {
    "MALFORMED_FUNCTION_CALL": "malformed_tool_call",
    "UNEXPECTED_TOOL_CALL": "malformed_tool_call",
    "TOO_MANY_TOOL_CALLS": "protocol",
    "MALFORMED_RESPONSE": "protocol",
    "MISSING_THOUGHT_SIGNATURE": "invalid_request",
}
_UNSPECIFIED: Final = ("FINISH_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED")


class GeminiDecoder(Decoder[_Chunk]):
    """One Gemini response body."""

    message_type: ClassVar = _Chunk
    json_decoder: ClassVar = msgspec.json.Decoder(_Chunk)

    def __init__(self) -> None:
        super().__init__()
        self._started = False
        self._native: dict[str, JSON] = {}
        self._reason: str | None = None
        self._why = ""  # what the provider says about the reason
        self._blocked = False
        self._calls = 0
        self._nameless = False
        self._growing: GrowingCall | None = None
        self._ids: set[str] = set()
        self._blocks = 0
        self._open: type[TextDelta | ReasoningDelta] | None = None
        self._block = -1

    # Messages

    def _on_message(self, message: _Chunk, event: str, out: list[ProviderEvent]) -> None:
        if message.usageMetadata is not None:
            self._figures(message.usageMetadata, out)
        if not self._started and (message.responseId or message.modelVersion):
            self._started = True
            model = word(message.modelVersion) or None
            out.append(ResponseStarted(word(message.responseId) or None, model))
        if message.candidates is None and (message.code or message.status) and message.message:
            flat = {"code": message.code, "status": message.status, "message": message.message}
            self._fail(classify(flat), out)
            return
        feedback = message.promptFeedback
        if feedback is not None and (blocked := word(feedback.blockReason)) and blocked not in _UNSPECIFIED:
            self._blocked = True
            self._reason = blocked
            self.lingering = True
        for candidate in message.candidates or ():
            if candidate.index and type(candidate.index) is int:
                out.append(Notice("other_candidate", str(candidate.index)))
            else:
                self._on_candidate(candidate, out)
        if message.error:  # last: what stands beside it was said before it
            self._fail(classify(message.error), out)

    def _on_candidate(self, candidate: _Candidate, out: list[ProviderEvent]) -> None:
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                self._on_part(part, out)
        reason = word(candidate.finishReason)
        if reason and reason.upper() not in _UNSPECIFIED:
            self.lingering = True
            if self._reason is None or _REASONS.get(self._reason.upper()) == "complete":
                self._reason = reason
                self._why = word(candidate.finishMessage)

    def _on_part(self, part: _Part, out: list[ProviderEvent]) -> None:
        signature = part.thoughtSignature if isinstance(part.thoughtSignature, str) else ""
        if part.functionCall is not None:
            self._on_call(mapping(part.functionCall), signature, out)
        elif isinstance(part.text, str):
            self._on_text(part.text, signature, out, thought=bool(part.thought))
        elif signature:
            self._on_text("", signature, out, thought=bool(part.thought))
        else:
            kinds = ("inlineData", "fileData", "executableCode", "codeExecutionResult")
            kind = next((name for name in kinds if getattr(part, name) is not None), "unknown")
            out.append(Notice("unread_part", kind))

    def _on_text(self, text: str, signature: str, out: list[ProviderEvent], *, thought: bool) -> None:
        """A signed part stays a part of its own: its signature is only good for its own text."""
        kind = ReasoningDelta if thought else TextDelta
        if signature:
            self._shut(out)
            number = self._next()
            if text:
                out.append(kind(number, text))
            if thought:
                raw = {"text": text, "thought": True, "thoughtSignature": signature}
                out.append(BlockEnded(number, raw=raw))
            else:
                out.append(BlockEnded(number, {"thoughtSignature": signature}))
        elif text:
            if self._open is not kind:
                self._shut(out)
                self._open = kind
                self._block = self._next()
            out.append(kind(self._block, text))

    def _on_call(self, call: dict[str, JSON], signature: str, out: list[ProviderEvent]) -> None:
        """Each part is a call, whole as it comes [070] [072], unless it says that it will continue."""
        self._shut(out)
        if self._growing is not None:
            if self._growing.continued_by(call):
                self._grow(self._growing, call, signature, out)
                return
            self._end_call(out)
        name, wire_id = word(call.get("name")), word(call.get("id")) or None
        if not name:
            self._nameless = True
            out.append(Notice("call_without_name", word(wire_id)))
            return
        self._calls += 1
        wanted = wire_id or f"call_{self._calls}"
        call_id, count = wanted, 1
        while call_id in self._ids:
            count += 1
            call_id = f"{wanted}_{count}"
        self._ids.add(call_id)
        number = self._next()
        if call.get("willContinue") is True or call.get("partialArgs"):
            self._growing = GrowingCall(number, call_id, name, wire_id)
            out.append(ToolCallDelta(number, call_id, name, "", wire_id))
            self._grow(self._growing, call, signature, out)
            return
        args = call.get("args")
        if not isinstance(args, dict | str):
            args = {} if args is None else raw_text(args)
        out.append(ToolCallDelta(number, call_id, name, args, wire_id))
        out.append(BlockEnded(number, _kept(signature, wire_id)))

    def _grow(
        self, growing: GrowingCall, call: dict[str, JSON], signature: str, out: list[ProviderEvent]
    ) -> None:
        growing.add(call, signature)
        if call.get("willContinue") is not True:
            self._end_call(out)

    def _end_call(self, out: list[ProviderEvent]) -> None:
        """Tells the arguments of a call that came in pieces; one that was cut has none that can be run."""
        call, self._growing = self._growing, None
        if call is None:
            return
        if not call.whole:
            out.append(Notice("cut_call", call.name))
        out.append(ToolCallDelta(call.number, call.call_id, "", call.arguments(), call.wire_id))
        out.append(BlockEnded(call.number, _kept(call.signature, call.wire_id)))

    # Blocks

    def _next(self) -> int:
        self._blocks += 1
        return self._blocks - 1

    def _shut(self, out: list[ProviderEvent]) -> None:
        if self._open is not None:
            out.append(BlockEnded(self._block))
            self._open = None

    def _close_blocks(self, out: list[ProviderEvent]) -> None:
        self._shut(out)
        self._end_call(out)

    # Figures and ends

    def _figures(self, usage: JSON, out: list[ProviderEvent]) -> None:
        if isinstance(usage, dict):
            self._native = merged(self._native, usage)
            out.append(UsageUpdate(usage_of(self._native)))

    def _verdict(self, out: list[ProviderEvent]) -> StreamEnd | None:
        raw = self._reason
        if raw is None:
            return None
        if self._blocked:
            return StreamEnd("content_filter", raw)
        if (kind := _ERRORS.get(raw.upper())) is not None:  # whatever parts came [071]
            return StreamEnd("error", raw, ErrorInfo(kind, self._why or f"the response ended with {raw}"))
        reason = _REASONS.get(raw.upper())
        if reason is None:
            out.append(Notice("unknown_reason", raw))
            reason = "complete"
        if reason != "complete":
            return StreamEnd(reason, raw)
        if self._calls:
            return StreamEnd("tool_calls", raw)
        if self._nameless:
            return StreamEnd("error", raw, ErrorInfo("protocol", "a tool call without a name"))
        return StreamEnd("complete", raw)


def _kept(signature: str, wire_id: str | None) -> JSON:
    """What goes back with a call."""
    kept: dict[str, JSON] = {"thoughtSignature": signature} if signature else {}
    if wire_id:
        kept["id"] = wire_id
    return kept or None


def usage_of(native: dict[str, JSON]) -> Usage:
    """Figures as Gemini spells them: output is what was said and what was thought."""
    asked, total = figure(native.get("promptTokenCount")), figure(native.get("totalTokenCount"))
    said, thought = figure(native.get("candidatesTokenCount")), figure(native.get("thoughtsTokenCount"))
    output = None if said is None and thought is None else (said or 0) + (thought or 0)
    if output is None and asked is not None and total is not None:
        output = max(0, total - asked)
    return Usage(
        input=asked,
        cache_read=figure(native.get("cachedContentTokenCount")),
        output=output,
        reasoning=thought,
        total=total,
        native=native,
    )


__all__ = ["GeminiDecoder", "usage_of"]
