"""Requests of a run and their answers: what is asked, who gets the answer, what happens when none comes (LP-34 … LP-37)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, final

from ..commands import Answer, Request, Resolution
from ..contracts import PendingCommand
from .work import Work


class Waiting(NamedTuple):
    """Somebody who waits for an answer.

    `answered` takes the command with its resolution and is to accept, reject or use it; `expired` is called when the
    request's time is over.
    """

    request: Request
    answered: Callable[[PendingCommand, Resolution], Awaitable[None]]
    expired: Callable[[Request], None]


@final
class AnswerRouter:
    """Hands answers to those who wait for them; one for each tool phase."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._waiting: dict[str, Waiting] = {}
        self._early: dict[str, PendingCommand] = {}  # answers of open requests whose asker is not there yet

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, waiting: Waiting) -> None:
        """Waits for the answer of an open request. After a restart it may be there already."""
        self._waiting[waiting.request.id] = waiting

    @property
    def ready(self) -> bool:
        """Whether an answer that came early is waited for now."""
        return any(request_id in self._waiting for request_id in self._early)

    def forget(self, request_id: str) -> None:
        """Waits no more."""
        self._waiting.pop(request_id, None)

    async def serve(self) -> None:
        """Hands on every answer that has arrived, in order; one that nobody waits for is rejected."""
        inbox = self._work.port.commands
        for request_id in [known for known in self._early if known in self._waiting]:
            await self._hand_on(request_id, self._early.pop(request_id))
        while (pending := inbox.take("answer")) is not None:
            body = pending.command.body
            assert isinstance(body, Answer)
            request_id = body.request_id
            if request_id in self._waiting:
                await self._hand_on(request_id, pending)
            elif request_id in self._work.port.state.requests and request_id not in self._early:
                self._early[request_id] = pending
            else:
                await pending.reject("request_not_pending")

    async def _hand_on(self, request_id: str, pending: PendingCommand) -> None:
        body = pending.command.body
        assert isinstance(body, Answer)
        await self._waiting[request_id].answered(pending, body.resolution)

    def due(self) -> float | None:
        """When the next request expires, on the clock's `monotonic`."""
        times = [
            waiting.request.expires_at_ms
            for waiting in self._waiting.values()
            if waiting.request.expires_at_ms is not None
        ]
        if not times:
            return None
        clock = self._work.clock
        return clock.monotonic() + max(0.0, (min(times) - clock.time_ms()) / 1000)

    def expire(self) -> None:
        """Ends what is over its time."""
        now = self._work.clock.time_ms()
        for waiting in list(self._waiting.values()):
            expires = waiting.request.expires_at_ms
            if expires is not None and expires <= now:
                del self._waiting[waiting.request.id]
                waiting.expired(waiting.request)
