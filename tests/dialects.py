"""The dialects that exist, as a table for tests that hold for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pilothouse.core.pairing import WireRules
from pilothouse.messages import Message
from pilothouse.providers import anthropic, gemini, openai_chat, openai_responses


class Dialect(NamedTuple):
    name: str
    to_wire: Callable[..., list[Any]]
    from_wire: Callable[..., list[Message]]
    provider: Callable[..., Any]

    @property
    def rules(self) -> WireRules:
        return self.provider("m").wire_rules


DIALECTS = [
    Dialect("openai-chat", openai_chat.to_wire, openai_chat.from_wire, openai_chat.OpenAIChatProvider),
    Dialect(
        "openai-responses",
        openai_responses.to_wire,
        openai_responses.from_wire,
        openai_responses.OpenAIResponsesProvider,
    ),
    Dialect("anthropic", anthropic.to_wire, anthropic.from_wire, anthropic.AnthropicProvider),
    Dialect("gemini", gemini.to_wire, gemini.from_wire, gemini.GeminiProvider),
]
BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
