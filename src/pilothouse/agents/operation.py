"""What an action returns: something that may be awaited, and need not be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any, Generic, Self, TypeVar, final

from ..contracts import CancelToken
from ..projection import AgentOutcome

logger = logging.getLogger("pilothouse.agents")

T = TypeVar("T")


class Later(Generic[T]):
    """A value that comes. Whoever waits for it may be cancelled without touching it; ignoring it warns of nothing."""

    __slots__ = ("__weakref__", "_awaited", "_error", "_future")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._future: asyncio.Future[T | None] = loop.create_future()
        self._error: BaseException | None = None
        self._awaited = False

    @classmethod
    def settled(cls, value: T) -> Self:
        """One whose value is there."""
        made = cls(asyncio.get_running_loop())
        made.settle(value)
        return made

    def done(self) -> bool:
        """Whether the value is there."""
        return self._future.done()

    def settle(self, value: T) -> None:
        """Here it is; a second one is ignored."""
        if not self._future.done():
            self._future.set_result(value)

    def refuse(self, error: BaseException) -> None:
        """It will not come."""
        if not self._future.done():
            self._error = error
            self._future.set_result(None)

    def on_done(self, callback: Callable[[], object]) -> None:
        """Calls back once it is there."""
        self._future.add_done_callback(lambda _: callback())

    def __await__(self) -> Generator[Any, None, T]:
        """The value."""
        self._awaited = True
        value = yield from asyncio.shield(self._future).__await__()
        if self._error is not None:
            raise self._error
        return value  # type: ignore[return-value]

    def __del__(self) -> None:
        """A refusal that nobody looked at is logged once."""
        if getattr(self, "_error", None) is not None and not self._awaited:
            logger.warning("an action was refused and nobody awaited it: %s", self._error)


@final
class Operation(Later[AgentOutcome]):
    """An action of an agent.

    Attributes:
        run_id: the run that it is about; None for one that had nothing to do.
    """

    __slots__ = ("_on_cancel", "run_id")

    def __init__(self, loop: asyncio.AbstractEventLoop, run_id: str | None = None) -> None:
        super().__init__(loop)
        self.run_id = run_id
        self._on_cancel: Callable[[], object] | None = None

    def stop_on_cancel(self, stop: Callable[[], object]) -> None:
        """Cancelling whoever waits stops the run too (AG-17)."""
        self._on_cancel = stop

    def stop_on(self, token: CancelToken, stop: Callable[[], object]) -> None:
        """The token stops the run too, from whatever thread it is set, until this has settled (AG-76)."""
        loop = self._future.get_loop()
        self.on_done(token.on_set(lambda: loop.call_soon_threadsafe(stop)))

    def __await__(self) -> Generator[Any, None, AgentOutcome]:
        """The outcome."""
        try:
            return (yield from super().__await__())
        except asyncio.CancelledError:
            if self._on_cancel is not None and not self.done():
                self._on_cancel()
            raise

    def __repr__(self) -> str:
        """Names the run."""
        return f"<AgentOperation {self.run_id} {'done' if self.done() else 'open'}>"


__all__ = ["Later", "Operation"]
