"""Approvals bound to exactly what runs, tools that clients run, and questions to people; also across restarts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pilothouse.commands import Allow, Answer, Command, Deny, ExternalResult, InputAnswer
from pilothouse.core.calls import arguments_digest, operation_digest
from pilothouse.errors import ConfigError, StartRefused, ToolDefinitionError, ToolError, UsageError
from pilothouse.events import (
    CallFinished,
    CallStarted,
    Cancelled,
    CommandAnswered,
    Completed,
    RequestClosed,
    RequestOpened,
    RequestResolved,
)
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.approval import ApprovalPolicy
from pilothouse.loop.config import LoopConfig
from pilothouse.loop.context import ToolContext
from pilothouse.loop.hooks import Block, CallCheck, CallDone, Override, Rewrite
from pilothouse.loop.ready_tools import external_tool, schema_tool
from pilothouse.loop.tools import Tool, tool
from pilothouse.messages import ArtifactRef, Text, ToolSpec
from pilothouse.testing import Hold, LoopRig, ScriptedProvider, StepClock
from pilothouse.testing.scripted import call


class Rig:
    """A run whose tool `write(path, text)` asks; `log` has what was entered."""

    def __init__(
        self, script: Any, *, tools: Any = None, records: Any = (), policy: Any = None, **options: Any
    ) -> None:
        self.log: list[Any] = []
        self.clock = options.pop("clock", None) or StepClock()
        config = LoopConfig(approval=policy or ApprovalPolicy(), **options)
        self.provider = (
            ScriptedProvider(*script) if isinstance(script, tuple) else ScriptedProvider(script, "done")
        )
        self.loop = AgentLoop(
            self.provider, tools=self.tools() if tools is None else tools, config=config, clock=self.clock
        )
        self.run = LoopRig(self.loop, clock=self.clock, records=records)

    def tools(self) -> list[Tool]:
        @tool(approval=True)
        async def write(path: str, text: str = "") -> str:
            """Writes."""
            self.log.append(path)
            return f"wrote {path}"

        @tool(effect="read")
        async def read(path: str) -> str:
            """Reads."""
            self.log.append(path)
            return f"read {path}"

        return [write, read]

    async def begin(self, *, resume: bool = False) -> None:
        self.task = self.run.begin(self.run.resume if resume else None)
        await self.rest()

    async def rest(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    @property
    def pending(self) -> list[str]:
        return list(self.run.port.state.requests)

    @property
    def ends(self) -> dict[str, tuple[str, str]]:
        return {end.call_id: (end.outcome, end.reason) for end in self.run.of(CallFinished)}

    def text(self, call_id: str) -> str:
        end = next(end for end in self.run.of(CallFinished) if end.call_id == call_id)
        return "".join(part.text for part in end.content if isinstance(part, Text))


def writes(*names: str) -> list[Any]:
    return [call("write", {"path": name}, call_id=name) for name in names]


# Asking


async def test_a_call_that_needs_approval_waits_and_runs_exactly_what_was_approved() -> None:
    """LP-33, LP-34, RC-41: request, answer and start; resolution and start share an append."""
    rig = Rig(writes("a"))
    await rig.begin()
    assert rig.log == []
    (request,) = [fact.request for fact in rig.run.of(RequestOpened)]
    digest = arguments_digest({"path": "a", "text": ""})
    assert request.call_id == "a"
    assert request.operation_digest == operation_digest("write", digest, "non_idempotent")
    assert request.data == {
        "tool": "write",
        "arguments": {"path": "a", "text": ""},
        "digest": digest,
        "effect": "non_idempotent",
        "reason": "tool",
    }
    assert rig.run.port.state.state == "waiting"
    command = rig.run.answer(request.id, Allow())
    await rig.task
    assert rig.run.outcome == Completed()
    assert rig.log == ["a"]
    start = rig.run.of(CallStarted)[0]
    assert (start.approved_by, start.arguments_digest) == (request.id, digest)
    assert rig.run.port.state.commands[command].state == "applied"
    at = rig.run.facts.index(rig.run.of(RequestResolved)[0])
    assert rig.run.facts[at + 1] == start
    assert at + 2 in rig.run.appends


async def test_requests_of_a_batch_are_opened_together_and_each_starts_on_its_own_answer() -> None:
    """LP-29, [127]: one that waits holds up no other; the ids are distinct."""
    rig = Rig([*writes("a", "b"), call("read", {"path": "r"}, call_id="r")])
    await rig.begin()
    assert len(set(rig.pending)) == 2
    assert rig.log == ["r"]
    rig.run.answer(rig.pending[1], Allow())
    await rig.rest()
    assert rig.log == ["r", "b"]
    rig.run.answer(rig.pending[0], Allow())
    await rig.task
    assert rig.log == ["r", "b", "a"]
    assert [message.call_id for message in rig.run.messages[2:5]] == ["a", "b", "r"]


async def test_a_denied_call_tells_the_model_and_the_others_run() -> None:
    """LP-35"""
    rig = Rig(writes("a", "b"))
    await rig.begin()
    first, second = rig.pending
    rig.run.answer(first, Deny("not there"))
    rig.run.answer(second, Allow())
    await rig.task
    assert rig.ends == {"a": ("refused", "denied"), "b": ("succeeded", "")}
    assert rig.text("a") == "A person did not allow this call: not there"
    assert rig.log == ["b"]


async def test_edited_arguments_are_validated_and_are_what_runs() -> None:
    """LP-35, RC-42: an invalid edit is rejected and the request stays open."""
    rig = Rig(writes("a"))
    await rig.begin()
    (request,) = rig.pending
    bad = rig.run.answer(request, Allow(arguments={"pth": "x"}))
    await rig.rest()
    assert rig.run.port.state.commands[bad].state == "rejected"
    assert "pth: there is no such argument" in rig.run.port.state.commands[bad].message
    assert rig.pending == [request]
    rig.run.answer(request, Allow(arguments={"path": "b"}))
    await rig.task
    assert rig.log == ["b"]
    start = rig.run.of(CallStarted)[0]
    assert start.arguments == {"path": "b", "text": ""}
    assert start.arguments_digest == arguments_digest(start.arguments)


async def test_wrong_answers_are_rejected_and_nothing_is_used_up() -> None:
    """LP-34, RC-38"""
    rig = Rig(writes("a"))
    await rig.begin()
    (request,) = rig.pending
    wrong = rig.run.answer(request, InputAnswer("yes"))
    unknown = rig.run.answer("nonsense", Allow())
    await rig.rest()
    states = rig.run.port.state.commands
    assert (states[wrong].code, states[unknown].code) == ("answer_mismatch", "request_not_pending")
    assert rig.pending == [request]
    rig.run.answer(request, Allow())
    late = rig.run.answer(request, Deny())
    await rig.task
    assert states[late].state != "applied"
    assert rig.log == ["a"]


async def test_an_expired_request_denies() -> None:
    """LP-33: timeout; the request's own timer is the only one that runs (LP-37)."""
    rig = Rig(writes("a"), policy=ApprovalPolicy(timeout=60))
    await rig.begin()
    assert rig.run.of(RequestOpened)[0].request.expires_at_ms == rig.clock.time_ms() + 60_000
    await rig.clock.advance(60)
    await rig.task
    assert rig.ends == {"a": ("refused", "expired")}
    assert rig.run.of(RequestClosed)[0].reason == "expired"
    assert rig.log == []


