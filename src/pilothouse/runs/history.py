"""The path of a thread: what stands in front of a run, put together from the runs it hangs on (RC-68, RC-82)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ..contracts import Journal
from ..core.canonical import chain_start
from ..core.transcript import Transcript, cut_after, for_runtime
from ..errors import InvalidSpec, RunNotFound
from ..events import HistoryCompacted
from ..messages import Message
from ..records import HistoryMessage, Parent, Record, Registration, RunSpec

MAX_DEPTH = 10_000
_KEPT_PATHS = 256


class Paths:
    """Builds paths from the journal; keeps the last ones that were asked for, since a thread goes on from its head."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._kept: OrderedDict[str, tuple[int, list[HistoryMessage], list[HistoryCompacted]]] = OrderedDict()

    async def registration(self, run_id: str) -> Registration:
        """The registration of a run.

        Raises:
            RunNotFound: no such run.
        """
        head = await self._journal.head(run_id)
        if head is None:
            raise RunNotFound(run_id)
        return head.registration

    async def facts(self, run_id: str, after: int = 0) -> list[Record]:
        """All facts of a run behind `after`, read in pages."""
        found: list[Record] = []
        while True:
            page = await self._journal.read(run_id, after=after)
            found += page.records
            if not page.more:
                return found
            after = found[-1].seq

    async def history(self, run_id: str) -> list[HistoryMessage]:
        """From the root to the end of this run, interrupted messages included and marked."""
        return (await self._whole(run_id))[0]

    async def for_start(self, spec: RunSpec) -> list[Message]:
        """What stands in front of a run, as its runtime is given it."""
        if spec.parent is None:
            return list(spec.base)
        path, compactions = await self._cut(spec.parent)
        return for_runtime(path, compactions)

    async def front(self, spec: RunSpec) -> list[HistoryMessage]:
        """What stands in front of a run, as a reader sees it."""
        if spec.parent is None:
            return _base(spec)
        return (await self._cut(spec.parent))[0]

    async def _cut(self, parent: Parent) -> tuple[list[HistoryMessage], list[HistoryCompacted]]:
        path, compactions = await self._whole(parent.run_id)
        try:
            cut = list(cut_after(path, parent.keep_through))
        except KeyError as error:
            why = f"message {parent.keep_through} is not on the path of run {parent.run_id}"
            raise InvalidSpec(why, "keep_through_unknown") from error
        on_path = {entry.message.id for entry in cut}
        return cut, [item for item in compactions if on_path.issuperset(item.kept)]

    async def _whole(self, run_id: str) -> tuple[list[HistoryMessage], list[HistoryCompacted]]:
        """The path to the end of a run. Walks up to the nearest kept path, then down again."""
        line: list[Registration] = []
        cursor: str | None = run_id
        path: list[HistoryMessage] = []
        compactions: list[HistoryCompacted] = []
        while cursor is not None:
            head = await self._journal.head(cursor)
            if head is None:
                raise RunNotFound(cursor)
            if (kept := self._kept.get(cursor)) is not None and kept[0] == head.head.seq:
                path, compactions = list(kept[1]), list(kept[2])
                break
            line.append(head.registration)
            if len(line) > MAX_DEPTH:
                raise InvalidSpec(f"run {run_id} hangs on more than {MAX_DEPTH} others", "too_deep")
            parent = head.registration.spec.parent
            cursor = None if parent is None else parent.run_id
            if parent is None:
                path = _base(head.registration.spec)
        for registration in reversed(line):
            path, compactions = await self._extend(registration, path, compactions)
        return path, compactions

    async def _extend(
        self, registration: Registration, path: list[HistoryMessage], compactions: list[HistoryCompacted]
    ) -> tuple[list[HistoryMessage], list[HistoryCompacted]]:
        spec = registration.spec
        if spec.parent is not None:
            path = list(cut_after(path, spec.parent.keep_through))
        transcript = Transcript(spec)
        records = await self.facts(spec.run_id)
        for record in records:
            transcript.add(record)
        path = [*path, *transcript.messages()]
        if transcript.compaction is not None:
            compactions = [*compactions, transcript.compaction]
        if records:
            self._keep(spec, records[-1].seq, path, compactions)
        return path, compactions

    def _keep(
        self, spec: RunSpec, seq: int, path: list[HistoryMessage], compactions: list[HistoryCompacted]
    ) -> None:
        if spec.parent is not None:
            self._kept.pop(spec.parent.run_id, None)  # the child's path holds the parent's messages too
        self._kept[spec.run_id] = (seq, path, compactions)
        while len(self._kept) > _KEPT_PATHS:
            self._kept.popitem(last=False)


def _base(spec: RunSpec) -> list[HistoryMessage]:
    return [HistoryMessage(message, spec.run_id, 0) for message in spec.base]


def first_chain(registration: Registration) -> str:
    """The chain value before the first fact of a run."""
    return chain_start(registration.spec.run_id, registration.spec_digest)


def known_ids(path: Sequence[HistoryMessage]) -> set[str]:
    """The message ids of a path."""
    return {entry.message.id for entry in path}
