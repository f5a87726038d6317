"""A plain script: ask once, print the answer as it comes. `python examples/hello.py [MODEL]`.

MODEL is a model string such as openai:gpt-5-mini; without it the small local model answers.
"""

import asyncio
import sys

from pilothouse import AgentController, SQLiteJournal, provider


async def main(model: str) -> None:
    async with (
        provider(model) as answers,
        SQLiteJournal("hello.db") as journal,
        AgentController(answers, journal=journal) as agent,
    ):
        reply = await agent.send("Why is the sky blue? Answer in two sentences.")
        async for text in reply:
            print(text, end="", flush=True)
        print()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "local"))