async def test_waiting_for_a_person_no_timer_runs() -> None:
    """LP-37"""
    rig = Rig(writes("a"), tool_timeout=1)
    await rig.begin()
    await rig.clock.advance(100_000)
    assert rig.clock.sleeping == 0
    rig.run.answer(rig.pending[0], Allow())
    await rig.task
    assert rig.log == ["a"]


async def test_a_stop_ends_waiting_calls() -> None:
    """LP-37, LP-43"""
    rig = Rig(writes("a"))
    await rig.begin()
    rig.run.stop()
    await rig.task
    assert rig.run.outcome == Cancelled("stop")
    assert rig.ends == {"a": ("cancelled", "stop")}
    assert rig.run.of(RequestClosed)[0].reason == "run_ended"


async def test_steering_may_supersede_what_waits() -> None:
    """LP-25: skip_unstarted"""
    rig = Rig(writes("a"), steering_policy="skip_unstarted")
    await rig.begin()
    rig.run.steer("do something else")
    await rig.task
    assert rig.ends == {"a": ("cancelled", "steering")}
    assert rig.run.of(RequestClosed)[0].reason == "superseded"


async def test_nobody_can_answer_where_a_loop_runs_alone() -> None:
    """LP-33: it denies instead of waiting for ever."""
    rig = Rig(writes("a"))
    result = await rig.loop.ask("x")
    assert result.outcome == Completed()
    assert rig.log == []
    assert "nobody can give it" in result.messages[2].text


