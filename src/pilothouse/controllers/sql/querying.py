"""What an AI controller over a read-only database has, whatever it makes of the rows: the reader, its life, what it fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from ...conversation.controllers import ResponseEvent
from ...conversation.staging import StagedController
from ...loop.tools import Tool, ToolLike
from ...messages import JSON
from ..exporting import wants_staged
from .reader import QueryOptions, Reader
from .rows import QuerySource

if TYPE_CHECKING:
    from sqlalchemy import Engine

S = TypeVar("S")
F = TypeVar("F")

KEPT: Final = 4
"""Results that wait for the end of an answer: of parallel calls, the last ones."""


class QueryingController(StagedController[S], Generic[S, F]):
    """Base of the grid and the chart; `F` is what they keep of a query's result until it is shown."""

    is_open: bool = False
    """Whether somebody entered it as a context manager, and will close it."""

    _tools: tuple[Tool, ...] = ()

    def __init__(self, source: str | Path | Engine | QuerySource, options: QueryOptions) -> None:
        self._reader = Reader(source, options)
        self._fetched: dict[str, F] = {}

    async def __aenter__(self) -> Self:
        self.is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stops what runs and closes the database, if it was opened here; bounded, once is enough."""
        await self._reader.aclose()

    def get_tools(self) -> Sequence[ToolLike]:
        """The same ones each time."""
        return self._tools

    async def describe(self, table: str | None = None) -> str:
        """The schema as the model reads it: no row, no sample value."""
        return (await self._reader.schema(fresh=True)).text(self._reader.options.notes, table)

    def describe_state(self) -> dict[str, JSON]:
        """What is committed and what is staged; no row."""
        found: dict[str, JSON] = {"shown": None if self.state is None else self.encode(self.state)}
        if (staged := self.staged) is not None:
            found["pending until the answer is complete"] = self.encode(staged)
        return found

    def chosen(self, given: Mapping[str, str]) -> S | None:
        """The staged state, if an export is asked for it and there is one."""
        return self.staged if wants_staged(given) else None

    def on_response(self, event: ResponseEvent, /) -> None:
        """What was fetched for an answer is not shown for another one."""
        self._fetched.clear()

    def _remember(self, query: str, found: F) -> None:
        self._fetched.pop(query, None)
        while len(self._fetched) >= KEPT:
            self._fetched.pop(next(iter(self._fetched)))
        self._fetched[query] = found


__all__ = ["QueryingController"]
