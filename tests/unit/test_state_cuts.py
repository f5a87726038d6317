"""The same send cut at every write: state and end agree, whatever was durable (TC-76, TC-78, TC-115)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from convkit import passes
from pilothouse import MemoryJournal
from pilothouse.events import Completed, Noted
from pilothouse.records import Owner
from pilothouse.testing import FaultyJournal
from state_process import built

_dead: list[object] = []
"""Conversations of processes that died: nobody collects what is in them."""


async def cut_life(inner: MemoryJournal, effects, at: int, when: str) -> bool:
    """A process that is as good as dead at that write; False if it came to its end before."""
    journal = FaultyJournal(inner)
    cut = journal.crash(at=at, when=when)
    others = asyncio.all_tasks()
    agent = built(journal, effects)
    _dead.append(agent)

    async def live() -> None:
        reply = await agent.send("go", id="r1")
        await reply.result()

    living = asyncio.ensure_future(live())
    reached = asyncio.ensure_future(cut.reached.wait())
    await asyncio.wait({living, reached}, return_when=asyncio.FIRST_COMPLETED)
    died = reached.done()
    for task in asyncio.all_tasks() - others:
        task.cancel()
    await asyncio.gather(living, reached, return_exceptions=True)
    head = await inner.head("r1")
    if head is not None and head.owner is not None:
        await inner.release(Owner(head.owner))
    return died


@pytest.mark.parametrize("when", ["before", "after"])
async def test_every_cut_of_a_send_with_states(tmp_path, when: str) -> None:
    """Proof 9: at every write, also between observed and finished, and the second life is what counts."""
    seen = set()
    for at in range(1, 40):
        inner, effects = MemoryJournal(), tmp_path / f"effects-{at}.txt"
        effects.touch()
        if not await cut_life(inner, effects, at, when):
            break
        async with built(inner, effects) as agent:
            boxes = agent.controllers
            if not await agent.runs.has_run("r1"):
                assert (at, when) == (1, "before")
                continue
            view = await agent.runs.inspect("r1")
            over = view.state == "terminal"
            assert [box.state for box in boxes] == ([2, 10] if over else [None, None])
            if not over:
                await agent.runs.recover("r1")
                await agent.runs.wait_for_terminal("r1")
                await passes(50)
                assert boxes[0].events == ["resumed", "completed"]
            facts = [record.fact for record in await agent.runs.events("r1")]
            assert isinstance(facts[-1].outcome, Completed)
            committed = [f.data for f in facts if isinstance(f, Noted) and f.name == "controllers/committed"]
            found = {box.namespace: box.state for box in boxes if box.state is not None}
            assert [{key: entry["value"] for key, entry in note.items()} for note in committed] == [found]
            assert agent.shared_state == found
            # A value counts exactly if its call ended well; the others are told to be unknown.
            ends = {f.call_id: f.outcome for f in facts if f.kind == "call_finished"}
            assert set(ends.values()) <= {"succeeded", "unknown"}
            seen.add(tuple(sorted(found.items())))
        async with built(inner, effects) as agent:
            assert {box.namespace: box.state for box in agent.controllers if box.state is not None} == found
        assert max(Counter(effects.read_text().split()).values(), default=1) == 1
    assert at >= 8
    assert (("a", 2), ("b", 10)) in seen
