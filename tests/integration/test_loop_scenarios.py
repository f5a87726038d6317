"""The handed scenario fixtures on the loop: stops, double sends, approvals, loops, limits, timeouts, cancellation."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import subprocess
import sys
import threading
import warnings
from contextvars import ContextVar
from typing import Any

import pytest

from pilothouse.clock import SystemClock
from pilothouse.errors import AgentBusy, RunConflict
from pilothouse.events import CallFinished, Cancelled, Completed, Failed, HistoryCompacted
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.config import LoopConfig
from pilothouse.loop.hooks import OverWindow
from pilothouse.loop.stream import supervise
from pilothouse.loop.tools import tool
from pilothouse.messages import Message, Model, Text
from pilothouse.records import RunSpec
from pilothouse.responses import ModelRequest, TextDelta
from pilothouse.runs.controller import RunController
from pilothouse.scope import Scope
from pilothouse.testing import Hold, LoopRig, ScriptedProvider, StepClock
from pilothouse.testing.scripted import Sleep, call
from scenarios import Driver, fixture_of, ops_of


@pytest.mark.parametrize(
    "number", ["110", "112", "115", "116", "118", "127", "155", "157", "158", "163", "166"]
)
async def test_scenario(number: str) -> None:
    """The fixture's own words."""
    await Driver(ops_of(number), gated=frozenset({"buy", "send_mail"})).play()


async def test_one_compaction_and_one_retry_a_turn() -> None:
    """[167]"""

    def relief(over: OverWindow) -> list[Any]:
        return [over.messages[-1]]

    await Driver(ops_of("167"), over_window_relief=relief).play()


# J: unicode


async def test_every_value_becomes_json_or_an_error_result() -> None:
    """[101]: run and journal survive."""
    values = {
        "datetime(2026,1,2,3,4,5)": dt.datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - as tools return them
        "float('nan')": float("nan"),
        "b'\\x00\\xff'": b"\x00\xff",
        "{1,2}": {1, 2},
        "type": int,
        "exception instance": ValueError("x"),
    }
    named = fixture_of("101")["returns_python"]
    assert set(named) == set(values)

    @tool(effect="read")
    async def get_row(n: int) -> Any:
        """Gets a row."""
        return values[named[n]]

    provider = ScriptedProvider([call("get_row", {"n": n}, call_id=f"c{n}") for n in range(len(named))], "ok")
    async with RunController(AgentLoop(provider, tools=[get_row])) as runs:
        run = await runs.start(spec("r", "go"))
        assert (await run.wait()).outcome == Completed()
        ends = {
            record.fact.call_id: record.fact
            for record in await run.events()
            if isinstance(record.fact, CallFinished)
        }
        told = {name: ends[f"c{n}"].outcome for n, name in enumerate(named)}
        assert [told[name] for name in named] == [
            "succeeded",
            "succeeded",
            "failed",
            "succeeded",
            "failed",
            "failed",
        ]
        assert ends["c1"].content[0].text == "null"


def spec(run_id: str, text: str, thread: str = "t") -> RunSpec:
    return RunSpec(run_id, thread, (Message(f"{run_id}-in", "user", (Text(text),)),))


# M: stop


class Blocked:
    """A runtime that cannot begin yet."""

    def __init__(self, loop: AgentLoop) -> None:
        self.loop = loop
        self.unblocked = asyncio.Event()
        self.describe, self.resume = loop.describe, loop.resume

    async def run(self, start: Any, port: Any) -> None:
        await self.unblocked.wait()
        await self.loop.run(start, port)


async def test_a_cancel_before_the_first_step_is_not_cleared_by_the_start() -> None:
    """[114]"""
    provider = ScriptedProvider("never")
    blocked = Blocked(AgentLoop(provider))
    async with RunController(blocked) as runs:
        run = await runs.start(spec("r1", "go"), until="accepted")
        await runs.cancel("r1", "stop")
        blocked.unblocked.set()
        assert (await run.wait()).outcome == Cancelled("stop")
    assert provider.requests == []


