"""The AG-UI face: POST a run, join one, hydrate a thread, stop (server page §6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import ClassVar, Protocol

import msgspec
from msgspec.structs import replace
from starlette.responses import Response
from starlette.types import ASGIApp

from ..commands import (
    Answer,
    Command,
    Request,
    Resolution,
    Steer,
)
from ..core.agui import events as agui
from ..core.agui.content import snapshot
from ..core.agui.ends import Detail, Names, interrupt
from ..core.agui.events import Profile
from ..core.agui.input import (
    ClientMessage,
    Plan,
    RunInput,
    history_of,
    imported,
    plan,
)
from ..core.agui.position import Position, read
from ..core.agui.segments import Segment, command_id
from ..core.agui.wire import frame
from ..core.canonical import digest_of
from ..errors import PilothouseError
from ..messages import JSON, Message, Text
from ..records import UNFINISHED, HistoryMessage, RunView
from .agui_request import (
    ask_of,
    extras_of,
    input_of,
    own_props,
    profile_of,
    user_message_ids,
)
from .answers import answers_of, check_taken, pending
from .begin import Beginning, when_busy_of
from .call import Call, answer
from .connect import told_again
from .following import Following
from .hydrate import hydrated
from .names import checked
from .problems import Problem, invalid, not_found, problem_of
from .registry import DisconnectPolicy, Registry
from .scope import ScopedRun, ScopedThread
from .settings import AGUIOptions, HistoryPolicy
from .stream import Closing, Opening, Reader, Stream

logger = logging.getLogger("pilothouse.server")


class Planner(Protocol):
    """Understands a client's list of messages against the path (`core.agui.input.plan`)."""

    def __call__(
        self,
        messages: Sequence[ClientMessage],
        path: Sequence[HistoryMessage],
        *,
        head: str | None,
        broken: bool,
    ) -> Plan:
        """What the request asks for."""
        ...


