"""Doubles of agents: `FakeAgent` plays scripts without a network, `MockAgent` is a set of values that a test writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, final

from ..agents.operation import Later, Operation
from ..agents.signals import Cell, Hub
from ..agents.surface import Published, Surface
from ..core.agui.reduce import Reducer
from ..messages import JSON, UNSET, InputPart, ToolSpec
from ..projection import AgentToolCall, StopResult, ToolOutcome
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

    def __init__(self, hub: Hub) -> None:
        self.pending: Cell[tuple[AgentToolCall, ...]] = Cell(hub, (), "client_tools.pending")
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
        return Later.settled(None)

    def resolve(self, call_id: str, result: ToolOutcome) -> Operation:
        """Keeps it."""
        self.settle(call_id, result)
        self.resolved.append(call_id)
        return Operation.settled("success")


_OPTIONAL = ("interrupt", "subagents", "usage", "is_input_blocked")


class MockAgent(Published):
    """Idle and empty; a test sets its signals (`agent.messages.set(…)`) and reads `submitted` and `calls`.

    Args:
        members: optional members that it is to have: `interrupt`, `subagents`, `client_tools`, `usage`,
            `is_input_blocked`, `check_status`.
    """

    def __init__(self, *members: str) -> None:
        clock = StepClock()
        surface = Surface("mock", clock, Reducer(clock.monotonic))
        super().__init__(surface)
        self.submitted: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.thread_id = "mock"
        self.client_tools = MockTools(surface.hub) if "client_tools" in members else None
        self.check_status = self._checked if "check_status" in members else None
        for name in _OPTIONAL:
            if name not in members:
                setattr(self, name, None)

    def _checked(self) -> Later[None]:
        self.calls.append("check_status")
        return Later.settled(None)

    def submit(
        self, message: str | Sequence[InputPart] | None = None, *, resume: object = UNSET, **more: JSON
    ) -> Operation:
        """Writes down what was asked."""
        self._surface.tasks.enter("submit")
        self.submitted.append({"message": message, "resume": resume, **more})
        return Operation.settled("success")

    def stop(self, *, grace: float | None = None) -> Later[StopResult]:
        """Writes it down."""
        self.calls.append("stop")
        return Later.settled("nothing")

    def retry(self) -> Operation:
        """Writes it down."""
        self.calls.append("retry")
        return Operation.settled("success")

    def regenerate(self, target: int | str, /) -> Operation:
        """Writes it down."""
        self.calls.append(f"regenerate {target}")
        return Operation.settled("success")


__all__ = ["FakeAgent", "FakeBackend", "MockAgent", "MockTools"]
