"""Model APIs: one package a dialect. Names are loaded when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .anthropic import AnthropicProvider as AnthropicProvider
    from .gemini import GeminiProvider as GeminiProvider
    from .openai_chat import CompatProfile as CompatProfile
    from .openai_chat import OpenAIChatProvider as OpenAIChatProvider
    from .openai_responses import OpenAIResponsesProvider as OpenAIResponsesProvider
    from .pydantic_ai import PydanticAIProvider as PydanticAIProvider

_HOMES: Final = {
    "AnthropicProvider": "anthropic",
    "CompatProfile": "openai_chat",
    "GeminiProvider": "gemini",
    "OpenAIChatProvider": "openai_chat",
    "OpenAIResponsesProvider": "openai_responses",
    "PydanticAIProvider": "pydantic_ai",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - a list of str, made from the table


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
