"""Values that change, told in batches (agent-contract §3.1).

One `Hub` an agent. A cause opens a batch, sets every cell it changes, and leaves: then subscribers are told. So whoever
reads a second signal in a callback sees the same batch. A batch that is made inside a callback is told after the one in
progress, in order: no recursion, no lost update. There is no task, no thread and no event loop in here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, final

from ..agent_contracts import Signal
from ..cancel import LEAVING

logger = logging.getLogger("pilothouse.agents")

T = TypeVar("T")
Callback = Callable[[T], object]

_reading: list[set[Any]] = []
"""What the computation in progress has read; reading never waits, so a stack is enough."""


class Hub:
    """Collects changes and tells them together."""

    __slots__ = ("_changed", "_depth", "_draining", "_events", "_queue")

    def __init__(self) -> None:
        self._depth = 0
        self._changed: dict[Any, None] = {}
        self._events: list[Callable[[], None]] = []
        self._queue: deque[Callable[[], None]] = deque()
        self._draining = False

    @contextmanager
    def batch(self) -> Iterator[None]:
        """All changes inside are one: subscribers run when the outermost batch is left."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._close()

    def changed(self, cell: Any) -> None:
        """A cell has another value."""
        self._changed[cell] = None
        if not self._depth:
            self._close()

    def after(self, told: Callable[[], None]) -> None:
        """Something to be told behind the changes of this batch."""
        with self.batch():
            self._events.append(told)

    def _close(self) -> None:
        changed, self._changed = self._changed, {}
        events, self._events = self._events, []
        self._queue += [cell._tell(cell.get()) for cell in changed]  # noqa: SLF001 - cells are this module's
        self._queue += events
        if self._draining:
            return
        self._draining = True
        try:
            while self._queue:
                self._queue.popleft()()
        finally:
            self._draining = False


@final
class Cell(Generic[T]):
    """A value of an agent. Only its owner sets it."""

    __slots__ = ("__weakref__", "_hub", "_subscribers", "_value", "name")

    def __init__(self, hub: Hub, value: T, name: str = "") -> None:
        self.name = name
        self._hub = hub
        self._value = value
        self._subscribers: dict[object, Callback[T]] = {}

    def __repr__(self) -> str:
        """Names the signal and its value."""
        return f"<Signal {self.name} {self._value!r}>"

    def get(self) -> T:
        """The value now."""
        if _reading:
            _reading[-1].add(self)
        return self._value

    __call__ = get

    def subscribe(self, callback: Callback[T], /) -> Callable[[], None]:
        """Calls back after each change with the new value. The returned function takes that back, any number of times."""
        key = object()
        self._subscribers[key] = callback
        return lambda: void(self._subscribers.pop(key, None))

    def set(self, value: T) -> None:
        """Replaces the value; nothing happens if it is the same or equal."""
        before = self._value
        if value is before or (type(value) is type(before) and _same(before, value)):
            return
        self._value = value
        self._hub.changed(self)

    def _tell(self, value: T) -> Callable[[], None]:
        def tell() -> None:
            for key, callback in list(self._subscribers.items()):
                if key in self._subscribers:
                    call(callback, value, self.name)

        return tell


def _same(before: Any, value: Any) -> bool:
    """Equality where it is cheap and safe: tuples by the identity of their items, other values as they compare."""
    if isinstance(value, tuple):
        return len(value) == len(before) and all(a is b for a, b in zip(value, before, strict=True))
    if isinstance(value, BaseException):
        return False
    return bool(value == before)


def void(_: object) -> None:
    """Nothing."""


def call(callback: Callback[T], value: T, name: str) -> None:
    """Tells one subscriber; what it raises is logged and changes nothing (AG-6)."""
    try:
        callback(value)
    except LEAVING:
        raise
    except BaseException:
        logger.exception("subscriber %s of %s failed", getattr(callback, "__qualname__", callback), name)