class AGUIFace:
    """The routes of this protocol."""

    HEADERS: ClassVar[Mapping[str, str]] = {}
    """On its streams, besides those of all."""

    def __init__(
        self,
        registry: Registry,
        beginning: Beginning,
        leaving: DisconnectPolicy,
        options: AGUIOptions,
        detail: Detail,
        history: HistoryPolicy = "server",
    ) -> None:
        self._history = history
        self._registry = registry
        self._beginning = beginning
        self._leaving = leaving
        self._options = options
        self._detail = detail

    # POST

    async def post(self, call: Call) -> ASGIApp:
        """Starts a run, answers a waiting one, or follows a known one."""
        agent = call.params.get("agent", "default")
        call.runs.has_agent(agent)
        body = await call.json()
        asked = input_of(call, body)
        profile = profile_of(call, self._options, asked.protocol_version)
        wanted_id = call.headers.get("x-run-id")
        if wanted_id is not None and wanted_id != asked.run_id:
            raise invalid(("X-Run-Id", "must equal runId"))
        digest = digest_of({name: value for name, value in body.items() if name != "protocolVersion"})
        return await self.take(call, agent, asked, digest, profile)

    async def take(
        self,
        call: Call,
        agent: str,
        asked: RunInput,
        digest: str,
        profile: Profile,
        planner: Planner = plan,
    ) -> ASGIApp:
        """The same for what was read already; `digest` tells an equal request from another."""
        for warning in asked.warnings:
            logger.warning("run %s: %s", asked.run_id, warning)
        if (known := await call.runs.find_run(asked.run_id)) is not None:
            return await self._again(call, known, asked, digest, agent, profile)
        thread = await call.runs.thread(checked(asked.thread_id, "threadId"))
        head = await thread.head()
        view = None if head is None else await head.view()  # before the segments: an answer may come just now
        if (segment := await self._segment(thread, asked.run_id)) is not None:
            await call.runs.name_segment(asked.run_id, segment[0])
            return self._stream(
                call, *segment, names=self._names(asked, profile), joined=False, known=user_message_ids(asked)
            )
        if head is not None and view is not None and view.requests:
            answers = answers_of(asked, view.requests)
            if answers or asked.resume:
                return await self._answer(call, thread, head, view, asked, answers, profile, planner)
            self._go_on(asked, view.requests)
        return await self._start(call, agent, thread, head, asked, digest, profile, planner)

    def _go_on(self, asked: RunInput, requests: Sequence[Request]) -> None:
        """Whether a new message may end a run that waits: not while a person is asked, unless it says so (SV-105)."""
        anew = bool(asked.messages) and asked.messages[-1].role == "user"
        forced = own_props(asked).get("when_busy") in ("supersede", "rollback", "steer")
        if not anew or not (forced or all(request.kind == "external" for request in requests)):
            raise pending(requests)

    def _names(self, asked: RunInput, profile: Profile) -> Names:
        return self._named(asked.thread_id, asked.run_id, profile)

    def _named(self, thread_id: str, run_id: str, profile: Profile) -> Names:
        options = self._options
        return Names(
            thread_id,
            run_id,
            profile=profile,
            detail=self._detail,
            steps=options.steps,
            on_interrupt=options.on_interrupt,
            encrypted=options.encrypted_reasoning,
        )

    async def _again(
        self, call: Call, known: ScopedRun, asked: RunInput, digest: str, agent: str, profile: Profile
    ) -> ASGIApp:
        """The same run id: the same content follows, other content is a conflict (SV-72)."""
        same = known.ids.thread == asked.thread_id and known.agent == agent and known.ids.digest == digest
        if not same:
            raise Problem(
                409, "run_conflict", f"run {asked.run_id} stands for other content", run_id=asked.run_id
            )
        first = (await known.segments())[0]
        names = self._names(asked, profile)
        return self._stream(call, known, first, names=names, joined=False, replayed=True)

    async def _segment(self, thread: ScopedThread, run_id: str) -> tuple[ScopedRun, Segment] | None:
        """A later segment of the thread's head run, by the id that its answers carry."""
        head = await thread.head()
        if head is None:
            return None
        for segment in (await head.segments())[1:]:
            if segment.run_id == run_id:
                return head, segment
        return None

    async def _start(
        self,
        call: Call,
        agent: str,
        thread: ScopedThread,
        head: ScopedRun | None,
        asked: RunInput,
        digest: str,
        profile: Profile,
        planner: Planner,
    ) -> ASGIApp:
        props = own_props(asked)
        status = "" if head is None else (await head.view()).status
        if self._history == "client":
            planned = imported(asked.messages)
        else:
            path = await thread.path(head)
            planned = planner(
                asked.messages, path, head=None if head is None else head.key, broken=status in UNFINISHED
            )
        if asked.resume and not planned.new:
            raise Problem(409, "request_not_pending", "these requests are not open, or not any more")
        when_busy = when_busy_of(props.get("when_busy"), "forwardedProps.pilothouse.when_busy")
        if planned.action == "continue":  # nothing is said that could take the place of what runs
            when_busy = "raise"
        wished = await extras_of(call, props)
        extras = replace(
            wished,
            message_id=planned.new[-1].id if planned.new else None,
            parent=wished.parent or planned.parent,
            base=None if planned.base is None or wished.parent else history_of(planned.base),
            client_tools=asked.tools,
        )
        begun = await self._beginning.begin(
            call.runs,
            agent,
            thread,
            asked.run_id,
            ask_of(planned, asked),
            extras=extras,
            digest=digest,
            when_busy=when_busy,
        )
        names = self._names(asked, profile)
        if begun.queued is None:
            run = await begun.run()
            note = None
            if planned.forked and planned.parent is not None:
                kept = {"messageId": planned.parent.keep_through}
                note = agui.Custom("pilothouse.forked", kept)
            segment = Segment(asked.run_id, 1)
            return self._stream(call, run, segment, names=names, joined=begun.other, note=note)

        async def opening() -> tuple[ScopedRun, Reader]:
            try:
                run = await begun.run()
            except (PilothouseError, Problem) as error:
                problem = problem_of(error)
                raise Closing(self._refused(problem.detail or problem.code, problem.code)) from error
            return run, self._reader(run, Segment(asked.run_id, 1), names, joined=False)

        return self._open(call, asked.run_id, asked.thread_id, names, opening, key=begun.key)

    def _refused(self, message: str, code: str) -> bytes:
        """The end of a stream whose run was refused after all."""
        return frame(agui.RunError(message, code), None, "")

    # Answers

    async def _answer(
        self,
        call: Call,
        thread: ScopedThread,
        run: ScopedRun,
        view: RunView,
        asked: RunInput,
        answers: Mapping[str, Resolution],
        profile: Profile,
        planner: Planner,
    ) -> ASGIApp:
        """Answers the open requests of the waiting run, once, and follows it (SV-103, SV-104).

        What clients run may be answered in parts, and is not wanted at all while people are asked (SV-92).
        """
        if missing := [one for one in view.requests if one.id not in answers and one.kind != "external"]:
            raise pending(missing)
        if not answers:
            raise pending(view.requests)
        planned = planner(asked.messages, await thread.path(run), head=run.key, broken=False)
        for message in planned.new:  # what is said with the answers comes behind them
            said = Message(message.id, "user", message.parts or (Text(""),))
            check_taken(await run.command(Command(f"agui-message:{message.id}", run.key, Steer(said))))
        acks = await asyncio.gather(
            *[
                run.command(
                    Command(command_id(asked.run_id, request_id), run.key, Answer(request_id, resolution))
                )
                for request_id, resolution in answers.items()
            ]
        )
        for request_id, ack in zip(answers, acks, strict=True):
            check_taken(ack, request=request_id)
        found = await self._segment(thread, asked.run_id)
        if found is None:
            raise Problem(
                503, "answer_pending", "the run has not taken the answer in yet", headers={"Retry-After": "1"}
            )
        await call.runs.name_segment(asked.run_id, found[0])
        return self._stream(
            call, *found, names=self._names(asked, profile), joined=False, known=user_message_ids(asked)
        )

    # GET and stop

    async def get(self, call: Call) -> ASGIApp:
        """Joins a run from its start, or hydrates a thread."""
        call.runs.has_agent(call.params.get("agent", "default"))
        query = call.query
        if (run_id := query.get("runId")) is not None:
            return await self._join(call, run_id)
        if (thread_id := query.get("threadId")) is not None:
            return await self._hydrate(call, thread_id)
        raise invalid(("", "runId or threadId is wanted"))

    async def _join(self, call: Call, run_id: str) -> ASGIApp:
        profile: Profile = profile_of(call, self._options, agui.PROTOCOL_VERSION)
        run = await call.runs.find_run(run_id)
        if run is None:
            return await self._join_segment(call, run_id, profile)
        names = self._named(run.ids.thread, run_id, profile)
        first = (await run.segments())[0]
        # Who joins by the run's own id wants all of it, answers and what came after them included.
        return self._stream(call, run, Segment(run_id, first.since), names=names, joined=True)

    async def _join_segment(self, call: Call, run_id: str, profile: Profile) -> ASGIApp:
        run = await call.runs.run_of(run_id)
        names = self._named(run.ids.thread, run_id, profile)
        segment = next((one for one in await run.segments() if one.run_id == run_id), None)
        if segment is None:
            raise not_found()
        return self._stream(call, run, segment, names=names, joined=True)

    async def connect(self, call: Call) -> ASGIApp:
        """Tells a thread again, run by run, then follows the last one; an unknown thread is an empty stream (SV-182)."""
        call.runs.has_agent(call.params.get("agent", "default"))
        body = await call.json()
        profile = profile_of(call, self._options, str(body.get("protocolVersion") or ""))
        thread = await call.runs.thread(checked(body.get("threadId"), "threadId"))
        return await self.follow_thread(call, thread, profile)

    async def follow_thread(self, call: Call, thread: ScopedThread, profile: Profile) -> ASGIApp:
        """A thread from its beginning, in that profile."""
        head = await thread.head()
        run_id = "" if head is None else head.ids.run
        names = self._named(thread.id, run_id, profile)

        async def opening() -> tuple[ScopedRun, Reader]:
            if head is None:
                raise Closing(b"")
            segment = Segment(run_id, 1)
            reader = Following(
                head,
                segment,
                names,
                registry=self._registry,
                options=self._options,
                joined=False,
                retold=True,
            )
            return head, reader

        before = None if head is None else told_again(await head.line(), names)
        key = thread.key if head is None else head.key
        return self._open(call, run_id, thread.id, names, opening, key=key, before=before)

    async def _hydrate(self, call: Call, thread_id: str) -> Response:
        thread = await call.runs.thread(thread_id)
        head = await thread.head()
        path = await thread.path(head)
        view = None if head is None else await head.view()
        live = await thread.live()
        pending: JSON = None
        if head is not None and view is not None and view.requests:
            asked = [msgspec.to_builtins(interrupt(request)) for request in view.requests]
            pending = {"runId": head.ids.run, "pending": asked}
        body = {
            "messages": hydrated(path) if call.query.get("messages") != "agui" else _messages(path),
            "activeRun": None if live is None else {"runId": live.ids.run},
            "interrupts": pending,
            "page": {"truncated": False, "cursor": None},
        }
        return answer(body)

    async def stop(self, call: Call) -> Response:
        """Stops a run, also one that is only being prepared; an unknown one is not stopped (SV-183)."""
        agent = call.params.get("agent", "default")
        call.runs.has_agent(agent)
        body = await call.json()
        thread_id, run_id = body.get("threadId"), body.get("runId")
        if not isinstance(thread_id, str):
            raise invalid(("threadId", "must be a text"))
        if run_id is not None and not isinstance(run_id, str):
            raise invalid(("runId", "must be a text"))
        thread = await call.runs.thread(thread_id)
        if call.runs.stop_preparing(agent, thread, run_id):
            return answer({"stopped": True})
        run = await thread.live()
        if run_id is not None and run is not None and run.ids.run != run_id:
            found = await self._segment(thread, run_id)
            run = None if found is None else found[0]
        if run is None:
            return answer({"stopped": False})
        ack = await run.cancel("stopped")
        return answer({"stopped": ack.state == "applied"})

    async def capabilities(self, call: Call) -> Response:
        """What this endpoint can do, in the protocol's words."""
        name = call.params.get("agent", "default")
        call.runs.has_agent(name)
        return answer(
            {
                "identity": {"name": name, "type": "pilothouse"},
                "transport": {"streaming": True, "websocket": False, "resumable": True},
                "tools": {"supported": True, "parallelCalls": True, "clientProvided": True},
                "reasoning": {
                    "supported": True,
                    "streaming": True,
                    "encrypted": self._options.encrypted_reasoning,
                },
                "humanInTheLoop": {
                    "supported": True,
                    "approvals": True,
                    "interrupts": True,
                    "approveWithEdits": True,
                },
            }
        )

    # Streams

    def _reader(
        self,
        run: ScopedRun,
        segment: Segment,
        names: Names,
        *,
        joined: bool,
        cursor: tuple[Position, str] | None = None,
        known: Collection[str] = (),
        note: agui.Custom | None = None,
    ) -> Reader:
        return Following(
            run,
            segment,
            names,
            registry=self._registry,
            options=self._options,
            joined=joined,
            cursor=cursor,
            known=known,
            note=note,
        )

    def _stream(
        self,
        call: Call,
        run: ScopedRun,
        segment: Segment,
        *,
        names: Names,
        joined: bool,
        replayed: bool = False,
        known: Collection[str] = (),
        note: agui.Custom | None = None,
    ) -> ASGIApp:
        """The stream of a run that is known, from the client's cursor if it has one that we can use.

        `known`: user messages that the client has; one that is told everything anew is told these too.
        """
        said = call.headers.get("last-event-id") or call.query.get("after")
        cursor = None if said is None else read(said)
        over = said is not None and cursor is None  # malformed: start over, never an error (SV-47)
        anew = joined or over
        reader = self._reader(
            run,
            segment,
            names,
            joined=anew,
            cursor=cursor,
            known=() if anew else frozenset(known),
            note=note if cursor is None else None,
        )

        async def opening() -> tuple[ScopedRun, Reader]:
            return run, reader

        return self._open(call, run.ids.run, run.ids.thread, names, opening, key=run.key, replayed=replayed)

    def _open(
        self,
        call: Call,
        run_id: str,
        thread_id: str,
        names: Names,
        opening: Opening,
        *,
        key: str,
        replayed: bool = False,
        before: AsyncIterator[bytes] | None = None,
    ) -> ASGIApp:
        self._registry.check(call.runs.principal.tenant, key)
        headers = {"Pilothouse-Run-Id": names.run_id, "Pilothouse-Thread-Id": thread_id, **self.HEADERS}
        if replayed:
            headers["Idempotent-Replayed"] = "true"

        async def cancel() -> object:
            run = await call.runs.find_run(run_id)
            if run is None or (await run.view()).status == "waiting":
                return None
            return await run.cancel("disconnected")

        face = call.path.split("/")[1]
        return Stream(
            self._registry,
            run=key,
            tenant=call.runs.principal.tenant,
            face=face,
            opening=opening,
            headers=headers,
            on_gone=lambda: self._leaving.gone(key, face, cancel),
            before=before,
        )


def _messages(path: Sequence[HistoryMessage]) -> JSON:
    """A path in the protocol's own words."""
    return [msgspec.json.decode(agui.encode(message)) for message in snapshot(path, profile="1.0")]


__all__ = ["AGUIFace", "Planner"]
