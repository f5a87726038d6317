"""What Pilothouse makes of a recorded response body, in the words of the fixtures.

The same decoders and the same assembly as on the network; pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any, Final, Literal, TypeAlias

from ..core.assembly import Assembly
from ..errors import ConfigError
from ..messages import JSON, ToolCall, Usage
from ..responses import ErrorInfo, StreamEnd
from .decoder import Decoder
from .errors import MAX_ERROR_BYTES, refused

Dialect: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic", "gemini"]
End: TypeAlias = Literal["eof", "reset", "held-open"]
AnyDecoder: TypeAlias = Decoder[Any]
ThinkMode: TypeAlias = Literal["off", "explicit", "implicit"]


def _openai_chat(think_tags: ThinkMode) -> AnyDecoder:
    from .openai_chat import CompatProfile, OpenAIChatDecoder

    return OpenAIChatDecoder(CompatProfile(think_tags=think_tags))


def _anthropic(think_tags: ThinkMode) -> AnyDecoder:
    from .anthropic import AnthropicDecoder

    return AnthropicDecoder()


def _openai_responses(think_tags: ThinkMode) -> AnyDecoder:
    from .openai_responses import OpenAIResponsesDecoder

    return OpenAIResponsesDecoder()


def _gemini(think_tags: ThinkMode) -> AnyDecoder:
    from .gemini import GeminiDecoder

    return GeminiDecoder()


DECODERS: Final[dict[str, Callable[[ThinkMode], AnyDecoder]]] = {
    "openai-chat": _openai_chat,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}


def decoder_for(dialect: str, *, think_tags: ThinkMode = "off") -> AnyDecoder:
    """A fresh decoder of a dialect.

    Raises:
        ConfigError: there is no such dialect.
    """
    make = DECODERS.get(dialect)
    if make is None:
        raise ConfigError(f"no dialect {dialect!r}: choose one of {', '.join(DECODERS)}")
    return make(think_tags)


def assemble(
    dialect: str,
    chunks: Iterable[bytes],
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    end: End = "eof",
    think_tags: ThinkMode = "off",
) -> Assembly:
    """Reads a recorded body, chunk by chunk, into an assembly that has its end."""
    decoder = decoder_for(dialect, think_tags=think_tags)
    made = count(1)
    assembly = Assembly("message", tag=dialect, ids=lambda: f"call_{next(made)}")
    if status >= 400:
        body = b"".join(chunks)[:MAX_ERROR_BYTES]
        assembly.feed(refused(status, headers or {}, body, 0))
        return assembly
    for chunk in chunks:
        for event in decoder.feed(chunk):
            assembly.feed(event)
    if end != "held-open" or decoder.lingering:
        for event in decoder.finish("reset" if end == "reset" else "eof"):
            assembly.feed(event)
    if assembly.end is None:
        assembly.feed(StreamEnd("error", None, ErrorInfo("idle_timeout", "the stream fell silent")))
    return assembly


def decode(
    dialect: str,
    body: bytes | Iterable[bytes],
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    end: End = "eof",
    think_tags: ThinkMode = "off",
) -> dict[str, JSON]:
    """One JSON object: terminal, text, reasoning, tool_calls, usage, error_kind, in the words of the fixtures.

    `body` is all of it or its chunks. `end` says what the connection did after the last byte.

    Raises:
        ConfigError: there is no such dialect.
    """
    chunks = [body] if isinstance(body, bytes) else body
    return summary(
        dialect, assemble(dialect, chunks, status=status, headers=headers, end=end, think_tags=think_tags)
    )


def summary(dialect: str, assembly: Assembly) -> dict[str, JSON]:
    """An assembly that has its end, in the words of the fixtures."""
    end, message = assembly.end, assembly.message()
    out: dict[str, JSON] = {
        "terminal": end.reason if end else "unknown",
        "text": message.text,
        "reasoning": message.reasoning,
        "tool_calls": [_call(call) for call in message.tool_calls],
    }
    if assembly.usage is not None:
        out["usage"] = _usage(dialect, assembly.usage)
    if end is not None and end.error is not None:
        out["error_kind"] = "stalled" if end.error.kind == "idle_timeout" else end.error.kind
        out["error_message"] = end.error.message
    if end is not None and end.raw_reason is not None:
        out["raw_reason"] = end.raw_reason
    if end is not None and end.cause is not None:
        out["cause"] = end.cause
    if assembly.notices:
        out["notices"] = [f"{notice.name}: {notice.detail}".rstrip(": ") for notice in assembly.notices]
    return out


def _call(call: ToolCall) -> dict[str, JSON]:
    out: dict[str, JSON] = {"id": call.call_id, "name": call.tool}
    if call.args_error is None:
        out["args"] = call.arguments
    else:
        out["args_error"] = True
    return out


def _usage(dialect: str, usage: Usage) -> dict[str, JSON]:
    figures = {
        "input": usage.input,
        "output": usage.output,
        "cached": usage.cache_read,
        "reasoning": usage.reasoning,
    }
    if dialect == "anthropic" and usage.input is not None:  # as that provider counts: without cached tokens
        figures["input"] = usage.input - (usage.cache_read or 0) - (usage.cache_write or 0)
    return {name: value for name, value in figures.items() if value is not None}


__all__ = ["DECODERS", "Dialect", "End", "ThinkMode", "assemble", "decode", "decoder_for", "summary"]