# N: double send


async def test_one_key_is_one_run() -> None:
    """[120]: across retries, restarts and races; another payload is a conflict."""
    provider = ScriptedProvider(*["ok"] * 4)
    journal = MemoryJournal()
    async with RunController(AgentLoop(provider), journal=journal) as runs:
        first, second = await runs.start(spec("k1", "pay")), await runs.start(spec("k1", "pay"))
        assert (first.id, second.id, second.reopened) == ("k1", "k1", True)
        with pytest.raises(RunConflict):
            await runs.start(spec("k1", "pay twice"))
        await first.wait()
    async with RunController(AgentLoop(provider), journal=journal) as runs:
        assert (await runs.start(spec("k1", "pay"))).reopened
        many = await asyncio.gather(*[runs.start(spec("k2", "x", "t2")) for _ in range(20)])
        assert sum(not run.reopened for run in many) == 1
        await many[0].wait()
    assert len(provider.requests) == 2


@pytest.mark.parametrize("policy", ["raise", "supersede", "queue"])
async def test_a_second_send_follows_the_policy_and_never_overlaps(policy: Any) -> None:
    """[121]"""
    ops = ops_of("121")
    driver = Driver(ops)
    driver.provider.scripts.put_nowait([ops[1]["text_deltas"][0], hold := Hold()])
    first = await driver.agent.send(ops[0]["text"])
    await hold.reached()
    if policy == "raise":
        with pytest.raises(AgentBusy):
            await driver.agent.send(ops[2]["text"], when_busy=policy)
        hold.release()
        assert await first.wait() == Completed()
    else:
        second = asyncio.create_task(driver.agent.send(ops[2]["text"], when_busy=policy))
        await driver.settle()
        assert len(driver.provider.requests) == (1 if policy == "queue" else 2)
        driver.provider.scripts.put_nowait("b")
        hold.release()
        reply = await second
        assert await reply.wait() == Completed()
        outcome = await first.wait()
        assert isinstance(outcome, Cancelled if policy == "supersede" else Completed)
    await driver.agent.aclose()


async def test_input_during_a_compaction_has_exactly_one_fate() -> None:
    """[122]: delivered in order, each once; the compaction is not broken off."""
    ops = ops_of("122")
    hold = Hold()

    async def relief(over: OverWindow) -> list[Message]:
        await hold.wait()
        return [over.messages[-1]]

    small = Model("m", "scripted", 20_000)
    provider = ScriptedProvider("1", "2", "3", model=small)
    run = LoopRig(
        AgentLoop(provider, config=LoopConfig(over_window_relief=relief)),
        ops[0]["text"],
        history=[Message("h", "user", (Text("x" * 100_000),))],
    )
    task = run.begin()
    await hold.reached()
    run.steer(ops[2]["text"])
    run.follow_up(ops[3]["text"])
    hold.release()
    await task
    said = [message.text for message in run.messages if message.role == "user"]
    assert said == ["go", "s1", "f1"]
    assert len(run.of(HistoryCompacted)) == 1


# O: approvals


async def test_a_pending_approval_is_in_the_journal_and_runs_once_after_a_restart() -> None:
    """[125]: the very call, not gated again; an unknown id is no silent success. Kills: tests/acceptance."""
    ops = ops_of("125")
    wanted = ops[1]["tool_calls"][0]
    runs_of_tool: list[str] = []

    @tool(approval=True)
    async def send_mail(to: str) -> str:
        """Sends."""
        runs_of_tool.append(to)
        return "sent"

    journal = MemoryJournal()
    script = [call(wanted["name"], wanted["args"], call_id=wanted["id"])]
    async with RunController(AgentLoop(ScriptedProvider(script), tools=[send_mail]), journal=journal) as runs:
        run = await runs.start(spec("r", ops[0]["text"]))
        await _until(run, "waiting")
    async with RunController(AgentLoop(ScriptedProvider("sent"), tools=[send_mail]), journal=journal) as runs:
        run = runs.run("r")
        (request,) = (await run.inspect()).requests
        assert (request.call_id, (await run.inspect()).status) == ("c1", "waiting")
        assert (await run.approve("nonsense")).state == "rejected"
        assert (await run.approve(request.id)).state == "applied"
        assert (await run.wait(timeout=5)).outcome == Completed()
        assert (await run.approve(request.id)).state in ("applied", "rejected")
    assert runs_of_tool == [wanted["args"]["to"]]


