"""The one place that reads HTTP: requests of providers, streamed answers, error bodies, limits.

It knows no dialect. An answer is read chunk by chunk; leaving it, however that happens, closes its connection unless
the body was read to its end. Nothing here waits for ever but for two things that its caller bounds: the head of an
answer and silence in its body (PV-11).

`httpx2` is imported at the first request, not with this module.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final, final
from weakref import WeakKeyDictionary

from .responses import Timeouts

if TYPE_CHECKING:
    import ssl

    import httpx2

MAX_ERROR_BYTES: Final = 64 * 1024
DRAIN_S: Final = 0.02
"""How long a finished body may take to end, so that its connection can be used again."""

KEEP_ALIVE_S: Final = 30.0
"""How long an idle connection is kept: a turn's tools may run that long before the next request."""

_LOOPBACK: Final = ("all://127.0.0.1", "all://localhost", "all://[::1]")


class NoAnswer(Exception):
    """No response at all: the connection could not be made, or broke before a head came.

    `sent` is False where the request provably never left.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        self.sent = sent
        super().__init__(message)


class BrokenBody(Exception):
    """The connection broke inside a body."""


@final
class Answer:
    """A response whose head is in.

    Attributes:
        status: the HTTP status.
        headers: with lower-case names; of a repeated one the values joined by commas.
    """

    def __init__(self, response: httpx2.Response) -> None:
        self.status: int = response.status_code
        self.headers: dict[str, str] = {name.lower(): value for name, value in response.headers.items()}
        self._response = response
        self._chunks: AsyncGenerator[bytes, None] = response.aiter_bytes()
        self._over = False

    async def read(self) -> bytes:
        """The next bytes of the body; b"" at its regular end.

        Raises:
            BrokenBody: the connection broke.
        """
        import httpx2

        if self._over:
            return b""
        try:
            async for chunk in self._chunks:
                if chunk:
                    return chunk
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            self._over = True
            raise BrokenBody(_say(error)) from error
        self._over = True
        return b""

    async def aclose(self) -> None:
        """Lets go of the connection: it is closed, unless the body was read to its end."""
        await self._chunks.aclose()  # an abandoned generator would be closed by a task of the event loop's
        await self._response.aclose()

    async def read_error(self, timeout_s: float) -> bytes:
        """An error's body, as much as comes in time: at most 64 KiB [108]. Never fails."""
        body = bytearray()
        try:
            async with asyncio.timeout(timeout_s):
                while len(body) < MAX_ERROR_BYTES and (chunk := await self.read()):
                    body += chunk
        except (TimeoutError, BrokenBody):
            pass
        return bytes(body[:MAX_ERROR_BYTES])

    async def drain(self) -> None:
        """Reads what is left of a body that has said its last word, if it comes at once."""
        try:
            async with asyncio.timeout(DRAIN_S):
                while await self.read():
                    pass
        except (TimeoutError, BrokenBody):
            pass


@final
class Transport:
    """An HTTP client for one provider: made at the first request, one for each event loop that asks.

    `client` is a user's own; it is used as it is, with our time limits, and never closed. Otherwise proxies come from
    `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY` (never for loopback), certificates from `SSL_CERT_FILE`,
    `SSL_CERT_DIR` or `REQUESTS_CA_BUNDLE`.
    """

    def __init__(self, client: httpx2.AsyncClient | None = None) -> None:
        self._given = client
        self._own: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient] = WeakKeyDictionary()

    def post(
        self, url: str, *, headers: Mapping[str, str], content: bytes, timeouts: Timeouts
    ) -> AbstractAsyncContextManager[Answer]:
        """One POST; see `request`."""
        return self.request("POST", url, headers=headers, content=content, timeouts=timeouts)

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], content: bytes, timeouts: Timeouts
    ) -> AsyncIterator[Answer]:
        """One request; yields the answer once its head is in. Cancelling closes the connection at once.

        Raises:
            NoAnswer: there is none, also because the connection took longer than `timeouts.connect` seconds.
        """
        import httpx2

        client = self._client(url)
        limits = httpx2.Timeout(None, connect=timeouts.connect)
        try:
            request = client.build_request(
                method, url, headers=dict(headers), content=content, timeout=limits
            )
            response = await client.send(request, stream=True, follow_redirects=False)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, RuntimeError) as error:
            # RuntimeError: a given client was closed
            raise NoAnswer(
                f"no answer from {_host(url)}: {_say(error)}", sent=not _never_left(error)
            ) from error
        answer = Answer(response)
        try:
            yield answer
        finally:
            await answer.aclose()

    def _client(self, url: str) -> httpx2.AsyncClient:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        client = self._own.get(loop)
        if client is None:
            import httpx2

            client = self._own[loop] = httpx2.AsyncClient(
                verify=_certificates(url),
                limits=httpx2.Limits(
                    max_connections=None, max_keepalive_connections=20, keepalive_expiry=KEEP_ALIVE_S
                ),
                mounts=dict.fromkeys(_LOOPBACK),
            )
        return client

    async def aclose(self) -> None:
        """Closes the connections of this event loop's own client. Idempotent; the next request opens one anew."""
        client = self._own.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()


def _certificates(url: str) -> ssl.SSLContext:
    """Whom to trust. Plain HTTP gets an empty context, which trusts nobody: loading the real one takes a while."""
    import ssl

    import httpx2

    if url.startswith("http://"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bundle = os.environ.get("REQUESTS_CA_BUNDLE")
    if bundle and not (os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")):
        return ssl.create_default_context(cafile=bundle)
    return httpx2.create_ssl_context()


def _never_left(error: Exception) -> bool:
    import httpx2

    early = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
    return isinstance(error, (*early, httpx2.InvalidURL, ValueError, RuntimeError))


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2] or url


def _say(error: Exception) -> str:
    return f"{error}" or type(error).__name__


__all__ = ["MAX_ERROR_BYTES", "Answer", "BrokenBody", "NoAnswer", "Transport"]
