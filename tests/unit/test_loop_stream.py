"""supervise(): whatever a provider does, its reader sees a well-formed response."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pilothouse.clock import SystemClock
from pilothouse.errors import ProviderError
from pilothouse.loop.reading import Gate, Silence
from pilothouse.loop.stream import Response, supervise
from pilothouse.messages import Model
from pilothouse.responses import (
    ErrorInfo,
    ModelRequest,
    ProviderEvent,
    ResponseStarted,
    StreamEnd,
    TextDelta,
)
from pilothouse.scope import Scope
from pilothouse.testing import Hold, ScriptedProvider, StepClock
from pilothouse.testing.scripted import Cut, Sleep

REQUEST = ModelRequest(Model("m"), ())


class Plain:
    """A provider of one bare generator."""

    tag = "plain"
    default_model = Model("m")

    def __init__(self, make: Callable[[], AsyncIterator[Any]]) -> None:
        self._make = make

    def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        return self._make()

    async def aclose(self) -> None:
        return None


def opened(provider: Any, scope: Scope | None = None, **options: Any) -> Response:
    clock = options.pop("clock", None) or SystemClock()
    return supervise(provider, REQUEST, scope=scope or Scope(None), clock=clock, **options)


async def read(provider: Any, **options: Any) -> list[ProviderEvent]:
    """Reads both ways; they must agree."""
    pulled, pushed = [], []
    async with opened(provider, **options) as response:
        async for event in response:
            pulled.append(event)
    async with opened(provider, **options) as response:
        end = await response.each(pushed.append)
    assert pulled == pushed
    assert pushed[-1] is end
    return pulled


def plain(*events: Any, error: BaseException | None = None) -> Plain:
    async def make() -> AsyncIterator[Any]:
        for event in events:
            yield event
        if error is not None:
            raise error

    return Plain(make)


TEXT = TextDelta(0, "x")
COMPLETE = StreamEnd("complete")


async def test_a_good_response_passes_unchanged() -> None:
    """PV-1"""
    events = [ResponseStarted("r"), TEXT, COMPLETE]
    assert await read(plain(*events)) == events


async def test_an_opening_is_made_up_and_what_follows_the_end_is_not_read() -> None:
    """PV-1: ResponseStarted before any content, exactly one end, last."""
    assert await read(plain(TEXT, COMPLETE, TEXT, StreamEnd("length"))) == [ResponseStarted(), TEXT, COMPLETE]


async def test_what_is_no_event_is_dropped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """PV-1"""
    with caplog.at_level(logging.WARNING):
        assert await read(plain(TEXT, "rubbish", COMPLETE)) == [ResponseStarted(), TEXT, COMPLETE]
    assert "plain: what it yielded is no provider event: str" in caplog.text


@pytest.mark.parametrize(
    ("provider", "end"),
    [
        (plain(), StreamEnd("error", error=ErrorInfo("transport", "no response"))),
        (
            plain(StreamEnd("unknown", cause="eof")),
            StreamEnd("error", error=ErrorInfo("transport", "no response")),
        ),
        (plain(TEXT), StreamEnd("unknown", cause="eof")),
        (plain(TEXT, error=ConnectionResetError()), StreamEnd("unknown", cause="reset")),
        (
            plain(error=ConnectionRefusedError("refused")),
            StreamEnd("error", error=ErrorInfo("transport", "no response: refused")),
        ),
        (
            plain(TEXT, error=KeyError("secret")),
            StreamEnd("error", error=ErrorInfo("bug", "KeyError in the provider's adapter")),
        ),
        (
            plain(error=ProviderError("x", ErrorInfo("quota", "pay"))),
            StreamEnd("error", error=ErrorInfo("quota", "pay")),
        ),
        (
            plain(TEXT, StreamEnd("error")),
            StreamEnd("error", error=ErrorInfo("protocol", "error without a description")),
        ),
    ],
)
async def test_each_fault_has_its_end(provider: Plain, end: StreamEnd) -> None:
    """PV-2, [118]: nothing at all is a transport error, a cut one unknown, an exception never an exception."""
    assert (await read(provider))[-1] == end


async def test_a_call_of_stream_that_raises_is_an_end_too() -> None:
    """PV-1"""

    def broken() -> AsyncIterator[Any]:
        raise TypeError("x")

    assert (await read(Plain(broken)))[-1].error.kind == "bug"


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_stop_ends_the_stream_at_once_and_closes_it(deaf: bool) -> None:
    """LP-43: also before the first byte, and whatever the provider does."""
    for items in ([], ["a"]):
        hold, scope, clock = Hold(deaf=deaf), Scope(None), StepClock()
        provider = ScriptedProvider([*items, hold])
        seen: list[ProviderEvent] = []

        async def consume(
            provider: Any = provider, scope: Any = scope, clock: Any = clock, seen: Any = seen
        ) -> None:
            async with opened(provider, scope, clock=clock) as response:
                await response.each(seen.append)

        task = asyncio.create_task(consume())
        await hold.reached()
        scope.fire("stop", "user")
        if deaf:
            await clock.advance(0.5)
        await task
        assert seen[-1] == StreamEnd("cancelled")
        assert provider.open == 0


async def test_a_stop_before_the_request_asks_nothing() -> None:
    """LP-42, [114]"""
    scope = Scope(None)
    scope.fire("stop", "user")
    provider = ScriptedProvider("hello")
    async with opened(provider, scope) as response:
        assert [event async for event in response] == [StreamEnd("cancelled")]
    assert provider.requests == []


async def test_a_stop_wins_over_an_event_that_became_ready_in_the_same_step() -> None:
    """LP-42"""
    scope = Scope(None)
    seen: list[ProviderEvent] = []

    def consume(event: ProviderEvent) -> None:
        seen.append(event)
        if isinstance(event, TextDelta):
            scope.fire("stop", "user")

    async with opened(ScriptedProvider(["a", "b", "c"]), scope) as response:
        await response.each(consume)
    assert [type(event) for event in seen] == [ResponseStarted, TextDelta, StreamEnd]
    assert response.end == StreamEnd("cancelled")


async def test_leaving_early_closes_the_connection() -> None:
    """PV-3, [161]: after break, twice, with nothing left behind."""
    provider = ScriptedProvider(["a", "b", "c"])
    async with opened(provider) as response:
        async for event in response:
            if isinstance(event, TextDelta):
                break
    assert provider.open == 0
    await response.aclose()
    assert [event async for event in response] == []


class Stubborn:
    """A stream that cannot be closed: `aclose` raises, at once or when it is awaited."""

    def __init__(self, *, at_once: bool) -> None:
        self._at_once = at_once
        self._events = iter([TextDelta(0, "a"), StreamEnd("complete")])

    def __aiter__(self) -> Stubborn:
        return self

    async def __anext__(self) -> ProviderEvent:
        return next(self._events)

    def aclose(self) -> Any:
        if self._at_once:
            raise OSError("no")

        async def late() -> None:
            raise OSError("no")

        return late()


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_stream_that_cannot_be_closed_does_not_fail_its_reader(at_once: bool) -> None:
    """PV-3: the adapter's fault is logged; the answer that was read stands."""
    seen: list[ProviderEvent] = []
    async with opened(Plain(lambda: Stubborn(at_once=at_once))) as response:
        await response.each(seen.append)
    assert seen[-1] == StreamEnd("complete")


