"""One connection that reads a run in the words of the AI SDK (stream.Reader)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..core.agui import events as agui
from ..core.agui.ends import Detail, Names
from ..core.agui.frames import Frame, Snapshot, StateAt
from ..core.agui.project import Projector
from ..core.agui.segments import Segment
from ..core.agui.wire import Flow
from ..core.aisdk.parts import Translator, UIFlow, message_id, note, written
from ..events import ArgumentsTold, Delta, RequestOpened
from ..records import Record
from .following import Thinned
from .registry import Registry
from .scope import ScopedRun


class UINames(Names):
    """What one connection's parts echo.

    Attributes:
        has: ids of the calls that the client's message holds.
        answered: ids of those whose results are the client's.
    """

    def __init__(
        self,
        thread_id: str,
        run_id: str,
        *,
        detail: Detail,
        has: Collection[str] = (),
        answered: Collection[str] = (),
    ) -> None:
        super().__init__(thread_id, run_id, profile="legacy", detail=detail, steps=True)
        self.has = has
        self.answered = answered


class UIReading:
    """One connection's reading of a run, from its start or from an answer on (stream.Reader).

    From the start it is told whole, answers and what came behind them included: a client replaces its message (SV-202). From
    an answer on the message that the client has goes on (SV-203).
    """

    def __init__(
        self,
        run: ScopedRun,
        segment: Segment,
        names: UINames,
        *,
        registry: Registry,
        known: Collection[str] = (),
        said: agui.Custom | None = None,
    ) -> None:
        self._run = run
        self._segment = segment
        self._names = names
        self._registry = registry
        self._known = known
        self._note = said
        self._thinned = Thinned(registry.clock)
        first = segment.since == 1
        self._translator = Translator(
            message_id(run.ids.run) if first else None,
            has=() if first else names.has,
            answered=() if first else names.answered,
        )
        self._projector = Projector(
            names,
            since=segment.since,
            until=segment.until,
            final_snapshot=False,
            known=known,
            flow=UIFlow,
        )
        self._arguments = False

    @property
    def ended(self) -> bool:
        """The end was told."""
        return self._projector.ended

    @property
    def flow(self) -> Flow | None:
        """The short way for flowing text. Arguments do not take it: at their end they are told as a value."""
        return None if self._arguments else self._projector.flow

    @property
    def may_pause(self) -> bool:
        """The run may be at rest."""
        return self._projector.may_pause

    async def feed(self, item: Record | Delta) -> bytes:
        """What is to be sent because of it."""
        self._arguments = type(item) is Delta and isinstance(item.body, ArgumentsTold)
        if isinstance(item, Record) and isinstance(item.fact, RequestOpened):
            request = item.fact.request
            if request.kind == "approval" and request.call_id is not None:
                known = item.seq < self._segment.since
                self._translator.asked(request.call_id, request.id, known=known)
        frames = self._projector.feed(item)
        return await self._written(frames) if frames else b""

    async def rest(self) -> bytes:
        """What is to be sent where the run pauses."""
        return await self._written(self._projector.rest())

    async def finish(self) -> bytes:
        """What is to be sent where nothing more comes."""
        return await self._written(self._projector.finish())

    def cut(self, reason: str) -> bytes:
        """The note of a cut: no end, and no `[DONE]` (SV-201)."""
        return written(note("cut", {"reason": reason})) if self._projector.begun else b""

    def error(self, code: str, message: str) -> bytes:
        """The end after a fault of ours."""
        return refused(message, code)

    def restart(self) -> UIReading:
        """From the first part; a client of this protocol has no cursor, so nothing asks for it."""
        return UIReading(self._run, self._segment, self._names, registry=self._registry, known=self._known)

    async def _written(self, frames: Sequence[Frame]) -> bytes:
        out: list[bytes] = []
        for event, _, key in frames:
            if key is not None and not self._thinned.due(key):
                continue
            if isinstance(event, StateAt):
                made: agui.Event = agui.StateSnapshot(await self._run.shared_state(event.until))
            elif isinstance(event, Snapshot):
                made = agui.MessagesSnapshot([])  # only that there is one is told
            else:
                made = event
            out += [written(chunk) for chunk in self._translator.take(made)]
            if self._note is not None:
                out += [written(chunk) for chunk in self._translator.take(self._note)]
                self._note = None
        return b"".join(out)


def refused(message: str, code: str) -> bytes:
    """An end without a run's own; `code` tells programs what the text tells people."""
    return written(note("error", {"code": code})) + written({"type": "error", "errorText": message})


__all__ = ["UINames", "UIReading", "refused"]
