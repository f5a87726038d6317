"""Texts that every store and every provider takes: no lone surrogate, no NUL (PV-13, TL-13)."""

from __future__ import annotations

from typing import Final

from ..messages import JSON
from .canonical import scrub

LOST: Final = "\ufffd"
"""What stands for a character that cannot be kept."""


def clean(text: str) -> str:
    """The text with pairs of surrogates joined, and U+FFFD for each lone one and each NUL."""
    if "\0" in text:
        text = text.replace("\0", LOST)
    try:
        text.encode()
    except UnicodeEncodeError:
        return scrub(text)
    return text


def clean_json(value: JSON) -> JSON:
    """A copy of a JSON value with all its texts and keys cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in value]
    return value


__all__ = ["LOST", "clean", "clean_json"]