async def test_leaving_under_wait_for_closes_the_connection() -> None:
    """PV-3, [161]"""
    hold = Hold()
    provider = ScriptedProvider(["a", hold])
    with pytest.raises(TimeoutError):
        async with opened(provider) as response:
            async for _ in response:
                await asyncio.wait_for(anext(response), 0.01)
                await asyncio.wait_for(anext(response), 0.01)
    assert provider.open == 0


async def test_another_task_may_close_it_under_a_read() -> None:
    """PV-3, [161]: the reader ends as cancelled, and the closer returns when all is closed."""
    hold = Hold()
    provider = ScriptedProvider(["a", hold])
    response = opened(provider)
    seen: list[ProviderEvent] = []

    async def consume() -> None:
        async with response:
            await response.each(seen.append)

    task = asyncio.create_task(consume())
    await hold.reached()
    await asyncio.gather(response.aclose(), response.aclose())
    assert provider.open == 0
    await task
    assert seen[-1] == StreamEnd("cancelled")


async def test_a_cancelled_reader_closes_the_connection() -> None:
    """LP-46: the cancellation passes."""
    hold = Hold()
    provider = ScriptedProvider([hold])

    async def consume() -> None:
        async with opened(provider) as response:
            await response.each(lambda _: None)

    task = asyncio.create_task(consume())
    await hold.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert provider.open == 0


async def test_silence_before_the_first_event_is_limited() -> None:
    """LP-51"""
    clock = StepClock()
    provider = ScriptedProvider([Hold()])
    response = opened(provider, clock=clock, silence=Silence(0.5, 0.3))
    task = asyncio.create_task(_consume(response))
    await asyncio.sleep(0)
    await clock.advance(0.4)
    assert not task.done()
    await clock.advance(0.1)
    assert (await task).error.kind == "send_timeout"
    assert provider.open == 0


async def _consume(response: Response) -> StreamEnd:
    async with response:
        return await response.each(lambda _: None)


async def test_only_silence_between_events_counts() -> None:
    """AC-77: a 0.3 s limit trips on silence after one piece, not at 0.15 s gaps; a send limit does not go on."""
    clock = StepClock()
    gaps = [item for _ in range(8) for item in ("x", Sleep(0.15))]
    provider = ScriptedProvider(gaps, ["x", Sleep(0.31)], clock=clock)
    task = asyncio.create_task(_consume(opened(provider, clock=clock, silence=Silence(0.5, 0.3))))
    await clock.advance(2)
    assert await task == StreamEnd("complete")
    task = asyncio.create_task(
        _consume(opened(provider, clock=clock, silence=Silence(clock.monotonic() + 0.5, 0.3)))
    )
    await clock.advance(2)
    assert (await task).error.kind == "idle_timeout"


