"""The run control API: runs, their facts, commands, and the ways out of an unknown outcome (server page §7)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp

from ..clock import within
from ..commands import Ack, Command, CommandBody, FollowUp, Replace, Steer
from ..conversation.extras import RunExtras
from ..core.canonical import digest_of, scrub
from ..core.delivery import words
from ..core.sse import write
from ..core.view import TEXT_LIMIT
from ..errors import CursorAhead
from ..events import CommandReceived, Delta, OwnershipTold, RequestOpened, RunAccepted
from ..messages import JSON, Message, Text
from ..records import Accept, Record, RunQuery, RunView
from .begin import Beginning, when_busy_of
from .call import Call, answer, only
from .names import Ids, checked
from .problems import Problem, invalid
from .registry import DisconnectPolicy, Registry
from .scope import ScopedRun
from .served_agent import Ask
from .stream import Reader, Stream
from .views import builtin, input_view, time_text

_STATES: Final = frozenset({"accepted", "running", "waiting", "stopping", "unknown", "terminal"})
_STATUSES: Final = _STATES - {"terminal"} | {
    "completed",
    "truncated",
    "incomplete",
    "cancelled",
    "failed",
    "corrupt",
}


def fact_view(record: Record, ids: Ids) -> dict[str, JSON]:
    """A fact as a client reads it, run and thread named as the client knows them."""
    found: dict[str, JSON] = {"run_seq": record.seq, "at": time_text(record.at_ms), "lane": record.lane}
    if record.causation:
        found["causation"] = record.causation
    found |= builtin(record.fact)
    if isinstance(record.fact, RunAccepted):
        found["thread_id"] = ids.thread
    elif isinstance(record.fact, CommandReceived):
        found["command"]["run_id"] = ids.run
    return found


class Facts:
    """One connection that reads facts and deltas as they are (stream.Reader)."""

    flow = None

    def __init__(self, run: ScopedRun, after: int, *, deltas: bool, until_pause: bool) -> None:
        self.ended = False
        self._run = run
        self._after = after
        self._deltas = deltas
        self._until_pause = until_pause
        self._waiting: set[str] = set()

    @property
    def may_pause(self) -> bool:
        """Ends at a pause where that was asked for."""
        return self._until_pause and bool(self._waiting)

    async def feed(self, item: Record | Delta) -> bytes:
        """The frame of a fact or delta."""
        if type(item) is Delta:
            if not self._deltas or isinstance(item.body, OwnershipTold):
                return b""
            return _frame({"type": "delta", "after_seq": item.after_seq, **builtin(item.body)})
        assert isinstance(item, Record)
        fact = item.fact
        if isinstance(fact, RequestOpened):
            self._waiting.add(fact.request.id)
        else:
            self._waiting.discard(getattr(fact, "request_id", ""))
        if item.seq <= self._after:
            return b""
        return _frame({"type": "fact", **fact_view(item, self._run.ids)}, str(item.seq))

    async def rest(self) -> bytes:
        """The run waits."""
        return await self.finish()

    async def finish(self) -> bytes:
        """How the run stands."""
        self.ended = True
        view = await self._run.view()
        said: dict[str, JSON] = {"type": "end", "state": view.state, "status": view.status}
        said["outcome"] = None if view.outcome is None else builtin(view.outcome)
        if view.outcome is not None:
            said["ending"] = words(view.outcome).ending
        return _frame(said)

    def cut(self, reason: str) -> bytes:
        """The note of a cut."""
        return _frame({"type": "cut", "reason": reason})

    def error(self, code: str, message: str) -> bytes:
        """A fault of ours."""
        return _frame({"type": "error", "code": code, "message": message})

    def restart(self) -> Reader:
        """From the first fact."""
        return Facts(self._run, 0, deltas=self._deltas, until_pause=self._until_pause)


def _frame(value: Mapping[str, JSON], event_id: str = "") -> bytes:
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        data = msgspec.json.encode(scrub(dict(value)))
    return write(data, event_id=event_id)


class ControlFace:
    """The routes of runs."""

    def __init__(self, registry: Registry, beginning: Beginning, leaving: DisconnectPolicy) -> None:
        self._registry = registry
        self._beginning = beginning
        self._leaving = leaving

    async def agents(self, call: Call) -> Response:
        """Names, descriptions, models."""
        return answer({"items": call.runs.agents()})

    async def start(self, call: Call) -> Response:
        """Starts a run; returns when it is durable, not when it is done (SV-120)."""
        body = await call.json()
        only(
            body, "agent", "thread_id", "run_id", "input", "parent", "when_busy", "client_tools", "state",
            "metadata", "limits", "deadline", "action", "target",
        )  # fmt: skip
        agent = str(body.get("agent") or "default")
        call.runs.has_agent(agent)
        run_id = checked(body.get("run_id") or call.headers.get("idempotency-key") or uuid4().hex, "run_id")
        thread_id = checked(body.get("thread_id") or run_id, "thread_id")
        digest = digest_of({**body, "agent": agent, "thread_id": thread_id})
        known = await call.runs.find_run(run_id)
        if known is not None:
            if known.ids.digest != digest:
                raise Problem(409, "run_conflict", f"run {run_id} stands for other content", run_id=run_id)
            return answer(await known.shown(), 200, {"Idempotent-Replayed": "true"})
        begun = await self._beginning.begin(
            call.runs,
            agent,
            await call.runs.thread(thread_id),
            run_id,
            _ask(body),
            extras=await _extras(call, body),
            digest=digest,
            when_busy=when_busy_of(body.get("when_busy"), "when_busy"),
        )
        headers = {"Location": f"{call.root}/v1/runs/{run_id}", "Pilothouse-Run-Id": run_id}
        if begun.queued is not None:
            return answer({"run_id": run_id, "thread_id": thread_id, "status": "queued"}, 202, headers)
        return answer(await (await begun.run()).shown(), 201, headers)

    async def list(self, call: Call) -> Response:
        """Runs, newest first."""
        query = call.query
        thread = query.get("thread")
        parent = query.get("parent")
        found = RunQuery(
            thread_id=None if thread is None else (await call.runs.thread(thread)).key,
            states=_among(query, "state", _STATES),
            statuses=_among(query, "status", _STATUSES) or _among(query, "outcome", _STATUSES),
            binding=query.get("agent"),
            parent=None if parent is None else (await call.runs.run(parent)).key,
        )
        limit = call.number("limit", 50, least=1, most=call.limits.page_size)
        return answer(await call.runs.list(found, limit=limit, cursor=query.get("cursor")))

    async def get(self, call: Call) -> Response:
        """The view; `?wait=` seconds for a run that waits, is unknown or has ended (SV-122)."""
        run = await call.runs.run_of(call.params["run"])
        seconds = call.number("wait", 0, most=60)
        if seconds:
            await _wait(run, seconds, call)
        return answer(await run.shown())

    async def events(self, call: Call) -> ASGIApp:
        """Facts as a page, or facts and deltas as a stream, by Accept (SV-123)."""
        run = await call.runs.run_of(call.params["run"])
        view = await run.view()
        if "text/event-stream" in call.headers.get("accept", ""):
            if call.headers.get("last-event-id") == str(view.last_seq) and _is_told(run, view, call):
                return Response(status_code=204)  # a browser's EventSource stops on it (SV-49)
            return self._stream(call, run)
        after = call.number("after", 0)
        limit = call.number("limit", call.limits.page_size, least=1, most=call.limits.page_size)
        try:
            records = await run.events(after, limit)
        except CursorAhead:
            records = []
        kinds = {kind for kind in call.query.get("kinds", "").split(",") if kind}
        shown = [fact_view(record, run.ids) for record in records if not kinds or record.fact.kind in kinds]
        seen = records[-1].seq if records else after
        end = None if view.outcome is None else {"state": view.state, "outcome": builtin(view.outcome)}
        return answer({"events": shown, "next": seen if seen < view.last_seq else None, "end": end})

    def _stream(self, call: Call, run: ScopedRun) -> ASGIApp:
        said = call.headers.get("last-event-id") or call.query.get("after") or "0"
        after = int(said) if said.isdecimal() and len(said) < 13 else 0
        resync = said != "0" and not after
        through = call.flag("through_unknown")
        until_pause = call.query.get("until") == "pause"
        deltas = call.flag("deltas", default=True)
        self._registry.check(call.runs.principal.tenant, run.key)

        async def opening() -> tuple[_Through, Reader]:
            view = await run.view()
            ahead = after > view.last_seq
            reader: Reader = Facts(run, 0 if ahead else after, deltas=deltas, until_pause=until_pause)
            if ahead or resync:
                reader = _Resync(reader)
            return _Through(run, through_unknown=through), reader

        async def cancel() -> object:
            view = await run.view()
            return None if view.status == "waiting" else await run.cancel("disconnected")

        return Stream(
            self._registry,
            run=run.key,
            tenant=call.runs.principal.tenant,
            face="control",
            opening=opening,
            headers={"Pilothouse-Run-Id": run.ids.run, "Pilothouse-Thread-Id": run.ids.thread},
            on_gone=lambda: self._leaving.gone(run.key, "control", cancel),
        )

    async def input(self, call: Call) -> Response:
        """The immutable input."""
        run = await call.runs.run_of(call.params["run"])
        return answer({"items": input_view(run.spec)})

    async def requests(self, call: Call) -> Response:
        """What the run asks now."""
        view = await (await call.runs.run_of(call.params["run"])).view()
        return answer({"items": [builtin(request) for request in view.requests]})

    # Commands

    async def command(self, call: Call) -> Response:
        """A command; its ack (SV-124)."""
        run = await call.runs.run_of(call.params["run"])
        body = await call.json()
        given = body.pop("command_id", None) or call.headers.get("idempotency-key")
        command_id = checked(given or uuid4().hex, "command_id")
        extensions = body.pop("extensions", None) or {}
        if not isinstance(extensions, dict):
            raise Problem(422, "invalid_command", "extensions must be an object")
        ack = await run.command(Command(command_id, run.key, _body(body), extensions), timeout=5.0)
        return _acked(ack, run)

    async def ack(self, call: Call) -> Response:
        """The ack of a command, again."""
        run = await call.runs.run_of(call.params["run"])
        return _acked(await run.ack(call.params["command"]), run, read=True)

    async def cancel(self, call: Call) -> Response:
        """Stops; on an ended run nothing changes (SV-130)."""
        run = await call.runs.run_of(call.params["run"])
        body = await call.maybe_json()
        only(body, "reason", "command_id")
        view = await run.view()
        if view.state == "terminal":
            return answer(await run.shown())
        ack = await run.cancel(
            str(body.get("reason") or "stopped"),
            checked(body["command_id"], "command_id") if "command_id" in body else None,
        )
        if ack.state == "rejected" and ack.code == "ended":
            return answer(await run.shown())
        return _acked(ack, run)

    async def recover(self, call: Call) -> Response:
        """Takes a lost run up again by evidence."""
        run = await call.runs.run_of(call.params["run"])
        body = await call.maybe_json()
        only(body, "accept")
        given = body.get("accept") or {}
        if not isinstance(given, dict):
            raise invalid(("accept", "must be an object"))
        only(given, "violation", "config_change")
        accept = Accept(str(given.get("violation") or ""), str(given.get("config_change") or ""))
        return answer(await run.recover(accept))

    async def check(self, call: Call) -> Response:
        """Asks the runtime where the run stands."""
        run = await call.runs.run_of(call.params["run"])
        status = await run.check()
        return answer({"kind": status.kind, "detail": status.detail, "run": await run.shown()})

    async def abandon(self, call: Call) -> Response:
        """Leaves the outcome unknown, on the record, for a reason."""
        run = await call.runs.run_of(call.params["run"])
        body = await call.json()
        only(body, "reason")
        reason = body.get("reason")
        if not isinstance(reason, str) or not reason.strip():
            raise invalid(("reason", "must say why"))
        return answer(await run.abandon(reason))


class _Through:
    """A run that is followed through an unknown outcome, or up to it."""

    def __init__(self, run: ScopedRun, *, through_unknown: bool) -> None:
        self._run = run
        self._through = through_unknown

    @property
    def key(self) -> str:
        return self._run.key

    async def ready(self) -> None:
        if not self._through:
            await self._run.ready()

    def follow(self, after: int = 0, *, deltas: bool = True, through_unknown: bool = False) -> Any:
        return self._run.follow(after, deltas=deltas, through_unknown=self._through, recent=False)


class _Resync:
    """Tells a reader that it must replace what it has before anything else (SV-47)."""

    flow = None

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._told = False

    @property
    def ended(self) -> bool:
        return self._reader.ended

    @property
    def may_pause(self) -> bool:
        return self._reader.may_pause

    async def feed(self, item: Record | Delta) -> bytes:
        made = await self._reader.feed(item)
        if self._told:
            return made
        self._told = True
        return _frame({"type": "resync_required"}) + made

    async def rest(self) -> bytes:
        return await self._reader.rest()

    async def finish(self) -> bytes:
        return await self._reader.finish()

    def cut(self, reason: str) -> bytes:
        return self._reader.cut(reason)

    def error(self, code: str, message: str) -> bytes:
        return self._reader.error(code, message)

    def restart(self) -> Reader:
        return self._reader.restart()


def _is_told(run: ScopedRun, view: RunView, call: Call) -> bool:
    """Whether nothing comes to a stream behind the run's last fact."""
    if view.state == "terminal":
        return True
    return view.status == "unknown" and not run.may_recover and not call.flag("through_unknown")


