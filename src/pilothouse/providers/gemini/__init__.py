"""Google Gemini."""

from .decoder import GeminiDecoder
from .provider import GeminiProvider
from .wire import from_wire, to_wire

__all__ = ["GeminiDecoder", "GeminiProvider", "from_wire", "to_wire"]
