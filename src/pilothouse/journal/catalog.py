"""What all stores agree on about lists: bounds, cursors, filters, and the word for who owns a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from ..events import Opaque
from ..records import Ownership, Record, RunEntry, RunHead, RunQuery, RunSummary

MAX_PAGE: Final = 500
"""Entries or records of one page (RC-67)."""

PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bodies of one page of records; a single larger record still makes a page (JR-5)."""


def checked_limit(limit: int) -> int:
    """The limit of a page.

    Raises:
        ValueError: it is not within 1..500.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"limit must be within 1 and {MAX_PAGE}, not {limit}")
    return limit


def checked_after(after: int) -> int:
    """The seq behind which a reader wants to go on.

    Raises:
        ValueError: it is negative.
    """
    if after < 0:
        raise ValueError(f"after must not be negative: {after}")
    return after


def position_of(cursor: str | None) -> int | None:
    """The creation number before which a list goes on; None from the newest on.

    Raises:
        ValueError: it is not a cursor of ours.
    """
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise ValueError(f"{cursor!r} is no cursor of this list")
    return int(cursor)


def admits(query: RunQuery, head: RunHead) -> bool:
    """Whether a run belongs to what was asked for."""
    registration, summary = head.registration, head.summary
    spec = registration.spec
    return (
        (query.tenant is None or spec.tenant == query.tenant)
        and (query.thread_id is None or spec.thread_id == query.thread_id)
        and (query.states is None or summary.state in query.states)
        and (query.statuses is None or summary.status in query.statuses)
        and (query.binding is None or registration.binding == query.binding)
        and (query.parent is None or (spec.parent is not None and spec.parent.run_id == query.parent))
        and (query.origin is None or (spec.origin is not None and spec.origin.run_id == query.origin))
        and (query.after_ms is None or registration.created_at_ms >= query.after_ms)
        and (query.before_ms is None or registration.created_at_ms < query.before_ms)
    )


def ownership_of(summary: RunSummary, alive: bool | None) -> Ownership:
    """How a run stands, as the store sees it; only a controller can make `here` or `stalled` of it.

    `alive` is None where nobody owns the run. A run at rest whose owner died is as good as parked: nothing in flight
    can have been lost (RC-50).
    """
    if summary.state == "terminal":
        return "none"
    if alive:
        return "elsewhere"
    if summary.resting:
        return "parked"
    return "none" if alive is None and summary.loss_recorded else "orphaned"


def is_live(summary: RunSummary, alive: bool | None) -> bool:
    """Whether somebody drives the run or it waits for an answer: such a run cannot be purged (JR-8)."""
    return ownership_of(summary, alive) in ("elsewhere", "parked")


def kind_of(record: Record) -> str:
    """The word of a record's fact."""
    fact = record.fact
    return fact.kind if isinstance(fact, Opaque) else str(fact.__struct_config__.tag)


def twice_in(records: Sequence[Record]) -> str:
    """An event id that stands more than once among records; empty if there is none."""
    ((event_id, count),) = Counter(record.event_id for record in records).most_common(1)
    return event_id if count > 1 else ""


def entry_of(head: RunHead) -> RunEntry:
    """A run as it stands in a list."""
    registration, summary = head.registration, head.summary
    spec = registration.spec
    return RunEntry(
        run_id=spec.run_id,
        thread_id=spec.thread_id,
        binding=registration.binding,
        descriptor_digest=registration.descriptor_digest,
        state=summary.state,
        status=summary.status,
        last_seq=head.head.seq,
        created_at_ms=registration.created_at_ms,
        updated_at_ms=summary.updated_at_ms,
        tenant=spec.tenant,
        parent=spec.parent,
        origin=spec.origin,
        ownership=ownership_of(summary, head.owner_alive),
        takeovers=summary.takeovers,
    )


__all__ = [
    "MAX_PAGE",
    "PAGE_BYTES",
    "admits",
    "checked_after",
    "checked_limit",
    "entry_of",
    "is_live",
    "kind_of",
    "ownership_of",
    "position_of",
    "twice_in",
]
