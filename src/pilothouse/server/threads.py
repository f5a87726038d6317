"""The routes of threads: list, read, change, delete, their messages and their branches (SV-150 … SV-155).

What a client repeats with the same `Idempotency-Key` is done once: the thread's record keeps what a key stood for (SV-16).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from starlette.responses import Response

from ..core.canonical import digest_of
from ..messages import JSON
from ..records import RunQuery
from .call import Call, answer, only
from .names import checked
from .problems import Problem, invalid
from .scope import ScopedThread

TITLE_LIMIT: Final = 200
_KEYS_KEPT: Final = 64
_CREATED: Final = "created"
"""Stands for the key of a thread that was made without one."""


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
        """A thread without runs yet; without an id it is named by its `Idempotency-Key`."""
        body = await call.maybe_json()
        only(body, "thread_id", "title", "agent", "metadata")
        key = _key(call)
        thread = await call.runs.thread(checked(body.get("thread_id") or key or uuid4().hex, "thread_id"))
        digest = digest_of({"create": body})
        if thread.record is not None:
            _same(thread, key or _CREATED, digest)
            return await self._shown(call, thread, replayed=True)
        changes: dict[str, Any] = _changes(
            {name: body[name] for name in ("title", "metadata") if name in body}
        )
        if "agent" in body:
            call.runs.has_agent(str(body["agent"]))
            changes["agent"] = str(body["agent"])
        now = call.clock.time_ms()
        changes |= {"created_at_ms": now, "updated_at_ms": now, "keys": {key or _CREATED: digest}}
        return await self._shown(call, await call.runs.change_thread(thread, changes), status=201)

    async def _shown(
        self, call: Call, thread: ScopedThread, *, status: int = 200, replayed: bool = False
    ) -> Response:
        headers = {"Idempotent-Replayed": "true"} if replayed else {}
        if status == 201:
            headers["Location"] = f"{call.root}/v1/threads/{quote(thread.id, safe='')}"
        return answer(await call.runs.thread_shown(thread), status, headers)

    async def get(self, call: Call) -> Response:
        """One thread."""
        thread = await call.runs.thread(call.params["thread"], known=True)
        return answer(await call.runs.thread_shown(thread))

    async def patch(self, call: Call) -> Response:
        """Renames, pins, archives."""
        thread = await call.runs.thread(call.params["thread"], known=True)
        body = await call.json()
        only(body, "title", "pinned", "archived", "metadata")
        key, digest = _key(call), digest_of({"patch": body})
        if key is not None and _same(thread, key, digest):
            return await self._shown(call, thread, replayed=True)
        changes = _changes(body)
        if key is not None:
            kept = {} if thread.record is None else thread.record.keys
            changes["keys"] = dict([*kept.items(), (key, digest)][-_KEYS_KEPT:])
        return await self._shown(call, await call.runs.change_thread(thread, changes))

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

    async def tree(self, call: Call) -> Response:
        """All branches: each run with what it hangs on, oldest first."""
        thread = await call.runs.thread(call.params["thread"], known=True)
        return answer(await thread.tree())

    async def head(self, call: Call) -> Response:
        """Chooses the branch that the next send goes on from; 409 while a run lives (SV-154)."""
        thread = await call.runs.thread(call.params["thread"], known=True)
        body = await call.json()
        only(body, "run_id")
        run = await call.runs.run(checked(body.get("run_id"), "run_id"))
        return await self._shown(call, await thread.choose(run))

    async def fork(self, call: Call) -> Response:
        """A new thread that begins with the path up to a run or message; this one is not touched (SV-153)."""
        thread = await call.runs.thread(call.params["thread"], known=True)
        body = await call.json()
        only(body, "from", "title", "thread_id")
        title = _changes({"title": body["title"]})["title"] if "title" in body else ""
        copy = await thread.point(checked(body.get("from"), "from"))
        key, digest = _key(call), digest_of({"fork": thread.key, "body": body})
        named = uuid4().hex if key is None else sha256(f"{thread.key}\n{key}".encode()).hexdigest()[:32]
        name = checked(body.get("thread_id") or named, "thread_id")
        made = await call.runs.thread(name)
        if made.record is not None:
            _same(made, key or _CREATED, digest)
            return await self._shown(call, made, replayed=True)
        made = await call.runs.copy_thread(thread, name, title, copy, {key or _CREATED: digest})
        return await self._shown(call, made, status=201)

    async def runs(self, call: Call) -> Response:
        """The runs of a thread, newest first."""
        thread = await call.runs.thread(call.params["thread"], known=True)
        limit = call.number("limit", 50, least=1, most=call.limits.page_size)
        query = RunQuery(thread_id=thread.key)
        return answer(await call.runs.list(query, limit=limit, cursor=call.query.get("cursor")))


def _key(call: Call) -> str | None:
    key = call.headers.get("idempotency-key")
    return None if key is None else checked(key, "Idempotency-Key")


def _same(thread: ScopedThread, key: str, digest: str) -> bool:
    """Whether a key was used for this before.

    Raises:
        Problem: it was used for something else.
    """
    known = {} if thread.record is None else thread.record.keys
    if known.get(key, digest) != digest:
        raise Problem(409, "thread_conflict", f"{key!r} was used for other content")
    return key in known


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