async def _wait(run: ScopedRun, seconds: int, call: Call) -> None:
    """Waits until the run waits for somebody, is unknown or has ended; at most so long."""

    async def until() -> None:
        view = await run.past_recovery()
        if view.status in ("waiting", "unknown") or view.state == "terminal":
            return
        async with run.follow(view.last_seq, deltas=False) as follower:
            async for item in follower:
                if isinstance(item, Record) and isinstance(item.fact, RequestOpened):
                    return

    with suppress(TimeoutError):
        await within(call.clock, seconds, until())


def _among(query: Mapping[str, str], name: str, known: frozenset[str]) -> Any:
    given = query.get(name)
    if given is None:
        return None
    wanted = tuple(given.split(","))
    if unknown := [value for value in wanted if value not in known]:
        raise invalid((name, f"{unknown[0]!r} is none of {', '.join(sorted(known))}"))
    return wanted


def _ask(body: Mapping[str, JSON]) -> Ask:
    """A new message, or going on after a failure (`retry`), or another answer instead of `target` (`regenerate`)."""
    action, target, parts = body.get("action", "send"), body.get("target", ""), _parts(body.get("input"))
    if action not in ("send", "retry", "regenerate"):
        raise invalid(("action", "must be send, retry or regenerate"))
    if action != "send" and parts is not None:
        raise invalid(("input", f"is not for {action}"))
    if not isinstance(target, str) or bool(target) is not (action == "regenerate"):
        raise invalid(("target", "is the id of the answer to regenerate, and of nothing else"))
    return Ask(action, parts, target)


