"""Reading of a provider's stream: whatever the provider does, the reader sees a well-formed response (PV-1 … PV-3).

`supervise` guarantees: `ResponseStarted` first, exactly one `StreamEnd`, last; a fault of the adapter (an exception, a
quiet end, something that is no event) is normalised and logged; a stop and the two limits on silence end the
stream whether the provider obeys or not; leaving closes iterator and connection before it returns. Nothing is
raised but `CancelledError` of the reader's own task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from msgspec.structs import replace

from ..cancel import ENDING, LEAVING, is_closing
from ..contracts import Clock, Provider
from ..core.canonical import NotJSON, check, misshapen
from ..errors import ProviderError
from ..messages import StopReason
from ..responses import (
    BlockEnded,
    ErrorInfo,
    ErrorKind,
    ModelRequest,
    Notice,
    ProviderEvent,
    ReasoningDelta,
    ResponseStarted,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
    UsageUpdate,
)
from .interrupt import GRACE, Interrupted, Interruptible
from .reading import Gate, Silence, Stop
from .timers import Alarm

logger: Final = logging.getLogger("pilothouse.loop")

_EVENTS: Final = frozenset[type](
    {ResponseStarted, TextDelta, ReasoningDelta, ToolCallDelta, BlockEnded, UsageUpdate, Notice}
)
CANCELLED: Final = StreamEnd("cancelled")


def supervise(
    provider: Provider,
    request: ModelRequest,
    *,
    scope: Stop,
    clock: Clock,
    silence: Silence | None = None,
    gate: Gate | None = None,
) -> Response:
    """Opens one response as an async context manager; read it with `async for`, or faster with `each`.

    Args:
        provider: who is asked.
        request: what is asked.
        scope: its cancellation ends the stream as `StreamEnd("cancelled")`.
        clock: measures silence.
        silence: limits on waiting for the provider.
        gate: closed while reading is paused; time spent at it is not the provider's.
    """
    return Response(provider, request, scope, clock, silence or Silence(), gate or Gate())


class Response:
    """A response while it is read. Made by `supervise`; to be read in the task that entered it.

    Attributes:
        end: how it ended, None while it has not.
        events: how many events came, the end not counted.
    """

    __slots__ = (
        "_alarm",
        "_cancels",
        "_clock",
        "_closed",
        "_closing",
        "_done",
        "_events_then",
        "_gate",
        "_iterator",
        "_now",
        "_paused",
        "_provider",
        "_pulled",
        "_reading",
        "_request",
        "_scope",
        "_shut_since",
        "_silence",
        "_stream",
        "_task",
        "_timed",
        "_unsubscribe",
        "_unwatch",
        "_verdict",
        "_waits_since",
        "end",
        "events",
    )

    def __init__(
        self,
        provider: Provider,
        request: ModelRequest,
        scope: Stop,
        clock: Clock,
        silence: Silence,
        gate: Gate,
    ) -> None:
        self.end: StreamEnd | None = None
        self.events = 0
        self._task: asyncio.Task[Any] | None = None  # that reads it
        self._cancels = 0  # of that task, by others
        self._provider = provider
        self._request = request
        self._scope = scope
        self._clock = clock
        self._now = clock.monotonic  # bound once: it is asked at each wait
        self._silence = silence
        self._gate = gate
        self._verdict: StreamEnd | None = None  # set from outside: the reader is to end like this
        self._stream: AsyncIterator[ProviderEvent] | None = None
        self._iterator: AsyncIterator[ProviderEvent] | None = None
        self._pulled: list[ProviderEvent] = []
        self._timed = silence.idle is not None or silence.first_due is not None
        self._reading = Interruptible(clock, self._on_wait if self._timed else None)
        self._alarm: Alarm | None = None  # made at the first wait that it bounds
        self._waits_since = 0.0
        self._events_then = -1  # how many there were when the present silence began
        self._paused = False
        self._unsubscribe: Callable[[], None] | None = None
        self._closing = False
        self._done = False
        self._closed: asyncio.Future[None] | None = None  # only where somebody waits for another's closing
        self._unwatch: Callable[[], None] | None = None
        self._shut_since: float | None = None

    # Reading

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._cancels = _cancels()
        self._unsubscribe = self._scope.on_cancel(self._stopped)
        if self._timed and self._gate.watch is not None:
            self._unwatch = self._gate.watch(self._gate_moved)
            self._gate_moved()
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ProviderEvent:
        if not self._pulled:
            if self.end is not None or self._closing:
                raise StopAsyncIteration
            try:
                await self._reading.run(self._pull())
            except Interrupted:
                self._close_with(self._pulled.append)
        return self._pulled.pop(0)  # two at most are there

    def each(self, consume: Callable[[ProviderEvent], object]) -> Awaitable[StreamEnd]:
        """Reads it to its end, giving every event to `consume` (the end too); returns the end.

        What `consume` raises passes through; the response is then to be left.
        """
        return self._reading.run(self._pump(consume), otherwise=partial(self._close_with, consume))

    async def _pump(self, consume: Callable[[ProviderEvent], object]) -> StreamEnd:
        admit, paused = self._admit, self._gate.paused
        try:
            if paused:
                await self._pass()
            async for event in self._opened():
                if self.events and self._verdict is None and type(event) in _EVENTS:
                    self.events += 1
                    try:  # as `_admit` does it, for all but the first and the last
                        consume(event)
                    except Exception as error:
                        raise _blamed(event, error) from error
                elif admit(event, consume):
                    break
                if paused:
                    await self._pass()
        except BaseException as error:  # noqa: BLE001 - judged there
            self._judge(error)
        return self._close_with(consume)

    async def _pull(self) -> None:
        """Reads until there is something to give."""
        give = self._pulled.append
        try:
            while not self._pulled:
                if self._gate.paused:
                    await self._pass()
                self._iterator = self._iterator or aiter(self._opened())
                self._admit(await anext(self._iterator), give)
        except StopAsyncIteration:
            self._close_with(give)
        except BaseException as error:  # noqa: BLE001 - judged there
            self._judge(error)
            self._close_with(give)

    def _admit(self, event: ProviderEvent, consume: Callable[[ProviderEvent], object]) -> bool:
        """Gives an event on as the contract wants it; True if it was the last one."""
        if self._verdict is not None:  # a stop wins over what became ready in the same step
            self._close_with(consume)
            return True
        kind = type(event)
        if kind in _EVENTS:
            if self.events == 0:
                if self._too_late():
                    self._close_with(consume)
                    return True
                if kind is not ResponseStarted:
                    self.events = 1
                    consume(ResponseStarted())
            self.events += 1
            try:
                consume(event)
            except Exception as error:
                raise _blamed(event, error) from error
            return False
        if kind is StreamEnd:
            self._finish(self._checked(event))  # type: ignore[arg-type]
            consume(event if self.end is event else self.end)  # type: ignore[arg-type]
            return True
        self._fault("what it yielded is no provider event: %s", kind.__name__)
        return False

    def _judge(self, error: BaseException) -> None:
        """What an exception out of the stream means: an adapter's fault is an end, a stop is ours or somebody else's."""
        if isinstance(error, _Reader):
            raise error.error
        if isinstance(error, asyncio.CancelledError):
            if self._verdict is None:
                if _cancels() != self._cancels:
                    raise error
                self._fault("it was cancelled from inside: nobody had stopped it")
                self._verdict = self._broken()
            return
        if isinstance(error, LEAVING) or is_closing(error, self._task):
            raise error
        self._fault("it raised %s", type(error).__name__, exc_info=True)
        if self._verdict is None:
            self._verdict = self._of_exception(error)

    def _close_with(self, consume: Callable[[ProviderEvent], object]) -> StreamEnd:
        """Ends the reading with the verdict, or as a quiet end, and says so; returns how it ended."""
        if self.end is None:
            consume(self._finish(self._verdict or self._quiet_end()))
        assert self.end is not None
        return self.end

    def _opened(self) -> AsyncIterator[ProviderEvent]:
        """The provider's own iterator; an empty one if the reader is to end before anything was asked."""
        if self._verdict is not None:
            return _nothing()
        self._stream = self._provider.stream(self._request)
        return self._stream

    async def _pass(self) -> None:
        if self._gate.wait is None:
            return
        self._paused = True
        began = self._clock.monotonic() if self._timed else 0.0
        await self._gate.wait()
        self._paused = False
        if self._timed:
            self._events_then = -1  # silence begins anew: a pause is not the provider's
            if self._silence.first_due is not None and self._unwatch is None:
                self._silence.first_due += self._clock.monotonic() - began

    # Ends

    def _finish(self, end: StreamEnd) -> StreamEnd:
        if self.end is None:
            self.end = end
            if self._alarm is not None:
                self._alarm.stop()
        return self.end

    def _checked(self, end: StreamEnd) -> StreamEnd:
        if end.reason == "unknown" and self.events == 0:
            return _no_response()
        if end.reason == "error" and end.error is None:
            self._fault("it ended as an error without saying which")
            return StreamEnd("error", end.raw_reason, ErrorInfo("protocol", "error without a description"))
        if end.reason == "cancelled":
            self._fault("it says that it was cancelled, and nobody has stopped it")
            return self._broken(end.raw_reason)
        if end.reason in _PLAIN_ENDS and (end.raw_reason is None or type(end.raw_reason) is str):
            return end
        return self._recordable(end)

    def _recordable(self, end: StreamEnd) -> StreamEnd:
        """An end whose words a journal takes: what an adapter put together is not looked at before."""
        error = end.error
        if isinstance(error, ErrorInfo):
            try:
                check(error.native)
            except NotJSON as fault:
                self._fault("the native object of its error cannot be recorded: %s", fault)
                error = replace(error, native=None)
                end = replace(end, error=error)
            if isinstance(error.message, str):
                error = replace(error, message="")  # any text will do
        if not (why := misshapen(replace(end, error=error))):
            return end
        self._fault("its end cannot be recorded: %s", why)
        return StreamEnd("error", error=ErrorInfo("bug", "an end that is none, of the provider's adapter"))

    def _broken(self, raw_reason: str | None = None) -> StreamEnd:
        """The end of a response that went away without a sign."""
        return StreamEnd("unknown", raw_reason, cause="reset") if self.events else _no_response()

    def _quiet_end(self) -> StreamEnd:
        if self.events == 0:
            return _no_response()
        self._fault("its stream ended without an end")
        return StreamEnd("unknown", cause="eof")

    def _of_exception(self, error: BaseException) -> StreamEnd:
        if isinstance(error, ProviderError) and error.info is not None:
            return StreamEnd("error", error=error.info)
        if isinstance(error, OSError):  # ConnectionError, TimeoutError, ssl and socket errors
            return self._broken() if self.events else _no_response(str(error))
        kind: ErrorKind = "bug"
        return StreamEnd("error", error=ErrorInfo(kind, f"{type(error).__name__} in the provider's adapter"))

    def _fault(self, text: str, *args: object, exc_info: bool = False) -> None:
        logger.warning("fault of provider %s: %s", self._provider.tag, text % args, exc_info=exc_info)

    # Stop and silence

    def _stopped(self) -> None:
        self._decide(CANCELLED)

    def _decide(self, end: StreamEnd) -> None:
        if self.end is None and self._verdict is None:
            self._verdict = end
            self._reading.interrupt()

    def _on_wait(self) -> None:
        if self._paused or self.events == self._events_then:
            return
        # Later moments are further away, and the alarm finds that out by itself; only the first ones can be nearer.
        nearer = self._events_then <= 0
        self._events_then = self.events
        self._waits_since = self._now()
        if nearer:
            if self._alarm is None:
                self._alarm = Alarm(self._clock, self._due, self._silent)
            self._alarm.look()

    def _gate_moved(self) -> None:
        """A pause suspends the limits, and a full window follows it (AC-57), whatever is waited for meanwhile."""
        now = self._clock.monotonic()
        if self._gate.paused:
            self._shut_since = now if self._shut_since is None else self._shut_since
        elif self._shut_since is not None:
            if self._silence.first_due is not None:
                self._silence.first_due += now - self._shut_since
            self._shut_since, self._waits_since = None, now
            if self._alarm is not None and self.end is None:
                self._alarm.look()

    def _too_late(self) -> bool:
        """Whether the first event came when its time was over: `now >= due` (AC-74)."""
        due = self._silence.first_due
        if due is None or self._shut_since is not None or self._clock.monotonic() < due:
            return False
        self._silent()
        return True

    def _due(self) -> float | None:
        if self._paused or self.end is not None or self._shut_since is not None:
            return None
        if self.events == 0:
            return self._silence.first_due
        if self._silence.idle is None:
            return None
        if not self._reading.waiting:  # a slow reader: silence is counted from its next read
            return self._clock.monotonic() + self._silence.idle
        return self._waits_since + self._silence.idle

    def _silent(self) -> None:
        kind = self._silence.idle_kind if self.events else self._silence.first_kind
        self._decide(StreamEnd("error", error=ErrorInfo(kind, _SILENT[kind])))

    # Leaving

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes iterator and connection, also under a read in another task, and returns when they are closed."""
        if self._closing:
            if self._closed is None:
                self._closed = asyncio.get_running_loop().create_future()
            if not self._done:
                await asyncio.shield(self._closed)
            return
        self._closing = True
        try:
            if self.end is None:
                self._decide(CANCELLED)
            if self._unsubscribe is not None:
                self._unsubscribe()
            if self._unwatch is not None:
                self._unwatch()
            if self._alarm is not None:
                self._alarm.stop()
            if self._reading.running:
                await self._reading.left()
            await self._close_stream()
        finally:
            self._done = True
            self._reading.forget()  # no cycle is left for the collector
            self._alarm = self._unsubscribe = self._unwatch = None
            if self._closed is not None:
                self._closed.set_result(None)

    async def _close_stream(self) -> None:
        close = getattr(self._stream, "aclose", None)
        if close is None:
            return
        try:  # one that has nothing to wait for is closed by its first step: there is nothing to bound
            closing = close()
            waits_for = closing.send(None)
        except StopIteration:
            return
        except ENDING:
            raise
        except BaseException:  # noqa: BLE001 - an adapter that cannot close is no reason to fail the reader
            self._fault("closing its stream failed", exc_info=True)
            return
        task, cancels = asyncio.current_task(), _cancels()
        try:
            await Interruptible(self._clock, limit=GRACE).run(closing, waits_for)
        except Interrupted:
            self._fault("its stream does not close")
        except ENDING:
            raise
        except BaseException as error:
            stopped = isinstance(error, asyncio.CancelledError) and _cancels() != cancels
            if stopped or is_closing(error, task):
                raise
            self._fault("closing its stream failed", exc_info=True)


class _Reader(Exception):
    """Carries what the reader raised past what is caught of the provider."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _blamed(event: ProviderEvent, error: Exception) -> Exception:
    """Whose fault it is that an event could not be taken: the adapter's, where the event holds what it must not hold."""
    why = _wrong_in(event)
    if not why:
        return _Reader(error)
    kind: ErrorKind = "bug"
    text = f"the provider's adapter yielded a wrong {type(event).__name__}: {why}"
    return ProviderError(text, ErrorInfo(kind, text))


def _wrong_in(event: ProviderEvent) -> str:
    """What is wrong in an event, empty if nothing is. Bytes are looked for apart: msgspec writes them as text."""
    for name in event.__struct_fields__:
        if isinstance(getattr(event, name), bytes | bytearray):
            return f"{name} is bytes"
    return misshapen(event)


def _cancels() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def _nothing() -> AsyncIterator[ProviderEvent]:
    return
    yield  # makes it an iterator


_PLAIN_ENDS: Final = frozenset[StopReason](
    {"complete", "tool_calls", "length", "content_filter", "refusal", "pause_turn", "unknown"}
)
"""Ends with nothing in them but words."""

_SILENT: Final = {
    "send_timeout": "no response began in time",
    "idle_timeout": "the response fell silent",
    "stalled": "the run fell silent",
}


def _no_response(detail: str = "") -> StreamEnd:
    text = "no response" + (f": {detail}" if detail else "")
    return StreamEnd("error", error=ErrorInfo("transport", text))
