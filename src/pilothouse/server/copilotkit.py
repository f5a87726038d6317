"""The CopilotKit face: what its core asks of a runtime, over the same runs (server page §8).

Its core speaks to a runtime, not to a bare AG-UI address: it asks which agents there are, runs one, joins a thread, and
stops. Everything below that is the AG-UI face. Both of its transports are served: one address a thing, and one for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp

from .._version import __version__
from ..messages import JSON
from .agui import AGUIFace
from .call import Call, answer
from .names import checked
from .problems import invalid

_THREADS: Final = {"list": False, "inspect": False, "mutations": False, "realtimeMetadata": False}


class CopilotKitFace:
    """The routes of this protocol."""

    def __init__(self, agui: AGUIFace) -> None:
        self._agui = agui

    async def info(self, call: Call) -> Response:
        """Which agents there are, and what of the protocol is served (SV-180)."""
        agents = {
            str(agent["name"]): {
                "name": agent["name"],
                "className": "Pilothouse",
                "description": agent["description"],
            }
            for agent in call.runs.agents()
        }
        return answer(
            {
                "version": __version__,
                "mode": "sse",
                "audioFileTranscriptionEnabled": False,
                "threadEndpoints": _THREADS,
                "agents": agents,
            }
        )

    async def run(self, call: Call) -> ASGIApp:
        """A run, as on the AG-UI face; the version gate finds the profile (SV-181)."""
        return await self._agui.post(call)

    async def connect(self, call: Call) -> ASGIApp:
        """A thread told again, then followed (SV-182)."""
        return await self._agui.connect(call)

    async def stop(self, call: Call) -> Response:
        """Stops a run of the thread that the address names (SV-183)."""
        body = await call.maybe_json()
        wanted: dict[str, JSON] = {"threadId": checked(call.params.get("thread"), "threadId")}
        if body.get("runId") is not None:
            wanted["runId"] = body["runId"]
        return await self._agui.stop(call.with_body(wanted, call.params))

    async def single(self, call: Call) -> ASGIApp:
        """All of it through one address (SV-184)."""
        asked = await call.json()
        method, params, body = asked.get("method"), asked.get("params") or {}, asked.get("body") or {}
        if not isinstance(params, dict) or not isinstance(body, dict):
            raise invalid(("params", "params and body must be objects"))
        names = _names(params)
        match method:
            case "info":
                return await self.info(call)
            case "agent/run":
                return await self.run(call.with_body(body, names))
            case "agent/connect":
                return await self.connect(call.with_body(body, names))
            case "agent/stop":
                return await self.stop(call.with_body(body, names))
        raise invalid(("method", "must be info, agent/run, agent/connect or agent/stop"))


def _names(params: Mapping[str, JSON]) -> dict[str, str]:
    found = {"agent": str(params.get("agentId") or "default")}
    if params.get("threadId") is not None:
        found["thread"] = str(params["threadId"])
    return found


__all__ = ["CopilotKitFace"]
