"""The journal in a SQLite file keeps the whole contract, and what it owes besides (run-controller §3.13)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilothouse.contracts import Journal
from pilothouse.journal import SQLiteJournal
from pilothouse.testing import DurableJournalConformance


class TestSQLiteJournal(DurableJournalConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "journal.db"

    async def open_journal(self) -> Journal:
        return SQLiteJournal(self.path)
