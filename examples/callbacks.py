"""A plain script that draws a conversation from callbacks, as an interface would. `python examples/callbacks.py`.

Finished messages are complete items, the one that is being written is drawn from the pieces, and nothing else is partial.
No key is needed: an async generator of text is a provider. Put `provider("openai:gpt-5-mini")` in its place for a real one.
"""

import asyncio
from collections.abc import AsyncIterator

from pilothouse import AgentController, AgentState, Message


async def parrot(messages: tuple[Message, ...]) -> AsyncIterator[str]:
    """Plays the model: says it back, a word at a time."""
    for word in f"You said: {messages[-1].text}".split():
        await asyncio.sleep(0.02)
        yield word + " "


class Screen:
    """Draws what it is told; any object with some of the six methods can observe a conversation."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def show(self, text: str, *, end: str = "\n") -> None:
        """Prints, and remembers what was printed."""
        print(text, end=end, flush=True)
        self.lines.append(text + end)

    def on_state_change(self, state: AgentState) -> None:
        """The controls: a stop button while busy, a send button else."""
        self.show(f"[{state}]")

    def on_messages_change(self, messages: tuple[Message, ...]) -> None:
        """A finished message."""
        if messages and messages[-1].role == "user":
            self.show(f"you: {messages[-1].text}")

    def on_response_chunk(self, piece: str, text: str) -> None:
        """A piece of the one live item."""
        self.show(piece, end="")

    def on_response_complete(self, message: Message) -> None:
        """The answer is whole."""
        self.show("")

    def on_error(self, error: Exception) -> None:
        """The partial is in `agent.partial`; `agent.retry()` goes on from the last exchange."""
        self.show(f"failed: {error}")


async def main(questions: tuple[str, ...] = ("Hello there", "How are you?")) -> Screen:
    """Asks some questions, the last of which is stopped in the middle."""
    screen = Screen()
    async with AgentController(parrot) as agent:
        agent.subscribe(screen)
        for question in questions:
            reply = await agent.send(question)
            await reply.result()
        reply = await agent.send("Tell me something long and boring")
        async for piece in reply:
            if "something" in piece:
                agent.abort()
        screen.show(f"\nstopped after: {agent.partial.text if agent.partial else ''}")
    return screen


if __name__ == "__main__":
    asyncio.run(main())