# Order


async def test_after_approvals_nothing_starts_before_the_last_answer() -> None:
    """LP-29; an answer that cannot start yet is recorded and not asked for again."""
    rig = Rig([*writes("a", "b"), call("read", {"path": "r"}, call_id="r")], batch_policy="after_approvals")
    await rig.begin()
    first, second = rig.pending
    rig.run.answer(second, Allow())
    await rig.rest()
    assert rig.log == []
    assert rig.pending == [first]
    rig.run.answer(first, Deny())
    await rig.task
    assert rig.log == ["b", "r"]


async def test_sequential_calls_wait_for_the_approval_before_them() -> None:
    """LP-30"""
    rig = Rig(
        [call("read", {"path": "1"}), *writes("a"), call("read", {"path": "2"})], tool_execution="sequential"
    )
    await rig.begin()
    assert rig.log == ["1"]
    rig.run.answer(rig.pending[0], Allow())
    await rig.task
    assert rig.log == ["1", "a", "2"]


async def test_as_ready_a_call_starts_when_it_is_checked_itself() -> None:
    """LP-29; with preflight_all nothing starts while a later hook waits."""
    for policy, entered in (("preflight_all", []), ("as_ready", ["1"])):
        hold = Hold()

        async def check(view: CallCheck, hold: Hold = hold) -> None:
            if view.args["path"] == "2":
                await hold.wait()

        rig = Rig(
            [call("read", {"path": "1"}), call("read", {"path": "2"})],
            batch_policy=policy,
            before_tool_call=check,
        )
        await rig.begin()
        await hold.reached()
        await rig.rest()
        assert rig.log == entered
        hold.release()
        await rig.task
        assert rig.log == ["1", "2"]


# The policy


def _tool(name: str, **options: Any) -> Tool:
    @tool(name=name, description="x", **options)
    async def f(n: int = 0) -> None:
        pass

    return f


async def _asked(policy: ApprovalPolicy, made: Tool, **arguments: Any) -> str:
    """What becomes of one call: `run`, `ask` or `deny`."""
    rig = Rig([call(made.name, arguments, call_id="c")], tools=[made], policy=policy)
    await rig.begin()
    if rig.pending:
        rig.run.stop()
        await rig.task
        return "ask"
    await rig.task
    return "run" if rig.ends["c"][0] == "succeeded" else "deny"


DECLARED, READ, HUMAN = (
    _tool("declared", approval=True),
    _tool("read", effect="read"),
    _tool("human", effect="human"),
)
PLAIN, NO = _tool("plain"), _tool("no", approval=False)
BY_ARGS = _tool("by_args", approval=lambda check: check.args["n"] > 1)


@pytest.mark.parametrize(
    ("policy", "made", "way"),
    [
        ({}, PLAIN, "run"),
        ({}, DECLARED, "ask"),
        ({"mode": "never"}, DECLARED, "run"),
        ({"mode": "writes"}, PLAIN, "ask"),
        ({"mode": "writes"}, READ, "run"),
        ({"mode": "writes"}, HUMAN, "run"),
        ({"mode": "writes"}, NO, "run"),
        ({"mode": "always"}, READ, "ask"),
        ({"deny": ["pl*"]}, PLAIN, "deny"),
        ({"deny": [lambda check: True], "allow": ["*"]}, PLAIN, "deny"),
        ({"mode": "never", "critical": lambda check: True}, PLAIN, "ask"),
        ({"critical": lambda check: True, "deny": ["plain"]}, PLAIN, "deny"),
        ({"critical": lambda check: False, "allow": ["declared"]}, DECLARED, "run"),
        ({"ask": ["plain"], "allow": ["plain"]}, PLAIN, "ask"),
        ({"ask": ["plain"], "mode": "never"}, PLAIN, "ask"),
        ({"allow": ["declared"]}, DECLARED, "run"),
        ({"critical": lambda check: 1 / 0}, PLAIN, "deny"),
    ],
)
async def test_the_first_match_wins(policy: dict[str, Any], made: Tool, way: str) -> None:
    """LP-33"""
    assert await _asked(ApprovalPolicy(**policy), made) == way


