"""Temporal as the dispatcher: nothing of ours decides that a worker is dead. Extra `temporal`; needs a server.

A ticket is one workflow with one activity, which drives the run in this process's own event loop; Temporal holds the
ticket and nothing of the run. The activity's heartbeats come from that loop, every third of a lease: where it dies or
stands still they stop, and the server gives the activity to another worker. Whether that one may go on is for the
journal to say.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from contextvars import Context, copy_context
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from .._version import __version__
from ..cluster import Drive, Ticket
from ..errors import ConfigError, DispatchUnavailable
from ..records import Owner
from .limits import DispatchLimits

try:
    from temporalio import activity
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
    from temporalio.client import Client
    from temporalio.common import Priority, WorkflowIDReusePolicy
    from temporalio.exceptions import (
        ApplicationError,
        ApplicationErrorCategory,
        WorkflowAlreadyStartedError,
    )
    from temporalio.service import RPCError, RPCStatusCode
    from temporalio.worker import Worker

    from .temporal_workflow import ACTIVITY, WORKFLOW, DriveRun
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "temporalio":
        raise
    raise ConfigError('TemporalDispatcher needs a package: pip install "pilothouse[temporal]"') from error

if TYPE_CHECKING:
    from temporalio.service import TLSConfig

logger = logging.getLogger("pilothouse.dispatch")

ENQUEUE_S: Final = 3.0
"""Seconds until a server that does not answer counts as away. Who asked is waiting, and the run is safe already."""

CLOSE_S: Final = 3.0
"""Seconds for the server to hear of what is let go; after that it finds out by itself when a lease is over."""

LEAVE_S: Final = 0.05
"""A moment for the SDK's threads to leave the interpreter: of processes that ended with their last call 4 in 25 crashed."""

