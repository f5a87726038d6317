"""A server that is a process, spoken to by lines of its standard input and output, with a limit of a line.

The SDK's own transport collects a line without a limit, and copies all of it with each piece that comes: one line without an
end fills the memory. So the lines are read here; starting a process and ending its tree are the SDK's, and so is the order
of the end: standard input is closed, the process may leave by itself, then the tree is ended (MCP 2025-11-25, lifecycle).
"""

from __future__ import annotations

import codecs
import logging
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, final

if TYPE_CHECKING:
    from typing import TextIO

    from mcp import StdioServerParameters
    from mcp.os.win32.utilities import ServerProcess

STDERR: Final = 64 * 1024
"""Bytes a minute of a server's standard error that are logged."""

FLUSH: Final = 0.5
"""Seconds in which what was handed over is still written when the end begins."""

LEAVE: Final = 2.0
"""Seconds in which a process may leave by itself; as many after it was asked to, and as many to see that it is gone."""

POLL: Final = 0.01


@final
class LineTooLong(Exception):
    """A line has more bytes than are allowed: nothing that follows it can be understood."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"the server has sent a line of more than {limit} bytes")


@asynccontextmanager
async def command(server: StdioServerParameters, namespace: str) -> AsyncIterator[Any]:
    """Starts the server and gives its two streams of messages; leaving ends it, also when cancelled, within seconds.

    A line beyond the limit is the last item of the first stream, as `LineTooLong`, and the process is ended without grace.
    What the server writes to standard error goes to the log.

    Raises:
        OSError: it could not be started.
    """
    log = logging.getLogger(f"pilothouse.mcp.{namespace}")
    reading, writing = os.pipe()
    threading.Thread(target=_logged, args=(reading, log), name=f"mcp {namespace} stderr", daemon=True).start()
    with os.fdopen(writing, "w") as errors:
        process = await _started(server, errors)
        async with _streams(process, server, log) as streams:  # nothing is awaited in between: it would leak
            yield streams


@asynccontextmanager
async def _streams(
    process: ServerProcess, server: StdioServerParameters, log: logging.Logger
) -> AsyncIterator[Any]:
    import anyio

    said, heard = anyio.create_memory_object_stream[Any](0)
    given, asked = anyio.create_memory_object_stream[Any](0)
    written = anyio.Event()
    flooded = False
    gone = (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)

    async def read() -> None:
        nonlocal flooded
        with suppress(*gone):
            async with said, aclosing(_lines(process, server)) as lines:
                try:
                    async for line in lines:
                        await said.send(_message(line, log))
                except LineTooLong as error:
                    flooded = True
                    await said.send(error)
                except UnicodeError:
                    log.warning("its output is not %s, the connection is closed", server.encoding)
        if not flooded:
            # A server that writes what it still has must not be kept from leaving by a full pipe.
            with anyio.CancelScope(shield=True), suppress(anyio.EndOfStream, *gone):
                while process.stdout is not None:
                    await process.stdout.receive()

    async def write() -> None:
        assert process.stdin is not None
        try:
            async with asked:
                async for item in asked:
                    text = item.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
                    await process.stdin.send(text.encode(server.encoding, server.encoding_error_handler))
        except gone:
            await said.aclose()  # nobody waits for answers to what cannot be asked
        finally:
            written.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        try:
            yield heard, given
        finally:
            with anyio.CancelScope(shield=True):  # bounded, and it must happen: a process would be left
                heard.close()
                given.close()
                if not flooded:
                    with anyio.move_on_after(FLUSH):
                        await written.wait()
                await _stopped(process, log, grace=0 if flooded else LEAVE)
                for stream in (said, asked):
                    stream.close()
            tasks.cancel_scope.cancel()


async def _lines(process: ServerProcess, server: StdioServerParameters) -> AsyncGenerator[bytearray]:
    """Whole lines, in UTF-8 whatever the server's encoding is.

    Raises:
        LineTooLong: one is longer than is allowed; it was not kept.
    """
    import anyio

    from .bodies import LARGEST

    assert process.stdout is not None
    decoder = codecs.getincrementaldecoder(server.encoding)(server.encoding_error_handler)
    line = bytearray()
    with suppress(anyio.EndOfStream):
        while True:
            text = decoder.decode(await process.stdout.receive())
            for at, piece in enumerate(text.split("\n")):
                if at:
                    yield line
                    line = bytearray()
                line += piece.encode()
                if len(line) > LARGEST:
                    raise LineTooLong(LARGEST)


def _message(line: bytearray, log: logging.Logger) -> Any:
    """A message, or the error of what is none: the client goes on after it."""
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        log.debug("a line of %d bytes on its standard output is no message", len(line))
        return error


async def _started(server: StdioServerParameters, errors: TextIO) -> ServerProcess:
    from anyio import open_process, to_thread
    from mcp.client.stdio import get_default_environment
    from mcp.os.win32.utilities import create_windows_process, get_windows_executable_command

    environment = get_default_environment() | (server.env or {})
    if sys.platform == "win32":
        found = await to_thread.run_sync(get_windows_executable_command, server.command)
        return await create_windows_process(found, server.args, environment, errors, server.cwd)
    return await open_process(
        [server.command, *server.args],
        env=environment,
        stderr=errors,
        cwd=server.cwd,
        start_new_session=True,  # a group of its own, which is ended as one
    )


async def _stopped(process: ServerProcess, log: logging.Logger, *, grace: float) -> None:
    import anyio
    from mcp.os.posix.utilities import terminate_posix_process_tree
    from mcp.os.win32.utilities import close_process_job, terminate_windows_process_tree

    gone = (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)
    with suppress(*gone):
        await process.stdin.aclose()  # type: ignore[union-attr]
    if not await _left(process, grace):
        if sys.platform == "win32":
            await terminate_windows_process_tree(process)
        else:
            await terminate_posix_process_tree(process, LEAVE)  # type: ignore[arg-type]
        if not await _left(process, LEAVE):
            log.warning("process %d cannot be ended", process.pid)
    close_process_job(process)
    with suppress(*gone):
        await process.stdout.aclose()  # type: ignore[union-attr]
    # A process outside the group may hold a pipe; without this asyncio would keep our end open, and warn. Not public, hence
    # looked for.
    close = getattr(getattr(getattr(process, "_process", None), "_transport", None), "close", None)
    if close is not None:
        with suppress(PermissionError):
            close()


async def _left(process: ServerProcess, seconds: float) -> bool:
    """Whether it ends in time. Waiting for it would wait for its pipes too, which a child may hold."""
    import anyio

    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110 - there is no event of it without the pipes
            await anyio.sleep(POLL)
    return process.returncode is not None


def _logged(reading: int, log: logging.Logger) -> None:
    """Logs lines until every writer is gone; beyond the limit of a minute nothing is kept."""
    import time

    left, since = STDERR, time.monotonic()
    with os.fdopen(reading, "rb") as stream:
        while line := stream.readline(8192):
            if time.monotonic() - since > 60:
                left, since = STDERR, time.monotonic()
            if left > 0:
                left -= len(line)
                log.info("%s", line.decode(errors="replace").rstrip())


__all__ = ["LineTooLong", "command"]
