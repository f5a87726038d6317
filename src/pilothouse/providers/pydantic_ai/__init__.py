"""Pydantic AI's models as providers."""

from .provider import PydanticAIProvider

__all__ = ["PydanticAIProvider"]
