"""Anthropic Messages."""

from .decoder import AnthropicDecoder
from .provider import AnthropicProvider
from .wire import from_wire, to_wire

__all__ = ["AnthropicDecoder", "AnthropicProvider", "from_wire", "to_wire"]