def _parts(value: JSON, path: str = "input") -> tuple[Any, ...] | None:
    """A text or parts; None continues."""
    if value is None:
        return None
    if isinstance(value, str):
        return (Text(value),)
    from ..messages import InputPart

    try:
        return tuple(msgspec.convert(value, list[InputPart]))
    except msgspec.ValidationError as error:
        raise invalid((path, str(error))) from None


async def _extras(call: Call, body: Mapping[str, JSON]) -> RunExtras:
    from ..messages import ToolSpec
    from ..records import Parent

    parent = None
    given = body.get("parent")
    if given is not None:
        if not isinstance(given, dict) or not isinstance(given.get("run_id"), str):
            raise invalid(("parent", "must be {run_id, keep_through?}"))
        only(given, "run_id", "keep_through")
        above = await call.runs.run(given["run_id"])
        parent = Parent(above.key, given.get("keep_through"))
    try:
        tools = msgspec.convert(body.get("client_tools") or [], list[ToolSpec])
        deadline = msgspec.convert(body.get("deadline"), float | None, strict=False)
        limits = msgspec.convert(body.get("limits") or {}, dict[str, Any])
        metadata = msgspec.convert(body.get("metadata") or {}, dict[str, Any])
        state = msgspec.convert(body.get("state"), dict[str, Any] | None)
    except msgspec.ValidationError as error:
        raise invalid(("", str(error))) from None
    extensions = {"server/metadata": metadata} if metadata else {}
    return RunExtras(
        parent=parent,
        client_tools=tools,
        state=state,
        deadline=deadline,
        limits=limits,
        extensions=extensions,
    )