async def _until(run: Any, status: str) -> None:
    while (await run.inspect()).status != status:
        await asyncio.sleep(0)


async def test_an_approval_that_a_new_message_supersedes_is_dead() -> None:
    """[128]: under supersede the call is closed with a result; the old answer is refused."""
    ops = ops_of("128")
    driver = Driver(ops, gated=frozenset({"buy"}))
    driver.provider.scripts.put_nowait([call("buy", {}, call_id="c1")])
    sending = asyncio.create_task(driver.agent.send(ops[0]["text"]))
    await driver.settle()
    run = driver.agent.runs.run(await driver.run_id())
    (request,) = (await run.inspect()).requests
    driver.provider.scripts.put_nowait("just looking")
    second = await driver.agent.send(ops[2]["text"], when_busy="supersede")
    assert await second.wait() == Completed()
    assert (await run.inspect()).requests == ()
    ends = [record.fact for record in await run.events() if isinstance(record.fact, CallFinished)]
    assert [end.outcome for end in ends] == ["cancelled"]
    ack = await run.approve(request.id)
    assert (ack.state, driver.tool_runs.total()) == ("rejected", 0)
    await driver.expect_request_valid(True)
    await asyncio.gather(sending, return_exceptions=True)
    await driver.agent.aclose()


async def test_a_result_that_could_not_be_stored_is_kept_and_the_tool_not_run_again() -> None:
    """[130], LP-32: the loop waits in record."""
    driver = Driver(ops_of("130"), gated=frozenset({"send_mail"}), immediate=False)
    driver.provider.scripts.put_nowait([call("send_mail", {}, call_id="c1")])
    driver.provider.scripts.put_nowait("sent")
    reply = await driver.agent.send("go")
    await driver.settle()
    run = driver.agent.runs.run(await driver.run_id())
    driver.journal.fail(at=2, times=2, on={"append"})  # stores tell an OSError as JournalUnavailable
    (request,) = (await run.inspect()).requests
    approving = asyncio.create_task(run.approve(request.id))
    for _ in range(20):
        await driver.clock.advance(5)
    assert await asyncio.wait_for(reply.wait(), 5) == Completed()
    assert driver.tool_runs["c1"] == 1
    await driver.expect_journal_has(["call c1", "result c1"])
    await approving
    await driver.agent.aclose()


# T: loops


async def test_sync_tools_overlap_and_the_event_loop_goes_on() -> None:
    """[159]: context variables are copied; the loop ticks while both block."""
    user: ContextVar[str] = ContextVar("user")
    user.set("ada")
    both, go = threading.Barrier(2, timeout=20), threading.Event()
    inside = asyncio.Event()
    here = asyncio.get_running_loop()

    @tool
    def sync_sleep(s: float) -> str:
        """Blocks until both are inside and the event loop has ticked."""
        both.wait()
        here.call_soon_threadsafe(inside.set)
        assert go.wait(20)
        return user.get()

    calls = ops_of("159")[1]["tool_calls"]
    script = [call(one["name"], one["args"], call_id=one["id"]) for one in calls]
    loop = AgentLoop(ScriptedProvider(script, "ok"), tools=[sync_sleep])
    asking = asyncio.create_task(loop.ask("go"))
    await inside.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not asking.done()
    go.set()
    result = await asking
    assert [message.text for message in result.messages if message.role == "tool"] == ["ada", "ada"]
    await loop.aclose()


