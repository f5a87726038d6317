"""What a caller gives to an agent's actions, checked before anything changes (agent-contract §4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ..errors import InvalidTarget, UsageError
from ..messages import JSON, MEDIA, InputPart, Text
from ..projection import WhenBusy

POLICIES: Final = ("raise", "queue", "drop", "supersede", "steer", "rollback")
"""What `when_busy` may be."""

WENT_ON: Final = "not answered: the user went on"
"""The result of an open client tool call when the user sends something else."""


def checked_parts(message: str | Sequence[InputPart] | None) -> tuple[InputPart, ...] | None:
    """The parts of a message; None for none.

    Raises:
        UsageError: an empty message. TypeError: no message.
    """
    if message is None:
        return None
    if isinstance(message, str):
        if not message:
            raise UsageError('cannot submit "": give no message at all to go on')
        return (Text(message),)
    parts = tuple(message)
    if not parts:
        raise UsageError("cannot submit a message without parts: give no message at all to go on")
    for part in parts:
        if not isinstance(part, (Text, *MEDIA)):
            raise TypeError(f"a message holds Text, Image, Audio, Video and File, got {type(part).__name__}")
    return parts


def target_of(messages: Sequence[Any], target: int | str) -> tuple[int, int]:
    """Places of the assistant message and of the user message that it answers (AG-110 … AG-112).

    Raises:
        InvalidTarget: there is no such message.
    """
    at = (
        target if isinstance(target, int) else next((n for n, m in enumerate(messages) if m.id == target), -1)
    )
    if isinstance(target, bool) or not 0 <= at < len(messages):
        raise InvalidTarget(f"cannot regenerate {target!r}: there is no such message")
    if messages[at].role != "assistant":
        raise InvalidTarget(f"cannot regenerate {target!r}: it is a {messages[at].role} message")
    for user in range(at - 1, -1, -1):
        if messages[user].role == "user":
            return at, user
    raise InvalidTarget(f"cannot regenerate {target!r}: no user message stands before it")


def checked_policy(when_busy: WhenBusy) -> WhenBusy:
    """What to do while a run is in flight.

    Raises:
        UsageError: it is no such word; with those that are.
    """
    if when_busy not in POLICIES:
        raise UsageError(f"when_busy must be one of {', '.join(POLICIES)}, got {when_busy!r}")
    return when_busy


def checked_state(state: object) -> Mapping[str, JSON] | None:
    """A patch of the state, copied.

    Raises:
        TypeError: no mapping. UsageError: no JSON, naming the place.
    """
    if state is None:
        return None
    if not isinstance(state, Mapping):
        raise TypeError(f"state must be a mapping, got {type(state).__name__}")
    for name, value in state.items():
        if not isinstance(name, str):
            raise UsageError(f"state[{name!r}]: keys must be texts")
        try:
            msgspec.json.encode(value)
        except (TypeError, ValueError) as error:
            raise UsageError(f"state[{name!r}] is no JSON: {error}") from error
    copied: dict[str, JSON] = msgspec.json.decode(msgspec.json.encode(dict(state)))
    return copied


__all__ = ["POLICIES", "WENT_ON", "checked_parts", "checked_policy", "checked_state", "target_of"]
