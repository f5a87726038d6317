"""The contract that a user interface holds in its hand: readable values that change, and a few actions.

It says nothing of models, HTTP or journals, so that one page, terminal or test can drive our own conversations, any
AG-UI endpoint, or a backend of yours. `pilothouse.testing.AgentConformance` checks an implementation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from .agent_errors import AgentError
from .contracts import CancelToken
from .messages import JSON, UNSET, InputPart, ToolSpec
from .projection import (
    AgentEvent,
    AgentInterrupt,
    AgentMessage,
    AgentOutcome,
    AgentStatus,
    AgentToolCall,
    AgentUsage,
    Claimed,
    InDoubt,
    Interrupt,
    InterruptPhase,
    Recorded,
    StopResult,
    ToolOutcome,
    WhenBusy,
)

T_co = TypeVar("T_co", covariant=True)
StateT_co = TypeVar("StateT_co", covariant=True)


@runtime_checkable
class Signal(Protocol[T_co]):
    """A value that changes. Reading is cheap, never waits, never raises."""

    def get(self) -> T_co:
        """The value now."""
        ...

    def __call__(self) -> T_co:
        """The same: `agent.status()` reads well."""
        ...

    def subscribe(self, callback: Callable[[T_co], object], /) -> Callable[[], None]:
        """Calls back after each change with the new value, not at once. The returned function takes that back."""
        ...


class EventSource(Protocol[T_co]):
    """Things that happen and leave no value behind."""

    def subscribe(self, callback: Callable[[T_co], object], /) -> Callable[[], None]:
        """Calls back with each event from now on. The returned function takes that back."""
        ...

    def __aiter__(self) -> AsyncIterator[T_co]:
        """Events from now on; a slow reader loses the oldest, with a warning."""
        ...


class AgentOperation(Protocol):
    """What an action returns. Awaiting it is optional; cancelling whoever awaits it does not stop the run."""

    @property
    def run_id(self) -> str | None:
        """The run; None for an action that had nothing to do."""
        ...

    def done(self) -> bool:
        """Whether the run has settled."""
        ...

    def __await__(self) -> Generator[Any, None, AgentOutcome]:
        """The outcome, after the last change of any signal.

        Raises:
            UsageError, JournalError: it was refused before there was a run; nothing was changed.
        """
        ...


class Subagent(Protocol):
    """A child run. Its content is never part of the parent's conversation."""

    @property
    def id(self) -> str:
        """The runtime's id of the invocation."""
        ...

    @property
    def tool_call_id(self) -> str | None:
        """The parent's call that it serves."""
        ...

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def generation(self) -> str:
        """The attempt of the parent in which it runs."""
        ...

    @property
    def status(self) -> Signal[str]:
        """`pending`, `running`, `complete` or `error`."""
        ...

    @property
    def messages(self) -> Signal[tuple[AgentMessage, ...]]:
        """Its conversation."""
        ...

    @property
    def tool_calls(self) -> Signal[tuple[AgentToolCall, ...]]:
        """Its calls."""
        ...

    @property
    def state(self) -> Signal[Mapping[str, JSON]]:
        """Its state."""
        ...


class Interrupts(Protocol):
    """The whole batch of open requests, and its life."""

    @property
    def phase(self) -> Signal[InterruptPhase]:
        """Where the batch is."""
        ...

    @property
    def batch(self) -> Signal[tuple[Interrupt, ...]]:
        """What is asked."""
        ...

    @property
    def generation(self) -> Signal[int]:
        """Rises with each new batch."""
        ...


class ClientToolsCapability(Protocol):
    """Tools that the host of an interface declares and runs."""

    @property
    def pending(self) -> Signal[tuple[AgentToolCall, ...]]:
        """Calls that wait for the host, in order of arrival."""
        ...

    def set_catalog(self, specs: Sequence[ToolSpec]) -> None:
        """Replaces what is offered; it goes with every run from now on."""
        ...

    def settle(self, call_id: str, result: ToolOutcome) -> None:
        """Puts a result down and does not go on.

        Raises:
            InvalidTarget: no such call.
        """
        ...

    def flush(self) -> Awaitable[None]:
        """Makes settled results durable at the backend and does not go on."""
        ...

    def resolve(self, call_id: str, result: ToolOutcome) -> AgentOperation:
        """Puts a result down and goes on, one run for all that is settled."""
        ...


