"""The AG-UI face: POST a run, join one, hydrate a thread, stop (server page §6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp

from ..commands import (
    Ack,
    Allow,
    Answer,
    Command,
    Deny,
    ExternalResult,
    InputAnswer,
    Request,
    Resolution,
    Steer,
)
from ..conversation.extras import RunExtras
from ..core.agui import events as agui
from ..core.agui.content import snapshot
from ..core.agui.ends import Detail, Names, interrupt
from ..core.agui.events import Profile
from ..core.agui.input import (
    ClientMessage,
    Invalid,
    Plan,
    Resume,
    RunInput,
    history_of,
    imported,
    plan,
    read_input,
)
from ..core.agui.position import Position, read
from ..core.agui.project import Frame, Projector, Snapshot
from ..core.agui.segments import Segment, command_id
from ..core.agui.verify import Verifier
from ..core.agui.wire import Flow, frame
from ..core.canonical import digest_of, scrub
from ..errors import PilothouseError
from ..events import Delta
from ..messages import JSON, InputPart, Message, Text
from ..records import Parent, Record, RunView
from .begin import Beginning, WhenBusy
from .call import Call, answer
from .house import Ask, ContextEntry
from .hydrate import hydrated
from .names import checked
from .problems import Problem, invalid, not_found, problem_of
from .scope import ScopedRun, ScopedThread
from .settings import AGUIOptions, HistoryPolicy
from .stream import Closing, Leaving, Reader, Registry, Stream

logger = logging.getLogger("pilothouse.server")

_SNAPSHOT_LIMIT: Final = 8 * 1024 * 1024
"""A frame stays under the buffer of the reference client (SV-41)."""

_BROKEN: Final = frozenset({"failed", "cancelled", "unknown"})
_BUSY: Final = frozenset({"raise", "steer", "queue", "supersede", "rollback", "supersede_orphan"})
_TOOL_NOTES_S: Final = 0.25


class Following:
    """One connection's reading of a segment (stream.Reader)."""

    def __init__(
        self,
        run: ScopedRun,
        segment: Segment,
        names: Names,
        *,
        registry: Registry,
        options: AGUIOptions,
        joined: bool,
        cursor: tuple[Position, str] | None = None,
        known: Collection[str] = (),
        note: agui.Custom | None = None,
    ) -> None:
        place, tag = cursor if cursor is not None else (None, "")
        self._run = run
        self._segment = segment
        self._names = names
        self._registry = registry
        self._options = options
        self._note = note
        self._noted: dict[str, float] = {}
        self._verifier = Verifier(names.profile) if options.verify and cursor is None else None
        self._projector = Projector(
            names,
            cursor=place,
            tag=tag,
            joined=joined,
            since=segment.since,
            until=segment.until,
            final_snapshot=options.final_snapshot,
            known=known,
        )

    @property
    def ended(self) -> bool:
        """The terminal event was made."""
        return self._projector.ended

    @property
    def flow(self) -> Flow | None:
        """The short way for flowing text."""
        return self._projector.flow

    @property
    def may_pause(self) -> bool:
        """The run may be at rest."""
        return self._projector.may_pause

    async def feed(self, item: Record | Delta) -> bytes:
        """What is to be sent because of it."""
        frames = self._projector.feed(item)
        return await self._written(frames) if frames else b""

    async def rest(self) -> bytes:
        """What is to be sent where the run pauses."""
        return await self._written(self._projector.rest())

    async def finish(self) -> bytes:
        """What is to be sent where nothing more comes."""
        return await self._written(self._projector.finish())

    def cut(self, reason: str) -> bytes:
        """The note of a cut; none can stand before RUN_STARTED."""
        if not self._projector.begun:
            return b""
        return frame(agui.Custom("pilothouse.cut", {"reason": reason}), None, "")

    def error(self, code: str, message: str) -> bytes:
        """RUN_ERROR."""
        return frame(agui.RunError(message, code), None, "")

    def restart(self) -> Following:
        """From the first frame, with what the reader must replace (SV-47)."""
        return Following(
            self._run, self._segment, self._names, registry=self._registry, options=self._options, joined=True
        )

    async def _written(self, frames: Sequence[Frame]) -> bytes:
        tag = self._projector.tag
        out: list[bytes] = []
        for event, position, key in frames:
            if key is not None and not self._due(key):
                continue
            made = event
            if isinstance(made, Snapshot):
                filled = await self._filled(made)
                if filled is None:
                    continue
                made = filled
            if self._verifier is not None:
                self._verifier.check(made)
            out.append(frame(made, position, tag))
            if self._note is not None:  # nothing can stand before RUN_STARTED
                out.append(frame(self._note, None, tag))
                self._note = None
        return b"".join(out)

    def _due(self, key: str) -> bool:
        """At most four notes a second of one tool."""
        now = self._registry.clock.monotonic()
        if now - self._noted.get(key, -1.0) < _TOOL_NOTES_S:
            return False
        self._noted[key] = now
        return True

    async def _filled(self, wanted: Snapshot) -> agui.MessagesSnapshot | None:
        """The conversation as the snapshot is to show it; the newest of it if it is too large for a frame."""
        front = wanted.scope == "front"
        path = await self._run.front() if front else await self._run.path(wanted.until)
        messages = snapshot(path, profile=self._names.profile)
        size = len(agui.encode(agui.MessagesSnapshot(messages)))
        if size <= _SNAPSHOT_LIMIT:
            return agui.MessagesSnapshot(messages)
        if not front:  # it only confirms what the reader has
            logger.warning("a snapshot of run %s has %d bytes: left out", self._run.ids.run, size)
            return None
        while messages and size > _SNAPSHOT_LIMIT:
            size -= len(agui.encode(messages.pop(0)))
        return agui.MessagesSnapshot(messages)


