"""What a running tool is given: who it works for, when it is to stop, and how it says what it does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Final, Generic, Protocol, TypeVar, final, overload

import msgspec

from ..cancel import Token
from ..contracts import CancelToken
from ..errors import UsageError
from ..events import CallProgress, DeltaBody, Fact
from ..messages import JSON, Part, Text, Usage
from .answers import Backgrounded

D = TypeVar("D")
T = TypeVar("T")

PROGRESS_TEXT: Final = 512
"""Characters of a progress text that are told."""
PROGRESS_DETAILS: Final = 16
"""Details of a progress that are told; with more the last ones."""


class Budget(Protocol):
    """What a call may know and use of the run's limits."""

    def charge(self, usage: Usage) -> None:
        """Counts tokens that were used elsewhere."""
        ...

    def tokens_left(self) -> int | None:
        """Tokens that are left, None without a limit."""
        ...

    @property
    def agents_above(self) -> int:
        """How many agents the run stands below."""
        ...


class Delegating(Protocol):
    """The run of a call, as a sub-agent knows it."""

    def tell(self, body: DeltaBody, /) -> None:
        """Tells a delta."""
        ...

    async def record(self, *facts: Fact) -> int:
        """Records facts."""
        ...


@final
class ToolContext(Generic[D]):
    """One attempt of one call, as its function sees it. Valid until the function ends.

    Attributes:
        run_id, thread_id, turn, call_id, attempt: which one it is.
        idempotency_key: equal in all attempts of the call and after restarts; for the far side.
        deps: what the loop was given for its tools.
        cancelled: set before the task is cancelled; sync tools can only look at it.
        yield_requested: the same class, only asking (LP-26).
        parent: where a call that is a run of its own says so; None outside of a loop.
        deadline: on the clock's `monotonic`, None without a time limit.
    """

    def __init__(
        self,
        *,
        run_id: str,
        thread_id: str,
        turn: int,
        call_id: str,
        attempt: int,
        idempotency_key: str,
        deps: D,
        deadline: float | None,
        now: Callable[[], float],
        progress: Progress,
        ask: Callable[[str, type[Any] | None], Awaitable[Any]] | None = None,
        detach: Callable[[Coroutine[Any, Any, Any], str], str] | None = None,
        budget: Budget | None = None,
        parent: Delegating | None = None,
    ) -> None:
        self.run_id = run_id
        self.thread_id = thread_id
        self.turn = turn
        self.call_id = call_id
        self.attempt = attempt
        self.idempotency_key = idempotency_key
        self.deps = deps
        self.deadline = deadline
        self.token = Token()
        self._now = now
        self._began = now()
        self._said = progress
        self._ask = ask
        self._detach = detach
        self._budget = budget
        self.parent = parent

    @property
    def cancelled(self) -> CancelToken:
        """The stop of this call; may be looked at from any thread."""
        return self.token

    @property
    def yield_requested(self) -> CancelToken:
        """Somebody has something to say: hand the work over and return, if you can. Nothing is cancelled."""
        return self.yield_token

    @property
    def yield_token(self) -> Token:
        """The same, settable; made when it is first looked at, by whichever thread."""
        return self.__dict__.setdefault("_yield_token", Token())  # type: ignore[no-any-return]

    def remaining(self) -> float | None:
        """Seconds until the time limit, None without one; never negative."""
        return None if self.deadline is None else max(0.0, self.deadline - self._now())

    def progress(
        self, text: str | Part | None = None, *, fraction: float | None = None, data: JSON = None
    ) -> None:
        """Says how far the tool is. Never waits, works from any thread, is dropped after the end (TL-9).

        Args:
            text: the newest counts, 512 characters of it; a part that is no text is told as a detail.
            fraction: how much is done, 0 to 1.
            data: a detail; the last 16 are told.
        """
        if text is None or isinstance(text, str):
            self._said.say(text, fraction, data)
        elif isinstance(text, Text):
            self._said.say(text.text, fraction, data)
        else:
            self._said.say(None, fraction, msgspec.to_builtins(text))
            if data is not None:
                self._said.say(None, None, data)

    @overload
    async def ask(self, prompt: str) -> JSON: ...
    @overload
    async def ask(self, prompt: str, *, schema: type[T]) -> T: ...
    async def ask(self, prompt: str, *, schema: type[Any] | None = None) -> Any:
        """Asks a person and waits for the answer; for tools with effect `human` only (TL-12).

        Args:
            prompt: what the person reads.
            schema: a type that pydantic knows; the answer is validated and comes back as it. None takes any JSON.

        Raises:
            UsageError: the tool's effect is another one.
            ToolError: the person refused to answer.
        """
        if self._ask is None:
            raise UsageError("cannot ask a person from a tool whose effect is not human")
        return await self._ask(prompt, schema)

    def detach(self, work: Coroutine[Any, Any, Any], *, name: str, log: str | None = None) -> Backgrounded:
        """Hands work over to a job of the loop; return what this returns. The job ends with the loop (TL-17).

        Args:
            work: goes on after the tool has returned.
            name: what it is called.
            log: where its output can be found.
        """
        if self._detach is None:
            work.close()
            raise UsageError("cannot hand work over: this call has no loop")
        return Backgrounded(self._detach(work, name), name, log)

    def charge(self, usage: Usage) -> None:
        """Counts tokens that the call used elsewhere against the run's limits; from the event loop."""
        if self._budget is not None:
            self._budget.charge(usage)

    def tokens_left(self) -> int | None:
        """Tokens that the run may still use, None without a limit."""
        return None if self._budget is None else self._budget.tokens_left()

    @property
    def agents_above(self) -> int:
        """How many agents the run stands below, each of which made it by a call."""
        return 0 if self._budget is None else self._budget.agents_above

    def elapsed(self) -> float:
        """Seconds since the call was entered."""
        return self._now() - self._began

    @property
    def said(self) -> str:
        """The last progress text."""
        return self._said.text

    def close(self, *, tell: bool) -> None:
        """Ends the context with its call."""
        self._said.close(tell=tell)


