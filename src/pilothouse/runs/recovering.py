"""The ways out of unknown: recover by evidence, ask, or leave it at that (RC §3.10)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from ..contracts import Queryable, Resumable
from ..core.run import HOST, RUNTIME, RunState
from ..errors import (
    InvalidCommand,
    JournalError,
    OwnedElsewhere,
    RecordRefused,
    RecoveryMismatch,
    RecoveryRefused,
    RunError,
    Unsupported,
)
from ..events import ContinuityLost, ContinuityRestored, RunAbandoned, RunEnded
from ..records import Accept, Draft, RunHead, RunView, Start, StatusAnswer
from .catalog import lost_runs
from .fleet import Fleet
from .live import LiveRun
from .writer import Written

logger = logging.getLogger("pilothouse.runs")

ConfigDigest = Callable[[], str]


def _restore(state: RunState, reasons: tuple[str, ...]) -> list[Written]:
    """The facts that close a gap: the loss, if nobody recorded it, and the restore; none for a run at rest."""
    if state.loss is None and state.resting:
        return []
    drafts: list[Written] = []
    loss_seq = state.loss_seq
    if state.loss is None:
        drafts.append(
            (Draft(ContinuityLost(state.seq, "owner_lost", "the process that drove it is gone")), HOST)
        )
        loss_seq = state.seq + 1
    restored = ContinuityRestored(loss_seq, "journal", state.chain, state.seq, accepted=reasons)
    return [*drafts, (Draft(restored), HOST)]


class Recovery:
    """Recovers and abandons runs of one fleet. Concurrent calls for one run share one recovery."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def recover(
        self, run_id: str, *, accept: Accept | None = None, also: Sequence[Written] = ()
    ) -> RunView:
        """Returns when the restore is durable and the runtime attached (RC-54).

        `also` is recorded with the restore, before the runtime is entered: a stop, so that no model call is made (RC-53).

        Raises:
            Unsupported: the runtime cannot recover.
            OwnedElsewhere: it is live in another process.
            RecoveryMismatch, RecoveryRefused: it stays unknown, nothing changed but perhaps the claim.
        """
        fleet = self._fleet
        fleet.check_open("recover a run")
        running = fleet.recovering.get(run_id)
        if running is None:  # in one step, so that calls at the same time share it
            running = asyncio.get_running_loop().create_task(self._recover(run_id, accept or Accept(), also))
            fleet.recovering[run_id] = running
            running.add_done_callback(lambda _: fleet.recovering.pop(run_id, None))
        await asyncio.shield(running)
        return await fleet.view(run_id)

    def _healthy(self, run_id: str) -> bool:
        live = self._fleet.live.get(run_id)
        if live is not None and live.zombie and live.task is not None and not live.task.done():
            raise RecoveryRefused(
                "still_running", f"cannot recover run {run_id} while its old task still runs"
            )
        return live is not None and not live.over

    async def _recover(self, run_id: str, accept: Accept, also: Sequence[Written]) -> None:
        fleet = self._fleet
        head = await fleet.head(run_id)
        if head.summary.state == "terminal" or self._healthy(run_id):
            return
        fleet.check_control(head.registration)
        if fleet.described.descriptor.recovery != "journal" or not isinstance(fleet.runtime, Resumable):
            raise Unsupported("the runtime cannot recover: abandon the run instead", "recovery")
        reasons = self._reasons(head, await fleet.refold(head.registration), accept)
        live = await self._claim(head)
        drafts = [*_restore(live.state, reasons), *also]
        if drafts:
            await live.writer.write(*drafts)
        if live.state.stop is not None:
            live.stop(live.state.stop.reason, live.state.stop.source)
        try:
            # Without a fact of the runtime there is nothing to go on from: it is driven from the beginning (RC-57).
            await fleet.drive(live, resume=live.state.started)
        except Exception as error:
            await live.lose("recovery_failed", f"{type(error).__name__}: {error}")
            raise
        logger.info("run %s recovered", run_id)

    def _reasons(self, head: RunHead, state: RunState, accept: Accept) -> tuple[str, ...]:
        """What a person must have accepted for this recovery (RC-58)."""
        reasons: list[str] = []
        if state.violated:
            if not accept.violation.strip():
                raise RecoveryMismatch(
                    "violation", "the run was lost by a violation: give Accept(violation='why')"
                )
            reasons.append(f"violation: {accept.violation}")
        now = getattr(self._fleet.runtime, "config_digest", "")
        then = head.registration.spec.config_digest
        if then and now and then != now:
            if not accept.config_change.strip():
                raise RecoveryMismatch(
                    "config_changed",
                    "the run was started under another configuration: give Accept(config_change='why')",
                )
            reasons.append(f"config_change: {accept.config_change}")
        return tuple(reasons)

    async def _claim(self, head: RunHead) -> LiveRun:
        fleet = self._fleet
        registration = head.registration
        claimed = await fleet.journal.claim(registration.spec.run_id, fleet.claim_request())
        state = await fleet.refold(registration)
        return fleet.host(registration, state, claimed.fence)

    async def check_status(self, run_id: str) -> StatusAnswer:
        """Asks the runtime where an unknown run stands, read-only (RC-59)."""
        fleet = self._fleet
        fleet.check_open("check a run")
        runtime = fleet.runtime
        head = await fleet.head(run_id)
        fleet.check_control(head.registration)
        if not isinstance(runtime, Queryable):
            raise Unsupported("the runtime cannot be asked", "query")
        seen = await fleet.view(run_id)
        if seen.status != "unknown" or seen.state == "terminal":
            return StatusAnswer("settled" if seen.state == "terminal" else "running")
        registration = head.registration
        start = Start(
            registration.spec,
            await fleet.paths.for_start(registration.spec),
            registration.spec_digest,
            registration.binding,
            registration.descriptor_digest,
            head.fence,
            registration.identity,
        )
        answer = await runtime.query(start, seen)
        conclusive = bool(answer.drafts) and isinstance(answer.drafts[-1].fact, RunEnded)
        if not conclusive or (await fleet.head(run_id)).head != head.head:
            return answer
        await self._conclude(head, answer)
        return answer

    async def _conclude(self, head: RunHead, answer: StatusAnswer) -> None:
        live = await self._claim(head)
        drafts: list[Written] = []
        loss_seq = live.state.loss_seq
        if live.state.loss is None:
            drafts.append((Draft(ContinuityLost(live.state.seq, "owner_lost")), HOST))
            loss_seq = live.state.seq + 1
        drafts.append((Draft(ContinuityRestored(loss_seq, "query", live.state.chain)), HOST))
        drafts += [(draft, RUNTIME) for draft in answer.drafts]
        try:
            await live.writer.write(*drafts)
        except RunError as error:
            raise RecoveryMismatch("prefix", f"what the agent tells is not legal: {error}") from error

    async def abandon(self, run_id: str, reason: str, by: str) -> RunView:
        """Ends an unknown, orphaned or stalled run on the record, by a person's decision (RC-60).

        Raises:
            InvalidCommand: a blank reason, or the run is healthy or has ended.
        """
        fleet = self._fleet
        fleet.check_open("abandon a run")
        if not reason.strip():
            raise InvalidCommand("abandoning a run needs a reason")
        head = await fleet.head(run_id)
        why = fleet.why_not(head.registration)
        if why == "vocabulary":
            fleet.check_control(head.registration)
        ownership = fleet.ownership(head)
        if ownership == "elsewhere":
            raise OwnedElsewhere(run_id, head.owner or "")
        lost = head.summary.state == "unknown" or ownership in ("orphaned", "stalled", "parked")
        if head.summary.state == "terminal" or not lost:
            raise InvalidCommand(
                f"cannot abandon run {run_id} while it is {head.summary.status}", "not_unknown"
            )
        live = await self._claim(head)
        drafts: list[Written] = []
        if live.state.loss is None:
            drafts.append((Draft(ContinuityLost(live.state.seq, "owner_lost")), HOST))
        drafts.append((Draft(RunAbandoned(reason, by)), HOST))
        await live.writer.write(*drafts)
        return await fleet.view(run_id)

    async def recover_all(self, limit: int = 8) -> None:
        """Recovers the lost runs of this binding, `limit` at a time; failures are logged (RC-53)."""
        fleet = self._fleet
        gate = asyncio.Semaphore(limit)

        async def one(run_id: str) -> None:
            async with gate:
                try:
                    await self.recover(run_id)
                except (RunError, JournalError, OwnedElsewhere, Unsupported, RecordRefused) as error:
                    logger.warning("run %s was not recovered: %s", run_id, error)

        await asyncio.gather(*[one(run_id) for run_id in await lost_runs(fleet)])