async def test_a_tool_may_ask_by_its_arguments() -> None:
    """LP-33"""
    assert await _asked(ApprovalPolicy(), BY_ARGS, n=1) == "run"
    assert await _asked(ApprovalPolicy(), BY_ARGS, n=2) == "ask"


@pytest.mark.parametrize("wrong", [{"mode": "x"}, {"timeout": 0}, {"unattended": "x"}])
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"approval.{name}"):
        ApprovalPolicy(**wrong)


async def test_an_allow_for_the_thread_covers_equal_arguments_and_no_others() -> None:
    """LP-35: never the name alone by itself; another thread knows nothing of it."""
    rig = Rig((writes("a"), [*writes("x"), call("write", {"path": "a"}, call_id="again")], "done"))
    await rig.begin()
    rig.run.answer(rig.pending[0], Allow("thread"))
    await rig.rest()
    assert rig.log == ["a", "a"]
    assert len(rig.pending) == 1
    rig.run.stop()
    await rig.task


async def test_what_is_remembered_may_be_wider() -> None:
    """LP-35: remember(call) says which arguments must be equal."""
    policy = ApprovalPolicy(remember=lambda check: {"text": check.args["text"]})
    rig = Rig((writes("a"), writes("b"), "done"), policy=policy)
    await rig.begin()
    rig.run.answer(rig.pending[0], Allow("thread"))
    await rig.task
    assert rig.log == ["a", "b"]


# Restarts


async def test_a_request_survives_a_restart_with_its_id_and_runs_once() -> None:
    """LP-34, LP-36, [125]: at every append; nothing asks again after the answer."""
    whole = Rig(writes("a", "b"))
    await whole.begin()
    ids = whole.pending
    for request_id in ids:
        whole.run.answer(request_id, Allow())
        await whole.rest()
    await whole.task
    for cut in whole.run.appends:
        prefix = whole.run.records[:cut]
        facts = [record.fact for record in prefix]
        answered = sum(fact.kind == "model_attempt_ended" for fact in facts)
        rig = Rig((writes("a", "b"), "done")[answered:], records=prefix)
        await rig.begin(resume=True)
        taken = {fact.request_id for fact in facts if isinstance(fact, RequestResolved)}
        given = {fact.command.id for fact in facts if fact.kind == "command_received"}
        for request_id in rig.pending:
            assert request_id in ids
            assert request_id not in taken
            if f"command-{ids.index(request_id)}" not in given:  # else its answer is offered again
                rig.run.answer(request_id, Allow())
        await asyncio.wait_for(rig.task, 5)
        assert rig.run.outcome == Completed()
        assert sorted(call_id for call_id, _ in rig.ends.items()) == ["a", "b"]
        assert len(rig.run.of(RequestOpened)) == 2
        assert rig.log.count("a") <= 1


async def test_allowed_before_a_crash_it_starts_and_is_not_asked_again() -> None:
    """EF table: allowed, not started."""
    whole = Rig(writes("a", "b"), batch_policy="after_approvals")
    await whole.begin()
    first, second = whole.pending
    whole.run.answer(first, Allow(arguments={"path": "edited"}))
    await whole.rest()
    rig = Rig("done", records=list(whole.run.records), batch_policy="after_approvals")
    await rig.begin(resume=True)
    assert rig.pending == [second]
    rig.run.answer(second, Deny())
    await rig.task
    assert rig.log == ["edited"]
    assert rig.run.of(CallStarted)[0].approved_by == first
    whole.run.stop()
    await whole.task


