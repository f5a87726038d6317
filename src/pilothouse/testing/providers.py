"""The contract of a provider as tests: subclass in a test module, say how yours is opened and give recorded bodies.

```python
class TestMine(ProviderConformance):
    recordings = [Recording(body=Path("answer.sse").read_bytes(), text="Hello", terminal="complete")]

    def open_provider(self, base_url):
        return MyProvider("model", base_url=base_url)
```

The bodies are served by a `ReplayServer`, whole, in other reads, cut, damaged, with broken connections and error
statuses. No plug-in is needed: each test runs an event loop of its own. `seed` is printed and may be fixed.
"""

from __future__ import annotations

import asyncio
import gc
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from msgspec import Struct

from ..contracts import Provider
from ..core.assembly import Assembly
from ..messages import Message, StopReason, Text
from ..responses import (
    BlockEnded,
    ModelRequest,
    ModelSettings,
    ProviderEvent,
    ReasoningDelta,
    ResponseStarted,
    StreamEnd,
    TextDelta,
    Timeouts,
    ToolCallDelta,
)
from .fuzz import corruptions, cuts, deliveries
from .replay import End, Replay, ReplayServer

S = TypeVar("S", bound="ProviderConformance")

_STATUSES: Final = {401: "auth", 402: "quota", 413: "context_overflow", 429: "rate_limit", 500: "server_error", 503: "overloaded"}  # fmt: skip
_NAP_S: Final = 0.05
"""How long a test lets a provider wait where it must not wait for ever."""


class Recording(Struct, frozen=True, kw_only=True):
    """A finished response as it was on the wire, and what it says."""

    body: bytes
    text: str = ""
    terminal: StopReason = "complete"
    tools: tuple[str, ...] = ()
    content_type: str = "text/event-stream"


class Outcome(Struct, frozen=True):
    """What came of a response, without the ids that a provider made up."""

    reason: StopReason
    error: str | None
    text: str
    reasoning: str
    calls: tuple[tuple[str, str, bool], ...]


_Check: TypeAlias = Callable[[S], Awaitable[None]]


def check(test: _Check[S]) -> Callable[[S], None]:
    """Runs an async check in an event loop of its own and sees that nothing is left behind."""

    @wraps(test)
    def run(self: S) -> None:
        async def guarded() -> None:
            before = asyncio.all_tasks()
            await test(self)
            gc.collect()
            left = asyncio.all_tasks() - before
            assert not left, f"tasks are left behind: {left}"

        asyncio.run(guarded())

    return run


