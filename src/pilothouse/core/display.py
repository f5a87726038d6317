"""The conversation as a reader sees it while it is being made: messages with their delivery, and tool calls.

Both ends of the contract are drawn with it: what our own runs tell, and what an AG-UI endpoint tells. Theory of
operation: each attempt has a *generation*. A message that an attempt opens streams until the next assistant message
opens or the attempt ends; then it is complete, with one outcome that never changes. Deltas are appended as they come;
only whole texts (a final message, a snapshot) are compared. An id once shown stays: other ids that the backend uses for
the same message are aliases of it.

Values are immutable and replaced; a message that did not change is the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from ..messages import JSON, Part, Unset
from ..projection import EMPTY, AgentMessage, AgentToolCall, Citation, Delivered, MessageDelivery

Role = Literal["user", "assistant", "system", "tool"]
Content = str | tuple[Part, ...]

_NOT_RUN: Final = frozenset({"refused", "cancelled", "unknown", "failed"})


class ToldCall(NamedTuple):
    """A call as a whole message tells it."""

    id: str
    name: str
    args_text: str


class Told(NamedTuple):
    """A whole message as a backend tells it. `reasoning_id`: the id under which its reasoning was told."""

    id: str
    role: Role
    content: Content = ""
    reasoning: str | None = None
    reasoning_id: str = ""
    calls: tuple[ToldCall, ...] = ()
    tool_call_id: str | None = None
    error: str | None = None
    name: str | None = None
    run_id: str | None = None
    extra: Mapping[str, JSON] = EMPTY
    interrupted: Delivered | None = None
    """How it ended where it is not whole."""
    ledger: str | None = None


class Display:
    """Messages and calls of one agent or subagent.

    Args:
        now: seconds of this client's clock, for how long reasoning took.

    Attributes:
        generation: of the attempt that is told now; empty before the first.
        attempt_run: the run id that its messages carry.
        continues: the attempt goes on with the message that was last before it (AG-58).
        streaming_attempt: an attempt is being told; only then can the end of a snapshot belong to it.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.generation = ""
        self.attempt_run: str | None = None
        self.continues = False
        self.streaming_attempt = False
        self._now = now
        self._order: list[str] = []
        self._shown: dict[str, AgentMessage] = {}
        self._calls: dict[str, AgentToolCall] = {}
        self._buffers: dict[str, list[str]] = {}
        self._alias: dict[str, str] = {}  # a backend's id -> the id that is shown
        self._answer_ids: dict[str, str] = {}  # shown id -> the id of the answer, where it is another one
        self._open: dict[str, None] = {}
        self._waiting: dict[
            str, None
        ] = {}  # messages of the user that no run took in yet: they stand at the end
        self._sent: set[str] = set()  # user messages of this attempt: no snapshot takes them away
        self._thinking: dict[str, float] = {}  # shown id -> when its reasoning began
        self._loose = ""  # a message that has reasoning and waits for its answer
        self._messages: tuple[AgentMessage, ...] | None = ()
        self._call_values: tuple[AgentToolCall, ...] | None = ()
        self._citations: dict[str, tuple[Citation, ...]] = {}

    # Reading

    @property
    def messages(self) -> tuple[AgentMessage, ...]:
        """All messages in display order."""
        if self._messages is None:
            self._messages = tuple([self._shown[name] for name in self._order])
        return self._messages

    @property
    def calls(self) -> tuple[AgentToolCall, ...]:
        """All calls in order of arrival."""
        if self._call_values is None:
            self._call_values = tuple(self._calls.values())
        return self._call_values

    def get(self, message_id: str) -> AgentMessage | None:
        """The message of an id, the shown one or another name of it."""
        return self._shown.get(self._alias.get(message_id, message_id))

    def call(self, call_id: str) -> AgentToolCall | None:
        """The call of an id."""
        return self._calls.get(call_id)

    def told_ids(self, shown_id: str) -> tuple[str, str]:
        """The backend's ids of a message: of the answer, and of its reasoning (empty where that has none)."""
        answer = self._answer_ids.get(shown_id)
        if answer is not None:
            return answer, shown_id
        return shown_id, ""

    @property
    def streaming(self) -> bool:
        """Whether a message is open."""
        return bool(self._open)

    # Attempts

    def begin(self, generation: str, run_id: str | None = None, *, continues: bool = False) -> None:
        """Another attempt begins; what an earlier one left open is the caller's to end first."""
        self.generation, self.attempt_run, self.continues = generation, run_id, continues
        self.streaming_attempt = True
        self._loose = ""
        self._sent = set()
        self._buffers = {}

    def end(self, outcome: Delivered, reason: str | None = None) -> None:
        """Everything that is open is complete with this outcome."""
        for name in list(self._open):
            self._complete(name, outcome, reason)
        for name in list(self._thinking):
            self._stop_thinking(name)
        self._loose = ""
        self.streaming_attempt = False

    def start_over(self) -> None:
        """The backend tells this attempt again from its start: what it had shown is taken away."""
        generation = self.generation
        keep = [
            name
            for name in self._order
            if name in self._sent
            or self._shown[name].delivery.generation != generation
            or self._shown[name].role == "user"
        ]
        for name in set(self._order) - set(keep):
            del self._shown[name]
            self._open.pop(name, None)
        self._order = keep
        self._open, self._thinking, self._loose, self._buffers = {}, {}, "", {}
        self._messages = None

    def clear(self) -> None:
        """Another conversation: nothing is shown."""
        self.__init__(self._now)  # type: ignore[misc]

    # Messages of this side

    def add_user(self, message_id: str, content: Content, *, sent: bool = True, waits: bool = False) -> None:
        """Shows a message of the user. One that `waits` for its turn stays behind all others until `release`."""
        static = MessageDelivery(message_id, "complete", "success")
        self._put(AgentMessage(message_id, "user", static, content))
        if waits:
            self._waiting[message_id] = None
        if sent:
            self._sent.add(message_id)

    def mark_sent(self, message_id: str) -> None:
        """A message of the user belongs to this attempt: no snapshot of it takes the message away."""
        self._sent.add(message_id)

    def release(self, message_id: str) -> None:
        """A waiting message takes its place: behind what was said so far."""
        if message_id in self._waiting:
            del self._waiting[message_id]
            self._order.remove(message_id)
            self._order.insert(len(self._order) - len(self._waiting), message_id)
            self._messages = None

    def remove(self, message_id: str) -> None:
        """Takes a message back."""
        self._waiting.pop(message_id, None)
        if self._shown.pop(message_id, None) is not None:
            self._order.remove(message_id)
            self._open.pop(message_id, None)
            self._sent.discard(message_id)
            self._messages = None

    def cut(self, index: int) -> None:
        """Keeps the first messages only."""
        for name in self._order[index:]:
            del self._shown[name]
            self._open.pop(name, None)
        self._order = self._order[:index]
        kept = {call_id for message in self._shown.values() for call_id in message.tool_call_ids}
        dropped = [
            name for name, call in self._calls.items() if name not in kept and call.subagent_id is None
        ]
        for name in dropped:
            del self._calls[name]
        self._messages = self._call_values = None

    # A message that is being told

    def open(self, message_id: str, role: Role = "assistant", name: str | None = None) -> str:
        """A message begins, or goes on; returns the id under which it is shown."""
        shown = self._alias.get(message_id, message_id)
        found = self._shown.get(shown)
        if role != "assistant":
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

    def think(self, message_id: str, delta: str = "") -> None:
        """Reasoning of a message: of an open one, or of the answer that is to follow (AG-200)."""
        shown = self._alias.get(message_id, message_id)
        found = self._shown.get(shown)
        if found is None or (shown not in self._open and found.delivery.generation != self.generation):
            self.open(message_id)
            self._loose = shown
            found = self._shown[shown]
        elif found.content == "" and not found.tool_call_ids and shown in self._open:
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

    def _stop_thinking(self, shown: str) -> None:
        began = self._thinking.pop(shown, None)
        found = self._shown.get(shown)
        if began is not None and found is not None:
            took = max(self._now() - began, 0.0) + (found.reasoning_duration or 0.0)
            self._shown[shown] = replace(found, reasoning_duration=took)
            self._messages = None

    def complete(self, message_id: str, outcome: Delivered = "success", reason: str | None = None) -> None:
        """One message is complete."""
        self._complete(self._alias.get(message_id, message_id), outcome, reason)

    def _complete(self, shown: str, outcome: Delivered, reason: str | None) -> None:
        if shown not in self._open:
            return
        del self._open[shown]
        self._stop_thinking(shown)
        found = self._shown[shown]
        if found.delivery.phase == "complete":
            return  # a rewrite of one that was complete: the first outcome stays
        done = MessageDelivery(found.delivery.generation, "complete", outcome, reason)
        self._shown[shown] = replace(found, delivery=done)
        self._messages = None

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

    def _own_call(self, parent: str, call_id: str) -> None:
        found = self.get(parent)
        if found is not None and call_id not in found.tool_call_ids:
            self._shown[found.id] = replace(found, tool_call_ids=(*found.tool_call_ids, call_id))
            self._messages = None

    def call_args(self, call_id: str, delta: str) -> None:
        """A piece of its argument text."""
        found = self._calls.get(call_id)
        if found is None:
            return
        pieces = self._buffers.setdefault(call_id, [])
        pieces.append(delta)
        text = "".join(pieces)
        self._calls[call_id] = replace(found, args_text=text, args=_object(text, found.args))
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
                args=_object(call.args_text, EMPTY),
                status=status,
            )
            if fresh != self._calls.get(call.id):
                self._calls[call.id] = fresh
                self._call_values = None
        return tuple(ids)

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
            if (
                name in self._open
                or name in self._sent
                or name in self._waiting
                or (not reasoning and self._only_reasoning(name))
            ):
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
        if in_tail and self.streaming_attempt:
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

    def cite(self, citations: Mapping[str, tuple[Citation, ...]]) -> None:
        """Citations by message id, also for messages that come later; twice is once (AG-208)."""
        for message_id, told in citations.items():
            shown = self._alias.get(message_id, message_id)
            self._citations[shown] = told
            found = self._shown.get(shown)
            if found is not None and found.citations != told:
                self._shown[shown] = replace(found, citations=told)
                self._messages = None

    # Small things

    def _put(self, message: AgentMessage) -> None:
        if message.id not in self._shown:
            self._order.insert(len(self._order) - len(self._waiting), message.id)
            if (cited := self._citations.get(message.id)) is not None:
                message = replace(message, citations=cited)
        self._shown[message.id] = message
        self._messages = None

    def _streaming(self) -> MessageDelivery:
        return MessageDelivery(self.generation, "streaming")

    def _again(self, before: MessageDelivery) -> MessageDelivery:
        """A rewrite of a completed message: complete, under a new generation (AG-54)."""
        name, _, number = before.generation.partition("/")
        return MessageDelivery(f"{name}/{int(number or 1) + 1}", "complete", before.outcome, before.reason)


def _object(text: str, before: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """The text as an object; while it is none, the last good value (AG-170)."""
    if not text.strip():
        return before
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return before
    return value if isinstance(value, dict) else before


def parsed(result: JSON | Unset) -> JSON | Unset:
    """A text that is JSON, as its value; any other as it is (AG-171)."""
    if not isinstance(result, str):
        return result
    try:
        return msgspec.json.decode(result)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return result


def plain(content: Content) -> str:
    """The text of a content."""
    return content if isinstance(content, str) else "".join([getattr(part, "text", "") for part in content])


__all__ = ["Display", "Told", "ToldCall", "parsed", "plain"]
