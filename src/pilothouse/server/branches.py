"""A thread as a tree: which branch was chosen, what a copy begins with, which messages stand beside each other.

A run hangs on a message of an earlier one, so two runs that hang on the same message are alternatives: of the user's
words if both bring some, of the answer if they bring none. Nothing here reads a journal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from ..core.agui.content import plain_text
from ..core.calls import result_id
from ..messages import JSON, Message, Text
from ..records import HistoryMessage, Parent, RunEntry, RunSpec
from .names import Ids
from .problems import Problem

HEAD: Final = "server/head"
COPY: Final = "server/copy"

_UNANSWERED: Final = "Not answered in this copy."
_PREVIEW: Final = 200


class Chosen(Struct, frozen=True):
    """A branch that was chosen, while `newest` was the thread's newest run: a later run ends the choice."""

    run: str
    newest: str

    def mark(self) -> dict[str, JSON]:
        """As the thread's record keeps it."""
        return {HEAD: msgspec.to_builtins(self)}


class Copy(Struct, frozen=True, omit_defaults=True):
    """What a thread was copied from: the path of a run, up to a message (None: all of it).

    `kept` is that path, where the run itself was purged before the copy had a run of its own.
    """

    run: str
    through: str | None = None
    kept: tuple[Message, ...] | None = None

    def mark(self) -> dict[str, JSON]:
        """As the thread's record keeps it."""
        return {COPY: msgspec.to_builtins(self)}


def chosen_of(marks: Mapping[str, JSON]) -> Chosen | None:
    """The choice that a record keeps."""
    return None if marks.get(HEAD) is None else msgspec.convert(marks[HEAD], Chosen)


def copy_of(marks: Mapping[str, JSON]) -> Copy | None:
    """The origin that a record keeps."""
    return None if marks.get(COPY) is None else msgspec.convert(marks[COPY], Copy)


def copied(path: Sequence[HistoryMessage]) -> list[Message]:
    """A path as the history of another thread: what is whole, and a result for each call that has none (SV-153)."""
    found = [entry.message for entry in path if entry.complete]
    answered = {message.call_id for message in found if message.role == "tool"}
    out: list[Message] = []
    for message in found:
        out.append(message)
        for call in message.tool_calls:
            if call.call_id not in answered:
                said = (Text(_UNANSWERED),)
                out.append(
                    Message(result_id(call.call_id), "tool", said, call_id=call.call_id, is_error=True)
                )
    return out


# Going on in a branch


def anew(path: Sequence[HistoryMessage], head: str, answer: str) -> Parent:
    """Where a run hangs that answers again the user message before that answer.

    Raises:
        Problem: there is none.
    """
    user: HistoryMessage | None = None
    for entry in path:
        if entry.message.role == "user":
            user = entry
        if entry.message.id == answer and user is not None:
            return Parent(user.run_id if user.seq else head, user.message.id)
    raise Problem(422, "invalid_target", f"{answer!r} is no answer of this branch")


# What is shown


def branch_view(entry: RunEntry, ids: Ids, spec: RunSpec, parent: str | None) -> dict[str, JSON]:
    """A run of a tree."""
    hangs = entry.parent
    said = " ".join(" ".join(plain_text(message.parts) for message in spec.input).split())
    return {
        "run_id": ids.run,
        "parent": None
        if hangs is None or parent is None
        else {"run_id": parent, "keep_through": hangs.keep_through},
        "status": entry.status,
        "state": entry.state,
        "input": said if len(said) <= _PREVIEW else said[: _PREVIEW - 1] + "…",
    }


Own = Callable[[str], Awaitable[Sequence[HistoryMessage]]]


async def alternatives(
    path: Sequence[HistoryMessage], entries: Sequence[RunEntry], own: Own
) -> dict[str, list[str]]:
    """The alternatives to each message of a path that has some, itself among them, oldest first.

    `entries` are the runs of the thread, newest first; `own` reads what a run added. Only runs beside each other are read.
    """
    hanging: dict[str | None, list[str]] = {}
    attached: dict[str, str | None] = {}
    for entry in reversed(entries):
        attached[entry.run_id] = None if entry.parent is None else entry.parent.keep_through
        hanging.setdefault(attached[entry.run_id], []).append(entry.run_id)
    found: dict[str, list[str]] = {}
    seen: dict[str, tuple[str | None, str | None]] = {}

    async def firsts(run: str) -> tuple[str | None, str | None]:
        """The first user message and the first answer of a run."""
        if run not in seen:
            messages = [entry.message for entry in await own(run)]
            user = messages[0].id if messages and messages[0].role == "user" else None
            answer = next((message.id for message in messages if message.role == "assistant"), None)
            seen[run] = user, answer
        return seen[run]

    for item in path:
        if item.message.role != "user" or item.run_id not in attached:
            continue
        name, place = item.message.id, attached[item.run_id]
        beside = [(await firsts(run))[0] for run in hanging[place]] if len(hanging[place]) > 1 else []
        users = [user for user in beside if user is not None]
        if name in users and len(users) > 1:
            found[name] = users
        runs = [run for run in hanging.get(name, ()) if (await firsts(run))[0] is None]
        if runs:
            answers = [
                answer for run in (item.run_id, *runs) if (answer := (await firsts(run))[1]) is not None
            ]
            if len(answers) > 1:
                found.update(dict.fromkeys(answers, answers))
    return found


__all__ = [
    "COPY",
    "HEAD",
    "Chosen",
    "Copy",
    "alternatives",
    "anew",
    "branch_view",
    "chosen_of",
    "copied",
    "copy_of",
]
