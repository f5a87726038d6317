"""Stored facts back into records, each checked against the chain on its way (RC-6).

A row is (seq, at_ms, lane, fence, kind, event_id, chain, body), the same from every SQL store; where rows have gaps it
ends with the chain value of the fact before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..core.canonical import unseal
from ..errors import JournalCorrupt
from ..records import Record, RecordPage
from .catalog import PAGE_BYTES, kind_of
from .rows import Row


def chained(run_id: str, found: Iterable[Row], after: int, previous: str) -> Iterator[Record]:
    """Records of consecutive rows: each one's chain value is checked from the one before."""
    for seq, row in enumerate(found, after + 1):
        if row[0] != seq:
            raise JournalCorrupt(run_id, seq, "it is missing")
        record = _record(run_id, row, previous)
        previous = record.chain
        yield record


def linked(run_id: str, row: Row, start: str) -> Record:
    """The record of a row that brings the chain value before it; the first fact's comes from the registration."""
    seq, before = row[0], row[8]
    if before is None and seq != 1:
        raise JournalCorrupt(run_id, seq - 1, "it is missing")
    return _record(run_id, row, start if seq == 1 else before.hex())


def _record(run_id: str, row: Row, previous: str) -> Record:
    seq, at_ms, lane, fence, kind, event_id, chain, body = row[0:8]
    record = unseal(run_id, seq, at_ms, lane, fence, body, chain.hex(), previous)
    if record.event_id != event_id or kind_of(record) != kind:
        raise JournalCorrupt(run_id, record.seq, "its row does not say what its body says")
    return record


def record_page(records: Iterator[Record], limit: int) -> RecordPage:
    """As many as fit; whatever comes behind them says that there are more."""
    page: list[Record] = []
    size = 0
    for record in records:
        size += len(record.body)
        if len(page) == limit or (page and size > PAGE_BYTES):
            return RecordPage(tuple(page), more=True)
        page.append(record)
    return RecordPage(tuple(page))


def check_tail(run_id: str, found: int, last: int) -> None:
    """Raises JournalCorrupt if the facts end before their run does."""
    if found != last:
        raise JournalCorrupt(run_id, found + 1, f"the run says {last} facts")


def check_head(run_id: str, found: str, last: int, chain: bytes) -> None:
    """Raises JournalCorrupt if the chain at the last fact is not the run's."""
    if found != chain.hex():
        raise JournalCorrupt(run_id, last, "the chain does not end where the run says")


__all__ = ["chained", "check_head", "check_tail", "linked", "record_page"]
