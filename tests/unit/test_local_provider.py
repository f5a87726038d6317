"""The local model as a provider: what is missing is an event that says what to do."""

from __future__ import annotations

from pathlib import Path

from pilothouse import AgentController
from pilothouse.events import Failed
from pilothouse.local.provider import LocalProvider


async def test_a_model_that_is_not_here_fails_the_answer_with_the_remedy(tmp_path: Path) -> None:
    """PV-1: a person reads why and what to do in the answer's error, not in a log."""
    async with (
        LocalProvider(f"local:{tmp_path / 'none.gguf'}") as provider,
        AgentController(provider) as agent,
    ):
        reply = await agent.send("Why is the sky blue?")
        outcome = await reply.wait()
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.code) == ("config", "local_model_unavailable")
    assert "cannot use the local model because" in str(reply.error)
    assert "--model local:/path/to.gguf" in str(reply.error)
