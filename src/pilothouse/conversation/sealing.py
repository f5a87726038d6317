"""What a send changes on its way, and the moment in which that becomes true (TC-71 … TC-78, TC-122).

`Changes` holds what the tools of one send have staged and how they change the shared state. `ReplyPort` is a port around
the port of the run: it sees the facts of the calls pass, puts notes into their appends, and seals the end: all staged
states are prepared, and the note that commits them stands in the append that ends the run. No runtime knows of it.
"""

from __future__ import annotations

import logging
import threading
from asyncio import CancelledError, current_task
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from msgspec.structs import replace

from ..cancel import ENDING, is_closing
from ..commands import Command, FollowUp, Steer
from ..contracts import GatePoint, RunFold, RunPort
from ..core.canonical import encode
from ..core.delivery import words
from ..core.state_notes import STAGED
from ..errors import CommitFailed, DeadReply, RecordRefused, ToolError, UsageError
from ..events import CallFinished, CallObserved, CallStarted, Fact, Failed, Noted, Outcome, RunEnded
from ..loop.context import current
from ..messages import JSON, ArtifactRef
from ..records import Draft, Record
from .calling import Halted
from .controllers import CommitResult
from .shared_state import GONE, SharedState, note_of
from .staging import Change, StagedController

if TYPE_CHECKING:
    from .around import Around
    from .composition import Composition, Member
    from .reply import Reply

logger = logging.getLogger("pilothouse.conversation")

COMMITTED: Final = "controllers/committed"

INLINE: Final = 8_192
"""Bytes of a value that stay in a note; a larger one is an artifact."""


@final
class Staged:
    """A staged value, as it is and as it is stored."""

    __slots__ = ("body", "call_id", "key", "noted", "ref", "value", "version")

    def __init__(self, key: str, call_id: str, value: Any, body: bytes, version: int) -> None:
        self.key = key
        self.call_id = call_id
        self.value = value
        self.body = body
        self.version = version
        self.ref: ArtifactRef | None = None
        self.noted = False

    async def stored(self, port: RunPort) -> dict[str, JSON]:
        """Version and content for a note; a large content is put away once."""
        if len(self.body) <= INLINE:
            return {"version": self.version, "value": msgspec.json.decode(self.body)}
        if self.ref is None:
            self.ref = await port.put_artifact(self.body, "application/json")
        return {"version": self.version, "artifact": msgspec.to_builtins(self.ref)}

    @property
    def digest(self) -> str:
        """Of its canonical form."""
        return sha256(self.body).hexdigest()


class _Call:
    """A running call of a controller's own tool."""

    __slots__ = ("ended", "key", "staged")

    def __init__(self, key: str) -> None:
        self.key = key
        self.staged: Staged | None = None
        self.ended = False


