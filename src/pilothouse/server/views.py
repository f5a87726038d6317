"""Runs, threads and messages as the control API shows them: JSON with ids as the client knows them (SV-121, SV-150)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ..core.agui.segments import Segment
from ..core.delivery import reason_of, words
from ..events import Outcome, Unknown
from ..messages import JSON, MEDIA, ArtifactRef, Context, Message, Reasoning, Structured, Text, ToolCall
from ..records import HistoryMessage, RunEntry, RunSpec, RunView, ThreadRecord
from .names import Ids
from .thread_records import IDS

LIVE: Final = frozenset({"accepted", "running", "waiting", "stopping"})


def time_text(ms: int) -> str | None:
    """RFC 3339, UTC; None for no time."""
    if not ms:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def builtin(value: object) -> Any:
    """A vocabulary value as JSON."""
    return msgspec.to_builtins(value)


def is_live(status: str, ownership: str) -> bool:
    """Whether somebody works on a run, or it rests and waits for an answer. An orphan does not count (SV-224)."""
    return status in LIVE and ownership not in ("orphaned", "none")


def run_view(
    view: RunView, ids: Ids, agent: str, parent: str | None, segments: Sequence[Segment]
) -> dict[str, JSON]:
    """A run, bounded: no transcript in it."""
    unknown = view.unknown if view.outcome is None else None
    return {
        "run_id": ids.run,
        "thread_id": ids.thread,
        "agent": agent,
        "state": view.state,
        "status": view.status,
        "ownership": view.ownership,
        "live": is_live(view.status, view.ownership),
        "last_seq": view.last_seq,
        "tag": view.tag,
        "turn": view.turn,
        "parent": None if parent is None else {"run_id": parent, "keep_through": view.parent and view.parent.keep_through},
        "requests": [builtin(request) for request in view.requests],
        "queued": list(view.queued),
        "calls": [builtin(call) for call in view.calls],
        "outcome": None if view.outcome is None else builtin(view.outcome),
        "delivery": None if view.delivery is None else builtin(view.delivery),
        "usage": None if view.usage is None else builtin(view.usage),
        "unknown": None if unknown is None else _unknown(builtin(unknown)),
        "can": list(view.can),
        "segments": [{"run_id": segment.run_id, "first_seq": segment.since} for segment in segments],
        "created_at": time_text(view.created_at_ms),
        "updated_at": time_text(view.updated_at_ms),
        "links": {"self": f"v1/runs/{ids.run}", "events": f"v1/runs/{ids.run}/events", "thread": f"v1/threads/{ids.thread}"},
    }  # fmt: skip


def _unknown(found: dict[str, JSON]) -> dict[str, JSON]:
    return {"cause": "", "reason": "", "ways": [], **found}


def run_entry(entry: RunEntry, ids: Ids, agent: str, parent: str | None) -> dict[str, JSON]:
    """A run in a list."""
    return {
        "run_id": ids.run,
        "thread_id": ids.thread,
        "agent": agent,
        "state": entry.state,
        "status": entry.status,
        "ownership": entry.ownership,
        "live": is_live(entry.status, entry.ownership),
        "last_seq": entry.last_seq,
        "parent": parent,
        "can_control": entry.can_control,
        "created_at": time_text(entry.created_at_ms),
        "updated_at": time_text(entry.updated_at_ms),
    }


def thread_view(
    record: ThreadRecord, last: RunEntry | None, last_run: str | None, head: str | None
) -> dict[str, JSON]:
    """A thread. `head` is the run that the next send goes on from."""
    updated = max(record.updated_at_ms, 0 if last is None else last.updated_at_ms)
    return {
        "thread_id": record.metadata.get(IDS, record.thread_id),
        "title": record.title,
        "agent": record.agent,
        "created_at": time_text(record.created_at_ms),
        "updated_at": time_text(updated),
        "last_run": last_run,
        "status": None if last is None else last.status,
        "pinned": record.pinned,
        "archived": record.archived,
        "metadata": {key: value for key, value in record.metadata.items() if not key.startswith("server/")},
        "head": head,
    }


# Messages


class Delivered:
    """The delivery of the messages of one run, from how it stands (SV-152, RC-86)."""

    def __init__(self, status: str, outcome: Outcome | None, *, live: bool) -> None:
        self._outcome = outcome
        self._live = live
        self._status = status

    def of(self, entry: HistoryMessage, *, last: bool) -> dict[str, JSON]:
        """`last`: the last assistant message of its run."""
        if not entry.complete:
            return self._partial(entry)
        reason = None
        if last and self._outcome is not None and words(self._outcome).delivery == "success":
            reason = reason_of(self._outcome)
        return _delivery("complete", "success", reason)

    def _partial(self, entry: HistoryMessage) -> dict[str, JSON]:
        if self._live and not entry.end:
            return _delivery("streaming", None, None)
        if entry.end in ("cancelled", "error", "failed") and self._outcome is not None:
            row = words(self._outcome)
            if row.delivery != "success":
                return _delivery("complete", row.delivery, reason_of(self._outcome))
        if entry.end == "cancelled":
            return _delivery("complete", "aborted", None)
        if entry.end in ("error", "failed"):
            return _delivery("complete", "error", None)
        settled = isinstance(self._outcome, Unknown) and self._outcome.settled
        return _delivery("complete", "interrupted", "abandoned" if settled else None)


def _delivery(phase: str, outcome: str | None, reason: str | None) -> dict[str, JSON]:
    return {"phase": phase, "outcome": outcome, **({"reason": reason} if reason else {})}


def messages_view(
    path: Sequence[HistoryMessage],
    delivered: Mapping[str, Delivered],
    names: Mapping[str, str],
    siblings: Mapping[str, list[str]],
) -> list[dict[str, JSON]]:
    """A path; `delivered` and `names` by the journal's run id, `siblings` by message."""
    last = {entry.run_id: entry.message.id for entry in path if entry.message.role == "assistant"}
    return [
        message_view(
            entry,
            names.get(entry.run_id, entry.run_id),
            delivered[entry.run_id].of(entry, last=last.get(entry.run_id) == entry.message.id),
            siblings.get(entry.message.id, ()),
        )
        for entry in path
    ]


