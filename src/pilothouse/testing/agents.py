"""Doubles of agents: `FakeAgent` plays scripts without a network, `MockAgent` is a set of values that a test writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, final

from ..agents.operation import Later, Operation
from ..agents.signals import Cell
from ..agents.surface import Surface
from ..core.display import Display
from ..messages import JSON, UNSET, InputPart, ToolSpec
from ..projection import EMPTY, AgentToolCall, StopResult, ToolOutcome
from ..remote.agui import AGUIAgent
from ..remote.function import FunctionWire
from .clock import StepClock
from .endpoint import Asked, Close, Cut, Refuse, _filled
from .scripted import Hold

Script = Sequence[Any] | Callable[[Asked], Sequence[Any]]


class FakeBackend:
    """Plays one script a run: events (see `endpoint`), `Hold`, `Cut`, `Close`, exceptions.

    Attributes:
        asked: the run inputs that came.
    """

    def __init__(self, *scripts: Script) -> None:
        self.asked: list[Asked] = []
        self._scripts = list(scripts)

    def then(self, *scripts: Script) -> None:
        """Adds scripts for later runs."""
        self._scripts += scripts

    async def run(self, body: dict[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """One run."""
        from ..agent_errors import AgentError
        from ..transport import BrokenBody

        asked = Asked("POST", "/", {}, body)
        self.asked.append(asked)
        if not self._scripts:
            raise AssertionError("no script is left")
        script = self._scripts.pop(0)
        for step in script(asked) if callable(script) else script:
            match step:
                case Hold():
                    await step.wait()
                case Cut():
                    raise BrokenBody("the script cuts the connection here")
                case Close():
                    return
                case Refuse(status=status, body=said):
                    from ..core.classify import of_status

                    raise of_status(status, f"HTTP {status}: {said}")
                case AgentError() | Exception():
                    raise step
                case _:
                    yield _filled(step, body)


def FakeAgent(*scripts: Script, **options: Any) -> AGUIAgent:  # noqa: N802 - reads as the class that it stands for
    """An agent that plays scripts in memory; `options` are those of `AGUIAgent`."""
    return AGUIAgent("fake://agent", transport=FunctionWire(FakeBackend(*scripts).run), **options)


@final
class MockTools:
    """`client_tools` of a `MockAgent`: writes down what it is told."""

    def __init__(self, agent: MockAgent) -> None:
        self.pending: Cell[tuple[AgentToolCall, ...]] = Cell(agent._hub, (), "client_tools.pending")  # noqa: SLF001
        self.catalog: tuple[ToolSpec, ...] = ()
        self.settled: dict[str, ToolOutcome] = {}
        self.resolved: list[str] = []

    def set_catalog(self, specs: Sequence[ToolSpec]) -> None:
        """Keeps it."""
        self.catalog = tuple(specs)

    def settle(self, call_id: str, result: ToolOutcome) -> None:
        """Keeps it."""
        self.settled[call_id] = result
        self.pending.set(tuple([call for call in self.pending.get() if call.id != call_id]))

    def flush(self) -> Later[None]:
        """Does nothing."""
        late: Later[None] = Later(asyncio.get_running_loop())
        late.settle(None)
        return late

    def resolve(self, call_id: str, result: ToolOutcome) -> Operation:
        """Keeps it."""
        self.settle(call_id, result)
        self.resolved.append(call_id)
        op = Operation(asyncio.get_running_loop())
        op.settle("success")
        return op


class MockAgent(Surface):
    """Idle and empty; a test sets its signals (`agent.messages.set(…)`) and reads `submitted` and `calls`.

    Args:
        members: optional members that it is to have: `interrupt`, `subagents`, `client_tools`, `usage`,
            `is_input_blocked`, `check_status`.
    """

    def __init__(self, *members: str) -> None:
        clock = StepClock()
        super().__init__("mock", clock, Display(clock.monotonic))
        self.submitted: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.thread_id = "mock"
        given: Collection[str] = members
        self.subagents: Cell[Mapping[str, Any]] | None = None
        self.client_tools: MockTools | None = None
        self.check_status: Callable[[], Later[None]] | None = None
        if "subagents" in given:
            self.subagents = Cell(self._hub, EMPTY, "subagents")
        if "client_tools" in given:
            self.client_tools = MockTools(self)
        if "check_status" in given:
            self.check_status = self._checked
        for name in ("interrupt", "usage", "is_input_blocked"):
            if name not in given:
                setattr(self, name, None)

    def _checked(self) -> Later[None]:
        self.calls.append("check_status")
        return self._later(None)

    def submit(
        self, message: str | Sequence[InputPart] | None = None, *, resume: object = UNSET, **more: JSON
    ) -> Operation:
        """Writes down what was asked."""
        self._enter("submit")
        self.submitted.append({"message": message, "resume": resume, **more})
        return self._done()

    def _done(self) -> Operation:
        op = Operation(asyncio.get_running_loop())
        op.settle("success")
        return op

    def stop(self, *, grace: float | None = None) -> Later[StopResult]:
        """Writes it down."""
        self.calls.append("stop")
        return self._later("nothing")

    def retry(self) -> Operation:
        """Writes it down."""
        self.calls.append("retry")
        return self._done()

    def regenerate(self, target: int | str, /) -> Operation:
        """Writes it down."""
        self.calls.append(f"regenerate {target}")
        return self._done()


__all__ = ["FakeAgent", "FakeBackend", "MockAgent", "MockTools"]
