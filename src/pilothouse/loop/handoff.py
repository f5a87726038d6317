"""Handing a conversation over to another agent of the same loop: other prompt, tools, model; the same run and context.

The model asks for it with a tool; it takes place at the end of that turn and is recorded (`loop/handoff`), so that a run
that is taken up again goes on with the agent that had it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from msgspec import Struct

from ..errors import ConfigError
from ..events import Noted
from ..messages import Message, Model
from ..responses import ModelSettings
from .tools import Tool, ToolLike, ToolSet, tool
from .work import Work

NOTE: Final = "loop/handoff"
PREFIX: Final = "hand_over_to_"


@final
class Handoff(Struct, frozen=True, kw_only=True, eq=False):
    """An agent that a conversation can be handed to; what is None stays as it is.

    Attributes:
        name: a word, part of its tool's name.
        description: when to hand over to it; for the model.
        to: names of those that it may hand over to; None is everybody.
    """

    name: str
    description: str
    system_prompt: str | None = None
    tools: Sequence[ToolLike] = ()
    model: Model | None = None
    settings: ModelSettings | None = None
    to: Sequence[str] | None = None


@final
class Handoffs:
    """All agents of a loop."""

    def __init__(self, agents: Sequence[Handoff]) -> None:
        self._agents: dict[str, Handoff] = {}
        for agent in agents:
            if agent.name in self._agents:
                raise ConfigError(f"handoffs: two are called {agent.name!r}")
            self._agents[agent.name] = agent
        for agent in agents:
            if unknown := set(agent.to or ()) - set(self._agents):
                raise ConfigError(
                    f"handoffs: {agent.name} cannot hand over to {min(unknown)!r}: there is none"
                )
        self._doors = {name: _door(agent) for name, agent in self._agents.items()}
        self._sets = {name: self._tools_of(agent) for name, agent in self._agents.items()}

    def _tools_of(self, agent: Handoff) -> ToolSet:
        to = [name for name in self._doors if name != agent.name and (agent.to is None or name in agent.to)]
        return ToolSet([*agent.tools, *[self._doors[name] for name in to]])

    @property
    def models(self) -> list[Model]:
        """Those that the agents bring."""
        return [agent.model for agent in self._agents.values() if agent.model is not None]

    def __bool__(self) -> bool:
        return bool(self._agents)

    def doors(self) -> list[Tool]:
        """The tools with which the first agent hands over."""
        return list(self._doors.values())

    def wanted(self, message: Message, work: Work) -> str | None:
        """To whom the calls of a message hand over: the last one that succeeded."""
        for call in reversed(message.tool_calls):
            end = work.finished.get(call.call_id)
            name = call.tool.strip().removeprefix(PREFIX)
            if end is not None and end.outcome == "succeeded" and call.tool.strip() == PREFIX + name:
                return name if name in self._agents else None
        return None

    def take_over(self, name: str, work: Work, *, note: bool = True) -> None:
        """Makes that agent the one whose turn is next."""
        agent = self._agents.get(name)
        if agent is None:  # of a configuration that is not ours any more: the run goes on with what there is
            return
        work.tool_set = self._sets[name]
        if agent.system_prompt is not None:
            work.system_prompt = agent.system_prompt
        if agent.model is not None:
            work.model = agent.model  # who serves it is asked before its first request
        if agent.settings is not None:
            work.settings = agent.settings
        if note:
            work.recorder.note(Noted(NOTE, {"to": name}))


def _door(agent: Handoff) -> Tool:
    text = f"Hands the conversation over to {agent.name}. {agent.description}"

    @tool(name=PREFIX + agent.name, description=text, effect="read", approval=False)
    async def hand_over() -> str:
        return f"{agent.name} takes over."

    return hand_over