@final
class Computed(Generic[T]):
    """A value made of other signals; it depends on what its function reads."""

    __slots__ = ("__weakref__", "_compute", "_leave", "_subscribers", "_value")

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute = compute
        self._subscribers: dict[object, Callback[T]] = {}
        self._leave: dict[Any, Callable[[], None]] = {}
        self._value: T | None = None

    def get(self) -> T:
        """The value now, computed now."""
        if _reading:  # what reads this depends on what this reads
            return self._compute()
        return self._run()[0]

    __call__ = get

    def _run(self) -> tuple[T, set[Any]]:
        read: set[Any] = set()
        _reading.append(read)
        try:
            return self._compute(), read
        finally:
            _reading.pop()

    def subscribe(self, callback: Callback[T], /) -> Callable[[], None]:
        """Calls back when the value has become another one."""
        key = object()
        if not self._subscribers:
            self._value, read = self._run()
            self._follow(read)
        self._subscribers[key] = callback

        def leave() -> None:
            self._subscribers.pop(key, None)
            if not self._subscribers:
                self._follow(set())

        return leave

    def _follow(self, read: set[Any]) -> None:
        for cell in [cell for cell in self._leave if cell not in read]:
            self._leave.pop(cell)()
        for cell in read - self._leave.keys():
            self._leave[cell] = cell.subscribe(self._again)

    def _again(self, _: object) -> None:
        before, (value, read) = self._value, self._run()
        self._follow(read)
        if value is before or (type(value) is type(before) and _same(before, value)):
            return
        self._value = value
        for callback in list(self._subscribers.values()):
            call(callback, value, "computed")


def computed(compute: Callable[[], T]) -> Signal[T]:
    """A signal of what `compute` returns; it follows every signal that `compute` reads."""
    return Computed(compute)


async def watch(signal: Signal[T], *, initial: bool = True) -> AsyncIterator[T]:
    """The latest value, again after each change; a slow reader skips values, and never gets a backlog."""
    changed = asyncio.Event()
    leave = signal.subscribe(lambda _: changed.set())
    try:
        if initial:
            yield signal.get()
        while True:
            await changed.wait()
            changed.clear()
            yield signal.get()
    finally:
        leave()


BUFFER = 1_000
"""Events that wait for a slow reader of an `EventSource`."""


@final
class Events(Generic[T]):
    """Things that happen, told behind the changes of their batch."""

    __slots__ = ("_buffer", "_hub", "_readers", "_subscribers")

    def __init__(self, hub: Hub, buffer: int = BUFFER) -> None:
        self._hub = hub
        self._buffer = buffer
        self._subscribers: dict[object, Callback[T]] = {}
        self._readers: list[_Queue[T]] = []

    def subscribe(self, callback: Callback[T], /) -> Callable[[], None]:
        """Calls back with each event from now on."""
        key = object()
        self._subscribers[key] = callback
        return lambda: void(self._subscribers.pop(key, None))

    def emit(self, event: T) -> None:
        """Tells an event."""

        def tell() -> None:
            for callback in list(self._subscribers.values()):
                call(callback, event, "events")
            for reader in self._readers:
                reader.put(event)

        self._hub.after(tell)

    def __aiter__(self) -> AsyncIterator[T]:
        """Events from now on; over the bound the oldest is dropped, with a warning."""
        queue: _Queue[T] = _Queue(self._buffer)
        self._readers.append(queue)
        return self._iterate(queue)

    async def _iterate(self, queue: _Queue[T]) -> AsyncIterator[T]:
        try:
            while True:
                yield await queue.take()
        finally:
            self._readers.remove(queue)


class _Queue(Generic[T]):
    def __init__(self, limit: int) -> None:
        self._items: deque[T] = deque(maxlen=limit)
        self._there = asyncio.Event()
        self._warned = False

    def put(self, item: T) -> None:
        if len(self._items) == self._items.maxlen and not self._warned:
            self._warned = True
            logger.warning("a reader of events is slower than they come: the oldest are dropped")
        self._items.append(item)
        self._there.set()

    async def take(self) -> T:
        while not self._items:
            self._there.clear()
            await self._there.wait()
        return self._items.popleft()


__all__ = ["Cell", "Computed", "Events", "Hub", "computed", "watch"]
