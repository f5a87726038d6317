"""The ways out of unknown: recover by evidence, ask, or leave it at that (RC §3.10)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Literal

from ..contracts import Queryable, Replayable, Resumable
from ..core.batch import Written
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
from ..records import Accept, Draft, Registration, RunHead, RunSpec, RunView, StatusAnswer
from .fleet import Fleet
from .live import LiveRun

logger = logging.getLogger("pilothouse.runs")

_NO_RECOVERY = {
    False: "the runtime cannot recover: abandon the run instead",
    True: "the runtime can only be asked where a run stands: use check_status",
}


def _loss(state: RunState) -> tuple[list[Written], int]:
    """The loss, if nobody recorded it, and where it stands."""
    if state.loss is not None:
        return [], state.loss_seq
    lost = ContinuityLost(state.seq, "owner_lost", "the process that drove it is gone")
    return [(Draft(lost), HOST)], state.seq + 1


def _restore(
    state: RunState,
    method: Literal["journal", "replay", "query"],
    replayed: int = 0,
    reasons: tuple[str, ...] = (),
) -> list[Written]:
    """The facts that close a gap."""
    drafts, loss_seq = _loss(state)
    restored = ContinuityRestored(loss_seq, method, state.chain, replayed, accepted=reasons)
    return [*drafts, (Draft(restored), HOST)]


async def _write(live: LiveRun, drafts: Sequence[Written]) -> None:
    """The first that is written of a run that was just claimed; if that fails it is let go, for whoever tries next."""
    try:
        await live.writer.write(*drafts)
    except BaseException:
        live.release()
        raise


class Recovery:
    """Recovers and abandons runs of one fleet. Concurrent calls for one run share one recovery."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._asking: dict[str, asyncio.Task[StatusAnswer]] = {}

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
        await fleet.settled(run_id)
        head = await fleet.head(run_id)
        if head.summary.state == "terminal" or self._healthy(run_id):
            return
        fleet.check_control(head.registration)
        level = fleet.described.descriptor.recovery
        if (level, True) not in (
            ("journal", isinstance(fleet.runtime, Resumable)),
            ("replay", isinstance(fleet.runtime, Replayable)),
        ):
            raise Unsupported(_NO_RECOVERY[level == "query"], "recovery")
        reasons = await self._reasons(head, await fleet.refold(head.registration), accept)
        if level == "replay":
            await self._replay(head, reasons)
        else:
            await self._resume(head, reasons, also)
        logger.info("run %s recovered", run_id)

    async def _resume(self, head: RunHead, reasons: tuple[str, ...], also: Sequence[Written]) -> None:
        """Level `journal`: the facts are all there is."""
        live = await self._claim(head)
        await self._admit(live)
        drafts = [*_restore(live.state, "journal", live.state.seq, reasons), *also]
        fresh = head.owner is None and head.fence == 1 and not live.state.started  # nobody drove it yet
        if live.state.loss is None and (live.state.resting or fresh):
            drafts = list(also)  # nothing was in flight, so nothing was lost (RC-50)
        if drafts:
            await _write(live, drafts)
        if live.state.stop is not None:
            live.stop(live.state.stop.reason, live.state.stop.source)
        try:
            # Without a fact of the runtime there is nothing to go on from: it is driven from the beginning (RC-57).
            await self._fleet.drive(live, resume=live.state.started)
        except Exception as error:
            await live.lose("recovery_failed", f"{type(error).__name__}: {error}")
            raise

    async def _admit(self, live: LiveRun) -> None:
        """A runtime may have to make ready for a run of an earlier process; if it cannot, nothing is written (RC-54)."""
        admit = getattr(self._fleet.runtime, "admit", None)
        if admit is None:
            return
        try:
            await admit(live.registration.spec)
        except Exception as error:
            live.release()
            raise RecoveryRefused(
                "refused", f"cannot recover run {live.run_id} because a hook refused: {error}"
            ) from error

    async def _replay(self, head: RunHead, reasons: tuple[str, ...]) -> None:
        """Level `replay`: the agent tells its whole history again, and only then is anything written (RC-55 … RC-57)."""
        fleet = self._fleet
        registration = head.registration
        from .retelling import Retelling

        run_id = registration.spec.run_id
        claimed = await fleet.journal.claim(run_id, fleet.claim_request())
        try:
            records = await fleet.paths.facts(run_id)
            state = await fleet.refold(registration)
            start = await fleet.start_of(registration, claimed.fence)
            assert isinstance(fleet.runtime, Replayable)
            retold = Retelling(
                fleet.clock, fleet.timing, [item for item in records if item.lane == RUNTIME], state
            )
            work, count = await retold.check(fleet.runtime, start)
        except BaseException:
            await fleet.journal.release(fleet.owner, run_id)
            raise
        live = fleet.host(registration, state, claimed.fence)
        try:
            await live.writer.write(*_restore(state, "replay", count, reasons))
            if live.state.stop is not None:
                live.stop(live.state.stop.reason, live.state.stop.source)
            await fleet.settle_times(live)
        except BaseException:
            await retold.aclose()
            live.release()
            raise
        live.drive(work or fleet.runtime.run, start, failing="recovery_failed")

    async def _reasons(self, head: RunHead, state: RunState, accept: Accept) -> tuple[str, ...]:
        """What a person must have accepted for this recovery (RC-58)."""
        reasons: list[str] = []
        if state.violated:
            if not accept.violation.strip():
                raise RecoveryMismatch(
                    "violation", "the run was lost by a violation: give Accept(violation='why')"
                )
            reasons.append(f"violation: {accept.violation}")
        then = head.registration.spec.config_digest
        now = await self._config_now(head.registration.spec) if then else ""
        if then and now and then != now:
            if not accept.config_change.strip():
                raise RecoveryMismatch(
                    "config_changed",
                    "the run was started under another configuration: give Accept(config_change='why')",
                )
            reasons.append(f"config_change: {accept.config_change}")
        return tuple(reasons)

    async def _config_now(self, spec: RunSpec) -> str:
        """Digest of what would take the run up; a runtime may have another one for each thread."""
        runtime = self._fleet.runtime
        config_of = getattr(runtime, "config_of", None)
        if config_of is None:
            return str(getattr(runtime, "config_digest", ""))
        try:
            return str(await config_of(spec))
        except Exception as error:
            raise RecoveryRefused(
                "refused",
                f"cannot recover run {spec.run_id} because its conversation cannot be made: {error}",
            ) from error

    async def _claim(self, head: RunHead) -> LiveRun:
        return await self.claimed(head.registration)

    async def claimed(self, registration: Registration) -> LiveRun:
        """Takes a run; nothing is written and nothing drives it yet."""
        fleet = self._fleet
        claimed = await fleet.journal.claim(registration.spec.run_id, fleet.claim_request())
        state = await fleet.refold(registration)
        return fleet.host(registration, state, claimed.fence)

    async def check_status(self, run_id: str) -> StatusAnswer:
        """Asks the runtime where an unknown run stands, read-only; one question at a time a run (RC-59).

        Raises:
            Unsupported: the runtime cannot be asked.
            RecoveryMismatch: what it tells is not legal; nothing was written.
        """
        self._fleet.check_open("check a run")
        asking = self._asking.get(run_id)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._check_status(run_id))
            self._asking[run_id] = asking
            asking.add_done_callback(lambda _: self._asking.pop(run_id, None))
        return await asyncio.shield(asking)

    async def _check_status(self, run_id: str) -> StatusAnswer:
        fleet = self._fleet
        runtime = fleet.runtime
        await fleet.settled(run_id)
        head = await fleet.head(run_id)
        fleet.check_control(head.registration)
        if not isinstance(runtime, Queryable):
            raise Unsupported("the runtime cannot be asked", "query")
        seen = await fleet.view(run_id)
        if seen.status != "unknown" or seen.state == "terminal":
            return StatusAnswer("settled" if seen.state == "terminal" else "running")
        start = await fleet.start_of(head.registration, head.fence)
        answer = await runtime.query(start, seen)
        conclusive = bool(answer.drafts) and isinstance(answer.drafts[-1].fact, RunEnded)
        if not conclusive or (await fleet.head(run_id)).head != head.head:
            return answer
        await self._conclude(head, answer)
        return answer

    async def _conclude(self, head: RunHead, answer: StatusAnswer) -> None:
        live = await self._claim(head)
        drafts = _restore(live.state, "query")
        drafts += [(draft, RUNTIME) for draft in answer.drafts]
        if fault := live.writer.fault_of(drafts):
            live.release()
            raise RecoveryMismatch("prefix", f"what the agent tells is not legal: {fault}")
        try:
            await live.writer.write(*drafts)
        except RunError as error:
            live.release()
            raise RecoveryMismatch("prefix", f"what the agent tells was not stored: {error}") from error

    async def abandon(self, run_id: str, reason: str, by: str) -> RunView:
        """Ends an unknown, orphaned or stalled run on the record, by a person's decision (RC-60).

        Raises:
            InvalidCommand: a blank reason, or the run is healthy or has ended.
        """
        fleet = self._fleet
        fleet.check_open("abandon a run")
        if not reason.strip():
            raise InvalidCommand("abandoning a run needs a reason")
        await fleet.settled(run_id)
        head = await fleet.head(run_id)
        why = fleet.why_not(head.registration)
        if why == "vocabulary":
            fleet.check_control(head.registration)
        ownership = fleet.ownership(head)
        if ownership == "elsewhere":
            raise OwnedElsewhere(run_id, head.owner or "")
        lost = head.summary.state == "unknown" or ownership in ("orphaned", "stalled")
        if ownership == "parked" and why is not None:
            lost = True  # nobody here can drive it: without this it could never end (RC-85)
        if head.summary.state == "terminal":
            raise InvalidCommand(f"cannot abandon run {run_id}: it has ended", "not_unknown")
        if not lost:
            raise InvalidCommand(
                f"cannot abandon run {run_id} while it is {head.summary.status}", "not_unknown"
            )
        stalled = ownership == "stalled"
        live = await self._kept(run_id) if stalled else await self._claim(head)
        drafts, _ = _loss(live.state)
        drafts.append((Draft(RunAbandoned(reason, by)), HOST))
        await (live.writer.write(*drafts) if stalled else _write(live, drafts))
        if live.task is not None:
            live.task.cancel()
        return await fleet.view(run_id)

    async def _kept(self, run_id: str) -> LiveRun:
        """A run that was stalled, once what it kept for the journal is stored: the journal answers again (RC-15)."""
        live = self._fleet.live[run_id]
        await live.reach_journal()
        return live

    async def recover_all(self, limit: int = 8) -> None:
        """Recovers the lost runs of this binding, `limit` at a time; failures are logged (RC-53)."""
        from .catalog import lost_runs

        fleet = self._fleet
        gate = asyncio.Semaphore(limit)

        async def one(run_id: str) -> None:
            async with gate:
                try:
                    await self.recover(run_id)
                except (RunError, JournalError, OwnedElsewhere, Unsupported, RecordRefused) as error:
                    logger.warning("run %s was not recovered: %s", run_id, error)

        await asyncio.gather(*[one(run_id) for run_id in await lost_runs(fleet)])