async def test_a_tool_that_changed_meanwhile_is_not_run() -> None:
    """LP-36"""
    whole = Rig(writes("a"))
    await whole.begin()

    @tool(name="write", approval=True)
    async def other(path: str, text: str = "", force: bool = True) -> None:
        """Another schema."""

    for tools, reason in (([other], "tool_changed"), ([], "tool_gone")):
        rig = Rig("done", tools=tools, records=list(whole.run.records))
        await rig.begin(resume=True)
        await rig.task
        assert rig.ends == {"a": ("refused", reason)}
        assert rig.run.of(RequestClosed)[0].reason == "superseded"
    whole.run.stop()
    await whole.task


# Hooks of calls


async def test_a_hook_may_block_or_rewrite_before_and_its_rewrite_is_validated() -> None:
    """§2.4, LP-27 steps 5 to 7: what runs is what was frozen last."""

    def check(view: CallCheck) -> Any:
        match view.args["path"]:
            case "no":
                return Block("not this one")
            case "never":
                return Block()
            case "better":
                return Rewrite({"path": "best"})
            case "worse":
                return Rewrite({"pth": 1})
            case "raise":
                raise KeyError("secret")
            case "odd":
                return "what"
        return None

    names = ["no", "never", "better", "worse", "raise", "odd", "fine"]
    rig = Rig([call("read", {"path": name}, call_id=name) for name in names], before_tool_call=check)
    await rig.begin()
    await rig.task
    assert rig.ends == {
        "no": ("refused", "blocked"),
        "never": ("refused", "blocked"),
        "better": ("succeeded", ""),
        "worse": ("refused", "invalid_args"),
        "raise": ("refused", "hook_error"),
        "odd": ("refused", "hook_error"),
        "fine": ("succeeded", ""),
    }
    assert rig.text("no") == "not this one"
    assert rig.log == ["best", "fine"]
    assert "secret" not in repr(rig.run.facts)


async def test_a_rewritten_call_is_approved_as_it_was_rewritten() -> None:
    """LP-34, LP-36: also after a restart, where the hook is not asked again."""
    asked: list[str] = []

    def check(view: CallCheck) -> Any:
        asked.append(view.args["path"])
        return Rewrite({"path": view.args["path"] + "!"})

    rig = Rig(writes("a"), before_tool_call=check)
    await rig.begin()
    assert rig.run.of(RequestOpened)[0].request.data["arguments"]["path"] == "a!"
    again = Rig("done", records=list(rig.run.records), before_tool_call=check)
    await again.begin(resume=True)
    again.run.answer(again.pending[0], Allow())
    await again.task
    assert again.log == ["a!"]
    assert asked == ["a"]
    rig.run.stop()
    await rig.task


async def test_a_hook_after_may_change_or_end_and_sees_errors() -> None:
    """§2.4: what it leaves out stays; EF-7: the raw end is durable before it is called."""
    seen: list[Any] = []

    def after(done: CallDone) -> Any:
        kinds = [fact.kind for fact in rig.run.facts if fact.kind.startswith("call_")]
        seen.append((done.check.call_id, done.is_error, kinds[-1]))
        match done.check.call_id:
            case "parts":
                return Override(parts=(Text("other"),))
            case "flip":
                return Override(is_error=True)
            case "data":
                return Override(structured={"a": 1})
            case "end":
                return Override(terminate=True)
        return None

    @tool
    async def fails() -> None:
        """Fails."""
        raise ToolError("no")

    names = ["parts", "flip", "data", "end", "same"]
    script = [*[call("read", {"path": name}, call_id=name) for name in names], call("fails", call_id="fails")]
    rig = Rig(script, after_tool_call=after)
    rig = Rig(script, tools=[*rig.tools(), fails], after_tool_call=after)
    await rig.begin()
    await rig.task
    ends = {end.call_id: end for end in rig.run.of(CallFinished)}
    assert rig.text("parts") == "other"
    assert (ends["flip"].outcome, ends["flip"].is_error, rig.text("flip")) == ("succeeded", True, "read flip")
    assert [type(part).__name__ for part in ends["data"].content] == ["Text", "Structured"]
    assert ends["end"].marks == ("terminate",)
    assert rig.text("same") == "read same"
    assert all(kind == "call_observed" for _, _, kind in seen)
    assert ("fails", True, "call_observed") in seen


