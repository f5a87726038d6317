"""Model APIs: one package a dialect. Names are loaded when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .anthropic import AnthropicDecoder as AnthropicDecoder
    from .anthropic import AnthropicProvider as AnthropicProvider
    from .openai_chat import CompatProfile as CompatProfile
    from .openai_chat import OpenAIChatDecoder as OpenAIChatDecoder
    from .openai_chat import OpenAIChatProvider as OpenAIChatProvider

_HOMES: Final = {
    "AnthropicDecoder": "anthropic",
    "AnthropicProvider": "anthropic",
    "CompatProfile": "openai_chat",
    "OpenAIChatDecoder": "openai_chat",
    "OpenAIChatProvider": "openai_chat",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


__all__ = [
    "AnthropicDecoder",
    "AnthropicProvider",
    "CompatProfile",
    "OpenAIChatDecoder",
    "OpenAIChatProvider",
]
