"""The pump: one connection that follows one run, whatever the protocol (SV-40 … SV-62).

A connection is a cursor into the run's ring and costs nothing per delta but taking it, writing it and sending it. Three
things end it: the reader's own end (its terminal event was sent: a clean close), the peer (it left, or accepts nothing),
and us (drain, a time limit, a fault of the server). In the last case the run goes on, so the stream is *cut, not closed*:
first a note, then `StreamCut` is raised before the last chunk, and the server breaks the connection off. A clean close
without a terminal event would be shown as a complete answer by most clients (SV-57).

What a protocol makes of facts and deltas is a `Reader`; this file knows none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeAlias

from starlette.types import Receive, Scope, Send

from ..clock import wait_any
from ..core.agui.frames import StartOver
from ..core.agui.wire import Flow
from ..core.sse import comment
from ..errors import CursorAhead, JournalError, RunNotFound
from ..events import Delta
from ..records import Record
from ..runs.follow import Follower
from .registry import Registry
from .settings import StreamOptions

logger = logging.getLogger("pilothouse.server")

HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
"""On every stream, so that no proxy on the way holds it back (SV-40)."""

ABORT: Final = "pilothouse.abort"
"""ASGI extension: breaks the connection off without waiting for what was written to be taken."""

_BATCH_BYTES: Final = 64 * 1024

MERGE_S: Final = 0.0005
"""How long the pieces of a stream that was just written to may gather. A model's words come a hundred times slower."""


class StreamCut(Exception):
    """A stream ended while its run goes on. Raised through the ASGI server, which breaks the connection off."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"stream cut: {reason}")


class _Gone(Exception):
    """The peer left."""


class _Cut(Exception):
    def __init__(self, reason: str, *, dead: bool = False) -> None:
        self.reason, self.dead = reason, dead
        super().__init__(reason)


class _Fault(Exception):
    """A reader failed."""


class Closing(Exception):
    """There is nothing to follow: `data` is the end of the stream."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        super().__init__("nothing to follow")


class Reader(Protocol):
    """What a protocol makes of a run for one connection."""

    @property
    def ended(self) -> bool:
        """The terminal event was made."""
        ...

    @property
    def flow(self) -> Flow | None:
        """The short way for flowing text, if there is one now."""
        ...

    @property
    def may_pause(self) -> bool:
        """Nothing is in flight in the run, so it may be at rest."""
        ...

    async def feed(self, item: Record | Delta) -> bytes:
        """What is to be sent because of a fact or delta."""
        ...

    async def rest(self) -> bytes:
        """What is to be sent when nothing more is there at present."""
        ...

    async def finish(self) -> bytes:
        """What is to be sent when nothing more will come."""
        ...

    def cut(self, reason: str) -> bytes:
        """A note that the connection breaks off, and why; empty where none can stand."""
        ...

    def error(self, code: str, message: str) -> bytes:
        """A terminal event for a fault of ours."""
        ...

    def restart(self) -> Reader:
        """A reader of the same run from its first frame (SV-47)."""
        ...


class Followed(Protocol):
    """A run that can be followed."""

    @property
    def key(self) -> str: ...

    async def ready(self) -> None:
        """Waits while it is about to be taken up again."""
        ...

    def follow(self, after: int = 0, *, deltas: bool = True, through_unknown: bool = False) -> Follower:
        """Its facts, then live."""
        ...


Opening: TypeAlias = Callable[[], Awaitable[tuple[Followed, Reader]]]
"""Gives the run and its reader; it may take its time (a queued send), and may raise `Closing`."""


