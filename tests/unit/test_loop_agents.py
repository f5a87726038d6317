"""Agents as tools of another agent, and conversations that are handed over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pilothouse.commands import Allow
from pilothouse.errors import ConfigError
from pilothouse.events import (
    CallFinished,
    CallProgress,
    Cancelled,
    ChildTold,
    Completed,
    Failed,
    Incomplete,
    Noted,
    RequestOpened,
)
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.config import Limits, LoopConfig
from pilothouse.loop.handoff import Handoff
from pilothouse.loop.subagent import DEEPEST, agent_tool
from pilothouse.loop.tools import tool
from pilothouse.messages import Message, Model, Text, Usage
from pilothouse.records import Origin, RunQuery, RunSpec
from pilothouse.responses import ModelRequest, ModelSettings, StreamEnd
from pilothouse.runs.controller import RunController
from pilothouse.testing import FaultyJournal, Hold, LoopRig, ScriptedProvider
from pilothouse.testing.scripted import Cut, call, failure


def delegating(sub: Any, *, after: Any = "done", config: LoopConfig | None = None, **options: Any) -> LoopRig:
    """A run that gives one task to a sub-agent."""
    script = [call("scout", {"task": "look around"}, call_id="s")]
    made = agent_tool(sub, name="scout", description="Looks around.", **options)
    return LoopRig(AgentLoop(ScriptedProvider(script, after), tools=[made], config=config))


def end_of(run: LoopRig) -> CallFinished:
    return run.of(CallFinished)[0]


def text_of(run: LoopRig) -> str:
    return "\n".join(part.text for part in end_of(run).content if isinstance(part, Text))


# Sub-agents in memory


async def test_the_answer_of_an_agent_is_the_result_and_its_words_are_progress() -> None:
    provider = ScriptedProvider(["I see ", "a lighthouse", Usage(input=10, output=4)])
    run = delegating(AgentLoop(provider))
    assert await run.run() == Completed()
    assert text_of(run) == "I see a lighthouse"
    assert [message.text for message in provider.requests[0].messages] == ["look around"]
    told = [body.text for body in run.told if isinstance(body, CallProgress)]
    assert told[-1] == "I see a lighthouse"


@pytest.mark.parametrize(
    ("script", "outcome", "words"),
    [
        (failure("auth", "secret"), "failed", "scout failed: auth"),
        (["half", StreamEnd("refusal")], "succeeded", "half\nscout did not finish: refusal."),
        (["half", Cut()], "unknown", "check before"),
        (["cut", StreamEnd("length")], "succeeded", "cut"),
    ],
)
async def test_how_an_agent_ended_is_told_apart_from_what_it_said(
    script: Any, outcome: str, words: str
) -> None:
    run = delegating(AgentLoop(ScriptedProvider(script)))
    assert await run.run() == Completed()
    assert end_of(run).outcome == outcome
    assert words.lower() in text_of(run).lower()
    assert "secret" not in text_of(run)
    assert text_of(run).lower().count("check before") <= 1
    assert end_of(run).is_error == ("cut" not in words)


async def test_structured_output_comes_along() -> None:
    run = delegating(AgentLoop(ScriptedProvider("[1, 2]"), output_type=list[int]))
    await run.run()
    assert end_of(run).content[1].data == [1, 2]


async def test_a_stop_of_the_parent_stops_the_agent() -> None:
    hold = Hold()
    provider = ScriptedProvider(["half", hold])
    run = delegating(AgentLoop(provider))
    task = run.begin()
    await hold.reached()
    run.stop("enough")
    await task
    assert run.outcome == Cancelled("enough")
    assert provider.open == 0
    assert end_of(run).outcome == "unknown"


async def test_it_has_a_slice_of_the_budget_and_what_it_uses_counts() -> None:
    spent = Usage(input=700, output=100)
    provider = ScriptedProvider([call("nothing"), spent], "never")
    limits = Limits(total_tokens=1_000)
    config = LoopConfig(limits=limits, settings=ModelSettings(max_output_tokens=50))
    sub = AgentLoop(
        provider,
        config=LoopConfig(limits=Limits(total_tokens=10**6), settings=ModelSettings(max_output_tokens=50)),
    )
    run = delegating(sub, config=config, share=0.5)
    assert await run.run() == Incomplete("limit", "total_tokens")
    assert "did not finish: total_tokens" in text_of(run)
    assert len(provider.requests) == 1
    assert len(run.loop._providers.of(Model("x")).requests) == 1


# Durable sub-agents


def controllers(
    parent_scripts: Any, *sub_scripts: Any
) -> tuple[RunController, RunController, ScriptedProvider]:
    provider = ScriptedProvider(*sub_scripts)
    children = RunController(AgentLoop(provider), "children")
    made = agent_tool(children, name="scout", description="Looks around.")
    parents = RunController(AgentLoop(ScriptedProvider(*parent_scripts), tools=[made]), "parents")
    return parents, children, provider


def spec(run_id: str) -> RunSpec:
    return RunSpec(run_id, run_id, (Message(f"{run_id}-in", "user", (Text("go"),)),))


TASK = [call("scout", {"task": "look around"}, call_id="s")]


async def test_a_durable_agent_runs_as_a_run_of_its_own_with_its_parent_on_record() -> None:
    parents, children, provider = controllers([TASK, "done"], ["a ", "lighthouse", Usage(input=3, output=2)])
    async with children, parents:
        run = await parents.start(spec("p"))
        assert (await run.wait()).outcome == Completed()
        (entry,) = (await children.catalog_runs(RunQuery(origin="p"))).items
        assert (entry.run_id, entry.origin) == ("p.s", Origin("p", "s"))
        ends = [record.fact for record in await run.events() if isinstance(record.fact, CallFinished)]
        assert ends[0].content[0].text == "a lighthouse"
    assert len(provider.requests) == 1


async def test_a_stop_of_the_parent_is_a_stop_of_the_run() -> None:
    hold = Hold()
    parents, children, provider = controllers([TASK], ["a", hold])
    async with children, parents:
        run = await parents.start(spec("p"))
        await hold.reached()
        await parents.cancel("p", "enough")
        assert (await run.wait()).outcome == Cancelled("enough")
        child = await children.run("p.s").wait()
        assert child.outcome == Cancelled("user", "parent")
    assert provider.open == 0


@pytest.mark.parametrize("kept", ["memory", "slowly"])
async def test_after_the_stop_of_the_parent_an_agent_does_nothing_more(kept: str) -> None:
    """LP-43: whatever it was told of the agent when it was stopped: no call of that starts, no request is made."""

    async def parent(stop_at: int | None) -> tuple[list[str], list[str], int]:
        """What happened before the stop and in all, and how much was told."""
        done: list[str] = []

        @tool
        async def ring(bell: str) -> str:
            """Rings."""
            done.append(bell)
            await asyncio.sleep(0)
            return "rung"

        def asked(*pieces: Any) -> Any:
            return lambda _: done.append("asked") or list(pieces)

        script = [asked("I ", "ring ", call("ring", {"bell": "big"})), asked(call("ring", {"bell": "small"}))]
        loop = AgentLoop(ScriptedProvider(*script, asked("rung")), tools=[ring])
        agents = RunController(loop, "agents", journal=FaultyJournal(MemoryJournal(), immediate=False))
        made = agent_tool(loop if kept == "memory" else agents, name="scout", description="x")
        told: list[Any] = []
        before: list[str] = []

        def watch(_: int, item: Any) -> None:
            if isinstance(item, CallProgress | ChildTold):
                if len(told) == stop_at:
                    before.extend(done)
                    run.stop()
                told.append(item)

        run = LoopRig(AgentLoop(ScriptedProvider(TASK, "done"), tools=[made]), on_seen=watch)
        async with agents:
            assert await run.run() == (Completed() if stop_at is None else Cancelled("stop"))
        return before, done, len(told)

    _, everything, count = await parent(None)
    assert everything == ["asked", "big", "asked", "small", "asked"]
    cut = set()
    for stop_at in range(count - 1):
        before, done, _ = await parent(stop_at)
        assert done == before, stop_at
        cut.add(len(done))
    assert len(cut) > 2


async def test_a_stop_while_the_run_is_being_registered_stops_it_too() -> None:
    """Promise 3: a run that is on record and that nobody drives would be taken up by a recovery, though it was stopped."""
    journal = FaultyJournal(MemoryJournal())
    slow = journal.hang(when="after", on=("create",))
    provider = ScriptedProvider(["nobody wants ", Hold(), "this"])
    children = RunController(AgentLoop(provider), "children", journal=journal)
    made = agent_tool(children, name="scout", description="Looks around.")
    async with children, RunController(AgentLoop(ScriptedProvider(TASK), tools=[made]), "parents") as parents:
        run = await parents.start(spec("p"))
        await slow.reached.wait()
        await parents.cancel("p", "enough")
        for _ in range(20):
            await asyncio.sleep(0)
        slow.release()
        assert (await run.wait()).outcome == Cancelled("enough")
        assert (await children.inspect("p.s")).outcome == Cancelled("user", "parent")


async def test_a_shutdown_of_the_parent_leaves_the_run_for_its_recovery() -> None:
    """RC-52, EF-5: what was begun is not stopped by that its process ends, and is found again by who goes on."""
    hold, journal = Hold(), MemoryJournal()
    provider = ScriptedProvider(["a ", hold, "lighthouse"])

    def parent(script: Any) -> RunController:
        made = agent_tool(children, name="scout", description="Looks around.")
        return RunController(AgentLoop(ScriptedProvider(script), tools=[made]), "parents", journal=journal)

    async with RunController(AgentLoop(provider), "children", journal=journal) as children:
        async with parent(TASK) as parents:
            await parents.start(spec("p"))
            await hold.reached()
        assert (await children.inspect("p.s")).status == "running"
        hold.release()
        async with parent("done") as parents:
            run = parents.run("p")
            await run.recover()
            assert (await run.wait()).outcome == Completed()
            ends = [record.fact for record in await run.events() if isinstance(record.fact, CallFinished)]
            assert [end.content[0].text for end in ends] == ["a lighthouse"]
    assert len(provider.requests) == 1


@pytest.mark.parametrize("call_id", ["call_" + "x" * 300, "a\nb", "a\u2028b"])
async def test_any_id_of_a_call_makes_an_id_of_a_run(call_id: str) -> None:
    """RC-1: a provider's ids are its own; a run's are short and printable, also some agents deep."""
    made: Any = AgentLoop(ScriptedProvider("a lighthouse"))
    opened: list[RunController] = []
    for _ in range(4):
        opened.append(RunController(made, "agents"))
        scout = agent_tool(opened[-1], name="scout", description="x")
        script = [call("scout", {"task": "look around"}, call_id=call_id)]
        made = AgentLoop(ScriptedProvider(script, lambda asked: asked.messages[-1].text), tools=[scout])
    run = LoopRig(made)
    assert await run.run() == Completed()
    assert text_of(run) == "a lighthouse"
    for controller in opened:
        await controller.aclose()


async def test_entered_again_it_finds_the_run_that_it_had_begun() -> None:
    """EF-5: the call is idempotent, because the run's id is made of the call's."""
    provider = ScriptedProvider("a lighthouse")
    async with RunController(AgentLoop(provider), "children") as children:
        made = agent_tool(children, name="scout", description="x")
        whole = LoopRig(AgentLoop(ScriptedProvider(TASK, "done"), tools=[made]))
        await whole.run()
        cut = next(at for at, fact in enumerate(whole.facts) if fact.kind == "call_started") + 1
        again = LoopRig(AgentLoop(ScriptedProvider("done"), tools=[made]), records=whole.records[:cut])
        assert await again.resume() == Completed()
        assert text_of(again) == "a lighthouse"
    assert len(provider.requests) == 1


# Handoff


@tool(approval=True)
async def record(n: int = 0) -> str:
    """Records."""
    return "recorded"


@tool(effect="read")
async def sort_out() -> str:
    """Sorts out."""
    return "sorted"


WORKER = Handoff(
    name="worker",
    description="Does the work.",
    system_prompt="You work.",
    tools=[record],
    model=Model("big", "scripted"),
    settings=ModelSettings(temperature=0.1),
)
CLERK = Handoff(name="clerk", description="Files.", system_prompt="You file.", to=["worker"])


def handing(*scripts: Any, **options: Any) -> LoopRig:
    provider = ScriptedProvider(*scripts)
    loop = AgentLoop(provider, system_prompt="You sort.", tools=[sort_out], handoffs=[WORKER, CLERK])
    run = LoopRig(loop, **options)
    run.provider = provider
    return run


async def test_a_conversation_is_handed_over_with_prompt_tools_model_and_settings() -> None:
    run = handing([call("sort_out"), call("hand_over_to_worker")], "done")
    assert await run.run() == Completed()
    first, second = run.provider.requests
    assert (first.system_prompt, [spec.name for spec in first.tools]) == (
        "You sort.",
        ["sort_out", "hand_over_to_worker", "hand_over_to_clerk"],
    )
    assert (second.system_prompt, second.model.id, second.settings.temperature) == ("You work.", "big", 0.1)
    assert [spec.name for spec in second.tools] == ["record", "hand_over_to_clerk"]
    assert len(second.messages) == 4
    assert [fact.data for fact in run.of(Noted) if fact.name == "loop/handoff"] == [{"to": "worker"}]


async def test_whom_an_agent_may_hand_over_to_may_be_bounded() -> None:
    run = handing([call("hand_over_to_clerk")], [call("hand_over_to_worker")], "done")
    assert await run.run() == Completed()
    assert [spec.name for spec in run.provider.requests[1].tools] == ["hand_over_to_worker"]
    assert run.provider.requests[2].system_prompt == "You work."


async def test_an_approval_resumes_the_agent_that_raised_it() -> None:
    """[170]: also after a restart, at every append."""
    scripts = [[call("hand_over_to_worker", call_id="h")], [call("record", call_id="c1")], "done"]
    whole = handing(*scripts)
    task = whole.begin()
    for _ in range(30):
        await asyncio.sleep(0)
    request = whole.of(RequestOpened)[0].request
    again = handing("done", records=list(whole.records))
    task_again = again.begin(again.resume)
    for _ in range(30):
        await asyncio.sleep(0)
    again.answer(request.id, Allow())
    await task_again
    assert again.outcome == Completed()
    assert [end.outcome for end in again.of(CallFinished)] == ["succeeded", "succeeded"]
    assert again.provider.requests[0].system_prompt == "You work."
    whole.answer(request.id, Allow())
    await task
    for cut in whole.appends[:6]:
        answered = sum(record.fact.kind == "model_attempt_ended" for record in whole.records[:cut])
        later = handing(*scripts[answered:], records=whole.records[:cut])
        if any(record.fact.kind == "request_opened" for record in whole.records[:cut]):
            break
        resumed = later.begin(later.resume)
        for _ in range(30):
            await asyncio.sleep(0)
        later.answer(later.of(RequestOpened)[0].request.id, Allow())
        await resumed
        assert later.outcome == Completed()
        assert later.provider.requests[-1].system_prompt == "You work."


def test_agents_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="two are called"):
        AgentLoop(ScriptedProvider(), handoffs=[WORKER, WORKER])
    with pytest.raises(ConfigError, match="there is none"):
        AgentLoop(ScriptedProvider(), handoffs=[Handoff(name="a", description="x", to=["nobody"])])
    with pytest.raises(ConfigError, match="no provider 'elsewhere'"):
        AgentLoop(
            {"scripted": ScriptedProvider()},
            handoffs=[Handoff(name="a", description="x", model=Model("m", "elsewhere"))],
        )
    with pytest.raises(ConfigError, match="two are called 'sort_out'"):
        AgentLoop(
            ScriptedProvider(), handoffs=[Handoff(name="a", description="x", tools=[sort_out, sort_out])]
        )
    with pytest.raises(ConfigError, match="no limit is called 'turnz'"):
        agent_tool(AgentLoop(ScriptedProvider()), name="a", description="x", limits={"turnz": 1})


async def test_an_agent_that_is_gone_leaves_the_conversation_where_it_is() -> None:
    whole = handing([call("hand_over_to_worker", call_id="h")], "done")
    await whole.run()
    cut = next(at for at, fact in enumerate(whole.facts) if fact.kind == "turn_ended") + 1
    loop = AgentLoop(ScriptedProvider("done"), system_prompt="You sort.")
    assert await LoopRig(loop, records=whole.records[:cut]).resume() == Completed()
    assert not isinstance(whole.outcome, Failed)


@pytest.mark.parametrize("durable", [False, True])
async def test_an_agent_that_calls_itself_does_not_do_so_for_ever(durable: bool) -> None:
    """LP-38: also without limits; the last one is told, and answers with what it has."""

    def answer(asked: ModelRequest) -> Any:
        last = asked.messages[-1]
        return [call("scout", {"task": "look further"})] if last.role == "user" else f"heard: {last.text}"

    made: list[Any] = []
    loop = AgentLoop(ScriptedProvider(answer, repeat=True), tools=lambda: made)
    runs = RunController(loop, "agents") if durable else None
    made.append(agent_tool(runs or loop, name="scout", description="Looks further."))
    run = LoopRig(loop)
    assert await run.run() == Completed()
    assert "not allowed" in text_of(run)
    assert text_of(run).count("heard: ") == DEEPEST
    if runs is not None:
        await runs.aclose()


async def test_a_run_that_is_taken_up_again_stands_where_it_stood() -> None:
    """LP-38, EF-5: what a crash leaves is called by nobody, and may still not call itself deeper than it could before."""
    journal, hold, deep = MemoryJournal(), Hold(), DEEPEST - 3
    asked: list[ModelRequest] = []

    def answer(request: ModelRequest) -> Any:
        asked.append(request)
        last = request.messages[-1]
        if last.role == "tool":
            return f"heard: {last.text}"
        further = call("scout", {"task": "look further"})
        return [hold, further] if len(asked) == deep else [further]

    def controller(made: list[Any]) -> RunController:
        loop = AgentLoop(ScriptedProvider(answer, repeat=True), tools=lambda: made)
        runs = RunController(loop, "agents", journal=journal)
        made[:] = [agent_tool(runs, name="scout", description="Looks further.")]
        return runs

    before = controller([])
    await before.start(spec("p"))
    await hold.reached()
    await before.aclose()
    hold.release()
    names = sorted((entry.run_id for entry in (await before.catalog_runs()).items), key=len)
    assert len(names) == deep
    async with controller([]) as after:
        last = after.run(names[-1])
        await last.recover()
        assert (await last.wait()).outcome == Completed()
        count = len((await after.catalog_runs()).items)
    assert count == DEEPEST + 1  # the first one, and eight below it


async def test_a_stop_after_a_crash_reaches_the_run_that_waits_below() -> None:
    """Promise 3, RC-53: nobody enters the call again, so what it had begun is stopped with its parent; nothing runs later."""
    deployed: list[str] = []
    journal = MemoryJournal()

    @tool(approval=True)
    async def deploy() -> str:
        """Deploys."""
        deployed.append("!")
        return "deployed"

    def process(first: bool) -> tuple[RunController, RunController]:
        script = [call("deploy", call_id="d")] if first else "nobody asked"
        children = RunController(
            AgentLoop(ScriptedProvider(script), tools=[deploy]), "children", journal=journal
        )
        made = agent_tool(children, name="scout", description="Looks around.")
        parent = AgentLoop(ScriptedProvider(TASK if first else "nobody asked"), tools=[made])
        return RunController(parent, "parents", journal=journal), children

    parents, children = process(True)
    await parents.start(spec("p"))
    while not await children.has_run("p.s") or (await children.inspect("p.s")).status != "waiting":
        await asyncio.sleep(0)
    await parents.aclose()
    await children.aclose()
    parents, children = process(False)
    async with children, parents:
        await parents.cancel("p", "enough")
        assert (await parents.run("p").wait()).outcome == Cancelled("enough")
        (end,) = [r.fact for r in await parents.events("p") if isinstance(r.fact, CallFinished)]
        assert end.outcome == "unknown"  # it was entered, so nobody can say that it was not run
        below = await asyncio.wait_for(children.run("p.s").wait(), 10)
        assert below.outcome == Cancelled("parent", "parent")
        assert below.view.requests == ()
    assert deployed == []


async def test_of_a_call_that_was_entered_nobody_says_that_it_was_not_run() -> None:
    """RC-27, EF table: also not where the run is stopped before its second attempt."""
    entered: list[int] = []

    @tool(effect="idempotent")
    async def put(n: int) -> str:
        """Puts."""
        entered.append(n)
        return "put"

    whole = LoopRig(AgentLoop(ScriptedProvider([call("put", {"n": 1})], "done"), tools=[put]))
    await whole.run()
    cut = next(at for at, fact in enumerate(whole.facts) if fact.kind == "call_started") + 1
    again = LoopRig(AgentLoop(ScriptedProvider("done"), tools=[put]), records=whole.records[:cut])
    again.port.cancel("enough")
    assert await again.resume() == Cancelled("enough")
    (end,) = again.of(CallFinished)
    assert end.outcome == "unknown"
    assert "not run" not in end.content[0].text
    assert entered == [1]
