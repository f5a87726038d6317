"""What a user's type checker is told: each answer of the public API has its own type. Read by mypy, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never, assert_type

from pilothouse import (
    AgentController,
    AgentLoop,
    AgentState,
    AGUIAgent,
    BaseAIController,
    Cancelled,
    Completed,
    Export,
    Failed,
    Incomplete,
    LocalAgent,
    LoopConfig,
    MemoryJournal,
    Message,
    PromptEvent,
    Reply,
    RequestEvent,
    ResponseEvent,
    Run,
    RunController,
    RunExtras,
    RunSpec,
    Snapshot,
    SQLiteJournal,
    StagedController,
    Truncated,
    Unknown,
    computed,
    current_reply,
    provider,
    run_sync,
    tool,
    watch,
)
from pilothouse.agent_contracts import Signal
from pilothouse.conversation.extras import Refused
from pilothouse.conversation.reply import PartialResponse
from pilothouse.events import Delta
from pilothouse.loop.tools import Tool, ToolLike
from pilothouse.projection import AgentMessage, Checkpoint
from pilothouse.records import Record, RunResult, RunView
from pilothouse.server import Server
from pilothouse.testing import ScriptedProvider


@tool
async def plain(port: str) -> dict[str, str]:
    """Says where."""
    return {"port": port}


@tool(effect="read", approval=lambda check: bool(check.args))
def with_options(port: str, nights: int = 1) -> str:
    """Says how long."""
    return port * nights


assert_type(plain, Tool)
assert_type(with_options, Tool)


@dataclass
class Route:
    stops: list[str]


class Planner(StagedController[Route]):
    namespace = "route"

    def get_tools(self) -> Sequence[ToolLike]:
        return [self.add]

    async def add(self, stop: str) -> str:
        """Adds."""
        assert_type(self.staged, Route | None)
        self.stage(Route([*(self.state or Route([])).stops, stop]))
        return "ok"


class Harbour(BaseAIController):
    namespace = "harbour"

    def on_request(self, event: RequestEvent) -> None:
        assert_type(event.text, str)

    def on_response(self, event: ResponseEvent) -> None:
        print(event.ending)


async def parrot(messages: tuple[Message, ...]) -> AsyncIterator[str]:
    yield messages[-1].text


def moderate(event: PromptEvent) -> None:
    event.replace(text=event.text.strip())


async def a_conversation() -> None:
    agent = AgentController(
        provider("local"),
        journal=SQLiteJournal("chat.db"),
        tools=[plain, with_options, print],
        controllers=[Planner, Planner(), Harbour],
        interceptor=moderate,
        config=LoopConfig(),
        on_state_change=lambda state: print(state.value),
    )
    async with agent as opened:
        assert_type(opened, AgentController)
        reply = await opened.send("hi", extras=RunExtras(limits={"turns": 3}))
        assert_type(reply, Reply)
        async for piece in reply:
            assert_type(piece, str)
        assert_type(await reply.result(), Message)
        assert_type(await reply.output(Route), Route)
        assert_type(await reply.output(list[int]), list[int])
        assert_type(reply.run, Run | None)
        assert_type(opened.state, AgentState)
        assert_type(opened.messages, tuple[Message, ...])
        assert_type(opened.last_reply, Reply | None)
        assert_type(opened.partial, PartialResponse | None)
        assert_type(await opened.retry(), Reply)
        assert_type(opened.abort(), bool)
        assert_type(opened.snapshot(), Snapshot)
        assert_type(await AgentController.from_snapshot(opened.snapshot(), parrot), AgentController)
        assert_type(await opened.export("grid", "rows"), Export)
        assert_type(await opened.runs.inspect("run"), RunView)
        assert_type(await opened.runs.events("run"), list[Record])
        async for item in opened.runs.stream("run"):
            assert_type(item, Record | Delta)
    assert_type(current_reply(), Reply)


def every_ending(outcome: Completed | Truncated | Incomplete | Cancelled | Failed | Unknown | Refused) -> str:
    match outcome:
        case Completed() | Truncated():
            return "there is an answer"
        case Incomplete(reason=reason) | Cancelled(reason=reason) | Unknown(reason=reason):
            return reason
        case Failed(kind=kind):
            return kind
        case Refused(error=error):
            return str(error)
        case _:
            assert_never(outcome)


async def outcomes(reply: Reply) -> None:
    every_ending(await reply.wait())


async def an_interface(controller: AgentController) -> None:
    async with LocalAgent(controller) as agent:
        assert_type(agent, LocalAgent)
        outcome = await agent.submit("hi")
        if outcome != "success":
            print(outcome.upper())
        assert_type(agent.messages(), tuple[AgentMessage, ...])
        assert_type(agent.history(), tuple[Checkpoint, ...])
        assert_type(computed(lambda: len(agent.messages())), Signal[int])
        async for messages in watch(agent.messages):
            assert_type(messages, tuple[AgentMessage, ...])
    async with AGUIAgent("http://localhost:8000/agent") as remote:
        assert_type(remote, AGUIAgent)


async def runs() -> None:
    async with RunController(AgentLoop(ScriptedProvider(), tools=[plain]), journal=MemoryJournal()) as kept:
        run = await kept.start(RunSpec("run", "thread", ()))
        assert_type(run, Run)
        assert_type(await run.result(), RunResult)
    Server({"default": AgentController(parrot)}, journal=MemoryJournal())


async def number() -> int:
    return 1


assert_type(run_sync(number()), int)
assert_type(run_sync(number), int)


def state_is_json(controller: AgentController) -> Mapping[str, object]:
    return controller.shared_state
