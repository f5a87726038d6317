"""Subagents as an interface holds them: signals over what the reducer keeps of a child (AG-160)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import final

from ..core.agui.reduce import Child
from ..messages import JSON
from ..projection import EMPTY, AgentMessage, AgentToolCall
from .signals import Cell, Hub


@final
class SubagentView:
    """One invocation of a subagent; the object is the same while its content streams."""

    def __init__(self, hub: Hub, child: Child) -> None:
        self.id = child.id
        self.generation = child.generation
        self._child = child
        self.status: Cell[str] = Cell(hub, child.status, f"subagents[{child.id}].status")
        self.messages: Cell[tuple[AgentMessage, ...]] = Cell(hub, (), f"subagents[{child.id}].messages")
        self.tool_calls: Cell[tuple[AgentToolCall, ...]] = Cell(hub, (), f"subagents[{child.id}].tool_calls")
        self.state: Cell[Mapping[str, JSON]] = Cell(hub, EMPTY, f"subagents[{child.id}].state")
        self.publish()

    @property
    def name(self) -> str:
        """What it is called; empty before it was announced."""
        return self._child.name

    @property
    def tool_call_id(self) -> str | None:
        """The parent's call that it serves."""
        return self._child.tool_call_id

    def shows(self, child: Child) -> bool:
        """Whether it is that invocation."""
        return self._child is child

    def publish(self) -> None:
        """Brings the signals up to the values."""
        self.status.set(self._child.status)
        self.messages.set(self._child.display.messages)
        self.tool_calls.set(self._child.display.calls)
        self.state.set(self._child.state)


@final
class Subagents:
    """The mapping of all of them, emptied at each run's start."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._views: dict[str, SubagentView] = {}
        self.signal: Cell[Mapping[str, SubagentView]] = Cell(hub, EMPTY, "subagents")

    def publish(self, children: Mapping[str, Child]) -> None:
        """Brings views and mapping up to the children."""
        changed = self._views.keys() != children.keys()
        for name, child in children.items():
            view = self._views.get(name)
            if view is None or not view.shows(child):
                self._views[name] = SubagentView(self._hub, child)
                changed = True
            else:
                view.publish()
        if changed:
            self._views = {name: self._views[name] for name in children}
            self.signal.set(MappingProxyType(dict(self._views)))


__all__ = ["SubagentView", "Subagents"]