class Stream:
    """An ASGI response that follows a run to the end of what its reader wants.

    Args:
        run, tenant, face: by which it is counted.
        opening: gives the run and its reader.
        headers: besides those of every stream.
        on_gone: called when the peer left and the run goes on.
        before: what is sent in front of the run.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        run: str,
        tenant: str,
        face: str,
        opening: Opening,
        headers: Mapping[str, str],
        on_gone: Callable[[], None] = lambda: None,
        before: AsyncIterator[bytes] | None = None,
    ) -> None:
        self._before = before
        self.run = run
        self.tenant = tenant
        self.face = face
        self._registry = registry
        self._opening = opening
        self._headers = headers
        self._on_gone = on_gone
        self._reader: Reader | None = None
        self._cutting: asyncio.Future[str] | None = None
        self._writing_since: float | None = None
        self._last_write = 0.0
        self._abort: Callable[[], object] | None = None

    @property
    def run_name(self) -> str:
        """The run as its client knows it."""
        return self._headers.get("Pilothouse-Run-Id", "") or "-"

    def cut(self, reason: str) -> None:
        """Breaks it off, with a note; the run goes on."""
        if self._cutting is not None and not self._cutting.done():
            self._cutting.set_result(reason)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream."""
        self._abort = (scope.get("extensions") or {}).get(ABORT)
        self._cutting = asyncio.get_running_loop().create_future()
        mine = [(name.lower().encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, *mine]})
        cuts: list[_Cut] = []
        async with self._registry.open(self):
            try:
                await self._write(send, _prelude(self._registry.options))
                await self._guarded(receive, send)
            except* _Gone:
                self._on_gone()
            except* _Cut as group:
                cuts += _leaves(group)
            if cuts:
                await self._break_off(send, cuts[0])

    async def _guarded(self, receive: Receive, send: Send) -> None:
        """The pump, with somebody who watches the peer and the time."""
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(_until_gone(receive)), group.create_task(self._watch(send))]
            try:
                last = await self._pump(send)
                await send({"type": "http.response.body", "body": last, "more_body": False})
            finally:
                for helper in helpers:
                    helper.cancel()

    async def _break_off(self, send: Send, cut: _Cut) -> None:
        registry, reader = self._registry, self._reader
        registry.cuts[cut.reason] += 1
        logger.info("stream of run %s cut: %s", self.run, cut.reason)
        self._on_gone()
        if not cut.dead and reader is not None:
            note = reader.cut(cut.reason)
            if registry.options.cut == "error":  # SV-58
                note += reader.error("stream_cut", "the connection ends here, the run goes on")
                await send({"type": "http.response.body", "body": note, "more_body": False})
                return
            if note:
                await send({"type": "http.response.body", "body": note, "more_body": True})
        if cut.dead and self._abort is not None:
            self._abort()
        raise StreamCut(cut.reason)

    # Pumping

    async def _pump(self, send: Send) -> bytes:
        """Follows the run to the end of what its reader wants; returns what is still to be sent."""
        try:
            run, reader = await self._opening()
        except Closing as closing:
            return closing.data
        while True:
            self._reader = reader
            try:
                await run.ready()
                await self._send_before(send)
                return await self._follow(run, reader, send)
            except (StartOver, CursorAhead):
                self._registry.start_overs += 1
                reader = reader.restart()
            except (JournalError, RunNotFound) as error:
                logger.warning("the journal failed under a stream of run %s: %s", self.run, error)
                raise _Cut("journal_unavailable") from error
            except _Fault:
                # Ours, and deterministic: a cut would make the client come back for it for ever (SV-59).
                return reader.error("internal", "the stream of this run cannot be shown")

    async def _send_before(self, send: Send) -> None:
        before, self._before = self._before, None
        if before is None:
            return
        try:
            async for data in before:
                await self._write(send, data)
        except (JournalError, RunNotFound, OSError):
            raise
        except Exception as error:
            logger.exception("what stands in front of run %s cannot be shown", self.run)
            raise _Fault from error

    async def _follow(self, run: Followed, reader: Reader, send: Send) -> bytes:
        """Takes what is there, makes one write of it, and waits. Neighbouring pieces become one frame (SV-43).

        A reader of a fast stream is not woken for each piece: for `MERGE_S` after a write, pieces are let gather. A task
        that is woken costs more than all that is done to a piece.
        """
        registry, key = self._registry, self.run
        monotonic, now = registry.clock.monotonic, asyncio.get_running_loop().time
        flow: Flow | None = None
        written = 0.0
        async with run.follow() as follower:
            waiter_of, drain = follower.waiter, follower.drain
            while True:
                if (waiter := waiter_of()) is not None:
                    try:
                        await waiter
                    except asyncio.CancelledError:
                        follower.forget(waiter)
                        raise
                ready: Record | Delta | None = None
                if flow is not None:
                    ready = drain(flow)
                    if ready is None and flow.pending and (early := written + MERGE_S - now()) > 0:
                        await asyncio.sleep(early)
                        ready = drain(flow)
                nothing = ready is None and (flow is None or not flow.pending)
                if nothing and (ready := await anext(follower, None)) is None:
                    break
                data = b"" if flow is None else flow.write(registry.shared(key))
                if ready is not None:
                    data += await self._batch(ready, reader, follower)
                    flow = reader.flow
                    if reader.ended:
                        return data
                if data:
                    # As `_write`, without a call more: this is done for each delta and each reader.
                    self._writing_since = self._last_write = monotonic()
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                    self._writing_since = None
                    written = now()
        return await self._made(reader.finish())

    async def _batch(self, first: Record | Delta, reader: Reader, follower: Follower) -> bytes:
        """What is there, beginning with something that does not just flow."""
        shared = self._registry.shared(self.run)
        out: list[bytes] = []
        size = 0
        item: Record | Delta | None = first
        while item is not None and size <= _BATCH_BYTES:
            flow = reader.flow
            if flow is None or type(item) is not Delta or not flow.take(item):
                if flow is not None:
                    out.append(flow.write(shared))
                made = await self._made(reader.feed(item))
                out.append(made)
                size += len(made)
                if reader.ended:
                    return b"".join(out)
            item = follower.delta_nowait()
        if (flow := reader.flow) is not None:
            out.append(flow.write(shared))
        elif reader.may_pause and follower.idle:
            out.append(await self._made(reader.rest()))
        return b"".join(out)

    async def _made(self, making: Awaitable[bytes]) -> bytes:
        """What a reader makes of something."""
        try:
            return await making
        except (StartOver, JournalError, RunNotFound):
            raise
        except Exception as error:
            logger.exception("the projection of run %s failed", self.run)
            raise _Fault from error

    async def _write(self, send: Send, data: bytes) -> None:
        if not data:
            return
        self._writing_since = self._last_write = self._registry.clock.monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._writing_since = None

    async def _watch(self, send: Send) -> None:
        """Fills silences with comments, finds dead peers, and keeps the limit of a connection."""
        clock, options = self._registry.clock, self._registry.options
        assert self._cutting is not None
        began = clock.monotonic()
        beat = comment(" " * options.keepalive_padding)
        while True:
            now = clock.monotonic()
            waits = [self._last_write + options.keepalive - now]
            if self._writing_since is not None:
                waits = [self._writing_since + options.write_timeout - now]
            if options.max_duration is not None:
                waits.append(began + options.max_duration - now)
            if await wait_any(clock, max(min(waits), 0.001), self._cutting):
                raise _Cut(self._cutting.result())
            now = clock.monotonic()
            if self._writing_since is not None and now - self._writing_since >= options.write_timeout:
                raise _Cut("write_timeout", dead=True)
            if options.max_duration is not None and now - began >= options.max_duration:
                raise _Cut("max_duration")
            if self._writing_since is None and now - self._last_write >= options.keepalive:
                await self._write(send, beat)


def _prelude(options: StreamOptions) -> bytes:
    """The first bytes: when to come back, and enough to get through buffers (SV-42)."""
    hint = b"retry: %d\n\n" % round(options.retry_hint * 1000)
    return hint + comment(" " * options.prelude_padding)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise _Gone


def _leaves(group: BaseExceptionGroup[_Cut]) -> list[_Cut]:
    found: list[_Cut] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


__all__ = ["ABORT", "HEADERS", "Closing", "Reader", "Stream", "StreamCut"]
