"""A runtime that does what a test wrote down: facts, deltas, questions, places to wait, ways to break.

```python
runtime = ScriptedRuntime(
    TurnStarted(1),                                     # a fact: one append
    (ModelRequested(1, 1, "m1"), TextTold("m1", 0, "Hel")),  # several facts are one append; deltas are told behind it
    Ask(Request("q1", "input", prompt="Go on?")),       # opens a request and waits for its answer
    hold := Hold(),                                     # waits until the test says `hold.release()`
    TurnEnded(1), RunEnded(Completed()),
)
async with RunController(runtime) as runs: ...
```

A stop ends the script where it waits, `UntilStopped` excepted: that goes on. Every fact gets an event id by its place in the script, so the script can be gone on with after a crash at any append:
by `resume` (level `journal`), or by telling again what the *agent* knows (`replay`). The agent's memory is a mapping
that outlives the runtime: hand `runtime.memory` to the next one, as a foreign agent would outlive our process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Final, Self, TypeAlias, final

from ..commands import CommandKind, Request
from ..contracts import RunPort
from ..events import Completed, Fact, RequestOpened, RequestResolved, RunEnded
from ..records import Descriptor, Draft, Record, RunView, Start, StatusAnswer
from .scripted import Hold

COMMANDS: Final[tuple[CommandKind, ...]] = ("steer", "follow_up", "answer", "cancel", "withdraw", "replace")


@final
class Ask:
    """A place in a script where the runtime asks and waits for the answer, or for the stop."""

    def __init__(self, request: Request) -> None:
        self.request = request


@final
class Leave:
    """A place in a script where the runtime returns without an end."""


@final
class UntilStopped:
    """A place in a script where the runtime waits for the stop, and then goes on with the script."""


Step: TypeAlias = object
"""A fact, a `Draft`, a delta body, a tuple of these (one append), `Ask`, `Hold`, `Leave`, `UntilStopped`, an exception
to be raised, or `async def (start, port)`."""

Memory: TypeAlias = dict[str, list[Draft]]
"""What a scripted agent told of each run: facts, in order."""


def complete(text: str = "Done.") -> tuple[Step, ...]:
    """A script of the shortest run: one message in one turn."""
    from ..events import MessageAdded, ModelAttemptEnded, ModelRequested, TextTold, TurnEnded, TurnStarted
    from ..messages import Message, Text

    message = Message("m1", "assistant", (Text(text),))
    return (
        TurnStarted(1),
        (ModelRequested(1, 1, "m1"), TextTold("m1", 0, text)),
        (ModelAttemptEnded(1, 1, "answered"), MessageAdded(message, 1)),
        (TurnEnded(1), RunEnded(Completed())),
    )


@final
class ScriptedRuntime:
    """Implements `contracts.Runtime`, and `Resumable`, `Replayable`, `Queryable` for the level it declares.

    Args:
        script: the steps of every run; none: `complete()`.
        descriptor: the contract; by default everything is declared, with recovery by `journal`.
        memory: what the agent told before this process; see the module.
        answer: what `query` says.

    Attributes:
        runs, resumes, replays: ids of the runs for which each was called, in order.
        queries: the views it was asked about.
        memory: what was told so far.
    """

    def __init__(
        self,
        *script: Step,
        descriptor: Descriptor | None = None,
        memory: Memory | None = None,
        answer: StatusAnswer | None = None,
    ) -> None:
        self.script = script or complete()
        self.descriptor = descriptor or Descriptor(
            "pilothouse.scripted",
            accepts=("*/*",),
            commands=COMMANDS,
            requests=("input", "approval", "external"),
            cancel="confirmed",
            recovery="journal",
            thread_reuse="parallel",
        )
        self.memory: Memory = {} if memory is None else memory
        self.answer = answer or StatusAnswer("unknown")
        self.runs: list[str] = []
        self.resumes: list[str] = []
        self.replays: list[str] = []
        self.queries: list[RunView] = []

    def describe(self) -> Descriptor:
        """The contract."""
        return self.descriptor

    async def run(self, start: Start, port: RunPort, /) -> None:
        """Plays the script from its beginning."""
        self.runs.append(start.spec.run_id)
        await self._play(start, port, frozenset())

    async def resume(self, start: Start, port: RunPort, /) -> None:
        """Goes on behind the last append that is recorded."""
        self.resumes.append(start.spec.run_id)
        known = frozenset([record.event_id async for record in port.facts()])
        await self._play(start, port, known)

    def replay(self, start: Start, prefix: Sequence[Record], /) -> ScriptedReplay:
        """Tells again what the agent remembers."""
        self.replays.append(start.spec.run_id)
        return ScriptedReplay(self, start)

    async def query(self, _start: Start, view: RunView, /) -> StatusAnswer:
        """Says what the test wants it to say."""
        self.queries.append(view)
        return self.answer

    async def confirm(self, start: Start, port: RunPort) -> None:
        """Goes on from what the agent remembers; what it told already is a duplicate and changes nothing."""
        told = list(self.memory.get(start.spec.run_id, ()))
        for draft in told:
            await port.record(draft)
        await self._play(start, port, frozenset(draft.event_id or "" for draft in told))

    async def _play(self, start: Start, port: RunPort, known: frozenset[str]) -> None:
        for number, step in enumerate(self.script):
            if isinstance(step, Leave):
                return
            if isinstance(step, Exception):
                raise step
            if isinstance(step, Ask):
                await self._ask(start, port, number, step.request, known)
                if port.scope.cancelled:
                    return
            elif isinstance(step, Hold):
                await _held(step, port)
                if port.scope.cancelled and not step.deaf:
                    return
            elif isinstance(step, UntilStopped):
                await port.scope.wait()
            elif callable(step):
                work: Callable[[Start, RunPort], Awaitable[None]] = step
                await work(start, port)
            else:
                items = step if isinstance(step, tuple) else (step,)
                await self._append(start, port, number, items, known)

    async def _append(
        self, start: Start, port: RunPort, number: int, items: Sequence[object], known: frozenset[str]
    ) -> None:
        drafts = [item for item in items if isinstance(item, Fact | Draft)]
        made = [_named(draft, f"step:{number}:{place}") for place, draft in enumerate(drafts)]
        if made and made[-1].event_id not in known:
            self._remember(start, *made)
            await port.record(*made)
        for item in items:
            if not isinstance(item, Fact | Draft):
                port.tell(item)  # type: ignore[arg-type]

    def _remember(self, start: Start, *drafts: Draft) -> None:
        self.memory.setdefault(start.spec.run_id, []).extend(drafts)

    async def _ask(
        self, start: Start, port: RunPort, number: int, request: Request, known: frozenset[str]
    ) -> None:
        opened = Draft(RequestOpened(request), event_id=f"step:{number}:0")
        answered = f"step:{number}:1"
        if answered in known or (opened.event_id in known and request.id not in port.state.requests):
            return
        if opened.event_id not in known:
            self._remember(start, opened)
            await port.record(opened)
        while request.id in port.state.requests:
            await _first(port.commands.wait("answer"), port.scope.wait())
            pending = port.commands.take("answer")
            if pending is None:  # stopped
                return
            body = pending.command.body
            if getattr(body, "request_id", "") != request.id:
                await pending.reject("request_not_pending")
                continue
            resolved = RequestResolved(request.id, body.resolution)  # type: ignore[union-attr]
            draft = Draft(resolved, event_id=answered, causation=pending.command.id)
            self._remember(start, draft)
            await port.record(draft)


async def _held(hold: Hold, port: RunPort) -> None:
    """Waits until released or stopped; a deaf hold hears only the release."""
    if hold.deaf:
        await hold.wait()
        return
    await _first(hold.wait(), port.scope.wait())


async def _first(*waiting: Coroutine[object, object, object]) -> None:
    waits = [asyncio.ensure_future(wait) for wait in waiting]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _named(item: Fact | Draft, event_id: str) -> Draft:
    if not isinstance(item, Draft):
        return Draft(item, event_id=event_id)  # type: ignore[arg-type]
    return item if item.event_id is not None else Draft(item.fact, event_id, item.causation, item.source)


@final
class ScriptedReplay:
    """The retelling of one run by a scripted agent (contracts.Replay)."""

    def __init__(self, runtime: ScriptedRuntime, start: Start) -> None:
        self._runtime = runtime
        self._start = start
        self._told = list(runtime.memory.get(start.spec.run_id, ()))
        self.status: str = "attached" if start.spec.run_id in runtime.memory else "absent"
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[Draft]:
        """Everything that was told, in order; then silence ends the stream."""
        for draft in self._told:
            yield draft

    async def confirm(self, port: RunPort, /) -> None:
        """Goes on with the script."""
        await self._runtime.confirm(self._start, port)

    async def __aenter__(self) -> Self:
        """Attaches."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Lets go."""
        self.closed = True


__all__ = ["Ask", "Hold", "Leave", "Memory", "ScriptedReplay", "ScriptedRuntime", "UntilStopped", "complete"]
