"""One connection to an MCP server, held by one task.

The SDK's client must be left by the task that entered it: left from another one it never returns, spins a core and cannot
be timed out; and when an HTTP connection breaks, the task that entered it is cancelled and gets an exception group. So an
owner task enters and leaves, callers hand it calls and await futures, and each call is a child of the owner.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

from ...errors import UsageError
from ..errors import MCPUnavailable
from .process import LineTooLong, command

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as ServerTool

Status: TypeAlias = Literal["idle", "connecting", "ready", "down", "closed"]
Progress: TypeAlias = Callable[[float, float | None, str | None], None]

PAGES: Final = 50
"""Pages of a tool list that are read."""

CLOSE: Final = 5.0
"""Seconds that closing may take; the SDK itself ends a deaf process within four."""

QUICK: Final = 60.0
QUICK_DEATHS: Final = 5
"""A server that dies so often, each time within a minute of connecting, is left alone."""

CONNECTION_CLOSED: Final = -32000


@final
@dataclass(frozen=True, slots=True)
class Reconnect:
    """How a lost connection is made again: `attempts` in a row (None: no limit), delays in seconds, doubled each time."""

    attempts: int | None = None
    first_delay: float = 0.5
    max_delay: float = 30.0


@final
class Lost(Exception):
    """The connection ended before the answer came; `sent` says whether the call may have reached the server."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        self.reason, self.sent = reason, sent
        super().__init__(reason)


@dataclass(slots=True, eq=False)
class _Call:
    name: str
    arguments: dict[str, Any]
    timeout: float
    progress: Progress | None
    done: asyncio.Future[CallToolResult]
    task: asyncio.Task[None] | None = None


