"""OpenAI Chat Completions and every server that is compatible with it."""

from .decoder import OpenAIChatDecoder
from .profile import CompatProfile

__all__ = ["CompatProfile", "OpenAIChatDecoder"]
