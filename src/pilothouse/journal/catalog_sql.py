"""The list of runs as SQL, the same question in every SQL store: each page is read in order from an index (RC-79)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ..records import RunQuery
from . import rows

ENTRY: Final = """\
SELECT no, run_id, thread_id, tenant, binding, descriptor_digest, created_at_ms, lineage, seq,
  state, status, resting, loss_recorded, takeovers, updated_at_ms, owner, machine, pid, started, lease_until_ms
FROM runs LEFT JOIN owners ON owners.id = runs.owner WHERE {where} ORDER BY no DESC LIMIT ?"""
"""A list's columns for `rows.entry_of`, behind the number that a cursor is made of."""


NUMBERS: Final = "SELECT no FROM runs WHERE {where} ORDER BY no DESC LIMIT ?"
"""The same list without a word that might be damaged."""


def conditions(query: RunQuery, before: int | None) -> Iterator[tuple[list[str], list[Any]]]:
    """What is to hold for the runs of each list that makes up the answer.

    Each list is read in order from one index and none is sorted: that of the thread, parent or origin where one is
    asked for, else one list a status. A `+` keeps SQLite from choosing another column's index.
    """
    if query.statuses == () or query.states == ():  # nothing can be one of none
        return
    common = _given(
        {
            "no < ?": before,
            "binding = ?": query.binding,
            "created_at_ms >= ?": query.after_ms,
            "created_at_ms < ?": query.before_ms,
        }
    )
    relations = _given(
        {"thread_id = ?": query.thread_id, "parent_run = ?": query.parent, "origin_run = ?": query.origin}
    )
    if relations:
        chosen = [
            *relations[:1],
            *[(f"+{condition}", value) for condition, value in relations[1:]],
            *_given({"+tenant = ?": query.tenant}),
            *common,
        ]
        where, values = [condition for condition, _ in chosen], [value for _, value in chosen]
        for column, words in (("+status", query.statuses), ("+state", query.states)):
            if words is not None:
                where.append(f"{column} IN ({', '.join('?' * len(words))})")
                values += words
        yield where, values
        return
    where, values = [condition for condition, _ in common], [value for _, value in common]
    if query.tenant is None and query.statuses is None and query.states is None:
        yield where or ["TRUE"], values
        return
    tenant = _given({"tenant = ?": query.tenant})
    for status in set(rows.STATUSES if query.statuses is None else query.statuses):
        for state in _states_of(status, query.states):
            yield (
                ["status = ?", state, *where, *[word for word, _ in tenant]],
                [
                    status,
                    *values,
                    *[value for _, value in tenant],
                ],
            )


def _given(conditions: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(condition, value) for condition, value in conditions.items() if value is not None]


def _states_of(status: str, wanted: Sequence[str] | None) -> Iterator[str]:
    """In which states a run of this status is listed: each is an index of its own, and says so in its own words.

    A run that has not ended has its state for its status; one that has, its outcome's word (RC-86): only *unknown* is
    both.
    """
    if status in rows.STATES and (wanted is None or status in wanted):
        yield "state <> 'terminal'"
    if (status == "unknown" or status not in rows.STATES) and (wanted is None or "terminal" in wanted):
        yield "state = 'terminal'"


__all__ = ["ENTRY", "NUMBERS", "conditions"]