@pytest.mark.parametrize("bad", [ValueError("secret"), "text"])
async def test_a_hook_after_that_fails_withholds_the_result_and_leaves_siblings_alone(bad: Any) -> None:
    """§2.4"""

    def after(done: Any) -> Any:
        if done.check.call_id != "a":
            return None
        if isinstance(bad, Exception):
            raise bad
        return bad

    rig = Rig([call("read", {"path": name}, call_id=name) for name in "ab"], after_tool_call=after)
    await rig.begin()
    await rig.task
    assert rig.ends == {"a": ("succeeded", ""), "b": ("succeeded", "")}
    assert rig.text("a") == "The tool ran; its result could not be processed and is withheld."
    assert rig.text("b") == "read b"
    assert "read a" not in repr(rig.provider.requests)


async def test_after_a_crash_in_the_hook_the_result_comes_from_the_raw_end() -> None:
    """LP-49: observed; the function is not called again, the hook is."""
    rig = Rig([call("read", {"path": "a"}, call_id="a")], after_tool_call=lambda done: None)
    await rig.begin()
    await rig.task
    cut = next(n for n, fact in enumerate(rig.run.facts) if fact.kind == "call_observed") + 1
    for after, text in ((None, "read a"), (lambda done: Override(parts=(Text("hooked"),)), "hooked")):
        again = Rig("done", records=rig.run.records[:cut], after_tool_call=after)
        await again.begin(resume=True)
        await again.task
        assert again.log == []
        assert again.text("a") == text


async def test_a_stop_in_a_hook_before_leaves_every_call_with_a_result() -> None:
    """LP-42"""

    async def check(view: Any) -> None:
        if view.call_id == "b":
            rig.run.stop()

    rig = Rig([call("read", {"path": name}, call_id=name) for name in "abc"], before_tool_call=check)
    await rig.begin()
    await rig.task
    assert rig.ends == dict.fromkeys("abc", ("cancelled", "stop"))
    assert rig.log == []


# External tools


SPEC = ToolSpec(
    "pick",
    "Picks.",
    {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    },
)


async def test_a_tool_that_a_client_runs_gets_its_result_from_the_answer() -> None:
    """RC-81, TL-16, LP-6: no function; the command's extension may end the asking."""
    rig = Rig(
        [call("pick", {"n": 1}, call_id="p"), call("pick", {"n": "x"}, call_id="bad")],
        tools=[external_tool(SPEC)],
    )
    await rig.begin()
    request = rig.run.of(RequestOpened)[0].request
    assert (request.kind, request.call_id, request.data) == (
        "external",
        "p",
        {"tool": "pick", "arguments": {"n": 1}},
    )
    assert rig.ends == {"bad": ("refused", "invalid_args")}
    assert "n: should be integer" in rig.text("bad")
    wrong = rig.run.answer(request.id, Allow())
    await rig.rest()
    assert rig.run.port.state.commands[wrong].code == "answer_mismatch"
    body = Answer(request.id, ExternalResult((Text("red"),)))
    rig.run.port.command(Command("end", "run", body, {"pilothouse/terminate": True}))
    await rig.task
    assert rig.text("p") == "red"
    assert rig.run.of(CallFinished)[-1].marks == ("terminate",)
    assert rig.run.of(CallStarted) == []


async def test_a_large_result_of_a_client_is_spilled_too() -> None:
    """TL-15, TL-16: what the client sent is whole in an artifact; one that is too large even for that is an error."""
    rig = Rig([call("pick", {"n": 1}, call_id="p")], tools=[external_tool(SPEC)], spill_above=8_192)
    await rig.begin()
    rig.run.answer(rig.pending[0], ExternalResult((Text("x" * 50_000),)))
    await rig.task
    shown, ref = rig.run.of(CallFinished)[0].content
    assert isinstance(shown, Text)
    assert len(shown.text) < 8_192
    assert isinstance(ref, ArtifactRef)
    assert rig.run.port.artifacts[ref.digest] == b"x" * 50_000
    rig = Rig([call("pick", {"n": 1}, call_id="p")], tools=[external_tool(SPEC)], result_limit=40_000)
    await rig.begin()
    rig.run.answer(rig.pending[0], ExternalResult((Text("x" * 50_000),)))
    await rig.task
    assert rig.ends == {"p": ("failed", "bad_result")}
    assert "50000 bytes, more than the limit of 40000" in rig.text("p")