class ProviderConformance(ABC):
    """What every provider must do (PV-1 … PV-5, PV-11). `recordings` should hold text and calls at least once."""

    recordings: ClassVar[Sequence[Recording]] = ()
    seed: int | None = None

    @abstractmethod
    def open_provider(self, base_url: str) -> Provider:
        """A provider that asks the server at this address; closed by the test."""

    def request(self) -> ModelRequest:
        """What is asked; override it where your provider wants more."""
        provider = self.open_provider("http://127.0.0.1:1")
        message = Message("question", "user", (Text("Hello?"),))
        settings = ModelSettings(timeouts=Timeouts(connect=5.0, error_body=_NAP_S))
        return ModelRequest(provider.default_model, (message,), settings=settings)

    # Delivery

    @check
    async def test_a_recording_says_what_it_says(self) -> None:
        """The recordings are read as their words tell."""
        for recording in self._recordings():
            got = await self._outcome(recording, [recording.body])
            assert (got.reason, got.text, tuple(name for name, _, _ in got.calls)) == (
                recording.terminal,
                recording.text,
                recording.tools,
            )

    @check
    async def test_the_result_does_not_depend_on_the_reads(self) -> None:
        """PV-12: any split of the same bytes."""
        for recording in self._recordings():
            whole = await self._outcome(recording, [recording.body])
            for variant in deliveries(recording.body, self._seed()):
                assert await self._outcome(recording, variant.chunks) == whole, variant.name

    @check
    async def test_events_come_in_order_and_end_once(self) -> None:
        """PV-1, PV-4: a beginning first, one end last, blocks opened before they end, whole characters."""
        for recording in self._recordings():
            events = await self._events(recording, [recording.body])
            assert isinstance(events[0], ResponseStarted), "the response must be told before its content"
            assert [type(event) for event in events].count(StreamEnd) == 1, "exactly one end"
            assert isinstance(events[-1], StreamEnd), "the end is last"
            _check_blocks(events)

    # Ends

    @check
    async def test_a_cut_is_never_a_success_that_was_not_there(self) -> None:
        """PV-2: a prefix ends unknown or failed, or, after the dialect's own sign, just like the whole."""
        for recording in self._recordings():
            whole = await self._outcome(recording, [recording.body])
            for variant in cuts(recording.body, self._seed(), inside=8):
                for end in ("eof", "cut", "reset"):
                    got = await self._outcome(recording, variant.chunks, end)
                    where = f"{variant.name}, {end}: {got}"
                    assert got == whole or got.reason in ("unknown", "error"), where
                    assert whole.text.startswith(got.text), where

    @check
    async def test_no_answer_is_a_transport_error(self) -> None:
        """PV-2: the connection is refused, or closed before a head."""
        async with ReplayServer(Replay(head="refused")) as server:
            await self._expect_error(server.url, "transport")
        await self._expect_error(server.url, "transport")

    @check
    async def test_error_statuses_have_their_kind(self) -> None:
        """PV-9, PV-11: by the status alone, also if the body never ends."""
        for status, kind in _STATUSES.items():
            for end in ("eof", "held-open"):
                replay = Replay(chunks=b'{"error":', status=status, content_type="application/json", end=end)
                async with ReplayServer(replay) as server:
                    await self._expect_error(server.url, kind)

    @check
    async def test_a_body_of_another_kind_is_no_success(self) -> None:
        """PV-12: a page of a proxy, a JSON object, nothing at all."""
        for body, kind in (
            (b"<html>hi</html>", "text/html"),
            (b'{"ok":true}', "application/json"),
            (b"", "text/html"),
        ):
            async with ReplayServer(Replay(chunks=body, content_type=kind)) as server:
                assert (await self._read(server.url)).reason in ("error", "unknown")

    @check
    async def test_damage_ends_once_and_raises_nothing(self) -> None:
        """PV-1: rubbish from a provider is a typed end."""
        for recording in self._recordings():
            for variant in corruptions(recording.body, self._seed()):
                events = await self._events(recording, variant.chunks)
                assert [type(event) for event in events].count(StreamEnd) == 1, variant.name
                assert isinstance(events[-1], StreamEnd), variant.name

    # Stops

    @check
    async def test_leaving_closes_the_connection(self) -> None:
        """PV-3: after each event, by closing the iterator, twice; nothing is left, the next request works."""
        for recording in self._recordings():
            count = len(await self._events(recording, [recording.body]))
            replay = Replay(chunks=[recording.body], content_type=recording.content_type, end="held-open")
            async with ReplayServer(replay) as server:
                provider = self.open_provider(server.url)
                for after in range(1, count + 1):
                    stream: Any = provider.stream(self.request())
                    for _ in range(after):
                        await anext(stream)
                    await stream.aclose()
                    await stream.aclose()
                    await server.until(lambda server: server.busy == 0)
                await provider.aclose()
                await server.until(lambda server: server.open_connections == 0)

    @check
    async def test_cancelling_closes_the_connection(self) -> None:
        """PV-3: before the first byte, and in the middle of a body."""
        recording = self._recordings()[0]
        held = Replay(chunks=[recording.body[:40]], content_type=recording.content_type, end="held-open")
        for replay in (Replay(head="never"), held):
            async with ReplayServer(replay) as server:
                provider = self.open_provider(server.url)
                task = asyncio.ensure_future(_drain(provider, self.request()))
                await server.until(lambda server: server.busy == 1)
                task.cancel()
                done = await asyncio.gather(task, return_exceptions=True)
                assert isinstance(done[0], asyncio.CancelledError), "a cancel must not be swallowed"
                await server.until(lambda server: server.open_connections == 0)
                await provider.aclose()

    @check
    async def test_closing_is_idempotent(self) -> None:
        """`aclose` may come twice, and before any request."""
        provider = self.open_provider("http://127.0.0.1:1")
        await provider.aclose()
        await provider.aclose()

    # What the checks share

    def _recordings(self) -> Sequence[Recording]:
        assert self.recordings, "give at least one Recording"
        return self.recordings

    def _seed(self) -> int:
        if self.seed is None:
            self.seed = random.randrange(10**6)  # noqa: S311
        print(f"seed {self.seed}")  # noqa: T201 - told when the test fails
        return self.seed

    async def _events(
        self, recording: Recording, chunks: Sequence[bytes], end: End = "eof"
    ) -> list[ProviderEvent]:
        replay = Replay(chunks=chunks, content_type=recording.content_type, end=end)
        async with ReplayServer(replay) as server:
            provider = self.open_provider(server.url)
            try:
                return await _drain(provider, self.request())
            finally:
                await provider.aclose()

    async def _outcome(self, recording: Recording, chunks: Sequence[bytes], end: End = "eof") -> Outcome:
        return _outcome(await self._events(recording, chunks, end))

    async def _read(self, base_url: str) -> Outcome:
        provider = self.open_provider(base_url)
        try:
            return _outcome(await _drain(provider, self.request()))
        finally:
            await provider.aclose()

    async def _expect_error(self, base_url: str, kind: str) -> None:
        got = await self._read(base_url)
        assert (got.reason, got.error) == ("error", kind), got


async def _drain(provider: Provider, request: ModelRequest) -> list[ProviderEvent]:
    return [event async for event in provider.stream(request)]


def _outcome(events: Sequence[ProviderEvent]) -> Outcome:
    assembly = Assembly("answer")
    for event in events:
        assembly.feed(event)
    end, message = assembly.end, assembly.message()
    assert end is not None, "the stream ended without a StreamEnd"
    assert (end.error is not None) == (end.reason == "error"), "an error has an ErrorInfo, nothing else has"
    calls = tuple((call.tool, repr(call.arguments), call.args_error is None) for call in message.tool_calls)
    ids = [call.call_id for call in message.tool_calls]
    assert len({*ids}) == len(ids), "call ids are unique"
    return Outcome(end.reason, end.error.kind if end.error else None, message.text, message.reasoning, calls)


def _check_blocks(events: Sequence[ProviderEvent]) -> None:
    seen: dict[int, type] = {}
    ended: set[int] = set()
    for event in events:
        if isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta):
            text = event.args if isinstance(event, ToolCallDelta) else event.text
            assert event.block not in ended, f"block {event.block} goes on after its end"
            assert seen.setdefault(event.block, type(event)) is type(event), (
                f"block {event.block} changes its kind"
            )
            if isinstance(text, str):
                text.encode()  # raises for half a character
        elif isinstance(event, BlockEnded):
            assert event.block not in ended, f"block {event.block} ends twice"
            ended.add(event.block)


__all__ = ["Outcome", "ProviderConformance", "Recording", "check"]
