"""Random failures at every step around a send, also in pairs: nobody is left without an end (TC §3.5, proof 2)."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from controlkit import Number, Plain, Told
from convkit import passes
from pilothouse import AgentController, AgentState
from pilothouse.errors import SendRefused
from pilothouse.testing import ScriptedProvider, StepClock
from pilothouse.testing.scripted import Cut, Sleep, call, failure

PLACES = (
    "interceptor",
    "request a",
    "request b",
    "tools b",
    "context",
    "request listener",
    "tool",
    "prepare",
    "apply",
    "on_change",
    "response b",
    "response a",
    "response listener",
)
ACTIONS = ("raise", "cancelled", "abort", "hang", "reject", "update")
ENDS = ("completed", "failed", "unknown", "silent", "dribble")

SENDS = st.fixed_dictionaries(
    {
        "at": st.dictionaries(st.sampled_from(PLACES), st.sampled_from(ACTIONS), max_size=3),
        "is_async": st.booleans(),
        "end": st.sampled_from(ENDS),
        "stages": st.booleans(),
        "abort_after": st.none() | st.integers(0, 12),
    }
)


class Machine:
    """One conversation; each send goes by a plan."""

    def __init__(self) -> None:
        self.plan: dict = {"at": {}, "is_async": False}
        self.told = Told()
        self.clock = StepClock()
        self.first = Plain(self.told, "a")
        self.second = Plain(self.told, "b")
        self.number = Number("n")
        self.number.on_change(lambda change: self.act("on_change", sync=True))
        self.number.fail = self
        for plain in (self.first, self.second):
            for hook in ("request", "response"):
                name = f"{hook} {plain.namespace}"
                plain.at[hook] = lambda event, name=name: self.act(name)
        self.second.at["tools"] = lambda _: self.act("tools b", sync=True)
        self.agent = AgentController(
            self.provider(),
            controllers=[self.first, self.second, self.number],
            interceptor=self.intercept,
            send_context=lambda event: self.act("context"),
            request_listener=lambda event: self.act("request listener"),
            response_listener=lambda event: self.act("response listener"),
            clock=self.clock,
            hook_timeout=2,
            reply_timeout=20,
            send_timeout=3,
            stream_idle_timeout=3,
        )
        self.told.clear()

    def provider(self):
        def play(request):
            plan = self.plan
            if plan["stages"] and request.messages[-1].role == "user":
                return [call("n__add", {"by": 1}), call("a__touch")]
            match plan["end"]:
                case "failed":
                    return [failure("auth", "no")]
                case "unknown":
                    return ["part", Cut()]
                case "silent":
                    return ["part", Sleep(60)]
                case "dribble":
                    return ["part", *[item for _ in range(30) for item in (Sleep(1), "x")]]
                case _:
                    return "done"

        return ScriptedProvider(play, repeat=True, clock=self.clock)

    # `Number.fail` is a mapping of what to do; this one decides by the plan.
    def get(self, name):
        action = self.plan["at"].get(name)
        if action in ("raise", "cancelled") and name == "apply":
            return RuntimeError(name)
        return None if action is None or name == "apply" else lambda: self.later(action, name)

    def intercept(self, event):
        if self.plan["at"].get("interceptor") == "reject":
            event.reject("no")
            return None
        return self.act("interceptor")

    def act(self, name: str, *, sync: bool = False):
        action = self.plan["at"].get(name)
        if action is None:
            return None
        if sync or not self.plan["is_async"]:
            return self.now(action, name)
        return self.later(action, name)

    def now(self, action: str, name: str) -> None:
        if action == "raise":
            raise RuntimeError(name)
        if action == "cancelled":
            raise asyncio.CancelledError(name)
        if action == "abort":
            self.agent.abort()

    async def later(self, action: str, name: str) -> None:
        await asyncio.sleep(0)
        if action == "hang":
            await asyncio.Event().wait()
        self.now(action, name)

    async def send(self, plan) -> None:
        self.plan = plan
        start, before = len(self.told), self.number.state
        sending = asyncio.ensure_future(self.agent.send("hi"))
        for turn in range(2000):
            await passes(3)
            if turn == plan["abort_after"]:
                self.agent.abort()
            if sending.done():
                break
            if turn > 20:
                await self.clock.advance(1)
        (error,) = await asyncio.gather(sending, return_exceptions=True)
        reply = self.agent.last_reply if isinstance(error, BaseException) else error
        assert reply is not None
        for _ in range(100):
            await passes(3)
            if reply.outcome is not None and self.agent._sender.around is None and reply.over:
                break
            await self.clock.advance(1)
        self.check(reply, error, self.told.names(start), before)

    def check(self, reply, error, names, before) -> None:
        ending = reply.ending
        assert ending is not None
        assert self.agent._sender.around is None
        told = 0 if ending == "rejected" else 1
        for key in "ab":
            assert names.count(f"response {key}") == told, (names, ending)
        if isinstance(error, BaseException):
            assert isinstance(error, SendRefused) == (ending == "rejected")
            assert not reply.committed
        # on_request forward, on_response backward, nothing of this send after them
        positions = [names.index(f"request {key}") for key in "ab" if f"request {key}" in names]
        assert positions == sorted(positions)
        if told:
            assert names.index("response b") < names.index("response a")
            last = self.first.responses[-1]
            assert last.ending == ending
            assert last.begun >= {key for key in "ab" if f"request {key}" in names}
            assert (last.error is None) == (
                ending in ("completed", "truncated", "incomplete", "cancelled")
            ), (ending, last.error)
            commits = last.commits
            assert set(commits) <= {"n"}
            if commits.get("n") == "committed":
                assert ending == "completed"
            else:
                assert self.number.state == before
        if not reply.committed:
            assert self.number.state == before
        assert self.agent.state in (AgentState.IDLE, AgentState.COMPLETE, AgentState.ERROR)


@settings(max_examples=60, deadline=None)
@given(st.lists(SENDS, min_size=1, max_size=3))
def test_each_admitted_send_has_one_end_for_each_controller(plans) -> None:
    """TC-12, TC-14, proof 2: each admitted send that is neither rejected nor abandoned has exactly one `on_response` per controller."""

    async def main() -> None:
        machine = Machine()
        for plan in plans:
            await machine.send(plan)
        await machine.send(
            {"at": {}, "is_async": False, "end": "completed", "stages": True, "abort_after": None}
        )
        assert machine.first.responses[-1].ending == "completed"
        assert machine.first.responses[-1].commits == {"n": "committed"}
        closing = asyncio.ensure_future(machine.agent.aclose())
        for _ in range(20):
            await passes(3)
            if closing.done():
                break
            await machine.clock.advance(1)
        await closing

    asyncio.run(main())
