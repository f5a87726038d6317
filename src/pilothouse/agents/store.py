"""Where interrupt phases are kept between instances: the store of one process, for tests and small hosts."""

from __future__ import annotations

from typing import final

from ..agent_errors import StoreConflict


@final
class MemoryInterruptStore:
    """An `InterruptStore` in memory: every agent that shares it sees the others' claims."""

    def __init__(self) -> None:
        self._records: dict[str, tuple[int, bytes]] = {}

    async def load(self, key: str) -> tuple[int, bytes] | None:
        """Revision and record, or None."""
        return self._records.get(key)

    async def save(self, key: str, record: bytes, *, expected: int) -> int:
        """Writes if the stored revision is `expected`.

        Raises:
            StoreConflict: somebody else wrote.
        """
        actual = self._records.get(key, (0, b""))[0]
        if actual != expected:
            raise StoreConflict(key, expected, actual)
        self._records[key] = (actual + 1, record)
        return actual + 1


__all__ = ["MemoryInterruptStore"]