# U: asyncio


async def test_a_cancelled_error_is_whose_it_is() -> None:
    """[160]: born inside it is the tool's; from outside it ends the run, is re-raised, and child processes die."""
    children: list[subprocess.Popen[bytes]] = []

    @tool
    async def raises_cancelled() -> None:
        """Raises."""
        raise asyncio.CancelledError

    @tool
    async def cooperative() -> None:
        """Runs a child process."""
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
            children.append(child)
            try:
                await asyncio.Event().wait()
            finally:
                child.kill()

    provider = ScriptedProvider([call("raises_cancelled", call_id="c1")], [call("cooperative", call_id="c2")])
    run = LoopRig(AgentLoop(provider, tools=[raises_cancelled, cooperative]))
    task = run.begin()
    while not children:
        await asyncio.sleep(0)
    assert run.of(CallFinished)[0].outcome == "failed"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children[0].poll() is not None


async def test_breaking_off_closing_twice_and_from_elsewhere_leaves_nothing() -> None:
    """[161]"""
    request = ModelRequest(Model("m"), ())

    def open_one(provider: ScriptedProvider) -> Any:
        return supervise(provider, request, scope=Scope(None), clock=SystemClock())

    before = asyncio.all_tasks()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        silent = Hold()
        provider = ScriptedProvider(["a", "b", "c", "d"], ["a", Hold()], ["a", silent])
        async with open_one(provider) as response:
            seen = 0
            async for _ in response:
                seen += 1
                if seen == 3:
                    break
        await response.aclose()
        await response.aclose()
        gc.collect()
        assert provider.open == 0
        with pytest.raises(TimeoutError):
            async with open_one(provider) as response:
                async for event in response:
                    if isinstance(event, TextDelta):
                        await asyncio.wait_for(anext(response), 0.05)
        response = open_one(provider)

        async def read() -> None:
            async with response:
                async for _ in response:
                    pass

        task = asyncio.create_task(read())
        await silent.reached()
        await response.aclose()
        await task
        gc.collect()
    assert provider.open == 0
    assert asyncio.all_tasks() == before


# V: timeouts


async def test_silence_is_the_providers_only_while_it_is_waited_for() -> None:
    """[162]: pings are no content; a slow reader does not trip it."""
    clock = StepClock()
    options = {"loop.stream_idle_timeout_ms": 60_000}
    run = LoopRig(AgentLoop(ScriptedProvider(["a", Hold()]), clock=clock), clock=clock, options=options)
    task = run.begin()
    await clock.advance(120)
    await task
    assert isinstance(run.outcome, Failed)
    assert (run.outcome.kind, run.told[-1].text) == ("idle_timeout", "a")
    provider = ScriptedProvider(["b", Sleep(5), "c"], clock=clock)
    run = LoopRig(
        AgentLoop(provider, clock=clock),
        clock=clock,
        options=options,
        on_seen=lambda _, item: getattr(item, "text", "") == "b" and run.port.pause("read"),
    )
    task = run.begin()
    await clock.advance(300)
    assert not task.done()
    run.port.resume()
    await clock.advance(10)
    await task
    assert run.outcome == Completed()


# W: isolation


async def test_fifty_runs_of_one_loop_know_nothing_of_each_other() -> None:
    """[164]"""

    def echo(request: ModelRequest) -> list[str]:
        return [message.text for message in request.messages]

    loop = AgentLoop(ScriptedProvider(*[echo] * 50))
    async with RunController(loop) as runs:
        started = await asyncio.gather(
            *[runs.start(spec(f"r{n}", f"secret {n}", f"t{n}")) for n in range(50)]
        )
        await asyncio.gather(*[run.wait() for run in started])
        for n in range(50):
            texts = [entry.message.text for entry in await runs.history(f"r{n}")]
            assert texts == [f"secret {n}"] * 2
