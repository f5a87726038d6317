"""A process that is killed at one write of a send whose tools stage two states; what it had done is in a file.

`python tests/state_process.py DATABASE EFFECTS AT WHEN` kills itself at the AT-th write, before or after it; AT -1 is the write
that ends the run, whichever it is: how many there are before it depends on what shares an append. A second process is the
test itself, by `built`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from pilothouse import AgentController, SQLiteJournal, StagedController
from pilothouse.testing import FaultyJournal, ScriptedProvider
from pilothouse.testing.scripted import call

SCRIPT = (
    [call("a__put", {"value": 1}), call("b__put", {"value": 10})],
    [call("a__put", {"value": 2})],
    "done",
)


class Box(StagedController[int]):
    """A value that a tool puts; each put is an effect that is counted."""

    def __init__(self, namespace: str, effects: Path) -> None:
        self.namespace = namespace
        self.effects = effects
        self.events: list[str] = []

    def get_tools(self):
        return [self.put]

    def put(self, value: int) -> str:
        """Puts."""
        with self.effects.open("a") as file:
            file.write(f"{self.namespace}{value}\n")
        self.stage(value)
        return f"put {value}"

    def on_request(self, event) -> None:
        self.events.append("resumed" if event.resumed else "request")

    def on_response(self, event) -> None:
        self.events.append(event.ending)


class Model:
    """The scripted model answers by what it is asked, so that a second process goes on with the same script."""

    tag = "scripted"

    def __init__(self) -> None:
        self.default_model = ScriptedProvider("x").default_model

    def stream(self, request):
        results = sum(message.role == "tool" for message in request.messages)
        at = 0 if results < 2 else 1 if results < 3 else 2
        return ScriptedProvider(SCRIPT[at]).stream(request)

    async def aclose(self) -> None:
        return


def built(journal, effects: Path) -> AgentController:
    controllers = [Box("a", effects), Box("b", effects)]
    return AgentController(Model(), controllers=controllers, journal=journal, thread_id="t")


class KilledAtTheEnd(SQLiteJournal):
    """The process dies at the append that ends the run."""

    def __init__(self, database: str, when: str) -> None:
        super().__init__(database)
        self.when = when

    async def append(self, run_id, records, *, expected, fence, summary):
        last = summary.state == "terminal"
        if last and self.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = await super().append(run_id, records, expected=expected, fence=fence, summary=summary)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return done


async def main(database: str, effects: str, at: int, when: str) -> None:
    if at < 0:
        journal = FaultyJournal(KilledAtTheEnd(database, when))
    else:
        journal = FaultyJournal(SQLiteJournal(database))
        journal.kill(at=at, when=when)  # type: ignore[arg-type]
    async with built(journal, Path(effects)) as agent:
        reply = await agent.send("go", id="r1")
        await reply.result()
    await journal.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
