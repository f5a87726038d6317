"""The adapter of Pilothouse for the peers' benchmark: copy it to that kit's `adapters/pilothouse.py`.

Everything goes through the public conversation, as a user's program would.
"""

from __future__ import annotations

import os
from typing import Any

import common

from benchmarks.ours import Fake, add
from pilothouse import AgentController, LoopConfig, SQLiteJournal


class Subject(common.Adapter):
    NAME = "pilothouse"
    IMPORT = "import pilothouse"

    def setup(self) -> None:
        self.fake = Fake()
        self.journal: SQLiteJournal | None = None

    def agent(self, **options: Any) -> AgentController:
        return AgentController(self.fake, system_prompt="Be helpful.", **options)

    async def turn(self) -> str:
        agent = self.agent()
        return (await (await agent.send(common.PROMPT)).result()).text

    async def tool_turn(self, n: int) -> str:
        agent = self.agent(tools=[add], params={"calls": n}, config=LoopConfig(repetition_breaker=None))
        return (await (await agent.send(common.PROMPT)).result()).text

    async def stream(self, n: int, pause: bool) -> int:
        self.fake.deltas, self.fake.pause = n, pause
        seen = 0

        def chunk(piece: str, _: str) -> None:
            nonlocal seen
            seen += 1

        agent = self.agent(on_response_chunk=chunk)  # held: a conversation that nobody holds stops
        await (await agent.send(common.PROMPT)).wait()
        self.fake.deltas = 0
        return seen

    async def session(self, i: int) -> Any:
        agent = AgentController(self.fake)
        for j in range(0, common.SESSION_MESSAGES, 2):
            self.fake.text = common.text_for(i, j + 1)
            await (await agent.send(common.text_for(i, j))).result()
        self.fake.text = "ok"
        return agent

    async def durable_turn(self, path: str, i: int) -> str:
        if self.journal is None:
            self.journal = SQLiteJournal(f"{path}/p.db", durability=os.environ.get("SYNC", "NORMAL").lower())
        agent = self.agent(journal=self.journal, thread_id=f"t{i}")
        text = (await (await agent.send(common.PROMPT)).result()).text
        await agent.aclose()
        return text

    async def durable_close(self) -> None:
        if self.journal is not None:
            await self.journal.aclose()
