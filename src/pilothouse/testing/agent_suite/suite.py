"""What every agent must do, whatever is behind it (agent-contract §5).

```python
class TestMine(AgentConformance):
    def driver(self):
        return MyDriver()          # an AgentDriver: makes agents, and says what their backend does next
```

No plug-in is needed: each test runs an event loop of its own, and warnings are errors in it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from msgspec import UNSET

from ...agents.signals import watch
from ...cancel import Token
from ...errors import AgentBusy, AgentClosed, InvalidTarget, RunConflict, UsageError
from ...projection import MessageDelivery
from ..scripted import Hold
from .checking import check, refused
from .driving import AgentDriver, Fail, Use, consistent, say, shown, texts, think, until
from .waits import WaitChecks


class AgentConformance(WaitChecks):
    """Subclass it and define `driver`."""

    # Shape

    @check()
    async def test_its_shape(self, driver: AgentDriver) -> None:
        """AG-2, AG-10, AG-20 … AG-28: values are there before the first run; optional members work or are None."""
        agent = await driver.make()
        assert agent.messages.get() == agent.messages() == ()
        assert agent.status.get() == "idle"
        assert agent.is_loading.get() is False
        assert agent.error.get() is None
        assert agent.tool_calls.get() == ()
        assert dict(agent.state.get()) == {}
        for name in ("interrupt", "is_input_blocked", "subagents", "usage"):
            signal = getattr(agent, name)
            assert signal is None or signal.get() in (None, False) or dict(signal.get()) == {}
        assert agent.check_status is None or callable(agent.check_status)
        assert await agent.stop() == "nothing"
        assert await agent.retry() == "nothing"

    @check()
    async def test_values_stay_and_actions_refuse_after_the_close(self, driver: AgentDriver) -> None:
        """AG-18."""
        driver.plan(say("Hello"))
        agent = await driver.make()
        await agent.submit("hi")
        await agent.aclose()  # type: ignore[attr-defined]
        assert texts(agent) == [("user", "hi"), ("assistant", "Hello")]
        refused(AgentClosed, lambda: agent.submit("more"))
        refused(AgentClosed, agent.stop)
        refused(AgentClosed, agent.retry)
        refused(AgentClosed, lambda: agent.regenerate(1))

    # Calling

    @check()
    async def test_what_a_submission_changes_is_there_when_the_call_returns(
        self, driver: AgentDriver
    ) -> None:
        """AG-13, AG-40, AG-70: before the first await."""
        driver.plan(say("Hello"))
        agent = await driver.make()
        op = agent.submit("hi")
        assert agent.status.get() == "running"
        assert agent.is_loading.get() is True
        assert texts(agent) == [("user", "hi")]
        mine = agent.messages.get()[0]
        assert op.run_id is not None
        assert not op.done()
        assert await op == "success"
        assert await op == "success"  # as often as one likes
        assert agent.messages.get()[0] is mine  # its id and identity stay (AG-3, AG-56)

    @check()
    async def test_a_run_ends_as_success(self, driver: AgentDriver) -> None:
        """AG-21, AG-22, AG-50, AG-59, AG-75: complete, with the text, once the operation is done."""
        driver.plan(say("Hel", "lo"))
        agent = await driver.make()
        with consistent(agent) as wrong:
            assert await agent.submit("hi") == "success"
        assert wrong == []
        answer = agent.messages.get()[-1]
        assert (answer.role, answer.text, answer.delivery.phase) == ("assistant", "Hello", "complete")
        assert answer.delivery.outcome == "success"
        assert (agent.status.get(), agent.is_loading.get(), agent.error.get()) == ("idle", False, None)

    @check()
    async def test_text_streams(self, driver: AgentDriver) -> None:
        """AG-50: a streaming message has no outcome, and its text is what has come."""
        hold = Hold()
        driver.plan(say("Hel"), hold, say("lo"))
        agent = await driver.make()
        op = agent.submit("hi")
        await shown(agent, "Hel")
        streaming = agent.messages.get()[-1]
        assert (streaming.delivery.phase, streaming.delivery.outcome) == ("streaming", None)
        hold.release()
        await op
        done = agent.messages.get()[-1]
        assert done.id == streaming.id
        assert done.text == "Hello"
        assert done.delivery.generation == streaming.delivery.generation

    @check("reasoning")
    async def test_reasoning_is_its_own_text_of_the_same_message(self, driver: AgentDriver) -> None:
        """AG-200."""
        driver.plan(think("hm", "…"), say("Yes"))
        agent = await driver.make()
        await agent.submit("hi")
        assert [message.role for message in agent.messages.get()] == ["user", "assistant"]
        answer = agent.messages.get()[-1]
        assert (answer.text, answer.reasoning) == ("Yes", "hm…")
        assert answer.reasoning_duration is None or answer.reasoning_duration >= 0

    @check("tools")
    async def test_a_tool_call_and_its_result(self, driver: AgentDriver) -> None:
        """AG-24, AG-53, AG-171, AG-201: one call, its result behind its message, the earlier step a success."""
        driver.plan(say("Let me see."), Use("look", {"at": "sky"}, '{"blue": true}'), say("Blue."))
        agent = await driver.make()
        assert await agent.submit("why?") == "success"
        (call,) = agent.tool_calls.get()
        assert (call.name, dict(call.args), call.status) == ("look", {"at": "sky"}, "complete")
        assert call.result == {"blue": True}
        messages = agent.messages.get()
        assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
        assert messages[1].tool_call_ids == (call.id,)
        assert messages[2].tool_call_id == call.id
        assert {message.delivery.outcome for message in messages} == {"success"}

    @check("usage")
    async def test_usage_is_of_the_run_that_ended(self, driver: AgentDriver) -> None:
        """AG-31: None while a run is in flight."""
        hold = Hold()
        driver.plan(say("one"))
        driver.plan(hold, say("two"))
        agent = await driver.make()
        assert agent.usage is not None
        await agent.submit("1")
        first = agent.usage.get()
        assert first is not None
        assert first.total is not None or first.input is not None
        op = agent.submit("2")
        assert agent.usage.get() is None
        hold.release()
        await op
        assert agent.usage.get() is not None

    @check()
    async def test_an_operation_need_not_be_awaited(self, driver: AgentDriver) -> None:
        """AG-16: no warning arises from ignoring one."""
        driver.plan(say("Hello"))
        agent = await driver.make()
        agent.submit("hi")
        await until(agent, "idle")
        assert texts(agent)[-1] == ("assistant", "Hello")

    @check()
    async def test_whoever_waits_may_leave(self, driver: AgentDriver) -> None:
        """AG-17: waiting is watching; with `stop_on_cancel` leaving is an order."""
        hold = Hold()
        driver.plan(say("a"), hold, say("b"))
        driver.plan(say("c"), Hold(), say("never"))
        agent = await driver.make()
        op = agent.submit("1")
        await _left(op)
        assert agent.status.get() == "running"
        hold.release()
        assert await op == "success"
        op = agent.submit("2", stop_on_cancel=True)
        await shown(agent, "c")
        await _left(op)
        assert agent.status.get() == "idle"
        assert await op == "aborted"

    @check()
    async def test_guards_raise_in_the_call(self, driver: AgentDriver) -> None:
        """AG-14, AG-112, §4: refused at once, nothing changed."""
        driver.plan(say("Hello"))
        agent = await driver.make()
        refused(UsageError, lambda: agent.submit(""))
        refused(UsageError, lambda: agent.submit([]))
        refused(TypeError, lambda: agent.submit("x", state=[1]))  # type: ignore[arg-type]
        refused(UsageError, lambda: agent.submit("x", when_busy="whenever"))  # type: ignore[arg-type]
        assert texts(agent) == []
        await agent.submit("hi")
        before = agent.messages.get()
        for target in (0, -1, 9, "no such id"):
            refused(InvalidTarget, lambda target=target: agent.regenerate(target))  # type: ignore[misc]
        assert agent.messages.get() is before

    @check()
    async def test_another_thread_may_read_and_not_act(self, driver: AgentDriver) -> None:
        """AG-9."""
        driver.plan(say("Hello"))
        agent = await driver.make()
        await agent.submit("hi")
        found: list[object] = []

        def other() -> None:
            found.append(agent.messages.get())
            try:
                agent.submit("more")
            except UsageError as error:
                found.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert found[0] is agent.messages.get()
        assert "call_soon_threadsafe" in str(found[1])

    # Signals

    @check()
    async def test_untouched_messages_keep_their_identity(self, driver: AgentDriver) -> None:
        """AG-3."""
        driver.plan(say("one"))
        driver.plan(say("t", "w", "o"))
        agent = await driver.make()
        await agent.submit("1")
        before = agent.messages.get()
        await agent.submit("2")
        assert all(a is b for a, b in zip(before, agent.messages.get(), strict=False))

    @check()
    async def test_a_failing_subscriber_changes_nothing(self, driver: AgentDriver) -> None:
        """AG-6: it is logged, the others are told, the run goes on."""
        driver.plan(say("Hello"))
        agent = await driver.make()
        seen: list[str] = []

        def fail(_: object) -> None:
            raise RuntimeError("a subscriber's own")

        logger = logging.getLogger("pilothouse.agents")
        before = logger.disabled
        logger.disabled = True
        try:
            agent.status.subscribe(fail)
            agent.status.subscribe(seen.append)
            assert await agent.submit("hi") == "success"
        finally:
            logger.disabled = before
        assert seen == ["running", "idle"]

    @check()
    async def test_a_callback_may_act(self, driver: AgentDriver) -> None:
        """AG-7: what it starts is told after the batch in progress, in order."""
        driver.plan(say("one"))
        driver.plan(say("two"))
        agent = await driver.make()
        seen: list[str] = []
        ops: list[Any] = []
        begun = asyncio.Event()

        def once_more(status: str) -> None:
            if status == "idle" and not ops:
                ops.append(agent.submit("2"))
                begun.set()

        agent.status.subscribe(once_more)
        agent.status.subscribe(seen.append)
        await agent.submit("1")
        await begun.wait()
        assert await ops[0] == "success"
        assert seen == ["running", "idle", "running", "idle"]
        assert texts(agent)[-1] == ("assistant", "two")

    @check()
    async def test_subscriptions_end(self, driver: AgentDriver) -> None:
        """AG-4: no call at once; the returned function may be called any number of times."""
        driver.plan(say("one"))
        driver.plan(say("two"))
        agent = await driver.make()
        seen: list[str] = []
        leave = agent.status.subscribe(seen.append)
        assert seen == []
        await agent.submit("1")
        leave()
        leave()
        await agent.submit("2")
        assert seen == ["running", "idle"]

    @check()
    async def test_watching_gives_the_latest_and_no_backlog(self, driver: AgentDriver) -> None:
        """AG-8, §2: a slow watcher skips values."""
        driver.plan(say(*"abcdefghij"))
        agent = await driver.make()
        watching = watch(agent.messages)
        assert await anext(watching) == ()
        await agent.submit("hi")
        latest = await anext(watching)
        assert latest is agent.messages.get()
        await watching.aclose()  # type: ignore[attr-defined]

    # Busy, keys, tokens

    @check()
    async def test_a_busy_agent_refuses_by_default(self, driver: AgentDriver) -> None:
        """AG-78: nothing lost; `drop` changes nothing."""
        hold = Hold()
        driver.plan(say("one"), hold)
        agent = await driver.make()
        op = agent.submit("1")
        await shown(agent, "one")
        before = agent.messages.get()
        refused(AgentBusy, lambda: agent.submit("2"))
        refused(AgentBusy, lambda: agent.regenerate(1))
        assert await agent.submit("2", when_busy="drop") == "nothing"
        assert await agent.retry() == "nothing"  # AG-100
        assert agent.messages.get() == before
        hold.release()
        assert await op == "success"

    @check("queue")
    async def test_a_queued_submission_runs_next(self, driver: AgentDriver) -> None:
        """AG-78: shown behind what streams, a run of its own after the live one."""
        hold = Hold()
        driver.plan(say("one"), hold, say("!"))
        driver.plan(say("two"))
        agent = await driver.make()
        first = agent.submit("1")
        await shown(agent, "one")
        second = agent.submit("2", when_busy="queue")
        assert texts(agent)[-1] == ("user", "2")
        hold.release()
        assert await first == "success"
        assert await second == "success"
        assert texts(agent) == [("user", "1"), ("assistant", "one!"), ("user", "2"), ("assistant", "two")]

    @check("queue")
    async def test_a_newer_submission_may_take_the_place(self, driver: AgentDriver) -> None:
        """AG-43, AG-78, AG-205, RC-86: the partial stays, marked; the old operation ends as interrupted."""
        driver.plan(say("one"), Hold(), say("never"))
        driver.plan(say("two"))
        agent = await driver.make()
        first = agent.submit("1")
        await shown(agent, "one")
        with consistent(agent) as wrong:
            second = agent.submit("2", when_busy="supersede")
            assert agent.status.get() == "running"
            assert await first == "interrupted"
            assert await second == "success"
        assert wrong == []
        partial = agent.messages.get()[1]
        assert (partial.text, partial.delivery.outcome) == ("one", "interrupted")
        assert texts(agent)[-1] == ("assistant", "two")

    @check()
    async def test_a_key_stands_for_one_submission(self, driver: AgentDriver) -> None:
        """AG-77."""
        driver.plan(say("Hello"))
        agent = await driver.make()
        first = agent.submit("hi", key="k1")
        assert agent.submit("hi", key="k1") is first
        refused(RunConflict, lambda: agent.submit("other", key="k1"))
        assert await first == "success"
        assert agent.submit("hi", key="k1") is first
        assert texts(agent) == [("user", "hi"), ("assistant", "Hello")]

    @check()
    async def test_going_on_adds_no_message(self, driver: AgentDriver) -> None:
        """AG-73: nothing given is a run of its own, for the words that have no answer yet."""
        driver.plan(say("one"), Hold())
        driver.plan(say("two"))
        agent = await driver.make()
        agent.submit("1")
        await shown(agent, "one")
        await agent.stop()
        assert await agent.submit() == "success"
        assert [item for item in texts(agent) if item[0] == "user"] == [("user", "1")]
        assert texts(agent)[-1] == ("assistant", "two")

    @check()
    async def test_cancel_tokens(self, driver: AgentDriver) -> None:
        """AG-76: set before, nothing is dispatched; set later, that run is stopped."""
        driver.plan(say("one"), Hold(), say("never"))
        agent = await driver.make()
        token = Token()
        token.set("no")
        assert await agent.submit("0", cancel=token) == "aborted"
        assert texts(agent) == []
        token = Token()
        op = agent.submit("1", cancel=token)
        await shown(agent, "one")
        token.set("enough")
        assert await op == "aborted"
        assert agent.error.get() is None
        assert agent.messages.get()[-1].delivery.outcome == "aborted"

    # Stop

    @check()
    async def test_stop_is_over_when_it_returns(self, driver: AgentDriver) -> None:
        """AG-90, AG-92, AG-96: aborted, idle, no error, text kept; the next submission works."""
        driver.plan(say("partial"), Hold(), say("never"))
        driver.plan(say("fine"))
        agent = await driver.make()
        op = agent.submit("1")
        await shown(agent, "partial")
        with consistent(agent) as wrong:
            stopping = agent.stop()
            assert (agent.status.get(), agent.is_loading.get(), agent.error.get()) == ("idle", False, None)
            last = agent.messages.get()[-1]
            assert (last.text, last.delivery.outcome) == ("partial", "aborted")
            assert await stopping in ("stopped", "will_stop")
            assert await op == "aborted"
            assert await agent.submit("2") == "success"
        assert wrong == []
        assert texts(agent)[-2:] == [("user", "2"), ("assistant", "fine")]
        assert agent.messages.get()[1] == last

    @check()
    async def test_stop_before_anything_happened(self, driver: AgentDriver) -> None:
        """AG-93: before the first byte; nothing appears later."""
        driver.plan(say("late"))
        driver.plan(say("fine"))
        agent = await driver.make()
        op = agent.submit("1")
        agent.stop()
        assert agent.status.get() == "idle"
        assert await op == "aborted"
        assert all(message.role == "user" for message in agent.messages.get())
        assert agent.error.get() is None

    @check()
    async def test_a_late_stop_touches_nothing(self, driver: AgentDriver) -> None:
        """AG-92, AG-93: a run that has an outcome keeps it."""
        driver.plan(say("done"))
        agent = await driver.make()
        assert await agent.submit("1") == "success"
        assert await agent.stop() == "nothing"
        assert agent.messages.get()[-1].delivery.outcome == "success"

    # Failure, retry, regenerate

    @check()
    async def test_a_failure_is_told_on_error_and_by_the_outcome(self, driver: AgentDriver) -> None:
        """AG-15, AG-23, AG-41, AG-66: text kept, marked; the next run clears the error."""
        driver.plan(say("some"), Fail("it broke"))
        driver.plan(say("fine"))
        agent = await driver.make()
        with consistent(agent) as wrong:
            assert await agent.submit("1") == "error"
            error = agent.error.get()
            assert error is not None
            assert agent.status.get() == "error"
            assert error.retryable
            assert error.kind == "server"
            assert "it broke" in str(error)
            last = agent.messages.get()[-1]
            assert (last.text, last.delivery.outcome) == ("some", "error")
            op = agent.submit("2")
            assert agent.error.get() is None
            assert await op == "success"
        assert wrong == []

    @check()
    async def test_retry_repeats_without_a_second_message(self, driver: AgentDriver) -> None:
        """AG-100, AG-101: a new generation, the same message of the user; nothing left to retry afterwards."""
        driver.plan(Fail("it broke"))
        driver.plan(say("fine"))
        agent = await driver.make()
        assert await agent.submit("1") == "error"
        op = agent.retry()
        assert agent.status.get() == "running"
        assert agent.error.get() is None
        assert await op == "success"
        assert texts(agent) == [("user", "1"), ("assistant", "fine")]
        assert await agent.retry() == "nothing"

    @check()
    async def test_retry_after_a_stop(self, driver: AgentDriver) -> None:
        """AG-81: what was provisional is gone from the path."""
        driver.plan(say("partial"), Hold(), say("never"))
        driver.plan(say("whole"))
        agent = await driver.make()
        agent.submit("1")
        await shown(agent, "partial")
        await agent.stop()
        assert await agent.retry() == "success"
        assert texts(agent) == [("user", "1"), ("assistant", "whole")]

    @check()
    async def test_regenerate_answers_anew(self, driver: AgentDriver) -> None:
        """AG-110, AG-111: by index or id; no message is added, what follows goes."""
        driver.plan(say("one"))
        driver.plan(say("two"))
        driver.plan(say("anew"))
        agent = await driver.make()
        await agent.submit("1")
        await agent.submit("2")
        target = agent.messages.get()[1]
        op = agent.regenerate(target.id)
        assert texts(agent) == [("user", "1")]
        assert agent.status.get() == "running"
        assert await op == "success"
        assert texts(agent) == [("user", "1"), ("assistant", "anew")]
        fresh = agent.messages.get()[-1]
        assert fresh.delivery.generation != target.delivery.generation

    @check("tools")
    async def test_regenerate_takes_the_nearest_message_of_the_user(self, driver: AgentDriver) -> None:
        """AG-111: in a tool loop what lies between is discarded too."""
        driver.plan(Use("look", {"at": "sky"}, "blue"), say("Blue."))
        driver.plan(say("anew"))
        agent = await driver.make()
        await agent.submit("1")
        assert await agent.regenerate(len(agent.messages.get()) - 1) == "success"
        assert texts(agent) == [("user", "1"), ("assistant", "anew")]

    @check("history")
    async def test_two_agents_on_one_thread_show_the_same(self, driver: AgentDriver) -> None:
        """AG-44, AG-52, AG-181, AG-182: also one that comes later; what it loads is static."""
        driver.plan(say("one"))
        agent = await driver.make()
        await agent.submit("1")
        other = await driver.another()
        assert texts(other) == texts(agent)
        assert [item.id for item in other.messages.get()] == [item.id for item in agent.messages.get()]
        for item in other.messages.get():
            assert item.delivery == MessageDelivery(item.id, "complete", "success")

    @check()
    async def test_events_are_there_even_if_none_ever_comes(self, driver: AgentDriver) -> None:
        """AG-1."""
        driver.plan(say("one"))
        agent = await driver.make()
        leave = agent.events.subscribe(lambda _: None)
        await agent.submit("1")
        leave()
        leave()
        assert aiter(agent.events) is not None
        assert all(call.result is not UNSET for call in agent.tool_calls.get())


async def _left(op: Any) -> None:
    """Somebody waits for an operation and leaves."""

    async def wait() -> None:
        await op

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()


__all__ = ["AgentConformance"]
