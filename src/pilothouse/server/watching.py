"""Observing one run from a fact on, without a gap: what counts and what traces it are told the same, in order."""

from __future__ import annotations

from collections.abc import Iterable

from ..events import Delta
from ..records import Record
from ..runs.controller import RunController


class RunWatcher:
    """An observer of a run's facts and deltas; what came while the journal was being read waits its turn."""

    def __init__(self, since: int = 0) -> None:
        self._seq = since
        self._early: list[Record] | None = []

    async def follow(self, runs: RunController, key: str) -> None:
        """Takes what a run did behind fact `since` and does from now on."""
        runs.observe(key, self)
        self.catch_up(await runs.events(key, self._seq))

    def __call__(self, item: Record | Delta) -> None:
        """Takes what was published."""
        if type(item) is Delta:
            self.told(item)
        elif isinstance(item, Record):
            if self._early is not None:
                self._early.append(item)
            else:
                self._take(item)

    def catch_up(self, records: Iterable[Record]) -> None:
        """Takes what was before, then what came meanwhile."""
        early, self._early = self._early or [], None
        for record in [*records, *early]:
            if record.seq > self._seq:
                self._take(record)

    def _take(self, record: Record) -> None:
        self._seq = record.seq
        self.fact(record)

    def fact(self, record: Record) -> None:
        """A fact, each once and in order."""

    def told(self, delta: Delta) -> None:
        """A delta, as it is published."""


__all__ = ["RunWatcher"]