def message_view(
    entry: HistoryMessage, run_id: str, delivery: dict[str, JSON], siblings: Sequence[str] = ()
) -> dict[str, JSON]:
    """One message; `siblings` are the alternatives to it, itself included, oldest first."""
    message = entry.message
    found: dict[str, JSON] = {
        "id": message.id,
        "role": message.role,
        "parts": [part for part in map(_part, message.parts) if part is not None],
        "run_id": run_id,
        "delivery": delivery,
    }
    if siblings:
        found["siblings"] = list(siblings)
    if message.role == "tool":
        found["call_id"] = message.call_id
        found["is_error"] = message.is_error
        found["ledger"] = entry.call_outcome or ("failed" if message.is_error else "succeeded")
    return found


def _part(part: object) -> dict[str, JSON] | None:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Reasoning():
            return {"type": "reasoning", "text": part.text} if part.text else None
        case ToolCall():
            arguments = part.raw_arguments if part.args_error is not None else part.arguments
            return {"type": "tool_call", "call_id": part.call_id, "tool": part.tool, "arguments": arguments}
        case ArtifactRef():
            return {"type": "text", "text": part.preview, "artifact": builtin(part)}
        case Structured():
            return {"type": "structured", "data": part.data}
        case Context():
            return None  # interfaces skip it (AC-118)
        case _ if isinstance(part, MEDIA):
            found: dict[str, JSON] = {"type": str(part.__struct_config__.tag), "media_type": part.mime_type}
            if part.filename:
                found["name"] = part.filename
            if part.url:
                found["url"] = part.url
            if part.data is not None:
                found["bytes"] = len(part.data)
            return found
        case _:
            return None


def input_view(spec: RunSpec) -> list[dict[str, JSON]]:
    """The immutable input of a run."""
    return [_plain(message) for message in spec.input]


def _plain(message: Message) -> dict[str, JSON]:
    parts = [part for part in map(_part, message.parts) if part is not None]
    return {"id": message.id, "role": message.role, "parts": parts}


__all__ = [
    "Delivered",
    "input_view",
    "is_live",
    "messages_view",
    "run_entry",
    "run_view",
    "thread_view",
    "time_text",
]
