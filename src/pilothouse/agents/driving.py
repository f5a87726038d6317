"""A send of a local agent: shown at once, committed by the conversation, taken back if it is refused (AG-184)."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from ..contracts import CancelToken
from ..conversation.reply import Reply
from ..errors import ReplyCancelled
from ..messages import JSON, InputPart
from ..projection import EMPTY
from .answering import Answering
from .operation import Operation
from .surface import Attempt
from .telling import content_of

Send: TypeAlias = Callable[[str], Awaitable[Reply]]
"""Hands a send with this id to the conversation."""

logger = logging.getLogger("pilothouse.agents")


class Driving(Answering):
    """The layer that sends."""

    @abstractmethod
    def _cancel(self, op: Operation, reason: str) -> None:
        """A stop for one run alone."""

    def _begin(
        self,
        run_id: str,
        send: Send,
        parts: tuple[InputPart, ...] | None,
        message_id: str,
        *,
        policy: str = "raise",
        cancel: CancelToken | None = None,
        anew: bool = False,
        cut: int | None = None,
        patch: Mapping[str, JSON] | None = None,
    ) -> Operation:
        """Admits an action: everything that a reader sees of it happens here, before anything is sent (AG-184)."""
        loop = asyncio.get_running_loop()
        attempt = Attempt(run_id, Operation(loop, run_id), self._generation(run_id), message_id)
        attempt.begun = attempt.handed = False
        waits = policy == "queue"
        with self._batch():
            if not waits:
                self._patch = patch or EMPTY
                self._leave_run(policy)
                if cut is not None:
                    self._display.cut(cut)
                self._admit(attempt, continues=parts is None and not anew)
            if parts is not None:
                self._display.add_user(message_id, content_of(parts), sent=not waits, waits=waits)
        task = self._spawn(self._drive(attempt, send, anew=anew, waits=waits), f"run-{run_id[:8]}")
        attempt.task = task
        if waits:
            self._queued[attempt] = task
        if cancel is not None:
            attempt.leave = cancel.on_set(
                lambda: loop.call_soon_threadsafe(self._cancel, attempt.op, "cancelled")
            )
        return attempt.op

    async def _drive(self, attempt: Attempt, send: Send, *, anew: bool, waits: bool) -> None:
        run_id = attempt.run_id
        attempt.begun = True
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.client_tools.asked and not anew:
            await self._went_on()
        if attempt.stopped:
            self._take_back(attempt, None)
            return
        attempt.handed = True
        self._commits[run_id] = committed
        sending: asyncio.Future[Reply] = asyncio.ensure_future(send(run_id))
        try:
            waiting: set[asyncio.Future[Any]] = {sending, committed}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not committed.done() or sending.done():
                await (await sending).wait_committed()
        except asyncio.CancelledError:
            sending.cancel()
            if self._closed:
                raise
            self._take_back(attempt, None)
            return
        except ReplyCancelled:
            self._take_back(attempt, None)
            return
        except Exception as error:  # noqa: BLE001 - whatever the controller refuses with goes to whoever awaits
            self._take_back(attempt, error)
            return
        finally:
            self._commits.pop(run_id, None)
            self._queued.pop(attempt, None)
            sending.add_done_callback(_seen)
        self._patch = EMPTY  # a fact of the run from here on
        self._stop_if_withdrawn(attempt)
        if waits:
            with self._batch():
                self._display.release(attempt.message_id)
                if attempt.live:
                    self._admit(attempt)
        await self._follow_run(run_id, attempt, anew=anew)

    def _stop_if_withdrawn(self, attempt: Attempt) -> None:
        """It was taken back when its turn had just come."""
        reply = self._controller.reply
        if attempt.stopped and reply is not None and reply.id == attempt.run_id:
            self._controller.abort()

    def _again_or_anew(self) -> None:
        """Shows what the thread holds: a run that was left for the refused one lives on."""
        reply = self._controller.reply
        if reply is not None and reply.committed and not reply.ended:
            self._join(reply.id)
        else:
            if self._follow is not None and self._follow.over.is_set():
                self._follow = None
            self._spawn(self._load(), "reload")

    def _take_back(self, attempt: Attempt, error: BaseException | None) -> None:
        """No run came of it: what was shown at once is taken away (AG-15, AG-184)."""
        self._queued.pop(attempt, None)
        with self._batch():
            self._patch = EMPTY
            if attempt.message_id:
                self._display.remove(attempt.message_id)
            if attempt is self._attempt:
                self._display.end("aborted")
                self._attempt = None
                self.status.set("idle")
                self.is_loading.set(False)
        if not self._closed and self._attempt is None:
            self._again_or_anew()
        if error is None:
            self._settle(attempt, "aborted")
        else:
            if attempt.leave is not None:
                attempt.leave()
            attempt.op.refuse(error)


def _seen(task: asyncio.Future[Any]) -> None:
    """Its exception was looked at, or does not matter."""
    if not task.cancelled():
        task.exception()


__all__ = ["Driving", "Send"]
