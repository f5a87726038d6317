"""What happens to a call's end before it is the result: the hook after it, which may replace or withhold it (LP-27, step 12)."""

from __future__ import annotations

from typing import Final, final

from msgspec.structs import replace

from ..core.calls import text_parts
from ..events import CallFinished, CallObserved
from ..messages import Part, Structured
from .checking import Checker
from .hooks import CallDone, HookFailed, Override
from .past import Seen
from .recorder import Stopped
from .results import BadResult, content_of
from .running import Running
from .tools import ToolResult
from .work import Work

WITHHELD: Final = "The tool ran; its result could not be processed and is withheld."


@final
class After:
    """Calls `after_tool_call` for the calls of one batch."""

    def __init__(self, work: Work, checker: Checker) -> None:
        self._work = work
        self._checker = checker

    def wants(self, running: Running, end: CallFinished) -> bool:
        """Whether the hook sees this end: it sees what a tool returned or raised, not what was stopped."""
        hook = self._work.plan.config.after_tool_call
        return hook is not None and running.asked is None and end.outcome in ("succeeded", "failed")

    async def of(self, running: Running, end: CallFinished) -> CallFinished:
        """The result after the hook; the raw end is durable before it is called (EF-7)."""
        status = "returned" if end.outcome == "succeeded" else "raised"
        seen = CallObserved(end.call_id, end.attempt, status, end.content, end.is_error)  # type: ignore[arg-type]
        duration = self._work.clock.monotonic() - running.began
        try:
            await self._work.recorder.write(seen)
            return await self._asked(Seen(running.ready, end), duration)
        except Stopped:
            return _withheld(end)

    async def of_past(self, seen: Seen) -> CallFinished:
        """The result of a call whose raw end an earlier attachment recorded."""
        if seen.ready is None or self._work.plan.config.after_tool_call is None:
            return seen.end
        try:
            return await self._asked(seen, 0.0)
        except Stopped:
            return _withheld(seen.end)

    async def _asked(self, seen: Seen, duration: float) -> CallFinished:
        hook, end = self._work.plan.config.after_tool_call, seen.end
        assert hook is not None
        assert seen.ready is not None
        done = CallDone(self._checker.view(seen.ready), end.content, end.is_error, duration)
        try:
            change = await self._work.hooks.call("after_tool_call", hook, done, returns=(Override,))
            return end if change is None else _overridden(end, change)
        except (HookFailed, BadResult):
            return _withheld(end)


def _overridden(end: CallFinished, change: Override) -> CallFinished:
    """What the hook gave replaces what was there; what it left out stays; nothing is merged deeply."""
    content = end.content
    if change.parts is not None or change.structured is not None:
        kept = change.parts if change.parts is not None else _texts_of(end)
        content = content_of(ToolResult(kept, change.structured)).parts
    is_error = end.is_error if change.is_error is None else bool(change.is_error)
    marks = set(end.marks)
    if change.terminate is not None:
        marks = marks | {"terminate"} if change.terminate else marks - {"terminate"}
    return replace(end, content=content, is_error=is_error, marks=tuple(sorted(marks)))


def _texts_of(end: CallFinished) -> tuple[Part, ...]:
    return tuple([part for part in end.content if not isinstance(part, Structured)])


def _withheld(end: CallFinished) -> CallFinished:
    return replace(end, content=text_parts(WITHHELD), is_error=True, error="withheld")
