"""Client tools of a local agent: calls that the run hands to whoever shows it (AG-150)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import final

import msgspec

from ..commands import ExternalResult, Request
from ..errors import InvalidTarget, UsageError
from ..messages import Text, ToolSpec
from ..projection import AgentToolCall, Err, Ok, ToolOutcome
from .operation import Later, Operation
from .signals import Cell
from .surface import Surface


def text_of(result: ToolOutcome) -> str:
    """A result as the model reads it: a text as it is, anything else as JSON."""
    value = result.message if isinstance(result, Err) else result.value
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def checked_catalog(specs: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Specs of client tools.

    Raises:
        UsageError: two of one name, or a schema that is none of an object.
    """
    names: set[str] = set()
    for spec in specs:
        if not spec.name or spec.name in names:
            raise UsageError(f"client tool {spec.name!r} is named twice, or not at all")
        names.add(spec.name)
        if spec.parameters and spec.parameters.get("type", "object") != "object":
            raise UsageError(f"client tool {spec.name!r}: its parameters are no JSON Schema of an object")
        try:
            msgspec.json.encode(spec.parameters)
        except (TypeError, ValueError) as error:
            raise UsageError(f"client tool {spec.name!r}: its parameters are no JSON: {error}") from error
    return tuple(specs)


@final
class LocalTools:
    """`client_tools` of a `LocalAgent`.

    Args:
        give: gives results, by request id, to the run that waits for them; True: without another model request, if
            nothing else is open.

    Attributes:
        pending: calls that wait for the host.
        catalog: what is offered to runs that begin from now on.
    """

    def __init__(
        self, surface: Surface, give: Callable[[Mapping[str, ExternalResult], bool], Operation]
    ) -> None:
        self.pending: Cell[tuple[AgentToolCall, ...]] = Cell(surface.hub, (), "client_tools.pending")
        self.catalog: tuple[ToolSpec, ...] = ()
        self._surface = surface
        self._give = give
        self._open: tuple[Request, ...] = ()
        self._staged: dict[str, ExternalResult] = {}  # request id -> its result

    @property
    def asked(self) -> tuple[Request, ...]:
        """The requests that the run waits for."""
        return self._open

    @asked.setter
    def asked(self, requests: tuple[Request, ...]) -> None:
        self._open = requests
        ids = {request.id for request in requests}
        self._staged = {name: result for name, result in self._staged.items() if name in ids}
        self.publish()

    def take_asked(self) -> tuple[Request, ...]:
        """The requests, which somebody else answers from here on."""
        requests, self.asked = self.asked, ()
        return requests

    def publish(self) -> None:
        """Brings `pending` up to date."""
        names = {spec.name for spec in self.catalog}
        calls = [
            call
            for request in self._open
            if request.id not in self._staged
            and (call := self._surface.display.call(request.call_id or "")) is not None
            and call.name in names
        ]
        self.pending.set(tuple(calls))

    def drop(self) -> None:
        """Another thread, or another run: what was put down for the old one is forgotten."""
        self._staged = {}
        self.asked = ()

    def set_catalog(self, specs: Sequence[ToolSpec]) -> None:
        """Replaces what is offered."""
        self.catalog = checked_catalog(specs)
        self.publish()

    def settle(self, call_id: str, result: ToolOutcome) -> None:
        """Puts a result down."""
        request = next((item for item in self._open if item.call_id == call_id), None)
        if request is None:
            known = self._surface.display.call(call_id)
            if known is None:
                raise InvalidTarget(f"cannot settle {call_id!r}: there is no such call")
            return  # settled before
        if request.id in self._staged:
            return
        self._staged[request.id] = ExternalResult((Text(text_of(result)),), is_error=isinstance(result, Err))
        with self._surface.batch():
            value = result.value if isinstance(result, Ok) else result.message
            error = result.message if isinstance(result, Err) else None
            self._surface.display.call_result(call_id, value, error=error)
            self.publish()

    def flush(self) -> Awaitable[None]:
        """Gives what was put down to the run, without another model request if nothing else is open."""
        op = self._hand_over(terminate=True)
        if op is None:
            return Later.settled(None)
        late: Later[None] = Later(asyncio.get_running_loop())
        op.on_done(lambda: late.settle(None))
        return late

    def resolve(self, call_id: str, result: ToolOutcome) -> Operation:
        """Puts a result down and goes on."""
        self.settle(call_id, result)
        return self._hand_over(terminate=False) or Operation.settled("nothing")

    def _hand_over(self, *, terminate: bool) -> Operation | None:
        staged, self._staged = self._staged, {}
        if not staged:
            return None
        self._open = tuple([item for item in self._open if item.id not in staged])
        return self._give(staged, terminate)


__all__ = ["LocalTools", "checked_catalog", "text_of"]
