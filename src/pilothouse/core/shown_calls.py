"""Tool calls as they are told, and where their results stand (AG-170 … AG-172, AG-201)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from msgspec import UNSET
from msgspec.structs import replace

from ..messages import JSON, Unset
from ..projection import EMPTY, AgentMessage, AgentToolCall, MessageDelivery
from .shown import Shown, Told, ToldCall, object_of, parsed

_NOT_RUN: Final = frozenset({"refused", "cancelled", "unknown", "failed"})


class ShownCalls(Shown):
    """Calls and results of a conversation."""

    def call_args(self, call_id: str, delta: str) -> None:
        """A piece of its argument text."""
        found = self._calls.get(call_id)
        if found is None:
            return
        pieces = self._buffers.setdefault(call_id, [])
        pieces.append(delta)
        text = "".join(pieces)
        self._calls[call_id] = replace(found, args_text=text, args=object_of(text, found.args))
        self._call_values = None

    def call_end(self, call_id: str) -> None:
        """Its arguments are whole."""
        found = self._calls.get(call_id)
        if found is not None and found.status in ("pending", "running"):
            self._calls[call_id] = replace(found, status="complete")
            self._call_values = None

    def call_runs(self, call_id: str, *, arguments: Mapping[str, JSON] | None = None) -> None:
        """It is running, perhaps with other arguments than those that were proposed."""
        found = self._calls.get(call_id)
        if found is not None and found.result is UNSET:
            args = found.args if arguments is None else arguments
            self._calls[call_id] = replace(found, status="running", args=args)
            self._call_values = None

    def call_result(
        self,
        call_id: str,
        result: JSON | Unset,
        *,
        name: str = "",
        error: str | None = None,
        ledger: str | None = None,
        message: Told | None = None,
    ) -> None:
        """How it came out; `message` is the tool message that tells it."""
        found = self._calls.get(call_id) or AgentToolCall(call_id, name)
        status: Any = "error" if error is not None or ledger in _NOT_RUN else "complete"
        if ledger == "unknown":
            error = error or "nobody knows whether the call took effect"
        fresh = replace(found, status=status, result=parsed(result), error=error, ledger=ledger)
        if fresh != self._calls.get(call_id):
            self._calls[call_id] = fresh
            self._call_values = None
        if message is not None:
            self._place_result(message)

    def _place_result(self, told: Told) -> None:
        """Behind the message that owns the call and behind the results that are there already (AG-201)."""
        content = told.content
        made = AgentMessage(
            told.id,
            "tool",
            MessageDelivery(told.id, "complete", "success"),
            content,
            tool_call_id=told.tool_call_id,
            run_id=told.run_id or self.attempt_run,
            extra=told.extra,
        )
        found = self._shown.get(told.id)
        if found is not None:
            if found.content != content or found.tool_call_id != told.tool_call_id:
                self._shown[told.id] = replace(found, content=content, tool_call_id=told.tool_call_id)
                self._messages = None
            return
        owner = self.owner_of(told.tool_call_id or "")
        place = len(self._order) - len(self._waiting)
        if owner is not None:
            place = self._order.index(owner.id) + 1
            while place < len(self._order) and self._shown[self._order[place]].role == "tool":
                place += 1
        self._shown[told.id] = made
        self._order.insert(place, told.id)
        self._messages = None

    def owner_of(self, call_id: str) -> AgentMessage | None:
        """The assistant message that made a call."""
        for name in reversed(self._order):
            if call_id in self._shown[name].tool_call_ids:
                return self._shown[name]
        return None

    def settle_calls(self, status: Literal["error"], error: str, ledger: str | None = None) -> None:
        """Calls without a result, that no backend will give any more."""
        for call_id, found in self._calls.items():
            if found.result is UNSET and found.status in ("pending", "running"):
                self._calls[call_id] = replace(found, status=status, error=error, ledger=ledger)
                self._call_values = None

    def _put_calls(self, calls: Iterable[ToldCall]) -> tuple[str, ...]:
        """Calls as a whole message names them; their arguments are whole."""
        ids = []
        for call in calls:
            ids.append(call.id)
            found = self._calls.get(call.id) or AgentToolCall(call.id, call.name)
            status = "complete" if found.status == "pending" else found.status
            fresh = replace(
                found,
                name=call.name or found.name,
                args_text=call.args_text,
                args=object_of(call.args_text, EMPTY),
                status=status,
            )
            if fresh != self._calls.get(call.id):
                self._calls[call.id] = fresh
                self._call_values = None
        return tuple(ids)

    def _own_call(self, parent: str, call_id: str) -> None:
        found = self.get(parent)
        if found is not None and call_id not in found.tool_call_ids:
            self._shown[found.id] = replace(found, tool_call_ids=(*found.tool_call_ids, call_id))
            self._messages = None


__all__ = ["ShownCalls"]
