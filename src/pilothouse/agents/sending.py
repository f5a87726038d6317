"""A send of a local agent: shown at once, committed by the conversation, taken back if it is refused (AG-184)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, final

from ..conversation.controller import AgentController
from ..conversation.reply import Reply
from ..errors import ReplyCancelled
from ..messages import JSON, InputPart
from ..projection import EMPTY
from .answering import Answerer
from .following import Follower
from .localtools import LocalTools
from .operation import Operation
from .source import LocalSource
from .surface import Attempt, Surface
from .telling import content_of
from .thread import Thread

HandOver: TypeAlias = Callable[[str], Awaitable[Reply]]
"""Hands a send with this id to the conversation."""


class Send(Attempt):
    """An attempt that begins a run of the conversation.

    Attributes:
        begun: its task has run.
        handed: the conversation has it; before that nothing of it is anywhere but here.
        stopped: a stop was ordered: nothing of it may begin any more.
    """

    begun = handed = stopped = False


@final
class Sender:
    """Hands sends to the conversation, at once or behind the one that is in flight, and takes back what is refused."""

    def __init__(
        self,
        controller: AgentController,
        surface: Surface,
        source: LocalSource,
        client_tools: LocalTools,
        follower: Follower,
        answerer: Answerer,
        thread: Thread,
    ) -> None:
        self._controller = controller
        self._surface = surface
        self._source = source
        self._display = source.display
        self._tools = client_tools
        self._follower = follower
        self._answerer = answerer
        self._thread = thread
        self._queued: dict[str, Send] = {}  # by run id
        self._commits: dict[str, asyncio.Future[None]] = {}  # by run id: what the conversation was given

    @property
    def working(self) -> bool:
        """Whether a send is on its way that nobody sees yet: its turn has not come, or was not noticed."""
        return bool(self._queued) or bool(self._commits)

    @property
    def queued(self) -> list[Operation]:
        """Those that wait for their turn."""
        return [send.op for send in self._queued.values()]

    def begin(
        self,
        run_id: str,
        hand_over: HandOver,
        parts: tuple[InputPart, ...] | None = None,
        message_id: str = "",
        *,
        policy: str = "raise",
        anew: bool = False,
        cut: int | None = None,
        patch: Mapping[str, JSON] | None = None,
    ) -> Operation:
        """Admits an action: everything that a reader sees of it happens here, before anything is sent (AG-184).

        `anew`: it does not hang on what is shown, of which `cut` messages stay.
        """
        send = Send(run_id, message_id)
        waits = policy == "queue"
        with self._surface.batch():
            if not waits:
                self._source.patch(patch or EMPTY)
                self._follower.give_way()
                if policy == "supersede":
                    self._follower.void()
                if cut is not None:
                    self._display.cut(cut)
                self._surface.admit(send, continues=parts is None and not anew)
            if parts is not None:
                self._display.add_user(message_id, content_of(parts), sent=not waits, waits=waits)
        if waits:
            self._queued[run_id] = send
        driving = self._drive(send, hand_over, anew=anew, waits=waits)
        send.task = self._surface.tasks.spawn(driving, f"run-{run_id[:8]}")
        return send.op

    async def _drive(self, send: Send, hand_over: HandOver, *, anew: bool, waits: bool) -> None:
        send.begun = True
        if not anew and (asked := self._tools.take_asked()):
            await self._answerer.went_on(asked)
        if send.stopped:
            self._take_back(send)
            return
        send.handed = True
        try:
            await self._commit(send.run_id, hand_over)
        except asyncio.CancelledError:
            if self._surface.tasks.closed:
                raise
            self._take_back(send)
        except ReplyCancelled:
            self._take_back(send)
        except Exception as error:  # noqa: BLE001 - whatever the controller refuses with goes to whoever awaits
            self._take_back(send, error)
        else:
            self._committed(send, waits=waits)
            await self._follower.follow(send, anew=anew)

    async def _commit(self, run_id: str, hand_over: HandOver) -> None:
        """Returns once it is registered.

        Raises:
            Exception: whatever the conversation refuses it with.
        """
        committed = self._commits[run_id] = asyncio.get_running_loop().create_future()
        sending: asyncio.Future[Reply] = asyncio.ensure_future(hand_over(run_id))
        try:
            waiting: set[asyncio.Future[Any]] = {sending, committed}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not committed.done() or sending.done():
                await (await sending).wait_committed()
        except asyncio.CancelledError:
            sending.cancel()
            raise
        finally:
            self._commits.pop(run_id, None)
            self._queued.pop(run_id, None)
            sending.add_done_callback(_seen)

    def notice(self, run_id: str) -> bool:
        """The conversation shows a run that is registered; whether it came from here."""
        committed = self._commits.get(run_id)
        if committed is not None and not committed.done():
            committed.set_result(None)
        return committed is not None

    def _committed(self, send: Send, *, waits: bool) -> None:
        self._source.patch()  # a fact of the run from here on
        reply = self._controller.reply
        if send.stopped and reply is not None and reply.id == send.run_id:
            self._controller.abort()  # it was taken back when its turn had just come
        if waits:
            with self._surface.batch():
                self._display.release(send.message_id)
                if send.live:
                    self._surface.admit(send)

    # Taking back

    def withdraw_queued(self) -> None:
        """Takes back whatever waits for its turn."""
        for send in list(self._queued.values()):
            self._withdraw(send)

    def withdraw(self, op: Operation) -> None:
        """Takes a submission back, if it waits for its turn."""
        for send in list(self._queued.values()):
            if send.op is op:
                self._withdraw(send)

    def _withdraw(self, send: Send) -> None:
        """Takes a queued submission back, or stops it if its turn has just come."""
        assert send.task is not None
        send.live, send.stopped = False, True
        for queued in self._controller.queued:
            if queued.id == send.run_id:
                queued.abort()
        current = self._controller.reply
        if not send.handed:
            send.task.cancel()
            self._take_back(send)
            return
        send.task.add_done_callback(lambda _: send.op.settle("aborted"))
        if current is not None and current.id == send.run_id:
            self._controller.abort()

    def stop(self, attempt: Attempt) -> bool:
        """Stops what only this agent knows of; whether that was all."""
        if not isinstance(attempt, Send):
            return False
        attempt.stopped = True
        if not attempt.begun and attempt.task is not None:  # nothing was registered
            attempt.task.cancel()
            self._take_back(attempt)
        return not attempt.handed  # it is taken back instead

    def _take_back(self, send: Send, error: BaseException | None = None) -> None:
        """No run came of it: what was shown at once is taken away (AG-15, AG-184)."""
        self._queued.pop(send.run_id, None)
        surface = self._surface
        with surface.batch():
            self._source.patch()
            if send.message_id:
                self._display.remove(send.message_id)
            if send is surface.attempt:
                surface.leave("aborted")
                surface.rest()
        if not surface.tasks.closed and surface.attempt is None:
            self._show_again()
        if error is None:
            send.op.settle("aborted")
        else:
            send.op.refuse(error)

    def _show_again(self) -> None:
        """Shows what the thread holds: a run that was left for the refused one lives on."""
        reply = self._controller.reply
        if reply is not None and reply.committed and not reply.ended:
            self._follower.join(reply.id)
        else:
            self._follower.forget()
            self._surface.tasks.spawn(self._thread.load(), "reload")


def _seen(task: asyncio.Future[Any]) -> None:
    """Its exception was looked at, or does not matter."""
    if not task.cancelled():
        task.exception()


__all__ = ["HandOver", "Send", "Sender"]