_progress_lock: Final = threading.Lock()
"""One for all: it is held for a few assignments, and most calls never say anything."""


@final
class Progress:
    """What a tool says of itself, told together: a talkative tool costs one delta a pass of the event loop (TL-9).

    Args:
        call_id: whose.
        tell: called on the event loop that made this, whichever thread said it.
    """

    __slots__ = (
        "_call_id",
        "_closed",
        "_details",
        "_fraction",
        "_home",
        "_lock",
        "_loop",
        "_pending",
        "_tell",
        "text",
    )

    def __init__(self, call_id: str, tell: Callable[[CallProgress], object]) -> None:
        self._call_id = call_id
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()
        self._lock = _progress_lock
        self.text = ""
        self._fraction: float | None = None
        self._details: list[JSON] = []
        self._pending = False
        self._closed = False

    def say(self, text: str | None, fraction: float | None, data: JSON) -> None:
        """Takes a piece, from any thread; after the end it is dropped."""
        with self._lock:
            if self._closed:
                return
            if text is not None:
                self.text = text[:PROGRESS_TEXT]
            if fraction is not None:
                self._fraction = min(1.0, max(0.0, float(fraction)))
            if data is not None:
                self._details = [*self._details, data][-PROGRESS_DETAILS:]
            first, self._pending = not self._pending, True
        if first:
            self._wake()

    def _wake(self) -> None:
        if threading.get_ident() == self._home:
            self._loop.call_soon(self._tell_now)
            return
        try:
            self._loop.call_soon_threadsafe(self._tell_now)
        except RuntimeError:  # the event loop is gone: nobody is left to be told
            return

    def _tell_now(self) -> None:
        with self._lock:
            if not self._pending:
                return
            self._pending = False
            details, self._details = tuple(self._details), []
            said = CallProgress(self._call_id, self.text, self._fraction, details)
        self._tell(said)

    def close(self, *, tell: bool) -> None:
        """Takes nothing more; what was said before is still told, or not."""
        with self._lock:
            self._closed = True
        if tell:
            self._tell_now()
        else:
            self._pending = False


current: Final[ContextVar[ToolContext[Any] | None]] = ContextVar("pilothouse_call", default=None)


def current_yield_token() -> CancelToken:
    """The yield token of the call that runs here; outside a tool one that is never set."""
    context = current.get()
    return Token() if context is None else context.yield_token


def current_call() -> ToolContext[Any]:
    """The call that runs here, also in a worker thread.

    Raises:
        UsageError: no tool runs here.
    """
    context = current.get()
    if context is None:
        raise UsageError("cannot get the current call outside of a tool")
    return context
