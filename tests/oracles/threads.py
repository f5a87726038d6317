"""Random trees of runs, and what their paths must be: a second opinion on RC-68 and RC-82 through `RunController`.

    python -m tests.oracles.threads --trees 2000

Each run follows a script: texts, calls that finish in any order, steering in between, text that breaks off, contexts
that are replaced, ends of all kinds. The oracle keeps for each run a plain list of what happened on it, in reading
order, and folds it anew for each question.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from dataclasses import dataclass, field
from typing import Any

from pilothouse.contracts import Journal, RunPort
from pilothouse.core.transcript import last_exchange
from pilothouse.events import (
    CallFinished,
    CallStarted,
    Completed,
    Failed,
    HistoryCompacted,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    RunEnded,
    TextTold,
    TurnEnded,
    TurnStarted,
)
from pilothouse.messages import Message, Text, ToolCall
from pilothouse.records import Descriptor, Parent, RunSpec, Start
from pilothouse.runs.controller import RunController

ENDS = ("completed", "completed", "failed", "broken", "cancelled", "lost", "lost in calls", "violation")


@dataclass
class Happened:
    """One thing on a run: a message (complete or not), or a replacement of the context."""

    message_id: str = ""
    complete: bool = True
    kept: tuple[str, ...] | None = None
    new: tuple[str, ...] = ()


@dataclass
class Model:
    """What a run's oracle knows of it."""

    run_id: str
    parent: str | None = None
    keep: str | None = None
    above: list[Happened] = field(default_factory=list)  # of the parent alone, when this run was registered
    base: list[str] = field(default_factory=list)
    happened: list[Happened] = field(default_factory=list)
    end: str = ""


class Tree:
    """All runs of a thread, and the paths that they must have."""

    def __init__(self) -> None:
        self.runs: dict[str, Model] = {}

    def front(self, run: Model) -> list[Happened]:
        """Everything on the path before a run's own input."""
        if run.parent is None:
            return [Happened(message_id) for message_id in run.base]
        whole = self.front(self.runs[run.parent]) + run.above
        end = next(index for index, item in enumerate(whole) if item.message_id == run.keep)
        while end + 1 < len(whole) and whole[end + 1].message_id.startswith("result:"):
            end += 1  # a call is kept with what it came to
        while end + 1 < len(whole) and whole[end + 1].kept is not None:
            end += 1  # a replacement right behind the last message is of just these messages
        return whole[: end + 1]

    def history(self, run: Model) -> list[tuple[str, bool]]:
        """Message ids and whether they are complete."""
        return [
            (item.message_id, item.complete) for item in self.front(run) + run.happened if item.kept is None
        ]

    def given(self, run: Model) -> list[str]:
        """The ids of what the runtime is given, its input not among them."""
        context: list[tuple[str, bool]] = []
        for item in self.front(run):
            if item.kept is None:
                context.append((item.message_id, item.complete))
            else:
                kept = [entry for entry in context if entry[0] in item.kept]
                context = [(name, True) for name in item.new] + kept
        return [name for name, complete in context if complete]


