"""Reasoning between tags in the text, on request only: models quote the tags too (PV, compat profile)."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

Piece: TypeAlias = tuple[Literal["text", "reasoning"], str]

OPEN: Final = "<think>"
CLOSE: Final = "</think>"


class ThinkTags:
    """Text in, text and reasoning out; a tag that may be cut by a chunk's border is held back."""

    def __init__(self, *, inside: bool) -> None:
        self.inside = inside  # between the tags
        self._held = ""

    def feed(self, text: str) -> list[Piece]:
        """Takes the next text; returns its pieces without the tags."""
        text, self._held = self._held + text, ""
        pieces: list[Piece] = []
        while text:
            tag = CLOSE if self.inside else OPEN
            before, found, after = text.partition(tag)
            if not found:
                cut = _tail(text, tag)
                self._add(text[: len(text) - cut], pieces)
                self._held = text[len(text) - cut :]
                return pieces
            self._add(before, pieces)
            self.inside = not self.inside
            text = after
        return pieces

    def flush(self) -> list[Piece]:
        """What was held back and turned out to be no tag."""
        pieces: list[Piece] = []
        self._add(self._held, pieces)
        self._held = ""
        return pieces

    def _add(self, text: str, pieces: list[Piece]) -> None:
        if text:
            pieces.append(("reasoning" if self.inside else "text", text))


def _tail(text: str, tag: str) -> int:
    """How many of the last characters could begin the tag."""
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-size:]):
            return size
    return 0


__all__ = ["Piece", "ThinkTags"]
