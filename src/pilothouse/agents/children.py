"""Sub-agents of one of our runs: calls that are runs of their own (AG-160 … AG-164).

That one began is a fact of its parent, and its call's end is its end. What it says between are deltas: a piece that was
missed comes whole with the message that it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from ..core.agui.reduce import Child
from ..events import CallFinished, ChildTold, Noted
from .telling import Telling


@final
class Children:
    """Those of the run that is followed now.

    Attributes:
        found: by the child's run id, in the order in which they began.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.found: dict[str, Child] = {}
        self._now = now
        self._tellers: dict[str, Telling] = {}

    def clear(self) -> None:
        """Another run begins."""
        self.found, self._tellers = {}, {}

    def begin(self, note: Noted, task: str, generation: str) -> None:
        """A call began a run of its own; the same call again is another invocation."""
        data = note.data if isinstance(note.data, dict) else {}
        child = Child(str(data.get("run_id")), self._now, generation)
        child.announced, child.status = True, "running"
        child.name, child.tool_call_id = str(data.get("name") or ""), str(data.get("call_id"))
        if task:
            child.display.add_user(f"{child.id}-task", task)
        self.found[child.id] = child
        self._tellers[child.id] = Telling(child.display, child.id)

    def take(self, told: ChildTold) -> None:
        """Takes a piece or a fact of a child."""
        child = self.found.get(told.run_id)
        if child is None or child.over:
            return
        teller = self._tellers[told.run_id]
        if told.said is not None:
            teller.hear(told.said)
        if told.fact is not None:
            teller.see(told.fact)

    def finish(self, fact: CallFinished) -> None:
        """A call is over: so is the child that it began. A failed child is no failed run."""
        for child in self.found.values():
            if child.tool_call_id == fact.call_id and not child.over:
                failed = fact.outcome != "succeeded" or fact.is_error
                child.status = "error" if failed else "complete"
                child.display.end("error" if failed else "success")

    def end(self) -> None:
        """The run is over, or nobody tells it any more: nothing of it lives."""
        for child in self.found.values():
            if not child.over:
                child.status = "error"
                child.display.end("interrupted")


__all__ = ["Children"]
