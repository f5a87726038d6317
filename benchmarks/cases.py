"""One row of `docs/performance.md` each: our figure, the floor's, and the ratio between them."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from pilothouse import SQLiteJournal
from pilothouse.testing.meter import Meter

from . import floor, ours


class Row(NamedTuple):
    """A measured row; `budget` is the project's, in the same unit, None where there is none."""

    name: str
    unit: str
    ours: float
    floor: float
    budget: float | None


async def per_call(
    call: Callable[[], Awaitable[object]],
    count: int,
    rounds: int = 5,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Microseconds of one call: the best of several rounds, since anything else on the machine only adds.

    Of processor time, where nothing is waited for: on a machine with other work that is what the work itself takes.
    """
    for _ in range(max(count // 10, 5)):
        await call()
    best = float("inf")
    for _ in range(rounds):
        gc.collect()
        begin = clock()
        for _ in range(count):
            await call()
        best = min(best, (clock() - begin) / count)
    return best * 1e6


def fresh(code: str) -> list[float]:
    """What a fresh interpreter prints, the best of several; its modules are compiled, as an installation leaves them."""
    with tempfile.TemporaryDirectory() as compiled:
        env = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": compiled}
        rows = [
            json.loads(
                subprocess.run(
                    [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
                ).stdout
            )
            for _ in range(8)
        ]
    return [min(column) for column in zip(*rows, strict=True)]


_TIMED = """
import json, time
begin = time.process_time()
{}
took = (time.process_time() - begin) * 1e3
rss = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS:")) / 1024
print(json.dumps([took, rss]))
"""

_FIRST_TURN = """import asyncio
from pilothouse import AgentController
async def model(messages):
    yield "ok"
async def main():
    agent = AgentController(model)
    assert (await (await agent.send("hi")).result()).text == "ok"
asyncio.run(main())"""

_FIRST_TURN_FLOOR = """import asyncio
async def model(messages):
    yield "ok"
async def main():
    return [piece async for piece in model([])]
asyncio.run(main())"""


async def importing() -> list[Row]:
    """`import pilothouse`, and from the import to the end of the first turn."""
    mine, base = fresh(_TIMED.format("import pilothouse")), fresh(_TIMED.format("import asyncio"))
    first, first_base = fresh(_TIMED.format(_FIRST_TURN)), fresh(_TIMED.format(_FIRST_TURN_FLOOR))
    return [
        Row("import", "ms", mine[0], base[0], 75),
        Row("import, resident", "MB", mine[1], base[1], 25),
        Row("import to the end of the first turn", "ms", first[0], first_base[0], 90),
    ]


async def turn() -> list[Row]:
    """A turn without tools."""
    fake = ours.Fake()
    base = await per_call(floor.turn, 2000)
    runs = ours.Runs(fake)
    return [
        Row("a turn without tools, a run", "µs", await per_call(runs.turn, 300), base, 40),
        Row("a turn without tools, a send", "µs", await per_call(lambda: ours.send(fake), 200), base, 70),
    ]


async def tool_call() -> list[Row]:
    """A supervised async call: what ten of them add to a run, and whether that grows with the history."""
    fake = ours.Fake()
    runs = ours.Runs(fake, tools=True)
    cost = {n: await per_call(lambda n=n: runs.turn(n), 60) for n in (0, 10, 60)}
    base = {n: await per_call(lambda n=n: floor.turn(n), 400) for n in (0, 10)}
    each = (cost[10] - cost[0]) / 10
    late = (cost[60] - cost[10]) / 50
    return [
        Row("a tool call", "µs", each, (base[10] - base[0]) / 10, 40),
        Row("a tool call, the 11th to 60th", "µs", late, (base[10] - base[0]) / 10, 40),
    ]


async def delta() -> list[Row]:
    """A streamed delta: to a follower of the run (the model gives way before each), and to a callback.

    The floor of the first is a task that waits for each delta of another one: it has to be woken for each.
    """
    fake, count = ours.Fake(), 10_000
    fake.deltas, fake.pause = count, True
    runs = ours.Runs(fake)
    base = await per_call(lambda: floor.stream(count, pause=True), 1, 5) / count
    follower = await per_call(runs.stream, 1, 5) / count
    woken = await per_call(lambda: floor.woken(count), 1, 5) / count
    fake.pause = False
    plain = await per_call(lambda: floor.stream(count), 1, 5) / count
    callback = await per_call(lambda: ours.stream_to_callback(fake, count), 1, 5) / count
    return [
        Row(
            "a delta to one follower, beyond the model's own pause", "µs", follower - base, woken - base, 1.0
        ),
        Row("a delta to one callback of a conversation", "µs", callback, plain, 1.5),
    ]


async def concurrent() -> list[Row]:
    """1,000 runs of 200 deltas at once."""
    fake = ours.Fake()
    fake.deltas, fake.pause = 200, True
    begin = time.process_time()
    await asyncio.gather(*[floor.stream(200, pause=True) for _ in range(1000)])
    base = time.process_time() - begin
    runs = ours.Runs(fake)
    gc.collect()
    begin = time.process_time()
    seen = await asyncio.gather(*[runs.stream() for _ in range(1000)])
    took = time.process_time() - begin
    assert sum(seen) == 200_000, sum(seen)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        Row("1,000 runs × 200 deltas at once", "s", took, base, 1.2),
        Row("… peak of the process", "MB", peak, 28, 50),
    ]


async def memory() -> list[Row]:
    """A conversation of 20 messages of 200 characters, loaded."""
    from pilothouse import AgentController
    from pilothouse.messages import Message, Text

    def rss() -> float:
        gc.collect()
        text = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS:"))

    def text_of(i: int, j: int) -> str:
        head = f"session {i} message {j}: "
        return head + "x" * (200 - len(head))

    fake, count = ours.Fake(), 1000
    keep: list[object] = []
    before = rss()
    for i in range(count):
        agent = AgentController(fake)
        agent.set_messages(
            [
                Message(f"{i}.{j}", "user" if j % 2 == 0 else "assistant", (Text(text_of(i, j)),))
                for j in range(20)
            ]
        )
        keep.append(agent)
    mine = (rss() - before) / count
    before = rss()
    keep += [
        [{"role": "user" if j % 2 == 0 else "assistant", "content": text_of(i, j)} for j in range(20)]
        for i in range(count)
    ]
    return [Row("a conversation of 20 messages, loaded", "kB", mine, (rss() - before) / count, 8)]


async def durable() -> list[Row]:
    """A turn that is on disk when it ends."""
    rows = []
    for mode, budget in (("normal", 120), ("full", 600)):
        with tempfile.TemporaryDirectory() as folder:
            base = floor.Durable(f"{folder}/floor.db", mode.upper())
            count = iter(range(1_000_000))
            cost = await per_call(
                lambda base=base, count=count: base.turn(next(count)), 200, 3, time.perf_counter
            )
            base.close()
            async with SQLiteJournal(f"{folder}/ours.db", durability=mode) as journal:
                runs = ours.Runs(ours.Fake(), journal)
                mine = await per_call(runs.turn, 100, 3, time.perf_counter)
                rows.append(Row(f"a durable turn, {mode}", "µs", mine, cost, budget))
                if mode == "full":
                    begin = time.perf_counter()
                    for _ in range(5):
                        await asyncio.gather(*[runs.turn() for _ in range(100)])
                    each = (time.perf_counter() - begin) / 500 * 1e6
                    rows.append(Row("a durable turn, full, 100 runs at once", "µs", each, cost, 100))
                await runs.controller.aclose()
    return rows


async def counts() -> list[Row]:
    """Tasks and passes of the event loop: they do not depend on the machine."""
    fake = ours.Fake()
    runs, tooled = ours.Runs(fake), ours.Runs(fake, tools=True)
    await runs.turn()
    await tooled.turn(1)
    found = {}
    for name, call in (("turn", runs.turn), ("none", tooled.turn), ("calls", lambda: tooled.turn(10))):
        async with Meter() as meter:
            await call()
        found[name] = (meter.tasks, meter.passes)
    tasks = (found["calls"][0] - found["none"][0]) / 10
    passes = (found["calls"][1] - found["none"][1]) / 10
    return [
        Row("tasks a turn", "", found["turn"][0], 0, 1),
        Row("loop passes a turn", "", found["turn"][1], 0, 3),
        Row("tasks a call", "", tasks, 0, 1),
        Row("loop passes a call", "", passes, 0, 6),
    ]


async def decoding() -> list[Row]:
    """A chunk of a Chat Completions stream, beside `json.loads` of its data."""
    from pilothouse.providers.openai_chat import CompatProfile, OpenAIChatDecoder

    chunk = {
        "id": "c",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": " tok"}}],
    }
    text = json.dumps(chunk)
    body = f"data: {text}\n\n".encode() * 1000

    async def mine() -> None:
        decoder = OpenAIChatDecoder(CompatProfile())
        for at in range(0, len(body), 4096):
            decoder.feed(body[at : at + 4096])

    async def base() -> None:
        for _ in range(1000):
            json.loads(text)

    return [Row("decoding a chunk", "µs", await per_call(mine, 5) / 1000, await per_call(base, 5) / 1000, 5)]


async def serving() -> list[Row]:
    """Runs on HTTP."""
    from . import serving as http

    sse, base = await http.sse_us(10_000)
    each = await http.fan_out(1000, 100)
    return [
        Row("a delta to the bytes of one stream, beyond the model's own pause", "µs", sse, base, 1.6),
        Row("a delta to each of 1,000 streams of one run", "µs", each, 0, None),
    ]


async def late() -> list[Row]:
    """How late a delta reaches its readers, over sockets."""
    from . import late as sockets

    rows = []
    for load, what, budget in (
        (sockets.APART, "200 runs of 20 deltas a second", 5),
        (sockets.CROWD, "one run of 20 deltas a second to 1,000 readers", None),
    ):
        base, mine = sockets.measure("serve_floor", load), sockets.measure("serve", load)
        rows += [
            Row(f"{what}: late at the reader, median", "ms", mine.at(0.5), base.at(0.5), None),
            Row("… 99 of 100", "ms", mine.at(0.99), base.at(0.99), budget),
            Row("… processor time of the server, a delta and reader", "µs", mine.cpu_us, base.cpu_us, None),
            Row("… the first run, from its first delta to its last", "s", mine.run_s, base.run_s, 8.1),
            Row("… taken away from this machine by its host", "%", mine.stolen, base.stolen, None),
        ]
    return rows


async def journals() -> list[Row]:
    """Journals alone."""
    from . import journals as alone

    return await alone.journals()


async def crowds() -> list[Row]:
    """Many readers, many runs that wait."""
    from . import crowds as many

    return await many.crowds()


CASES = {
    case.__name__: case
    for case in (
        importing,
        turn,
        tool_call,
        delta,
        concurrent,
        memory,
        durable,
        journals,
        crowds,
        counts,
        decoding,
        serving,
        late,
    )
}


def run_apart(name: str) -> list[Row]:
    """A case in a process of its own, so that its memory and caches do not colour the next."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--case", name],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr}")
    return [Row(*row) for row in json.loads(done.stdout)]