class AGUIFace:
    """The routes of this protocol."""

    def __init__(
        self,
        registry: Registry,
        beginning: Beginning,
        leaving: Leaving,
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
        body = scrub(await call.json())
        asked = self._input(call, body)
        profile = self._profile(call, asked.protocol_version)
        wanted_id = call.headers.get("x-run-id")
        if wanted_id is not None and wanted_id != asked.run_id:
            raise invalid(("X-Run-Id", "must equal runId"))
        for warning in asked.warnings:
            logger.warning("run %s: %s", asked.run_id, warning)
        digest = digest_of({name: value for name, value in body.items() if name != "protocolVersion"})
        if (known := await call.runs.find_run(asked.run_id)) is not None:
            return await self._again(call, known, asked, digest, agent, profile)
        thread = await call.runs.thread(checked(asked.thread_id, "threadId"))
        head = await thread.head()
        view = None if head is None else await head.view()  # before the segments: an answer may come just now
        if (segment := await self._segment(thread, asked.run_id)) is not None:
            return self._stream(
                call, *segment, names=self._names(asked, profile), joined=False, known=_ids(asked)
            )
        if head is not None and view is not None and view.requests:
            answers = _answers(asked, view.requests)
            if answers or asked.resume:
                return await self._answer(call, thread, head, view, asked, answers, profile)
            self._go_on(asked, view.requests)
        return await self._start(call, agent, thread, head, asked, digest, profile)

    def _go_on(self, asked: RunInput, requests: Sequence[Request]) -> None:
        """Whether a new message may end a run that waits: not while a person is asked, unless it says so (SV-105)."""
        anew = bool(asked.messages) and asked.messages[-1].role == "user"
        forced = _wish(asked).get("when_busy") in ("supersede", "rollback", "steer")
        if not anew or not (forced or all(request.kind == "external" for request in requests)):
            raise _pending(requests)

    def _input(self, call: Call, body: Mapping[str, Any]) -> RunInput:
        limit = call.limits.input_messages
        messages = body.get("messages")
        if limit is not None and isinstance(messages, list) and len(messages) > limit:
            raise invalid(("messages", f"{len(messages)} messages, the limit is {limit}"))
        try:
            found = read_input(body)
        except Invalid as error:
            raise invalid(*error.faults) from None
        checked(found.run_id, "runId")
        checked(found.thread_id, "threadId")
        return found

    def _profile(self, call: Call, version: str) -> Profile:
        """SV-90: the query and the option win over what the client says of itself."""
        wanted = call.query.get("profile", self._options.profile)
        if wanted not in ("auto", "1.0", "legacy"):
            raise invalid(("profile", "must be auto, 1.0 or legacy"))
        if wanted == "auto":
            return "1.0" if version.partition(".")[0] == "1" else "legacy"
        return "1.0" if wanted == "1.0" else "legacy"

    def _names(self, asked: RunInput, profile: Profile) -> Names:
        return Names(asked.thread_id, asked.run_id, profile=profile, detail=self._detail)

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
    ) -> ASGIApp:
        props = _wish(asked)
        status = "" if head is None else (await head.view()).status
        if self._history == "client":
            planned = imported(asked.messages)
        else:
            path = await thread.path(head)
            planned = plan(
                asked.messages, path, head=None if head is None else head.key, broken=status in _BROKEN
            )
        if asked.resume and not planned.new:
            raise Problem(409, "request_not_pending", "these requests are not open, or not any more")
        when_busy = _when_busy(props)
        if planned.action == "continue":  # nothing is said that could take the place of what runs
            when_busy = "raise"
        wished = await _wished(call, props)
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
            _ask(planned, asked),
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
                said = agui.RunError(problem.detail or problem.code, problem.code)
                raise Closing(frame(said, None, "")) from error
            return run, self._reader(run, Segment(asked.run_id, 1), names, joined=False)

        return self._open(call, asked.run_id, asked.thread_id, names, opening, key=begun.key)

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
    ) -> ASGIApp:
        """Answers the open requests of the waiting run, once, and follows it (SV-103, SV-104).

        What clients run may be answered in parts, and is not wanted at all while people are asked (SV-92).
        """
        if missing := [one for one in view.requests if one.id not in answers and one.kind != "external"]:
            raise _pending(missing)
        if not answers:
            raise _pending(view.requests)
        planned = plan(asked.messages, await thread.path(run), head=run.key, broken=False)
        for message in planned.new:  # what is said with the answers comes behind them
            said = Message(message.id, "user", message.parts or (Text(""),))
            _refused(await run.command(Command(f"agui-message:{message.id}", run.key, Steer(said))))
        acks = await asyncio.gather(
            *[
                run.command(
                    Command(command_id(asked.run_id, request_id), run.key, Answer(request_id, resolution))
                )
                for request_id, resolution in answers.items()
            ]
        )
        for request_id, ack in zip(answers, acks, strict=True):
            _refused(ack, request=request_id)
        found = await self._segment(thread, asked.run_id)
        if found is None:
            raise Problem(
                503, "answer_pending", "the run has not taken the answer in yet", headers={"Retry-After": "1"}
            )
        return self._stream(call, *found, names=self._names(asked, profile), joined=False, known=_ids(asked))

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
        profile: Profile = self._profile(call, agui.PROTOCOL_VERSION)
        run = await call.runs.find_run(run_id)
        if run is None:
            return await self._join_segment(call, run_id, profile)
        names = Names(run.ids.thread, run_id, profile=profile, detail=self._detail)
        first = (await run.segments())[0]
        # Who joins by the run's own id wants all of it, answers and what came after them included.
        return self._stream(call, run, Segment(run_id, first.since), names=names, joined=True)

    async def _join_segment(self, call: Call, run_id: str, profile: Profile) -> ASGIApp:
        """A later segment can be found in its thread only."""
        thread_id = call.query.get("threadId")
        found = None if thread_id is None else await self._segment(await call.runs.thread(thread_id), run_id)
        if found is None:
            raise not_found()
        names = Names(found[0].ids.thread, run_id, profile=profile, detail=self._detail)
        return self._stream(call, *found, names=names, joined=True)

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
            "messages": hydrated(path),
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
                "reasoning": {"supported": True, "streaming": True, "encrypted": False},
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
    ) -> Following:
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
        opening: Any,
        *,
        key: str,
        replayed: bool = False,
    ) -> ASGIApp:
        refusal = self._registry.refusal(call.runs.principal.tenant, key)
        if refusal is not None:
            status, code = refusal
            raise Problem(status, code, "too many streams are open", headers={"Retry-After": "1"})
        headers = {"Pilothouse-Run-Id": names.run_id, "Pilothouse-Thread-Id": thread_id}
        if replayed:
            headers["Idempotent-Replayed"] = "true"

        async def cancel() -> object:
            run = await call.runs.find_run(run_id)
            if run is None or (await run.view()).status == "waiting":
                return None
            return await run.cancel("disconnected")

        return Stream(
            self._registry,
            run=key,
            tenant=call.runs.principal.tenant,
            opening=opening,
            headers=headers,
            on_gone=lambda: self._leaving.gone(key, cancel),
        )