async def test_an_external_call_may_be_denied_fail_expire_and_wait_over_a_restart() -> None:
    """TL-16"""
    for resolution, end in [
        (Deny("busy"), ("refused", "denied")),
        (ExternalResult((Text("no"),), is_error=True), ("succeeded", "")),
    ]:
        rig = Rig([call("pick", {"n": 1}, call_id="p")], tools=[external_tool(SPEC)])
        await rig.begin()
        again = Rig("done", tools=[external_tool(SPEC)], records=list(rig.run.records))
        await again.begin(resume=True)
        assert again.pending == rig.pending
        again.run.answer(again.pending[0], resolution)
        await again.task
        assert again.ends == {"p": end}
        rig.run.stop()
        await rig.task
    rig = Rig([call("pick", {"n": 1}, call_id="p")], tools=[external_tool(SPEC, timeout=5)])
    await rig.begin()
    await rig.clock.advance(5)
    await rig.task
    assert rig.ends == {"p": ("refused", "expired")}


async def test_client_tools_are_external_tools_of_that_run_only() -> None:
    """TL-16: loop.client_tools; a name that the loop has already refuses the start."""
    provider = ScriptedProvider([call("pick", {"n": 1}, call_id="p")], "done", "done")
    rig = Rig("x")
    loop = AgentLoop(provider, tools=rig.tools())
    given = [{"name": "pick", "description": "Picks.", "parameters": SPEC.parameters}]
    run = LoopRig(loop, options={"loop.client_tools": given})
    task = run.begin()
    await rig.rest()
    run.answer(run.of(RequestOpened)[0].request.id, ExternalResult((Text("red"),)))
    await task
    assert [spec.name for spec in provider.requests[0].tools] == ["write", "read", "pick"]
    await LoopRig(loop).run()
    assert [spec.name for spec in provider.requests[2].tools] == ["write", "read"]
    for bad in ([{"name": "write"}], [{"nme": 1}], "x", [{"name": "1 2"}]):
        with pytest.raises(StartRefused):
            await LoopRig(loop, options={"loop.client_tools": bad}).run()


# Ready schemas


async def test_a_tool_with_a_ready_schema_validates_by_it_or_by_its_own_function() -> None:
    """TL-18: the schema goes to the model unchanged; ToolError of validate is the text."""

    def validate(given: Any) -> Any:
        if given["n"] > 5:
            raise ToolError("at most 5")
        return {"n": given["n"], "unit": "m"}

    seen: list[Any] = []

    async def run(arguments: Any, context: ToolContext[Any]) -> str:
        seen.append((dict(arguments), context.call_id))
        return "ok"

    def plain(arguments: Any, context: ToolContext[Any]) -> str:
        return f"{arguments['n']}"

    tools = [
        schema_tool(SPEC, run, validate=validate, effect="read"),
        schema_tool(ToolSpec("q", "Q.", SPEC.parameters), plain),
    ]
    script = [
        call("pick", {"n": 1}, call_id="a"),
        call("pick", {"n": 9}, call_id="b"),
        call("q", {"n": 3}, call_id="c"),
        call("q", {"m": 3}, call_id="d"),
    ]
    rig = Rig(script, tools=tools)
    task = rig.run.begin()
    await asyncio.wait_for(task, 10)
    assert rig.provider.requests[0].tools[0].parameters is SPEC.parameters
    assert seen == [({"n": 1, "unit": "m"}, "a")]
    assert (rig.text("b"), rig.text("c")) == ("at most 5", "3")
    assert "n: is required and missing" in rig.text("d")
    assert "m: there is no such argument" in rig.text("d")
    await rig.loop.aclose()


