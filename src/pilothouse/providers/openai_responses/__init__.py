"""OpenAI Responses."""

from .decoder import OpenAIResponsesDecoder
from .provider import OpenAIResponsesProvider
from .wire import from_wire, to_wire

__all__ = ["OpenAIResponsesDecoder", "OpenAIResponsesProvider", "from_wire", "to_wire"]
