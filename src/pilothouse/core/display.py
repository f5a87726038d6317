"""The conversation as a reader sees it while it is being made: messages with their delivery, and tool calls.

Both ends of the contract are drawn with it: what our own runs tell, and what an AG-UI endpoint tells. Theory of
operation: each attempt has a *generation*. A message that an attempt opens streams until the next assistant message
opens or the attempt ends; then it is complete, with one outcome that never changes. Deltas are appended as they come;
only whole texts (a final message, a snapshot) are compared. An id once shown stays: other ids that the backend uses for
the same message are aliases of it.

Values are immutable and replaced; a message that did not change is the same object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from ..messages import JSON
from ..projection import AgentMessage, AgentToolCall, Delivered, MessageDelivery
from .shown import Content, Role, Told, ToldCall, parsed, plain
from .shown_calls import ShownCalls


class Display(ShownCalls):
    """Messages and calls of one agent or subagent, while they are told; the arguments are those of `Shown`."""

    # A message that is being told

    def open(self, message_id: str, role: Role = "assistant", name: str | None = None) -> str:
        """A message begins, or goes on; returns the id under which it is shown."""
        shown = self._alias.get(message_id, message_id)
        found = self._shown.get(shown)
        if role != "assistant":
            self.release(shown)
            if found is None:
                self._put(
                    AgentMessage(message_id, role, self._streaming(), "", name=name, run_id=self.attempt_run)
                )
                self._open[message_id] = None
            return shown
        loose, self._loose = self._loose, ""
        if loose and loose != shown and found is None and loose in self._shown:
            self._alias[message_id], self._answer_ids[loose] = loose, message_id
            shown, found = loose, self._shown[loose]
        elif loose and loose != shown and found is not None and loose in self._shown:
            found = self._take_over(loose, found)
        self._stop_thinking(shown)
        for other in list(self._open):
            if other != shown and self._shown[other].role == "assistant":
                self._complete(other, "success", None)
        if found is None:
            self._put(
                AgentMessage(shown, "assistant", self._streaming(), "", name=name, run_id=self.attempt_run)
            )
        elif shown not in self._open:
            self._reopen(found)
        self._open[shown] = None
        return shown

    def _take_over(self, loose: str, found: AgentMessage) -> AgentMessage:
        """Reasoning whose answer turns out to be a message that is shown already."""
        self._stop_thinking(loose)
        thought = self._shown.pop(loose)
        self._order.remove(loose)
        self._open.pop(loose, None)
        self._alias[loose] = found.id
        fresh = replace(found, reasoning=(found.reasoning or "") + (thought.reasoning or ""))
        self._shown[found.id] = fresh
        self._messages = None
        return fresh

    def _reopen(self, found: AgentMessage) -> None:
        """An id that is known and complete begins again."""
        if found.delivery.generation.partition("/")[0] == self.generation:
            fresh = replace(found, delivery=self._again(found.delivery))  # a message closed before its time
        elif self.continues and found.id == self._last_assistant():
            fresh = replace(found, delivery=self._streaming(), run_id=self.attempt_run)
        else:  # the backend uses its ids again: nothing of the old message is kept
            fresh = AgentMessage(found.id, "assistant", self._streaming(), "", run_id=self.attempt_run)
            behind = self._order[self._order.index(found.id) + 1 :]
            if any(self._shown[name].role == "user" for name in behind):
                self._order.remove(found.id)
                self._order.insert(len(self._order) - len(self._waiting), found.id)
        self._shown[found.id] = fresh
        self._messages = None

    def _last_assistant(self) -> str:
        names = [name for name in self._order if self._shown[name].role == "assistant"]
        return names[-1] if names else ""

    def text(self, message_id: str, delta: str) -> None:
        """A piece of the text of an open message; of a completed one it is late and dropped (AG-54)."""
        shown = self._alias.get(message_id, message_id)
        if shown not in self._open or not delta:
            return
        found = self._shown[shown]
        content = found.content
        if isinstance(content, tuple):
            from ..messages import Text

            last = content[-1] if content else None
            if isinstance(last, Text):
                fresh: Content = (*content[:-1], Text(last.text + delta))
            else:
                fresh = (*content, Text(delta))
        else:
            fresh = content + delta
        self._shown[shown] = replace(found, content=fresh)
        self._messages = None

    def think(self, message_id: str, delta: str = "", *, own: bool = False) -> None:
        """Reasoning of a message: of an open one, or of the answer that is to follow (AG-200).

        `own`: the id is that of the answer itself, whatever follows.
        """
        shown = self._alias.get(message_id, message_id)
        if not own and self._loose and shown not in self._shown:  # another thought before the same answer
            shown = self._alias[message_id] = self._loose
        found = self._shown.get(shown)
        if found is None or (shown not in self._open and found.delivery.generation != self.generation):
            self.open(message_id)
            found = self._shown[shown]
        if not own and shown in self._open and found.content == "" and not found.tool_call_ids:
            self._loose = shown
        if shown not in self._open:
            return
        self._thinking.setdefault(shown, self._now())
        if delta or found.reasoning is None:
            self._shown[shown] = replace(found, reasoning=(found.reasoning or "") + delta)
            self._messages = None

    def thought(self, message_id: str) -> None:
        """Its reasoning is over."""
        self._stop_thinking(self._alias.get(message_id, message_id))

    def complete(self, message_id: str, outcome: Delivered = "success", reason: str | None = None) -> None:
        """One message is complete."""
        self._complete(self._alias.get(message_id, message_id), outcome, reason)

    def metadata(self, message_id: str, more: Mapping[str, JSON]) -> None:
        """What else was told of a message, merged key by key."""
        found = self.get(message_id)
        if found is not None and more:
            self._shown[found.id] = replace(found, extra={**found.extra, **more})
            self._messages = None

    def finish(self, told: Told) -> None:
        """The whole of a message, told behind its pieces or without any (AG-55, AG-59)."""
        shown = self._alias.get(told.id, told.id)
        if shown not in self._shown or told.role == "assistant":
            self.open(told.id, told.role, told.name)
            shown = self._alias.get(told.id, told.id)
        found = self._shown[shown]
        ids = self._put_calls(told.calls)
        fresh = replace(
            found,
            content=told.content,
            reasoning=told.reasoning if told.reasoning is not None else found.reasoning,
            tool_call_ids=ids or found.tool_call_ids,
            tool_call_id=told.tool_call_id,
            extra={**found.extra, **told.extra} if told.extra else found.extra,
        )
        if fresh != found:
            self._shown[shown] = fresh
            self._messages = None

    # Calls

    def call_start(
        self, call_id: str, name: str, parent: str | None = None, *, subagent_id: str | None = None
    ) -> None:
        """A call begins; without a parent no message is created or changed (AG-201)."""
        found = self._calls.get(call_id)
        if found is None:
            self._calls[call_id] = AgentToolCall(call_id, name, subagent_id=subagent_id)
        elif name and found.name != name and not found.args_text:
            self._calls[call_id] = replace(found, name=name)
        self._buffers[call_id] = []
        self._call_values = None
        if parent is None:
            return
        if self.get(parent) is None or self._alias.get(parent, parent) not in self._open:
            known = self.get(parent)
            if known is None or call_id not in known.tool_call_ids:
                self.open(parent)
        elif self._loose == self._alias.get(parent, parent):
            self._loose = ""
        self._own_call(parent, call_id)

    # Snapshots

    def restore(self, told: Sequence[Told]) -> None:
        """The whole conversation as a record has it: nothing of it is being told (AG-52)."""
        self.snapshot(told, reasoning=True)

    def snapshot(self, told: Sequence[Told], *, reasoning: bool = False) -> None:
        """The backend's whole list: replaces, appends, removes what it omits, but for what is being told.

        `reasoning`: the list carries reasoning, so what it leaves out is gone.
        """
        if not told and self._order:
            return  # a state without messages is not an empty conversation (AG-57)
        told = self._known_ids(told)
        order: list[str] = []
        tail = max((n for n, item in enumerate(told) if item.role == "user"), default=-1)
        for number, item in enumerate(told):
            shown = self._alias.get(item.id, item.id)
            if shown in order:
                continue
            self._shown[shown] = self._reconciled(shown, item, in_tail=number > tail, reasoning=reasoning)
            order.append(shown)
            if item.role == "tool" and item.tool_call_id:
                known = self._calls.get(item.tool_call_id)
                if known is None or known.result is UNSET:
                    result = UNSET if item.content == "" and item.error else plain(item.content)
                    self.call_result(item.tool_call_id, result, error=item.error, ledger=item.ledger)
        for place, name in enumerate(self._order):
            if name in order:
                continue
            if name in self._open or name in self._sent or name in self._waiting:
                order.append(name)
            elif not reasoning and self._only_reasoning(name):
                before = next((item for item in reversed(self._order[:place]) if item in order), None)
                order.insert(order.index(before) + 1 if before is not None else 0, name)
            else:
                self._shown.pop(name, None)
        self._order = order
        self._messages = None

    def _only_reasoning(self, name: str) -> bool:
        found = self._shown[name]
        return found.reasoning is not None and found.content == "" and not found.tool_call_ids

    def _known_ids(self, told: Sequence[Told]) -> list[Told]:
        """Finds other names of messages that are shown: the echo of what was sent here (AG-56)."""
        ids = {self._alias.get(item.id, item.id) for item in told}
        waiting = [name for name in self._order if name in self._sent and name not in ids]
        for item in told:
            if item.role != "user" or item.id in self._shown or item.id in self._alias:
                continue
            echo = next((name for name in waiting if self._shown[name].text == plain(item.content)), None)
            if echo is not None:
                waiting.remove(echo)
                self._alias[item.id] = echo
        for item in told:
            if item.reasoning_id and item.reasoning_id in self._shown and item.id not in self._shown:
                self._alias[item.id] = item.reasoning_id
                self._answer_ids[item.reasoning_id] = item.id
        return list(told)

    def _reconciled(self, shown: str, item: Told, *, in_tail: bool, reasoning: bool) -> AgentMessage:
        found = self._shown.get(shown)
        ids = self._put_calls(item.calls)
        thought = item.reasoning
        if found is None:
            return self._from_snapshot(shown, item, ids, in_tail=in_tail)
        content = item.content
        if thought is None and (not reasoning or shown in self._open):
            thought = found.reasoning
        if shown in self._open:
            if (
                isinstance(content, str)
                and isinstance(found.content, str)
                and found.content.startswith(content)
            ):
                content = found.content  # a lagging snapshot never rewinds (AG-55)
            if thought is not None and (found.reasoning or "").startswith(thought):
                thought = found.reasoning
            ids = tuple(dict.fromkeys([*found.tool_call_ids, *ids]))
        fresh = replace(
            found,
            content=content,
            reasoning=thought,
            tool_call_ids=ids,
            name=item.name or found.name,
            extra={**found.extra, **item.extra} if item.extra else found.extra,
        )
        if fresh == found:
            return found
        if shown in self._open or found.role != "assistant":
            return fresh
        other = found.delivery.generation.partition("/")[0] != self.generation
        if in_tail and self.streaming_attempt and other:
            self._open[shown] = None
            return replace(fresh, delivery=self._streaming(), run_id=self.attempt_run)
        return replace(fresh, delivery=self._again(found.delivery))

    def _from_snapshot(self, shown: str, item: Told, ids: tuple[str, ...], *, in_tail: bool) -> AgentMessage:
        delivery = MessageDelivery(shown, "complete", "success")
        run_id = item.run_id
        if item.interrupted is not None:
            delivery = MessageDelivery(shown, "complete", item.interrupted)
        elif item.role == "assistant" and in_tail and self.streaming_attempt:
            for other in [name for name in self._open if self._shown[name].role == "assistant"]:
                self._complete(other, "success", None)
            delivery, run_id = self._streaming(), self.attempt_run
            self._open[shown] = None
        return AgentMessage(
            shown,
            item.role,
            delivery,
            item.content,
            item.tool_call_id,
            item.name,
            item.reasoning,
            citations=self._citations.get(shown, ()),
            tool_call_ids=ids,
            run_id=run_id,
            extra=item.extra,
        )


__all__ = ["Content", "Display", "Role", "Told", "ToldCall", "parsed", "plain"]