@final
class Changes:
    """What one send has changed so far and not committed.

    Attributes:
        commits: what became of staged state, by key.
        error: why the commit failed.
        ends_process: `KeyboardInterrupt` or `SystemExit` out of a `prepare`: raised once the send has its end.
        sealed: the end that commits was handed to the journal: a stop comes too late.
    """

    def __init__(
        self, reply: Reply, composition: Composition | None, shared: SharedState, largest: int
    ) -> None:
        self.reply = reply
        self._composition = composition
        self._shared = shared
        self._largest = largest
        self._lock = threading.Lock()
        self._first: dict[str, Any] | None = None
        self._restaged: list[Staged] = []
        self._remarks: Sequence[Noted] = ()
        self._calls: dict[str, _Call] = {}
        self._patches: dict[str, dict[str, JSON]] = {}
        self._values: dict[str, Staged] = {}
        self._prepared: list[tuple[Member, Staged, object]] = []
        self._outcome: Outcome | None = None
        self.owners: Mapping[str, str] = {}
        self.commits: dict[str, CommitResult] = {}
        self.error: CommitFailed | None = None
        self.ends_process: BaseException | None = None
        self.sealed = False
        self.closed = False
        for member in () if composition is None else composition.staged:
            assert member.staged is not None
            member.staged.bind(self)

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to add to any append."""
        return self._composition is None and self._first is None and not self._patches

    # What tools do

    def stage(self, controller: StagedController[Any], value: Any, data: JSON) -> None:
        """Keeps a value for the call that runs here (see `StagedController.stage`)."""
        call = current.get()
        if call is not None and (
            call.run_id != self.reply.id or self.closed or self.reply.outcome is not None
        ):
            raise DeadReply(call.run_id)
        known = None if call is None or call.run_id != self.reply.id else self._calls.get(call.call_id)
        if known is None or known.key != self._key_of(controller):
            raise UsageError("cannot stage outside of a running call of the controller's own tools")
        body = encode(data)
        if len(body) > self._largest:
            raise ToolError(
                f"The value could not be kept: it has {len(body)} bytes, the limit is {self._largest}."
            )
        with self._lock:
            if known.ended:
                raise UsageError("cannot stage because the call has ended")
            assert call is not None
            known.staged = Staged(known.key, call.call_id, value, body, controller.state_version)

    def staged(self, controller: StagedController[Any]) -> Any:
        """What would be committed of a controller, or was staged by the call that runs here."""
        if self.closed:
            return None
        key, call = self._key_of(controller), current.get()
        known = None if call is None or call.run_id != self.reply.id else self._calls.get(call.call_id)
        if known is not None and known.key == key and not known.ended and known.staged is not None:
            return known.staged.value
        found = self._values.get(key)
        return None if found is None else found.value

    def _key_of(self, controller: object) -> str:
        assert self._composition is not None
        return next((m.key for m in self._composition.members if m.controller is controller), "")

    def patch(self, call_id: str, patch: Mapping[str, JSON]) -> bool:
        """Keeps a change of the shared state for the end of a running call; False if it has ended."""
        with self._lock:
            known = self._calls.get(call_id)
            if self.closed or (known is not None and known.ended):
                return False
            self._patches.setdefault(call_id, {}).update(patch)
            return True

    # What the facts say

    def begin(
        self,
        patch: Mapping[str, JSON] | None,
        restaged: Sequence[Staged] = (),
        remarks: Sequence[Noted] = (),
    ) -> None:
        """The run begins: what its first append says of the state, and what AI controllers remark."""
        self._remarks = remarks
        first: dict[str, Any] = dict(patch or {})
        for member in () if self._composition is None else self._composition.staged:
            self._show(member, _state_of(member), first)
        self._first = first or None
        self._restaged = list(restaged)
        for staged in restaged:
            self._values[staged.key] = staged

    def _show(self, member: Member, value: Any, patch: dict[str, Any]) -> None:
        """What the shared state is to show of a controller, where it shows something else."""
        shown, now = _public(member, value), self._shared.value
        if shown is None:
            if member.key in now:
                patch[member.key] = GONE
        elif member.key not in now or now[member.key] != shown:
            patch[member.key] = shown

    def started(self, fact: CallStarted) -> None:
        """A call is about to be entered."""
        key = self.owners.get(fact.tool)
        if key is not None:
            self._calls[fact.call_id] = _Call(key)

    def finished(self, fact: CallFinished) -> None:
        """A call has its end: its value counts, or is dropped."""
        call = self._calls.get(fact.call_id)
        if call is None:
            return
        with self._lock:
            call.ended = True
            staged = call.staged
        if staged is not None and fact.outcome == "succeeded" and not fact.is_error:
            self._values[call.key] = staged

    def folded(self, counted: Sequence[Staged], unended: Sequence[Staged]) -> None:
        """The run was begun by an earlier process, whose facts say this; of the rest the ends will come."""
        for item in counted:
            self._values[item.key] = item
        for item in unended:
            call = self._calls[item.call_id] = _Call(item.key)
            call.staged = item

    async def first_notes(self, port: RunPort) -> list[Noted]:
        """What stands in front of the first fact of the run."""
        notes = [
            Noted(STAGED, {"key": item.key, "call_id": item.call_id, **await item.stored(port)})
            for item in self._restaged
        ]
        notes += self._remarks
        if self._first is not None:
            notes.append(note_of(self._first))
        return notes

    def began(self) -> None:
        """The first append is durable."""
        self._first = None
        self._restaged = []
        self._remarks = ()

    async def call_notes(
        self, fact: CallFinished | CallObserved, port: RunPort
    ) -> tuple[list[Noted], Callable[[bool], None]]:
        """What stands in front of the first end fact of a call, and what to do once it is stored, or refused."""
        call = self._calls.get(fact.call_id)
        staged = None if call is None else call.staged
        notes: list[Noted] = []
        if staged is not None and not staged.noted and not (type(fact) is CallFinished and _fell(fact)):
            notes.append(
                Noted(STAGED, {"key": staged.key, "call_id": staged.call_id, **await staged.stored(port)})
            )
        with self._lock:
            patch = self._patches.pop(fact.call_id, None)
        if patch is not None:
            notes.append(note_of(patch))

        def done(stored: bool) -> None:
            if staged is not None and stored:
                staged.noted = True
            if patch is not None and not stored:
                self._put_back({fact.call_id: patch})

        return notes, done

    def _put_back(self, patches: Mapping[str, dict[str, JSON]]) -> None:
        """An append was refused: what was to stand in it goes with the next one."""
        with self._lock:
            for call_id, patch in patches.items():
                self._patches[call_id] = {**patch, **self._patches.get(call_id, {})}

    def rest(self) -> tuple[list[Noted], Callable[[bool], None]]:
        """Changes of the shared state whose calls have not ended: in front of the run's end."""
        with self._lock:
            patches, self._patches = self._patches, {}

        def done(stored: bool) -> None:
            if not stored:
                self._put_back(patches)

        return [note_of(patch) for patch in patches.values()], done

    # Sealing

    def to_commit(self, outcome: Outcome) -> list[tuple[Member, Staged]]:
        """What is to be prepared for this end, in the order of the controllers."""
        ending = words(outcome).ending
        found = []
        for member in () if self._composition is None else self._composition.staged:
            staged = self._values.get(member.key)
            assert member.staged is not None
            if staged is not None and ending in member.staged.commit_on:
                found.append((member, staged))
        return found

    def failed(self, key: str, cause: BaseException) -> RunEnded:
        """A state could not be prepared: none is committed."""
        if isinstance(cause, ENDING):
            self.ends_process = cause
        self.error = CommitFailed(key)
        self.error.__cause__ = cause
        self.commits[key] = "failed"
        logger.error("the state of %s could not be committed", key, exc_info=cause)
        return RunEnded(Failed("commit", key, str(self.error), retryable=False))

    async def seal(
        self, end: RunEnded, prepared: list[tuple[Member, Staged, object]], port: RunPort
    ) -> list[Noted]:
        """The notes that commit; they stand in the append that ends the run."""
        committed: dict[str, JSON] = {}
        shown: dict[str, Any] = {}
        for member, staged, _ in prepared:
            committed[member.key] = {**await staged.stored(port), "digest": staged.digest}
            self._show(member, staged.value, shown)
        self._prepared, self._outcome, self.sealed = prepared, end.outcome, True
        notes = [Noted(COMMITTED, committed)]
        if shown:
            notes.append(note_of(shown))
        return notes

    def unseal(self) -> None:
        """The append was not stored."""
        self._prepared, self._outcome, self.sealed = [], None, False

    def over(self, around: Around, recorded: Outcome | None) -> None:
        """The run has its end: what was sealed with it is swapped in, the rest discarded (TC-74, TC-77)."""
        if self.closed:
            return
        if recorded is None and self.sealed:
            return  # the journal is away, and decides once it is back
        self.closed = True
        changed: list[tuple[Member, Change[Any]]] = []
        if self.sealed and recorded == self._outcome:
            assert self._composition is not None
            for member, staged, prepared in self._prepared:
                controller = member.staged
                assert controller is not None
                before = controller.state
                try:
                    controller.apply(staged.value, prepared)
                except ENDING:
                    raise
                except BaseException as error:  # noqa: BLE001 - the journal holds the new state
                    around.note(member.key, "apply", error)
                self.commits[member.key] = "committed"
                self._composition.states.committed(member.key, staged)
                changed.append((member, Change(before, staged.value, "model", self.reply.id)))
        for key in self._values:
            self.commits.setdefault(key, "discarded")
        self._values = {}
        self._prepared = []
        for member, change in changed:
            assert member.staged is not None
            member.staged.changed(change, lambda error, key=member.key: around.note(key, "on_change", error))  # type: ignore[misc]


