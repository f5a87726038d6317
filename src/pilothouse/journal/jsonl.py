r"""Runs as lines of text: from any journal into any other, byte for byte (JR-25, JR-26).

One JSON object a line, UTF-8, lines end at `\n` bytes and nowhere else (U+2028 and U+0085 occur in text):

    {"format": "pilothouse-journal", "version": 1}
    {"run": {registration, head, summary}}             one a run, oldest first, then
    {"fact": {seq, at_ms, lane, fence, chain, body}}   its facts in order; `body` is the stored bytes themselves
    {"blob": {digest, media_type, data}}               its artifacts, base64; each once in a file
    {"broken": {run_id, why}}                          instead of the rest of a run that could not be read
    {"end": {runs, facts, blobs, digest}}              counts, and the SHA-256 of all bytes before

Owners and leases are not in it: a run that was live when it was exported is an orphan where it is imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import BinaryIO, Final, final
from uuid import uuid4

import msgspec

from ..contracts import Journal
from ..core.canonical import chain_start, digest_of, encode, unseal
from ..core.run import RunState, apply
from ..errors import ArtifactNotFound, JournalCorrupt, JournalVersion, RunConflict
from ..events import Lane, Opaque
from ..messages import Value
from ..records import ClaimRequest, Head, Record, Registration, RunHead, RunQuery, RunSummary
from .blobs import named_in
from .catalog import MAX_PAGE
from .liveness import this_process

FORMAT: Final = "pilothouse-journal"
VERSION: Final = 1

_CHUNK: Final = 1024 * 1024
"""Bytes that are read or written at a time, in a thread."""

_CLAIM_MS: Final = 60_000


class Exported(Value):
    """What was written; `problems` names runs that could not be read to their end."""

    runs: int = 0
    facts: int = 0
    blobs: int = 0
    problems: tuple[str, ...] = ()


class Imported(Value):
    """What became of the runs of a file.

    `skipped`: they were here already, equal. `conflicts`: their ids stand for something else here. `problems`: what is
    not as it was exported, run by run. `torn`: where the file breaks off; empty if it is whole.
    """

    runs: int = 0
    facts: int = 0
    skipped: int = 0
    conflicts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    torn: str = ""


class _Header(Value):
    format: str
    version: int


class _Run(Value):
    registration: Registration
    head: Head
    summary: RunSummary


class _Fact(Value):
    seq: int
    at_ms: int
    lane: Lane
    fence: int
    chain: str
    body: msgspec.Raw


class _Blob(Value):
    digest: str
    media_type: str
    data: bytes


class _Broken(Value):
    run_id: str
    why: str


class _End(Value):
    runs: int
    facts: int
    blobs: int
    digest: str


class _Line(Value):
    """Exactly one of its fields is set."""

    run: _Run | None = None
    fact: _Fact | None = None
    blob: _Blob | None = None
    broken: _Broken | None = None
    end: _End | None = None


_encoder: Final = msgspec.json.Encoder(order="sorted")
_header_decoder: Final = msgspec.json.Decoder(_Header)
_line_decoder: Final = msgspec.json.Decoder(_Line)


async def export(journal: Journal, file: BinaryIO, query: RunQuery | None = None) -> Exported:
    """Writes the runs that a query admits, oldest first, as they are now.

    A run that is written meanwhile is exported up to where it stood when its turn came.
    """
    writer = _Export(journal, file)
    await writer.header()
    for run_id, listed in reversed([found async for found in _runs(journal, query or RunQuery())]):
        await writer.run(run_id, listed)
    return await writer.end()


async def import_(journal: Journal, file: BinaryIO) -> Imported:
    """Reads a file and adds its runs, each whole or not at all; afterwards nobody owns them.

    Raises:
        JournalVersion: the file is no export, or a newer one.
    """
    reader = _Import(journal)
    async for line in _lines(file):
        await reader.line(line)
    return await reader.end()


async def _runs(journal: Journal, query: RunQuery) -> AsyncIterator[tuple[str, str]]:
    """Each run with the status that it is listed with."""
    cursor: str | None = None
    while True:
        page = await journal.list(query, cursor=cursor, limit=MAX_PAGE)
        for entry in page.items:
            yield entry.run_id, entry.status
        if (cursor := page.cursor) is None:
            return


@final
class _Export:
    def __init__(self, journal: Journal, file: BinaryIO) -> None:
        self._journal = journal
        self._file = file
        self._runs = self._facts = 0
        self._blobs: set[str] = set()
        self._problems: list[str] = []
        self._digest = sha256()
        self._waiting: list[bytes] = []
        self._size = 0

    async def header(self) -> None:
        await self._write(_encoder.encode(_Header(FORMAT, VERSION)))

    async def run(self, run_id: str, listed: str) -> None:
        try:
            await self._whole_run(run_id, listed)
        except JournalCorrupt as error:
            self._problems.append(str(error))
            await self._line(_Line(broken=_Broken(run_id, str(error))))

    async def _whole_run(self, run_id: str, listed: str) -> None:
        head = await self._journal.head(run_id)
        if head is None:
            if listed == "corrupt":  # what it is called is damaged, too
                raise JournalCorrupt(run_id, 0, "it cannot be read")
            return  # purged since it was listed
        line = _Run(head.registration, head.head, head.summary)
        await self._write(b'{"run":%b}' % encode(line))  # canonical: a registration may hold any text
        named = dict(named_in(encode(head.registration.spec)))
        async for record in _facts(self._journal, run_id, head.head.seq):
            body = msgspec.Raw(record.body)
            fact = _Fact(record.seq, record.at_ms, record.lane, record.fence, record.chain, body)
            await self._line(_Line(fact=fact))
            named.update(named_in(record.body))
        for digest, media_type in named.items():
            await self._blob(run_id, digest, media_type)
        self._runs += 1
        self._facts += head.head.seq

    async def _blob(self, run_id: str, digest: str, media_type: str) -> None:
        if digest in self._blobs:
            return
        try:
            data = await self._journal.get_blob(digest)
        except ArtifactNotFound as error:
            raise JournalCorrupt(run_id, 0, str(error)) from error
        self._blobs.add(digest)
        await self._line(_Line(blob=_Blob(digest, media_type, data)))

    async def end(self) -> Exported:
        end = _End(self._runs, self._facts, len(self._blobs), self._digest.hexdigest())
        await self._line(_Line(end=end))
        await self._flush()
        return Exported(self._runs, self._facts, len(self._blobs), tuple(self._problems))

    async def _line(self, line: _Line) -> None:
        await self._write(_encoder.encode(line))

    async def _write(self, line: bytes) -> None:
        line += b"\n"
        self._digest.update(line)
        self._waiting.append(line)
        self._size += len(line)
        if self._size >= _CHUNK:
            await self._flush()

    async def _flush(self) -> None:
        waiting, self._waiting, self._size = self._waiting, [], 0
        await asyncio.to_thread(self._file.write, b"".join(waiting))


async def _facts(journal: Journal, run_id: str, last: int) -> AsyncIterator[Record]:
    after = 0
    while after < last:
        page = await journal.read(run_id, after=after)
        for record in page.records:
            after = record.seq
            if after <= last:
                yield record
        if not page.records:
            raise JournalCorrupt(run_id, after + 1, "it is missing")


async def _lines(file: BinaryIO) -> AsyncIterator[bytes]:
    read: Callable[[int], list[bytes]] = file.readlines  # binary files break lines at \n alone
    while lines := await asyncio.to_thread(read, _CHUNK):
        for line in lines:
            yield line


@final
class _Import:
    """Reads line by line and holds one run at a time."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._owner = this_process(f"import-{uuid4()}")
        self._number = 0
        self._digest = sha256()
        self._open: _RunRead | None = None
        self._blobs: set[str] = set()
        self._runs = self._facts = self._skipped = 0
        self._conflicts: list[str] = []
        self._problems: list[str] = []
        self._torn = ""
        self._ended = False

    async def line(self, line: bytes) -> None:
        self._number += 1
        if self._torn:
            return
        if self._number == 1:
            _check_header(line)
        elif self._ended:
            self._problems.append(f"line {self._number}: nothing may follow the end")
        else:
            await self._body_line(line)
        self._digest.update(line)

    async def _body_line(self, line: bytes) -> None:
        try:
            read = _line_decoder.decode(line)
            if not line.endswith(b"\n"):
                raise msgspec.DecodeError("it has no end")  # noqa: TRY301 - a torn line may be JSON by chance
        except msgspec.DecodeError as error:
            self._torn = f"line {self._number} is torn: {error}"
            return
        if read.run is not None:
            await self._close_run()
            self._open = _RunRead(read.run)
        elif read.fact is not None:
            self._fact(read.fact)
        elif read.blob is not None:
            await self._put_blob(read.blob)
        elif read.broken is not None:
            self._open = None
            self._problems.append(f"not exported: {read.broken.why}")
        elif read.end is not None:
            await self._close_run()
            self._ended = True
            if read.end.digest != self._digest.hexdigest():
                self._problems.append("the file is not what was exported: its digest differs")

    def _fact(self, fact: _Fact) -> None:
        if self._open is None:
            self._problems.append(f"line {self._number}: a fact of no run")
        else:
            self._open.add(fact)

    async def _put_blob(self, blob: _Blob) -> None:
        if sha256(blob.data).hexdigest() != blob.digest:
            self._problems.append(f"artifact {blob.digest} does not match its digest")
            return
        await self._journal.put_blob(blob.data, blob.media_type)
        self._blobs.add(blob.digest)

    async def _close_run(self) -> None:
        """A run is complete when the next begins: then it is stored, or told why not."""
        run, self._open = self._open, None
        if run is None:
            return
        try:
            run.check()
            await self._check_blobs(run)
            await self._store(run)
        except JournalCorrupt as error:
            self._problems.append(str(error))
        except RunConflict as error:
            self._conflicts.append(error.run_id)

    async def _check_blobs(self, run: _RunRead) -> None:
        for digest in run.named - self._blobs:
            try:
                await self._journal.get_blob(digest)
            except ArtifactNotFound as error:
                raise JournalCorrupt(run.run_id, 0, str(error)) from error
            self._blobs.add(digest)

    async def _store(self, run: _RunRead) -> None:
        line = run.line
        known = await self._journal.head(run.run_id)
        if known is not None:
            if not _equal(known, line):
                raise RunConflict(run.run_id)
            self._skipped += 1
            return
        claim = ClaimRequest(self._owner, _CLAIM_MS, line.registration.created_at_ms)
        await self._journal.create(line.registration, run.records, summary=line.summary, claim=claim)
        await self._journal.release(self._owner, run.run_id)
        self._runs += 1
        self._facts += len(run.records)

    async def end(self) -> Imported:
        if not self._ended:
            await self._last_of_a_torn_file()
        await self._journal.release(self._owner)
        return Imported(
            self._runs, self._facts, self._skipped, tuple(self._conflicts), tuple(self._problems), self._torn
        )

    async def _last_of_a_torn_file(self) -> None:
        """The run at the tear is stored if it is complete by its own word."""
        if self._number == 0:
            raise JournalVersion("cannot import an empty file: it is no export of a journal")
        self._torn = self._torn or f"the file breaks off behind line {self._number}"
        run = self._open
        if run is not None and len(run.records) < run.line.head.seq:
            self._torn += f", in run {run.run_id}"
            self._open = None
        await self._close_run()


