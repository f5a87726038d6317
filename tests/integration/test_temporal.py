"""Temporal as the dispatcher, against its real server: what the port promises, through deaths, drains and outages."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowFailureError

from pilothouse.cluster import Driven, Ticket
from pilothouse.dispatch.limits import DispatchLimits
from pilothouse.dispatch.temporal import TemporalDispatcher
from pilothouse.errors import ConfigError, DispatchUnavailable
from pilothouse.events import Completed, RunEnded, TurnEnded, TurnStarted
from pilothouse.journal import MemoryJournal
from pilothouse.messages import Message, Text
from pilothouse.records import Owner, RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunTiming
from pilothouse.testing import ScriptedRuntime
from temporal_server import TemporalServer, shared_temporal

TESTS = Path(__file__).parent.parent
LEASE_S = 1.5


@pytest.fixture
def queue() -> str:
    return f"agent@{uuid4().hex[:8]}"


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


class Work:
    """A worker's side: what it was given, and what it answers once `gate` is open."""

    def __init__(self, *answers: Driven, held: bool = False) -> None:
        self.taken: list[Ticket] = []
        self.cancelled: list[str] = []
        self.beats = self.most = self._now = 0
        self.gate = asyncio.Event()
        self._answers = list(answers)
        if not held:
            self.gate.set()

    async def drive(self, ticket: Ticket) -> Driven:
        self.taken.append(ticket)
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(ticket.key)
            raise
        finally:
            self._now -= 1
        return self._answers.pop(0) if self._answers else "ended"

    @property
    def keys(self) -> list[str]:
        return [ticket.key for ticket in self.taken]


@asynccontextmanager
async def asking(target: str = "", **more) -> AsyncIterator[TemporalDispatcher]:
    """A process that only asks."""
    dispatcher = TemporalDispatcher(target or shared_temporal(), lease=more.pop("lease", LEASE_S), **more)
    yield dispatcher
    await dispatcher.aclose()


@asynccontextmanager
async def working(queue: str, work: Work, target: str = "", **more) -> AsyncIterator[TemporalDispatcher]:
    """A process that drives; its loop sends heartbeats as the runs of a controller do."""

    async def beat(dispatcher: TemporalDispatcher, lease: float) -> None:
        while True:
            await dispatcher.heartbeat(Owner("worker"), int(1000 * lease))
            work.beats += 1
            await asyncio.sleep(lease / 3)

    lease = more.get("lease", LEASE_S)
    async with asking(target, **more) as dispatcher:
        dispatcher.on_dispatch(queue, work.drive)
        await dispatcher.start()
        beating = asyncio.ensure_future(beat(dispatcher, lease))
        try:
            yield dispatcher
        finally:
            beating.cancel()
            await asyncio.wait((beating,))


async def result_of(ticket: Ticket) -> str:
    """What the engine has as the end of a ticket."""
    client = await Client.connect(shared_temporal())
    async with asyncio.timeout(30):
        return await client.get_workflow_handle(f"pilothouse:{ticket.key}", result_type=str).result()


async def test_a_ticket_is_driven_where_its_queue_is_taken(queue: str, stack: AsyncExitStack) -> None:
    """Asked for while nobody works, it is kept; a worker of another queue leaves it alone; it arrives as it was sent."""
    web = await stack.enter_async_context(asking())
    other, work = Work(), Work()
    await stack.enter_async_context(working(f"{queue}-other", other))
    ticket = Ticket("r1", queue, 3, "acme", "t1", -1, 2)
    await web.enqueue(ticket)
    await stack.enter_async_context(working(queue, work))
    assert await result_of(ticket) == "ended"
    assert (work.taken, other.taken) == ([ticket], [])


async def test_the_same_ticket_is_one_task_in_any_state(queue: str, stack: AsyncExitStack) -> None:
    """While it waits, while it is driven, and after its end; the next fence and the next round are other tickets."""
    one, two = [await stack.enter_async_context(asking()) for _ in range(2)]
    ticket = Ticket("again", queue)
    await asyncio.gather(one.enqueue(ticket), two.enqueue(ticket))
    work = Work(held=True)
    await stack.enter_async_context(working(queue, work))
    await until(lambda: work.taken)
    await two.enqueue(ticket)
    work.gate.set()
    assert await result_of(ticket) == "ended"
    await one.enqueue(ticket)
    later = [Ticket("again", queue, 2), Ticket("again", queue, 2, round=1)]
    for ticket in later:
        await one.enqueue(ticket)
        assert await result_of(ticket) == "ended"
    assert work.keys == ["again:1", "again:2", "again:2:1"]


