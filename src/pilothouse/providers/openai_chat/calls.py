"""To which call a piece belongs: compatible servers leave out, repeat and re-use index, id and name.

A piece goes by id, else by index, else to the call being streamed; a name after arguments begins another call. The
rules are the table of agent-loop §5, in its order, plus what follows from it for several pieces in one chunk.
"""

from __future__ import annotations

import msgspec

from ...messages import JSON
from ...responses import Notice, ProviderEvent, ToolCallDelta


class Call:
    """One call while its pieces come in."""

    __slots__ = ("announced", "block", "call_id", "held", "index", "name", "said", "touched", "wire_id")

    def __init__(self, block: int, index: int | None) -> None:
        self.block = block
        self.index = index  # the wire index on which it began
        self.wire_id: str | None = None
        self.call_id = ""
        self.name = ""
        self.held: list[str | dict[str, JSON]] = []  # arguments that came before it was announced
        self.said: list[str] = []  # argument text so far
        self.announced = False
        self.touched = 0  # the chunk that brought its last piece

    @property
    def has_arguments(self) -> bool:
        """Whether anything of its arguments came."""
        return bool(self.said or self.held)

    @property
    def is_whole(self) -> bool:
        """Whether its arguments are a JSON object as they stand."""
        if any(isinstance(piece, dict) for piece in self.held):
            return True
        try:
            return isinstance(msgspec.json.decode("".join(self.said)), dict)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return False


class CallRouter:
    """The calls of one response, in order of first appearance."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._by_id: dict[str, list[Call]] = {}
        self._by_index: dict[int, Call] = {}
        self._last: Call | None = None
        self._used: set[str] = set()
        self._chunk = 0

    def next_chunk(self) -> None:
        """The pieces that follow come from another chunk than those before."""
        self._chunk += 1

    def find(self, index: int | None, wire_id: str, name: str, args: str | dict[str, JSON]) -> Call | None:
        """The call that a piece belongs to, or None: it begins another one."""
        if wire_id:
            call = self._by_wire_id(index, wire_id, name)
        elif index is not None and index in self._by_index:
            call = self._unless_another(self._by_index[index], name, args)
        elif index is not None and name:
            call = None
        else:
            call = self._unless_another(self._last, name, args)
        return call

    def open(self, block: int, index: int | None, wire_id: str) -> Call:
        """Begins a call."""
        call = Call(block, index)
        self.calls.append(call)
        self._name_it(call, wire_id)
        return call

    def touch(self, call: Call, index: int | None, wire_id: str) -> None:
        """Remembers where the pieces of a call come from."""
        if index is not None and (index not in self._by_index or call.index == index):
            self._by_index[index] = call
        if wire_id and call.wire_id is None:
            self._name_it(call, wire_id)
        self._last = call
        call.touched = self._chunk

    def _by_wire_id(self, index: int | None, wire_id: str, name: str) -> Call | None:
        on_index = self._by_index.get(index) if index is not None else None
        known = self._by_id.get(wire_id, [])
        own = [call for call in known if call.index == index]
        if known and (own or index is None or (on_index is None and not name)):
            call = (own or known)[-1]
            return None if name and call.name and name != call.name and call.has_arguments else call
        return on_index if on_index is not None and on_index.wire_id is None else None

    def _unless_another(self, call: Call | None, name: str, args: str | dict[str, JSON]) -> Call | None:
        """A name that cannot belong to the call any more begins another one."""
        if call is None or not name or not call.name:
            return call
        if call.touched == self._chunk and call is self._last:  # two entries of one list
            return None
        if not call.has_arguments:
            return call
        if name != call.name:
            return None
        return None if args and call.is_whole else call

    def _name_it(self, call: Call, wire_id: str) -> None:
        if wire_id:
            call.wire_id = wire_id
            self._by_id.setdefault(wire_id, []).append(call)
        if not call.call_id or not call.announced:
            self._used.discard(call.call_id)
            call.call_id = self._unique(wire_id or f"call_{len(self.calls)}")

    def _unique(self, wanted: str) -> str:
        made, count = wanted, 1
        while made in self._used:
            count += 1
            made = f"{wanted}_{count}"
        self._used.add(made)
        return made


def add_piece(call: Call, name: str, args: str | dict[str, JSON] | None, out: list[ProviderEvent]) -> None:
    """Takes a piece. The call is told once its name is certain, which is when its arguments begin [035]."""
    if name and name != call.name and not (call.announced or (call.name and call.has_arguments)):
        call.name += name
    elif name and name != call.name:
        out.append(Notice("name_changed", f"{call.name}: {name}"))
    if not args:
        return
    if isinstance(args, str):
        call.said.append(args)
    if not call.name:
        call.held.append(args)
    elif not call.announced:
        announce(call, out, args)
    else:
        out.append(ToolCallDelta(call.block, call.call_id, "", args, call.wire_id))


def announce(call: Call, out: list[ProviderEvent], *more: str | dict[str, JSON]) -> None:
    """Tells the call and all that came of its arguments; one without a name is only noted."""
    if call.announced:
        return
    pieces = [*call.held, *more]
    call.held = []
    if not call.name:
        out.append(Notice("call_without_name", "".join(call.said)[:500]))
        return
    call.announced = True
    name = call.name
    for piece in pieces or [""]:
        out.append(ToolCallDelta(call.block, call.call_id, name, piece, call.wire_id))
        name = ""


__all__ = ["Call", "CallRouter", "add_piece", "announce"]
