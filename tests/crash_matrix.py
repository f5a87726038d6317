"""Kills a real process before and after every journal write of randomized runs, and looks at what is left.

    python tests/crash_matrix.py --store sqlite --cuts 500 --seed 1

One scenario is a run with turns, parallel calls of every effect class, an approval, a steer, sometimes a cancel. It is
run once uncut to count its writes; then, for each write and each side of its commit, in a process of its own that kills
itself there (SIGKILL). A second process looks without touching, a third recovers and ends the run, and sends the next
message; now and then that one is killed too. What must hold is in `judge` (run-controller §3.15).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from pilothouse.contracts import Journal
from pilothouse.events import CallFinished, CallStarted, MessageAdded, RequestOpened, RunEnded
from pilothouse.journal import SQLiteJournal
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.tools import tool
from pilothouse.messages import Message, Model, Text
from pilothouse.records import Parent, Record, RunQuery, RunSpec
from pilothouse.responses import (
    ModelRequest,
    ProviderEvent,
    ResponseStarted,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
)
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunTiming
from pilothouse.testing import FaultyJournal
from pilothouse.testing.faults import Call

CUT_AT: tuple[Call, ...] = ("create", "append", "claim", "put_blob")
LIFE_S = 40.0
TOOLS = ("look", "put", "charge", "pay")


class Scenario(NamedTuple):
    """What a run is to do; made of a seed alone, so that every process knows it."""

    turns: tuple[tuple[str, ...], ...]
    steer: bool
    cancel_after: int

    @classmethod
    def of(cls, seed: int) -> Scenario:
        rng = random.Random(seed)
        turns = tuple(tuple(rng.choices(TOOLS, k=rng.randint(0, 3))) for _ in range(rng.randint(1, 3)))
        return cls(
            tuple(turn for turn in turns if turn),
            rng.random() < 0.5,
            rng.choice([0, 0, 0, rng.randint(2, 12)]),
        )


class Planned:
    """A model that says what the scenario wants at this point of the conversation, and judges each request."""

    tag = "planned"
    default_model = Model("planned", "planned", 200_000, 8_192)

    def __init__(self, scenario: Scenario, say: Callable[..., None]) -> None:
        self._scenario = scenario
        self._say = say

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        if wrong := unpaired(request.messages):
            self._say("bad_request", wrong)
        yield ResponseStarted()
        spoken = sum(message.role == "assistant" and bool(message.tool_calls) for message in request.messages)
        first = request.messages[0].id
        turns = self._scenario.turns if first == "in" and not self._ended(request) else ()
        yield TextDelta(0, f"turn {spoken} ")
        await asyncio.sleep(0.002)  # long enough for a partial to be saved
        yield TextDelta(0, "of the plan")
        if spoken < len(turns):
            for number, name in enumerate(turns[spoken]):
                call_id = f"call-{spoken}-{number}-{name}"
                yield ToolCallDelta(1 + number, call_id, name, json.dumps({"text": call_id}), call_id)
            yield StreamEnd("tool_calls")
        else:
            yield StreamEnd("complete")

    @staticmethod
    def _ended(request: ModelRequest) -> bool:
        return any(message.id == "next" for message in request.messages)

    async def aclose(self) -> None:
        pass


def unpaired(messages: Any) -> str:
    """Why a strict provider would refuse a conversation: each call has exactly one result, right behind it."""
    open_calls: list[str] = []
    for number, message in enumerate(messages):
        if message.role == "tool":
            if message.call_id not in open_calls:
                return f"{number}: result of no open call {message.call_id}"
            open_calls.remove(message.call_id)
        elif open_calls:
            return f"{number}: no result of {open_calls}"
        open_calls += [call.call_id for call in message.tool_calls]
    return f"end: no result of {open_calls}" if open_calls else ""


def tools_of(effects: Path) -> list[Any]:
    """Tools that write down, synced, that they were entered."""

    def enter(text: str) -> str:
        with effects.open("a") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        return f"done {text}"

    @tool(effect="read")
    async def look(text: str) -> str:
        """Look."""
        return enter(text)

    @tool(effect="idempotent")
    async def put(text: str) -> str:
        """Put."""
        return enter(text)

    @tool
    async def charge(text: str) -> str:
        """Charge."""
        return enter(text)

    @tool(approval=True)
    async def pay(text: str) -> str:
        """Pay, if a person allows it. Its result is large: it becomes an artifact."""
        return enter(text) + "x" * 40_000

    return [look, put, charge, pay]


# Lives of one run, each in a process of its own


async def live(journal: Journal, scenario: Scenario, effects: Path, say: Callable[..., None]) -> None:
    """Starts or recovers the run, answers it, ends it, and sends the next message."""
    loop = AgentLoop(Planned(scenario, say), tools=tools_of(effects))
    timing = RunTiming(partial_interval=0.001)
    async with RunController(loop, journal=journal, auto_recover="on_open", timing=timing) as controller:
        run = controller.run("run")
        if not await controller.has_run("run"):
            message = Message("in", "user", (Text("go"),))
            run = await controller.start(RunSpec("run", "thread", (message,)), until="accepted")
        view = await run.inspect()
        if view.status == "unknown" or view.ownership in ("parked", "orphaned"):
            await run.recover()  # at rest too: an answer may have been received and not delivered
        if scenario.steer:
            await run.steer(Message("more", "user", (Text("and more"),)), id="steer")
        async with asyncio.timeout(LIFE_S):
            await _see_through(controller, scenario, say)
        say("ended", (await run.wait(timeout=LIFE_S)).view.status)
        keep = (await controller.history("run"))[-1].message.id
        spec = RunSpec(
            "next-run", "thread", (Message("next", "user", (Text("next"),)),), parent=Parent("run", keep)
        )
        after = await controller.start(spec)
        if (await after.inspect()).status == "unknown":
            await after.recover()
        say("next", (await after.wait(timeout=LIFE_S)).view.status)


async def _see_through(controller: RunController, scenario: Scenario, say: Callable[..., None]) -> None:
    """Reads the run to its end; says what it saw, answers what it is asked, stops it where the scenario wants that."""
    async for item in controller.stream("run", deltas=False, through_unknown=True):
        if not isinstance(item, Record):
            continue
        say("saw", item.seq, item.digest)
        fact = item.fact
        if isinstance(fact, RequestOpened):
            ack = await controller.run("run").approve(fact.request.id, id=f"allow-{fact.request.id}")
            say("ack", fact.request.id, ack.state, ack.code)
        if scenario.cancel_after and item.seq == scenario.cancel_after:
            await controller.cancel("run", "enough")


async def look_on(journal: Journal, say: Callable[..., None]) -> None:
    """Reads without owning: what nobody can know is said to be unknown, and nothing is written."""
    before = journal.stats()
    async with RunController(AgentLoop(Planned(Scenario((), False, 0), say)), journal=journal) as controller:
        if await controller.has_run("run"):
            view = await controller.inspect("run")
            say("looked", view.status, view.ownership, view.state)
    if journal.stats().facts != before.facts:
        say("wrote")


def apart(doing: Callable[[Callable[..., None]], Awaitable[None]]) -> tuple[bool, list[list[Any]]]:
    """Runs something in a forked process; whether it was killed, and what it said until then."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)

        def say(*words: Any) -> None:
            os.write(writing, json.dumps(words).encode() + b"\n")

        status = 1
        try:
            asyncio.run(_awaited(doing(say)))
            status = 0
        except BaseException as error:
            say("failed", f"{type(error).__name__}: {error}")
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status), [json.loads(line) for line in lines if line.endswith(b"]")]


