"""The AI SDK face: its UI message stream, over the same runs (server page §9).

What a client posts is made into what an AG-UI client would have posted; where the run hangs, what a busy thread means and
what is still open are then that face's business. What a run tells is translated part by part (`core.aisdk`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import ClassVar
from uuid import uuid4

from starlette.responses import Response
from starlette.types import ASGIApp

from ..commands import Request
from ..core.agui import events as agui
from ..core.agui.ends import Names
from ..core.agui.events import Profile
from ..core.agui.input import ClientMessage, Invalid, Plan, Resume, RunInput
from ..core.agui.position import Position
from ..core.agui.segments import Segment
from ..core.aisdk.asking import Chat, planned, read_chat
from ..core.canonical import digest_of
from ..messages import JSON
from ..records import HistoryMessage
from .agui import AGUIFace
from .agui_request import input_of
from .call import Call
from .names import checked, run_key
from .problems import Problem, invalid
from .scope import ScopedRun
from .stream import Reader
from .ui_reading import UINames, UIReading, refused


class AISDKFace(AGUIFace):
    """The routes of this protocol."""

    HEADERS: ClassVar[Mapping[str, str]] = {"x-vercel-ai-ui-message-stream": "v1"}

    async def post(self, call: Call) -> ASGIApp:
        """Starts a run or answers a waiting one, and tells it as a UI message stream (SV-200)."""
        agent = call.params.get("agent", "default")
        call.runs.has_agent(agent)
        body = await call.json()
        thread_id = _chat_id(body.get("id"))
        try:
            chat = read_chat(body)
        except Invalid as error:
            raise invalid(*error.faults) from None
        key = call.headers.get("idempotency-key")
        run_id = chat.run_id(None if key is None else checked(key, "Idempotency-Key"), lambda: uuid4().hex)
        asked = input_of(call, {**chat.body, "runId": run_id})
        requests = await self._open_requests(call, thread_id)
        asked = asked._replace(resume=(*asked.resume, *_inputs(chat, requests)))
        planner = partial(
            _planned,
            chat=chat,
            tenant=call.runs.principal.tenant,
            fresh=f"{run_id}:message",
            answers=any(_answers(chat, request) for request in requests),
        )
        return await self.take(call, agent, asked, digest_of(body), "legacy", planner)

    async def _open_requests(self, call: Call, thread_id: str) -> Sequence[Request]:
        head = await (await call.runs.thread(thread_id)).head()
        return () if head is None else (await head.view()).requests

    async def resume(self, call: Call) -> ASGIApp:
        """The live run of a chat, from the start of its message; 204 if nothing is live (SV-202)."""
        call.runs.has_agent(call.params.get("agent", "default"))
        thread = await call.runs.thread(_chat_id(call.params.get("chat")))
        run = await _taken_up(await thread.head()) or await thread.live()
        if run is None:
            return Response(status_code=204)
        names = self._named(run.ids.thread, run.ids.run, "legacy")
        return self._stream(call, run, Segment(run.ids.run, 1), names=names, joined=True)

    async def stop(self, call: Call) -> Response:
        """Stops the live run of a chat; the client's own stop only closes its connection (SV-204)."""
        await call.maybe_json()
        wanted: dict[str, JSON] = {"threadId": _chat_id(call.params.get("chat"))}
        return await super().stop(call.with_body(wanted, call.params))

    # In its words

    def _named(self, thread_id: str, run_id: str, profile: Profile) -> Names:
        return UINames(thread_id, run_id, detail=self._detail)

    def _names(self, asked: RunInput, profile: Profile) -> Names:
        return UINames(
            asked.thread_id,
            asked.run_id,
            detail=self._detail,
            has=[call.call_id for message in asked.messages for call in message.calls],
            answered=[message.call_id for message in asked.messages if message.role == "tool"],
        )

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
        assert isinstance(names, UINames)
        return UIReading(run, segment, names, registry=self._registry, known=known, said=note)

    def _refused(self, message: str, code: str) -> bytes:
        return refused(message, code)


async def _taken_up(head: ScopedRun | None) -> ScopedRun | None:
    """A run that an earlier process left, once it was taken up again: it is told also if it has ended by then."""
    if head is None or (await head.view()).status != "unknown":
        return None
    return None if (await head.past_recovery()).status == "unknown" else head


def _chat_id(value: object) -> str:
    """The id of a chat. A path with `.` or `..` in it is another path to whoever stands between."""
    if value in (".", ".."):
        raise invalid(("id", "must not be . or .."))
    return checked(value, "id")


def _answers(chat: Chat, request: Request) -> bool:
    """Whether the posted message says something to a request."""
    if request.kind == "approval":
        return any(
            isinstance(said, dict) and said.get("interruptId") == request.id for said in chat.answers.values()
        )
    return request.call_id in chat.answered


def _inputs(chat: Chat, requests: Sequence[Request]) -> list[Resume]:
    """What is asked of a person within a call is answered by an output of that call: the protocol has no other way."""
    found = []
    for request in requests:
        said = chat.answers.get(request.call_id or "")
        if request.kind == "input" and request.call_id in chat.answered and isinstance(said, dict):
            found.append(Resume(request.id, "resolved", said["output"]))
    return found


def _planned(
    messages: Sequence[ClientMessage],
    path: Sequence[HistoryMessage],
    *,
    head: str | None,
    broken: bool,
    chat: Chat,
    tenant: str,
    fresh: str,
    answers: bool,
) -> Plan:
    try:
        found = planned(
            messages,
            path,
            head=head,
            broken=broken,
            chat=chat,
            key_of=partial(run_key, tenant),
            fresh=fresh,
        )
    except Invalid as error:
        raise invalid(*error.faults) from None
    if chat.answering and not answers and not found.new:
        raise Problem(409, "request_not_pending", "these requests are not open, or not any more")
    return found


__all__ = ["AISDKFace"]