def _ask(planned: Plan, asked: RunInput) -> Ask:
    """What the conversation is asked for, with what the client says beside it."""
    context = tuple(
        [ContextEntry(str(item.get("description") or ""), item.get("value")) for item in asked.context]
    )
    content = _content(planned.new) if planned.action == "send" else None
    action: Any = "send" if planned.action == "continue" else planned.action
    return Ask(action, content, planned.target, asked.forwarded_props, context)


async def _wished(call: Call, props: Mapping[str, Any]) -> RunExtras:
    """What `forwardedProps.pilothouse` wishes for the run: a parent, lower limits, metadata (SV-108)."""
    parent = None
    if (given := props.get("parent")) is not None:
        path = "forwardedProps.pilothouse.parent"
        if not isinstance(given, dict) or not isinstance(given.get("run_id"), str):
            raise invalid((path, "must be {run_id, keep_through?}"))
        through = given.get("keep_through")
        if through is not None and not isinstance(through, str):
            raise invalid((f"{path}.keep_through", "must be the id of a message"))
        parent = Parent((await call.runs.run(given["run_id"])).key, through)
    metadata = props.get("metadata")
    return RunExtras(
        parent=parent,
        limits=props["limits"] if isinstance(props.get("limits"), dict) else {},
        extensions={"server/metadata": metadata} if isinstance(metadata, dict) and metadata else {},
    )


