"""Beginning a run on behalf of a request: once for equal requests, and what a busy thread means (SV-15, SV-116)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal, get_args

from msgspec.structs import replace

from ..commands import Command, Steer
from ..conversation.extras import RunExtras
from ..core.delivery import SUPERSEDED
from ..errors import AgentBusy, ThreadConflict, Unsupported
from ..messages import JSON, Message
from .names import run_key
from .problems import Problem, invalid
from .registry import Registry
from .scope import ScopedRun, ScopedRuns, ScopedThread
from .served import ServedAgents
from .served_agent import Ask
from .settings import ServerLimits, WhenBusy

_SETTLE_S: Final = 20.0
"""A stop is bounded by the run controller (RC-40); this is a little more than its bound."""

_ANSWERS: Final = ("queue", "steer", "supersede", "rollback")
"""Policies that do not refuse a send on a busy thread."""

_TRIES: Final = 4
"""How often a send looks again where what was in its way is not to be seen: it is just coming, or just going."""


def when_busy_of(given: JSON, path: str) -> WhenBusy | None:
    """The policy that a request names in its field `path`; None where it names none.

    Raises:
        Problem: 400, there is no such policy.
    """
    policies = get_args(WhenBusy)
    if given is None:
        return None
    if given not in policies:
        raise invalid((path, f"must be one of {', '.join(policies)}"))
    return given  # type: ignore[no-any-return]


class Begun:
    """A run that was begun, or a send that waits its turn.

    Attributes:
        key: of the run, in the journal.
        other: the run was there already: it took the message in.
        queued: the send waits for the thread.
    """

    def __init__(
        self,
        key: str,
        run: ScopedRun | None,
        *,
        other: bool = False,
        queued: asyncio.Task[object] | None = None,
    ) -> None:
        self.key = key
        self.other = other
        self.queued = queued
        self._run = run

    async def run(self) -> ScopedRun:
        """The run, once it is registered.

        Raises:
            PilothouseError, Problem: there will be none.
        """
        if self._run is None:
            assert self.queued is not None
            found = await asyncio.shield(self.queued)
            assert isinstance(found, ScopedRun)
            self._run = found
        return self._run


class Beginning:
    """Begins runs for all faces, by one table of policies."""

    def __init__(
        self, served: ServedAgents, registry: Registry, limits: ServerLimits, default: WhenBusy
    ) -> None:
        self._served = served
        self._registry = registry
        self._limits = limits
        self._default: WhenBusy = default
        self._under_way: dict[str, tuple[str, asyncio.Future[Begun]]] = {}
        self._registering: dict[
            str, list[asyncio.Future[None]]
        ] = {}  # by thread: sends that are not live yet

    async def begin(
        self,
        runs: ScopedRuns,
        agent: str,
        thread: ScopedThread,
        run_id: str,
        ask: Ask,
        *,
        extras: RunExtras,
        digest: str,
        when_busy: WhenBusy | None = None,
    ) -> Begun:
        """Begins a run under the client's id; equal requests at the same time share one.

        Raises:
            Problem, PilothouseError: refused; no run exists.
        """
        if self._served.draining:
            raise Problem(503, "draining", "the server is going down", headers={"Retry-After": "5"})
        key = run_key(runs.principal.tenant, run_id)
        if (other := self._under_way.get(key)) is not None:
            if other[0] != digest:
                raise Problem(409, "run_conflict", f"run {run_id} stands for other content", run_id=run_id)
            return await asyncio.shield(other[1])

        async def send(policy: Literal["raise", "queue"], more: RunExtras) -> ScopedRun:
            try:
                with self._registers(thread.key):
                    sending = await runs.send(
                        agent, thread, run_id, ask, extras=more, digest=digest, when_busy=policy
                    )
                    await sending.committed()
            except BaseException:
                self._served.traces.refused(key)
                raise
            return await runs.began(run_id)

        made: asyncio.Future[Begun] = asyncio.get_running_loop().create_future()
        self._under_way[key] = (digest, made)
        # In a task of its own: a client that leaves now does not undo the start (SV-62).
        task = self._served.spawn(
            self._begin(runs, agent, thread, run_id, ask, extras, when_busy, send), f"begin {run_id}"
        )
        task.add_done_callback(lambda done: self._over(key, done))
        return await asyncio.shield(made)

    @contextmanager
    def _registers(self, thread_key: str) -> Iterator[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        others = self._registering.setdefault(thread_key, [])
        others.append(done)
        try:
            yield
        finally:
            done.set_result(None)
            others.remove(done)
            if not others:
                self._registering.pop(thread_key, None)

    async def _registered(self, thread: ScopedThread) -> bool:
        """Waits for another send on the thread: until it has a run, no policy can be applied to it. False: there is none."""
        others = self._registering.get(thread.key)
        if not others:
            return False
        done, _ = await asyncio.wait(others, timeout=_SETTLE_S, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)

    def _over(self, key: str, task: asyncio.Task[object]) -> None:
        _, made = self._under_way.pop(key)
        if task.cancelled():
            made.cancel()
        elif (error := task.exception()) is not None:
            made.set_exception(error)
            made.exception()  # somebody may have left
        else:
            found = task.result()
            assert isinstance(found, Begun)
            made.set_result(found)

    async def _begin(
        self,
        runs: ScopedRuns,
        agent: str,
        thread: ScopedThread,
        run_id: str,
        ask: Ask,
        extras: RunExtras,
        when_busy: WhenBusy | None,
        send: Callable[[Literal["raise", "queue"], RunExtras], Awaitable[ScopedRun]],
        *,
        tries: int = _TRIES,
    ) -> Begun:
        limit = self._limits.runs_per_tenant
        if limit is not None and await runs.count_live() >= limit:
            raise Problem(429, "too_many_runs", f"{limit} runs are live", headers={"Retry-After": "1"})
        key = run_key(runs.principal.tenant, run_id)
        live = await thread.live()
        policy = when_busy or self._default
        if live is not None:
            if policy == "supersede_orphan":
                policy = "raise" if self._registry.followers(live.key) else "supersede"
            match policy:
                case "raise":
                    raise await live.in_the_way()
                case "steer":
                    if (steered := await _steered(live, run_id, ask, extras)) is not None:
                        return Begun(live.key, steered, other=True)
                case "queue":
                    return Begun(
                        key, None, queued=self._served.spawn(_queued(live, send, extras), f"queued {run_id}")
                    )
                case _:
                    await live.cancel(SUPERSEDED)
                    await live.settled(_SETTLE_S)
            if policy == "rollback":
                extras = _in_place_of(live, extras)
        try:
            try:
                return Begun(key, await send("raise", extras))
            except ThreadConflict:  # another process was faster: once more, on the path as it is now
                return Begun(key, await send("raise", extras))
        except (AgentBusy, Unsupported) as error:
            if error.code != "thread_busy":
                raise
            came = policy in _ANSWERS and await self._registered(thread)
            found = await thread.live()
            stays = (
                live is not None and found is not None and found.key == live.key
            )  # it does not end in its time
            if policy in _ANSWERS and not stays and (came or found is not None or tries):
                left = max(tries - 1, 0)
                return await self._begin(runs, agent, thread, run_id, ask, extras, policy, send, tries=left)
            raise (
                Problem(409, "thread_busy", str(error)) if found is None else await found.in_the_way()
            ) from error


def _in_place_of(live: ScopedRun, extras: RunExtras) -> RunExtras:
    """The new run hangs where the old one hangs; in place of a thread's first it is a root."""
    spec = live.spec
    if spec.parent is None:
        return replace(extras, parent=None, base=spec.base)
    return replace(extras, parent=spec.parent, base=None)


async def _steered(live: ScopedRun, run_id: str, ask: Ask, extras: RunExtras) -> ScopedRun | None:
    """The live run takes the message in (AG-84); None if it has ended meanwhile, and is in nobody's way any more."""
    if ask.content is None:
        raise await live.in_the_way()
    message = Message(extras.message_id or f"{run_id}:message", "user", ask.content)
    ack = await live.command(Command(f"steer:{run_id}", live.key, Steer(message)))
    if ack.state == "rejected" and ack.code == "ended":
        return None
    if ack.state in ("rejected", "unsupported"):
        raise Problem(409 if ack.state == "rejected" else 422, ack.code or ack.state, ack.message)
    return live


async def _queued(
    live: ScopedRun,
    send: Callable[[Literal["raise", "queue"], RunExtras], Awaitable[ScopedRun]],
    extras: RunExtras,
) -> ScopedRun:
    """A send of its own after the live run (TC-90)."""
    await live.settled(None)
    return await send("queue", extras)


__all__ = ["Beginning", "Begun", "when_busy_of"]
