"""The facts of a run on their way to the journal.

Facts that need not be durable by themselves wait for the next append, so that neighbours share one (LP-9). What may
not be lost when an append is refused because the run is stopping is kept and written with the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, final

from ..contracts import RunPort
from ..core.batch import KEPT_ROOM
from ..errors import RecordRefused
from ..events import (
    CallFinished,
    CallObserved,
    Fact,
    MessageAdded,
    ModelAttemptEnded,
    Noted,
    OutputAdded,
    TurnEnded,
)
from ..records import Draft

Entry: TypeAlias = Fact | Draft

_RESULTS: Final = (ModelAttemptEnded, MessageAdded, OutputAdded, TurnEnded, CallObserved, CallFinished, Noted)
"""What a stopping run still takes: ends and results, nothing that starts something."""


class Stopped(Exception):
    """The run is being stopped: nothing more may start."""


class Reopened(Exception):
    """Somebody has said something before the end was recorded: it is refused, and what waits goes on waiting."""


class Detached(Exception):
    """The run is no longer ours, or has ended: there is nothing left to record."""


@final
class Recorder:
    """Collects and writes."""

    __slots__ = ("_full", "_on_full", "_port", "_waiting")

    def __init__(self, port: RunPort, on_full: Callable[[], object]) -> None:
        self._port = port
        self._on_full = on_full
        self._full = False
        self._waiting: list[Entry] = []

    def note(self, *entries: Entry) -> None:
        """Writes these with the next append."""
        self._waiting += entries

    async def write(self, *entries: Entry) -> None:
        """Writes what waits and these, in one append; they are durable on return.

        Raises:
            Stopped: a stop is durable, or the run takes no more (RC §3.12), which ends it. Results are kept for the
                next append, the rest is dropped.
            Detached: the run has ended or is somebody else's.
            Reopened: the end was refused because something was said meanwhile; all else is kept for the next append.
        """
        batch = [*self._waiting, *entries] if entries else self._waiting
        if self._full:
            batch = self._kept_room(batch)
        if not batch:
            return
        self._waiting = []
        try:
            await self._port.record(*batch)
        except RecordRefused as refusal:
            if refusal.code in ("stopping", "closing"):
                self._waiting = [entry for entry in batch if _survives(entry, refusal.code)]
                # The stop is durable, its scope fires in the same breath: from here on everybody sees it.
                await self._port.scope.wait()
                raise Stopped from None
            if refusal.code == "run_full" and not self._full:
                self._full, self._waiting = True, self._kept_room(batch)
                self._on_full()
                raise Stopped from None
            if refusal.code in ("unknown", "ended", "fenced"):
                raise Detached from None
            if refusal.code == "input":  # only the end is refused
                self._waiting = batch[: len(batch) - len(entries)]
                raise Reopened from None
            raise

    def _kept_room(self, batch: list[Entry]) -> list[Entry]:
        """What a full run still takes; a result only of a call that is on the record."""
        calls = self._port.state.calls
        return [
            entry
            for entry in batch
            if isinstance(fact := fact_of(entry), KEPT_ROOM)
            and (not isinstance(fact, CallFinished) or fact.call_id in calls)
        ]

    @property
    def pending(self) -> bool:
        """Whether something waits for the next append."""
        return bool(self._waiting)

    def drop_starts(self) -> None:
        """Forgets what waits and would start something: the run is stopping."""
        self._waiting = [entry for entry in self._waiting if _survives(entry, "stopping")]

    def holds(self, kind: type[Fact]) -> bool:
        """Whether a fact of that kind waits."""
        return any(type(fact_of(entry)) is kind for entry in self._waiting)


def _survives(entry: Entry, code: str) -> bool:
    if isinstance(entry, Draft):
        return entry.causation is None and _survives(entry.fact, code)
    if code == "closing" and type(entry) is CallFinished:  # a call never started is not ended then (RC-52)
        return entry.attempt > 0
    return isinstance(entry, _RESULTS)


def fact_of(entry: Entry) -> Fact:
    """The fact of an entry."""
    return entry.fact if isinstance(entry, Draft) else entry
