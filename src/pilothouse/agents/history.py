"""The history of a local agent's thread: what the journal holds of its tree, read again when a run has ended (AG-176)."""

from __future__ import annotations

from typing import Final, final

from ..core.checkpoints import Branch, Checkpoints, checkpoints
from ..records import RunEntry, RunQuery
from ..runs.controller import RunController

MOST: Final = 1_000
"""Runs of a thread that are shown as checkpoints: the newest ones."""

_PAGE: Final = 100


@final
class History:
    """Reads the runs of one thread; what has ended is read once."""

    def __init__(self, runs: RunController, thread_id: str) -> None:
        self.thread_id = thread_id
        self._runs = runs
        self._ended: dict[str, Branch] = {}
        self._entries_before: list[RunEntry] = []

    async def read(self) -> Checkpoints:
        """All checkpoints as of now.

        Raises:
            JournalError: the journal is away.
        """
        return checkpoints([await self._branch(entry) for entry in await self._entries()])

    async def _entries(self) -> list[RunEntry]:
        """The runs, newest first; behind a whole page of ended ones that are known nothing is read again."""
        found: list[RunEntry] = []
        cursor: str | None = None
        while len(found) < MOST:
            page = await self._runs.catalog_runs(
                RunQuery(thread_id=self.thread_id), cursor=cursor, limit=_PAGE
            )
            found += page.items
            cursor = page.cursor
            if cursor is None or all(entry.run_id in self._ended for entry in page.items):
                break
        here = {entry.run_id for entry in found}
        if cursor is not None:
            found += [entry for entry in self._entries_before if entry.run_id not in here]
        self._entries_before = found[:MOST]
        return self._entries_before

    async def _branch(self, entry: RunEntry) -> Branch:
        known = self._ended.get(entry.run_id)
        if known is not None and known.entry.last_seq == entry.last_seq:
            return known
        branch = Branch(entry, await self._runs.own_messages(entry.run_id))
        if entry.state == "terminal":
            self._ended[entry.run_id] = branch
        return branch


__all__ = ["History"]
