"""Facts that are too large keep the beginning of their content; the whole of it becomes artifacts (RC-71).

Text, structured data and media with their bytes in them are content; everything else of a fact is not, and a fact that
is too large by that is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from ..core.canonical import scrub
from ..events import CallFinished, CallObserved, Fact, MessageAdded
from ..messages import MEDIA, ArtifactRef, Part, Structured, Text
from ..records import Draft

Put = Callable[[bytes, str], Awaitable[ArtifactRef]]

PREVIEW: Final = 2_000
"""Characters of a text that stay in the fact."""

SMALL: Final = 4_096
"""Bytes of a part that it would gain nothing to store apart."""


_NUMBERS: Final = frozenset[type]({int, float, bool, type(None)})

LARGE: Final = frozenset[type]({MessageAdded, CallFinished, CallObserved})
"""Facts that have content."""


def may_be_large(fact: object, limit: int) -> bool:
    """Whether it is worth while to measure a fact with content: nearly none are. A character takes up to six bytes."""
    try:
        for part in _parts_of(fact):
            if type(part) is Text:
                if len(part.text) * 6 > limit:
                    return True
            elif type(part) is Structured:
                if type(part.data) not in _NUMBERS:
                    return True
            elif isinstance(part, MEDIA) and part.data is not None:
                return True
    except (AttributeError, TypeError):
        pass  # of a wrong shape: that is said where facts are judged
    return False


async def spill(draft: Draft, limit: int, largest: int, put: Put) -> Draft | None:
    """The same fact with as many of its parts as needed stored apart, largest first; None if that is not enough.

    Equal content gives equal facts, so a repeat of a spilled fact is still a repeat.
    """
    draft, size = _measured(draft)
    parts = _parts_of(draft.fact)
    if size <= limit:
        return draft
    bodies = [(part, _body_of(part)) for part in parts]
    order = sorted(range(len(bodies)), key=lambda place: -len(bodies[place][1][0]))
    made = list(parts)
    for place in order:
        part, (body, media_type) = bodies[place]
        if size <= limit or len(body) < SMALL or len(body) > largest:
            break
        made[place] = _apart(part, await put(body, media_type), body)
        size -= len(msgspec.json.encode(part)) - len(msgspec.json.encode(made[place]))
    if size > limit or not parts:
        return None
    return replace(draft, fact=_with_parts(draft.fact, tuple(made)))


def _measured(draft: Draft) -> tuple[Draft, int]:
    """The fact, its text as it will be stored where that cannot be written as it is, and its bytes."""
    try:
        return draft, len(msgspec.json.encode(draft.fact))
    except UnicodeEncodeError:
        draft = replace(draft, fact=scrub(draft.fact))
        return draft, len(msgspec.json.encode(draft.fact))


def _parts_of(fact: object) -> tuple[Part, ...]:
    if isinstance(fact, MessageAdded):
        return fact.message.parts
    return fact.content if isinstance(fact, CallFinished | CallObserved) else ()


def _with_parts(fact: Fact, parts: tuple[Part, ...]) -> Fact:
    if isinstance(fact, MessageAdded):
        return replace(fact, message=replace(fact.message, parts=parts))
    return replace(fact, content=parts)


def _body_of(part: Part) -> tuple[bytes, str]:
    """What of a part can be stored apart, and its media type."""
    if isinstance(part, Text):
        return part.text.encode("utf-8", "replace"), "text/plain"
    if isinstance(part, Structured):
        return msgspec.json.encode(part.data), "application/json"
    if isinstance(part, MEDIA) and part.data is not None:
        return part.data, part.mime_type
    return b"", ""


def _apart(part: Part, ref: ArtifactRef, body: bytes) -> Part:
    if isinstance(part, MEDIA):
        return replace(part, data=None, artifact=ref)
    return replace(ref, preview=body[: 4 * PREVIEW].decode("utf-8", "ignore")[:PREVIEW])


__all__ = ["PREVIEW", "may_be_large", "spill"]
