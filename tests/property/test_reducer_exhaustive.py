"""The run reducer against an oracle that was written from the specification page alone: every short word of facts.

The long matrix, with its counts in `docs/design/reducer.md`: `python -m tests.oracles.exhaustive --depth 8`.
"""

from __future__ import annotations

import sys

from oracles.alphabet import FULL, SMALL
from oracles.exhaustive import search
from oracles.reducer import PHASES, TABLE
from pilothouse.core.canonical import KINDS


def test_all_words_of_six_appends_lead_to_the_same_verdict_number_and_state(capsys) -> None:
    """RC-12, RC-13, RC-21 … RC-29, EF-2 … EF-5: nothing differs, and all six states were reached."""
    found = search(6)
    with capsys.disabled():
        sys.stderr.write(f"\ndepth 6, {len(SMALL)} letters: {found}\n")
    assert found.differences == []
    assert set(found.states) == set(PHASES)
    assert found.nodes > 10_000
    assert set(found.verdicts) == {"legal", "duplicate", "refused", "violation", "never"}


def test_all_words_of_three_single_facts_and_their_twins_do_too() -> None:
    """RC-13: every kind, wrong lanes, events with ids of their own."""
    found = search(3, FULL)
    assert found.differences == []
    assert set(found.states) == set(PHASES)


def test_an_oracle_without_the_terminal_rule_is_caught() -> None:
    """The search finds what it is made for: an end after which the run goes on."""
    found = search(3, terminal_rule=False, limit=1)
    assert len(found.differences) == 1
    assert "outcome: None told" in found.differences[0]


def test_the_alphabets_hold_every_kind_of_fact_and_the_table_a_row_for_each() -> None:
    """Nothing is left out by accident."""
    spoken = {
        draft.fact.kind for letter in FULL if not callable(letter.offer) for draft, _ in letter.offer
    } | {"continuity_restored"}
    assert spoken == KINDS
    assert {row.split()[0] for row in TABLE} == KINDS
