"""Beginning a run: checks, registration before work, idempotent reopening (RC-31 … RC-35)."""

from __future__ import annotations

import asyncio
import logging
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from ..core.canonical import NotJSON, chain_start, digest, encode, misshapen, seal, settled
from ..core.run import HOST, Phase, RunState, absorb
from ..core.settling import event_id_of
from ..core.transcript import wants_answer
from ..errors import (
    InvalidSpec,
    JournalBusy,
    JournalError,
    JournalUnavailable,
    RunConflict,
    RunNotFound,
    StartRefused,
    StartUnknown,
    ThreadBusy,
    ThreadConflict,
    Unsupported,
    UsageError,
)
from ..events import Failed, RunAccepted
from ..messages import JSON, MEDIA, UNSET, Message, Unset
from ..records import Created, Record, Registration, RunHead, RunQuery, RunSpec, RunSummary
from .fleet import Fleet, Starting
from .history import known_ids
from .live import LiveRun
from .port import resolve

if TYPE_CHECKING:
    from .mirror import Mirror
    from .published import PublishedRun

logger = logging.getLogger("pilothouse.runs")

T = TypeVar("T")

ID_LIMIT = 200
_UNFIT = re.compile("[\\x00-\\x1f\\x7f\\ud800-\\udfff]")


def check_id(value: str, what: str) -> str:
    """An opaque id: 1–200 characters, no control characters, no surrogates (RC-1)."""
    if not 1 <= len(value) <= ID_LIMIT:
        raise InvalidSpec(f"{what} must have 1 to {ID_LIMIT} characters")
    if not value.isprintable() and _UNFIT.search(value):  # what can be printed is not searched
        raise InvalidSpec(f"{what} must not hold control characters or surrogates")
    return value


def _copy(value: JSON) -> JSON:
    """An independent copy, as it will be read back: compared in C, and looked through only where it is not the same."""
    if not value:
        return {}
    try:
        copy = msgspec.json.decode(msgspec.json.encode(value))
    except (RecursionError, TypeError, ValueError):
        copy = None
    return copy if copy == value else msgspec.json.decode(encode(value))