RESTART_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses before a worker that its server turned away is started again; the last one from then on."""

_ANOTHER: Final = timedelta(milliseconds=100)
"""When somebody else takes up what was let go here."""

_STICKY: Final = timedelta(seconds=1)
"""How long the next step of a workflow waits for the process that did the last one; 10 s by default."""

_DRAIN: Final = timedelta(days=1)
"""The SDK wants an end of draining. Drives end when the process closes its runs, or with `aclose`."""

_DEFAULT_PRIORITY: Final = 3
"""Temporal has priorities from 1 to 5, and smaller goes first, as here."""

_FAIRNESS_BYTES: Final = 64
"""The longest fairness key that a server takes."""

_WHAT_TO_DO: Final = {
    RPCStatusCode.NOT_FOUND: "create the namespace: temporal operator namespace create -n {namespace}",
    RPCStatusCode.PERMISSION_DENIED: "let the key or certificate use the namespace {namespace}",
    RPCStatusCode.UNAUTHENTICATED: "give an `api_key` or `tls` that the server accepts",
    RPCStatusCode.INVALID_ARGUMENT: "the ids of runs and agents have to be shorter for this server",
    RPCStatusCode.RESOURCE_EXHAUSTED: "the server limits its rate; raise its limit for the namespace {namespace}",
}
_CHECK_SERVER: Final = "check that the server runs and that `target` and `tls` are right"


@final
class TemporalDispatcher:
    """Implements `cluster.Dispatcher` with Temporal. Say the same in each process of a deployment.

    Priorities are the order within each partition of a task queue, of which a server has four by default: strict with
    `matching.numTaskqueueReadPartitions` and `…WritePartitions` at 1, about right otherwise. Tenants take turns where
    the server has fairness switched on.

    Args:
        target: host and port of the server's front end.
        deployment: what the ids of its workflows and the names of its task queues begin with. Deployments with journals
            of their own need a name each, or a namespace: a worker would be given runs that its journal does not hold.
        limits: `worker` counts for each queue of a process; of `rate` Temporal makes an even pace.
        lease: seconds without a heartbeat after which a run is given to another worker: the lease of the runs
            (`RunTiming.lease`), whose third is the pace of heartbeats.
        tls, api_key: as for `temporalio.client.Client.connect`.

    Raises:
        ConfigError: `temporalio` is not installed (at import), or the lease is not positive.
    """

    def __init__(
        self,
        target: str = "localhost:7233",
        *,
        namespace: str = "default",
        deployment: str = "pilothouse",
        limits: DispatchLimits | None = None,
        lease: float = 30.0,
        tls: bool | TLSConfig | None = None,
        api_key: str | None = None,
    ) -> None:
        if lease <= 0:
            raise ConfigError(f"lease must be a positive number of seconds, got {lease}")
        self._target = target
        self._namespace = namespace
        self._deployment = deployment
        self._limits = limits or DispatchLimits()
        self._lease = lease
        self._secrets: dict[str, Any] = {"tls": tls, "api_key": api_key}
        self._connecting = asyncio.Lock()
        self._client: Client | None = None
        self._drives: dict[str, Drive] = {}
        self._workers: dict[str, Worker] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._drained = asyncio.Event()
        # Activities in hand, and the context in which each can be spoken for: our loop sends all their heartbeats.
        self._in_hand: dict[asyncio.Task[Any], Context] = {}
        self._warned = False

    # Asking

    async def enqueue(self, ticket: Ticket) -> None:
        """Starts the workflow of a ticket; where there is one, open or closed, nothing is changed.

        Raises:
            DispatchUnavailable: the server is away or refuses; the next call tries again.
        """
        try:
            async with asyncio.timeout(ENQUEUE_S):
                client = await self._connected()
                await client.start_workflow(
                    WORKFLOW,
                    args=[msgspec.to_builtins(ticket), self._lease],
                    id=f"{self._deployment}:{ticket.key}",
                    task_queue=f"{self._deployment}:{ticket.queue}",
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    priority=_priority_of(ticket),
                )
        except WorkflowAlreadyStartedError:
            return
        except (RPCError, TimeoutError) as error:
            raise self._unavailable(error) from error

    async def _connected(self) -> Client:
        """The connection for asking, made at first use; from then on it comes back by itself.

        Raises:
            DispatchUnavailable: no server there.
        """
        async with self._connecting:
            if self._client is None:
                self._client = await self._connect()
            return self._client

    async def _connect(self) -> Client:
        try:
            return await Client.connect(self._target, namespace=self._namespace, **self._secrets)
        except RuntimeError as error:  # what the SDK's core says where it cannot connect
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> DispatchUnavailable:
        status = error.status if isinstance(error, RPCError) else None
        what = error.message.rstrip(".") if isinstance(error, RPCError) else "no connection"
        todo = _WHAT_TO_DO.get(status, _CHECK_SERVER) if status else _CHECK_SERVER
        return DispatchUnavailable(
            f"cannot use Temporal at {self._target}: {what}: {todo.format(namespace=self._namespace)}"
        )

    # Working

    def on_dispatch(self, queue: str, drive: Drive) -> None:
        """Takes tickets of that queue from `start` on."""
        self._drives[queue] = drive

    async def start(self) -> None:
        """Connects; with something to drive, takes tickets from now on, also after outages of the server.

        Raises:
            DispatchUnavailable: the server is away, or has no such namespace.
        """
        try:
            async with asyncio.timeout(ENQUEUE_S):
                client = await self._connected()
                await client.workflow_service.describe_namespace(
                    DescribeNamespaceRequest(namespace=self._namespace)
                )
        except (RPCError, TimeoutError) as error:
            raise self._unavailable(error) from error
        for queue in self._drives.keys() - self._keepers.keys():
            self._keepers[queue] = asyncio.get_running_loop().create_task(
                self._keep(queue), name=f"pilothouse-temporal-{queue}"
            )

    async def _keep(self, queue: str) -> None:
        """Works until drained. The SDK rides out a lost connection; what it gives up at is begun anew."""
        tries = 0
        while not self._drained.is_set():
            try:
                # A connection of its own: on the old one the queue's next worker counts as a second one.
                client = await self._connect()
                if self._drained.is_set():
                    return
                worker = self._workers[queue] = self._worker(client, queue)
                await worker.run()
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody else would begin again
                pause = RESTART_S[min(tries, len(RESTART_S) - 1)]
                tries += 1
                logger.warning(
                    "the Temporal worker of %s stopped, and starts again in %g s: %s",
                    queue,
                    pause,
                    str(error).partition("\n")[0][:200],
                )
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._drained.wait(), pause)

    def _worker(self, client: Client, queue: str) -> Worker:
        limits = self._limits
        return Worker(
            client,
            task_queue=f"{self._deployment}:{queue}",
            workflows=[DriveRun],
            activities=[self._drive],
            max_concurrent_activities=limits.worker,
            max_task_queue_activities_per_second=limits.rate and limits.rate[0] / limits.rate[1],
            # An activity that its workflow's process takes at once is not counted by the queue, nor ordered.
            disable_eager_activity_execution=True,
            sticky_queue_schedule_to_start_timeout=_STICKY,
            # Four fifths of a lease by default: one late heartbeat would be the end.
            max_heartbeat_throttle_interval=timedelta(seconds=self._lease / 4),
            graceful_shutdown_timeout=_DRAIN,
            # Which runs a worker can drive is said by its queue. The default hashes all loaded code, 0.6 s in our loop.
            build_id=__version__,
        )

    @activity.defn(name=ACTIVITY)
    async def _drive(self, encoded: dict[str, Any]) -> str:
        """The activity: in the loop of this process, as everything else of its runs."""
        if self._drained.is_set():  # it was under way when polling stopped
            raise _for_another()
        ticket = msgspec.convert(encoded, Ticket)
        task = asyncio.current_task()
        assert task is not None
        self._in_hand[task] = copy_context()
        try:
            return await self._drives[ticket.queue](ticket)
        except asyncio.CancelledError:
            # Closing, given to another already, or somebody's doing in Temporal. The SDK would log it as a failure, and
            # report what its own shutdown cancels as the end of the ticket.
            raise _for_another() from None
        finally:
            del self._in_hand[task]

    async def heartbeat(self, owner: Owner, ttl_ms: int) -> None:
        """This process lives and its loop turns: said to the server for each run in hand."""
        for context in self._in_hand.values():
            context.run(activity.heartbeat)
            patience = context.run(activity.info).heartbeat_timeout or timedelta()
            if ttl_ms > 1000 * patience.total_seconds() and not self._warned:
                self._warned = True
                logger.warning(
                    "runs have a lease of %g s here and %g s where they are asked for: runs of living workers may be given"
                    " away; give every process the same `lease`",
                    ttl_ms / 1000,
                    patience.total_seconds(),
                )

    async def drain(self) -> None:
        """Takes no more tickets; those in hand go on, with their heartbeats, until their drives return."""
        if not self._drained.is_set():
            self._drained.set()
            loop = asyncio.get_running_loop()
            # It waits for what is in hand, and does the next of it at once: to ask for no more.
            self._stopping = {loop.create_task(worker.shutdown()) for worker in self._workers.values()}

    async def aclose(self) -> None:
        """Gives what is in hand to others and lets go of the server. Idempotent."""
        await self.drain()
        for task in self._in_hand:
            task.cancel()
        tasks = {*self._keepers.values(), *self._stopping}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_S)
            for task in late:  # the server is away: it finds out when a lease is over
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=CLOSE_S)
        self._keepers.clear()
        self._stopping.clear()
        self._workers.clear()
        if self._client is not None:
            self._client = None
            await asyncio.sleep(LEAVE_S)


def _for_another() -> ApplicationError:
    """What makes Temporal give an activity to another worker at once; nothing is wrong with it."""
    return ApplicationError(
        "this worker has let go of the run",
        type="LetGo",
        next_retry_delay=_ANOTHER,
        category=ApplicationErrorCategory.BENIGN,
    )


def _priority_of(ticket: Ticket) -> Priority:
    """The order within a queue, and whose turn it is where the server keeps turns (fairness)."""
    fair = ticket.tenant or None
    if fair is not None and len(fair.encode()) > _FAIRNESS_BYTES:
        fair = sha256(fair.encode()).hexdigest()
    return Priority(priority_key=min(max(_DEFAULT_PRIORITY + ticket.priority, 1), 5), fairness_key=fair)


__all__ = ["TemporalDispatcher"]