def _fell(fact: CallFinished) -> bool:
    return fact.outcome != "succeeded" or fact.is_error


def _state_of(member: Member) -> Any:
    assert member.staged is not None
    return member.staged.state


def _public(member: Member, value: Any) -> JSON:
    """What the shared state shows of a controller; one that cannot be shown is not."""
    assert member.staged is not None
    if value is None:
        return None
    try:
        shown = member.staged.public(value)
        size = len(encode(shown))
    except ENDING:
        raise
    except BaseException:
        logger.exception("the public state of %s cannot be shown", member.key)
        return None
    if size > LARGEST_PUBLIC:
        logger.warning("the public state of %s has %d bytes and is not shown", member.key, size)
        return None
    return shown


LARGEST_PUBLIC: Final = 131_072
"""Bytes of what one controller shows in the shared state: a note is a fact, and facts are small."""


@final
class ReplyPort:
    """The port of a run whose send has changes (contracts.RunPort). What it does not change costs nothing."""

    def __init__(self, port: RunPort, changes: Changes, *, reopens: bool) -> None:
        self._port = port
        self._changes = changes
        self._reopens = reopens
        self._began = False
        self.scope = port.scope
        self.commands = port.commands
        self.tell = port.tell
        self.gate = port.gate
        self.put_artifact = port.put_artifact
        self.get_artifact = port.get_artifact
        self.attended = getattr(port, "attended", True)
        self.flow = getattr(port, "flow", None)
        watch = getattr(port, "on_gate", None)
        if watch is not None:
            self.on_gate = watch

    @property
    def state(self) -> RunFold:
        """The fold of the facts."""
        return self._port.state

    @property
    def paused(self) -> Collection[GatePoint]:
        """The points that are closed."""
        return self._port.paused

    def facts(self, after: int = 0) -> AsyncIterator[Record]:
        """The run's facts."""
        return self._port.facts(after)

    def record(self, *facts: Fact | Draft) -> Any:
        """Records, with the notes that belong there."""
        if self._changes.quiet:
            return self._port.record(*facts)
        return self._record(facts)

    async def _record(self, facts: Sequence[Fact | Draft]) -> int:
        changes, port = self._changes, self._port
        made: list[Fact | Draft] = list(await changes.first_notes(port))
        first = bool(made)
        then: list[Callable[[bool], None]] = []
        stored = False
        try:
            for entry in facts:
                made += await self._with_notes(entry, then)
            seq = await port.record(*made)
            stored = True
        finally:
            if not stored:
                changes.unseal()
            elif first:
                changes.began()
            for done in then:
                done(stored)
        if changes.ends_process is not None:
            raise changes.ends_process
        return seq

    async def _with_notes(
        self, entry: Fact | Draft, then: list[Callable[[bool], None]]
    ) -> list[Fact | Draft]:
        """A fact with what belongs in front of it."""
        changes, port = self._changes, self._port
        fact = entry.fact if type(entry) is Draft else entry
        notes: list[Noted] = []
        match fact:
            case CallStarted():
                changes.started(fact)
            case CallFinished() | CallObserved():
                notes, done = await changes.call_notes(fact, port)
                then.append(done)
                if isinstance(fact, CallFinished):
                    changes.finished(fact)
            case RunEnded():
                notes, done = changes.rest()
                then.append(done)
                end, sealing = await self._sealed(fact)
                notes += sealing
                if end is not fact:
                    entry = replace(entry, fact=end) if isinstance(entry, Draft) else end
        return [*notes, entry]

    async def _sealed(self, end: RunEnded) -> tuple[RunEnded, list[Noted]]:
        """Prepares what this end commits; the end as it is to be recorded, and the notes in front of it (TC-75).

        Raises:
            RecordRefused: `stopping`: a stop was faster. `input`: somebody has said something meanwhile.
        """
        changes = self._changes
        chosen = changes.to_commit(end.outcome)
        if not chosen:
            return end, []
        around = changes.reply.around
        assert around is not None
        caller = around.caller
        said: list[Command] = []
        take_backs = (
            self.scope.on_cancel(lambda: caller.halt(Halted())),
            self.commands.on_arrival(said.append),
        )
        prepared: list[tuple[Member, Staged, object]] = []
        task = current_task()
        try:
            for member, staged in chosen:
                assert member.staged is not None
                try:
                    made = await caller.call(
                        member.key, "prepare", member.staged.prepare, staged.value, changes.reply
                    )
                except Halted:
                    raise RecordRefused("stopping", "stopped while the state was prepared") from None
                except CancelledError:
                    raise
                except BaseException as error:
                    if is_closing(error, task):
                        raise
                    return changes.failed(member.key, error), []
                prepared.append((member, staged, made))
            if self._reopens and any(isinstance(item.body, Steer | FollowUp) for item in said):
                raise RecordRefused("input", "something was said while the state was prepared")
            notes = await changes.seal(end, prepared, self._port)
            if self.scope.cancelled:
                changes.unseal()
                raise RecordRefused("stopping", "stopped while the state was stored")
        finally:
            for take_back in take_backs:
                take_back()
        return end, notes


__all__ = ["COMMITTED", "Changes", "ReplyPort", "Staged"]
