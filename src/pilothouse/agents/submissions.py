"""What `submit` is given: checked before anything changes, and begun once a key (AG-70 … AG-77)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

from ..contracts import CancelToken
from ..errors import RunConflict
from ..messages import JSON, UNSET, InputPart
from ..projection import WhenBusy
from .operation import Operation

_REMEMBERED: Final = 1_000


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
            if len(self._begun) > _REMEMBERED:
                del self._begun[next(iter(self._begun))]
        return op


__all__ = ["Submission", "Submissions"]
