"""A provider that plays what a test wrote down, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeAlias, final

from msgspec.structs import replace

from ..contracts import Clock
from ..errors import ProviderError
from ..messages import JSON, Message, Model, Usage
from ..responses import (
    ErrorInfo,
    ErrorKind,
    ModelRequest,
    ProviderEvent,
    ReasoningDelta,
    ResponseStarted,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
    UsageUpdate,
)


@final
class Hold:
    """A place in a script where the stream waits until the test releases it.

    `await hold.reached()` returns once the stream is there. With `deaf=True` it ignores being cancelled.
    """

    def __init__(self, *, deaf: bool = False) -> None:
        self.deaf = deaf
        self._reached = asyncio.Event()
        self._released = asyncio.Event()

    async def reached(self) -> None:
        """Waits until a stream waits here."""
        await self._reached.wait()

    def release(self) -> None:
        """Lets the stream go on."""
        self._released.set()

    async def wait(self) -> None:
        """What the stream does here."""
        self._reached.set()
        while not self._released.is_set():
            try:
                await self._released.wait()
            except asyncio.CancelledError:
                if not self.deaf:
                    raise


@final
class Sleep:
    """A place in a script where the stream is silent for so many seconds of the provider's clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


@final
class Cut:
    """The connection ends here without the dialect's sign: quietly, or by raising `error`."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Thought(str):
    __slots__ = ()


class _Call:
    __slots__ = ("arguments", "call_id", "tool")

    def __init__(self, tool: str, arguments: dict[str, JSON] | str, call_id: str) -> None:
        self.tool, self.arguments, self.call_id = tool, arguments, call_id


def thought(text: str) -> str:
    """A piece of reasoning in a script."""
    return _Thought(text)


def call(tool: str, arguments: dict[str, JSON] | str | None = None, *, call_id: str = "") -> object:
    """A tool call in a script; `arguments` as text is sent as it is, however broken."""
    return _Call(tool, {} if arguments is None else arguments, call_id)


def failure(kind: ErrorKind, message: str = "", **fields: Any) -> StreamEnd:
    """An end by an error."""
    return StreamEnd("error", error=ErrorInfo(kind, message or kind, **fields))


Item: TypeAlias = Any
"""A piece of a script: text, `thought`, `call`, a provider event, `Usage`, `Hold`, `Sleep`, `Cut`."""
Script: TypeAlias = (
    str | Sequence[Item] | StreamEnd | Callable[[ModelRequest], "str | Sequence[Item] | StreamEnd"]
)
"""One response: a text, the pieces of one, only an end, or a function that makes one of the request."""


class ScriptExhausted(ProviderError, AssertionError):
    """More requests were made than the test wrote responses for. The send fails with its words."""

    def __init__(self, asked: int, written: int) -> None:
        message = f"request {asked} has no script after the {written} written; add one, or say repeat=True"
        super().__init__(message, ErrorInfo("bug", message))


@final
class ScriptedProvider:
    """Plays one script a request, in order; implements `contracts.Provider`.

    A script without a `StreamEnd` or `Cut` ends as a model would: `tool_calls` if it has calls, else `complete`.

    Attributes:
        requests: what it was asked, the messages as they were then.
        open: streams that are being read now.
        opened, closed: streams so far.
    """

    def __init__(
        self,
        *scripts: Script,
        tag: str = "scripted",
        model: Model | None = None,
        clock: Clock | None = None,
        repeat: bool = False,
    ) -> None:
        self.tag = tag
        self.default_model = model or Model("scripted-1", "scripted", 200_000, 8_192)
        self.requests: list[ModelRequest] = []
        self.opened = 0
        self.closed = 0
        self.is_closed = False
        self._scripts = list(scripts)
        self._clock = clock
        self._repeat = repeat

    @property
    def open(self) -> int:
        """Streams that are being read now."""
        return self.opened - self.closed

    def add(self, *scripts: Script) -> None:
        """Appends responses."""
        self._scripts += scripts

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        """Plays the next script."""
        self.requests.append(replace(request, messages=tuple(request.messages)))
        number = len(self.requests) - 1
        if self._repeat and self._scripts:
            number %= len(self._scripts)
        if number >= len(self._scripts):
            raise ScriptExhausted(number + 1, len(self._scripts))
        script = self._scripts[number]
        if callable(script):
            script = script(self.requests[-1])
        self.opened += 1
        try:
            async with aclosing(self._play(_items(script), number)) as events:
                async for event in events:
                    yield event
        finally:
            self.closed += 1

    async def _play(self, items: Sequence[Item], number: int) -> AsyncGenerator[ProviderEvent, None]:
        block = -1
        last: type | None = None
        calls = 0
        if items and not isinstance(items[0], ResponseStarted | Hold | Sleep | Cut | StreamEnd):
            yield ResponseStarted(f"response-{number + 1}", self.default_model.id)
        for item in items:
            if isinstance(item, Hold):
                await item.wait()
            elif isinstance(item, Sleep):
                assert self._clock is not None, "a script that sleeps needs a clock"
                await self._clock.sleep(item.seconds)
            elif isinstance(item, Cut):
                if item.error is not None:
                    raise item.error
                return
            elif isinstance(item, Usage):
                yield UsageUpdate(item)
            elif isinstance(item, str):
                kind: type = ReasoningDelta if isinstance(item, _Thought) else TextDelta
                block += kind is not last
                last = kind
                yield kind(block, str(item))
            elif isinstance(item, _Call):
                block, calls, last = block + 1, calls + 1, None
                for event in _call_events(item, block, f"call-{number + 1}-{calls}"):
                    yield event
            else:
                calls += isinstance(item, ToolCallDelta)
                yield item
                if isinstance(item, StreamEnd):
                    return
        yield StreamEnd("tool_calls" if calls else "complete")

    async def aclose(self) -> None:
        """Remembers that it was closed."""
        self.is_closed = True


def _items(script: str | Sequence[Item] | StreamEnd) -> Sequence[Item]:
    return [script] if isinstance(script, str | StreamEnd) else script


def _call_events(item: _Call, block: int, made_id: str) -> Iterable[ProviderEvent]:
    call_id = item.call_id or made_id
    yield ToolCallDelta(block, call_id, item.tool, item.arguments, call_id)


def texts(messages: Iterable[Message]) -> list[tuple[str, str]]:
    """Role and text of messages, for assertions."""
    return [(message.role, message.text) for message in messages]


__all__: Final = [
    "Cut",
    "Hold",
    "ScriptExhausted",
    "ScriptedProvider",
    "Sleep",
    "call",
    "failure",
    "texts",
    "thought",
]
