"""Measures a deployment on one Postgres, and checks a small model of it at a second point.

    python -m benchmarks.scale                 # everything, about five minutes
    python -m benchmarks.scale appends wakes   # some of it
    python -m benchmarks.scale --dsn postgresql://…   # on that server, instead of one that is started here

CPU is counted for the server's processes (where it is started here), workers and web nodes apart: what one machine
cannot show, it can still count. The model is linear: so many CPU seconds of each kind a delta, and so many at rest. It is
fitted at the first point and asked for the second.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).parents[2]
SECONDS = 8.0


class Role:
    """A process of the deployment."""

    def __init__(self, *args: object) -> None:
        command = [sys.executable, "-m", "benchmarks.scale.role", *map(str, args)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        self.said = self.found()

    def go(self, said: str = "") -> None:
        """Lets it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{said}\n")
        self._process.stdin.flush()

    def found(self) -> dict[str, Any]:
        """What it says next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a role ended with {self._process.wait()}")
        return json.loads(line)  # type: ignore[no-any-return]

    def end(self) -> None:
        """Ends it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


class Place(NamedTuple):
    """The database."""

    dsn: str
    server: int | None

    def schema(self) -> str:
        """A fresh one."""
        return f"s{uuid.uuid4().hex[:10]}"

    def cpu(self) -> float:
        """CPU seconds of the server so far."""
        if self.server is None:
            return 0.0
        parent = psutil.Process(self.server)
        gone = parent.cpu_times()  # of connections that were closed
        living = sum(_cpu(process) for process in (parent, *parent.children(recursive=True)))
        return living + gone.children_user + gone.children_system  # type: ignore[no-any-return]


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
        return times.user + times.system  # type: ignore[no-any-return]
    except psutil.Error:
        return 0.0


def _cpu_of(roles: Iterable[Role]) -> float:
    return sum(_cpu(psutil.Process(role.pid)) for role in roles)


def line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def appends(place: Place) -> None:
    """Closed loop: each run appends one small fact after another, synced."""
    line("appends: processes × runs, one small fact each, durable")
    for processes, runs in ((1, 1), (1, 16), (1, 64), (2, 64), (4, 64)):
        found = _append(place, processes, runs)
        line(
            f"  {processes} × {runs:3}: {found['rate']:7.0f} appends/s, {found['per_commit']:5.1f} a commit, p50"
            f" {found['p50']:.1f} ms, p99 {found['p99']:.1f} ms, {found['server']:.0f} µs of the server's CPU each"
        )


def _append(place: Place, processes: int, runs: int) -> dict[str, float]:
    schema = place.schema()
    roles = [Role("append", place.dsn, schema, runs, SECONDS) for _ in range(processes)]
    before = place.cpu()
    for role in roles:
        role.go()
    found = [role.found() for role in roles]
    used = place.cpu() - before
    for role in roles:
        role.end()
    total = sum(item["appends"] for item in found)
    return {
        "rate": total / SECONDS,
        "per_commit": sum(item["per_commit"] for item in found) / processes,
        "p50": max(item["p50"] for item in found),
        "p99": max(item["p99"] for item in found),
        "server": 1e6 * used / max(total, 1),
    }


def wakes(place: Place) -> None:
    """What it costs 64 writing runs that another process waits for each of them: turn about, best of three."""
    best: dict[bool, float] = {}
    for watched in (False, True) * 3:
        schema = place.schema()
        writer = Role("append", place.dsn, schema, 64, SECONDS / 2)
        watcher = Role("watch", place.dsn, schema, SECONDS / 2)
        if watched:
            watcher.go(json.dumps(writer.said["runs"]))
        writer.go()
        best[watched] = max(best.get(watched, 0.0), writer.found()["appends"] / (SECONDS / 2))
        for role in (writer, watcher):
            role.end()
    share = 1 - best[True] / best[False]
    line(
        f"wake-ups: {best[False]:.0f} appends/s unwatched, {best[True]:.0f} watched by another process: {share:.1%} less"
    )


class Load(NamedTuple):
    """What a streaming deployment was seen to do."""

    deltas: float
    server: float
    workers: float
    web: float
    late: dict[str, float]
    start: dict[str, float]


