"""OpenRouter's `reasoning_details`: what a model thought, in objects that may be signed or encrypted.

They come in pieces and go back whole, in their order and only to the same kind of server (PV-7).
"""

from __future__ import annotations

from typing import Final

from ...messages import JSON
from ..frames import objects, word

_PIECEWISE: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""The types that come in pieces, and the field that grows."""


class ReasoningDetails:
    """The objects of one response."""

    def __init__(self) -> None:
        self._kept: list[dict[str, JSON]] = []

    def add(self, details: JSON) -> str:
        """Takes the objects of a chunk; returns what of them can be read."""
        said = []
        for piece in objects(details):
            field = _PIECEWISE.get(word(piece.get("type")))
            if field is not None:
                said.append(word(piece.get(field)))
            last = self._kept[-1] if self._kept else {}
            if field is not None and _continues(piece, last):
                grown = word(last.get(field)) + word(piece.get(field))
                last.update({name: value for name, value in piece.items() if value is not None})
                if grown:
                    last[field] = grown
            elif piece not in self._kept:  # told again with the last chunk
                self._kept.append(dict(piece))
        return "".join(said)

    def finished(self) -> list[dict[str, JSON]]:
        """What goes back: all but texts that their maker wants signed and did not sign."""
        return [
            piece
            for piece in self._kept
            if piece.get("type") != "reasoning.text"
            or piece.get("signature")
            or not word(piece.get("format")).startswith("anthropic")
        ]


def _continues(piece: dict[str, JSON], last: dict[str, JSON]) -> bool:
    """Whether it belongs to the object before; a signed one is whole."""
    if last.get("type") != piece.get("type") or last.get("index") != piece.get("index"):
        return False
    ids = (last.get("id"), piece.get("id"))
    return not last.get("signature") and (None in ids or ids[0] == ids[1])


__all__ = ["ReasoningDetails"]
