"""`RunControlClient`: the client side of a Pilothouse server's control API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self, final
from urllib.parse import quote, urlencode

import msgspec

from ..core.sse import SSEReader
from ..messages import JSON
from ..transport import BrokenBody, NoAnswer, Transport
from .wire import TIMEOUTS, Auth, Stream, Wire, credentials, refusal


@final
class RunControlClient:
    """Views, events and commands of runs on a server; an async context manager.

    Every method raises `AgentError`: of kind `connection` where there was no answer, else by the answer's status.

    Args:
        url: of the server's root, `http://host:port`.
        auth: a bearer token, headers, or a function that gives headers.
        timeout_s: how long an answer may take.
    """

    def __init__(
        self, url: str, *, auth: Auth | None = None, transport: Wire | None = None, timeout_s: float = 30.0
    ) -> None:
        self.url = url.rstrip("/")
        self._auth = auth
        self._own = transport is None
        self._wire: Wire = Transport() if transport is None else transport
        self._timeout = timeout_s

    # Runs

    async def run(self, run_id: str) -> dict[str, JSON]:
        """The view of a run."""
        return await self._json("GET", f"/v1/runs/{_q(run_id)}")

    async def runs(self, **query: str) -> dict[str, JSON]:
        """A page of runs, newest first: `items` and `next`."""
        return await self._json("GET", f"/v1/runs?{urlencode(query)}")

    async def start(self, **body: JSON) -> dict[str, JSON]:
        """Starts a run; `body` holds `agent`, `input`, `thread_id` and so on."""
        return await self._json("POST", "/v1/runs", body)

    async def requests(self, run_id: str) -> dict[str, JSON]:
        """The open requests of a run."""
        return await self._json("GET", f"/v1/runs/{_q(run_id)}/requests")

    async def events(self, run_id: str, *, after: int = 0) -> dict[str, JSON]:
        """A page of facts with seq > after."""
        return await self._json("GET", f"/v1/runs/{_q(run_id)}/events?after={after}")

    async def follow(
        self, run_id: str, *, after: int = 0, deltas: bool = True
    ) -> AsyncIterator[dict[str, Any]]:
        """Facts and deltas as they come; ends with the item of type `end`."""
        query = urlencode({"after": after, "deltas": str(deltas).lower()})
        path = f"/v1/runs/{_q(run_id)}/events?{query}"
        headers = {**await credentials(self._auth), "accept": "text/event-stream"}
        reader = SSEReader()
        async with self._wire.request(
            "GET", self.url + path, headers=headers, content=b"", timeouts=TIMEOUTS
        ) as answer:
            await _check(answer)
            while chunk := await answer.read():
                for frame in reader.feed(chunk):
                    yield msgspec.json.decode(frame.data)

    # Commands

    async def command(self, run_id: str, command_id: str, kind: str, **body: JSON) -> dict[str, JSON]:
        """Sends a command; returns its ack."""
        asked = {"command_id": command_id, "kind": kind, **body}
        return await self._json("POST", f"/v1/runs/{_q(run_id)}/commands", asked)

    async def cancel(self, run_id: str, reason: str = "stopped") -> dict[str, JSON]:
        """Stops a run; on one that ended nothing changes."""
        return await self._json("POST", f"/v1/runs/{_q(run_id)}/cancel", {"reason": reason})

    async def recover(self, run_id: str) -> dict[str, JSON]:
        """Recovers a lost run by evidence; returns its view."""
        return await self._json("POST", f"/v1/runs/{_q(run_id)}/recover", {})

    async def abandon(self, run_id: str, reason: str) -> dict[str, JSON]:
        """Leaves the outcome of a run unknown, on the record."""
        return await self._json("POST", f"/v1/runs/{_q(run_id)}/abandon", {"reason": reason})

    # Threads

    async def messages(self, thread_id: str) -> dict[str, JSON]:
        """The path to the head of a thread."""
        return await self._json("GET", f"/v1/threads/{_q(thread_id)}/messages")

    async def thread(self, thread_id: str) -> dict[str, JSON]:
        """The record of a thread."""
        return await self._json("GET", f"/v1/threads/{_q(thread_id)}")

    async def agents(self) -> dict[str, JSON]:
        """The server's agents."""
        return await self._json("GET", "/v1/agents")

    async def get(self, url: str) -> dict[str, JSON]:
        """Any JSON of the same server, by its full address."""
        return await self._json("GET", url)

    async def _json(self, method: str, path: str, body: Mapping[str, JSON] | None = None) -> dict[str, JSON]:
        from ..core.classify import classify

        headers = {**await credentials(self._auth), "accept": "application/json"}
        content = b""
        if body is not None:
            headers["content-type"] = "application/json"
            content = msgspec.json.encode(body)
        url = path if "://" in path else self.url + path
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._wire.request(
                    method, url, headers=headers, content=content, timeouts=TIMEOUTS
                ) as answer,
            ):
                await _check(answer)
                data = bytearray()
                while chunk := await answer.read():
                    data += chunk
                return msgspec.json.decode(bytes(data), type=dict[str, Any]) if data else {}
        except (NoAnswer, BrokenBody, TimeoutError, msgspec.DecodeError) as error:
            raise classify(error) from error

    async def __aenter__(self) -> Self:
        """Returns itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Closes."""
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections that it opened."""
        if self._own:
            await self._wire.aclose()


async def _check(answer: Stream) -> None:
    if answer.status >= 400:
        raise await refusal(answer)


def _q(name: str) -> str:
    return quote(name, safe="")


__all__ = ["RunControlClient"]
