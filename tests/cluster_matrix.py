"""Workers killed, frozen and replaced, and the database restarted, at random moments of many runs with tools.

    python tests/cluster_matrix.py --engine dbos --runs 200 --seed 1

What must hold: each run's history is contiguous and its chain intact, no effect happened twice, every run has its end,
and every follower on both nodes saw one gap-free order to that end.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from cluster_process import LEASE_S
from clusterkit import Deployment, Seen, Worker, patiently, spec
from pilothouse.clock import SystemClock
from pilothouse.events import Completed
from pilothouse.runs.controller import RunController
from postgres_server import PostgresServer


class Trouble(StrEnum):
    """What happens to a deployment."""

    KILL = "kill"
    FREEZE = "freeze"
    STOP = "stop"
    DATABASE = "database"


WEIGHTS = {Trouble.DATABASE: 1}
"""How often each comes, beside the others' 4: while the database is away no worker can begin."""


@dataclass
class Report:
    """What came of it."""

    runs: int
    completed: int = 0
    takeovers: int = 0
    unknown_calls: int = 0
    troubles: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


async def matrix(
    place: Deployment,
    *,
    runs: int,
    seed: int,
    troubles: Sequence[Trouble],
    workers: int = 4,
    pause: tuple[float, float] = (0.5, 2.0),
) -> Report:
    """Runs a deployment through trouble until all its runs have their end."""
    rng = random.Random(seed)
    report = Report(runs)
    began = time.monotonic()
    await place.work(workers)
    nodes = [await place.web(), await place.web()]
    followers: list[Seen] = []
    names = [f"m{number}" for number in range(runs)]

    async def begin() -> None:
        for number, name in enumerate(names):
            said = "slow" if rng.random() < 0.5 else "go"
            node, asked = nodes[number % 2], spec(name, said)
            await patiently(partial(node.start, asked, until="accepted"))
            followers.extend(Seen(node, name) for node in nodes)

    starting = asyncio.ensure_future(begin())
    ends = [asyncio.ensure_future(_end(nodes[0], name, starting)) for name in names]
    all_over = asyncio.gather(starting, *ends)
    coming: set[asyncio.Task[object]] = set()
    while not all_over.done():
        await SystemClock().sleep(rng.uniform(*pause))
        (trouble,) = rng.choices(troubles, [WEIGHTS.get(each, 4) for each in troubles])
        if all_over.done() or (trouble is not Trouble.DATABASE and len(place.workers) < 2):
            continue  # somebody has to be left
        report.troubles[trouble] += 1
        if trouble is not Trouble.DATABASE:
            coming.add(asyncio.create_task(place.work()))
        await _make(place, trouble, rng)
    await asyncio.gather(*coming)
    await all_over
    for name, end in zip(names, ends, strict=True):
        await _judge(place, nodes[1], name, end.result(), report)
    effects = await place.effects()
    report.problems += [f"{name}: the tool ran {count} times" for name, count in effects.items() if count > 1]
    for follower in followers:
        await follower.task
        last = (await nodes[0].inspect(follower.run_id)).last_seq
        if follower.facts != list(range(1, last + 1)):
            report.problems.append(f"{follower.run_id}: a follower saw {follower.facts}, not 1 … {last}")
    report.seconds = time.monotonic() - began
    return report


async def _end(node: RunController, name: str, starting: asyncio.Future[None]) -> object:
    while not await patiently(partial(node.has_run, name)):
        await asyncio.wait((starting,), timeout=0.05)
    waiting = partial(node.wait_for_terminal, name, timeout=600, through_unknown=True)
    return (await patiently(waiting)).outcome


async def _make(place: Deployment, trouble: Trouble, rng: random.Random) -> None:
    """One trouble."""
    if trouble is Trouble.DATABASE:
        await asyncio.to_thread(place.server.stop, hard=True)
        await SystemClock().sleep(rng.uniform(0.0, 2 * LEASE_S))  # now and then longer than a lease
        await asyncio.to_thread(place.server.start)
        return
    victim: Worker = place.workers.pop(rng.randrange(len(place.workers)))
    try:
        if trouble is Trouble.STOP:
            victim.send(signal.SIGTERM)
            await victim.gone()
        elif trouble is Trouble.FREEZE:
            victim.send(signal.SIGSTOP)
            await SystemClock().sleep(LEASE_S * 1.5)
            victim.send(signal.SIGCONT)
            await SystemClock().sleep(0.5)  # it wakes, and finds out
    finally:
        victim.end()


async def _judge(place: Deployment, node: RunController, name: str, outcome: object, report: Report) -> None:
    report.completed += outcome == Completed()
    if outcome != Completed():
        report.problems.append(f"{name}: ended as {outcome}")
    records = await node.events(name)
    if [record.seq for record in records] != list(range(1, len(records) + 1)):
        report.problems.append(f"{name}: its history has a gap")
    report.problems += [f"{name}: {problem}" for problem in (await node.journal.verify(name)).problems]
    kinds = Counter(record.fact.kind for record in records)
    report.takeovers += kinds["continuity_restored"]
    report.unknown_calls += sum(
        getattr(record.fact, "state", "") == "unknown"
        for record in records
        if record.fact.kind == "call_finished"
    )


async def main(engine: str, runs: int, seed: int, troubles: Sequence[Trouble]) -> int:
    """The whole matrix over a database of its own."""
    server = PostgresServer()
    try:
        async with Deployment(engine, server) as place:
            report = await matrix(place, runs=runs, seed=seed, troubles=troubles)
    finally:
        server.remove()
    sys.stdout.write(
        f"{engine}, seed {seed}: {report.completed} of {report.runs} runs completed in {report.seconds:.0f} s through"
        f" {dict(report.troubles)}; {report.takeovers} takeovers, {report.unknown_calls} calls unknown;"
        f" {len(report.problems)} problems\n"
    )
    for problem in report.problems:
        sys.stdout.write(f"  {problem}\n")
    return bool(report.problems)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=("dbos", "temporal"), default="dbos")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--troubles", nargs="+", type=Trouble, default=list(Trouble))
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.engine, given.runs, given.seed, given.troubles)))
