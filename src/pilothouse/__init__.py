"""Pilothouse, an agent controller for Python: the piece between an agent and whoever uses it.

Names are loaded at first use, so that importing the package costs next to nothing. Grouped as the house is built:

    conversation   AgentController, Reply, AgentState, RunExtras, UploadController, UploadFile, UploadResult
    AI controllers AIController, BaseAIController, StagedController, Change, Export, RequestEvent, ResponseEvent,
                   PromptEvent, Postponed, Ending, Snapshot, current_reply
    loop, tools    AgentLoop, LoopConfig, Limits, RetryPolicy, Compactor, tool, ToolContext, ToolResult, agent_tool
    runs           RunController, Run, RunSpec, Command
    journals       MemoryJournal, SQLiteJournal, PostgresJournal (extra `postgres`)
    messages       Message, Text, Image, File, Attachment, Usage, Model, Price
    outcomes       Completed, Truncated, Incomplete, Cancelled, Failed, Unknown
    agents         Agent, LocalAgent, AGUIAgent, agent_from, ClientTool, ClientToolRunner, watch, computed,
                   InterruptAnswer, Ok, Err, AgentError
    errors         PilothouseError, UsageError, ToolError, OutcomeUnknown, …: see pilothouse.errors

`run_sync` is the one bridge for code that is not async.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .agent_contracts import Agent as Agent
    from .agent_errors import AgentError as AgentError
    from .agents.clienttools import ClientTool as ClientTool
    from .agents.clienttools import ClientToolRunner as ClientToolRunner
    from .agents.local import LocalAgent as LocalAgent
    from .agents.signals import computed as computed
    from .agents.signals import watch as watch
    from .commands import Command as Command
    from .contracts import Journal as Journal
    from .contracts import Provider as Provider
    from .contracts import Runtime as Runtime
    from .conversation.attachments import Attachment as Attachment
    from .conversation.controller import AgentController as AgentController
    from .conversation.controllers import AIController as AIController
    from .conversation.controllers import BaseAIController as BaseAIController
    from .conversation.controllers import Export as Export
    from .conversation.controllers import RequestEvent as RequestEvent
    from .conversation.controllers import ResponseEvent as ResponseEvent
    from .conversation.controllers import current_reply as current_reply
    from .conversation.extras import RunExtras as RunExtras
    from .conversation.files import UploadFile as UploadFile
    from .conversation.files import UploadResult as UploadResult
    from .conversation.interceptor import Postponed as Postponed
    from .conversation.interceptor import PromptEvent as PromptEvent
    from .conversation.reply import Reply as Reply
    from .conversation.snapshots import Snapshot as Snapshot
    from .conversation.staging import Change as Change
    from .conversation.staging import StagedController as StagedController
    from .conversation.sync import run_sync as run_sync
    from .conversation.uploads import UploadController as UploadController
    from .core.delivery import Ending as Ending
    from .core.lifecycle import AgentState as AgentState
    from .errors import ConfigError as ConfigError
    from .errors import JournalError as JournalError
    from .errors import OutcomeError as OutcomeError
    from .errors import OutcomeUnknown as OutcomeUnknown
    from .errors import PilothouseError as PilothouseError
    from .errors import ProviderError as ProviderError
    from .errors import ToolError as ToolError
    from .errors import UsageError as UsageError
    from .events import Cancelled as Cancelled
    from .events import Completed as Completed
    from .events import Failed as Failed
    from .events import Incomplete as Incomplete
    from .events import Truncated as Truncated
    from .events import Unknown as Unknown
    from .journal.memory import MemoryJournal as MemoryJournal
    from .journal.postgres import PostgresJournal as PostgresJournal
    from .journal.sqlite import SQLiteJournal as SQLiteJournal
    from .loop.agent import AgentLoop as AgentLoop
    from .loop.compaction import Compactor as Compactor
    from .loop.config import Limits as Limits
    from .loop.config import LoopConfig as LoopConfig
    from .loop.config import RetryPolicy as RetryPolicy
    from .loop.context import ToolContext as ToolContext
    from .loop.subagent import agent_tool as agent_tool
    from .loop.tools import ToolResult as ToolResult
    from .loop.tools import tool as tool
    from .messages import File as File
    from .messages import Image as Image
    from .messages import Message as Message
    from .messages import Model as Model
    from .messages import Price as Price
    from .messages import Text as Text
    from .messages import Usage as Usage
    from .projection import Err as Err
    from .projection import InterruptAnswer as InterruptAnswer
    from .projection import Ok as Ok
    from .providers.resolve import provider as provider
    from .records import RunSpec as RunSpec
    from .remote.agui import AGUIAgent as AGUIAgent
    from .remote.control import RunControlClient as RunControlClient
    from .remote.function import agent_from as agent_from
    from .runs.controller import RunController as RunController
    from .runs.handle import Run as Run

_HOMES = {
    "AGUIAgent": "remote.agui",
    "Agent": "agent_contracts",
    "AgentError": "agent_errors",
    "ClientTool": "agents.clienttools",
    "ClientToolRunner": "agents.clienttools",
    "Err": "projection",
    "InterruptAnswer": "projection",
    "LocalAgent": "agents.local",
    "Ok": "projection",
    "RunControlClient": "remote.control",
    "agent_from": "remote.function",
    "computed": "agents.signals",
    "watch": "agents.signals",
    "AIController": "conversation.controllers",
    "AgentController": "conversation.controller",
    "AgentLoop": "loop.agent",
    "AgentState": "core.lifecycle",
    "Attachment": "conversation.attachments",
    "BaseAIController": "conversation.controllers",
    "Cancelled": "events",
    "Change": "conversation.staging",
    "Command": "commands",
    "Compactor": "loop.compaction",
    "Completed": "events",
    "ConfigError": "errors",
    "Ending": "core.delivery",
    "Export": "conversation.controllers",
    "Failed": "events",
    "File": "messages",
    "Image": "messages",
    "Incomplete": "events",
    "Journal": "contracts",
    "JournalError": "errors",
    "Limits": "loop.config",
    "LoopConfig": "loop.config",
    "MemoryJournal": "journal.memory",
    "Message": "messages",
    "Model": "messages",
    "OutcomeError": "errors",
    "OutcomeUnknown": "errors",
    "PilothouseError": "errors",
    "PostgresJournal": "journal.postgres",
    "Postponed": "conversation.interceptor",
    "Price": "messages",
    "PromptEvent": "conversation.interceptor",
    "Provider": "contracts",
    "ProviderError": "errors",
    "Reply": "conversation.reply",
    "RequestEvent": "conversation.controllers",
    "ResponseEvent": "conversation.controllers",
    "RetryPolicy": "loop.config",
    "Run": "runs.handle",
    "RunController": "runs.controller",
    "RunExtras": "conversation.extras",
    "RunSpec": "records",
    "Runtime": "contracts",
    "SQLiteJournal": "journal.sqlite",
    "Snapshot": "conversation.snapshots",
    "StagedController": "conversation.staging",
    "Text": "messages",
    "ToolContext": "loop.context",
    "ToolError": "errors",
    "ToolResult": "loop.tools",
    "Truncated": "events",
    "Unknown": "events",
    "UploadController": "conversation.uploads",
    "UploadFile": "conversation.files",
    "UploadResult": "conversation.files",
    "Usage": "messages",
    "UsageError": "errors",
    "agent_tool": "loop.subagent",
    "current_reply": "conversation.controllers",
    "provider": "providers.resolve",
    "run_sync": "conversation.sync",
    "tool": "loop.tools",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - strings, from the table


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        # With both, Python adds "Did you mean: …?" itself.
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    found = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
