"""Where a send without a new user message hangs in the tree: behind a failed run, or before an answer (AC-50)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Final

from ..core.transcript import last_exchange, wants_answer
from ..errors import InvalidTarget, NothingToDo, ThreadBusy
from ..messages import Message
from ..records import UNFINISHED, Parent, RunView
from .order import RETRY

if TYPE_CHECKING:
    from ..runs.controller import RunController
    from .sending import Sender

Place = tuple[Parent | None, tuple[Message, ...]]
"""The parent of the new run, None for the first of its thread, and the messages in front of it."""


class Retry:
    """Goes on from the last committed exchange of a run that did not come to its end."""

    action: Final = "retry"
    fingerprint: Hashable = RETRY

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    async def place(self, reply_id: str) -> Place:
        """Behind the failed run; one that is unknown is abandoned on the record first.

        Raises:
            NothingToDo: nothing is open.
            ThreadBusy: the last run goes on, or waits for a person.
        """
        sender = self._sender
        runs, head = sender.setup.runs, sender.thread.head
        if head is None:
            messages = sender.stage.messages  # of a snapshot, whose last message was not answered
            if messages and wants_answer(messages[-1]):
                return None, messages
            raise NothingToDo("cannot retry: there is no send to retry")
        view = await runs.inspect(head)
        lost = view.status == "unknown" or view.ownership == "stalled"
        if view.can and not lost:
            raise ThreadBusy(view.thread_id, head, tuple([request.id for request in view.requests]))
        if view.status not in UNFINISHED and not lost:
            raise NothingToDo(f"cannot retry: the last send is {view.status}")
        parent = await behind(runs, view, f"retried as {reply_id}")
        if parent is None:
            raise NothingToDo("cannot retry: no message wants an answer")
        return parent, await sender.thread.path_to(parent)


async def behind(runs: RunController, view: RunView, why: str) -> Parent | None:
    """Where a run hangs that goes on from the last committed exchange of one that did not complete; None if there is none.

    A run of which nobody knows the end is abandoned on the record first: a call that was cut has a result then, that it is
    unknown, and the model is told so and does not make it anew (AC-50, RC-60).
    """
    head = view.run_id
    keep_through = last_exchange(await runs.history(head))
    if keep_through is None:
        return None
    if view.outcome is None:
        await runs.abandon(head, why)
        keep_through = last_exchange(await runs.history(head))
    return Parent(head, keep_through)


class Regenerate:
    """Answers a user message again, as if nothing had been answered."""

    action: Final = "regenerate"

    def __init__(self, sender: Sender, message_id: str) -> None:
        self._sender = sender
        self._message_id = message_id
        self.fingerprint: Hashable = ("regenerate", message_id)

    async def place(self, _: str) -> Place:
        """Behind the nearest user message before that assistant message.

        Raises:
            InvalidTarget: there is none.
        """
        sender, wanted = self._sender, self._message_id
        messages = sender.stage.messages
        at = next((n for n, message in enumerate(messages) if message.id == wanted), -1)
        if at < 0 or messages[at].role != "assistant":
            raise InvalidTarget(f"cannot regenerate {wanted!r}: there is no such assistant message")
        while at >= 0 and messages[at].role != "user":
            at -= 1
        if at < 0:
            raise InvalidTarget(f"cannot regenerate {wanted!r}: no user message stands before it")
        user, owner = messages[at], sender.thread.head
        if owner is None:
            # Messages that were set: no run made them, so the new one begins with those that it keeps.
            return None, messages[: at + 1]
        for entry in await sender.setup.runs.history(owner):
            if entry.message.id == user.id and entry.seq:
                owner = entry.run_id
        return Parent(owner, user.id), messages[: at + 1]
