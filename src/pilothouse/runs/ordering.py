"""Commands: admitted or refused without a trace, recorded once, forwarded once, answered always (RC §3.7)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext

from msgspec.structs import replace

from ..commands import (
    Ack,
    Allow,
    Answer,
    Cancel,
    Command,
    FollowUp,
    Replace,
    Steer,
    Withdraw,
)
from ..core.batch import Written
from ..core.canonical import digest, encode, misshapen, normal
from ..core.rules import answers
from ..core.run import HOST, TAKEOVERS_TRIED, CommandState, Phase, RunState
from ..errors import (
    CommandConflict,
    CommandNotFound,
    InvalidCommand,
    JournalUnavailable,
    OwnedElsewhere,
    RecordRefused,
    RunError,
    Unsupported,
)
from ..events import Cancelled, CommandAnswered, CommandReceived, InputReturned, RunEnded, StopRequested
from ..records import Accept, Descriptor, Draft, Registration, RunHead, RunView
from .fleet import Fleet
from .live import ENVELOPE, LiveRun
from .port import kind_of
from .posting import RECOVER, answered, post, wait
from .recovering import Recovery
from .timing import RunLimits

logger = logging.getLogger("pilothouse.runs")


class Orders:
    """The command desk of one fleet."""

    def __init__(self, fleet: Fleet, recovery: Recovery, auto_recover: str) -> None:
        self._fleet = fleet
        self._recovery = recovery
        self._auto_recover = auto_recover

    async def command(self, command: Command, limit: float | None, *, driving: bool = False) -> Ack:
        """Records a command, forwards it once, and returns its ack.

        With a dispatcher it goes to the process that drives the run; `driving` says that this one does, or is about to.

        Raises:
            InvalidCommand, RunNotFound, NotControllable, OwnedElsewhere, CommandConflict: mistakes of the caller.
        """
        fleet = self._fleet
        fleet.check_open("command a run")
        command, command_digest = _checked(command, fleet.limits)
        if command.run_id in fleet.starting:
            await fleet.settled(command.run_id)
        live = fleet.live.get(command.run_id)
        if live is not None and not live.over:
            # Its own memory is never behind the journal, which may be away.
            if (known := live.state.commands.get(command.id)) is not None:
                return await self._repeated(known, command_digest, command, limit)
            return await self._admit(live, command, command_digest, limit)
        head = await fleet.head(command.run_id)
        state = await fleet.state(head)
        if (known := state.commands.get(command.id)) is not None:
            if (
                known.state == "received"
                and known.digest == command_digest
                and (driving or fleet.dispatcher is None)
            ):
                await self._deliver_again(head, state)
            return await self._repeated(known, command_digest, command, limit)
        fleet.check_control(head.registration)
        if state.phase is Phase.TERMINAL:
            return _refused(command, "ended")
        if fleet.dispatcher is not None and not driving:
            return await self._post(head, state, command, command_digest, limit)
        if fleet.ownership(head) == "elsewhere":
            raise OwnedElsewhere(command.run_id, head.owner or "")
        if not state.resting and not self._may_recover(state):
            return _refused(command, "unknown")
        stop: Sequence[Written] = ()
        if isinstance(command.body, Cancel) and state.stop is None:
            stop = _stop_facts(command, command_digest)
        if not await self._revive(command.run_id, stop):
            return _refused(command, "recovery_failed")
        live = fleet.live.get(command.run_id)
        state = await self._now(command.run_id) if live is None else live.state
        if command.id in state.commands:  # the stop was recorded with the restore
            return state.commands[command.id].ack(command.run_id)
        if live is None:  # it was over at once
            return _refused(command, "ended" if state.phase is Phase.TERMINAL else "unknown")
        return await self._admit(live, command, command_digest, limit)

    async def _now(self, run_id: str) -> RunState:
        return await self._fleet.state(await self._fleet.head(run_id))

    async def _post(
        self, head: RunHead, state: RunState, command: Command, command_digest: str, limit: float | None
    ) -> Ack:
        """Another process drives the run, or will: it records the command and says what came of it."""
        fleet = self._fleet
        relay, registration = fleet.journal.relay, head.registration
        assert relay is not None
        waits = head.owner is None and head.fence == 1 and state.phase is Phase.ACCEPTED
        if (
            waits
            and isinstance(command.body, Cancel)
            and await self._withdraw(registration, command, command_digest)
        ):
            return await self.ack(command.run_id, command.id)
        ack = await post(relay, command)
        if ack is not None:
            return replace(ack, duplicate=True)
        now = await fleet.head(command.run_id)
        if not now.owner_alive:
            stuck = state.phase is Phase.UNKNOWN or state.takeovers >= TAKEOVERS_TRIED
            await fleet.hand_to_dispatcher(registration, now.fence, again=stuck)
        ack = await wait(relay, command.run_id, command.id, self._limit(limit))
        return ack or Ack(command.id, command.run_id, "received")

    async def ask_to_recover(self, run_id: str, accept: Accept) -> RunView:
        """Has a lost run taken up by whoever takes runs up; returns when it was, as `Recovery.recover` does.

        Raises:
            RecoveryMismatch, RecoveryRefused, Unsupported, NotControllable: it stays as it is.
            JournalUnavailable: nobody took it up in time; it is asked for, and may still be.
        """
        fleet = self._fleet
        head = await fleet.head(run_id)
        relay = fleet.journal.relay
        assert relay is not None
        fleet.check_control(head.registration)
        if head.summary.state == "terminal" or head.owner_alive:
            return await fleet.view(run_id)
        entry = RECOVER + fleet.new_id()
        await relay.post(run_id, entry, encode(accept))
        await fleet.hand_to_dispatcher(head.registration, head.fence, again=True)
        if not await answered(relay, run_id, entry, fleet.timing.recover):
            raise JournalUnavailable(f"run {run_id} waits for a worker to take it up")
        return await fleet.view(run_id)

    async def _withdraw(self, registration: Registration, command: Command, command_digest: str) -> bool:
        """Ends a run that waits for a worker: no worker is needed for that. False if one was faster."""
        fleet = self._fleet
        body = command.body
        assert isinstance(body, Cancel)
        try:
            live = await self._recovery.claimed(registration)
        except OwnedElsewhere:
            return False
        if live.state.phase is not Phase.ACCEPTED or live.state.stop is not None:
            live.release()
            await fleet.settled(command.run_id)
            return False
        end = (Draft(RunEnded(Cancelled(body.reason, body.source))), HOST)
        await live.writer.write(*_stop_facts(command, command_digest), end)
        return True

    async def _deliver_again(self, head: RunHead, state: RunState) -> None:
        """A command that nobody decided and nobody holds goes to a new attachment (RC-38, RC-41)."""
        fleet = self._fleet
        lost = state.phase is not Phase.TERMINAL and fleet.ownership(head) != "elsewhere"
        if lost and self._may_recover(state) and fleet.why_not(head.registration) is None:
            await self._revive(state.run_id, ())

    def _may_recover(self, state: RunState) -> bool:
        level = self._fleet.described.descriptor.recovery
        asked = self._auto_recover != "never" and level == "journal"
        return asked and not state.violated and state.takeovers < TAKEOVERS_TRIED

    async def _revive(self, run_id: str, stop: Sequence[Written]) -> bool:
        """Recovers an orphan or a lost run before the command is judged (RC-53)."""
        try:
            await self._recovery.recover(run_id, also=stop)
        except (RunError, Unsupported) as error:
            logger.warning("run %s was not recovered for a command: %s", run_id, error)
            return False
        return True

    def cancel_nowait(self, command: Command) -> bool:
        """Stops a run that is live here at once: the stop acts before it is durable, and is recorded first (AC-122).

        What the runtime records because of it stands behind it: appends are served in order. False if nothing is live.
        """
        fleet = self._fleet
        live = fleet.live.get(command.run_id)
        body = command.body
        if live is None and (mirror := fleet.mirror(command.run_id)) is not None and mirror.stoppable:
            fleet.agenda.spawn(self.command(command, None))
            return True
        if live is None or not live.stoppable or not isinstance(body, Cancel):
            return False
        if live.state.stop is None and not live.scope.cancelled:
            command, canonical = normal(command)
            live.writer.write_nowait(*live.unsaved(), *_stop_facts(command, digest(canonical)))
            live.stop(body.reason, body.source)
        return True

    async def _repeated(
        self, known: CommandState, command_digest: str, command: Command, limit: float | None
    ) -> Ack:
        """The same id again: acknowledged, never forwarded."""
        if known.digest != command_digest:
            raise CommandConflict(command.run_id, command.id)
        live = self._fleet.live.get(command.run_id)
        if known.state == "received" and live is not None and not live.over:
            await live.wait_answered(command.id, self._limit(limit))
            known = live.state.commands[command.id]
        return known.ack(command.run_id, duplicate=True)

    def _limit(self, limit: float | None) -> float:
        return self._fleet.timing.command if limit is None else limit

    async def _admit(self, live: LiveRun, command: Command, command_digest: str, limit: float | None) -> Ack:
        """One command of a run after the other, each judged on what the one before left; a stop waits for none."""
        async with nullcontext() if isinstance(command.body, Cancel) else live.commanding:
            known = live.state.commands.get(command.id)  # an equal one may have been first
            if known is None and (refusal := await self._record(live, command, command_digest)) is not None:
                return refusal
        if known is not None:
            return await self._repeated(known, command_digest, command, limit)
        await live.wait_answered(command.id, self._limit(limit))
        return live.state.commands[command.id].ack(command.run_id)

    async def _record(self, live: LiveRun, command: Command, command_digest: str) -> Ack | None:
        """Judges and records a command; the ack of a refusal."""
        descriptor = self._fleet.described.descriptor
        if (refusal := self._judge(live, command, descriptor)) is not None:
            return refusal
        if live.writer.stalled and (not isinstance(command.body, Cancel) or live.scope.cancelled):
            raise JournalUnavailable(f"run {live.run_id} waits for its journal")
        drafts: list[Written] = [(Draft(CommandReceived(command, command_digest)), HOST)]
        accepted = (Draft(CommandAnswered(command.id, "accepted"), causation=command.id), HOST)
        body = command.body
        match body:
            case Cancel():
                drafts.append(accepted)
                if live.state.stop is None:
                    drafts[:0] = live.unsaved()
                    drafts.append(
                        (Draft(StopRequested(body.reason, body.source), causation=command.id), HOST)
                    )
            case Steer() | FollowUp() if descriptor.inputs == "queue":
                drafts.append(accepted)
            case Withdraw():
                drafts.append(accepted)
                returned = InputReturned(body.command_id, "withdrawn")
                drafts.append((Draft(returned, causation=command.id), HOST))
            case Replace():
                drafts.append(accepted)
                returned = InputReturned(body.command_id, "replaced")
                drafts.append((Draft(returned, causation=command.id), HOST))
            case _:
                pass
        # The items leave the inbox in this same step, so that the runtime cannot take what is being withdrawn.
        inbox = live.port.commands if live.port is not None else None
        if inbox is not None and isinstance(body, Withdraw):
            inbox.remove(body.command_id)
        if inbox is not None and isinstance(body, Replace):
            inbox.replace(body.command_id, command)
        try:
            await live.write_or_stall(*drafts)
        except RecordRefused as error:
            if isinstance(body, Cancel) and error.code == "illegal" and live.state.stop is not None:
                # Another stop was first: applied to that.
                return await self._record(live, command, command_digest)
            return _refused(command, error.code)
        except JournalUnavailable:
            if isinstance(body, Cancel):  # it is handed over, and acts now: a stop waits for no disk (RC-15)
                live.stop(body.reason, body.source)
            raise
        return None

    def _judge(self, live: LiveRun, command: Command, descriptor: Descriptor) -> Ack | None:
        """The honest races and the undeclared: refused without a trace (RC-36)."""
        state, body = live.state, command.body
        if state.phase is Phase.TERMINAL:
            return _refused(command, "ended")
        if state.phase is Phase.UNKNOWN:
            return _refused(command, "unknown")
        if state.phase is Phase.STOPPING and not isinstance(body, Cancel):
            return _refused(command, "stopping")
        if kind_of(command) not in descriptor.commands or (
            isinstance(body, Cancel) and descriptor.cancel == "none"
        ):
            return Ack(command.id, command.run_id, "unsupported", code="unsupported")
        match body:
            case Answer():
                return self._judge_answer(live, command, body)
            case Withdraw() | Replace():
                waits = live.port is not None and live.port.commands.waits(body.command_id)
                if body.command_id not in state.queued or not waits:
                    return _refused(command, "not_queued")
            case Steer() | FollowUp():
                if len(state.left_over()) >= self._fleet.limits.max_inbox:
                    return _refused(command, "queue_full")
            case _:
                pass
        return None

    def _judge_answer(self, live: LiveRun, command: Command, body: Answer) -> Ack | None:
        request = live.state.requests.get(body.request_id)
        if request is None:
            for known in live.state.commands.values():
                same = isinstance(known.command.body, Answer) and known.command.body == body
                if same and known.applied_seq:
                    return replace(known.ack(command.run_id), duplicate=True)
            return _refused(command, "request_not_pending")
        if request.expires_at_ms is not None and request.expires_at_ms <= self._fleet.clock.time_ms():
            return _refused(command, "request_not_pending")
        if not answers(request, body.resolution):
            return _refused(command, "answer_mismatch")
        if isinstance(body.resolution, Allow) and body.resolution.scope not in request.scopes:
            return _refused(command, "answer_mismatch")
        for known in live.state.commands.values():
            other = known.command.body
            if isinstance(other, Answer) and other.request_id == request.id and known.state == "received":
                return _refused(command, "request_busy")
        return None

    async def recorded(self, run_id: str, command_id: str) -> Command | None:
        """The immutable command, in every state and under every descriptor; writes nothing (RC-44)."""
        state = await self._fleet.state(await self._fleet.head(run_id))
        known = state.commands.get(command_id)
        return None if known is None else known.command

    async def ack(self, run_id: str, command_id: str) -> Ack:
        """The ack, from facts alone.

        Raises:
            CommandNotFound: no such command in that run.
        """
        state = await self._fleet.state(await self._fleet.head(run_id))
        known = state.commands.get(command_id)
        if known is None:
            raise CommandNotFound(run_id, command_id)
        return known.ack(run_id)


def _stop_facts(command: Command, command_digest: str) -> tuple[Written, ...]:
    """A cancel is decided by the controller: received, accepted and acted on in one append (RC-39)."""
    body = command.body
    assert isinstance(body, Cancel)
    return (
        (Draft(CommandReceived(command, command_digest)), HOST),
        (Draft(CommandAnswered(command.id, "accepted"), causation=command.id), HOST),
        (Draft(StopRequested(body.reason, body.source), causation=command.id), HOST),
    )


def _refused(command: Command, code: str) -> Ack:
    return Ack(command.id, command.run_id, "rejected", code=code)


def _checked(command: Command, limits: RunLimits) -> tuple[Command, str]:
    """The command in its stored form, with its digest."""
    if why := misshapen(command):
        raise InvalidCommand(f"the command cannot be stored: {why}")
    if not 1 <= len(command.id) <= 200 or not command.id.isprintable():
        raise InvalidCommand("a command id has 1 to 200 printable characters")
    body = command.body
    if isinstance(body, Cancel) and not body.reason.strip():
        raise InvalidCommand("a cancel needs a reason")
    command, canonical = normal(command)
    if command.extensions and len(encode(command.extensions)) > limits.max_extension_bytes:
        raise InvalidCommand(f"extensions exceed {limits.max_extension_bytes} bytes", "extensions")
    if len(canonical) + ENVELOPE > limits.max_fact_bytes:
        raise InvalidCommand(f"a command of {len(canonical)} bytes is too large", "too_large")
    return command, digest(canonical)
