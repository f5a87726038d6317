"""One runtime for a run controller, many conversations behind it (AC-131).

A run controller is bound to one runtime; a conversation may swap its provider, and several threads share one controller.
The router hands each run, on recovery too, to the runtime of its thread's conversation, with the bytes of its
attachments loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from msgspec.structs import replace

from ..cancel import Token
from ..commands import Command
from ..contracts import RunPort, Runtime
from ..core.transcript import kept_apart
from ..messages import MEDIA, Message
from ..records import Descriptor, RunSpec, RunView, Start, StatusAnswer
from .controllers import enter_reply
from .forms import Call, TextRuntime

if TYPE_CHECKING:
    from .sending import Sender


class Route:
    """A conversation's current runtime, by reference: swapping it serves the runs that begin after.

    Attributes:
        base: the runtime without the tools of AI controllers.
        sender: gives the conversation's sender, None once it is gone.
    """

    __slots__ = ("__weakref__", "_frozen", "_held", "base", "runtime", "sender")

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = self.base = runtime
        self.sender: Callable[[], Sender | None] = lambda: None
        self._frozen: dict[str, Runtime] = {}
        self._held: dict[str, asyncio.Future[None]] = {}

    def freeze(self, run_id: str, signal: Token) -> Call | None:
        """This run keeps the runtime of now, whatever is swapped later (AC-31)."""
        runtime = self._frozen[run_id] = self.runtime
        return runtime.expect(run_id, signal) if isinstance(runtime, TextRuntime) else None

    def offer(self, run_id: str, runtime: Runtime) -> None:
        """This run is driven by that one: with the tools that were given for it."""
        self._frozen[run_id] = runtime

    def forget(self, run_id: str) -> None:
        """There will be no such run."""
        self._frozen.pop(run_id, None)

    def taken(self, run_id: str) -> Runtime:
        """The runtime that serves this run."""
        return self._frozen.pop(run_id, self.runtime)

    def hold(self, run_id: str) -> Callable[[], None]:
        """The run waits, registered, until the returned function is called."""
        held = self._held[run_id] = asyncio.get_running_loop().create_future()

        def release() -> None:
            self._held.pop(run_id, None)
            if not held.done():
                held.set_result(None)

        return release

    async def ready(self, run_id: str) -> None:
        """Waits while the run is held."""
        held = self._held.get(run_id)
        if held is not None:
            await held


class RuntimeRouter:
    """A runtime that only chooses the runtime.

    Args:
        default: the runtime of a thread that no conversation is connected to.
        join: connects the conversation of a thread whose run is taken up again, if it wants to.
    """

    def __init__(
        self,
        default: Callable[[], Runtime],
        *,
        join: Callable[[RunSpec], Awaitable[None]] | None = None,
    ) -> None:
        self._default = default
        self._join = join
        self._descriptor = default().describe()
        self._routes: WeakValueDictionary[str, Route] = WeakValueDictionary()

    def connect(self, thread_id: str, route: Route) -> None:
        """From now on runs of that thread go to that route."""
        self._routes[thread_id] = route

    async def config_of(self, spec: RunSpec) -> str:
        """Digest of what would take a run up: a recovery compares it with what has begun it (RC-58)."""
        route = await self._route_of(spec)
        return str(getattr(self._default() if route is None else route.runtime, "config_digest", ""))

    async def _route_of(self, spec: RunSpec) -> Route | None:
        """The route of a run's thread; its conversation is made where nobody sends to it at present."""
        if spec.thread_id not in self._routes and self._join is not None:
            await self._join(spec)
        return self._routes.get(spec.thread_id)

    def describe(self) -> Descriptor:
        """The contract of the first runtime; a swapped provider does not change it."""
        return self._descriptor

    def _runtime(self, start: Start) -> Any:
        route = self._routes.get(start.spec.thread_id)
        return self._default() if route is None else route.taken(start.spec.run_id)

    async def run(self, start: Start, port: RunPort, /) -> None:
        """Works, on the thread's route."""
        route = self._routes.get(start.spec.thread_id)
        runtime = self._runtime(start)
        if route is not None:
            await route.ready(start.spec.run_id)
            port = await _entered(route, start, port, runtime)
        await runtime.run(await _loaded(start, port), port)

    async def resume(self, start: Start, port: RunPort, /) -> None:
        """Goes on from the facts, on the thread's route."""
        route = self._routes.get(start.spec.thread_id)
        runtime = self._runtime(start)
        if route is not None:
            port = await _entered(route, start, port, runtime)
        await runtime.resume(await _loaded(start, port), port)

    async def admit(self, spec: RunSpec) -> None:
        """A run of an earlier process is taken up again: who is plugged in is told before anything is written (TC-115)."""
        route = await self._route_of(spec)
        if route is not None and (sender := route.sender()) is not None:
            from .entering import resumed

            await resumed(sender, spec)

    async def screen(self, spec: RunSpec, command: Command) -> Command:
        """What is said to a run, as the thread's interceptor leaves it (TC-26)."""
        route = await self._route_of(spec)
        sender = None if route is None else route.sender()
        if sender is None or sender.setup.interceptor is None:
            return command
        from .entering import screened

        return await screened(sender, command)

    async def query(self, start: Start, view: RunView, /) -> StatusAnswer:
        """Asks the thread's runtime where the run stands."""
        answer: StatusAnswer = await self._runtime(start).query(start, view)
        return answer


async def _entered(route: Route, start: Start, port: RunPort, runtime: Any) -> RunPort:
    """The run begins to work for its send, if that is one of this process: tools may ask which, and change its state."""
    sender = route.sender()
    reply = None if sender is None else sender.live(start.spec.run_id)
    if sender is None or reply is None:
        return port
    enter_reply(reply)
    plain = isinstance(runtime, TextRuntime) or not getattr(runtime, "tool_names", True)
    if plain and reply.around is None and reply.patch is None:
        reply.patch_taken = True
        return port
    from .entering import enter

    return await enter(sender, reply, start, port, runtime)


async def _loaded(start: Start, port: RunPort) -> Start:
    """With the bytes of attachments that the journal keeps apart (AC-116)."""
    if not start.apart:
        return start
    history = [await _with_bytes(message, port) for message in start.history]
    given = tuple([await _with_bytes(message, port) for message in start.spec.input])
    return replace(start, history=history, spec=replace(start.spec, input=given))


async def _with_bytes(message: Message, port: RunPort) -> Message:
    if not kept_apart((message,)):
        return message
    parts: list[Any] = []
    for part in message.parts:
        if isinstance(part, MEDIA) and part.artifact is not None and part.data is None:
            parts.append(replace(part, data=await port.get_artifact(part.artifact.digest), artifact=None))
        else:
            parts.append(part)
    return replace(message, parts=tuple(parts))
