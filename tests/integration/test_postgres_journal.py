"""The journal in Postgres keeps the whole contract, on a real server (run-controller §3.13)."""

from __future__ import annotations

import itertools

import pytest

from pilothouse.contracts import Journal
from pilothouse.journal import PostgresJournal
from pilothouse.testing import DurableJournalConformance
from postgres_server import shared_dsn

_numbers = itertools.count()


class TestPostgresJournal(DurableJournalConformance):
    own_clock = True

    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.schema = f"suite_{next(_numbers)}"

    async def open_journal(self) -> Journal:
        return PostgresJournal(shared_dsn(), schema=self.schema)
