"""A conversation at one moment, for an interface that comes late (AC-126): frozen, consistent, JSON-able."""

from __future__ import annotations

from hashlib import sha256

from msgspec.structs import replace

from ..core.lifecycle import AgentState
from ..messages import MEDIA, ArtifactRef, Message, Part, Value
from .reply import PartialResponse, ReplyPhase


class PartialView(Value):
    """What arrived of an unfinished response."""

    reply_id: str
    response_id: str | None
    text: str
    unapplied: str = ""


class ConversationView(Value):
    """What an interface draws. Attachments are named by digest and size, their bytes are left out.

    Attributes:
        text: of the response that streams, or of the last one that did.
        error: type and text of the error, while the state is `error`.
        undelivered: steering that waits for the next send.
        orphans: tasks that were stopped and have not ended.
    """

    state: AgentState
    thread_id: str
    messages: tuple[Message, ...]
    text: str
    pause_requested: bool = False
    reply_id: str | None = None
    phase: ReplyPhase | None = None
    error: str | None = None
    partial: PartialView | None = None
    undelivered: tuple[Message, ...] = ()
    orphans: int = 0


def partial_view(partial: PartialResponse | None) -> PartialView | None:
    """The partial as a value."""
    if partial is None:
        return None
    return PartialView(partial.reply_id, partial.response_id, partial.text, partial.unapplied)


def without_bytes(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages with digests and sizes in the place of inline bytes."""
    return tuple([_named(message) for message in messages])


def _named(message: Message) -> Message:
    if not any(isinstance(part, MEDIA) and part.data is not None for part in message.parts):
        return message
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, MEDIA) and part.data is not None:
            kept = ArtifactRef(sha256(part.data).hexdigest(), len(part.data), part.mime_type)
            parts.append(replace(part, data=None, artifact=kept))
        else:
            parts.append(part)
    return replace(message, parts=tuple(parts))
