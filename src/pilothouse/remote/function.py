"""`agent_from`: an agent of one async function that yields AG-UI events, for backends that are not HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Final, TypeAlias, final

import msgspec

from ..core.agui.events import Event, encode
from ..core.sse import write
from ..responses import Timeouts
from .agui import AGUIAgent
from .wire import Stream

RunFunction: TypeAlias = Callable[[dict[str, Any]], AsyncIterator["Event | Mapping[str, Any]"]]
"""Takes a run input (`threadId`, `runId`, `messages`, …) and yields events, as structs or as their JSON."""

_HEADERS: Final = MappingProxyType({"content-type": "text/event-stream"})


class FunctionWire:
    """A `Wire` whose every request is one call of the function; leaving it closes the generator."""

    def __init__(self, run: RunFunction) -> None:
        self._run = run

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], content: bytes, timeouts: Timeouts
    ) -> AsyncIterator[Stream]:
        """Calls the function."""
        stream = self._run(msgspec.json.decode(content) if content else {})
        try:
            yield _Told(stream)
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    async def aclose(self) -> None:
        """There is nothing to close."""


@final
class _Told:
    status = 200
    headers: Mapping[str, str] = _HEADERS

    def __init__(self, events: AsyncIterator[Event | Mapping[str, Any]]) -> None:
        self._events = aiter(events)

    async def read(self) -> bytes:
        """The next event as a frame; what the function raises is the run's failure."""
        try:
            event = await anext(self._events)
        except StopAsyncIteration:
            return b""
        return write(encode(event) if isinstance(event, Event) else msgspec.json.encode(event))

    async def read_error(self, timeout_s: float) -> bytes:
        """There is no error body."""
        return b""


def agent_from(run: RunFunction, **options: Any) -> AGUIAgent:
    """An `Agent` of a function; `options` are those of `AGUIAgent`.

    The function need not tell text pieces as full events: chunks and the rules of AG-UI hold as over HTTP. What it raises
    is classified and shown on `agent.error`.
    """
    return AGUIAgent("function://agent", transport=FunctionWire(run), **options)


__all__ = ["FunctionWire", "RunFunction", "agent_from"]