async def _awaited(doing: Awaitable[None]) -> None:
    await doing


class Stores:
    """Fresh stores, one a cut."""

    def __init__(self, kind: str, folder: Path, dsn: str) -> None:
        self._kind = kind
        self._folder = folder
        self._dsn = dsn
        self._number = 0

    def fresh(self) -> Callable[[], Journal]:
        self._number += 1
        if self._kind == "sqlite":
            path = self._folder / f"{self._number}.db"
            return lambda: SQLiteJournal(path)
        from pilothouse.journal import PostgresJournal

        schema = f"cut_{os.getpid()}_{self._number}"
        return lambda: PostgresJournal(self._dsn, schema=schema, pool_size=3)


class Matrix:
    """The whole of it; `problems` must stay empty."""

    def __init__(self, stores: Stores, folder: Path, seed: int) -> None:
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self._stores = stores
        self._folder = folder
        self._rng = random.Random(seed)

    def scenario(self, seed: int, *, cuts: int) -> None:
        """All cuts of one scenario, at most so many."""
        scenario = Scenario.of(seed)
        writes = self._uncut(seed, scenario)
        places = [(at, when) for at in range(1, writes + 1) for when in ("before", "after")]
        if len(places) > cuts:
            places = self._rng.sample(places, cuts)
        for at, when in places:
            self._cut(seed, scenario, at, when)
        self.counts["scenarios"] += 1

    def _uncut(self, seed: int, scenario: Scenario) -> int:
        opened = self._stores.fresh()
        effects = self._folder / "effects"
        effects.write_text("")

        async def whole(say: Callable[..., None]) -> None:
            journal = FaultyJournal(opened())
            await live(journal, scenario, effects, say)
            say("writes", sum(call in CUT_AT for call, _ in journal.calls))
            await journal.aclose()

        _, said = apart(whole)
        name = f"seed {seed} uncut"
        self._judge(name, opened, scenario, effects, said, [])
        return next((words[1] for words in said if words[0] == "writes"), 0)

    def _cut(self, seed: int, scenario: Scenario, at: int, when: str) -> None:
        name = f"seed {seed}, write {at}, {when}"
        opened = self._stores.fresh()
        effects = self._folder / "effects"
        effects.write_text("")

        def life(kill_at: int) -> Callable[[Callable[..., None]], Awaitable[None]]:
            async def doing(say: Callable[..., None]) -> None:
                journal = FaultyJournal(opened())
                if kill_at:
                    journal.kill(kill_at, when=when, on=CUT_AT)  # type: ignore[arg-type]
                await live(journal, scenario, effects, say)
                await journal.aclose()

            return doing

        async def looking(say: Callable[..., None]) -> None:
            journal = opened()
            await look_on(journal, say)
            await journal.aclose()

        killed, seen = apart(life(at))
        if not killed:
            self.counts["not reached"] += 1  # timing made fewer writes than in the uncut run
        else:
            self.counts["cuts"] += 1
        _, looked = apart(looking)
        self._judge_look(name, seen, looked)
        if killed and self._rng.random() < 0.25:
            again, more = apart(life(self._rng.randint(1, 6)))
            self.counts["cuts"] += again
            seen += more
        _, said = apart(life(0))
        self._judge(name, opened, scenario, effects, said, seen)

    def _judge_look(self, name: str, seen: list[list[Any]], looked: list[list[Any]]) -> None:
        """RC-50: nobody drives it, so it is ended, waiting at rest, or unknown."""
        for what, *words in looked:
            if what in ("wrote", "failed"):
                self.problems.append(f"{name}: looking on {what} {words}")
            elif what == "looked":
                self.counts[f"found {words[0]}"] += 1
                if words[0] in ("accepted", "running", "stopping") or words[1] == "elsewhere":
                    self.problems.append(f"{name}: found {words} though its process is dead")
        if not any(what == "looked" for what, *_ in looked) and any(what == "saw" for what, *_ in seen):
            self.problems.append(f"{name}: the run is gone")

    def _judge(
        self,
        name: str,
        opened: Callable[[], Journal],
        scenario: Scenario,
        effects: Path,
        said: list[list[Any]],
        seen: list[list[Any]],
    ) -> None:
        async def judging(say: Callable[..., None]) -> None:
            journal = opened()
            for problem in await judge(journal, scenario, effects.read_text().split(), said, [*seen, *said]):
                say(problem)
            await journal.aclose()

        _, found = apart(judging)
        for words in found:
            self.problems.append(f"{name}: {' '.join(map(str, words))}")


