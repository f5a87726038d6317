"""The life of one AG-UI request: connections, reconnections, and how its stream ended.

A graceful close and a broken connection are the same thing here. Only a terminal event ends a run; whatever else ends
the bytes leaves the question what the server did, and `Exchange` says what is known for the answer: whether anything
left this process, whether any event came, whether frames carried ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Final

from ..contracts import Clock
from ..core.agui.reading import Arrived, OnViolation, Reader
from ..core.agui.verify import Phase
from ..messages import Value
from ..responses import Timeouts
from ..transport import BrokenBody, NoAnswer, Transport
from .wire import TIMEOUTS, Auth, Stream, Wire, credentials, refusal

logger = logging.getLogger("pilothouse.remote")

LINGER_S: Final = 2.0
"""How long a stream may stay open behind its terminal event: a late RUN_ERROR still counts."""


class Reconnect(Value):
    """How a stream that carries ids is taken up again; the delay doubles. `attempts` None: no end."""

    attempts: int | None = 5
    first_delay: float = 0.2
    max_delay: float = 5.0


class AgentLimits(Value):
    """What an agent takes in; over it the run fails with code `too_large`.

    Attributes:
        frame: bytes of one frame.
        message: characters of the text, the reasoning, or the arguments of a call; bytes of what is sent.
        messages: how many a conversation holds.
        events: how many are told as one, and how many wait for a slow reader of `events`, which loses the oldest.
    """

    frame: int = 10 * 1024 * 1024
    message: int = 4 * 1024 * 1024
    messages: int = 10_000
    events: int = 1_000


class Silence(TimeoutError):
    """Nothing came for too long."""


class Endpoint:
    """Where the requests of an agent go, and how.

    Args:
        wire: what opens them; None is an HTTP client of its own, which `aclose()` closes.
    """

    def __init__(
        self,
        url: str,
        wire: Wire | None,
        *,
        headers: Mapping[str, str],
        auth: Auth | None,
        clock: Clock,
        reconnect: Reconnect,
        limits: AgentLimits,
        on_violation: OnViolation,
        send_timeout: float | None,
        idle_timeout: float | None,
    ) -> None:
        self.url = url
        self.wire: Wire = Transport() if wire is None else wire
        self.clock = clock
        self.reconnect = reconnect
        self.limits = limits
        self.on_violation: OnViolation = on_violation
        self.send_timeout = send_timeout
        self.idle_timeout = idle_timeout
        self.timeouts = Timeouts(connect=min(send_timeout or TIMEOUTS.connect, TIMEOUTS.connect))
        self._own = wire is None
        self._headers = headers
        self._auth = auth

    async def headers(self) -> dict[str, str]:
        """Those of the next request."""
        return merged(self._headers, await credentials(self._auth))

    async def aclose(self) -> None:
        """Closes what it opened."""
        if self._own:
            await self.wire.aclose()


class Exchange:
    """One request and its stream: a POST, or a GET of `url`, which joins a run and has no body.

    Attributes:
        left: it left this process, or may have.
        ours: a Pilothouse server answers.
        cut: why the stream ended without a terminal event, as far as there is a reason.
    """

    def __init__(self, endpoint: Endpoint, body: bytes, url: str = "") -> None:
        self.left = False
        self.ours = False
        self.cut: BaseException | None = None
        self.reader = Reader(on_violation=endpoint.on_violation, max_frame_bytes=endpoint.limits.frame)
        self._endpoint = endpoint
        self._method = "GET" if url else "POST"
        self._url = url or endpoint.url
        self._body = body
        self._most = max(1, endpoint.limits.events)

    @property
    def terminal(self) -> bool:
        """Whether the run's end was told."""
        return self.reader.phase in (Phase.FINISHED, Phase.FAILED)

    async def events(self) -> AsyncGenerator[list[Arrived], None]:
        """What arrives together, in order, over all connections. Leaving it closes the connection.

        Raises:
            AgentError: the server refused the request.
            NoAnswer: it provably never left.
            ProtocolFault: what came is no AG-UI.
        """
        tries = 0
        while True:
            before = self.reader.last_id
            try:
                async with aclosing(self._connection()) as batches:
                    async for batch in batches:
                        yield batch
                self.cut = None
            except (NoAnswer, BrokenBody, Silence) as error:
                if not self.left:
                    raise
                self.cut = error
            if self.terminal or not self.reader.last_id:
                return
            tries = 0 if self.reader.last_id != before else tries + 1
            attempts = self._endpoint.reconnect.attempts
            if attempts is not None and tries >= attempts:
                return
            await self._endpoint.clock.sleep(self._delay(tries))
            self.reader.reconnect()

    def _delay(self, tries: int) -> float:
        told = (self.reader.retry_ms or 0) / 1000
        doubled = self._endpoint.reconnect.first_delay * 2 ** min(tries, 20)
        return float(min(max(told, doubled), self._endpoint.reconnect.max_delay))

    async def _connection(self) -> AsyncGenerator[list[Arrived], None]:
        headers = {
            **await self._endpoint.headers(),
            "accept": "text/event-stream",
            **({"content-type": "application/json"} if self._body else {}),
        }
        if self.reader.last_id:
            headers["last-event-id"] = self.reader.last_id
        again = self.left
        opening = self._endpoint.wire.request(
            self._method, self._url, headers=headers, content=self._body, timeouts=self._endpoint.timeouts
        )
        try:
            async with asyncio.timeout(self._endpoint.send_timeout):
                answer = await opening.__aenter__()
        except TimeoutError as error:
            self.left = True
            raise Silence(f"no answer within {self._endpoint.send_timeout} s") from error
        except NoAnswer as error:
            self.left = self.left or error.sent
            raise
        self.left = True
        try:
            async with aclosing(self._body_of(answer, again=again)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            await opening.__aexit__(None, None, None)

    async def _body_of(self, answer: Stream, *, again: bool) -> AsyncGenerator[list[Arrived], None]:
        if answer.status >= 400:
            if again and answer.status in (404, 409, 410):
                return  # nothing to take up there: how the run ended stays open
            error = await refusal(answer)
            if again and error.retryable:
                raise BrokenBody(str(error)) from error
            raise error
        self.ours = self.ours or "pilothouse-run-id" in answer.headers
        if "text/event-stream" not in answer.headers.get("content-type", ""):
            return  # a silent end
        while chunk := await self._read(answer):
            for batch in _batches(self.reader.feed(chunk), self._most):
                yield batch
        for batch in _batches(self.reader.finish(), self._most):
            yield batch

    async def _read(self, answer: Stream) -> bytes:
        limit = LINGER_S if self.terminal else self._endpoint.idle_timeout
        try:
            async with asyncio.timeout(limit):
                return await answer.read()
        except TimeoutError as error:
            if self.terminal:
                return b""
            raise Silence(f"nothing came for {limit} s") from error


def _batches(events: Iterable[Arrived], most: int) -> Iterator[list[Arrived]]:
    """What arrived together, in lists of at most so many; what stands before a fault is told before it is raised."""
    found: list[Arrived] = []
    try:
        for event in events:
            found.append(event)
            if len(found) >= most:
                yield found
                found = []
    except Exception:
        if found:
            yield found
        raise
    if found:
        yield found


def merged(*found: Mapping[str, str]) -> dict[str, str]:
    """Headers, later ones winning, by lower-case names."""
    out: dict[str, str] = {}
    for headers in found:
        out |= {name.lower(): value for name, value in headers.items()}
    return out


__all__ = ["AgentLimits", "Endpoint", "Exchange", "Reconnect", "Silence", "merged"]
