"""`./dev bench [CASE…]`: every row of `docs/performance.md`, ours and the floor's, with the ratio."""

from __future__ import annotations

import asyncio
import json
import platform
import sys

from .cases import CASES, Row, run_apart


def show(row: Row) -> str:
    ratio = f"{row.ours / row.floor:8.1f}" if row.floor > 0 else "       –"
    budget = "–" if row.budget is None else f"{row.budget:g}"
    met = "" if row.budget is None else "yes" if row.ours <= row.budget else "no"
    unit = f" {row.unit}" if row.unit else ""
    return f"| {row.name} | {row.ours:.2f}{unit} | {row.floor:.2f}{unit} | {ratio} | {budget} | {met} |"


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--case":
        print(json.dumps(asyncio.run(CASES[sys.argv[2]]())))
        return
    names = sys.argv[1:] or list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        sys.exit(f"no such case: {', '.join(unknown)}; there are: {', '.join(CASES)}")
    print(f"CPython {platform.python_version()}, {platform.machine()}\n")
    print("| what | ours | floor | ratio | budget | met |\n|---|---:|---:|---:|---:|---|")
    for name in names:
        for row in run_apart(name):
            print(show(row), flush=True)


main()
