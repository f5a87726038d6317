"""What several processes over one journal ask of each other: who drives a run, and what moves beside its facts.

The journal is the record and the fence (RC-49). An engine says no more than "somebody drives this run again"; it keeps
no second copy of anything. Implement `Dispatcher` to bring another engine, `Relay` to bring another store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from .messages import Value
from .records import Owner


class Ticket(Value):
    """A run that wants to be driven: all that an engine carries. The same again, by `key`, is one task.

    Attributes:
        queue: of the workers that can drive it (`queue_of`).
        fence: of the run when this was asked for. Whoever takes the run raises it, so what is asked for after that is
            another ticket.
        round: 0, or counts the times that it was asked for again because nobody took it up.
        priority: smaller goes first; 0 is what nobody said anything about.
    """

    run_id: str
    queue: str
    fence: int = 1
    tenant: str = ""
    thread_id: str = ""
    priority: int = 0
    round: int = 0

    @property
    def key(self) -> str:
        """What makes two tickets the same."""
        return f"{self.run_id}:{self.fence}:{self.round}" if self.round else f"{self.run_id}:{self.fence}"


def queue_of(binding: str, descriptor_digest: str) -> str:
    """The queue of runs of one contract: a worker whose descriptor differs could not drive them (RC-85)."""
    return f"{binding}@{descriptor_digest[:8]}"


Driven: TypeAlias = Literal[
    "ended",  # it has its end
    "waiting",  # it is at rest, let go until somebody answers
    "unknown",  # it was lost on the record: evidence or a person takes it from there
    "elsewhere",  # another living process drives it
    "handed_over",  # this process is closing: another ticket was made
    "refused",  # it cannot be driven here; the reason was logged
    "deferred",  # its principal or thread has its share already: again in a moment, without holding a place
]
"""What became of a run that a ticket was for."""

Drive: TypeAlias = Callable[[Ticket], Awaitable[Driven]]


class Dispatcher(Protocol):
    """Who drives a run next. Two adapters ship: `pilothouse.dispatch.dbos` and `pilothouse.dispatch.temporal`."""

    async def enqueue(self, ticket: Ticket) -> None:
        """Asks that somebody drives the run. Durable when it returns; the same ticket again changes nothing.

        Raises:
            DispatchUnavailable: the engine cannot be reached. The run is not lost: it is found by its journal later.
        """
        ...

    def on_dispatch(self, queue: str, drive: Drive) -> None:
        """From `start` on this process takes tickets of that queue. A drive that is cancelled is given to another."""
        ...

    async def start(self) -> None:
        """Connects; with `on_dispatch` called before it, begins to take tickets."""
        ...

    async def heartbeat(self, owner: Owner, ttl_ms: int) -> None:
        """This process lives, and its event loop turns; called every third of a lease."""
        ...

    async def drain(self) -> None:
        """Takes no more tickets. Those in hand go on until their drives return."""
        ...

    async def aclose(self) -> None:
        """Lets go of the engine. Idempotent."""
        ...


class Posted(Value):
    """A command in the inbox of a run that another process drives."""

    run_id: str
    command_id: str
    body: bytes


class Told(Value):
    """Deltas of one run, as they are sent to the processes that follow it.

    Attributes:
        fence, n: where it stands: of one attachment, the number of its last delta.
        body: a JSON array of deltas.
    """

    run_id: str
    fence: int
    n: int
    body: bytes


Place: TypeAlias = tuple[int, int]
"""How far a reader of `Told` is: fence and number."""

Signal: TypeAlias = Literal["inbox", "told"]


class Relay(Protocol):
    """What moves between the processes of one journal beside facts. Nothing here is the record of anything.

    A wake-up carries no data and may be lost: everybody also looks now and then.
    """

    async def post(self, run_id: str, command_id: str, body: bytes) -> bytes | None:
        """Puts a command into the inbox of a run, durable when it returns; the answer, if it has one already.

        Raises:
            RunNotFound: no such run. CommandConflict: the id stands for other content.
        """
        ...

    async def answered(self, run_id: str, command_id: str, *, timeout: float) -> bytes | None:
        """Waits for the answer; None after `timeout` seconds."""
        ...

    async def inbox(self, run_ids: Collection[str]) -> tuple[Sequence[Posted], frozenset[str]]:
        """Of these runs: the commands without an answer, oldest first, and which of them are followed elsewhere."""
        ...

    async def answer(self, run_id: str, command_id: str, answer: bytes) -> None:
        """Answers a command; the first answer stays."""
        ...

    async def follow(self, node: str, run_ids: Collection[str], *, ttl_ms: int) -> None:
        """Says that this process wants the deltas of these runs for so long."""
        ...

    async def tell(self, told: Sequence[Told]) -> None:
        """Sends deltas; they are kept for a moment and lost with a crash."""
        ...

    async def told(self, places: Mapping[str, Place]) -> Sequence[Told]:
        """What was told of these runs behind these places, in order."""
        ...

    async def stranded(
        self, binding: str, descriptor_digest: str, *, after: int, limit: int
    ) -> tuple[Sequence[Ticket], int]:
        """Runs of a contract that should be driven and that nobody drives, in order of creation, and where to go on (0: at the front).

        Not among them: runs at rest without a command in their inbox, lost ones, and those that were taken over three
        times without getting anywhere.
        """
        ...

    async def heartbeat(self, owner: Owner, ttl_ms: int) -> None:
        """This owner lives, also while it owns no run."""
        ...

    async def dead(self, owners: Collection[str]) -> frozenset[str]:
        """Which of these owners do not live any more, by the store's clock."""
        ...

    async def load(self, tenant: str, thread_id: str) -> tuple[int, int]:
        """How many runs of a principal, and of a thread, living owners drive now; those at rest do not count."""
        ...

    def on_signal(self, signal: Signal, callback: Callable[[], object]) -> Callable[[], None]:
        """Calls back, in this loop, when there may be something new; returns a function that takes this back."""
        ...


__all__ = [
    "Dispatcher",
    "Drive",
    "Driven",
    "Place",
    "Posted",
    "Relay",
    "Signal",
    "Ticket",
    "Told",
    "queue_of",
]
