"""The contract of a runtime as tests: subclass in a test module, and say how yours is made.

```python
class TestMine(RuntimeConformance):
    def make(self):
        return MyRuntime(FakeAgent(self.agent))     # a fresh adapter; the agent behind it may outlive it

    def spec(self, run_id):
        return RunSpec(run_id, f"thread-{run_id}", (user_message("hi", f"{run_id}.0"),))
```

`make` is called once a process life: a test that crashes makes a second one, and what the agent knew must then be known
to it (keep it on `self`). Every run that `spec` asks for must end by itself, within a few appends. No plug-in is
needed: each test runs an event loop of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Final, TypeAlias, final

from msgspec.structs import replace

from ..commands import Cancel, Command, CommandKind, FollowUp, Steer
from ..contracts import Journal, Replay, RunPort, Runtime
from ..core.canonical import digest_of
from ..errors import Unsupported
from ..journal.memory import MemoryJournal
from ..messages import File, user_message
from ..records import Descriptor, Owner, Record, RunSpec, RunView, Start, StatusAnswer
from ..runs.controller import RunController
from .faults import FaultyJournal
from .journal_suite.checking import raises

LIMIT_S: Final = 60.0

LEVELS: Final = {"journal": "resume", "replay": "replay", "query": "query"}
"""The method that a recovery level needs."""

SETTLED: Final = ("completed", "truncated", "incomplete", "failed", "cancelled")


@final
class Counted:
    """A runtime that counts how often it was driven, for which run."""

    def __init__(self, runtime: Runtime) -> None:
        self.inner = runtime
        self.driven: Counter[str] = Counter()
        self.descriptor = runtime.describe()

    def describe(self) -> Descriptor:
        """The contract."""
        return self.descriptor

    async def run(self, start: Start, port: RunPort, /) -> None:
        """Counts and drives."""
        self.driven[start.spec.run_id] += 1
        await self.inner.run(start, port)

    async def resume(self, start: Start, port: RunPort, /) -> None:
        """Drives on."""
        await self.inner.resume(start, port)  # type: ignore[attr-defined]

    def replay(self, start: Start, prefix: list[Record], /) -> Replay:
        """Opens the retelling."""
        return self.inner.replay(start, prefix)  # type: ignore[attr-defined, no-any-return]

    async def query(self, start: Start, view: RunView, /) -> StatusAnswer:
        """Asks."""
        return await self.inner.query(start, view)  # type: ignore[attr-defined, no-any-return]


Check: TypeAlias = Callable[["RuntimeConformance"], Coroutine[object, object, None]]


def _check(body: Check) -> Callable[[RuntimeConformance], None]:
    """Makes a test method of a check: a loop of its own, and a limit of time."""

    async def run(suite: RuntimeConformance) -> None:
        async with asyncio.timeout(LIMIT_S):
            await body(suite)

    def test(self: RuntimeConformance) -> None:
        asyncio.run(run(self))

    test.__name__, test.__qualname__, test.__doc__ = body.__name__, body.__qualname__, body.__doc__
    return test


class RuntimeConformance:
    """What every runtime must do under a `RunController`; subclass it and define `make` and `spec`."""

    def make(self) -> Runtime:
        """A fresh runtime over the same agent."""
        raise TypeError(f"{type(self).__name__} must say how its runtime is made")

    def spec(self, run_id: str) -> RunSpec:
        """A run that ends by itself."""
        return RunSpec(run_id, f"thread-{run_id}", (user_message("Hello", f"{run_id}.0"),))

    @_check
    async def test_its_contract_is_stable_and_kept(self) -> None:
        """RC-7: equal for the life of a binding, in every process; the methods of its level are there."""
        first, second = self.make(), self.make()
        digests = {digest_of(runtime.describe()) for runtime in (first, first, second)}
        assert len(digests) == 1, "describe() must return equal values"
        level = first.describe().recovery
        if level is not None:
            assert callable(getattr(first, LEVELS[level], None)), f"level {level} needs {LEVELS[level]}()"

    @_check
    async def test_equal_starts_are_one_work(self) -> None:
        """RC-33: twenty at once, and one more after the end."""
        runtime = Counted(self.make())
        async with RunController(runtime) as runs:
            started = await asyncio.gather(*[runs.start(self.spec("one")) for _ in range(20)])
            assert sum(not run.reopened for run in started) == 1
            await started[0].wait()
            assert (await runs.start(self.spec("one"))).reopened
            assert runtime.driven["one"] == 1

    @_check
    async def test_nothing_of_a_run_is_lost_however_fast_it_ends(self) -> None:
        """RC-32, RC-63: who follows from the start sees every fact, in order, to a settled end."""
        async with RunController(self.make()) as runs:
            run = await runs.start(self.spec("quick"), until="accepted")
            seen = [item.seq async for item in run.stream(deltas=False) if isinstance(item, Record)]
            result = await run.wait()
            assert seen == list(range(1, result.view.last_seq + 1))
            assert result.view.status in SETTLED, f"the run ended {result.outcome}"
            await runs.join("quick")

    @_check
    async def test_a_repeated_command_is_forwarded_once(self) -> None:
        """RC-36, RC-37: same ack, marked as a duplicate; nothing is added to the run."""
        async with RunController(self.make()) as runs:
            run = await runs.start(self.spec("stopped"), until="accepted")
            command = Command("stop-1", "stopped", Cancel("the suite stops it"))
            first = await runs.command(command)
            if first.state in ("rejected", "unsupported"):
                # It had ended, or cannot be stopped: no trace of it.
                assert await runs.recorded_command("stopped", "stop-1") is None
            else:
                again = await asyncio.gather(*[runs.command(command) for _ in range(20)])
                assert {(ack.state, ack.duplicate, ack.applied_seq) for ack in again} == {
                    ("applied", True, first.applied_seq)
                }
            await run.wait()
            kinds = Counter([record.fact.kind for record in await run.events()])
            assert kinds["stop_requested"] <= 1
            assert kinds["run_ended"] <= 1

    @_check
    async def test_it_recovers_by_its_level_wherever_it_is_cut(self) -> None:
        """RC §3.10, §5.14: before and after every append of a run; the end is settled and stands in one piece."""
        appends = await self._uncut()
        for at in range(1, appends + 1):
            for when in ("before", "after"):
                inner = MemoryJournal()
                if await self._cut(inner, at, when):
                    await self._recover(inner, f"cut {when} write {at}")

    async def _uncut(self) -> int:
        journal = FaultyJournal(MemoryJournal())
        async with RunController(self.make(), journal=journal) as runs:
            await (await runs.start(self.spec("cut"), until="accepted")).wait()
        return sum(call in ("create", "append") for call, _ in journal.calls)

    async def _cut(self, inner: Journal, at: int, when: str) -> bool:
        """A life that ends there; whether it left a run behind."""
        journal = FaultyJournal(inner)
        cut = journal.crash(at=at, when=when)  # type: ignore[arg-type]
        dead = RunController(self.make(), journal=journal)
        others = asyncio.all_tasks()
        starting = asyncio.ensure_future(dead.start(self.spec("cut"), until="accepted"))
        reached = asyncio.ensure_future(cut.reached.wait())
        await asyncio.wait({reached}, timeout=5)
        for task in asyncio.all_tasks() - others:
            task.cancel()
        await asyncio.gather(starting, reached, return_exceptions=True)
        head = await inner.head("cut")
        if head is not None and head.owner is not None:
            await inner.release(Owner(head.owner))
        return head is not None

    async def _recover(self, inner: Journal, where: str) -> None:
        runtime = self.make()
        level = runtime.describe().recovery
        async with RunController(runtime, journal=inner) as runs:
            if (await runs.inspect("cut")).state != "terminal":
                if level in ("journal", "replay"):
                    await runs.recover("cut")
                elif level == "query":
                    await runs.check_status("cut")
                else:
                    await _unsupported("recovery", runs.recover("cut"))
            if level in ("journal", "replay"):
                result = await runs.wait_for_terminal("cut")
                assert result.view.status in SETTLED, f"{where}: {result.outcome}"
            kinds = Counter([record.fact.kind for record in await runs.events("cut")])
            assert kinds["run_ended"] <= 1, where
            assert kinds["violation_recorded"] == 0, where
        assert not (await inner.verify()).problems, where

    @_check
    async def test_what_it_does_not_declare_is_refused(self) -> None:
        """RC-31, RC §3.7: by the controller, without asking it and without a trace."""
        runtime = Counted(self.make())
        declared = runtime.descriptor
        async with RunController(runtime) as runs:
            if not declared.structured_output:
                asked = replace(self.spec("schema"), output_schema={"type": "object"})
                await _unsupported("structured_output", runs.start(asked))
            if not {"*/*", "application/*", "application/x-none"} & set(declared.accepts):
                odd = self.spec("media").input[0]
                odd = replace(odd, parts=(*odd.parts, File("application/x-none", data=b"x")))
                await _unsupported("media_type", runs.start(replace(self.spec("media"), input=(odd,))))
            assert not runtime.driven
            run = await runs.start(self.spec("asked"), until="accepted")
            said = user_message("more", "said")
            commands: dict[CommandKind, Command] = {
                "steer": Command("c1", "asked", Steer(said)),
                "follow_up": Command("c2", "asked", FollowUp(said)),
            }
            for kind, command in commands.items():
                if kind not in declared.commands:
                    assert (await runs.command(command)).state in ("unsupported", "rejected")
                    assert await runs.recorded_command("asked", command.id) is None
            await run.wait()


async def _unsupported(code: str, doing: Coroutine[object, object, object]) -> None:
    error = await raises(Unsupported, doing)
    assert error.code == code, f"refused with {error.code}, not {code}"


__all__ = ["Counted", "RuntimeConformance"]
