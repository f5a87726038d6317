"""A process that only serves: its event loop, and what the collector has to walk."""

from __future__ import annotations

import asyncio
import gc

import pytest

from pilothouse.server.run import run_alone


def test_a_process_of_its_own_uses_the_fast_loop_and_sets_aside_what_was_imported() -> None:
    """SV-43: a full collection would hold every stream up; `fast` installs uvloop for it."""
    seen: list[tuple[str, int]] = []

    async def main() -> None:
        seen.append((type(asyncio.get_running_loop()).__module__, gc.get_freeze_count()))

    run_alone(main)
    [(loop, frozen)] = seen
    assert loop == "uvloop"
    assert frozen > 10_000
    assert gc.get_freeze_count() == 0


def test_what_it_runs_may_fail() -> None:
    """The error comes out, and the collector is as it was."""

    async def main() -> None:
        raise LookupError("no agent")

    with pytest.raises(LookupError, match="no agent"):
        run_alone(main)
    assert gc.get_freeze_count() == 0
