"""Liveness and readiness (SV-220): no token, and no names, versions or counts in the answers."""

from __future__ import annotations

import logging

from starlette.responses import PlainTextResponse, Response

from .served import ServedAgents

logger = logging.getLogger("pilothouse.server")

PROBE_S = 10.0
"""How long an answer of the journal counts."""


class Health:
    """Whether the server lives, and whether it can take work."""

    def __init__(self, served: ServedAgents) -> None:
        self._served = served
        self._probed = float("-inf")

    async def answer(self, path: str) -> Response | None:
        """The answer for one of the two paths; None for any other."""
        if path == "/healthz":
            return await self.live()
        return await self.ready() if path == "/readyz" else None

    async def live(self) -> Response:
        """200 while the loop answers."""
        return PlainTextResponse("ok")

    async def ready(self) -> Response:
        """200 when the journal answered a probe in the last 10 s and the server is not draining."""
        if self._served.draining:
            return PlainTextResponse("draining", 503, {"Retry-After": "5"})
        now = self._served.clock.monotonic()
        if now - self._probed > PROBE_S:
            try:
                await self._served.journal.head("pilothouse-readiness-probe")
                self._served.metrics.probe_seconds.add(self._served.clock.monotonic() - now)
            except Exception as error:  # noqa: BLE001 - whatever it is, the journal does not answer
                logger.warning("the journal does not answer: %s", error)
                return PlainTextResponse("not ready", 503, {"Retry-After": "1"})
            self._probed = now
        return PlainTextResponse("ok")


__all__ = ["Health"]
