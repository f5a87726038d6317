"""What tests of Pilothouse, and of what people build on it, are made of. Loaded name by name, at first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent_suite.driving import AgentDriver as AgentDriver
    from .agent_suite.suite import AgentConformance as AgentConformance
    from .agents import FakeAgent as FakeAgent
    from .agents import FakeBackend as FakeBackend
    from .agents import MockAgent as MockAgent
    from .agui import verify_agui as verify_agui
    from .clock import StepClock as StepClock
    from .controller_suite import AIControllerConformance as AIControllerConformance
    from .dispatch import Board as Board
    from .dispatch import LocalDispatcher as LocalDispatcher
    from .endpoint import ScriptedEndpoint as ScriptedEndpoint
    from .facts import RunFacts as RunFacts
    from .faults import FaultyJournal as FaultyJournal
    from .journals import DurableJournalConformance as DurableJournalConformance
    from .journals import JournalConformance as JournalConformance
    from .meter import Meter as Meter
    from .providers import ProviderConformance as ProviderConformance
    from .providers import Recording as Recording
    from .recorded import RecordedRun as RecordedRun
    from .replay import Received as Received
    from .replay import Replay as Replay
    from .replay import ReplayServer as ReplayServer
    from .rig import LoopRig as LoopRig
    from .runtime_suite import RuntimeConformance as RuntimeConformance
    from .runtimes import ScriptedRuntime as ScriptedRuntime
    from .sample_runs import SampleRun as SampleRun
    from .scripted import Hold as Hold
    from .scripted import ScriptedProvider as ScriptedProvider

_HOMES = {
    "AIControllerConformance": "controller_suite",
    "AgentConformance": "agent_suite.suite",
    "AgentDriver": "agent_suite.driving",
    "Board": "dispatch",
    "LocalDispatcher": "dispatch",
    "FakeAgent": "agents",
    "FakeBackend": "agents",
    "MockAgent": "agents",
    "ScriptedEndpoint": "endpoint",
    "DurableJournalConformance": "journals",
    "FaultyJournal": "faults",
    "Hold": "scripted",
    "JournalConformance": "journals",
    "LoopRig": "rig",
    "Meter": "meter",
    "ProviderConformance": "providers",
    "Received": "replay",
    "RecordedRun": "recorded",
    "Recording": "providers",
    "Replay": "replay",
    "ReplayServer": "replay",
    "RunFacts": "facts",
    "RuntimeConformance": "runtime_suite",
    "SampleRun": "sample_runs",
    "ScriptedProvider": "scripted",
    "ScriptedRuntime": "runtimes",
    "StepClock": "clock",
    "verify_agui": "agui",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - a list of str, made from the table


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)