@final
class _RunRead:
    """A run as far as it was read, checked against its chain fact by fact."""

    def __init__(self, line: _Run) -> None:
        self.line = line
        self.run_id = line.registration.spec.run_id
        self.records: list[Record] = []
        self.named = {digest for digest, _ in named_in(encode(line.registration.spec))}
        self._state = RunState(self.run_id, chain_start(self.run_id, line.registration.spec_digest))
        self._readable = True
        self._error: JournalCorrupt | None = None

    def add(self, fact: _Fact) -> None:
        if self._error is not None:
            return
        body = bytes(fact.body)
        try:
            record = unseal(
                self.run_id,
                len(self.records) + 1,
                fact.at_ms,
                fact.lane,
                fact.fence,
                body,
                fact.chain,
                self._state.chain,
            )
        except JournalCorrupt as error:
            self._error = error
            return
        self._readable = self._readable and not isinstance(record.fact, Opaque)
        apply(self._state, record)
        self.records.append(record)
        self.named.update(digest for digest, _ in named_in(body))

    def check(self) -> None:
        """Raises JournalCorrupt unless it is whole and says of itself what its facts say."""
        if self._error is not None:
            raise self._error
        line, seq = self.line, len(self.records)
        if digest_of(line.registration.spec) != line.registration.spec_digest:
            raise JournalCorrupt(self.run_id, 0, "the specification does not match its digest")
        if line.head != Head(seq, self._state.chain):
            raise JournalCorrupt(self.run_id, seq, f"the run says {line.head.seq} facts and has {seq}")
        if self._readable and self._state.summary() != line.summary:
            raise JournalCorrupt(self.run_id, seq, "its state is not what its facts say")


def _check_header(line: bytes) -> None:
    try:
        header = _header_decoder.decode(line)
    except msgspec.DecodeError as error:
        raise JournalVersion(f"cannot import because this is no export of a journal: {error}") from error
    if header.format != FORMAT:
        raise JournalVersion(f"cannot import {header.format!r}: it is no export of a journal")
    if header.version > VERSION:
        raise JournalVersion(
            f"cannot import because a newer Pilothouse wrote it (version {header.version}): upgrade this one"
        )


def _equal(known: RunHead, line: _Run) -> bool:
    return (known.registration, known.head, known.summary) == (line.registration, line.head, line.summary)


__all__ = ["FORMAT", "VERSION", "Exported", "Imported", "export", "import_"]
