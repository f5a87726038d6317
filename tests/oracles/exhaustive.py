"""Every word over the alphabet up to a length, offered to the reducer and to the oracle: verdict, number and state.

    python -m tests.oracles.exhaustive --depth 8

Two words that lead both to the same state are one node: what follows is the same for both. The search is breadth
first, so a node is first met at its least depth.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from .alphabet import CONTRACT, FULL, SMALL, Alphabet
from .desk import Desk, agree, folded_alike
from .reducer import Contract, Oracle


@dataclass
class Found:
    """What a search saw."""

    nodes: int = 1
    offers: int = 0
    states: Counter = field(default_factory=Counter)
    verdicts: Counter = field(default_factory=Counter)
    by_depth: list[int] = field(default_factory=lambda: [1])
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        states = ", ".join(f"{name} {count}" for name, count in sorted(self.states.items()))
        verdicts = ", ".join(f"{name} {count}" for name, count in sorted(self.verdicts.items()))
        return (
            f"{self.nodes} nodes ({' + '.join(map(str, self.by_depth))}), {self.offers} offers\n"
            f"states: {states}\nverdicts: {verdicts}\ndifferences: {len(self.differences)}"
        )


def search(
    depth: int,
    alphabet: Alphabet = SMALL,
    *,
    contract: Contract = CONTRACT,
    terminal_rule: bool = True,
    limit: int = 20,
) -> Found:
    """Walks all words up to `depth` letters; stops after `limit` differences."""
    found = Found()
    gc.freeze()  # what is there stays; the states of a search form no cycles
    root = (Oracle(contract, terminal_rule=terminal_rule), Desk(), ())
    level: list[tuple[Oracle, Desk, tuple[str, ...]]] = [root]
    seen = {(root[0].key(), root[1].key())}
    found.states[root[0].phase] += 1
    for _ in range(depth):
        below: list[tuple[Oracle, Desk, tuple[str, ...]]] = []
        for oracle, desk, word in level:
            for letter in alphabet:
                offer = letter.spell(oracle)
                told, ahead = oracle.offer(*offer)
                made, twin = desk.offer(*offer)
                found.offers += 1
                found.verdicts[told.kind] += 1
                problems = [] if agree(told, made) else [f"{told} told, {made} found"]
                if told.kind == "legal":
                    problems += folded_alike(ahead, twin)
                if problems:
                    path = ", ".join((*word, letter.name))
                    found.differences.append(f"[{path}]: {'; '.join(problems)}")
                    if len(found.differences) >= limit:
                        return found
                elif told.kind == "legal" and (key := (ahead.key(), twin.key())) not in seen:
                    seen.add(key)
                    found.states[ahead.phase] += 1
                    below.append((ahead, twin, (*word, letter.name)))
        level = below
        found.nodes += len(below)
        found.by_depth.append(len(below))
    return found


def main() -> int:
    """Runs the search and prints its counts; 1 if the two differ anywhere."""
    parser = argparse.ArgumentParser(description="The run reducer against its oracle, exhaustively.")
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--alphabet", choices=("small", "full"), default="small")
    parser.add_argument("--limit", type=int, default=20, help="differences after which the search ends")
    options = parser.parse_args()
    began = time.perf_counter()
    alphabet = {"small": SMALL, "full": FULL}[options.alphabet]
    found = search(options.depth, alphabet, limit=options.limit)
    print(f"depth {options.depth}, {len(alphabet)} letters, {time.perf_counter() - began:.1f} s")
    print(found)
    for difference in found.differences:
        print(" ", difference)
    return bool(found.differences)


if __name__ == "__main__":
    sys.exit(main())
