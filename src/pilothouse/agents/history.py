"""The history of a local agent's thread: what the journal holds of its tree, read again when a run has ended (AG-176)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, final

from ..core.checkpoints import Branch, Checkpoints, checkpoints
from ..errors import PilothouseError
from ..projection import EMPTY, Checkpoint
from ..records import RunEntry, RunQuery
from ..runs.controller import RunController
from .signals import Cell
from .surface import Surface

logger = logging.getLogger("pilothouse.agents")

MOST: Final = 1_000
"""Runs of a thread that are shown as checkpoints: the newest ones."""

_PAGE: Final = 100


@final
class History:
    """The tree of the thread that is shown.

    Attributes:
        history: its checkpoints, newest first: one a run, with its parent and siblings.
        checkpoints: by message id, the newest checkpoint in which that message is the last answer.
    """

    def __init__(self, runs: RunController, surface: Surface) -> None:
        self.history: Cell[tuple[Checkpoint, ...]] = Cell(surface.hub, (), "history")
        self.checkpoints: Cell[Mapping[str, Checkpoint]] = Cell(surface.hub, EMPTY, "checkpoints")
        self._runs = runs
        self._surface = surface
        self._tree: _Tree | None = None

    async def show(self, thread_id: str) -> None:
        """Reads it, or reads it again; a journal that is away leaves what is shown."""
        if self._tree is None or self._tree.thread_id != thread_id:
            self._tree = _Tree(self._runs, thread_id)
        tree = self._tree
        try:
            found = await tree.read()
        except PilothouseError as error:
            logger.warning("the history of thread %s could not be read: %s", tree.thread_id, error)
            return
        if tree is self._tree and not self._surface.tasks.closed:
            with self._surface.batch():
                self.history.set(found.history)
                self.checkpoints.set(found.by_message)

    def clear(self) -> None:
        """Another thread is to be shown."""
        self._tree = None
        self.history.set(())
        self.checkpoints.set(EMPTY)


class _Tree:
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
