"""An HTTP server on loopback that answers with recorded bodies, in chosen chunks and with a chosen end.

    async with ReplayServer(Replay(body), Replay(b"", status=503)) as server:
        provider = OpenAIChatProvider("m", base_url=server.url)

The answers are given in order; the last one is repeated. The server remembers the requests, and counts connections,
so that a test can tell that a stop closed one.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self

import msgspec
from msgspec import Struct

End = Literal[
    "eof",  # a regular end of the body; the connection can be used again
    "cut",  # the connection is closed inside the body
    "reset",  # the connection is reset inside the body
    "held-open",  # nothing more comes, until the client leaves
]
Head = Literal[
    "sent",
    "never",  # the request is read and nothing is answered
    "refused",  # the connection is closed before a head
]

_PHRASES: Final = {200: "OK", 429: "Too Many Requests", 503: "Service Unavailable"}


class Replay(Struct, frozen=True, kw_only=True):
    """One answer: `chunks` is a body, or its pieces, each of which is a write of its own."""

    chunks: bytes | Sequence[bytes] = b""
    status: int = 200
    content_type: str = "text/event-stream"
    headers: Mapping[str, str] = {}
    end: End = "eof"
    head: Head = "sent"

    @property
    def pieces(self) -> Sequence[bytes]:
        """The body's pieces."""
        return [self.chunks] if isinstance(self.chunks, bytes) else self.chunks


class Received(Struct, frozen=True):
    """A request as it came; header names are lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return msgspec.json.decode(self.body)


class ReplayServer:
    """Serves `replays`, one a request. `async with`; `answer` may choose by the request instead; `tls` makes it HTTPS.

    Attributes:
        url: the address, without a slash at its end; known inside `async with`.
        requests: what came, in order.
        open_connections: connections that neither side has closed.
        busy: requests that are being answered or held.
    """

    def __init__(
        self,
        *replays: Replay,
        answer: Callable[[Received], Replay] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.url = ""
        self.requests: list[Received] = []
        self.open_connections = 0
        self.busy = 0
        self._replays = replays
        self._answer = answer
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._links: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._changed = asyncio.Event()

    async def until(self, holds: Callable[[ReplayServer], bool], timeout_s: float = 10.0) -> None:
        """Waits until something holds of the server, such as `lambda s: s.open_connections == 0`.

        Raises:
            TimeoutError: it did not.
        """
        async with asyncio.timeout(timeout_s):
            while not holds(self):
                self._changed.clear()
                await self._changed.wait()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"{'https' if self._tls else 'http'}://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._links)
        for link in self._links.values():
            link.transport.abort()  # what waits for the client sees it gone
        await asyncio.gather(*tasks)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links[task] = writer
        self._count(connections=1)
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                self._count(busy=1)
                try:
                    goes_on = await self._respond(self._next(request), reader, writer)
                finally:
                    self._count(busy=-1)
                if not goes_on:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            del self._links[task]
            self._count(connections=-1)
            writer.close()

    def _next(self, request: Received) -> Replay:
        if self._answer is not None:
            return self._answer(request)
        return self._replays[min(len(self.requests), len(self._replays)) - 1]

    async def _respond(
        self, replay: Replay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Writes one answer; tells whether the connection can be used again."""
        if replay.head == "refused":
            return False
        if replay.head == "never":
            await _until_gone(reader)
            return False
        writer.write(_head(replay))
        await writer.drain()
        for piece in replay.pieces:
            if piece:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
                await asyncio.sleep(0)  # lets the client read this piece by itself
        match replay.end:
            case "eof":
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return True
            case "held-open":
                await _until_gone(reader)
            case "reset":
                _reset(writer)
            case "cut":
                pass
        return False

    def _count(self, *, connections: int = 0, busy: int = 0) -> None:
        self.open_connections += connections
        self.busy += busy
        self._changed.set()


async def _read_request(reader: asyncio.StreamReader) -> Received | None:
    """The next request of a connection, or None when the client is gone."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    line, *fields = head.rstrip("\r\n").split("\r\n")
    method, path, _ = line.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, path, headers, body)


async def _until_gone(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


def _head(replay: Replay) -> bytes:
    lines = [
        f"HTTP/1.1 {replay.status} {_PHRASES.get(replay.status, 'Status')}",
        f"content-type: {replay.content_type}",
        "transfer-encoding: chunked",
        *[f"{name}: {value}" for name, value in replay.headers.items()],
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes with a reset instead of a regular end: no lingering, whatever is unsent is thrown away."""
    link = writer.get_extra_info("socket")
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


__all__ = ["End", "Head", "Received", "Replay", "ReplayServer"]
