"""One runtime for a run controller, many conversations behind it (AC-131).

A run controller is bound to one runtime; a conversation may swap its provider, and several threads share one controller.
The switchboard hands each run, on recovery too, to the runtime of its thread's conversation.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from ..contracts import RunPort, Runtime
from ..records import Descriptor, Start
from .forms import TextProvider


class Line:
    """A conversation's current runtime, by reference: swapping it serves the runs that begin after."""

    __slots__ = ("__weakref__", "form", "frozen", "runtime")

    def __init__(self, runtime: Runtime, form: TextProvider | None = None) -> None:
        self.runtime = runtime
        self.form = form  # the text-only provider behind it, if it is one
        self.frozen: dict[str, Runtime] = {}

    def freeze(self, run_id: str) -> None:
        """This run keeps the runtime of now, whatever is swapped later (AC-31)."""
        self.frozen[run_id] = self.runtime


class Switchboard:
    """A runtime that only chooses the runtime."""

    def __init__(self, default: Callable[[], Runtime]) -> None:
        self._default = default
        self._descriptor = default().describe()
        self._lines: WeakValueDictionary[str, Line] = WeakValueDictionary()

    def connect(self, thread_id: str, line: Line) -> None:
        """From now on runs of that thread go to that line."""
        self._lines[thread_id] = line

    @property
    def config_digest(self) -> str:
        """Of the default runtime: what a recovery compares with (RC-58)."""
        return str(getattr(self._default(), "config_digest", ""))

    def describe(self) -> Descriptor:
        """The contract of the first runtime; a swapped provider does not change it."""
        return self._descriptor

    def _runtime(self, start: Start) -> Runtime:
        line = self._lines.get(start.spec.thread_id)
        if line is None:
            return self._default()
        return line.frozen.pop(start.spec.run_id, line.runtime)

    async def run(self, start: Start, port: RunPort, /) -> None:
        """Works, on the thread's line."""
        await self._runtime(start).run(start, port)

    async def resume(self, start: Start, port: RunPort, /) -> None:
        """Goes on from the facts, on the thread's line."""
        await self._runtime(start).resume(start, port)  # type: ignore[attr-defined]
