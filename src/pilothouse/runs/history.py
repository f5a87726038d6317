"""The path of a thread: what stands in front of a run, put together from the runs it hangs on (RC-68, RC-82)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from msgspec.structs import replace

from ..contracts import Journal
from ..core.canonical import chain_start
from ..core.recent import Recent
from ..core.transcript import Compaction, Transcript, cut_after, for_runtime, kept_apart, with_results
from ..errors import InvalidSpec, RunNotFound
from ..messages import Message
from ..records import HistoryMessage, Parent, Record, Registration, RunHead, RunSpec

MAX_DEPTH = 10_000


@final
class Path:
    """What stands up to a point of a thread, as a reader sees it, and where on it the context was replaced.

    What follows from it is found out once, and carried on to what follows it: a thread costs the same however long it is.
    """

    __slots__ = ("_apart", "_context", "compactions", "entries")

    def __init__(self, entries: Sequence[HistoryMessage], compactions: Sequence[Compaction] = ()) -> None:
        self.entries = entries
        self.compactions = compactions
        self._context: list[Message] | None = None
        self._apart: bool | None = None

    @property
    def context(self) -> list[Message]:
        """The path as a runtime is given it."""
        if self._context is None:
            self._context = for_runtime(self.entries, self.compactions)
        return self._context

    @property
    def apart(self) -> bool:
        """Whether a part of it stands for bytes that the journal keeps."""
        if self._apart is None:
            self._apart = kept_apart(self.context)
        return self._apart

    def cut(self, parent: Parent) -> Path:
        """Up to where a child of its last run hangs.

        Raises:
            InvalidSpec: no such message on it.
        """
        try:
            entries = cut_after(self.entries, parent.keep_through)
        except KeyError as error:
            why = f"message {parent.keep_through} is not on the path of run {parent.run_id}"
            raise InvalidSpec(why, "keep_through_unknown") from error
        if len(entries) == len(self.entries):
            return self
        return Path(entries, [item for item in self.compactions if item.place <= len(entries)])

    def followed_by(self, messages: Sequence[HistoryMessage], compactions: Sequence[Compaction]) -> Path:
        """The path with the messages of a run behind it."""
        path = Path([*self.entries, *messages], [*self.compactions, *compactions])
        if self._context is not None and not path.compactions:
            more = [entry.message for entry in messages if entry.complete]
            path._context = [*self._context, *more]
            if self._apart is not None:
                path._apart = self._apart or kept_apart(more)
        return path


class Paths:
    """Builds paths from the journal; keeps the last ones that were asked for, since a thread goes on from its head."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._kept: Recent[tuple[int, Path]] = Recent()

    async def head(self, run_id: str) -> RunHead:
        """A run without its facts.

        Raises:
            RunNotFound: no such run.
        """
        head = await self._journal.head(run_id)
        if head is None:
            raise RunNotFound(run_id)
        return head

    async def registration(self, run_id: str) -> Registration:
        """The registration of a run.

        Raises:
            RunNotFound: no such run.
        """
        return (await self.head(run_id)).registration

    async def facts(self, run_id: str, after: int = 0) -> list[Record]:
        """All facts of a run behind `after`, read in pages."""
        found: list[Record] = []
        while True:
            page = await self._journal.read(run_id, after=after)
            found += page.records
            if not page.more:
                return found
            after = found[-1].seq

    async def history(self, run_id: str) -> Sequence[HistoryMessage]:
        """From the root to the end of this run, interrupted messages included and marked."""
        return (await self._whole(run_id, 0)).entries

    async def front(self, spec: RunSpec) -> Path:
        """What stands in front of a run."""
        parent = spec.parent
        if parent is None:
            return Path([HistoryMessage(message, spec.run_id, 0) for message in spec.base])
        return (await self._whole(parent.run_id, parent.seq)).cut(parent)

    async def place(self, parent: Parent) -> Parent:
        """Where a child really hangs that is to be cut off there."""
        path = (await self._whole(parent.run_id, parent.seq)).entries
        return replace(parent, keep_through=with_results(path, parent.keep_through))

    async def _whole(self, run_id: str, upto: int) -> Path:
        """The path to fact `upto` of a run (0: its last). Walks up to the nearest kept path, then down again."""
        line: list[tuple[RunSpec, int]] = []
        cursor: Parent | None = Parent(run_id, seq=upto)
        path: Path | None = None
        while cursor is not None and path is None:
            head = await self.head(cursor.run_id)
            upto = cursor.seq or head.head.seq
            kept = self._kept.get(cursor.run_id)
            if kept is not None and kept[0] == upto:
                path = kept[1]
                break
            spec = head.registration.spec
            line.append((spec, upto))
            if len(line) > MAX_DEPTH:
                raise InvalidSpec(f"run {run_id} hangs on more than {MAX_DEPTH} others", "too_deep")
            cursor = spec.parent
        if path is None:
            path = await self.front(line[-1][0])
        for spec, upto in reversed(line):
            path = await self._extend(spec, upto, path if spec.parent is None else path.cut(spec.parent))
        return path

    async def _extend(self, spec: RunSpec, upto: int, front: Path) -> Path:
        """The path with the messages of a run behind what stands in front of it."""
        transcript = Transcript(spec)
        for record in await self.facts(spec.run_id):
            if record.seq <= upto:
                transcript.add(record)
        messages = transcript.messages()
        path = front.followed_by(messages, transcript.compactions(messages, len(front.entries)))
        self._keep(spec, upto, path)
        return path

    def _keep(self, spec: RunSpec, upto: int, path: Path) -> None:
        if spec.parent is not None:
            self._kept.pop(spec.parent.run_id)  # the child's path holds the parent's messages too
        self._kept.put(spec.run_id, (upto, path), len(path.entries))


def first_chain(registration: Registration) -> str:
    """The chain value before the first fact of a run."""
    return chain_start(registration.spec.run_id, registration.spec_digest)


def known_ids(path: Sequence[HistoryMessage]) -> set[str]:
    """The message ids of a path."""
    return {entry.message.id for entry in path}
