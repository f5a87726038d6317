"""Plays the handed scenario fixtures on a conversation over the agent loop: each `op` is a method, each word of `expect` too.

A word that is not known here is an error, so that no part of a fixture is passed over.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fixtures.valid_history import problems
from pilothouse.conversation.controller import AgentController
from pilothouse.core.pairing import repair
from pilothouse.events import CallFinished, Cancelled, Failed, HistoryCompacted, Incomplete
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.config import Limits, LoopConfig, RetryPolicy
from pilothouse.loop.context import ToolContext
from pilothouse.loop.tools import tool
from pilothouse.messages import Model, Text
from pilothouse.providers.openai_chat.wire import to_wire
from pilothouse.responses import ModelRequest, ProviderEvent
from pilothouse.testing import FaultyJournal, Hold, ScriptedProvider, StepClock
from pilothouse.testing.scripted import Cut, call, failure

ROOT = Path(__file__).parent / "fixtures"
INDEX = {entry["id"]: entry for entry in json.loads((ROOT / "index.json").read_text("utf-8"))["fixtures"]}


def fixture_of(number: str) -> dict[str, Any]:
    return json.loads((ROOT / INDEX[number]["input"]).read_text("utf-8"))


def ops_of(number: str) -> list[dict[str, Any]]:
    return fixture_of(number)["ops"]


class Mailbox:
    """A provider whose responses are scripted while it is asked."""

    tag = "openai-chat"

    def __init__(self) -> None:
        self.default_model = Model("scripted", "openai", 200_000, 8_192)
        self.requests: list[ModelRequest] = []
        self.scripts: asyncio.Queue[Any] = asyncio.Queue()
        self.streams: list[ScriptedProvider] = []

    @property
    def open(self) -> int:
        return sum(stream.open for stream in self.streams)

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        self.requests.append(request)
        number = len(self.requests)
        script = await self.scripts.get()
        if callable(script):
            script = script(request)
        if isinstance(script, list):
            script = [_own_id(item, number) for item in script]
        stream = ScriptedProvider(script)
        self.streams.append(stream)
        events = stream.stream(request)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    async def aclose(self) -> None:
        return None


def _own_id(item: Any, number: int) -> Any:
    if getattr(item, "call_id", None) == "auto":
        return call(item.tool, item.arguments, call_id=f"auto-{number}")
    return item


class Driver:
    """One fixture on one conversation."""

    def __init__(
        self,
        ops: list[dict[str, Any]],
        *,
        gated: frozenset[str] = frozenset(),
        immediate: bool = True,
        **config: Any,
    ) -> None:
        self.ops = ops
        self.clock = StepClock()
        self.journal = FaultyJournal(MemoryJournal(), immediate=immediate)
        self.provider = Mailbox()
        self.tool_runs: Counter[str] = Counter()
        self.cancelled_tools: list[str] = []
        self.holds: dict[str, Hold] = {}
        self.replies: list[asyncio.Task[Any]] = []
        self.named: dict[str, asyncio.Task[Any]] = {}
        self.behaviours = {op["id"]: op for op in _flat(ops) if op["op"] == "tool"}
        self.gated = gated
        self.config = LoopConfig(
            **{"retry": RetryPolicy(base=0), "tool_timeout": 120.0, "cancel_grace": 1.5, **config}
        )
        self.late: dict[str, asyncio.Event] = {}
        self.agent = self.make()

    # The agent

    def make(self, thread_id: str | None = None) -> AgentController:
        return AgentController(
            self.provider,
            tools=self.tools(),
            config=self.config,
            journal=self.journal,
            clock=self.clock,
            thread_id=thread_id,
            stream_idle_timeout=60,
        )

    def tools(self) -> list[Any]:
        names = {one["name"] for op in _flat(self.ops) for one in _calls(op)} - {"serch_web"}
        return [self.tool(name) for name in sorted(names)]

    def tool(self, name: str) -> Any:
        @tool(name=name, description="Scripted.", approval=name in self.gated or None)
        async def scripted(ctx: ToolContext[Any], **arguments: Any) -> str:
            call_id = ctx.call_id
            self.tool_runs[call_id] += 1
            behaviour = self.behaviours.get(call_id, {})
            if behaviour.get("behaviour") in ("cooperative", "running", "ignore_cancel") or name in (
                "hang",
                "cooperative",
            ):
                await self.wait_in_tool(call_id, deaf=behaviour.get("behaviour") == "ignore_cancel")
            if name == "raises_cancelled":
                raise asyncio.CancelledError
            return behaviour.get("result", "same" if name == "read_file" else f"{name} ran")

        return scripted

    async def wait_in_tool(self, call_id: str, *, deaf: bool) -> None:
        late = self.late.setdefault(call_id, asyncio.Event())
        try:
            await late.wait()
        except asyncio.CancelledError:
            self.cancelled_tools.append(call_id)
            if not deaf:
                raise
            await late.wait()

    async def settle(self) -> None:
        for _ in range(60):
            await asyncio.sleep(0)

    async def play(self) -> None:
        try:
            for op in self.ops:
                await self.do(op)
        finally:
            for event in self.late.values():
                event.set()
            for hold in self.holds.values():
                hold.release()
            await self.agent.aclose()
            for task in self.replies:
                task.cancel()
            await asyncio.gather(*self.replies, return_exceptions=True)

    async def do(self, op: dict[str, Any]) -> None:
        given = {key: value for key, value in op.items() if key != "op"}
        await getattr(self, f"op_{op['op']}")(**given)
        await self.settle()

    # Ops

    async def op_submit(
        self, text: str, run: str = "", policy: str | None = None, max_steps: int | None = None
    ) -> None:
        if max_steps is not None:
            self.config = self.config.copy_with(limits=Limits(turns=max_steps))
            await self.agent.aclose()
            self.agent = self.make(None)
        busy = {"reject": "raise", "supersede": "supersede", "queue": "queue"}.get(policy or "", "raise")
        task = asyncio.create_task(self._send(text, busy))
        self.replies.append(task)
        if run:
            self.named[run] = task

    async def _send(self, text: str, busy: Any) -> Any:
        return await self.agent.send(text, when_busy=busy)

    async def op_provider(self, **spec: Any) -> None:
        if spec.get("status") == 0:
            for _ in range(self.config.retry.attempts):  # nothing was visible: it may be asked again
                self.provider.scripts.put_nowait([Cut(ConnectionResetError())])
            return
        if spec.get("error_row") == 0:
            self.provider.scripts.put_nowait(failure("context_overflow", "too long"))
            return
        items: list[Any] = list(spec.get("text_deltas", [spec["text"]] if "text" in spec else []))
        items += [
            call(one["name"], _filled(one["args"], len(self.provider.requests)), call_id=one["id"])
            for one in spec.get("tool_calls", [])
        ]
        then = spec.get("then", "")
        if then in ("hold_open", "ignore_close") or then.startswith("only_pings"):
            hold = self.holds[spec.get("run", str(len(self.holds)))] = Hold(deaf=then == "ignore_close")
            items.append(hold)
        elif then == "reset":
            items.append(Cut(ConnectionResetError()))
        self.provider.scripts.put_nowait(items)

    async def op_provider_ends(self, run: str) -> None:
        self.holds[run].release()

    async def op_tool(self, id: str, **_: Any) -> None:
        """Read when the driver was made."""

    async def op_tool_finishes_late(self, id: str) -> None:
        self.late[id].set()

    async def op_repeat(self, n: int, do: dict[str, Any]) -> None:
        for _ in range(n):
            if not self.agent.is_busy:
                break
            await self.op_provider(**do["provider"])
            await self.settle()

    async def op_wait_text(self, text: str) -> None:
        for _ in range(100):
            if self.agent.current_response_text == text:
                return
            await asyncio.sleep(0)
        raise AssertionError(self.agent.current_response_text)

    async def op_stop(self, run: str = "") -> None:
        self.agent.abort()

    async def op_reload(self) -> None:
        thread_id = self.agent.thread_id
        await self.agent.aclose()
        self.agent = self.make(thread_id)
        await self.agent.open()

    async def op_advance(self, ms: int) -> None:
        await self.clock.advance(ms / 1000)

    async def op_approve(self, id: str) -> None:
        self.approval = await self._answer(id, "approve")

    async def op_deny(self, id: str, reason: str) -> None:
        self.approval = await self._answer(id, "deny", reason)

    async def _answer(self, call_id: str, way: str, *arguments: Any) -> Any:
        runs = self.agent.runs
        run = self.agent.runs.run(await self.run_id())
        view = await run.inspect()
        request = next((request for request in view.requests if request.call_id == call_id), None)
        request_id = request.id if request is not None else self.old_requests[call_id]
        self.old_requests[call_id] = request_id
        assert runs is not None
        return await getattr(run, way)(request_id, *arguments)

    old_requests: dict[str, str] = {}

    async def run_id(self) -> str:
        head = await self.journal.thread_head(self.agent.thread_id)
        assert head is not None
        return head

    async def op_retry(self) -> None:
        self.replies.append(asyncio.create_task(self.agent.retry()))

    # Expectations

    async def op_expect(self, within_ms: int | None = None, **words: Any) -> None:
        if within_ms is not None:
            await self.clock.advance(within_ms / 1000)
        await self.settle()
        for word, value in words.items():
            await getattr(self, f"expect_{word}")(value)

    async def facts(self) -> list[Any]:
        runs = self.agent.runs
        return [record.fact for record in await runs.events(await self.run_id())]

    async def outcome(self) -> Any:
        return (await self.facts())[-1].outcome

    async def results(self) -> dict[str, CallFinished]:
        return {fact.call_id: fact for fact in await self.facts() if isinstance(fact, CallFinished)}

    async def expect_state(self, value: str) -> None:
        if value in ("unknown", "waiting"):
            view = await self.agent.runs.inspect(await self.run_id())
            assert view.status == value
            return
        assert self.agent.state.value == value

    async def expect_provider_connection(self, value: str) -> None:
        assert (value, self.provider.open) == ("closed", 0)

    async def expect_last_assistant(self, value: dict[str, str]) -> None:
        history = await self.agent.runs.history(await self.run_id())
        last = next(entry for entry in reversed(history) if entry.message.role == "assistant")
        assert (last.message.text, last.end, last.complete) == (value["text"], value["end"], False)

    async def expect_request_valid(self, value: bool) -> None:
        messages = self.provider.requests[-1].messages
        assert repair(messages)[1] is None
        assert list(problems("openai-chat", to_wire(messages))) == []

    async def expect_tool_result(self, value: dict[str, str]) -> None:
        for call_id in value:
            assert (await self.results())[call_id].outcome == "unknown"

    async def expect_late_result(self, value: str) -> None:
        ends = [fact for fact in await self.facts() if isinstance(fact, CallFinished)]
        assert len(ends) == 1

    async def expect_last_text(self, value: str) -> None:
        assert self.agent.messages[-1].text == value

    async def expect_end(self, value: str) -> None:
        outcome = await self.outcome()
        wanted = {
            "cancelled": Cancelled,
            "error": Failed,
            "max_steps": Incomplete,
            "stopped_by_breaker": Incomplete,
        }[value]
        assert isinstance(outcome, wanted)
        if isinstance(outcome, Incomplete):
            assert (outcome.reason, outcome.limit) == (
                ("limit", "turns") if value == "max_steps" else ("breaker", None)
            )

    async def expect_is_error(self, value: bool) -> None:
        assert (self.agent.state.value == "error") == value

    async def expect_error_kind(self, value: str) -> None:
        outcome = await self.outcome()
        assert outcome.kind == {"stalled": "idle_timeout"}.get(value, value)

    async def expect_user_stop(self, value: bool) -> None:
        assert isinstance(await self.outcome(), Cancelled) == value

    async def expect_pending(self, value: list[str]) -> None:
        view = await self.agent.runs.inspect(await self.run_id())
        assert [request.call_id for request in view.requests] == value

    async def expect_ran(self, value: list[str]) -> None:
        assert sorted(self.tool_runs) == value

    async def expect_tool_runs(self, value: dict[str, int]) -> None:
        assert {call_id: self.tool_runs[call_id] for call_id in value} == value

    async def expect_tool_runs_lte(self, value: int) -> None:
        assert self.tool_runs.total() <= value

    async def expect_paired(self, value: bool) -> None:
        history = await self.agent.runs.history(await self.run_id())
        assert repair([entry.message for entry in history if entry.complete])[1] is None

    async def expect_results_order(self, value: list[str]) -> None:
        history = await self.agent.runs.history(await self.run_id())
        assert [entry.message.call_id for entry in history if entry.message.role == "tool"] == value

    async def expect_results(self, value: dict[str, str]) -> None:
        results = await self.results()
        for call_id, words in value.items():
            text = "".join(part.text for part in results[call_id].content if isinstance(part, Text))
            outcome = results[call_id].outcome
            if words.startswith("error: no such tool"):
                assert outcome == "refused"
                assert "Available: get_tide" in text
            elif words == "timed out":
                assert results[call_id].reason == "timeout"
            elif words == "ran":
                assert outcome == "succeeded"
            else:
                assert text == words

    async def expect_result(self, value: dict[str, str]) -> None:
        for call_id, words in value.items():
            end = (await self.results())[call_id]
            if words.startswith("error"):
                assert (end.outcome, end.is_error) == ("failed", True)
            else:
                assert end.outcome in ("cancelled", "refused")

    async def expect_next_request(self, value: bool) -> None:
        assert len(self.provider.requests) == 2

    async def expect_provider_requests(self, value: int) -> None:
        assert len(self.provider.requests) == value

    async def expect_text(self, value: str) -> None:
        assert self.agent.partial is not None
        assert self.agent.partial.text == value

    async def expect_visible_text(self, value: str) -> None:
        assert self.agent.messages[-1].text == value

    async def expect_duplicated_prefix(self, value: bool) -> None:
        texts = [message.text for message in self.agent.messages]
        assert ("Hello Hello" in "".join(texts)) == value
        assert sum("Hello " in text for text in texts) == 1

    async def expect_compactions(self, value: int) -> None:
        assert sum(isinstance(fact, HistoryCompacted) for fact in await self.facts()) == value

    async def expect_pending_user_text_kept(self, value: bool) -> None:
        assert any(message.text == "long" for message in self.agent.messages)

    async def expect_step_events(self, value: int) -> None:
        assert sum(fact.kind == "turn_started" for fact in await self.facts()) == value

    async def expect_terminal_events(self, value: int) -> None:
        assert sum(fact.kind == "run_ended" for fact in await self.facts()) == value

    async def expect_crash(self, value: bool) -> None:
        assert not value

    async def expect_journal_has(self, value: list[str]) -> None:
        kinds = [(fact.kind, getattr(fact, "call_id", "")) for fact in await self.facts()]
        for entry in value:
            what, call_id = entry.split()
            assert ("call_started" if what == "call" else "call_finished", call_id) in kinds

    async def expect_run(self, value: str) -> None:
        if value == "continues":
            assert len(self.provider.requests) == 2

    async def expect_running(self, value: bool) -> None:
        assert self.agent.is_busy == value

    async def expect_active_run(self, value: str) -> None:
        assert self.named[value].result() is self.agent.reply

    async def expect_stop_enabled(self, value: bool) -> None:
        assert self.agent.is_streaming == value

    async def expect_status(self, value: int) -> None:
        assert self.approval.state == "rejected"

    async def expect_tools_run(self, value: int) -> None:
        assert self.tool_runs.total() == value


def _flat(ops: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for op in ops:
        out.append(op)
        inner = op.get("do")
        if isinstance(inner, dict):
            out.append({"op": "provider", **inner.get("provider", {})})
    return out


def _calls(op: dict[str, Any]) -> list[dict[str, Any]]:
    return op.get("tool_calls", []) if op["op"] == "provider" else []


def _filled(arguments: dict[str, Any], number: int) -> dict[str, Any]:
    return {key: number if value == "{i}" else value for key, value in arguments.items()}
