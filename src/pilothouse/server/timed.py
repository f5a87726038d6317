"""How long a journal takes to store, told to whoever counts (SV-261)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from ..contracts import Clock, Journal
from ..journal.writer import Told
from ..records import Appended, Created, Head, Record, Registration, RunSummary


class Timed:
    """A journal whose appends are timed; everything else is the journal's own. One that fails is timed, too."""

    def __init__(self, journal: Journal, clock: Clock, observe: Callable[[float], None]) -> None:
        self._journal = journal
        self._clock = clock
        self._observe = observe

    def __getattr__(self, name: str) -> Any:
        if name == "append_now" and (append := getattr(self._journal, name, None)) is not None:
            return partial(self._now, append)
        if name == "hand_over" and (take := getattr(self._journal, name, None)) is not None:
            return partial(self._later, take)
        return getattr(self._journal, name)

    def _now(self, append: Callable[..., Appended], *args: Any, **more: Any) -> Appended:
        began = self._clock.monotonic()
        try:
            return append(*args, **more)
        finally:
            self._observe(self._clock.monotonic() - began)

    def _later(self, take: Callable[..., None], *args: Any, tell: Told, **more: Any) -> None:
        began = self._clock.monotonic()

        def told(stored: Appended | None, error: BaseException | None) -> None:
            self._observe(self._clock.monotonic() - began)
            tell(stored, error)

        take(*args, tell=told, **more)

    async def create(self, registration: Registration, records: Sequence[Record], **more: Any) -> Created:
        """As the journal does."""
        began = self._clock.monotonic()
        try:
            return await self._journal.create(registration, records, **more)
        finally:
            self._observe(self._clock.monotonic() - began)

    async def append(
        self, run_id: str, records: Sequence[Record], *, expected: Head, fence: int, summary: RunSummary
    ) -> Appended:
        """As the journal does."""
        began = self._clock.monotonic()
        try:
            return await self._journal.append(
                run_id, records, expected=expected, fence=fence, summary=summary
            )
        finally:
            self._observe(self._clock.monotonic() - began)


def timed(journal: Journal, clock: Clock, observe: Callable[[float], None]) -> Journal:
    """The journal, timed."""
    return cast("Journal", Timed(journal, clock, observe))


__all__ = ["Timed", "timed"]
