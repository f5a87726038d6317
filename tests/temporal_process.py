"""A worker in a process of its own that holds what it is given, to be killed, frozen and woken.

    python temporal_process.py TARGET QUEUE LEASE

It says `["up"]`, `["driving", KEY]` and `["cancelled", KEY]`, a line each, until the end of its input.
"""

from __future__ import annotations

import asyncio
import json
import sys

from pilothouse.cluster import Driven, Ticket
from pilothouse.dispatch.temporal import TemporalDispatcher
from pilothouse.records import Owner


def say(*words: str) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


async def drive(ticket: Ticket) -> Driven:
    say("driving", ticket.key)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        say("cancelled", ticket.key)
        raise
    raise AssertionError


async def work(target: str, queue: str, lease: str) -> None:
    dispatcher = TemporalDispatcher(target, lease=float(lease))
    dispatcher.on_dispatch(queue, drive)
    await dispatcher.start()
    say("up")
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    while not ended.done():
        await dispatcher.heartbeat(Owner("process"), int(1000 * float(lease)))
        await asyncio.wait((ended,), timeout=float(lease) / 3)
    await dispatcher.aclose()


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
