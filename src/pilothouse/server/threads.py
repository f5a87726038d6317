"""The routes of threads: list, read, rename, pin, archive, delete, and their messages (SV-150 … SV-155)."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from starlette.responses import Response

from ..messages import JSON
from ..records import RunQuery
from .call import Call, answer, only
from .names import checked
from .problems import invalid

TITLE_LIMIT = 200


class ThreadsFace:
    """The routes of threads."""

    async def list(self, call: Call) -> Response:
        """Pinned first, then by change; archived ones only when asked for."""
        found = await call.runs.threads(
            archived=call.flag("archived"),
            search=call.query.get("q", ""),
            cursor=call.query.get("cursor"),
            limit=call.number("limit", 50, least=1, most=call.limits.page_size),
        )
        return answer(found)

    async def create(self, call: Call) -> Response:
        """A thread without runs yet; idempotent by `Idempotency-Key`, which becomes its id if it has none (SV-16)."""
        body = await call.maybe_json()
        only(body, "thread_id", "title", "agent", "metadata")
        given = body.get("thread_id") or call.headers.get("idempotency-key") or uuid4().hex
        thread = await call.runs.thread(checked(given, "thread_id"))
        if thread.record is not None:
            return answer(await call.runs.thread_shown(thread), 200, {"Idempotent-Replayed": "true"})
        changes: dict[str, Any] = _changes({key: body[key] for key in ("title", "metadata") if key in body})
        if "agent" in body:
            call.runs.has_agent(str(body["agent"]))
            changes["agent"] = str(body["agent"])
        now = call.clock.time_ms()
        thread = await call.runs.change_thread(
            thread, {**changes, "created_at_ms": now, "updated_at_ms": now}
        )
        return answer(await call.runs.thread_shown(thread), 201)

    async def get(self, call: Call) -> Response:
        """One thread."""
        thread = await call.runs.thread(call.params["thread"], known=True)
        return answer(await call.runs.thread_shown(thread))

    async def patch(self, call: Call) -> Response:
        """Renames, pins, archives."""
        thread = await call.runs.thread(call.params["thread"], known=True)
        body = await call.json()
        only(body, "title", "pinned", "archived", "metadata")
        thread = await call.runs.change_thread(thread, _changes(body))
        return answer(await call.runs.thread_shown(thread))

    async def delete(self, call: Call) -> Response:
        """The thread and its runs are gone; nothing happens to one that is not there."""
        thread = await call.runs.thread(call.params["thread"])
        await call.runs.delete_thread(thread, cancel=call.flag("cancel"), purge=call.flag("purge"))
        return Response(status_code=204)

    async def messages(self, call: Call) -> Response:
        """The path from the root to the head, or to `?head=`; `?before=&limit=` pages from the end."""
        thread = await call.runs.thread(call.params["thread"], known=True)
        wanted = call.query.get("head")
        head = await thread.head() if wanted is None else await call.runs.run(wanted)
        if head is not None and head.spec.thread_id != thread.key:
            raise invalid(("head", "is of another thread"))
        items = await thread.messages(head)
        before = call.query.get("before")
        if before is not None:
            ids = [item["id"] for item in items]
            if before not in ids:
                raise invalid(("before", "is no message of this path"))
            items = items[: ids.index(before)]
        cursor: JSON = None
        limit = call.number("limit", 0)
        if limit and len(items) > limit:
            items = items[-limit:]
            cursor = items[0]["id"]
        live = await thread.live()
        active = None
        if live is not None:
            active = {"run_id": live.ids.run, "status": (await live.view()).status}
        body = {
            "items": items,
            "active_run": active,
            "head": None if head is None else head.ids.run,
            "next": cursor,
        }
        return answer(body)

    async def runs(self, call: Call) -> Response:
        """The runs of a thread, newest first."""
        thread = await call.runs.thread(call.params["thread"], known=True)
        limit = call.number("limit", 50, least=1, most=call.limits.page_size)
        query = RunQuery(thread_id=thread.key)
        return answer(await call.runs.list(query, limit=limit, cursor=call.query.get("cursor")))


def _changes(body: dict[str, JSON]) -> dict[str, Any]:
    """The fields of a record that a client may set."""
    found: dict[str, Any] = {}
    if "title" in body:
        title = body["title"]
        if not isinstance(title, str) or len(title) > TITLE_LIMIT:
            raise invalid(("title", f"must be a text of at most {TITLE_LIMIT} characters"))
        found["title"] = " ".join(title.split())
    for name in ("pinned", "archived"):
        if name in body:
            if not isinstance(body[name], bool):
                raise invalid((name, "must be true or false"))
            found[name] = body[name]
    if "metadata" in body:
        metadata = body["metadata"]
        if not isinstance(metadata, dict) or any(key.startswith("server/") for key in metadata):
            raise invalid(("metadata", "must be an object whose keys do not begin with server/"))
        found["metadata"] = metadata
    return found


__all__ = ["ThreadsFace"]
