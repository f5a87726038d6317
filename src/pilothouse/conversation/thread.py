"""The thread of a conversation: its place in the journal, how a run is registered there, how it is loaded (AC §3.11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.transcript import with_results
from ..errors import InvalidSpec, NotOpened, RunConflict, RunNotFound, RunUnknown
from ..messages import Message
from ..records import HistoryMessage, Parent, RunSpec
from ..runs.handle import Run
from .attachments import stored
from .leftover import Leftover, again, given_again, left_over
from .order import Order
from .past import retold
from .reply import Reply
from .setup import Setup
from .specs import run_options
from .stage import Stage

if TYPE_CHECKING:
    from .sending import Sender


class Thread:
    """What the journal knows a conversation by.

    Attributes:
        id: its name there.
        fresh: nothing of it can be in the journal.
        opened: what the journal has of it is shown.
        head: the run that the next one hangs on.
        base: a history without runs, recorded with the first one.
        leftover: steering that the head run did not take (AC-132).
        unended: the last fact that was seen of a head that had no end then.
    """

    __slots__ = ("base", "fresh", "head", "id", "leftover", "opened", "setup", "unended")

    def __init__(self, setup: Setup, thread_id: str | None) -> None:
        self.setup = setup
        self.id = thread_id or setup.new_id()
        self.fresh = self.opened = thread_id is None
        self.head: str | None = None
        self.unended: int | None = None
        self.base: tuple[Message, ...] = ()
        self.leftover: tuple[Leftover, ...] = ()

    async def check_open(self, action: str) -> None:
        """Refuses a thread that has runs which were not loaded."""
        if not self.opened:
            if await self.setup.runs.thread_head(self.id) is not None:
                raise NotOpened(action, self.id)
            self.opened = True

    def begin(self, base: tuple[Message, ...]) -> bool:
        """Another conversation begins; True if it needs, and has got, a new thread."""
        self.base, self.head, self.leftover, self.unended = base, None, (), None
        if self.fresh:
            return False
        self.id = self.setup.new_id()
        self.fresh = self.opened = True
        return True

    async def path_to(self, parent: Parent) -> tuple[Message, ...]:
        """The finished messages up to a parent that need not be the head (an edit, a branch)."""
        try:
            path = await self.setup.runs.history(parent.run_id)
        except RunNotFound as error:
            raise InvalidSpec(f"no parent run {parent.run_id}", "parent_not_found") from error
        through = with_results(path, parent.keep_through)
        found: list[Message] = []
        for entry in path:
            if entry.complete:
                found.append(entry.message)
            if entry.message.id == through:
                break
        return tuple(found)

    async def knows(self, reply: Reply, order: Order) -> bool:
        """Whether the journal knows this id, for the same content (AC-41)."""
        runs = self.setup.runs
        if not await runs.has_run(reply.id):
            return False
        spec = await runs.registered(reply.id)
        given = spec.extensions.get("controllers/request")
        if given is not None:  # what was registered may be a replacement, with context
            from .entering import request_digest

            if spec.thread_id != self.id or given != request_digest(order.parts, order.extras, order.aim):
                raise RunConflict(reply.id)
            return True
        asked = await self._parts(reply.user_message) if order.parts is not None else None
        same = spec.thread_id == self.id and (spec.input[0].parts if spec.input else None) == asked
        branch = order.extras.parent
        if not same or (branch is not None and (spec.parent is None or spec.parent.run_id != branch.run_id)):
            raise RunConflict(reply.id)
        return True

    async def _parts(self, message: Message | None) -> object:
        assert message is not None
        return (await stored(message, self.setup.runs.journal)).parts

    async def register(
        self, reply: Reply, order: Order, shown: tuple[Message, ...]
    ) -> tuple[Run, tuple[Message, ...]]:
        """Registers the run of a send; returns it with the messages that the conversation shows from then on.

        Raises:
            InvalidSpec, Unsupported, ThreadConflict, JournalError: there is no such run.
        """
        runs, extras = self.setup.runs, order.extras
        root = extras.base is not None
        parent = None if root else order.parent or (None if self.head is None else Parent(self.head))
        if order.keep is not None:
            keep = order.keep
        else:
            keep = shown if extras.parent is None else await self.path_to(extras.parent)
        message = None if order.parts is None else reply.user_message
        given = () if message is None else (await stored(message, runs.journal),)
        base = () if parent is not None else self.base if order.keep is None else order.keep
        if root:
            base = tuple(extras.base or ())
        if base and any(item.attachments for item in base):
            base = tuple([await stored(item, runs.journal) for item in base])
        spec = RunSpec(
            reply.id,
            reply.thread_id,
            given,
            extras.tenant,
            parent,
            base,
            run_options(reply.options, extras),
            None if extras.deadline is None else self.setup.clock.time_ms() + int(extras.deadline * 1000),
            config_digest=str(getattr(self.setup.route.runtime, "config_digest", "")),
            extensions={**extras.extensions, **(order.extensions or {})},
        )
        elsewhere = root or extras.parent is not None
        expect = await runs.thread_head(reply.thread_id) if elsewhere else self.head
        run = await runs.start(spec, until="accepted", expect_head=expect)
        return run, keep if message is None else (*keep, message)

    async def give_again(self, reply: Reply, order: Order, shown: tuple[Message, ...]) -> None:
        """Steering that the run before did not take is given to the one that hangs on it (AC-132)."""
        left, self.leftover = self.leftover, ()
        if order.parent is not None and order.parent.run_id != left[0].run_id:
            return
        on_path = {message.id for message in shown}
        passed = given_again.set(True)
        try:
            for item in left:
                if item.message.id not in on_path and reply.alive():
                    await self.setup.runs.command(again(item, reply.id), timeout=0)
        finally:
            given_again.reset(passed)

    async def load(self, sender: Sender, stage: Stage, *, again: bool = False) -> None:
        """Shows the path to the thread's head, as the journal has it now; nothing where it is shown already.

        `again`: that run has gone on since.
        """
        runs = self.setup.runs
        head = await runs.thread_head(self.id)
        seen = head == self.head and not again
        if head is None or (seen and self.unended is None):
            return
        view = await runs.inspect(head)
        if seen and view.last_seq == self.unended:
            return
        path = await runs.history(head)
        last = Reply(sender, head, self.id)
        over = view.outcome is not None or view.status == "unknown"
        if over:
            self._begin(last, path)
            await retold(runs, last)
            self.leftover = left_over(head, [record.fact for record in await runs.events(head)])
        if not again:
            from .entering import load

            await load(sender, Parent(head))
        self.head, self.fresh = head, False
        self.unended = view.last_seq if view.outcome is None else None
        stage.show(tuple([entry.message for entry in path if entry.complete]), last if over else None)
        if view.status == "unknown" and view.outcome is None:
            stage.lost(RunUnknown(head, view.unknown.cause if view.unknown else ""))
        else:
            stage.found()
        stage.tell()

    def _begin(self, reply: Reply, path: Sequence[HistoryMessage]) -> None:
        reply.commit(self.setup.runs.run(reply.id))
        users = [entry.message for entry in path if entry.message.role == "user"]
        reply.user_message = users[-1] if users else None