class Starter:
    """Starts runs of one fleet. Equal starts at the same time share one registration."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._uncertain: dict[str, None] = {}  # registrations whose commit was not confirmed, oldest first

    async def start(
        self,
        spec: RunSpec,
        *,
        until: Literal["accepted", "started"],
        expect_head: str | Unset | None,
    ) -> tuple[LiveRun | None, bool]:
        """Registers and drives a run, or finds the equal one: (the live run, if it is live here; reopened)."""
        fleet = self._fleet
        fleet.check_open("start a run")
        try:
            checked = self._checked(spec)
            if not self._is_first(checked):
                checked = await self._check_path(checked)
            registration = self._register(checked)
        except NotJSON as error:
            raise InvalidSpec(f"the spec cannot be stored: {error}") from error
        except (AttributeError, TypeError) as error:  # a spec of the wrong shape confuses the checks
            if why := misshapen(spec):
                raise InvalidSpec(f"the spec cannot be stored: {why}") from error
            raise
        try:
            live, reopened = await self._create(registration, expect_head)
        except RunConflict:
            if not await self._is_repeat(spec, registration):
                raise
            live, reopened = fleet.live.get(spec.run_id), True
        mirror = None if live is not None else fleet.mirror(spec.run_id)
        if mirror is not None and until == "started":
            await self._until_started_elsewhere(mirror)
        if live is None:
            await self._refused_before(spec.run_id)
        elif until == "started":
            await self._until_started(live)
        return live, reopened

    async def _refused_before(self, run_id: str) -> None:
        """A repeat of a start that was refused gets the same answer, also after a restart (RC-34)."""
        head = await self._fleet.head(run_id)
        if head.summary.status != "failed":
            return
        outcome = (await self._fleet.state(head)).outcome
        if isinstance(outcome, Failed) and outcome.kind == "start_refused":
            raise StartRefused(outcome.code or "refused", outcome.message, retryable=outcome.retryable)

    async def _is_repeat(self, given: RunSpec, made: Registration) -> bool:
        """Whether a spec that leaves open where its parent ends was registered when that was elsewhere (RC-33)."""
        head = await self._fleet.journal.head(given.run_id)
        if head is None or given.parent is None or (hangs := head.registration.spec.parent) is None:
            return False
        if given.parent.keep_through not in (None, hangs.keep_through):
            return False
        again = self._register(replace(made.spec, parent=replace(hangs, run_id=given.parent.run_id)))
        return again.identity == head.registration.identity

    async def _until_started(self, live: LiveRun) -> None:
        """Waits for the first fact of the runtime, bounded; the run goes on whatever comes of the waiting."""
        await live.wait_started(self._fleet.timing.start)
        if live.not_begun:
            raise StartUnknown(live.run_id)
        if (refusal := live.refusal) is not None:
            raise refusal

    async def _until_started_elsewhere(self, mirror: Mirror) -> None:
        """As `_until_started`, of a run that another process is to drive."""
        fleet = self._fleet
        begun = asyncio.Event()

        def shown() -> PublishedRun:  # this process may turn out to be the one that drives it
            return fleet.live.get(mirror.run_id) or mirror

        def look(_: object) -> None:
            if shown().state.phase is not Phase.ACCEPTED:
                begun.set()

        mirror.observers.append(look)
        look(None)
        fleet.agenda.after(fleet.timing.start, begun.set)
        try:
            await begun.wait()
        finally:
            for publishes in (mirror, shown()):
                if look in publishes.observers:
                    publishes.observers.remove(look)
        if shown().state.phase is Phase.ACCEPTED:
            raise StartUnknown(mirror.run_id)

    @staticmethod
    def _is_first(spec: RunSpec) -> bool:
        """The usual beginning of a thread: nothing stands in front of it, and nothing is to be compared."""
        return spec.parent is None and not spec.base and len(spec.input) == 1

    def _checked(self, spec: RunSpec) -> RunSpec:
        """The spec in its stored form, or the reason why there can be no such run."""
        fleet = self._fleet
        descriptor = fleet.described.descriptor
        check_id(spec.run_id, "run_id")
        check_id(spec.thread_id, "thread_id")
        if spec.parent is not None and spec.base:
            raise InvalidSpec("a run hangs on a parent or has a base, not both", "parent_and_base")
        if spec.output_schema is not None and not descriptor.structured_output:
            raise Unsupported("the runtime has no structured output", "structured_output")
        if spec.deadline_ms is not None and spec.deadline_ms <= 0:
            raise InvalidSpec("the deadline must be a time", "deadline")
        if spec.extensions and len(encode(spec.extensions)) > fleet.limits.max_extension_bytes:
            raise InvalidSpec(f"extensions exceed {fleet.limits.max_extension_bytes} bytes", "extensions")
        if spec.options or spec.extensions:  # what the caller goes on to change is not what was registered
            spec = replace(spec, options=_copy(spec.options), extensions=_copy(spec.extensions))
        self._check_media(spec.input)
        return spec

    def _check_media(self, messages: tuple[Message, ...]) -> None:
        accepts = self._fleet.described.descriptor.accepts
        for message in messages:
            for part in message.parts:
                if isinstance(part, MEDIA) and not any(fnmatchcase(part.mime_type, kind) for kind in accepts):
                    raise Unsupported(f"the runtime does not take {part.mime_type}", "media_type")

    async def _check_path(self, spec: RunSpec) -> RunSpec:
        """Resolves the parent (RC-68) and sees that there is something to answer."""
        fleet = self._fleet
        if spec.parent is not None:
            try:
                head = await fleet.paths.head(spec.parent.run_id)
            except RunNotFound as error:
                raise InvalidSpec(f"no parent run {spec.parent.run_id}", "parent_not_found") from error
            above = head.registration.spec
            if (above.thread_id, above.tenant) != (spec.thread_id, spec.tenant):
                raise InvalidSpec("the parent is of another thread or tenant", "parent_foreign")
            if head.summary.state != "terminal" and not spec.parent.seq:
                spec = replace(spec, parent=replace(spec.parent, seq=head.head.seq))
        # A stored spec always names where it hangs, so that a child's history never changes.
        path = (await fleet.paths.front(spec)).entries
        if path and spec.parent and spec.parent.keep_through is None:
            spec = replace(spec, parent=replace(spec.parent, keep_through=path[-1].message.id))
        elif path and spec.parent and (path[-1].message.role == "tool" or path[-1].message.tool_calls):
            spec = replace(spec, parent=await fleet.paths.place(spec.parent))
            path = (await fleet.paths.front(spec)).entries
        ids = known_ids(path)
        for message in spec.input:
            if message.id in ids:
                raise InvalidSpec(f"message id {message.id} is used on the path already", "message_id_used")
            ids.add(message.id)
        if not spec.input:
            complete = [entry.message for entry in path if entry.complete]
            if not complete or not wants_answer(complete[-1]):
                raise InvalidSpec("there is no message that wants an answer", "nothing_to_do")
        return spec

    def _register(self, spec: RunSpec) -> Registration:
        fleet = self._fleet
        spec, body = settled(spec)
        spec_digest = digest(body)
        identity = digest(f"{spec_digest}\n{fleet.binding}\n{fleet.described.digest}".encode())
        return Registration(
            spec, spec_digest, fleet.binding, fleet.described.digest, identity, fleet.clock.time_ms()
        )

    async def _create(
        self, registration: Registration, expect_head: str | Unset | None
    ) -> tuple[LiveRun | None, bool]:
        run_id = registration.spec.run_id
        fleet = self._fleet
        if (live := fleet.live.get(run_id)) is not None:
            if live.registration.identity != registration.identity:
                raise RunConflict(run_id)
            return live, True
        if (other := fleet.starting.get(run_id)) is not None:
            if other.identity != registration.identity:
                raise RunConflict(run_id)
            return (await _joined(other.task))[0], True
        if fleet.journal.immediate:  # nobody can come in between
            return await self._register_durably(registration, expect_head)
        # What was handed over is finished, whatever happens to who asked for it (RC-14).
        task = asyncio.get_running_loop().create_task(self._register_durably(registration, expect_head))
        fleet.starting[run_id] = Starting(registration.identity, task)
        task.add_done_callback(lambda done: self._begun(run_id, done))
        return await _joined(task)

    def _begun(self, run_id: str, task: asyncio.Task[tuple[LiveRun | None, bool]]) -> None:
        del self._fleet.starting[run_id]
        if not task.cancelled() and isinstance(error := task.exception(), JournalError):
            logger.warning("the start of run %s failed: %s", run_id, error)

    async def _register_durably(
        self, registration: Registration, expect_head: str | Unset | None
    ) -> tuple[LiveRun | None, bool]:
        """Intent first: the registration is durable before the runtime is called (RC-32)."""
        fleet = self._fleet
        spec = registration.spec
        try:
            if expect_head is UNSET and fleet.described.descriptor.thread_reuse == "sequential":
                guess: str | Unset | None = self._last_here(spec)
            else:
                guess = await self._check_thread(spec, expect_head)
        except Unsupported as refusal:
            return await self._registered_before(registration, refusal)
        if len(fleet.live) - len(fleet.finished) >= fleet.limits.max_live_runs:
            raise Unsupported(f"{fleet.limits.max_live_runs} runs are live", "too_many_runs")
        chain = chain_start(spec.run_id, registration.spec_digest)
        state = RunState(spec.run_id, chain, fleet.terms(spec))
        fact = RunAccepted(
            spec.thread_id, registration.spec_digest, registration.binding, registration.descriptor_digest
        )
        event_id = event_id_of(fact, 1, HOST)
        record = seal(spec.run_id, 1, registration.created_at_ms, HOST, 1, fact, event_id, None, None, chain)
        absorb(state, record)
        try:
            created = await self._created(registration, record, state.summary(), expect_head, guess)
        except Unsupported as refusal:
            return await self._registered_before(registration, refusal)
        except (JournalUnavailable, JournalBusy):  # it may have been committed all the same (JR-23)
            self._uncertain[spec.run_id] = None
            if len(self._uncertain) > fleet.limits.max_live_runs:
                del self._uncertain[next(iter(self._uncertain))]
            raise
        head = created.head
        if fleet.dispatcher is not None:
            return await self._dispatched(registration, state, created)
        if created.existing:
            if head.registration.identity != registration.identity:
                raise RunConflict(spec.run_id)
            if spec.run_id not in self._uncertain or (head.owner, head.head.seq) != (fleet.owner.id, 1):
                return None, True
            # An earlier try of ours had been stored after all, and nobody drives it: now it is driven.
            registration, state = head.registration, await fleet.refold(head.registration)
        self._uncertain.pop(spec.run_id, None)
        live = fleet.host(registration, state, head.fence)
        live.publish_stored(record)
        try:
            await fleet.drive(live, resume=False)
        except Exception as error:  # nobody would drive it, and nobody is to wait for it
            await live.lose("error", f"it could not be begun: {type(error).__name__}: {error}")
            raise
        return live, created.existing

    async def _dispatched(
        self, registration: Registration, state: RunState, created: Created
    ) -> tuple[None, bool]:
        """The run is registered and somebody is to drive it; it is shown here from its beginning on."""
        fleet = self._fleet
        head = created.head
        if head.registration.identity != registration.identity:
            raise RunConflict(registration.spec.run_id)
        if not created.existing and fleet.hub is not None:
            fleet.hub.open(registration, state)
        if head.owner is None and head.summary.state == "accepted":
            await fleet.hand_to_dispatcher(registration, head.fence)
        return None, created.existing

    async def _created(
        self,
        registration: Registration,
        record: Record,
        summary: RunSummary,
        expect_head: str | Unset | None,
        guess: str | Unset | None,
    ) -> Created:
        """Registers it. A wrong guess at what the thread's last run is, where nobody said it, is looked into."""
        fleet = self._fleet
        create = fleet.journal.create
        claim = None if fleet.dispatcher is not None else fleet.claim_request()
        try:
            return await create(registration, [record], summary=summary, claim=claim, expect_head=guess)
        except ThreadConflict as moved:
            if expect_head is not UNSET:
                raise
            last = moved.head
        await self._check_last(registration.spec, last)
        return await create(registration, [record], summary=summary, claim=claim, expect_head=UNSET)

    async def _registered_before(
        self, registration: Registration, refusal: Unsupported
    ) -> tuple[LiveRun | None, bool]:
        """A repeat of what is registered asks for nothing new, whatever refuses a new one (RC-33)."""
        run_id = registration.spec.run_id
        head = await self._fleet.journal.head(run_id)
        if head is None:
            raise refusal
        if head.registration.identity != registration.identity:
            raise RunConflict(run_id) from None
        return self._fleet.live.get(run_id), True

    async def _check_thread(self, spec: RunSpec, expect_head: str | Unset | None) -> str | Unset | None:
        """Refuses a run that the runtime cannot have beside another one of its thread (RC-35).

        Returns the head that the thread must have.
        """
        fleet = self._fleet
        reuse = fleet.described.descriptor.thread_reuse
        if reuse == "parallel":
            return expect_head
        if reuse == "none":
            page = await fleet.journal.list(RunQuery(thread_id=spec.thread_id), limit=1)
            if page.items and page.items[0].run_id != spec.run_id:
                raise Unsupported("the runtime takes one run a thread", "thread_busy")
            return expect_head
        known = self._last_here(spec)
        if expect_head is UNSET:
            return known
        if expect_head != known:
            await self._check_last(spec, expect_head)
        return expect_head

    def _last_here(self, spec: RunSpec) -> str | None:
        """The last run of a thread as far as it is known here, where it lets another one pass.

        Where nobody said what the head must be it is this: the store compares anyway, so that a guess saves a read, and a
        wrong one is told as a conflict.
        """
        live = self._fleet.threads.get(spec.thread_id)
        if live is None:
            return None
        if not live.over and live.run_id != spec.run_id:
            raise _busy(live.state, spec)
        return None if live.released or live.run_id == spec.run_id else live.run_id

    async def _check_last(self, spec: RunSpec, last: str | Unset | None) -> None:
        """Of the runs that are not live here only the last can be, elsewhere or at rest: it let nobody pass either."""
        if isinstance(last, str) and last != spec.run_id:
            head = await self._fleet.journal.head(last)
            if head is not None and self._is_live(head):
                raise _busy(await self._fleet.state(head), spec)

    def _is_live(self, head: RunHead) -> bool:
        """Whether a run of this contract is neither ended nor unknown (RC-35, RC-50)."""
        fleet = self._fleet
        if head.summary.state in ("terminal", "unknown") or fleet.why_not(head.registration) is not None:
            return False
        return fleet.ownership(head) not in ("orphaned", "none")


async def _joined(task: asyncio.Task[T]) -> T:
    """The result of a task that goes on if whoever waits for it leaves."""
    over = asyncio.get_running_loop().create_future()
    task.add_done_callback(lambda _: resolve(over))
    await over
    if task.cancelled():
        raise UsageError("cannot start a run while the run controller is closed")
    return task.result()


def _busy(state: RunState, spec: RunSpec) -> ThreadBusy:
    return ThreadBusy(spec.thread_id, state.run_id, tuple(state.requests))
