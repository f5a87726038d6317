"""Checks of the suite about runs that wait: interrupts, client tools, outcomes that nobody told."""

from __future__ import annotations

from typing import Any

from ...agent_errors import RecoveryRequired, RequestPending, ResumeInvalid, StaleInterrupt
from ...errors import AgentBusy, InvalidTarget
from ...messages import ToolSpec
from ...projection import InterruptAnswer, Ok
from .checking import check, refused
from .driving import AgentDriver, Ask, HandOver, Lose, consistent, say, texts

_SHOW = ToolSpec("show", "Shows it.", {"type": "object", "properties": {"what": {"type": "string"}}})


class WaitChecks:
    """Part of `AgentConformance`."""

    def driver(self) -> AgentDriver:
        """A fresh driver, one a test."""
        raise NotImplementedError

    @check("interrupts")
    async def test_a_pause_is_idle_with_a_request(self, driver: AgentDriver) -> None:
        """AG-42, AG-79, AG-140: no error, not loading; the composer is blocked, nothing is lost."""
        driver.plan(Ask())
        agent = await driver.make()
        assert agent.interrupt is not None
        assert agent.is_input_blocked is not None
        with consistent(agent) as wrong:
            assert await agent.submit("1") == "paused"
        assert wrong == []
        assert (agent.status.get(), agent.is_loading.get(), agent.error.get()) == ("idle", False, None)
        asked = agent.interrupt.get()
        assert asked is not None
        assert asked.resumable
        assert agent.is_input_blocked.get() is True
        before = agent.messages.get()
        error = refused(RequestPending, lambda: agent.submit("2"))
        assert asked.id in str(error)
        refused(RequestPending, lambda: agent.regenerate(0))
        assert agent.messages.get() is before

    @check("interrupts")
    async def test_answers_are_checked_before_anything_changes(self, driver: AgentDriver) -> None:
        """AG-27, AG-131 … AG-133."""
        driver.plan(Ask())
        driver.plan(say("done"))
        agent: Any = await driver.make()
        await agent.submit("1")
        asked = agent.interrupt.get()
        batch = agent.interrupts
        right = InterruptAnswer(asked.id, payload=True)
        for wrong in (
            [],
            [InterruptAnswer("other", payload=True)],
            [right, right],
            [InterruptAnswer(asked.id, "cancelled", payload=True)],
        ):
            refused(ResumeInvalid, lambda wrong=wrong: agent.submit(resume=wrong))  # type: ignore[misc]
        stale = batch.generation.get() + 1
        refused(StaleInterrupt, lambda: agent.submit(resume=True, interrupt_generation=stale))
        assert batch.phase.get() == "pending"
        assert agent.interrupt.get() == asked
        op = agent.submit(resume=[right], interrupt_generation=batch.generation.get())
        assert agent.status.get() == "running"
        assert await op == "success"
        assert batch.phase.get() == "none"
        assert agent.interrupt.get() is None
        assert texts(agent)[-1] == ("assistant", "done")

    @check("interrupts")
    async def test_one_decision_owns_a_batch(self, driver: AgentDriver) -> None:
        """AG-130, AG-71: a second answer is refused; False is an answer."""
        driver.plan(Ask())
        driver.plan(say("as you like"))
        agent = await driver.make()
        await agent.submit("1")
        op = agent.submit(resume=False)
        refused((RequestPending, AgentBusy), lambda: agent.submit(resume=True))
        assert await op == "success"
        refused(ResumeInvalid, lambda: agent.submit(resume=True))

    @check("interrupts")
    async def test_a_run_may_pause_again(self, driver: AgentDriver) -> None:
        """AG-135: each batch has its own generation."""
        driver.plan(Ask())
        driver.plan(Ask())
        driver.plan(say("done"))
        agent: Any = await driver.make()
        await agent.submit("1")
        first = agent.interrupts.generation.get()
        assert await agent.submit(resume=True) == "paused"
        assert agent.interrupts.generation.get() > first
        refused(StaleInterrupt, lambda: agent.submit(resume=True, interrupt_generation=first))
        assert await agent.submit(resume=True) == "success"

    @check("client_tools")
    async def test_client_tools_are_handed_over(self, driver: AgentDriver) -> None:
        """AG-145 … AG-147: pending once no run is in flight; a result goes on as one run."""
        driver.plan(HandOver("show", {"what": "map"}))
        driver.plan(say("seen"))
        agent = await driver.make()
        tools = agent.client_tools
        assert tools is not None
        tools.set_catalog([_SHOW])
        await agent.submit("1")
        assert agent.status.get() == "idle"
        (call,) = tools.pending.get()
        assert (call.name, dict(call.args)) == ("show", {"what": "map"})
        refused(InvalidTarget, lambda: tools.settle("no such call", Ok(1)))
        op = tools.resolve(call.id, Ok({"ok": True}))
        assert tools.pending.get() == ()
        assert await op == "success"
        assert texts(agent)[-1] == ("assistant", "seen")
        (done,) = agent.tool_calls.get()
        assert done.result == {"ok": True}

    @check("client_tools")
    async def test_the_user_may_go_on_without_them(self, driver: AgentDriver) -> None:
        """AG-79, AG-148: an open call gets a result that says so."""
        driver.plan(HandOver("show", {"what": "map"}))
        driver.plan(say("fine"))
        agent = await driver.make()
        assert agent.client_tools is not None
        agent.client_tools.set_catalog([_SHOW])
        await agent.submit("1")
        assert await agent.submit("never mind") == "success"
        assert texts(agent)[-2:] == [("user", "never mind"), ("assistant", "fine")]
        (call,) = agent.tool_calls.get()
        assert "went on" in str(call.error or call.result)

    @check("lose")
    async def test_an_end_that_nobody_told_is_no_success(self, driver: AgentDriver) -> None:
        """AG-62 … AG-64, AG-103: text kept and marked; `check` exactly where it can be asked."""
        driver.plan(say("some"), Lose())
        agent = await driver.make()
        with consistent(agent) as wrong:
            assert await agent.submit("1") == "interrupted"
        assert wrong == []
        error = agent.error.get()
        assert error is not None
        assert error.kind == "interrupted"
        last = agent.messages.get()[-1]
        assert (last.text, last.delivery.outcome) == ("some", "interrupted")
        assert (error.recovery == "check") <= (agent.check_status is not None)
        assert (error.recovery == "retry") == error.retryable
        assert (error.detail is None) == (error.recovery == "retry")
        if error.recovery != "retry":
            refused(RecoveryRequired, agent.retry)
            assert agent.error.get() is error

    @check("lose", "check")
    async def test_a_check_asks_and_changes_nothing_by_itself(self, driver: AgentDriver) -> None:
        """AG-116, AG-118: one at a time; nothing is resubmitted or appended."""
        driver.plan(say("some"), Lose())
        agent = await driver.make()
        await agent.submit("1")
        check_status = agent.check_status
        assert check_status is not None
        before = texts(agent)
        asking = check_status()
        refused(AgentBusy, check_status)
        await asking
        assert [item for item in texts(agent) if item[0] == "user"] == [
            item for item in before if item[0] == "user"
        ]


__all__ = ["WaitChecks"]
