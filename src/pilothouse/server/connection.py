"""What a connection may cost before its request is there: uvicorn's parsers set no limit, or none to the time."""

from __future__ import annotations

import asyncio
from typing import Any, Final

HEAD_BYTES: Final = 64 * 1024
HEAD_S: Final = 30.0

_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


class Bounded:
    """In front of one of uvicorn's protocols: the head of a request has a size, and a time in which the first must come."""

    cycle: Any  # uvicorn's: the request that is being answered, or was last
    transport: asyncio.Transport

    _head = 0  # bytes of a head that is not whole yet

    def connection_made(self, transport: asyncio.Transport) -> None:
        """As uvicorn does."""
        super().connection_made(transport)  # type: ignore[misc]
        self._looking = asyncio.get_running_loop().call_later(HEAD_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn does; nothing of a short connection is kept for longer."""
        self._looking.cancel()
        super().connection_lost(exc)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        """As uvicorn does; then looks whether that was the end of a head."""
        super().data_received(data)  # type: ignore[misc]
        cycle = self.cycle
        if cycle is not None and not (cycle.response_complete and not cycle.more_body):
            self._head = 0
            return
        self._head += len(data)
        if self._head > HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def _look(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.abort()


def protocol() -> type[asyncio.Protocol]:
    """Uvicorn's protocol over the faster parser that is installed, bounded."""
    return type("BoundedProtocol", (Bounded, _base()), {})


def _base() -> type[asyncio.Protocol]:
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol

        return H11Protocol
    return HttpToolsProtocol


__all__ = ["HEAD_BYTES", "HEAD_S", "Bounded", "protocol"]
