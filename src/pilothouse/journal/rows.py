"""Values to rows of a SQL store and back; the same columns in every one of them.

Bodies, specifications and chain values are bytes; ids and our own words are text. Everything read back is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, TypeAlias, get_args

import msgspec

from ..core.canonical import chain_start, encode
from ..errors import JournalCorrupt
from ..messages import Value
from ..records import (
    Head,
    Origin,
    Owner,
    Parent,
    Registration,
    RunEntry,
    RunHead,
    RunSpec,
    RunStateName,
    RunStatus,
    RunSummary,
)
from .catalog import ownership_of
from .liveness import provably_dead

Row: TypeAlias = Sequence[Any]

STATES: Final = frozenset(get_args(RunStateName))
STATUSES: Final = frozenset(get_args(RunStatus)) - {"corrupt"}


class _Lineage(Value):
    parent: Parent | None = None
    origin: Origin | None = None


_spec_decoder: Final = msgspec.json.Decoder(RunSpec)
_lineage_decoder: Final = msgspec.json.Decoder(_Lineage)


def run_values(registration: Registration, head: Head, fence: int, owner: str | None) -> tuple[Any, ...]:
    """The columns of a new run, from `run_id` to `owner`."""
    spec = registration.spec
    parent, origin = spec.parent, spec.origin
    return (
        spec.run_id,
        spec.thread_id,
        spec.tenant,
        registration.binding,
        registration.descriptor_digest,
        registration.spec_digest,
        registration.identity,
        registration.created_at_ms,
        None if parent is None else parent.run_id,
        None if origin is None else origin.run_id,
        None if parent is None and origin is None else encode(_Lineage(parent, origin)),
        head.seq,
        bytes.fromhex(head.chain),
        fence,
        owner,
    )


def first_head(registration: Registration) -> Head:
    """Where a run's chain begins."""
    return Head(0, chain_start(registration.spec.run_id, registration.spec_digest))


def summary_of(run_id: str, row: Row) -> RunSummary:
    """From `state` to `updated_at_ms`.

    Raises:
        JournalCorrupt: a word is none of ours.
    """
    state, status, resting, loss_recorded, takeovers, updated_at_ms = row
    if state not in STATES or status not in STATUSES:
        raise JournalCorrupt(run_id, 0, f"{state!r}, {status!r} is no state of a run")
    return RunSummary(state, status, bool(resting), bool(loss_recorded), takeovers, updated_at_ms)


def alive(owner: str | None, row: Row, now_ms: int) -> bool | None:
    """Whether an owner lives, from `machine` to `lease_until_ms`; None where nobody owns the run."""
    if owner is None:
        return None
    machine, pid, started, lease_until_ms = row
    if lease_until_ms is None or lease_until_ms <= now_ms:
        return False
    return not provably_dead(Owner(owner, machine, pid, started))


def registration_of(row: Row, body: bytes | None) -> Registration:
    """From `run_id` to `created_at_ms`, and the specification.

    Raises:
        JournalCorrupt: the specification is not what was registered.
    """
    run_id, binding, descriptor_digest, spec_digest, identity, created_at_ms = row
    if body is None or sha256(body).hexdigest() != spec_digest:
        raise JournalCorrupt(run_id, 0, "the specification does not match its digest")
    try:
        spec = _spec_decoder.decode(body)
    except msgspec.DecodeError as error:
        raise JournalCorrupt(run_id, 0, str(error)) from error
    return Registration(spec, spec_digest, binding, descriptor_digest, identity, created_at_ms)


def head_of(row: Row, now_ms: int) -> RunHead:
    """The row of statement `head`, without its first column."""
    registration = registration_of(row[0:6], row[16])
    seq, chain, fence, owner = row[6:10]
    return RunHead(
        registration,
        Head(seq, chain.hex()),
        summary_of(row[0], row[10:16]),
        fence,
        owner,
        alive(owner, row[17:21], now_ms),
    )


NO_ENTRY: Final = ("", "", "", "", 0, None, 0, "", "", 0, 0, 0, 0, None, None, None, None, None)
"""What stands behind the id of a run whose row cannot be read."""


def entry_of(row: Row, now_ms: int) -> RunEntry:
    """A row of a list; what cannot be read is an entry with status `corrupt` and fails no page (RC-67)."""
    run_id, thread_id, tenant, binding, descriptor_digest, created_at_ms, lineage, seq = row[0:8]
    entry = RunEntry(
        run_id,
        thread_id,
        binding,
        descriptor_digest,
        "unknown",
        "corrupt",
        seq,
        created_at_ms,
        row[13],
        tenant,
    )
    try:
        summary = summary_of(run_id, row[8:14])
        origin = _Lineage() if lineage is None else _lineage_decoder.decode(lineage)
    except (JournalCorrupt, msgspec.DecodeError):
        return entry
    return msgspec.structs.replace(
        entry,
        state=summary.state,
        status=summary.status,
        parent=origin.parent,
        origin=origin.origin,
        ownership=ownership_of(summary, alive(row[14], row[15:19], now_ms)),
        takeovers=summary.takeovers,
    )


__all__ = [
    "NO_ENTRY",
    "STATES",
    "STATUSES",
    "Row",
    "alive",
    "entry_of",
    "first_head",
    "head_of",
    "registration_of",
    "run_values",
    "summary_of",
]
