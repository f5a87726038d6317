"""One connection that reads a segment of a run in the words of AG-UI (stream.Reader)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Final

from ..contracts import Clock
from ..core.agui import events as agui
from ..core.agui.content import snapshot
from ..core.agui.ends import Names
from ..core.agui.frames import Frame, Snapshot, StateAt
from ..core.agui.position import Position
from ..core.agui.project import Projector
from ..core.agui.segments import Segment
from ..core.agui.verify import Verifier
from ..core.agui.wire import Flow, frame, framed
from ..events import Delta
from ..records import Record
from .connect import opened
from .registry import Registry
from .scope import ScopedRun
from .settings import AGUIOptions

logger = logging.getLogger("pilothouse.server")

_SNAPSHOT_LIMIT: Final = 8 * 1024 * 1024
"""A frame stays under the buffer of the reference client (SV-41)."""

_TOOL_NOTES_S: Final = 0.25


class Thinned:
    """At most four notes a second of one thing: which of them are due."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._noted: dict[str, float] = {}

    def due(self, key: str) -> bool:
        """Whether a note of it may be sent now."""
        now = self._clock.monotonic()
        if now - self._noted.get(key, -1.0) < _TOOL_NOTES_S:
            return False
        self._noted[key] = now
        return True


class Following:
    """One connection's reading of a segment (stream.Reader)."""

    def __init__(
        self,
        run: ScopedRun,
        segment: Segment,
        names: Names,
        *,
        registry: Registry,
        options: AGUIOptions,
        joined: bool,
        cursor: tuple[Position, str] | None = None,
        known: Collection[str] = (),
        note: agui.Custom | None = None,
        retold: bool = False,
    ) -> None:
        self._retold = retold
        place, tag = cursor if cursor is not None else (None, "")
        self._run = run
        self._segment = segment
        self._names = names
        self._registry = registry
        self._options = options
        self._note = note
        self._thinned = Thinned(registry.clock)
        self._verifier = Verifier(names.profile) if options.verify and cursor is None else None
        self._projector = Projector(
            names,
            cursor=place,
            tag=tag,
            joined=joined,
            since=segment.since,
            until=segment.until,
            final_snapshot=options.final_snapshot,
            known=known,
        )

    @property
    def ended(self) -> bool:
        """The terminal event was made."""
        return self._projector.ended

    @property
    def flow(self) -> Flow | None:
        """The short way for flowing text."""
        return self._projector.flow

    @property
    def may_pause(self) -> bool:
        """The run may be at rest."""
        return self._projector.may_pause

    async def feed(self, item: Record | Delta) -> bytes:
        """What is to be sent because of it."""
        frames = self._projector.feed(item)
        return await self._written(frames) if frames else b""

    async def rest(self) -> bytes:
        """What is to be sent where the run pauses."""
        return await self._written(self._projector.rest())

    async def finish(self) -> bytes:
        """What is to be sent where nothing more comes."""
        return await self._written(self._projector.finish())

    def cut(self, reason: str) -> bytes:
        """The note of a cut; none can stand before RUN_STARTED."""
        if not self._projector.begun:
            return b""
        return frame(agui.Custom("pilothouse.cut", {"reason": reason}), None, "")

    def error(self, code: str, message: str) -> bytes:
        """RUN_ERROR."""
        return frame(agui.RunError(message, code), None, "")

    def restart(self) -> Following:
        """From the first frame, with what the reader must replace (SV-47)."""
        return Following(
            self._run, self._segment, self._names, registry=self._registry, options=self._options, joined=True
        )

    async def _written(self, frames: Sequence[Frame]) -> bytes:
        tag = self._projector.tag
        out: list[bytes] = []
        for event, position, key in frames:
            if key is not None and not self._thinned.due(key):
                continue
            made = event
            if isinstance(made, StateAt):
                state = await self._run.shared_state(made.until)
                if not state and position is not None and made.until < self._segment.since:
                    continue  # of a thread that has none
                made = agui.StateSnapshot(state)
            encoded: bytes | None = None
            if isinstance(made, Snapshot):
                filled = await self._filled(made)
                if filled is None:
                    continue
                made, encoded = filled
            if self._retold and isinstance(made, agui.RunStarted):
                made, *behind = opened(self._run, made, self._names)
                out += [frame(made, position, tag), *[frame(event, None, tag) for event in behind]]
                continue
            if self._verifier is not None:
                self._verifier.check(made)
            out.append(framed(agui.encode(made) if encoded is None else encoded, position, tag))
            if self._note is not None:  # nothing can stand before RUN_STARTED
                out.append(frame(self._note, None, tag))
                self._note = None
        return b"".join(out)

    async def _filled(self, wanted: Snapshot) -> tuple[agui.MessagesSnapshot, bytes] | None:
        """The conversation as the snapshot is to show it, and as it is sent: made once for all who read the run now."""
        reader_cache = self._registry.reader_cache(self._run.key)
        if reader_cache is None:
            return await self._conversation(wanted)
        key = (wanted, self._names.profile)
        return await reader_cache.once(key, lambda: self._conversation(wanted))

    async def _conversation(self, wanted: Snapshot) -> tuple[agui.MessagesSnapshot, bytes] | None:
        """The same; the newest of it if it is too large for a frame."""
        front = wanted.scope == "front"
        path = await self._run.front() if front else await self._run.path(wanted.until)
        messages = snapshot(path, profile=self._names.profile)
        made = agui.MessagesSnapshot(messages)
        data = agui.encode(made)
        if (size := len(data)) <= _SNAPSHOT_LIMIT:
            return made, data
        if not front:  # it only confirms what the reader has
            logger.warning("a snapshot of run %s has %d bytes: left out", self._run.ids.run, size)
            return None
        while messages and size > _SNAPSHOT_LIMIT:
            size -= len(agui.encode(messages.pop(0)))
        made = agui.MessagesSnapshot(messages)
        return made, agui.encode(made)


__all__ = ["Following", "Thinned"]
