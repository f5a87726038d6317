"""Client tools of a remote agent: calls that its backend hands to whoever shows it (AG-145 … AG-149)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import final

from msgspec import UNSET

from ..agents.localtools import checked_catalog, text_of
from ..agents.operation import Later, Operation
from ..agents.signals import Cell
from ..agents.surface import Surface
from ..core.display import Told
from ..errors import InvalidTarget
from ..messages import ToolSpec
from ..projection import AgentToolCall, Err, Ok, ToolOutcome


@final
class RemoteTools:
    """`client_tools` of an `AGUIAgent`.

    A result that was put down is a message of the conversation at once, with an id derived from its call's, so every
    later request carries it, byte for byte.

    Attributes:
        pending: calls that wait for the host.
        catalog: what goes with every run.
        told: the backend's own list of pending ids; None where it gave none.
    """

    def __init__(
        self,
        surface: Surface,
        *,
        go_on: Callable[[], Operation],
        deliver: Callable[[Mapping[str, ToolOutcome]], Awaitable[None]] | None,
    ) -> None:
        self.pending: Cell[tuple[AgentToolCall, ...]] = Cell(surface.hub, (), "client_tools.pending")
        self.catalog: tuple[ToolSpec, ...] = ()
        self.told: frozenset[str] | None = None
        self._surface = surface
        self._go_on = go_on
        self._deliver = deliver
        self._staged: dict[str, ToolOutcome] = {}
        self._flushing: asyncio.Lock | None = None

    @property
    def staged(self) -> frozenset[str]:
        """Calls whose results no finished run has carried yet."""
        return frozenset(self._staged)

    def publish(self) -> None:
        """Brings `pending` up to date (AG-146)."""
        if self._surface.attempt is not None:
            self.pending.set(())
            return
        names = {spec.name for spec in self.catalog}
        self.pending.set(
            tuple(
                [
                    call
                    for call in self._surface.display.calls
                    if call.name in names
                    and call.result is UNSET
                    and call.error is None
                    and call.subagent_id is None
                    and (self.told is None or call.id in self.told)
                ]
            )
        )

    def set_catalog(self, specs: Sequence[ToolSpec]) -> None:
        """Replaces what is offered."""
        self.catalog = checked_catalog(specs)
        self.publish()

    def settle(self, call_id: str, result: ToolOutcome) -> None:
        """Puts a result down; one that is there already stays."""
        call = self._surface.display.call(call_id)
        if call is None:
            raise InvalidTarget(f"cannot settle {call_id!r}: there is no such call")
        if call.result is not UNSET or call_id in self._staged:
            return
        self._staged[call_id] = result
        with self._surface.batch():
            self._surface.display.call_result(
                call_id,
                result.value if isinstance(result, Ok) else result.message,
                error=result.message if isinstance(result, Err) else None,
                message=Told(f"{call_id}:result", "tool", text_of(result), tool_call_id=call_id),
            )
            self.publish()

    def settle_all(self, why: str) -> None:
        """The conversation goes on without the pending ones: each gets an error result (AG-79)."""
        for call in self.pending.get():
            self.settle(call.id, Err(why))

    def carried(self, ids: frozenset[str]) -> None:
        """A run that carried exactly these results has succeeded (AG-149)."""
        for call_id in ids:
            self._staged.pop(call_id, None)

    def drop(self) -> None:
        """Another thread: what was put down for the old one is forgotten."""
        self._staged = {}
        self.told = None

    def flush(self) -> Awaitable[None]:
        """Gives results to the backend, where it can take them without going on; else the next run carries them."""
        if self._deliver is None or not self._staged:
            return Later.settled(None)
        late: Later[None] = Later(asyncio.get_running_loop())
        asyncio.get_running_loop().create_task(self._flush(late))
        return late

    async def _flush(self, late: Later[None]) -> None:
        assert self._deliver is not None
        if self._flushing is None:
            self._flushing = asyncio.Lock()
        try:
            async with self._flushing:
                staged = dict(self._staged)
                if staged:
                    await self._deliver(staged)
                    self.carried(frozenset(staged))
        except Exception as error:  # noqa: BLE001 - goes to whoever awaits; the results are kept
            late.refuse(error)
        finally:
            late.settle(None)

    def resolve(self, call_id: str, result: ToolOutcome) -> Operation:
        """Puts a result down and goes on, one run for all that is settled."""
        self.settle(call_id, result)
        return self._go_on()


__all__ = ["RemoteTools"]
