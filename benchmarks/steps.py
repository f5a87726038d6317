"""What a turn does, counted: bytecodes and calls of Python by call tree. Counts do not depend on the machine's load.

python -m benchmarks.steps turn          # a turn without tools, as a run
python -m benchmarks.steps send 200      # a send of a conversation of its own; branches of 200 bytecodes and more
python -m benchmarks.steps call          # four tool calls and the answer
python -m benchmarks.steps durable       # a turn on disk; the writer's thread is not counted
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pilothouse import SQLiteJournal

from . import ours

Work = Callable[[], Awaitable[object]]


class Node:
    """A function, as it was called from one place of the tree."""

    __slots__ = ("calls", "inner", "steps")

    def __init__(self) -> None:
        self.calls = self.steps = 0
        self.inner: dict[CodeType, Node] = {}

    @property
    def total(self) -> int:
        """Bytecodes of it and of all that it called."""
        return self.steps + sum(node.total for node in self.inner.values())

    @property
    def all_calls(self) -> int:
        """Calls of it and of all that it called."""
        return self.calls + sum(node.all_calls for node in self.inner.values())


async def counted(work: Work) -> Node:
    """One piece of work, counted: what it does in this thread, whichever task does it."""
    root = Node()
    nodes: dict[FrameType, Node] = {}

    def entered(frame: FrameType, _event: str, _arg: Any) -> Callable[..., Any]:
        above = root if frame.f_back is None else nodes.get(frame.f_back, root)
        node = nodes[frame] = above.inner.setdefault(frame.f_code, Node())
        node.calls += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return stepped

    def stepped(frame: FrameType, event: str, _arg: Any) -> Callable[..., Any]:
        if event == "opcode":
            nodes[frame].steps += 1
        return stepped

    gc.disable()
    sys.settrace(entered)
    try:
        await work()
    finally:
        sys.settrace(None)
        gc.enable()
    return root


def work_of(name: str, folder: str) -> Work:
    """What is counted under this name."""
    fake = ours.Fake()
    match name:
        case "turn":
            return ours.Runs(fake).turn
        case "send":
            return lambda: ours.send(fake)
        case "call":
            runs = ours.Runs(fake, tools=True)
            return lambda: runs.turn(4)
        case "durable":
            return ours.Runs(fake, SQLiteJournal(f"{folder}/steps.db", durability="normal")).turn
    sys.exit(f"no such work: {name}; there are turn, send, call, durable")


def show(code: CodeType, node: Node, least: int, depth: int) -> None:
    """A branch of the tree, the dearest first."""
    if node.total < least:
        return
    where = f"{Path(code.co_filename).stem}.{code.co_qualname}"
    print(f"{node.total:7d} {node.steps:6d}  {'  ' * depth}{node.calls} × {where}")
    for inner, below in sorted(node.inner.items(), key=lambda item: -item[1].total):
        show(inner, below, least, depth + 1)


def by_function(node: Node, found: Counter[str]) -> Counter[str]:
    """Bytecodes of each function itself, wherever it was called."""
    for code, below in node.inner.items():
        found[f"{Path(code.co_filename).stem}.{code.co_qualname}"] += below.steps
        by_function(below, found)
    return found


async def main(name: str = "turn", least: str = "100") -> None:
    """Prints the tree, and the functions that take most."""
    with tempfile.TemporaryDirectory() as folder:
        work = work_of(name, folder)
        for _ in range(20):  # caches are filled, adaptive bytecodes have adapted
            await work()
        root = await counted(work)
    print(f"{name}: {root.total} bytecodes, {root.all_calls} calls; all of a branch, the function itself\n")
    for code, node in sorted(root.inner.items(), key=lambda item: -item[1].total):
        show(code, node, int(least), 0)
    print("\nthe functions themselves\n")
    for where, steps in by_function(root, Counter()).most_common(40):
        print(f"{steps:7d}  {where}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
