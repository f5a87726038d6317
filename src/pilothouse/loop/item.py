"""A call on its way to its start."""

from __future__ import annotations

from typing import final

from msgspec import Struct

from ..events import RequestResolved
from ..messages import ToolCall
from ..records import Draft
from .checking import Ready


@final
class Item(Struct, eq=False):
    """One call of a batch.

    Attributes:
        index: its place in the batch.
        ready: what will run, once that is decided.
        attempt: the number that its start will have.
        approved_by: the request whose answer allowed it, None where policy did.
        answer: that answer with its command as causation, as long as it is not recorded.
    """

    index: int
    call: ToolCall
    ready: Ready | None = None
    attempt: int = 1
    approved_by: str | None = None
    answer: Draft | None = None

    @property
    def frozen(self) -> Ready:
        """What will run; to be asked only of items that wait for their start."""
        assert self.ready is not None
        return self.ready

    def resolution(self) -> tuple[Draft, ...]:
        """The answer, to be recorded in the append of what it allows (RC-41)."""
        answer, self.answer = self.answer, None
        return () if answer is None else (answer,)


def resolved(request_id: str, resolution: object, command_id: str) -> Draft:
    """The record of an answer."""
    return Draft(RequestResolved(request_id, resolution), causation=command_id)  # type: ignore[arg-type]
