"""The workflow behind one ticket, and nothing else: what Temporal replays must not depend on the rest of the library.

A change here must stay replayable for workflows that are open while it is deployed (`workflow.patched`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RetryPolicy

WORKFLOW: Final = "pilothouse.drive"

ACTIVITY: Final = "pilothouse.drive"

DEFERRED: Final = "deferred"
"""The one outcome after which the same ticket is driven again (`cluster.Driven`)."""

PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0)
"""How long a run waits whose principal or thread has its share; the last one from then on."""

NO_LIMIT: Final = timedelta(days=3650)
"""Temporal wants a limit for an activity. What ends a run is its deadline, its runtime or a person."""

AGAIN: Final = RetryPolicy(
    initial_interval=timedelta(milliseconds=100),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=5),
    maximum_attempts=0,
)
"""A worker died or let go: another at once, and without end. A run that gets nowhere is parked by its journal."""


# Not in the sandbox: it would import this package anew for every run, to guard thirty lines without a clock or chance.
@workflow.defn(name=WORKFLOW, sandboxed=False)
class DriveRun:
    """Has a run driven, by one activity at a time, until a drive says what became of it."""

    @workflow.run
    async def run(self, ticket: dict[str, Any], lease_s: float) -> str:
        """What the last drive returned. The run's own state is in its journal."""
        deferred = 0
        while True:
            done: str = await workflow.execute_activity(
                ACTIVITY,
                ticket,
                result_type=str,
                start_to_close_timeout=NO_LIMIT,
                heartbeat_timeout=timedelta(seconds=lease_s),
                retry_policy=AGAIN,
            )
            if done != DEFERRED:
                return done
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(args=[ticket, lease_s])
            await workflow.sleep(PAUSES_S[min(deferred, len(PAUSES_S) - 1)])
            deferred += 1


__all__ = ["ACTIVITY", "AGAIN", "DEFERRED", "NO_LIMIT", "PAUSES_S", "WORKFLOW", "DriveRun"]
