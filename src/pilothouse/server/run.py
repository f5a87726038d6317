"""Running a server alone, under uvicorn: one address, one line if it is taken, and an end that takes care of streams.

With an open stream plain uvicorn does not stop on SIGTERM: it waits for connections that never end. So a signal begins
a drain; uvicorn is told to exit only when the streams are cut and the runs are handed over.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Final

import uvicorn
from starlette.types import Receive, Scope, Send

from ..errors import ConfigError
from .app import Server
from .auth import is_loopback
from .connection import protocol
from .signals import HANGUP, heeding
from .stream import ABORT, StreamCut

logger = logging.getLogger("pilothouse.server")

HURRIED_EXIT: Final = 3
"""After so many signals nothing is waited for any more."""


class _Uvicorn(uvicorn.Server):
    """uvicorn, whose signals begin a drain."""

    def __init__(self, config: uvicorn.Config, app: Server, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._app = app
        self._ready = ready
        self._signals = 0
        self._ending: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen."""
        await super().startup(sockets)
        if self.started and not self.should_exit:
            self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's, and that of a terminal that is closed."""
        with heeding(self.handle_exit, *HANGUP), super().capture_signals():
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second hurries, the third gives up waiting."""
        self._loop.call_soon_threadsafe(self._signalled)

    def _signalled(self) -> None:
        self._signals += 1
        if self._ending is None:
            self._ending = self._loop.create_task(self._end())
        else:
            self._app.hurry()
        if self._signals >= HURRIED_EXIT:
            self.force_exit = self.should_exit = True

    async def _end(self) -> None:
        try:
            result = await self._app.drain()
            logger.info(
                "drained: %d finished, %d wait, %d handed over",
                len(result.finished),
                len(result.waiting),
                len(result.handed_over),
            )
        finally:
            self.should_exit = True


class _Reaped:
    """The application under uvicorn, which closes a connection only once its peer took everything that was written.

    A peer that takes nothing would keep its socket, and what was written, for ever. So the application can break off at
    once (`ABORT`), and what stands behind an answer is given up when none of it was taken for `seconds`.
    """

    def __init__(self, app: Server, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, or the lifespan."""
        transport = getattr(getattr(send, "__self__", None), "transport", None)
        if transport is None:
            await self._app(scope, receive, send)
            return
        scope["extensions"] = {**(scope.get("extensions") or {}), ABORT: partial(_abort, transport)}
        try:
            await self._app(scope, receive, send)
        finally:
            self._look(transport, None)

    def _look(self, transport: asyncio.WriteTransport, before: int | None) -> None:
        left = transport.get_write_buffer_size()
        if not left:
            return
        if before is not None and left >= before:
            _abort(transport)
            return
        asyncio.get_running_loop().call_later(self._seconds, self._look, transport, left)


def _abort(transport: asyncio.WriteTransport) -> None:
    """Breaks a connection off. Without linger the kernel would go on offering what was written."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class _NoCuts(logging.Filter):
    """Drops the tracebacks by which an ASGI server tells of our cuts: they are how a stream ends (SV-56)."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be logged."""
        error = record.exc_info[1] if record.exc_info else None
        return not _is_cut(error)


def _is_cut(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_cut(inner) for inner in error.exceptions)
    return isinstance(error, StreamCut)


def listen(host: str, port: int) -> socket.socket:
    """The socket to serve on.

    Raises:
        ConfigError: the address cannot be had; the text says what to do.
    """
    if not 0 <= port < 1 << 16:
        raise ConfigError(f"{port} is no port: choose one with --port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(
            f"cannot listen on {host}:{port} ({why}): choose another with --port, 0 takes a free one"
        ) from error


async def serve_forever(
    app: Server,
    host: str = "127.0.0.1",
    port: int = 8700,
    *,
    ready: Callable[[str], None] = lambda _: None,
    insecure: bool = False,
) -> None:
    """Serves until SIGINT, SIGTERM or SIGHUP; `ready` is told the address once it answers.

    Raises:
        ConfigError: the address cannot be had, or is open to others without an authenticator.
    """
    if app.is_loopback_only and not is_loopback(host):
        if not insecure:
            raise ConfigError(
                f"{host} is open to other machines: give the server an authenticator (auth=), or say insecure=True"
            )
        logger.warning("serving %s without any authenticator: only this machine will be answered", host)
    listening = listen(host, port)
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{listening.getsockname()[1]}"
    config = uvicorn.Config(
        _Reaped(app, app.registry.options.write_timeout),
        http=protocol(),
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        proxy_headers=False,
        timeout_graceful_shutdown=3,
    )
    cuts = _NoCuts()
    log = logging.getLogger("uvicorn.error")
    log.addFilter(cuts)
    try:
        with listening:
            await _Uvicorn(config, app, lambda: ready(url)).serve(sockets=[listening])
    finally:
        log.removeFilter(cuts)


def serve(
    app: Server,
    host: str = "127.0.0.1",
    port: int = 8700,
    *,
    ready: Callable[[str], None] = lambda _: None,
    insecure: bool = False,
) -> None:
    """Serves until SIGINT, SIGTERM or SIGHUP, in an event loop of its own; `ready` as in `serve_forever`."""

    async def serving() -> None:
        await serve_forever(app, host, port, ready=ready, insecure=insecure)

    run_alone(serving)


def run_alone(main: Callable[[], Awaitable[None]]) -> None:
    """Runs what owns this process: in uvloop's loop where that is installed, with little for the collector to walk.

    What was imported by now is there until the end, some hundred thousand objects. A full collection walks them all,
    and no stream gets anything meanwhile: 60 ms. So they are set aside (`gc.freeze`).
    """

    async def aside() -> None:
        gc.collect()
        gc.freeze()
        await main()

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(aside())
    finally:
        gc.unfreeze()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None  # asyncio's own
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


__all__ = ["run_alone", "serve", "serve_forever"]