async def judge(
    journal: Journal, scenario: Scenario, effects: list[str], said: list[list[Any]], seen: list[list[Any]]
) -> list[str]:
    """What must hold once a run was cut, recovered and ended."""
    problems = [f"{what}: {words}" for what, *words in seen if what in ("failed", "bad_request")]
    if problems:
        problems += [f"{what}: {words}" for what, *words in seen if what == "ack"]
    problems += (await journal.verify()).problems
    ends = {words[0]: words[1] for words in said if words[0] in ("ended", "next")}
    allowed = {"completed", "cancelled"} if scenario.cancel_after else {"completed"}
    if ends.get("ended") not in allowed:
        problems.append(f"the run did not end well: {ends}")
    if ends.get("next") != "completed":
        problems.append(f"the next message did not work: {ends}")
    records: list[Record] = []
    while len(records) < (head.head.seq if (head := await journal.head("run")) else 0):
        records += (await journal.read("run", after=len(records))).records
    stored = {record.seq: record.digest for record in records}
    lost = [words[1] for words in seen if words[0] == "saw" and stored.get(words[1]) != words[2]]
    if lost:
        problems.append(f"facts that a reader saw are not there: {lost}")
    proposed = [
        call.call_id
        for record in records
        if isinstance(record.fact, MessageAdded)
        for call in record.fact.message.tool_calls
    ]
    finished = {
        record.fact.call_id: record.fact for record in records if isinstance(record.fact, CallFinished)
    }
    ended = Counter(record.fact.call_id for record in records if isinstance(record.fact, CallFinished))
    started = Counter(record.fact.call_id for record in records if isinstance(record.fact, CallStarted))
    if sorted(proposed) != sorted(ended.elements()):
        problems.append(f"calls {proposed} have results {dict(ended)}")
    entered = Counter(effects)
    for call_id, fact in finished.items():
        once = call_id.endswith(("charge", "pay"))
        if once and entered[call_id] > 1:
            problems.append(f"{call_id} was entered {entered[call_id]} times")
        if entered[call_id] and not started[call_id]:
            problems.append(f"{call_id} was entered and never recorded as started")
        if fact.outcome == "succeeded" and not entered[call_id]:
            problems.append(f"{call_id} succeeded and was never entered")
        if once and entered[call_id] and fact.outcome not in ("succeeded", "unknown"):
            problems.append(f"{call_id} was entered and is {fact.outcome}")
    if sum(isinstance(record.fact, RunEnded) for record in records) != 1:
        problems.append("the run has not exactly one end")
    runs = [entry.run_id for entry in (await journal.list(RunQuery())).items]
    if sorted(runs) != ["next-run", "run"]:
        problems.append(f"runs are {runs}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--cuts", type=int, default=500, help="stop after so many")
    parser.add_argument("--per-run", type=int, default=10**6, help="cuts of one scenario at most")
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int(time.time())
    dsn = ""
    if options.store == "postgres":
        from postgres_server import shared_dsn

        dsn = shared_dsn()
    folder = Path(tempfile.mkdtemp(prefix="pilothouse-cuts-"))
    began = time.monotonic()
    try:
        tools_of(folder / "effects")  # imports what every process needs, once
        matrix = Matrix(Stores(options.store, folder, dsn), folder, seed)
        number = 0
        while matrix.counts["cuts"] < options.cuts:
            left = options.cuts - matrix.counts["cuts"]
            matrix.scenario(seed * 1000 + number, cuts=min(left, options.per_run))
            number += 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    counts = ", ".join(f"{count} {what}" for what, count in sorted(matrix.counts.items()))
    sys.stdout.write(f"{options.store}, seed {seed}: {counts}; {time.monotonic() - began:.0f} s\n")
    for problem in matrix.problems:
        sys.stdout.write(f"{problem}\n")
    sys.exit(bool(matrix.problems))


if __name__ == "__main__":
    main()
