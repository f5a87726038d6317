"""How a check becomes a test: it gets an open journal, a loop of its own, and a limit of time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, TypeAlias, TypeVar

from ...contracts import Journal
from ...records import Record

E = TypeVar("E", bound=BaseException)
S = TypeVar("S", bound="Opens")

LIMIT_S: Final = 60.0


class Opens:
    """A suite that says how its journal is opened."""

    async def open_journal(self) -> Journal:
        """A journal, empty at the first call of a test; of a durable store each call opens the same store again."""
        raise TypeError(f"{type(self).__name__} must say how its journal is opened")


Check: TypeAlias = Callable[[S, Journal], Coroutine[object, object, None]]


def check(body: Check[S]) -> Callable[[S], None]:
    """Makes a test method of a check."""

    async def run(suite: S) -> None:
        async with asyncio.timeout(LIMIT_S):
            journal = await suite.open_journal()
            try:
                await body(suite, journal)
            finally:
                await journal.aclose()

    def test(self: S) -> None:
        asyncio.run(run(self))

    test.__name__ = body.__name__
    test.__qualname__ = body.__qualname__
    test.__doc__ = body.__doc__
    return test


async def raises(kind: type[E], doing: Awaitable[object]) -> E:
    """The error of that kind which an awaitable must raise."""
    try:
        await doing
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


async def all_records(journal: Journal, run_id: str, *, limit: int = 500) -> list[Record]:
    """All facts of a run, page by page."""
    records: list[Record] = []
    more = True
    while more:
        page = await journal.read(run_id, after=len(records), limit=limit)
        records += page.records
        more = page.more
    return records
