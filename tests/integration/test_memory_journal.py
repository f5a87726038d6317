"""The journal in memory keeps the whole contract (run-controller §3.13)."""

from __future__ import annotations

from pilothouse.contracts import Journal
from pilothouse.journal import MemoryJournal
from pilothouse.testing import JournalConformance


class TestMemoryJournal(JournalConformance):
    async def open_journal(self) -> Journal:
        return MemoryJournal()