@final
class Link:
    """The connection: made when it is needed, made again when it is lost, given up by `aclose`.

    Args:
        namespace: for errors and the logger.
        server: a URL, parameters of a command, or a function that makes what the SDK's `Client` takes.
        wanted: whether a lost connection is to be made again now.
        fresh: called with the tools and the server's instructions after each list that was read.
    """

    def __init__(
        self,
        namespace: str,
        server: Any,
        *,
        headers: Mapping[str, str] | None,
        connect_timeout: float,
        list_timeout: float,
        reconnect: Reconnect,
        wanted: Callable[[], bool],
        fresh: Callable[[list[ServerTool], str | None], None],
    ) -> None:
        self.namespace = namespace
        self.status: Status = "idle"
        self.error: MCPUnavailable | None = None
        self.stale = False
        self._server, self._headers = server, dict(headers or {})
        self._connect_timeout, self._list_timeout, self._reconnect = connect_timeout, list_timeout, reconnect
        self._wanted, self._fresh = wanted, fresh
        self._owner: asyncio.Task[None] | None = None
        self._attempt: asyncio.Future[None] | None = None
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._closing = asyncio.Event()
        self._ended = ""  # why the transport ended, while the client does not know yet
        self._limit: asyncio.Timeout | None = None  # of the attempt under way
        self._calls: list[_Call] = []
        self._live: set[_Call] = set()
        self._relist: list[asyncio.Future[None]] = []

    @property
    def patience(self) -> float:
        """Seconds that connecting may take."""
        return self._connect_timeout

    # For callers

    async def connect(self) -> None:
        """Connects, or waits for the attempt that is under way; also one that was given up begins again.

        Raises:
            MCPUnavailable: it failed.
            UsageError: it was closed.
        """
        if self._closing.is_set():
            raise UsageError(f"cannot connect {self.namespace} because it is closed")
        if self.status == "ready":
            return
        if self._owner is None or self._owner.done():
            self._owner = asyncio.create_task(self._own(), name=f"mcp {self.namespace}")
        if self._attempt is None or self._attempt.done():
            self._attempt = asyncio.get_running_loop().create_future()
            self._attempt.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._hurry.set()
        await asyncio.shield(self._attempt)

    async def refresh(self) -> None:
        """Reads the list again."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._relist.append(done)
        self._wake.set()
        await done

    async def call(
        self, name: str, arguments: dict[str, Any], *, timeout: float, progress: Progress | None
    ) -> CallToolResult:
        """Calls a tool; cancelling tells the server.

        Raises:
            Lost: the connection ended first.
            mcp.MCPError: the protocol's own error.
        """
        if self.status != "ready" or self._ended:
            raise Lost("not connected", sent=False)
        call = _Call(name, arguments, timeout, progress, asyncio.get_running_loop().create_future())
        self._calls.append(call)
        self._wake.set()
        try:
            return await call.done
        except asyncio.CancelledError:
            if call in self._calls:
                self._calls.remove(call)
            if call.task is not None:
                call.task.cancel()
                await asyncio.wait({call.task}, timeout=1.0)
            raise

    async def aclose(self) -> None:
        """Ends calls, connection and process; bounded, once is enough, from any task of the loop."""
        self._closing.set()
        self._wake.set()
        self._hurry.set()
        owner = self._owner
        if owner is not None and not owner.done() and owner is not asyncio.current_task():
            if self._limit is not None and not self._limit.expired():
                self._limit.reschedule(asyncio.get_running_loop().time())
            _, pending = await asyncio.wait({owner}, timeout=CLOSE)
            if pending:
                owner.cancel()
                await asyncio.wait({owner}, timeout=1.0)
        self.status = "closed"

    # The owner

    async def _own(self) -> None:
        delay, failures, deaths = self._reconnect.first_delay, 0, 0
        clock = asyncio.get_running_loop().time
        while True:
            self._hurry.clear()
            connected = 0.0
            try:
                self.status = "connecting"
                async with self._connected() as client:
                    connected = clock()
                    self._settle(None)
                    await self._serve(client)
                reason = self._ended or "closed"
            except asyncio.CancelledError:  # by whoever ends the loop; one by the SDK comes out as a group
                self._drop("closed")
                self._settle(MCPUnavailable(self.namespace, "closed"))
                raise
            except Exception as error:  # noqa: BLE001 - groups, timeouts, missing commands: all are a lost connection
                innermost = _innermost(error)
                closed = getattr(innermost, "code", None) == CONNECTION_CLOSED
                reason = (self._ended if closed else "") or reason_of(innermost)
            self._drop(reason)
            if self._closing.is_set():
                self._settle(MCPUnavailable(self.namespace, "closed"))
                return
            self.error = MCPUnavailable(self.namespace, reason)
            self.status = "down"
            quick = connected > 0 and clock() - connected < QUICK
            deaths = deaths + 1 if quick else 0
            failures = 0 if connected else failures + 1
            delay = self._reconnect.first_delay if connected else min(delay * 2, self._reconnect.max_delay)
            limit = self._reconnect.attempts
            given_up = deaths >= QUICK_DEATHS or (limit is not None and failures >= limit)
            if not connected or given_up:
                self._settle(self.error)  # who waits since the loss waits for the next attempt
            if given_up or (self._attempt is None and not self._wanted()):
                return
            with suppress(TimeoutError):
                # A little jitter: servers that died together are not asked together.
                async with asyncio.timeout(delay * random.uniform(0.8, 1.2)):  # noqa: S311
                    await self._hurry.wait()
            if self._closing.is_set():
                self._settle(MCPUnavailable(self.namespace, "closed"))
                return

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        from mcp import Client

        self._ended = ""
        made = Client(self._target(), message_handler=self._heard, cache=None)
        limit = self._limit = asyncio.timeout(self._connect_timeout)
        try:
            async with limit, made as client:
                limit.reschedule(asyncio.get_running_loop().time() + self._list_timeout)
                await self._list(client)
                limit.reschedule(None)
                self.status, self.error = "ready", None
                yield client
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(f"no answer within {self._connect_timeout:g} s") from None
            raise
        finally:
            self._limit = None

    async def _serve(self, client: Any) -> None:
        """Starts what callers hand over, until the connection ends or is given up."""
        listening = asyncio.create_task(self._listen(client))
        try:
            while not self._closing.is_set() and not self._ended:
                await self._wake.wait()
                self._wake.clear()
                for call in self._calls:
                    call.task = asyncio.create_task(self._make(client, call))
                    self._live.add(call)
                self._calls.clear()
                waiting, self._relist = self._relist, []
                for done in waiting:
                    await self._list_again(client, done)
        finally:
            tasks = [listening, *[call.task for call in self._live if call.task is not None]]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1.0)

    async def _make(self, client: Any, call: _Call) -> None:
        from mcp import MCPError

        try:
            result = await client.call_tool(
                call.name,
                call.arguments,
                read_timeout_seconds=call.timeout,
                progress_callback=None if call.progress is None else _progress(call.progress),
            )
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self._end("the connection was closed")
                _fail(call, Lost("the connection was closed", sent=True))
            else:
                _fail(call, error)
        except asyncio.CancelledError:
            _fail(call, Lost(self._ended or "the connection was closed", sent=True))
            raise
        except Exception as error:  # noqa: BLE001 - what a transport raises means that it is gone
            self._end(reason_of(error))
            _fail(call, Lost(reason_of(error), sent=True))
        else:
            if not call.done.done():
                call.done.set_result(result)
        finally:
            self._live.discard(call)

    async def _list(self, client: Any) -> None:
        tools: list[ServerTool] = []
        cursor: str | None = None
        for _ in range(PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        else:
            raise MCPUnavailable(self.namespace, f"its list of tools has more than {PAGES} pages")
        self.stale = False
        self._fresh(tools, client.instructions)

    async def _list_again(self, client: Any, done: asyncio.Future[None]) -> None:
        try:
            async with asyncio.timeout(self._list_timeout):
                await self._list(client)
        except Exception as error:  # noqa: BLE001 - told to who asked
            if not done.done():
                done.set_exception(
                    error
                    if isinstance(error, MCPUnavailable)
                    else MCPUnavailable(self.namespace, reason_of(error))
                )
        else:
            if not done.done():
                done.set_result(None)

    async def _listen(self, client: Any) -> None:
        """Servers of the protocol of 2026 tell changes on a stream of their own."""
        from mcp import MCPError
        from mcp.types.version import MODERN_PROTOCOL_VERSIONS

        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        with suppress(MCPError, RuntimeError, TimeoutError, OSError):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self.stale = True

    async def _heard(self, message: Any) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(getattr(message, "root", message), ToolListChangedNotification):
            self.stale = True

    # Ends

    def _end(self, reason: str) -> None:
        if not self._ended:
            self._ended = reason
            if self.status == "ready":
                self.status = "down"
        self._wake.set()

    def _drop(self, reason: str) -> None:
        """Nobody waits for what this connection will not answer."""
        for call in self._calls:
            _fail(call, Lost(reason, sent=False))
        for call in list(self._live):
            _fail(call, Lost(reason, sent=True))
        for done in self._relist:
            if not done.done():
                done.set_exception(MCPUnavailable(self.namespace, reason))
        self._calls, self._relist = [], []
        self._live.clear()

    def _settle(self, error: MCPUnavailable | None) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None and not attempt.done():
            if error is None:
                attempt.set_result(None)
            else:
                attempt.set_exception(error)

    # Transports

    def _target(self) -> Any:
        from mcp import StdioServerParameters
        from mcp.client.streamable_http import streamable_http_client
        from mcp.server import Server
        from mcp.server.mcpserver import MCPServer
        from mcp.shared._httpx_utils import create_mcp_http_client

        from .bodies import bounded

        server = self._server() if callable(self._server) else self._server
        if isinstance(server, Server | MCPServer):
            return server
        if isinstance(server, StdioServerParameters):
            return _watched(command(server, self.namespace), self._end)
        if isinstance(server, str):

            @asynccontextmanager
            async def http() -> AsyncIterator[Any]:
                client = create_mcp_http_client(headers={**self._headers, "Accept-Encoding": "identity"})
                client.event_hooks = {"response": [bounded]}
                async with (
                    client as session,
                    streamable_http_client(server, http_client=session) as streams,
                ):
                    yield streams

            return _watched(http(), self._end)
        return _watched(server, self._end)


def _fail(call: _Call, error: BaseException) -> None:
    if not call.done.done():
        call.done.set_exception(error)
        call.done.exception()  # a caller that left does not look


def _progress(told: Progress) -> Any:
    async def progress(done: float, total: float | None, message: str | None) -> None:
        told(done, total, message)

    return progress


_CREDENTIALS: Final = re.compile(r"//[^/\s@]+@|(bearer|token|key|secret|password)[=:\s]+\S+", re.IGNORECASE)


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def reason_of(error: BaseException) -> str:
    """The innermost cause of an exception group, in one line and without credentials."""
    error = _innermost(error)
    match error:
        case MCPUnavailable():
            text = error.reason
        case FileNotFoundError():
            text = f"there is no command {error.filename}" if error.filename else "the command was not found"
        case _:
            text = str(error) or type(error).__name__
    return _CREDENTIALS.sub("…", " ".join(text.split()))[:300]


@asynccontextmanager
async def _watched(
    transport: AbstractAsyncContextManager[Any], ended: Callable[[str], None]
) -> AsyncIterator[Any]:
    """A transport whose end is told at once, not only to the next call."""
    async with transport as streams:
        yield _Watched(streams[0], ended), streams[1]


@final
class _Watched:
    """A stream of messages that says when it ends."""

    def __init__(self, stream: Any, ended: Callable[[str], None]) -> None:
        self._stream, self._ended = stream, ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _Watched:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *given: object) -> None:
        await self._stream.__aexit__(*given)

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            item = await self._stream.__anext__()
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._ended("the server has ended the connection")
            raise
        if isinstance(item, LineTooLong):
            self._ended(str(item))
            raise StopAsyncIteration
        return item
