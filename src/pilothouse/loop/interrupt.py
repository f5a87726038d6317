"""One await that can be let go of, without a task of its own and whatever the awaited code does.

Theory of operation: `Interruptible.run` steps the awaited coroutine by hand. What that coroutine waits for is handed to
the event loop unchanged, so nothing is added where nothing waits. To interrupt, the thing waited for is cancelled,
which raises `CancelledError` inside the awaited code just where it waits, exactly as a cancelled task would feel it;
the task itself is not cancelled, so its own cancellation from outside stays what it is and is never swallowed. Code
that goes on in spite of that is thrown out when the grace is over.
"""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

from ..contracts import Clock
from .timers import call_later

T = TypeVar("T")
logger: Final = logging.getLogger("pilothouse.loop")

GRACE: Final = 0.5
"""Seconds that interrupted code has for leaving (LP-43)."""


class Interrupted(Exception):
    """The awaited code was let go of before it had a result."""


class _Abandoned(BaseException):
    """Thrown into code that ignored its interruption."""


_TRIES: Final = 3
"""How often it is thrown: code that waits again while it leaves gets another one there."""


class Interruptible:
    """Awaits one coroutine at a time in the caller's own task; `interrupt` makes that await end.

    Args:
        clock: measures the grace.
        on_wait: called each time the awaited code is about to wait for something.
        limit: seconds after which a wait is interrupted by itself.

    Attributes:
        running: whether something is awaited.
    """

    __slots__ = (
        "_asked",
        "_cancel_timer",
        "_clock",
        "_delivered",
        "_forced",
        "_future",
        "_left",
        "_limit",
        "_on_wait",
        "running",
    )

    def __init__(
        self, clock: Clock, on_wait: Callable[[], None] | None = None, *, limit: float | None = None
    ) -> None:
        self._clock = clock
        self._limit = limit
        self._on_wait = on_wait
        self._future: Any = None
        self._asked = False  # interrupt was called
        self._delivered = False  # the awaited code has felt it
        self._forced = False  # its grace is over
        self.running = False
        self._left: asyncio.Future[None] | None = None
        self._cancel_timer: Callable[[], None] | None = None

    @property
    def waiting(self) -> bool:
        """Whether the awaited code waits for something at the moment."""
        return self._future is not None

    def interrupt(self) -> None:
        """Asks the awaited code to leave, now or at its next wait. Idempotent; to be called on the event loop."""
        if self._asked:
            return
        self._asked = True
        if self._future is not None:
            self._delivered = self._wake()
            self._set_grace()

    def _set_grace(self) -> None:
        if self._cancel_timer is not None:
            self._cancel_timer()
        self._cancel_timer = call_later(self._clock, GRACE, self._force)

    def forget(self) -> None:
        """Drops what it was given: it will not be used again."""
        self._on_wait = None

    async def left(self) -> None:
        """Waits until nothing is awaited any more; for others than the awaiting task."""
        if self.running:
            self._left = self._left or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._left)

    def _force(self) -> None:
        self._forced = True
        self._cancel_timer = None
        self._wake()

    def _wake(self) -> bool:
        cancel = getattr(self._future, "cancel", None)
        return bool(cancel is not None and cancel())

    @types.coroutine
    def run(
        self, work: Coroutine[Any, Any, T], begun: Any = None, *, otherwise: Callable[[], T] | None = None
    ) -> Generator[Any, Any, T]:
        """Awaits `work`; `begun` is what it waits for already, where its first step was made.

        Raises:
            Interrupted: it left, or was left, because of `interrupt`, and no `otherwise` says what that comes to.
            asyncio.CancelledError: the task was cancelled from outside; this wins over an interruption.
        """
        task = asyncio.current_task()
        assert task is not None
        cancels = task.cancelling()
        self.running = True
        error: BaseException | None = None
        try:
            while True:
                if begun is not None:
                    future, begun = begun, None
                else:
                    try:
                        future = work.send(None) if error is None else work.throw(error)
                    except StopIteration as stop:
                        return stop.value  # type: ignore[no-any-return]
                    error = None
                if self._asked and not self._delivered:  # asked while it was running
                    self._delivered = True
                    error = asyncio.CancelledError()
                    self._set_grace()
                    continue
                if self._on_wait is not None:
                    self._on_wait()
                if self._limit is not None and self._cancel_timer is None:
                    self._cancel_timer = call_later(self._clock, self._limit, self.interrupt)
                self._future = future
                try:
                    yield future
                except BaseException as raised:  # noqa: BLE001 - all of it belongs to the awaited code
                    error = raised
                finally:
                    self._future = None
                if self._forced:
                    _abandon(work)
                    raise asyncio.CancelledError  # noqa: TRY301 - judged as one that came out of it
        except asyncio.CancelledError:
            if not self._asked or task.cancelling() != cancels:
                raise
            if otherwise is None:
                raise Interrupted from None
            return otherwise()
        finally:
            self.running = False
            if self._cancel_timer is not None:
                self._cancel_timer()
                self._cancel_timer = None
            if self._left is not None and not self._left.done():
                self._left.set_result(None)


def _abandon(work: Coroutine[Any, Any, Any]) -> None:
    # Not close(): in CPython before 3.13 that leaves an async generator below it suspended for good.
    for _ in range(_TRIES):
        try:
            work.throw(_Abandoned())
        except BaseException:  # noqa: BLE001 - it has ended, which is all that was wanted
            return
    logger.warning("code that was interrupted does not end: it was left behind")