@pytest.mark.parametrize("end", ["waiting", "unknown", "elsewhere", "handed_over", "refused"])
async def test_every_other_end_of_a_drive_is_the_end_of_its_ticket(
    queue: str, stack: AsyncExitStack, end: Driven
) -> None:
    """Whatever comes after it is asked for by another ticket."""
    work = Work(end)
    worker = await stack.enter_async_context(working(queue, work))
    ticket = Ticket(f"r-{queue}", queue)
    await worker.enqueue(ticket)
    assert await result_of(ticket) == end
    assert len(work.taken) == 1


async def test_a_deferred_run_holds_no_place_and_comes_again(queue: str, stack: AsyncExitStack) -> None:
    """Its principal has its share: the only place of the worker goes to another run meanwhile."""
    work = Work("deferred")
    worker = await stack.enter_async_context(working(queue, work, limits=DispatchLimits(worker=1)))
    first, second = Ticket(f"a-{queue}", queue), Ticket(f"b-{queue}", queue)
    await worker.enqueue(first)
    await until(lambda: work.taken)
    await worker.enqueue(second)
    assert await result_of(first) == "ended"
    assert work.keys == [first.key, second.key, first.key]
    assert work.most == 1


async def test_a_drive_that_fails_is_tried_again(queue: str, stack: AsyncExitStack) -> None:
    """A fault of ours must not lose a run."""
    work = Work()
    failures = [OSError("disk"), ValueError("bug")]

    async def drive(ticket: Ticket) -> Driven:
        if failures:
            raise failures.pop()
        return await work.drive(ticket)

    worker = await stack.enter_async_context(asking())
    worker.on_dispatch(queue, drive)
    await worker.start()
    ticket = Ticket(f"r-{queue}", queue)
    await worker.enqueue(ticket)
    assert await result_of(ticket) == "ended"
    assert failures == []


async def test_deployments_that_share_a_namespace_do_not_share_tickets(
    queue: str, stack: AsyncExitStack
) -> None:
    """The same agent and the same run id, over two journals: each worker drives its own."""
    works = {name: Work() for name in ("staging", "production")}
    for name, work in works.items():
        worker = await stack.enter_async_context(working(queue, work, deployment=name))
        await worker.enqueue(Ticket(f"r-{queue}", queue, tenant=name))
    await until(lambda: all(work.taken for work in works.values()))
    assert [[ticket.tenant for ticket in work.taken] for work in works.values()] == [
        ["staging"],
        ["production"],
    ]


# Workers that die


class Other:
    """A worker process, and what it said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    async def says(self, *words: str) -> None:
        """Sooner or later."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while json.loads(await asyncio.to_thread(self.process.stdout.readline)) != list(words):
                pass