def stream(
    place: Place, *, workers: int, nodes: int, runs: int, followers: int, rate: float, starting: int = 10
) -> Load:
    """Workers, web nodes, and so many runs on each node that tell `rate` deltas a second."""
    schema = place.schema()
    driving = [Role("worker", place.dsn, schema) for _ in range(workers)]
    asking = [
        Role("web", place.dsn, schema, f"n{number}", runs, followers, rate, SECONDS, starting)
        for number in range(nodes)
    ]
    before = place.cpu(), _cpu_of(driving), _cpu_of(asking)
    began = time.perf_counter()
    for role in asking:
        role.go()
    found = [role.found() for role in asking]
    seconds = time.perf_counter() - began
    used = place.cpu() - before[0], _cpu_of(driving) - before[1], _cpu_of(asking) - before[2]
    for role in (*driving, *asking):
        role.end()
    deltas = nodes * runs * rate * SECONDS
    worst = {key: max(item["late"][key] for item in found) for key in ("p50", "p99")}
    start = {key: max(item["start"][key] for item in found) for key in ("p50", "p99")}
    return Load(deltas / seconds, used[0] / seconds, used[1] / seconds, used[2] / seconds, worst, start)


def deltas(place: Place) -> None:
    """40 readers at another node, 25 deltas a second: the hub reads once for all."""
    found = stream(place, workers=1, nodes=1, runs=1, followers=40, rate=25)
    line(
        f"deltas to another node, 40 readers, 25/s: p50 {found.late['p50']:.1f} ms, p99 {found.late['p99']:.1f} ms"
    )


def starts(place: Place) -> None:
    """Enqueue to the first request of a model, one run after another."""
    found = stream(place, workers=2, nodes=1, runs=30, followers=1, rate=1, starting=1)
    line(
        f"enqueue to the first request of a model: p50 {found.start['p50']:.0f} ms, p99 {found.start['p99']:.0f} ms"
    )


def load(place: Place) -> None:
    """The model: CPU a delta at one point, asked for another, and at which load the server is full."""
    first, second = 30, 100
    points: dict[int, Load] = {}
    for runs in (5, first, second):
        found = points[runs] = stream(place, workers=3, nodes=2, runs=runs, followers=1, rate=5)
        line(
            f"2 nodes + 3 workers, {2 * runs} runs × 5 deltas/s: {found.deltas:.0f} deltas/s, CPU server"
            f" {found.server:.2f}, workers {found.workers:.2f}, nodes {found.web:.2f}; late p50"
            f" {found.late['p50']:.0f} ms, p99 {found.late['p99']:.0f} ms; started in p50 {found.start['p50']:.0f} ms"
        )
    kinds: dict[str, Callable[[Load], float]] = {
        "server": lambda point: point.server,
        "workers": lambda point: point.workers,
        "nodes": lambda point: point.web,
    }
    low, high, asked = points[5], points[first], points[second]
    for name, of in kinds.items():
        each = (of(high) - of(low)) / max(high.deltas - low.deltas, 1e-9)
        rest = of(low) - each * low.deltas
        predicted = rest + each * asked.deltas
        line(
            f"  {name}: {1e6 * each:.0f} µs a delta and {rest:.2f} at rest: predicts {predicted:.2f} at"
            f" {asked.deltas:.0f} deltas/s, measured {of(asked):.2f} ({of(asked) / predicted - 1:+.0%})"
        )


CASES: dict[str, Callable[[Place], None]] = {
    "appends": appends,
    "wakes": wakes,
    "deltas": deltas,
    "starts": starts,
    "load": load,
}


def main() -> None:
    """Runs the cases that are named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--dsn", default="")
    given = parser.parse_args()
    cases = given.cases or list(CASES)
    if unknown := [name for name in cases if name not in CASES]:
        parser.error(f"no case {unknown[0]}: there are {', '.join(CASES)}")
    if given.dsn:
        for name in cases:
            CASES[name](Place(given.dsn, None))
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from postgres_server import PostgresServer

    server = PostgresServer(synced=True)
    try:
        for name in cases:
            CASES[name](Place(server.dsn, server.pid))
    finally:
        server.remove()


if __name__ == "__main__":
    main()