class Scripted:
    """A runtime that does what a random script says, and notes what of it must be on the path."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tree = Tree()
        self.given: dict[str, list[str]] = {}
        self.stop: dict[str, asyncio.Event] = {}
        self.resumed: dict[str, int] = {}  # the open turn of a run that was lost

    def describe(self) -> Descriptor:
        return Descriptor(
            "scripted", commands=("cancel",), cancel="confirmed", recovery="journal", thread_reuse="parallel"
        )

    async def run(self, start: Start, port: RunPort) -> None:
        model = self.tree.runs[start.spec.run_id]
        self.given[model.run_id] = [message.id for message in start.history]
        model.happened += [Happened(message.id) for message in start.spec.input]
        for turn in range(1, self.random.randint(1, 3) + 1):
            await port.record(TurnStarted(turn))
            if self.random.random() < 0.3:
                await self._compact(model, port)
            await self._answer(model, port, turn)
            await port.record(TurnEnded(turn))
            if self.random.random() < 0.2:
                await self._compact(model, port)
        await self._end(model, port, turn + 1)

    async def resume(self, start: Start, port: RunPort) -> None:
        model = self.tree.runs[start.spec.run_id]
        if model.end == "lost in calls":  # its results come late, and stand before what was there already
            late = f"{model.happened[-2].message_id}.c0"
            await port.record(CallFinished(late, "unknown", (Text("?"),), attempt=1))
            model.happened.insert(-1, Happened(f"result:{late}"))
            turn = 0
        else:
            turn = self.resumed.pop(model.run_id)
            await port.record(ModelAttemptEnded(turn, 1, "interrupted"))
        await port.record(
            MessageAdded(Message(name := self._name(model), "assistant", (Text("again"),)), turn)
        )
        model.happened.append(Happened(name))
        await port.record(RunEnded(Completed()))

    def _name(self, model: Model) -> str:
        return f"{model.run_id}.{len(model.happened)}"

    async def _answer(self, model: Model, port: RunPort, turn: int) -> None:
        name = self._name(model)
        calls = tuple(
            ToolCall(f"{name}.c{index}", "tool") for index in range(self.random.choice((0, 0, 1, 3)))
        )
        await port.record(ModelRequested(turn, 1, name))
        for piece in "some text":
            port.tell(TextTold(name, 0, piece))
        if self.random.random() < 0.2:  # asked again under another id: nothing of the first is on the path
            await port.record(
                ModelAttemptEnded(turn, 1, "discarded"), ModelRequested(turn, 2, name := name + "b")
            )
            ended = ModelAttemptEnded(turn, 2, "answered")
        else:
            ended = ModelAttemptEnded(turn, 1, "answered")
        await port.record(ended, MessageAdded(Message(name, "assistant", (Text("some text"), *calls)), turn))
        model.happened.append(Happened(name))
        model.happened += [Happened(f"result:{call.call_id}") for call in calls]
        for call in self.random.sample(calls, len(calls)):
            await port.record(CallStarted(call.call_id, 1, "tool", "digest"))
        for call in self.random.sample(calls, len(calls)):
            await port.record(CallFinished(call.call_id, "succeeded", (Text("ok"),), attempt=1))

    async def _compact(self, model: Model, port: RunPort) -> None:
        path = self.tree.front(model) + model.happened
        names = [item.message_id for item in path if item.complete and item.kept is None]
        names += [name for item in path for name in item.new]
        kept = tuple(name for name in names if self.random.random() < 0.4)
        new = tuple(f"{self._name(model)}.s{index}" for index in range(self.random.randint(0, 2)))
        await port.record(HistoryCompacted(kept, tuple(Message(name, "user") for name in new), "test"))
        model.happened.append(Happened(kept=kept, new=new))

    async def _end(self, model: Model, port: RunPort, turn: int) -> None:
        match model.end:
            case "completed":
                await port.record(RunEnded(Completed()))
                return
            case "failed":
                await port.record(RunEnded(Failed("provider")))
                return
        name = self._name(model)
        if model.end == "lost in calls":
            calls = (ToolCall(f"{name}.c0", "tool"), ToolCall(f"{name}.c1", "tool"))
            await port.record(MessageAdded(Message(name, "assistant", calls), turn))
            await port.record(*[CallStarted(call.call_id, 1, "tool", "digest") for call in calls])
            await port.record(CallFinished(f"{name}.c1", "succeeded", (Text("ok"),), attempt=1))
            model.happened += [Happened(name), Happened(f"result:{name}.c1")]
            return
        self.resumed[model.run_id] = turn
        await port.record(TurnStarted(turn), ModelRequested(turn, 1, name))
        port.tell(TextTold(name, 0, "some te"))
        model.happened.append(Happened(name, complete=False))
        match model.end:
            case "broken":
                await port.record(ModelAttemptEnded(turn, 1, "failed"), RunEnded(Failed("provider")))
            case "cancelled":
                self.stop[model.run_id].set()
                await port.scope.wait()
            case "violation":
                await port.record(TurnStarted(99))
            case _:
                pass  # it leaves, and nobody knows how it went on


async def grow(seed: int, runs: int = 8, journal: Journal | None = None) -> int:
    """Grows one tree and asks for every path, as it grows and at the end; returns how many paths were compared."""
    runtime, chance = Scripted(seed), random.Random(seed + 1)
    compared = 0
    async with RunController(runtime, journal=journal) as controller:
        for number in range(runs):
            spec, model = await _next(controller, runtime.tree, chance, number)
            runtime.tree.runs[spec.run_id] = model
            runtime.stop[spec.run_id] = asyncio.Event()
            run = await controller.start(spec, until="accepted")
            if model.end == "cancelled":
                await runtime.stop[spec.run_id].wait()
                await run.cancel("enough")
            await run.wait()
            await controller.join(spec.run_id)
            assert runtime.given[spec.run_id] == runtime.tree.given(model), (seed, spec.run_id)
            for lost in [known for known in runtime.tree.runs.values() if known.end.startswith("lost")]:
                if chance.random() < 0.3 and (await controller.inspect(lost.run_id)).state == "unknown":
                    await controller.recover(lost.run_id)  # its children keep what they had
                    await controller.wait_for_terminal(lost.run_id)
                    compared += 1
            for known in runtime.tree.runs.values():
                found = [
                    (entry.message.id, entry.complete) for entry in await controller.history(known.run_id)
                ]
                assert found == runtime.tree.history(known), (seed, known.run_id)
                compared += 1
    return compared


async def _next(
    controller: RunController, tree: Tree, chance: random.Random, number: int
) -> tuple[RunSpec, Model]:
    """A root with a base, or a child: the next send, an edit, a regeneration, a retry."""
    run_id = f"r{number}"
    said = (Message(f"{run_id}.said", "user", (Text("and?"),)),)
    model = Model(run_id, end=chance.choice(ENDS))
    if not tree.runs or chance.random() < 0.1:
        model.base = [f"{run_id}.b{index}" for index in range(chance.randint(0, 3))]
        base = tuple(
            Message(name, "user" if index % 2 == 0 else "assistant") for index, name in enumerate(model.base)
        )
        return RunSpec(run_id, "thread", said, base=base), model
    above = tree.runs[chance.choice(list(tree.runs))]
    path = await controller.history(above.run_id)
    kind = chance.choice(("send", "send", "edit", "regenerate", "retry"))
    keep: str | None = None
    if kind == "edit":
        keep = chance.choice(path).message.id
    elif kind == "regenerate":
        keep = chance.choice(
            [entry.message.id for entry in path if entry.message.role == "user" and entry.complete]
        )
    elif kind == "retry":
        keep = last_exchange(path)
        assert keep == _last_exchange(path)
    model.parent, model.keep = above.run_id, keep or path[-1].message.id
    model.above = list(above.happened)
    return RunSpec(
        run_id, "thread", said if kind in ("send", "edit") else (), parent=Parent(above.run_id, keep)
    ), model


def _last_exchange(path: Any) -> str | None:
    """RC-68, read backwards: the nearest user message, or result that completes its batch."""
    complete = [entry.message for entry in path if entry.complete]
    for index in range(len(complete) - 1, -1, -1):
        message = complete[index]
        if message.role == "user":
            return message.id
        if message.role == "tool":
            before = complete[: index + 1]
            asking = max(at for at, item in enumerate(before) if item.role == "assistant")
            answered = {item.call_id for item in before[asking:] if item.role == "tool"}
            if {call.call_id for call in before[asking].tool_calls} <= answered:
                return message.id
    return None


async def grow_many(trees: int, first_seed: int = 0) -> int:
    """Grows trees one after another; returns how many paths were compared."""
    return sum([await grow(seed) for seed in range(first_seed, first_seed + trees)])


def main() -> int:
    """Grows many trees and prints the counts."""
    parser = argparse.ArgumentParser(description="Random threads against an oracle of their paths.")
    parser.add_argument("--trees", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    compared = asyncio.run(grow_many(options.trees, options.seed))
    print(
        f"{options.trees} trees from seed {options.seed}: {compared} histories compared, all starts as they must be"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
