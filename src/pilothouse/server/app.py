"""The server: one ASGI application, mountable under any prefix and runnable alone (server page §2).

It owns no run state: everything it says comes from the run controllers and the journal, so a restart changes nothing
but connections. This file routes, authenticates and answers refusals; what a face does is in its own module.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple, final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..clock import SystemClock, within
from ..cluster import Dispatcher
from ..contracts import Clock, Journal
from ..conversation.controller import AgentController
from ..core.agui.ends import Detail
from ..errors import ConfigError
from ..records import RunEntry, RunQuery
from ..runs.timing import RunTiming
from .agui import AGUIFace
from .aisdk import AISDKFace
from .artifacts import ArtifactsFace
from .auth import Authenticator, AuthRequest, LoopbackOnly
from .begin import Beginning
from .call import Call, answer
from .checking import FACES, check_options
from .control import ControlFace
from .copilotkit import CopilotKitFace
from .cross import preflight, with_headers
from .exports import ExportsFace
from .health import Health
from .names import is_id
from .page import Page
from .problems import Problem, document, not_found, problem_of
from .proxies import Proxies
from .registry import DisconnectPolicy, Registry
from .routes import Handler, Match, Routes, raw_path
from .scope import ScopedRuns
from .served import ServedAgents
from .served_agent import AgentDefinition, AutoRecover
from .settings import (
    CORS,
    AGUIOptions,
    HistoryPolicy,
    OnDisconnect,
    ServerLimits,
    StreamOptions,
    WhenBusy,
    WorkOptions,
)
from .stream import Stream, StreamCut
from .telemetry import RequestSpan
from .thread_records import ThreadRecords
from .threads import ThreadsFace
from .views import is_live

logger = logging.getLogger("pilothouse.server")
access = logging.getLogger("pilothouse.access")

_POLL_S: Final = 0.1
_ONCE: Final = frozenset({b"host", b"origin", b"authorization"})


class DrainResult(NamedTuple):
    """What became of the runs that lived when a drain began: their ids in the journal."""

    finished: tuple[str, ...]
    waiting: tuple[str, ...]
    handed_over: tuple[str, ...]


@final
class Server:
    """Agents on HTTP.

    Args:
        agents: by name, which is also the binding of their runs. A definition is a template, or makes conversations.
        journal: where runs are; None takes the definition's, else keeps them in memory, with a warning.
        auth: who may ask; None is this machine alone.
        faces: which protocols are served.
        on_disconnect: what becomes of a run that nobody follows any more; a mapping says it for each face. Plain AG-UI
            and AI SDK clients have no stop message, their Stop only closes the connection: `CancelAfter` suits such pages.
        when_busy: what a new send on a busy thread means, unless the request says otherwise.
        history: whose list of messages counts. "server": the thread is the truth and a client's list is understood
            against it; "client": each request brings its whole history, for clients that keep their own.
        auto_recover: when runs that a crash cut are taken up again.
        trusted_proxies: addresses or networks of proxies in front: only what they forward is read.
        allowed_hosts: names besides this machine's own by which the loopback default may be asked.
        error_detail: what is told of a provider's error.
        drain_timeout: seconds that live runs get to end when the server goes down.
        openapi: whether `/openapi.json` tells the routes.
        capture_content: whether OpenTelemetry spans hold what was said; they never do by themselves.
        timing: of the runs that are driven here.
        dispatcher: gives runs to the servers that work; the others accept, follow and command them.
        work: makes this one a worker.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentDefinition],
        *,
        journal: Journal | None = None,
        auth: Authenticator | None = None,
        faces: Sequence[str] = FACES,
        on_disconnect: OnDisconnect | Mapping[str, OnDisconnect] = "continue",
        when_busy: WhenBusy = "supersede_orphan",
        history: HistoryPolicy = "server",
        auto_recover: AutoRecover = "on_open",
        streams: StreamOptions | None = None,
        limits: ServerLimits | None = None,
        cors: CORS | None = None,
        trusted_proxies: Sequence[str] = (),
        allowed_hosts: Sequence[str] = (),
        error_detail: Detail = "safe",
        agui: AGUIOptions | None = None,
        drain_timeout: float = 30.0,
        openapi: bool = True,
        capture_content: bool = False,
        clock: Clock | None = None,
        timing: RunTiming | None = None,
        dispatcher: Dispatcher | None = None,
        work: WorkOptions | None = None,
    ) -> None:
        check_options(
            agents,
            journal,
            auth,
            faces,
            on_disconnect=on_disconnect,
            when_busy=when_busy,
            history=history,
            auto_recover=auto_recover,
            streams=streams,
            limits=limits,
            cors=cors,
            allowed_hosts=allowed_hosts,
            trusted_proxies=trusted_proxies,
            error_detail=error_detail,
            agui=agui,
            drain_timeout=drain_timeout,
        )
        self.clock: Clock = clock or SystemClock()
        self.limits = limits or ServerLimits()
        self.drain_timeout = drain_timeout
        self.is_loopback_only = auth is None
        self._cors = cors
        self._proxies = Proxies(trusted_proxies)
        self._auth: Authenticator = auth or LoopbackOnly(allowed_hosts, () if cors is None else cors.origins)
        self._own_journal = False
        journal = journal or self._journal_of(agents)
        self._served = ServedAgents(
            agents,
            journal,
            auto_recover=auto_recover,
            clock=self.clock,
            figures=self._figures,
            capture_content=capture_content,
            timing=timing,
            dispatcher=dispatcher,
            work=work,
        )
        self._records = ThreadRecords(journal, self.clock)
        self.registry = Registry(self.clock, streams or StreamOptions(), self.limits)
        self._health = Health(self._served)
        self._page = Page() if "page" in faces else None
        self._started = False
        self._stopping: asyncio.Task[DrainResult] | None = None
        self._hurry = asyncio.Event()
        beginning = Beginning(self._served, self.registry, self.limits, when_busy)
        leaving = DisconnectPolicy(self.registry, on_disconnect, self._served.spawn)
        self.routes = Routes()
        given = (self.registry, beginning, leaving, agui or AGUIOptions(), error_detail, history)
        face = AGUIFace(*given)
        if "agui" in faces:
            self._add_agui(face)
        if "copilotkit" in faces:
            self._add_copilotkit(CopilotKitFace(face))
        if "aisdk" in faces:
            self._add_aisdk(AISDKFace(*given))
        if "control" in faces:
            self._add_control(ControlFace(self.registry, beginning, leaving), ThreadsFace(), ArtifactsFace())
        self.routes.add("GET", "/metrics", self._metrics)
        if openapi:
            self.routes.add("GET", "/openapi.json", self._openapi)

    def _journal_of(self, agents: Mapping[str, AgentDefinition]) -> Journal:
        for definition in agents.values():
            if isinstance(definition, AgentController) and definition.journal is not None:
                return definition.journal
        from ..journal.memory import MemoryJournal

        logger.warning("no journal was given: runs are kept in memory and end with the process")
        self._own_journal = True
        return MemoryJournal()

    def _add_agui(self, face: AGUIFace) -> None:
        for prefix in ("/agui", "/agui/{agent}"):
            self.routes.add("POST", prefix, face.post)
            self.routes.add("GET", prefix, face.get)
        self.routes.add("POST", "/agui/{agent}/connect", face.connect)
        self.routes.add("POST", "/agui/{agent}/stop", face.stop)
        self.routes.add("GET", "/agui/{agent}/capabilities", face.capabilities)

    def _add_copilotkit(self, face: CopilotKitFace) -> None:
        self.routes.add("POST", "/copilotkit", face.single)
        self.routes.add("GET", "/copilotkit/info", face.info)
        self.routes.add("POST", "/copilotkit/agent/{agent}/run", face.run)
        self.routes.add("POST", "/copilotkit/agent/{agent}/connect", face.connect)
        self.routes.add("POST", "/copilotkit/agent/{agent}/stop/{thread}", face.stop)

    def _add_aisdk(self, face: AISDKFace) -> None:
        self.routes.add("POST", "/aisdk/{agent}", face.post)
        self.routes.add("GET", "/aisdk/{agent}/{chat}/stream", face.resume)
        self.routes.add("POST", "/aisdk/{agent}/{chat}/stop", face.stop)

    def _add_control(self, runs: ControlFace, threads: ThreadsFace, artifacts: ArtifactsFace) -> None:
        exports = ExportsFace()
        table: tuple[tuple[str, str, Handler], ...] = (
            ("GET", "/v1/agents", runs.agents),
            ("POST", "/v1/runs", runs.start),
            ("GET", "/v1/runs", runs.list),
            ("GET", "/v1/runs/{run}", runs.get),
            ("GET", "/v1/runs/{run}/events", runs.events),
            ("POST", "/v1/runs/{run}/commands", runs.command),
            ("GET", "/v1/runs/{run}/commands/{command}", runs.ack),
            ("POST", "/v1/runs/{run}/cancel", runs.cancel),
            ("POST", "/v1/runs/{run}/recover", runs.recover),
            ("POST", "/v1/runs/{run}/check", runs.check),
            ("POST", "/v1/runs/{run}/abandon", runs.abandon),
            ("GET", "/v1/runs/{run}/input", runs.input),
            ("GET", "/v1/runs/{run}/requests", runs.requests),
            ("GET", "/v1/runs/{run}/artifacts", artifacts.list),
            ("GET", "/v1/runs/{run}/artifacts/{digest}", artifacts.get),
            ("GET", "/v1/threads", threads.list),
            ("POST", "/v1/threads", threads.create),
            ("GET", "/v1/threads/{thread}", threads.get),
            ("PATCH", "/v1/threads/{thread}", threads.patch),
            ("DELETE", "/v1/threads/{thread}", threads.delete),
            ("GET", "/v1/threads/{thread}/messages", threads.messages),
            ("GET", "/v1/threads/{thread}/runs", threads.runs),
            ("GET", "/v1/threads/{thread}/tree", threads.tree),
            ("POST", "/v1/threads/{thread}/fork", threads.fork),
            ("POST", "/v1/threads/{thread}/head", threads.head),
            ("GET", "/v1/threads/{thread}/controllers", exports.list),
            ("GET", "/v1/threads/{thread}/controllers/{key}/{export}", exports.get),
        )
        for method, template, handler in table:
            self.routes.add(method, template, handler)

    async def _metrics(self, call: Call) -> Response:
        """Counters for Prometheus; for operators, and for this machine."""
        if not (self.is_loopback_only or "operator" in call.runs.principal.roles):
            raise not_found()
        content, media_type = self._served.metrics.exposition(call.headers.get("accept", ""))
        return Response(content, media_type=media_type)

    def _figures(self) -> dict[str, dict[str, float]]:
        """What metrics look up when they are asked for."""
        by_name, registry = self._served.by_name, self.registry
        return {
            "pilothouse_runs_live": {name: agent.runs.stats().live for name, agent in by_name.items()},
            "pilothouse_streams_live": dict(registry.faces()),
            "pilothouse_stream_cuts": dict(registry.cuts),
            "pilothouse_start_overs": {"": registry.start_overs},
        }

    async def _openapi(self, call: Call) -> Response:
        """This document."""
        from .openapi import document_of

        return answer(document_of(self.routes.table, call.root))

    # ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, or the lifespan."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._started:
            await self.start()
            logger.warning(
                "the server was started by a request: where it is mounted, enter its lifespan() in that of the application, "
                "or it cannot drain"
            )
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if self._cors is not None:
            if scope["method"] == "OPTIONS" and (found := preflight(self._cors, headers)) is not None:
                await found(scope, receive, with_headers(self._cors, headers, send))
                return
            send = with_headers(self._cors, headers, send)
        began = self.clock.monotonic()
        status = 0
        template = "-"
        span: RequestSpan | None = None
        run = "-"

        async def watched(message: Scope) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            path = raw_path(scope)
            if (health := await self._health.answer(path)) is not None:
                await health(scope, receive, watched)
            elif (match := self.routes.find(scope["method"], path)) is not None:
                template = match.template
                if is_id(name := match.params.get("run", "")):  # what is none could break the log's line
                    run = name
                span = self._served.traces.request(scope["method"], template, headers)
                response = await self._answer(scope, receive, path, headers, match)
                if isinstance(response, Stream):
                    # Many small sends: nothing stands between them and the socket.
                    status, run = 200, response.run_name
                    await response(scope, receive, send)
                else:
                    await response(scope, receive, watched)
            else:
                await self._static(scope, receive, watched)
        except StreamCut:
            raise  # the ASGI server breaks the connection off
        except Exception as error:
            if status:
                logger.exception("an answer broke off")
                raise
            await document(problem_of(error), scope["path"])(scope, receive, watched)
        finally:
            if span is not None:
                span.close(status)
            took_ms = (self.clock.monotonic() - began) * 1000
            access.info("%s %s %d %.0f ms %s", scope["method"], template, status, took_ms, run)

    async def _static(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A file of the page; it needs no token."""
        if self._page is None or scope["method"] not in ("GET", "HEAD"):
            raise not_found()
        await self._page(scope, receive, send, scope["path"][len(scope.get("root_path", "")) :])

    async def _answer(
        self, scope: Scope, receive: Receive, path: str, headers: Mapping[str, str], match: Match
    ) -> ASGIApp:
        """What answers a request: authenticated before its body is read (SV-10)."""
        names = [name for name, _ in scope["headers"] if name in _ONCE]
        if len(set(names)) < len(names):  # who stands in front of us may have read the other one
            raise Problem(400, "bad_request", "Host, Origin and Authorization can be sent once only")
        asked = self._proxies.asked(scope, headers)
        principal = await self._auth(
            AuthRequest(
                scope["method"], path, asked.headers, asked.peer, asked.scheme, scope.get("user"), asked.proxy
            )
        )
        if not principal.tenant:
            raise ConfigError("the authenticator made a principal without a tenant")
        runs = ScopedRuns(principal, self._served, self._records, headers.get("traceparent", ""))
        call = Call(scope, receive, runs, match.params, headers, self.limits, self.clock)
        return await match.handler(call)

    # Life

    async def start(self) -> None:
        """Opens for work; lost runs are taken up again in the background where that is wished for."""
        if not self._started:
            self._started = True
            self._served.open()
            await self._served.open_dispatch()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """The life of the server, for a host application."""
        await self.start()
        try:
            yield
        finally:
            await self.drain()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except Exception as error:
            logger.exception("the server's life ended with an error")
            kind = "lifespan.shutdown.failed" if self._stopping is not None else "lifespan.startup.failed"
            await send({"type": kind, "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})

    async def drain(self, timeout: float | None = None) -> DrainResult:
        """Goes down: no new runs, time for the live ones to end, then everything left is handed to a later recovery.

        Idempotent: later calls wait for the first. Streams whose run goes on elsewhere are cut, not closed.
        """
        if self._stopping is None:
            seconds = self.drain_timeout if timeout is None else timeout
            self._stopping = asyncio.get_running_loop().create_task(self._drain(seconds))
        return await asyncio.shield(self._stopping)

    def hurry(self) -> None:
        """Shortens a drain that is under way to what must be done (SV-223)."""
        self._hurry.set()

    async def _drain(self, seconds: float) -> DrainResult:
        served = self._served
        served.draining = True
        if served.dispatcher is not None:
            await served.dispatcher.drain()
        before = {entry.run_id for entry in await self._living()}
        ends = self.clock.monotonic() + seconds
        while not self._hurry.is_set():
            if all(entry.state == "waiting" for entry in await self._living()):
                break
            if self.clock.monotonic() >= ends:
                break
            await self.clock.sleep(_POLL_S)
        left = await self._living()
        waiting = {entry.run_id for entry in left if entry.state == "waiting"}
        # First the streams: none may tell the loss that a hand-over records as the run's end (SV-222).
        self.registry.cut_all("draining")
        with suppress(TimeoutError):
            await within(self.clock, 2.0, self.registry.wait_empty())
        await served.aclose(2.0 if self._hurry.is_set() else 10.0)
        if self._own_journal:
            await served.journal.aclose()
        alive = {entry.run_id for entry in left}
        return DrainResult(
            tuple(sorted(before - alive)), tuple(sorted(waiting)), tuple(sorted(alive - waiting))
        )

    async def _living(self) -> list[RunEntry]:
        """Runs that this process drives."""
        found: list[RunEntry] = []
        states = ("accepted", "running", "waiting", "stopping")
        for agent in self._served.by_name.values():
            cursor: str | None = None
            while True:
                query = RunQuery(binding=agent.name, states=states)  # type: ignore[arg-type]
                page = await agent.runs.catalog_runs(query, cursor=cursor, limit=500)
                found += [
                    entry
                    for entry in page.items
                    if entry.ownership == "here" and is_live(entry.status, entry.ownership)
                ]
                cursor = page.cursor
                if cursor is None:
                    break
        return found


__all__ = ["DrainResult", "Server"]