def _body(body: dict[str, JSON]) -> CommandBody:
    """The body of a command; a message may be given as a text."""
    for name in ("message", "input"):
        if isinstance(body.get(name), str):
            body["message"] = {
                "id": uuid4().hex,
                "role": "user",
                "parts": [{"type": "text", "text": body.pop(name)}],
            }
    try:
        found: CommandBody = msgspec.convert(body, CommandBody)
    except msgspec.ValidationError as error:
        raise Problem(422, "invalid_command", str(error)) from None
    if isinstance(found, Steer | FollowUp | Replace):
        _check_message(found.message)
    return found


def _check_message(message: Message) -> None:
    if message.role != "user":
        raise Problem(422, "invalid_command", "message.role must be user")


def _acked(ack: Ack, run: ScopedRun, *, read: bool = False) -> Response:
    """An ack as an answer: what was refused is a problem with the ack in it."""
    shown = {
        "command_id": ack.command_id,
        "run_id": run.ids.run,
        "state": ack.state,
        "duplicate": ack.duplicate,
        "received_seq": ack.received_seq,
        "answered_seq": ack.answered_seq,
        "applied_seq": ack.applied_seq,
        "code": ack.code,
        "message": ack.message[:TEXT_LIMIT],
    }
    if ack.state in ("rejected", "unsupported") and not read:
        status = 409 if ack.state == "rejected" else 422
        raise Problem(status, ack.code or ack.state, ack.message, ack=shown)
    return answer(shown, 202 if ack.state == "received" else 200)


__all__ = ["ControlFace", "Facts", "fact_view"]
