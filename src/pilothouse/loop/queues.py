"""Input that arrives while a run goes on: steering between turns, follow-ups when it would stop (LP-22 … LP-24).

A host's own sources are drained before the run's inbox. What is taken is recorded with the turn that it opens; an item
of the inbox names its command, so that it has exactly one fate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, TypeAlias, final

from msgspec.structs import replace

from ..commands import CommandKind
from ..events import MessageAdded, Noted
from ..messages import MEDIA, Message, Text, user_message
from ..records import Draft
from .compacting import is_message
from .hooks import HookFailed, PollInfo
from .work import Work

Kind: TypeAlias = Literal["steering", "follow_up"]

MAX_LENGTH: Final = 1_000_000
"""Characters of one queued message of a source; a longer one is noted and skipped."""


class Item(NamedTuple):
    """A queued message; `command_id` where a command brought it."""

    message: Message
    command_id: str | None = None


_COMMANDS: Final[dict[Kind, CommandKind]] = {"steering": "steer", "follow_up": "follow_up"}


@final
class Queues:
    """The two queues of one run.

    Attributes:
        has_sources: whether a poll may have to wait for somebody's code.
    """

    def __init__(self, work: Work) -> None:
        config = work.plan.config
        self._work = work
        self._left: dict[Kind, list[Message]] = {}  # what a source gave beyond one at a time
        self.has_sources = (
            config.get_steering_messages is not None or config.get_follow_up_messages is not None
        )

    @property
    def quiet(self) -> bool:
        """Whether no poll of either queue could give anything: one look, for the usual end of a turn."""
        return not (self.has_sources or self._left or self._work.port.commands.peek() is not None)

    def _source(self, kind: Kind) -> Callable[[PollInfo], Any] | None:
        config = self._work.plan.config
        return config.get_steering_messages if kind == "steering" else config.get_follow_up_messages

    def open(self, kind: Kind) -> bool:
        """Whether that queue is still polled in this run."""
        plan = self._work.plan
        most = plan.config.max_steering_turns if kind == "steering" else plan.limits.follow_up_batches
        return self._work.batches[kind] < most

    def empty(self, kind: Kind) -> bool:
        """Whether a poll would certainly give nothing: no source to be asked, nothing in the inbox."""
        if self._source(kind) is not None or kind in self._left:
            return False
        return self._work.port.commands.peek(_COMMANDS[kind]) is None

    async def poll(self, kind: Kind) -> list[Item]:
        """Takes the next batch; empty if nothing is queued, or if its cap is reached."""
        if not self.open(kind):
            return []
        items = await self._from_source(kind)
        config = self._work.plan.config
        mode = config.steering_mode if kind == "steering" else config.follow_up_mode
        one = mode == "one_at_a_time"
        if one and len(items) > 1:
            self._left[kind] = [item.message for item in items[1:]]
            items = items[:1]
        inbox = self._work.port.commands
        while not (one and items) and (pending := inbox.take(_COMMANDS[kind])) is not None:
            message = getattr(pending.command.body, "message", None)
            if isinstance(message, Message):
                command_id = pending.command.id
                items.append(Item(self._own_id(message, command_id, items), command_id))
        if items:
            self._work.batches[kind] += 1
        return items

    def record(self, kind: Kind, items: Sequence[Item]) -> None:
        """Notes a batch with the turn that it belongs to, and puts it into the context."""
        work = self._work
        # A resume counts batches by this note: a source's message has no command that tells what it was.
        work.recorder.note(
            Noted("loop/poll", {"kind": kind, "messages": [item.message.id for item in items]})
        )
        for message, command_id in items:
            work.recorder.note(Draft(MessageAdded(message, work.turn), causation=command_id))
            work.add(message)

    async def _from_source(self, kind: Kind) -> list[Item]:
        left = self._left.pop(kind, [])
        source = self._source(kind)
        given: Sequence[Any] = ()
        if source is not None and not left:
            work = self._work
            info = PollInfo(work.run_id, work.thread_id, work.turn, work.scope)
            try:
                given = (
                    await work.hooks.call(f"get_{kind}_messages", source, info, returns=(list, tuple)) or ()
                )
            except HookFailed as failure:  # counts as empty; never a reason to lose a call (§2.4)
                work.recorder.note(Noted("loop/hook", {"hook": kind, "failure": str(failure)}))
        known = {message.id for message in self._work.context} | self._work.left_out if given else set()
        items = [Item(message) for message in left]
        for number, one in enumerate(given):
            message = self._message(one, f"{self._work.run_id}-{kind}-{self._work.turn}-{number}")
            if message is None:
                self._work.recorder.note(Noted("loop/hook", {"hook": kind, "skipped": type(one).__name__}))
            elif message.id not in known:  # a source may offer again after a crash
                known.add(message.id)
                items.append(Item(message))
        return items

    def _message(self, given: object, made_id: str) -> Message | None:
        if isinstance(given, str):
            given = user_message(given, made_id)
        if not isinstance(given, Message) or given.role != "user" or not is_message(given):
            return None
        size = sum(len(part.text) for part in given.parts if isinstance(part, Text))
        return (
            given
            if size <= MAX_LENGTH and (size or any(isinstance(part, MEDIA) for part in given.parts))
            else None
        )

    def _own_id(self, message: Message, command_id: str, batch: Sequence[Item]) -> Message:
        """A queued message whose id the thread has already gets another: a fact of that id would be refused (RC-23)."""
        work, wanted = self._work, message.id
        others = chain(reversed(work.context), [item.message for item in batch])
        if wanted in work.left_out or any(wanted == other.id for other in others):
            return replace(message, id=f"{wanted}-{command_id}")
        return message
