"""The agent loop: the runtime that Pilothouse ships, driven by facts alone. Names are loaded at first use.

the loop       AgentLoop, LoopResult, LoopConfig, Limits, RetryPolicy
tools          tool, Tool, ToolContext, ToolResult, Backgrounded, NotRun, current_call, current_yield_token
other tools    schema_tool, external_tool, agent_tool, Handoff
policies       ApprovalPolicy, Decision, ToolMisuseBreaker, RepetitionBreaker, StuckToolConfig, Compactor, Redactor,
Notifier
for hooks      CallCheck, CallDone, Block, Rewrite, Override, TransformInfo, TurnInfo, NextTurn, PollInfo, OverWindow,
Relief
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.breaker import RepetitionBreaker as RepetitionBreaker
    from ..core.breaker import ToolMisuseBreaker as ToolMisuseBreaker
    from .agent import AgentLoop as AgentLoop
    from .agent import LoopResult as LoopResult
    from .answers import Backgrounded as Backgrounded
    from .answers import NotRun as NotRun
    from .answers import ToolResult as ToolResult
    from .approval import ApprovalPolicy as ApprovalPolicy
    from .approval import Decision as Decision
    from .compaction import Compactor as Compactor
    from .config import Limits as Limits
    from .config import LoopConfig as LoopConfig
    from .config import RetryPolicy as RetryPolicy
    from .context import ToolContext as ToolContext
    from .context import current_call as current_call
    from .context import current_yield_token as current_yield_token
    from .dump import Redactor as Redactor
    from .handoff import Handoff as Handoff
    from .hooks import Block as Block
    from .hooks import CallCheck as CallCheck
    from .hooks import CallDone as CallDone
    from .hooks import NextTurn as NextTurn
    from .hooks import Override as Override
    from .hooks import OverWindow as OverWindow
    from .hooks import PollInfo as PollInfo
    from .hooks import Relief as Relief
    from .hooks import Rewrite as Rewrite
    from .hooks import TransformInfo as TransformInfo
    from .hooks import TurnInfo as TurnInfo
    from .ready_tools import external_tool as external_tool
    from .ready_tools import schema_tool as schema_tool
    from .stuck import StuckToolConfig as StuckToolConfig
    from .subagent import agent_tool as agent_tool
    from .tools import Tool as Tool
    from .tools import tool as tool
    from .yielding import Notifier as Notifier

_HOMES = {
    "AgentLoop": ".agent",
    "ApprovalPolicy": ".approval",
    "Backgrounded": ".answers",
    "Block": ".hooks",
    "CallCheck": ".hooks",
    "CallDone": ".hooks",
    "Compactor": ".compaction",
    "Decision": ".approval",
    "Handoff": ".handoff",
    "Limits": ".config",
    "LoopConfig": ".config",
    "LoopResult": ".agent",
    "NextTurn": ".hooks",
    "NotRun": ".answers",
    "Notifier": ".yielding",
    "OverWindow": ".hooks",
    "Override": ".hooks",
    "PollInfo": ".hooks",
    "Redactor": ".dump",
    "Relief": ".hooks",
    "RepetitionBreaker": "..core.breaker",
    "RetryPolicy": ".config",
    "Rewrite": ".hooks",
    "StuckToolConfig": ".stuck",
    "Tool": ".tools",
    "ToolContext": ".context",
    "ToolMisuseBreaker": "..core.breaker",
    "ToolResult": ".answers",
    "TransformInfo": ".hooks",
    "TurnInfo": ".hooks",
    "agent_tool": ".subagent",
    "current_call": ".context",
    "current_yield_token": ".context",
    "external_tool": ".ready_tools",
    "schema_tool": ".ready_tools",
    "tool": ".tools",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - a list of str, made from the table


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home, __name__), name)