async def test_a_pause_is_not_the_providers_silence() -> None:
    """LP-51, AC-77: a pause of 0.6 s is followed by a full window."""
    clock = StepClock()
    paused: set[str] = set()
    opened_again = asyncio.Event()

    async def wait() -> None:
        await opened_again.wait()

    provider = ScriptedProvider(["x", Sleep(0.25), "y", Sleep(0.31)], clock=clock)
    response = opened(provider, clock=clock, silence=Silence(0.5, 0.3), gate=Gate(paused, wait))
    seen: list[ProviderEvent] = []

    def consume(event: ProviderEvent) -> None:
        seen.append(event)
        if event == TextDelta(0, "x"):
            paused.add("read")

    async def drive() -> None:
        async with response:
            await response.each(consume)

    task = asyncio.create_task(drive())
    await clock.advance(0.6)
    assert [type(event) for event in seen] == [ResponseStarted, TextDelta]
    paused.clear()
    opened_again.set()
    await clock.advance(0.27)
    assert seen[-1] == TextDelta(0, "y")
    await clock.advance(0.31)
    await task
    assert seen[-1].error.kind == "idle_timeout"


async def test_a_slow_reader_is_not_the_providers_silence() -> None:
    """[162]: only waiting for the provider counts."""
    clock = StepClock()
    provider = ScriptedProvider(["x", "y"], clock=clock)
    kinds = []
    async with opened(provider, clock=clock, silence=Silence(None, 0.3)) as response:
        async for event in response:
            kinds.append(type(event))
            await clock.advance(1)
    assert kinds == [ResponseStarted, TextDelta, TextDelta, StreamEnd]


async def test_a_deaf_provider_is_closed_by_a_limit_all_the_same() -> None:
    """LP-51: whether the provider obeys or not."""
    clock = StepClock()
    provider = ScriptedProvider(["x", Hold(deaf=True)])
    task = asyncio.create_task(_consume(opened(provider, clock=clock, silence=Silence(None, 1.0))))
    await asyncio.sleep(0)
    await clock.advance(1.0)
    assert not task.done()
    await clock.advance(0.5)
    assert (await task).error.kind == "idle_timeout"
    assert provider.open == 0


async def test_what_the_reader_raises_passes_and_the_connection_is_closed() -> None:
    provider = ScriptedProvider(["x", Cut()])

    def consume(event: ProviderEvent) -> None:
        if isinstance(event, TextDelta):
            raise LookupError("mine")

    with pytest.raises(LookupError):
        async with opened(provider) as response:
            await response.each(consume)
    assert provider.open == 0


# Ends that are none


@pytest.mark.parametrize("opening", [(), (TEXT,)])
async def test_a_cancellation_that_nobody_asked_for_is_a_broken_stream(opening: Any) -> None:
    """PV-1, LP-42: what the adapter raises or says of itself is not a stop; something was read or nothing was."""
    wanted = StreamEnd("unknown", cause="reset") if opening else "transport"
    for provider in (
        plain(*opening, error=asyncio.CancelledError()),
        plain(*opening, StreamEnd("cancelled")),
    ):
        end = (await read(provider))[-1]
        assert isinstance(end, StreamEnd)
        assert wanted in (end, end.error and end.error.kind)


async def test_a_cancellation_of_the_reading_task_passes_through() -> None:
    """PV-1: nothing is raised but that."""
    hold = Hold()

    async def make() -> AsyncIterator[Any]:
        yield TEXT
        await hold.wait()

    async def reading() -> None:
        async with opened(Plain(make)) as response:
            await response.each(lambda event: None)

    task = asyncio.create_task(reading())
    await hold.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (StreamEnd("weird"), "bug"),  # type: ignore[arg-type]
        (StreamEnd("complete", 5), "bug"),  # type: ignore[arg-type]
        (StreamEnd("error", error="oops"), "bug"),  # type: ignore[arg-type]
        (StreamEnd("error", error=ErrorInfo("weird", "x")), "bug"),  # type: ignore[arg-type]
        (StreamEnd("error", error=ErrorInfo("auth", 5)), "bug"),  # type: ignore[arg-type]
        (StreamEnd("error", error=ErrorInfo("auth", "x", native=object())), "auth"),
    ],
)
async def test_an_end_that_no_journal_would_take_is_an_error_of_the_adapter(
    end: StreamEnd, kind: str
) -> None:
    """PV-1, §6: rubbish from a provider is a typed end; what can be kept of it is kept."""
    found = (await read(plain(TEXT, end)))[-1]
    assert isinstance(found, StreamEnd)
    assert found.reason == "error"
    assert found.error is not None
    assert (found.error.kind, found.error.native) == (kind, None)
