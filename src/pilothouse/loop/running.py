"""One entered call: its task or thread, its stop, its time limit, and the result that it becomes (LP-44, LP-45)."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Callable
from typing import Any, Final, final

from ..core.calls import text_parts
from ..events import CallFinished
from ..messages import JSON
from .checking import Ready
from .context import ToolContext, current
from .ends import How, Verdict, hidden_text, how_of, judge_end, shown_text
from .results import BadResult, Content, content_of
from .stuck import StuckWatch
from .threads import Ended
from .tool_host import ToolHost

logger: Final = logging.getLogger("pilothouse.loop")


@final
class Running:
    """A call whose start is durable.

    Attributes:
        ready: what runs.
        attempt: which one of the call.
        asked: why it was asked to end, None while nobody did.
        began: when it was to be entered.
        entered: whether its function took its first step, or may have.
        watch: its supervision, None where there is none or it was disarmed.
        retry: it was asked to end so that the same call can be made once more.
        stage: what is noted of that once it happens.
    """

    def __init__(
        self,
        ready: Ready,
        attempt: int,
        context: ToolContext[Any],
        tool_host: ToolHost,
        *,
        due: float | None,
        began: float,
        watch: StuckWatch | None = None,
    ) -> None:
        self.ready = ready
        self.attempt = attempt
        self.asked: str | None = None
        self.watch = watch
        self.retry = False
        self.stage: dict[str, JSON] | None = None
        self._limit = due
        self.began = began
        self._context = context
        self._tool_host = tool_host
        self._future: asyncio.Future[Any] | None = None
        self.entered = False
        self._on_end: Callable[[object], object] | None = None  # called once

    def enter(self, on_end: Callable[[object], object]) -> None:
        """Enters the function; `on_end` is called when it has ended.

        While an earlier attachment's entry of the same call still goes on, it is not entered beside that: the two share
        its end (EF-6). One that let itself be cancelled has none to share.
        """
        entered, key = self._tool_host.entered, self.ready.key
        earlier = entered.get(key)
        if earlier is None:
            self._on_end = on_end
            self._future = entered[key] = self._begin()
            self._future.add_done_callback(self._done)
            return
        shared: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._future, self.entered = shared, True

        def ended(first: asyncio.Future[Any]) -> None:
            if shared.done():
                return
            if first.cancelled():
                self.enter(on_end)
            else:
                _copy(first, shared)

        shared.add_done_callback(lambda _: on_end(self) if self._future is shared else None)
        earlier.add_done_callback(ended)

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._left(future)
        self.tell_end()

    def tell_end(self) -> None:
        """Its function has ended, or does in this very step."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self)

    def _left(self, future: asyncio.Future[Any]) -> None:
        """Its end is nobody's to share any more."""
        if self._tool_host.entered.get(self.ready.key) is future:
            del self._tool_host.entered[self.ready.key]

    def _begin(self) -> asyncio.Future[Any]:
        tool, context = self.ready.tool, self._context
        work = tool.bind(self.ready.values, context)
        if tool.is_async:
            loop = asyncio.get_running_loop()
            return loop.create_task(_call(self, work, context), name=f"tool {tool.name}")
        self.entered = True  # a thread takes it when it likes
        token = current.set(context)
        try:
            return self._tool_host.threads.run(work)
        finally:
            current.reset(token)

    @property
    def due(self) -> float | None:
        """The next moment at which something happens to it by time, None if nothing does."""
        watched = None if self.watch is None else self.watch.due
        if watched is None or (self._limit is not None and self._limit < watched):
            return self._limit
        return watched

    @property
    def over(self) -> float | None:
        """When its time limit, or its grace, is over."""
        return self._limit

    @property
    def is_current(self) -> bool:
        """Whether it is the one that runs in this very step."""
        return self._future is asyncio.current_task()

    @property
    def ended(self) -> bool:
        """Whether the function has ended."""
        return self._future is not None and self._future.done()

    # Stop

    def ask_to_yield(self, reason: str) -> None:
        """Asks it to hand its work over and return; nothing is cancelled."""
        self._context.yield_token.set(reason)

    def ask(self, reason: str, grace_until: float) -> None:
        """Asks it to end: the token first, then its task (TL-10). The first reason counts."""
        if self.asked is not None:
            return
        self.asked = reason
        self._limit = grace_until
        self.watch = None
        self._context.token.set(reason)
        if isinstance(self._future, asyncio.Task):
            self._future.cancel(reason)

    def abandon(self) -> CallFinished:
        """Leaves it behind; its resource stays taken until it ends."""
        assert self._future is not None
        resource = self.ready.resource
        if self.retry:  # given up so that the same call can be made once more: that one is to be another
            self._left(self._future)
        self._tool_host.abandon(self._future, lambda: self._tool_host.resources.give_back(resource))
        self._context.close(tell=False)
        return self._finished(self._judged(How.ABANDONED, self._last_words()))

    def _last_words(self) -> str:
        """What is known of a call that was stuck: which one, how long, what it said last."""
        if self.asked != "stuck":
            return ""
        seconds = round(self._context.elapsed())
        said = self._context.said
        return f"{self.ready.tool.name} ran for {seconds} s" + (f"; it said last: {said}" if said else ".")

    # Result

    def result(self) -> CallFinished:
        """What an ended call becomes; frees its resource.

        Raises:
            BaseException: what is no tool's business: `KeyboardInterrupt`, `SystemExit`.
        """
        self._tool_host.resources.give_back(self.ready.resource)
        self._context.close(tell=True)
        assert self._future is not None
        self._left(self._future)  # before its callback: the same call may be made once more now
        ended = self._end()
        if ended.error is None:
            return self._returned(ended.value)
        if isinstance(ended.error, KeyboardInterrupt | SystemExit):
            raise ended.error
        return self._raised(ended.error)

    def _end(self) -> Ended:
        future = self._future
        assert future is not None
        if future.cancelled():
            return Ended(error=asyncio.CancelledError())
        if (error := future.exception()) is not None:
            return Ended(error=error)
        value = future.result()
        return value if isinstance(value, Ended) else Ended(value)

    def _returned(self, value: object) -> CallFinished:
        try:
            content = content_of(value)
        except BadResult as bad:
            if inspect.iscoroutine(value):
                value.close()
            text = f"{self.ready.tool.name} ran, but what it returned has no JSON form: {bad}."
            return self._finished(Verdict("failed", text, "bad_result", "bad_result"))
        return self._succeeded(content)

    def _succeeded(self, content: Content) -> CallFinished:
        ready = self.ready
        marks = []
        if content.terminate or ready.tool.terminate:
            marks.append("terminate")
        if self.attempt > 1:
            marks.append("retried")
        if content.backgrounded:
            marks.append("backgrounded")
        return CallFinished(
            ready.call.call_id,
            "succeeded",
            content.parts,
            content.is_error,
            marks=tuple(marks),
            attempt=self.attempt,
        )

    def _raised(self, error: BaseException) -> CallFinished:
        tool, how = self.ready.tool, how_of(error)
        text = shown_text(tool, error)
        if text is None and how is How.RAISED and self.asked is None:
            reference = os.urandom(4).hex()
            logger.error("tool %s failed (reference %s)", tool.name, reference, exc_info=error)
            text = hidden_text(tool, reference)
        return self._finished(self._judged(how, text or self._last_words()))

    def _judged(self, how: How, text: str) -> Verdict:
        ready = self.ready
        return judge_end(
            how, asked=self.asked, effect=ready.effect, cancel_safe=ready.tool.cancel_safe, text=text
        )

    def _finished(self, verdict: Verdict) -> CallFinished:
        return CallFinished(
            self.ready.call.call_id,
            verdict.outcome,
            text_parts(verdict.text),
            True,
            verdict.reason,
            verdict.error,
            verdict.marks,
            attempt=self.attempt,
        )


def _copy(first: asyncio.Future[Any], second: asyncio.Future[Any]) -> None:
    if (error := first.exception()) is not None:
        second.set_exception(error)
    else:
        second.set_result(first.result())


def is_call(task: asyncio.Task[Any]) -> bool:
    """Whether that is the task in which the function of a call runs itself, and none that it has started."""
    return getattr(task.get_coro(), "cr_code", None) is _call.__code__


async def _call(running: Running, work: Callable[[], Any], context: ToolContext[Any]) -> Any:
    running.entered = True
    current.set(context)
    try:
        return await work()
    finally:
        running.tell_end()  # not by a callback of the task: who waits is woken a pass of the loop earlier