class Agent(Protocol[StateT_co]):
    """See the module. All state is on signals; `events` has only what cannot be derived from them.

    Optional members are None where a runtime has no such thing, for the life of the object. A guard raises during the
    call, before anything changed; a failure after a run began is told on `error`, and awaiting never raises it.
    """

    @property
    def messages(self) -> Signal[tuple[AgentMessage, ...]]:
        """The conversation, in display order."""
        ...

    @property
    def status(self) -> Signal[AgentStatus]:
        """`idle`, `running` or `error`."""
        ...

    @property
    def is_loading(self) -> Signal[bool]:
        """A run that this agent sees is in flight; True implies `running`."""
        ...

    @property
    def error(self) -> Signal[AgentError | None]:
        """Set exactly while the status is `error`."""
        ...

    @property
    def tool_calls(self) -> Signal[tuple[AgentToolCall, ...]]:
        """All calls of the thread seen so far, in order of arrival."""
        ...

    @property
    def state(self) -> Signal[StateT_co]:
        """The backend's state; an empty mapping where it has none."""
        ...

    @property
    def events(self) -> EventSource[AgentEvent]:
        """What cannot be derived from the signals."""
        ...

    def submit(
        self,
        message: str | Sequence[InputPart] | None = None,
        *,
        resume: object = UNSET,
        state: Mapping[str, JSON] | None = None,
        cancel: CancelToken | None = None,
        key: str | None = None,
        when_busy: WhenBusy = "raise",
        interrupt_generation: int | None = None,
        stop_on_cancel: bool = False,
    ) -> AgentOperation:
        """Sends a message, answers open requests, patches the state, or several at once; nothing given: goes on.

        The status is `running` and the message is shown when this returns.

        Raises:
            AgentBusy, RequestPending, ResumeInvalid, StaleInterrupt, UnsupportedPart, UnsupportedOption, RunConflict,
            AgentClosed, UsageError: nothing was changed.
        """
        ...

    def stop(self, *, grace: float | None = None) -> Awaitable[StopResult]:
        """Stops what is in flight: when this returns the status is idle. Awaiting tells what is known of it."""
        ...

    def retry(self) -> AgentOperation:
        """Repeats what failed, without another user message; nothing where nothing is kept or a run is in flight.

        Raises:
            RecoveryRequired: repeating is not known to be safe.
        """
        ...

    def regenerate(self, target: int | str, /) -> AgentOperation:
        """Discards that assistant message (index or id) and what follows, and answers anew; tools may run anew.

        Raises:
            AgentClosed, RequestPending, AgentBusy, InvalidTarget: in this order; nothing was changed.
        """
        ...

    @property
    def check_status(self) -> Callable[[], Awaitable[None]] | None:
        """Asks the backend what became of a run, read-only; the answer arrives on the signals."""
        ...

    @property
    def interrupt(self) -> Signal[AgentInterrupt | None] | None:
        """The request that is shown."""
        ...

    @property
    def is_input_blocked(self) -> Signal[bool] | None:
        """Gate of the ordinary composer; answers are not gated by it."""
        ...

    @property
    def subagents(self) -> Signal[Mapping[str, Subagent]] | None:
        """Child runs by their id."""
        ...

    @property
    def client_tools(self) -> ClientToolsCapability | None:
        """Tools that run here."""
        ...

    @property
    def usage(self) -> Signal[AgentUsage | None] | None:
        """Tokens of the run that ended last."""
        ...


class InterruptStore(Protocol):
    """Keeps interrupt phases over restarts and between instances; keys are (namespace, thread id) in one text."""

    async def load(self, key: str) -> tuple[int, bytes] | None:
        """Revision and record, or None."""
        ...

    async def save(self, key: str, record: bytes, *, expected: int) -> int:
        """Writes if the stored revision is `expected` (0: nothing is stored); returns the new one.

        Raises:
            StoreConflict: somebody else wrote.
        """
        ...


class ToolGuard(Protocol):
    """Keeps a client tool from running twice for one call, over restarts too."""

    async def claim(self, thread_id: str, call_id: str) -> Claimed | Recorded | InDoubt:
        """Takes the call, or says what became of it."""
        ...

    async def record(self, thread_id: str, call_id: str, outcome: ToolOutcome) -> None:
        """Keeps the outcome of a call that was claimed."""
        ...


__all__ = [
    "Agent",
    "AgentOperation",
    "ClientToolsCapability",
    "EventSource",
    "InterruptStore",
    "Interrupts",
    "Signal",
    "Subagent",
    "ToolGuard",
]
