"""The tree of a thread as checkpoints: places to which a conversation can go back (AG-175, AG-176).

A run hangs on a message of an earlier one. One that answers a user message again, or takes the place of another, stands
beside it: both belong under the parent of the first. A retry goes on from a run that did not come to its end, so it
hangs on that run. A parent that is gone breaks nothing: what hung on it are roots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from ..messages import JSON, Message
from ..projection import EMPTY, Checkpoint
from ..records import UNFINISHED, HistoryMessage, Parent, RunEntry

_LABEL: Final = 80


class Branch(NamedTuple):
    """A run of a thread and its own messages, its input first."""

    entry: RunEntry
    own: Sequence[HistoryMessage]


class Checkpoints(NamedTuple):
    """All checkpoints of a thread, newest first, and by message the newest one in which it is the last answer."""

    history: tuple[Checkpoint, ...] = ()
    by_message: Mapping[str, Checkpoint] = EMPTY


def checkpoints(branches: Sequence[Branch]) -> Checkpoints:
    """What the runs of a thread, newest first, are as a tree.

    The values of a checkpoint: `parent`, the id of the one that it goes on from (None for a root); `siblings`, the ids of
    all that go on from there, itself among them, oldest first; `status` and `created_at_ms` of the run.
    """
    tree = _Tree(branches)
    beside: dict[str | None, list[str]] = {}
    for branch in reversed(branches):
        beside.setdefault(tree.parent(branch.entry.run_id), []).append(branch.entry.run_id)
    history: list[Checkpoint] = []
    by_message: dict[str, Checkpoint] = {}
    for branch in branches:
        name = branch.entry.run_id
        parent = tree.parent(name)
        values: dict[str, JSON] = {
            "parent": parent,
            "siblings": list(beside[parent]),
            "status": branch.entry.status,
            "created_at_ms": branch.entry.created_at_ms,
        }
        made = Checkpoint(name, tree.label(name), values)
        history.append(made)
        if (message := tree.last_answer(name)) is not None:
            by_message.setdefault(message, made)
    return Checkpoints(tuple(history), MappingProxyType(by_message))


class _Tree:
    """Where each run stands. Runs come newest first, so that each is put in behind what it hangs on."""

    def __init__(self, branches: Sequence[Branch]) -> None:
        self._runs = {branch.entry.run_id: branch for branch in branches}
        self._parents: dict[str, str | None] = {}
        for branch in reversed(branches):
            self._parents[branch.entry.run_id] = self._found(branch.entry.parent)

    def parent(self, run_id: str) -> str | None:
        """The run that this one goes on from."""
        return self._parents[run_id]

    def _found(self, hangs: Parent | None) -> str | None:
        if hangs is None or hangs.run_id not in self._runs:
            return None
        return self._parents.get(hangs.run_id) if self._beside(hangs) else hangs.run_id

    def _beside(self, hangs: Parent) -> bool:
        """Whether what hangs there answers again what a run was asked that had come to its end."""
        parent = self._runs[hangs.run_id]
        if parent.entry.status in UNFINISHED:
            return False
        for item in parent.own:
            if item.message.role == "assistant":
                return False
            if item.message.id == hangs.keep_through:
                return item.message.role == "user"
        return False

    def _back(self, run_id: str) -> Iterator[Message]:
        """The messages of the path to the end of a run, the last one first."""
        name, through = run_id, None
        while name in self._runs:
            branch = self._runs[name]
            own = [item.message for item in branch.own]
            places = [n for n, message in enumerate(own) if message.id == through]
            if through is None or places:
                yield from reversed(own if through is None else own[: places[0] + 1])
                through = None
            hangs = branch.entry.parent
            if hangs is None:
                return
            name, through = hangs.run_id, through or hangs.keep_through

    def label(self, run_id: str) -> str:
        """The user's words that it answers, shortened."""
        said = next((message.text for message in self._back(run_id) if message.role == "user"), "")
        line = " ".join(said.split())
        return line if len(line) <= _LABEL else line[: _LABEL - 1] + "…"

    def last_answer(self, run_id: str) -> str | None:
        """The last assistant message of the path to its end."""
        return next((message.id for message in self._back(run_id) if message.role == "assistant"), None)


__all__ = ["Branch", "Checkpoints", "checkpoints"]
