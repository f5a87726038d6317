"""The agents of a server by name, and what they share: the journal, the dispatcher, what counts and traces their runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from ..cluster import Dispatcher
from ..contracts import Clock, Journal
from ..core.agui.segments import Segment, Segments
from ..errors import ConfigError, DispatchUnavailable
from ..records import Accept, RunQuery
from ..runs.timing import RunTiming
from .metrics import Metrics
from .served_agent import AgentDefinition, AutoRecover, ServedAgent
from .settings import WorkOptions
from .telemetry import Traces
from .timed import timed

logger = logging.getLogger("pilothouse.server")


class Segmented:
    """The AG-UI runs of the runs that were asked for last, so that a run's facts are read for it once."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._kept: dict[str, Segments] = {}

    async def of(self, key: str, name: str) -> list[Segment]:
        """All of them as the journal has it now."""
        found = self._kept.pop(key, None) or Segments(name)
        self._kept[key] = found
        while len(self._kept) > _KEPT:
            self._kept.pop(next(iter(self._kept)))
        more = True
        while more:
            page = await self._journal.read(key, after=found.seq, kinds=_RESOLVED)
            found.add([record for record in page.records if record.seq > found.seq])
            more = page.more and bool(page.records)
        return found.all()


_RESOLVED: Final = frozenset({"request_resolved"})
_KEPT: Final = 1000
_LOOK_S: Final = 5.0


class ServedAgents:
    """All agents and what they share.

    Attributes:
        by_name: an agent's name is the binding of its runs.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentDefinition],
        journal: Journal,
        *,
        auto_recover: AutoRecover,
        clock: Clock,
        figures: Callable[[], Mapping[str, Mapping[str, float]]],
        capture_content: bool = False,
        timing: RunTiming | None = None,
        dispatcher: Dispatcher | None = None,
        work: WorkOptions | None = None,
    ) -> None:
        if not agents:
            raise ConfigError("a server needs at least one agent")
        if work is not None and dispatcher is None:
            raise ConfigError("a worker needs a dispatcher: give Server(dispatcher=…)")
        self.journal = journal
        self.clock = clock
        self.draining = False
        self.dispatcher = dispatcher
        self._work = work
        self.segments = Segmented(journal)
        self.metrics = Metrics(clock, figures)
        self.traces = Traces(clock, content=capture_content)
        self._auto_recover = auto_recover
        self._tasks: set[asyncio.Task[object]] = set()
        self._recovering: list[asyncio.Task[object]] = []
        writing = timed(journal, clock, self.metrics.append_seconds.add)
        self.by_name: dict[str, ServedAgent] = {
            name: ServedAgent(
                name,
                definition,
                writing,
                auto_recover=auto_recover,
                clock=clock,
                spawn=self.spawn,
                taken=self.watch,
                timing=timing,
                dispatcher=dispatcher,
            )
            for name, definition in agents.items()
        }

    def spawn(self, work: Awaitable[object], name: str) -> asyncio.Task[object]:
        """A task of the server's own. Who awaits it gets what it raises; it is also logged, at `debug`."""

        async def run() -> object:
            return await work

        task = asyncio.get_running_loop().create_task(run(), name=f"pilothouse {name}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("%s: %s: %s", task.get_name(), type(error).__name__, error)

    def open(self) -> None:
        """Takes lost runs up again in the background, where that is wished for (SV-224)."""
        for agent in self.by_name.values():
            if self._auto_recover == "on_open" and self.dispatcher is None:
                self._recovering.append(self.spawn(self._take_up(agent), f"recovery of {agent.name}"))

    async def open_dispatch(self) -> None:
        """Takes what the dispatcher gives, if this is a worker; others only ask."""
        if self.dispatcher is None:
            return
        if (work := self._work) is not None:
            accept = Accept(config_change=work.config_change)
            for agent in self.by_name.values():
                agent.runs.work(accept=accept, principal=work.per_principal, thread=work.per_thread)
        try:
            await self.dispatcher.start()
        except DispatchUnavailable as error:
            if work is not None:
                raise
            logger.warning("runs wait for the dispatcher: %s", error)

    def watch(self, key: str, binding: str, since: int = 0) -> None:
        """Counts what a run does behind fact `since`, and traces it where that is set up: where it is driven."""
        agent = self.by_name.get(binding)
        if agent is None or (self.dispatcher is not None and self._work is None):
            return
        self.spawn(self.metrics.watch(agent.runs, key, agent.name, since=since), f"counting of {key}")
        if self.traces.on:
            self.spawn(self.traces.watch(agent.runs, key, agent.name, since=since), f"tracing of {key}")

    async def _take_up(self, agent: ServedAgent) -> None:
        """Recovers an agent's lost runs. Those that are driven from their facts are watched as they are admitted."""
        await _recovered(agent)
        if agent.runs.descriptor.descriptor.recovery == "journal":
            return
        query = RunQuery(binding=agent.name, states=("accepted", "running", "waiting", "stopping"))
        cursor: str | None = None
        while True:
            page = await agent.runs.catalog_runs(query, cursor=cursor, limit=500)
            for entry in page.items:
                if entry.ownership == "here":
                    self.watch(entry.run_id, agent.name, entry.last_seq)
            if (cursor := page.cursor) is None:
                return

    @property
    def recovering(self) -> bool:
        """Whether lost runs are being taken up again."""
        return any(not task.done() for task in self._recovering)

    async def recovered(self, key: str, seq: int) -> None:
        """Waits until the facts of a run go on behind `seq`, or what could be taken up again was."""
        waits = [
            asyncio.ensure_future(self.journal.changed(key, seq, timeout=_LOOK_S)),
            *[task for task in self._recovering if not task.done()],
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waits[0].cancel()

    def agent_of(self, binding: str) -> ServedAgent | None:
        """The agent whose runs these are."""
        return self.by_name.get(binding)

    def any_agent(self) -> ServedAgent:
        """An agent to read through: every run in the journal can be read by any (RC-66)."""
        return next(iter(self.by_name.values()))

    async def aclose(self, seconds: float) -> None:
        """Hands over what still lives to a later recovery (RC-52), then ends the server's own tasks."""
        self.draining = True
        await asyncio.gather(*[agent.runs.aclose(timeout=seconds) for agent in self.by_name.values()])
        if self.dispatcher is not None:
            await self.dispatcher.aclose()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _recovered(agent: ServedAgent) -> None:
    try:
        await agent.runs.__aenter__()
    except Exception:
        logger.exception("the lost runs of agent %s were not recovered", agent.name)


__all__ = ["ServedAgents"]
