"""The phase of the open batch of interrupts, kept over restarts and between instances (AG-130, AG-139)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

from ..agent_contracts import InterruptStore
from ..agent_errors import StoreConflict
from ..agents.surface import Surface
from ..core.interrupts import Step

logger = logging.getLogger("pilothouse.remote")


@final
class Phases:
    """Keeps it in a store; without one, nothing is kept.

    Args:
        key: of the thread's record.
    """

    def __init__(self, store: InterruptStore | None, surface: Surface, key: Callable[[], str]) -> None:
        self._store = store
        self._surface = surface
        self._key = key
        self._revision = 0

    @property
    def kept(self) -> bool:
        """Whether there is a store."""
        return self._store is not None

    async def load(self) -> None:
        """Takes over what is kept of the thread."""
        found = None if self._store is None else await self._store.load(self._key())
        if found is None:
            return
        self._revision = found[0]
        with self._surface.batch():
            self._surface.book.load(found[1])

    async def claim(self) -> None:
        """Keeps that the batch is claimed, and then that the answer is about to leave.

        Raises:
            StoreConflict: another instance has the batch.
        """
        if not self.kept:
            return
        await self._write()
        with self._surface.batch():
            self._surface.book.step(Step.SENT)
        await self._write()

    async def save(self) -> None:
        """Keeps the phase as it is; a lost race is noticed by whoever answers next."""
        if self._revision == 0 and self._surface.book.phase == "none":
            return
        try:
            await self._write()
        except StoreConflict:
            await self.load()
        except Exception:
            logger.exception("the phase of the interrupts under %s could not be kept", self._key())

    async def _write(self) -> None:
        if self._store is not None:
            record = self._surface.book.dump()
            self._revision = await self._store.save(self._key(), record, expected=self._revision)


__all__ = ["Phases"]
