"""What a caller gives to an agent's actions, checked before anything changes (agent-contract §4), and begun once a key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, final

import msgspec

from ..contracts import CancelToken
from ..errors import InvalidTarget, RunConflict, UsageError
from ..loop.jsonschema import problems_of
from ..messages import JSON, MEDIA, UNSET, InputPart, Text
from ..projection import InterruptAnswer, WhenBusy
from .operation import Operation
from .surface import Surface

POLICIES: Final = ("raise", "queue", "drop", "supersede", "steer", "rollback")
"""What `when_busy` may be."""

REMEMBERED: Final = 1_000
"""Keys of submissions that an agent knows."""

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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One of them.

    Attributes:
        parts: of the message; None for none.
        patch: of the state, copied; None for none.
        resume: an answer to the open batch; UNSET for none.
        generation: of the batch that it was given to, where the caller said so.
        stop_on_cancel: cancelling whoever awaits it stops the run.
    """

    parts: tuple[InputPart, ...] | None
    patch: Mapping[str, JSON] | None = None
    resume: object = UNSET
    generation: int | None = None
    when_busy: WhenBusy = "raise"
    key: str | None = None
    cancel: CancelToken | None = None
    stop_on_cancel: bool = False

    @property
    def answers(self) -> bool:
        """Whether it answers the open batch; None and False are answers (AG-71)."""
        return self.resume is not UNSET

    def answers_to(self, surface: Surface) -> tuple[InterruptAnswer, ...]:
        """What it answers to the open batch, one answer an item; nothing is changed.

        Raises:
            StaleInterrupt, RequestPending, ResumeInvalid: it cannot be the answer.
        """
        now = datetime.fromtimestamp(surface.clock.time_ms() / 1000, UTC)
        return surface.book.check(self.resume, now=now, generation=self.generation, problems_of=problems_of)

    @property
    def cancelled(self) -> bool:
        """Whether its token was set before it began: nothing of it is to happen."""
        return self.cancel is not None and self.cancel.is_set()

    @property
    def content(self) -> tuple[object, ...]:
        """What makes it the same under one key."""
        return self.parts, self.patch, repr(self.resume) if self.answers else None


@final
class Submissions:
    """Those of one agent. `stop` stops the run of one of them alone."""

    def __init__(self, stop: Callable[[Operation], object]) -> None:
        self._stop = stop
        self._begun: dict[str, tuple[object, Operation]] = {}

    def begin(self, given: Submission, start: Callable[[], Operation]) -> Operation:
        """Starts it; the same key with the same content is the operation of the first call (AG-77).

        Raises:
            RunConflict: the same key with other content.
        """
        key, content = given.key, given.content
        if key is not None and (known := self._begun.get(key)) is not None:
            if known[0] != content:
                raise RunConflict(key)
            return known[1]
        op = start()
        if given.cancel is not None:
            op.stop_on(given.cancel, lambda: self._stop(op))
        if given.stop_on_cancel:
            op.stop_on_cancel(lambda: self._stop(op))
        if key is not None:
            self._begun[key] = content, op
            if len(self._begun) > REMEMBERED:
                del self._begun[next(iter(self._begun))]
        return op


__all__ = [
    "POLICIES",
    "REMEMBERED",
    "WENT_ON",
    "Submission",
    "Submissions",
    "checked_parts",
    "checked_policy",
    "checked_state",
    "target_of",
]
