"""What a conversation is set up with, and what its parts share; they never hold the controller itself (AC-87)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..contracts import Clock, GatePoint, Journal
from ..runs.controller import RunController
from .router import Route, RuntimeRouter
from .shared_state import SharedState

if TYPE_CHECKING:
    from .composition import Composition
    from .interceptor import Interceptor


class Setup:
    """Options, runtime, store, time and ids of one conversation.

    Attributes:
        options: sanitized; replaced as a whole by `update_options`.
        given: the run controller is shared, and so is not closed with the conversation.
        composition: the AI controllers, None without any.
        interceptor: sees what is said before it has any effect.
        shared: the shared state of the thread.
    """

    __slots__ = (
        "_runs",
        "clock",
        "composition",
        "connected",
        "given",
        "interceptor",
        "journal",
        "new_id",
        "options",
        "route",
        "shared",
    )

    def __init__(
        self,
        options: Mapping[str, Any],
        route: Route,
        *,
        journal: Journal | None,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self.options = options
        self.route = route
        self.journal = journal
        self.clock = clock
        self.new_id = new_id
        self.given = False
        self._runs: RunController | None = None
        self.connected: str | None = None  # the thread that the run controller knows this conversation by
        self.composition: Composition | None = None
        self.interceptor: Interceptor | None = None
        self.shared = SharedState()

    @property
    def plugged(self) -> bool:
        """Whether anything of a host's is called around a send."""
        options = self.options
        return (
            self.composition is not None
            or self.interceptor is not None
            or options["request_listener"] is not None
            or options["response_listener"] is not None
            or options["send_context"] is not None
        )

    @property
    def made(self) -> RunController | None:
        """The run controller, if there is one yet."""
        return self._runs

    @property
    def runs(self) -> RunController:
        """The run controller underneath, made at first use."""
        if self._runs is None:
            route = self.route
            board = RuntimeRouter(lambda: route.runtime)
            self._runs = RunController(board, journal=self.journal, clock=self.clock, new_id=self.new_id)
        return self._runs

    def share(self, runs: RunController) -> None:
        """Another conversation's, or a surface's, run controller serves this one too."""
        self._runs, self.given = runs, True

    def connect(self, thread_id: str) -> None:
        """Tells the run controller which runtime serves this thread."""
        self.connected = thread_id
        board = self.runs.runtime
        if isinstance(board, RuntimeRouter):
            board.connect(thread_id, self.route)

    def gate(self, run_id: str, shut: Sequence[GatePoint]) -> None:
        """Shuts gates of a run, or opens all with none named."""
        self.runs.gate(run_id, shut=shut)
