"""A reply over a run that happened before: facts alone give its messages, text, outcome and partial again (AC-122)."""

from __future__ import annotations

from ..runs.controller import RunController
from .reply import PartialResponse, Reply


async def retold(runs: RunController, reply: Reply) -> None:
    """Waits for the run's end, where it has none yet, and tells the reply all of it."""
    result = await runs.wait_for_terminal(reply.id)
    partial: PartialResponse | None = None
    for entry in await runs.own_messages(reply.id):
        message = entry.message
        if message.role == "user" and reply.user_message is None:
            reply.user_message = message
        if message.role == "user" and not reply.messages:
            continue
        if message.role == "assistant" and message.text:
            reply.add_piece(message.text)
        if entry.complete:
            reply.messages += (message,)
        elif message.role == "assistant":
            partial = PartialResponse(reply.id, message.id, message.text)
    reply.partial = partial
    reply.end(result.outcome, None)
    reply.finish()
