"""What a server on the network may send: a body without an end must not fill the memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final, final

import httpx2

LARGEST: Final = 32 * 1024 * 1024
"""Bytes of one answer. A stream of events has no limit as a whole; one event has the SDK's."""


async def bounded(response: httpx2.Response) -> None:
    """A hook of the HTTP client: the body of an answer that is no stream of events ends at the limit, as an error.

    Packed bodies were not asked for, and are refused: what they unpack to could have any size.
    """
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise httpx2.RemoteProtocolError("the server has sent a packed body", request=response.request)
    response.stream = _Counted(response.stream, response.request)


@final
class _Counted(httpx2.AsyncByteStream):
    """A stream of bytes that ends with an error at the limit."""

    def __init__(self, stream: Any, request: Any) -> None:
        self._stream, self._request = stream, request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = LARGEST
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise httpx2.RemoteProtocolError(
                    f"the server's answer has more than {LARGEST} bytes", request=self._request
                )
            yield chunk

    async def aclose(self) -> None:
        """Closes what it reads from."""
        await self._stream.aclose()


__all__ = ["LARGEST", "bounded"]