@contextmanager
def other_process(queue: str, lease: float) -> Iterator[Other]:
    command = [sys.executable, TESTS / "temporal_process.py", shared_temporal(), queue, str(lease)]
    process = subprocess.Popen([*command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Other(process)
    finally:
        process.kill()
        process.communicate()


async def test_a_killed_workers_run_goes_to_another(queue: str, stack: AsyncExitStack) -> None:
    """kill -9: its heartbeats stop, and the server gives the ticket away when a lease is over."""
    web = await stack.enter_async_context(asking())
    ticket = Ticket(f"r-{queue}", queue)
    with other_process(queue, LEASE_S) as other:
        await other.says("up")
        await web.enqueue(ticket)
        await other.says("driving", ticket.key)
        work = Work()
        await stack.enter_async_context(working(queue, work))
        other.process.kill()
        killed = time.monotonic()
        await until(lambda: work.taken)
        took = time.monotonic() - killed
    assert await result_of(ticket) == "ended"
    assert work.taken == [ticket]
    assert took < 10 * (LEASE_S + 2)


async def test_a_frozen_workers_run_goes_to_another_and_it_hears_of_that(
    queue: str, stack: AsyncExitStack
) -> None:
    """SIGSTOP past its lease, then SIGCONT: its drive is cancelled, and what it says of the ticket counts no more.

    The server may give the ticket to the frozen process once more, which still has its hand out: another lease, then.
    """
    web = await stack.enter_async_context(asking())
    ticket = Ticket(f"r-{queue}", queue)
    with other_process(queue, LEASE_S) as other:
        await other.says("up")
        await web.enqueue(ticket)
        await other.says("driving", ticket.key)
        work = Work(held=True)
        await stack.enter_async_context(working(queue, work))
        other.process.send_signal(signal.SIGSTOP)
        await until(lambda: work.taken)
        other.process.send_signal(signal.SIGCONT)
        await other.says("cancelled", ticket.key)
        work.gate.set()
        assert await result_of(ticket) == "ended"
    assert (work.keys, work.cancelled) == ([ticket.key], [])


async def test_a_loop_that_stands_still_is_as_good_as_dead(queue: str, stack: AsyncExitStack) -> None:
    """Heartbeats come from our loop alone: the SDK's own threads do not keep a run that nobody drives."""
    stuck, work = Work(held=True), Work()
    worker = await stack.enter_async_context(asking(limits=DispatchLimits(worker=1)))
    worker.on_dispatch(queue, stuck.drive)
    await worker.start()  # and nobody calls its `heartbeat`
    ticket = Ticket(f"r-{queue}", queue)
    await worker.enqueue(ticket)
    await until(lambda: stuck.taken)
    await stack.enter_async_context(working(queue, work))
    assert await result_of(ticket) == "ended"
    assert work.taken == [ticket]


# Closing


async def test_draining_takes_nothing_more_and_lets_go_of_nothing(queue: str, stack: AsyncExitStack) -> None:
    """A rolling deploy: what is in hand stays, longer than a lease; what is asked for now goes to the new worker."""
    old, new = Work(held=True), Work()
    leaving = await stack.enter_async_context(working(queue, old, lease=2.0))
    ours, theirs = Ticket(f"a-{queue}", queue), Ticket(f"b-{queue}", queue)
    await leaving.enqueue(ours)
    await until(lambda: old.taken)
    await leaving.drain()
    await stack.enter_async_context(working(queue, new, lease=2.0))
    await leaving.enqueue(theirs)
    assert await result_of(theirs) == "ended"
    beats = old.beats
    await until(lambda: old.beats > beats + 6)  # two leases
    old.gate.set()
    assert await result_of(ours) == "ended"
    assert (old.keys, new.keys) == ([ours.key], [theirs.key])


async def test_closing_gives_what_is_in_hand_to_another_at_once(
    queue: str, stack: AsyncExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """A cancelled drive is not the end of a ticket, nor a failure; nobody waits for a lease of a minute."""
    old, new = Work(held=True), Work()
    ticket = Ticket(f"r-{queue}", queue)
    async with working(queue, old, lease=60) as leaving:
        await leaving.enqueue(ticket)
        await until(lambda: old.taken)
        await stack.enter_async_context(working(queue, new, lease=60))
        await leaving.aclose()
        await leaving.aclose()
    assert old.cancelled == [ticket.key]
    assert await result_of(ticket) == "ended"
    assert new.taken == [ticket]
    assert caplog.text == ""


async def test_a_ticket_that_a_person_cancels_in_temporal_is_let_go(
    queue: str, stack: AsyncExitStack
) -> None:
    """Its drive hears of it, and nobody is given it; what becomes of the run is for the journal to say."""
    work = Work(held=True)
    worker = await stack.enter_async_context(working(queue, work))
    ticket = Ticket(f"r-{queue}", queue)
    await worker.enqueue(ticket)
    await until(lambda: work.taken)
    client = await Client.connect(shared_temporal())
    await client.get_workflow_handle(f"pilothouse:{ticket.key}").cancel()
    with pytest.raises(WorkflowFailureError):
        await result_of(ticket)
    await until(lambda: work.cancelled)
    assert (work.keys, work.cancelled) == ([ticket.key], [ticket.key])


# Limits


async def test_a_worker_drives_no_more_than_its_limit(queue: str, stack: AsyncExitStack) -> None:
    """And all of them in the end."""
    work = Work(held=True)
    worker = await stack.enter_async_context(working(queue, work, limits=DispatchLimits(worker=2)))
    tickets = [Ticket(f"{number}-{queue}", queue) for number in range(6)]
    for ticket in tickets:
        await worker.enqueue(ticket)
    await until(lambda: len(work.taken) == 2)
    work.gate.set()
    assert [await result_of(ticket) for ticket in tickets] == ["ended"] * 6
    assert work.most == 2


async def test_what_is_urgent_goes_first(queue: str, stack: AsyncExitStack) -> None:
    """Smaller is sooner; whoever said nothing is in the middle."""
    work = Work(held=True)
    worker = await stack.enter_async_context(working(queue, work, limits=DispatchLimits(worker=1)))
    await worker.enqueue(Ticket(f"first-{queue}", queue))
    await until(lambda: work.taken)
    for priority in (1, 7, -30, 0, -1):
        await worker.enqueue(Ticket(f"{priority}-{queue}", queue, tenant="x" * 100, priority=priority))
    await backlog(queue, 5)
    work.gate.set()
    await until(lambda: len(work.taken) == 6)
    order = [ticket.priority for ticket in work.taken[1:]]
    assert sorted(order) == [-30, -1, 0, 1, 7]
    assert order.index(-30) < order.index(7)  # one may have been matched before the others came
    assert order.index(-1) < order.index(7)


async def backlog(queue: str, count: int) -> None:
    """So many drives wait for a place, as far as the server counts them: it says about how many."""
    client = await Client.connect(shared_temporal())
    asked = DescribeTaskQueueRequest(
        namespace="default",
        task_queue=TaskQueue(name=f"pilothouse:{queue}"),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
        report_stats=True,
    )
    async with asyncio.timeout(30):
        while True:
            said = await client.workflow_service.describe_task_queue(asked)
            if said.stats.approximate_backlog_count >= count - 1:
                return
            await asyncio.sleep(0.05)


async def test_starts_keep_to_their_rate(queue: str, stack: AsyncExitStack) -> None:
    """So many in so many seconds, on all workers together, as an even pace."""
    limits = DispatchLimits(rate=(8, 2.0))
    began: list[float] = []

    async def drive(ticket: Ticket) -> Driven:
        began.append(time.monotonic())
        return "ended"

    for _ in range(2):
        worker = await stack.enter_async_context(asking(limits=limits))
        worker.on_dispatch(queue, drive)
        await worker.start()
    for number in range(14):
        await worker.enqueue(Ticket(f"{number}-{queue}", queue))
    await until(lambda: len(began) == 14)
    assert began[-1] - began[0] > 1.8  # without a limit: as fast as they are asked for


# The server


async def test_a_server_that_is_away_is_said_and_comes_back(queue: str, stack: AsyncExitStack) -> None:
    """Whoever asked hears what to do; a worker that was connected goes on by itself; what was asked for is kept."""
    server = TemporalServer()
    stack.callback(server.remove)
    work = Work()
    web = await stack.enter_async_context(asking(server.target))
    await stack.enter_async_context(working(queue, work, server.target))
    await web.enqueue(Ticket("before", queue))
    await until(lambda: work.keys == ["before:1"])
    server.stop()
    with pytest.raises(DispatchUnavailable, match=rf"{server.target}.*check that the server runs"):
        await web.enqueue(Ticket("away", queue))
    late = TemporalDispatcher(server.target)
    for asked in (late.start(), late.enqueue(Ticket("away", queue))):
        with pytest.raises(DispatchUnavailable, match=r"check that the server runs"):
            await asked
    server.start()
    await until_taken(web, Ticket("after", queue), work)
    await late.start()
    await late.aclose()


async def until_taken(web: TemporalDispatcher, ticket: Ticket, work: Work) -> None:
    """Asks until the server is ready for it again, as a sweep does."""
    async with asyncio.timeout(60):
        while ticket not in work.taken:
            with suppress(DispatchUnavailable):
                await web.enqueue(ticket)
            await asyncio.sleep(0.05)
    assert work.keys.count(ticket.key) == 1


async def test_a_worker_that_its_server_turns_away_begins_again(
    queue: str, stack: AsyncExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """What the SDK gives up at is not the end of a worker, and its operator reads of it."""
    server = TemporalServer()
    stack.callback(server.remove)
    server.stop()
    server.start("ours")
    work = Work()
    worker = await stack.enter_async_context(working(queue, work, server.target, namespace="ours"))
    server.forget()  # the worker has not had its turn since it was started
    server.start()
    await until(lambda: "starts again" in caplog.text)
    server.stop()
    server.start("ours")
    await until_taken(worker, Ticket("r1", queue), work)


async def test_closing_without_a_server_ends(queue: str, stack: AsyncExitStack) -> None:
    """With a run in hand: it is let go here, and the server finds out by itself."""
    server = TemporalServer()
    stack.callback(server.remove)
    work = Work(held=True)
    async with working(queue, work, server.target) as worker:
        await worker.enqueue(Ticket("r1", queue))
        await until(lambda: work.taken)
        server.stop()
        async with asyncio.timeout(60):
            await worker.aclose()
    assert work.cancelled == ["r1:1"]


# Bad input


async def test_a_namespace_that_is_not_there_is_said(queue: str, stack: AsyncExitStack) -> None:
    """With the command that makes it."""
    nowhere = await stack.enter_async_context(asking(namespace="nowhere"))
    for asked in (nowhere.start(), nowhere.enqueue(Ticket("r1", queue))):
        with pytest.raises(DispatchUnavailable, match="temporal operator namespace create -n nowhere"):
            await asked


async def test_an_id_that_the_server_does_not_take_is_said(queue: str, stack: AsyncExitStack) -> None:
    """It is no reason to look for the server."""
    web = await stack.enter_async_context(asking())
    with pytest.raises(DispatchUnavailable, match="shorter"):
        await web.enqueue(Ticket("r" * 2000, queue))


async def test_a_lease_shorter_than_that_of_the_runs_is_said(
    queue: str, stack: AsyncExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """Once: whoever asked wants a sign of life sooner than the worker gives one."""
    web = await stack.enter_async_context(asking(lease=20))
    work = Work(held=True)
    worker = await stack.enter_async_context(working(queue, work, lease=20))
    await web.enqueue(Ticket(f"r-{queue}", queue))
    await until(lambda: work.taken)
    await worker.heartbeat(Owner("w"), 20_000)
    assert caplog.text == ""
    for _ in range(2):
        await worker.heartbeat(Owner("w"), 30_000)
    assert caplog.text.count("may be given away") == 1


def test_what_is_missing_or_wrong_is_said() -> None:
    """The extra, by its name; a lease that cannot be."""
    with pytest.raises(ConfigError, match="lease"):
        TemporalDispatcher(lease=0)
    program = (
        "import sys; sys.modules['temporalio'] = None\n"
        "from pilothouse.errors import ConfigError\n"
        "try: import pilothouse.dispatch.temporal\n"
        "except ConfigError as error: print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.strip() == 'TemporalDispatcher needs a package: pip install "pilothouse[temporal]"'


# With runs


async def test_runs_are_driven_and_the_engine_learns_nothing_of_them(stack: AsyncExitStack) -> None:
    """JR §6 over Temporal: asked for here, driven there; what Temporal keeps is the ticket, not what was said."""
    journal = MemoryJournal()
    timing = RunTiming(lease=LEASE_S)

    async def controller(*script) -> RunController:
        engine = await stack.enter_async_context(asking())
        runs = RunController(ScriptedRuntime(*script), journal=journal, dispatcher=engine, timing=timing)
        return await stack.enter_async_context(runs)

    web, worker = await controller(), await controller(TurnStarted(1), TurnEnded(1), RunEnded(Completed()))
    worker.work()
    await worker._fleet.dispatcher.start()
    run_id = f"run-{uuid4().hex}"
    said = Message("m0", "user", (Text("the password is swordfish"),))
    run = await web.start(RunSpec(run_id, f"thread-{run_id}", (said,)))
    assert (await run.wait(timeout=30)).outcome == Completed()
    assert (web.runtime.runs, worker.runtime.runs) == ([], [run_id])
    assert await result_of(Ticket(run_id, "")) == "ended"
    client = await Client.connect(shared_temporal())
    history = await client.get_workflow_handle(f"pilothouse:{run_id}:1").fetch_history()
    assert run_id in history.to_json()
    assert "swordfish" not in str(history.events)