def test_ready_tools_are_checked_when_they_are_made() -> None:
    """§6"""
    for spec in (ToolSpec("x y"), ToolSpec("x", "", {"type": "string"})):
        with pytest.raises(ToolDefinitionError):
            external_tool(spec)
        with pytest.raises(ToolDefinitionError):
            schema_tool(spec, lambda arguments, context: None)
    with pytest.raises(ToolDefinitionError):
        schema_tool(ToolSpec("x"), lambda arguments, context: None, effect="x")


# Asking a person


async def test_a_human_tool_asks_and_gets_what_was_said_validated() -> None:
    """TL-12: in order; an answer that does not fit is rejected and the question stays."""

    @tool(effect="human")
    async def order(ctx: ToolContext[Any]) -> str:
        """Orders."""
        size = await ctx.ask("How many?", schema=int)
        name = await ctx.ask("For whom?")
        return f"{size + 1} for {name}"

    rig = Rig([call("order", call_id="o")], tools=[order])
    await rig.begin()
    request = rig.run.of(RequestOpened)[0].request
    assert (request.kind, request.prompt, request.schema) == ("input", "How many?", {"type": "integer"})
    wrong = rig.run.answer(request.id, InputAnswer("many"))
    await rig.rest()
    assert rig.run.port.state.commands[wrong].code == "answer_mismatch"
    rig.run.answer(request.id, InputAnswer(2))
    await rig.rest()
    assert rig.pending == ["ask:o:2"]
    again = Rig("done", tools=[order], records=list(rig.run.records))
    await again.begin(resume=True)
    assert again.pending == ["ask:o:2"]  # the first answer was given before and is not asked for again
    again.run.answer("ask:o:2", InputAnswer("Ada"))
    await again.task
    assert again.text("o") == "3 for Ada"
    assert [start.attempt for start in again.run.of(CallStarted)] == [1, 2]
    rig.run.stop()
    await rig.task
    assert rig.ends == {"o": ("cancelled", "user")}


async def test_an_answer_that_was_received_before_a_crash_reaches_the_tool_that_asks_again() -> None:
    """RC-41, TL-12: the tool is not there yet when the run is taken up."""

    @tool(effect="human")
    async def order(ctx: ToolContext[Any]) -> str:
        """Orders."""
        await asyncio.sleep(0)
        return str(await ctx.ask("How many?"))

    rig = Rig([call("order", call_id="o")], tools=[order])
    await rig.begin()
    await rig.rest()
    rig.run.answer("ask:o:1", InputAnswer(3))
    again = Rig("done", tools=[order], records=list(rig.run.records))
    await again.begin(resume=True)
    await asyncio.wait_for(again.task, 5)
    assert again.text("o") == "3"
    await rig.task


async def test_a_person_may_refuse_to_answer() -> None:
    """TL-12"""

    @tool(effect="human")
    async def order(ctx: ToolContext[Any]) -> str:
        """Orders."""
        return str(await ctx.ask("How many?"))

    rig = Rig([call("order", call_id="o")], tools=[order])
    await rig.begin()
    rig.run.answer(rig.pending[0], Deny("not now"))
    await rig.task
    assert rig.ends == {"o": ("failed", "")}
    assert rig.text("o") == "The person did not answer: not now"


async def test_only_human_tools_may_ask() -> None:
    """TL-12"""
    caught: list[BaseException] = []

    @tool
    async def order(ctx: ToolContext[Any]) -> None:
        """Orders."""
        try:
            await ctx.ask("How many?")
        except UsageError as error:
            caught.append(error)

    rig = Rig([call("order")], tools=[order])
    await rig.begin()
    await rig.task
    assert len(caught) == 1


async def test_unused_answers_of_the_run_do_not_stay_unanswered() -> None:
    """RC-38: what nobody waits for is rejected while the phase goes on."""
    rig = Rig(writes("a"))
    await rig.begin()
    (request,) = rig.pending
    rig.run.answer(request, Allow())
    rig.run.answer(request, Allow())
    await rig.task
    answers = rig.run.of(CommandAnswered)
    assert len(answers) >= 1
