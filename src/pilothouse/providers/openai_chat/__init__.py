"""OpenAI Chat Completions and every server that is compatible with it."""

from .decoder import OpenAIChatDecoder
from .profile import CompatProfile
from .provider import OpenAIChatProvider
from .wire import from_wire, to_wire

__all__ = ["CompatProfile", "OpenAIChatDecoder", "OpenAIChatProvider", "from_wire", "to_wire"]