def _content(new: Sequence[ClientMessage]) -> tuple[InputPart, ...]:
    """The new user messages as one; an empty one is sent too (AC-48)."""
    parts: list[InputPart] = []
    for number, message in enumerate(new):
        if number and parts and message.parts:
            parts.append(Text("\n\n"))
        parts += message.parts
    return tuple(parts) or (Text(""),)


def _ids(asked: RunInput) -> list[str]:
    """The client's own messages."""
    return [message.id for message in asked.messages if message.role == "user"]


def _wish(asked: RunInput) -> Mapping[str, Any]:
    """The one key of `forwardedProps` that is ours (SV-108)."""
    found = asked.forwarded_props.get("pilothouse")
    return found if isinstance(found, dict) else {}


def _when_busy(props: Mapping[str, Any]) -> WhenBusy | None:
    wanted = props.get("when_busy")
    if wanted is None:
        return None
    if wanted not in _BUSY:
        raise invalid(("forwardedProps.pilothouse.when_busy", f"must be one of {', '.join(sorted(_BUSY))}"))
    return wanted  # type: ignore[no-any-return]


# Answers


def _answers(asked: RunInput, requests: Sequence[Request]) -> dict[str, Resolution]:
    """What the client answers of what is open; a resume entry wins over a tool message (SV-104)."""
    found: dict[str, Resolution] = {}
    results = {message.call_id: message for message in asked.messages if message.role == "tool"}
    entries = {entry.interrupt_id: entry for entry in asked.resume}
    single = asked.forwarded_props.get("command")
    if isinstance(single, dict) and "resume" in single and not entries and len(requests) == 1:  # SV-109
        entries = {requests[0].id: Resume(requests[0].id, "resolved", single["resume"])}
    for request in requests:
        if (entry := entries.get(request.id)) is not None:
            found[request.id] = _resolution(request, entry)
        elif request.kind == "external" and (result := results.get(request.call_id or "")) is not None:
            content = result.parts or ((Text(result.error),) if result.error else ())
            found[request.id] = ExternalResult(content, bool(result.error))
    for unknown in entries.keys() - {request.id for request in requests}:
        logger.warning("run %s answers %s, which is not open: ignored", asked.run_id, unknown)
    return found


def _resolution(request: Request, entry: Resume) -> Resolution:
    payload = entry.payload
    if entry.status == "cancelled":
        return Deny("cancelled")
    if request.kind == "input":
        return InputAnswer(payload)
    if request.kind == "external":
        text = payload if isinstance(payload, str) else msgspec.json.encode(payload).decode()
        return ExternalResult((Text(text),))
    said = {"approved": payload} if isinstance(payload, bool) else payload
    if not isinstance(said, dict) or not isinstance(said.get("approved"), bool):
        raise invalid((f"resume.{request.id}.payload", "must be an object with approved: true or false"))
    if not said["approved"]:
        return Deny(str(said.get("reason") or ""))
    edited = said.get("editedArgs")
    if edited is not None and not isinstance(edited, dict):
        raise invalid((f"resume.{request.id}.payload.editedArgs", "must be an object"))
    return Allow("once", edited)


_UNFIT: Final = frozenset({"invalid_arguments", "answer_mismatch"})
"""Codes of answers that are no answer to their request, whatever the state of the run."""


def _refused(ack: Ack, **members: JSON) -> None:
    """Raises if a command was not taken in."""
    if ack.state in ("rejected", "unsupported"):
        status = 422 if ack.state == "unsupported" or ack.code in _UNFIT else 409
        raise Problem(status, ack.code or ack.state, ack.message, **members)


def _pending(requests: Sequence[Request]) -> Problem:
    listed = [msgspec.to_builtins(interrupt(request)) for request in requests]
    return Problem(409, "requests_pending", "the run waits for answers to these requests", requests=listed)


__all__ = ["AGUIFace", "Following"]
