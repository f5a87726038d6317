"""What a user's code hands over at the borders of the loop: a wrong type or an exception there is an outcome, never a fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel

from pilothouse import AgentController
from pilothouse.commands import Allow, ExternalResult
from pilothouse.core.canonical import MAX_DEPTH, encode
from pilothouse.errors import ConfigError, StartRefused, ToolDefinitionError
from pilothouse.events import CallFinished, Completed, Failed, HistoryCompacted, RequestOpened, Unknown
from pilothouse.journal import SQLiteJournal
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.approval import ApprovalPolicy
from pilothouse.loop.config import Limits, LoopConfig, RetryPolicy
from pilothouse.loop.hooks import Block, NextTurn, Override, Rewrite
from pilothouse.loop.ready_tools import external_tool, schema_tool
from pilothouse.loop.stuck import StuckToolConfig
from pilothouse.loop.tools import Backgrounded, Tool, ToolResult, tool
from pilothouse.messages import File, Image, Message, Reasoning, Structured, Text, ToolSpec, user_message
from pilothouse.records import RunSpec
from pilothouse.responses import (
    BlockEnded,
    Notice,
    ProviderEvent,
    ReasoningDelta,
    ResponseStarted,
    TextDelta,
    ToolCallDelta,
)
from pilothouse.runs.controller import RunController
from pilothouse.testing import LoopRig, ScriptedProvider
from pilothouse.testing.scripted import call

SECRET = "a word of the tool's own"


def broken(*_: object) -> Any:
    raise KeyError(SECRET)


def rig(*tools: Any, config: LoopConfig | None = None, **options: Any) -> LoopRig:
    """A run that calls the tool `work` once and then says that it is done."""
    provider = ScriptedProvider([call("work", {}, call_id="a")], "done", "still done", "really done")
    return LoopRig(AgentLoop(provider, tools=tools or (plain(),), config=config), **options)


def plain(**options: Any) -> Any:
    @tool(name="work", description="Works.", **options)
    async def work(count: int = 1) -> str:
        return f"did {count}"

    return work


def giving(make: Callable[[], object]) -> Any:
    @tool(name="work", description="Works.", effect="read")
    async def work() -> object:
        return make()

    return work


def end_of(run: LoopRig) -> CallFinished:
    (end,) = run.of(CallFinished)
    return end


def said(end: CallFinished) -> str:
    return "".join([part.text for part in end.content if isinstance(part, Text)])


# Results


class Odd(BaseModel):
    value: Any = None


class Untold:
    def model_dump(self, **_: object) -> object:
        return broken()


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


BAD_RESULTS: dict[str, Callable[[], object]] = {
    "a model's class": lambda: Odd,
    "a model with an object in it": lambda: Odd(value=object()),
    "a value whose dump raises": Untold,
    "an integer too long to write": lambda: 10**5_000,
    "the same, inside": lambda: {"n": 10**5_000},
    "text where parts belong": lambda: ToolResult("text"),  # type: ignore[arg-type]
    "texts where parts belong": lambda: ToolResult(("a", "b")),  # type: ignore[arg-type]
    "one part where parts belong": lambda: ToolResult(Text("a")),  # type: ignore[arg-type]
    "nothing where parts belong": lambda: ToolResult(None),  # type: ignore[arg-type]
    "a text that is none": lambda: Text(5),  # type: ignore[arg-type]
    "an image without a type": lambda: Image(None, data=b"x"),  # type: ignore[arg-type]
    "an image whose bytes are text": lambda: Image("image/png", data="x"),  # type: ignore[arg-type]
    "a file whose name is an object": lambda: File("text/plain", data=b"x", filename=object()),  # type: ignore[arg-type]
    "reasoning that is no text": lambda: Reasoning(5),  # type: ignore[arg-type]
    "a job that is an object": lambda: Backgrounded(object(), "name"),  # type: ignore[arg-type]
    "deeper than facts may be": lambda: nested(MAX_DEPTH - 1),
}


@pytest.mark.parametrize("name", BAD_RESULTS)
async def test_a_result_that_cannot_be_recorded_is_an_error_result_and_the_run_lives_on(name: str) -> None:
    """TL-13: whatever the value does while it is written down; its own words are nobody's to read (TL-11)."""
    run = rig(giving(BAD_RESULTS[name]))
    assert await run.run() == Completed()
    end = end_of(run)
    assert (end.outcome, end.reason, end.is_error) == ("failed", "bad_result", True)
    assert said(end).startswith("work ran, but what it returned has no JSON form: ")
    assert SECRET not in said(end)


GOOD_RESULTS: dict[str, tuple[Callable[[], object], bool]] = {
    "a return code as is_error": (lambda: ToolResult((Text("a"),), is_error=1), True),  # type: ignore[arg-type]
    "a return code of zero": (lambda: ToolResult((Text("a"),), is_error=0, terminate=None), False),  # type: ignore[arg-type]
    "bytes that can be changed": (lambda: Image("image/png", data=bytearray(b"x")), False),
    "half a character in a type": (lambda: Image("image/\ud800", data=b"x"), False),
    "half a character in a job": (lambda: Backgrounded("job", "\ud800"), False),
    "as deep as a value may be": (lambda: nested(MAX_DEPTH - 10), False),
    "more than 64 bits": (lambda: Structured(2**70), False),
}


@pytest.mark.parametrize("name", GOOD_RESULTS)
async def test_what_is_recorded_of_a_result_can_be_read_back(name: str, tmp_path: Any) -> None:
    """TL-13: a journal on disk takes it, and a later history holds it."""
    make, is_error = GOOD_RESULTS[name]
    provider = ScriptedProvider([call("work", {}, call_id="a")], "done")
    loop = AgentLoop(provider, tools=[giving(make)])
    async with RunController(loop, journal=SQLiteJournal(tmp_path / "runs.db")) as runs:
        run = await runs.start(RunSpec("run", "thread", (user_message("Hello", "input"),)))
        assert (await run.wait()).outcome == Completed()
        (end,) = [r.fact for r in await run.events() if isinstance(r.fact, CallFinished)]
    assert (end.outcome, end.is_error) == ("succeeded", is_error)
    message = Message("a", "tool", end.content, call_id="a")
    assert encode(HistoryCompacted((), (message,), "test"))


async def test_an_external_result_that_cannot_be_kept_is_a_failed_call() -> None:
    """TL-16, TL-13: a client's answer does not end the run."""
    run = rig(external_tool(ToolSpec("work", "Works.", {"type": "object"})))
    task = run.begin()
    while not run.of(RequestOpened):
        await asyncio.sleep(0)
    (opened,) = run.of(RequestOpened)
    run.answer(opened.request.id, ExternalResult((Structured(nested(MAX_DEPTH - 8)),)))
    await task
    assert run.outcome == Completed()
    assert (end_of(run).outcome, end_of(run).reason) == ("failed", "bad_result")


# A tool's own functions


def odd(_: int) -> int:
    return broken()  # type: ignore[no-any-return]


@tool(name="work", description="Works.")
async def picky(count: Annotated[int, AfterValidator(odd)] = 1) -> str:
    return f"did {count}"


READY = ToolSpec("work", "Works.", {"type": "object"})


def ready(**options: Any) -> Any:
    return schema_tool(READY, lambda arguments, ctx: "ok", **options)


REFUSALS: dict[str, tuple[Callable[[], Any], str]] = {
    "validator of a type": (lambda: picky, "hook_error"),
    "validate raises": (lambda: ready(validate=broken), "hook_error"),
    "validate gives nothing": (lambda: ready(validate=lambda given: None), "hook_error"),
    "validate gives text": (lambda: ready(validate=lambda given: "ab"), "hook_error"),
    "prepare gives a list": (lambda: ready(prepare=lambda given: [1]), "invalid_args"),
    "prepare gives nothing": (lambda: ready(prepare=lambda given: None), "invalid_args"),
    "resource is a list": (lambda: plain(resource=lambda given: [1]), "hook_error"),
    "resource raises": (lambda: plain(resource=broken), "hook_error"),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_tool_whose_own_functions_fail_refuses_the_call(name: str) -> None:
    """LP-27: steps 4 to 7 end in a refusal, whatever a tool's code does there."""
    make, reason = REFUSALS[name]
    script = [call("work", {"count": 2}, call_id="a")]
    run = LoopRig(AgentLoop(ScriptedProvider(script, "done"), tools=[make()]))
    assert await run.run() == Completed()
    assert (end_of(run).outcome, end_of(run).reason) == ("refused", reason)
    assert SECRET not in said(end_of(run))


async def test_a_shim_or_rewrite_that_gives_no_object_is_invalid_arguments() -> None:
    """LP-27: step 6, of a tool with a ready schema too."""
    config = LoopConfig(before_tool_call=lambda check: Rewrite([1]))  # type: ignore[arg-type]
    run = rig(ready(), config=config)
    assert await run.run() == Completed()
    assert (end_of(run).outcome, end_of(run).reason) == ("refused", "invalid_args")


@pytest.mark.parametrize("told", [lambda given: "soon", broken, lambda given: [1]])
async def test_a_tool_that_cannot_say_how_long_it_takes_still_runs(told: Any) -> None:
    """LP-48: its time limit counts instead."""
    run = rig(plain(expected=told), config=LoopConfig(stuck_tool=StuckToolConfig()))
    assert await run.run() == Completed()
    assert said(end_of(run)) == "did 1"


def test_a_resource_that_is_no_name_is_no_tools() -> None:
    """TL-1: refused where the tool is made."""
    with pytest.raises(ToolDefinitionError, match="resource"):
        plain(resource=[1])


strict: list[int] = []
"""Not empty: the type's own check fails."""


def check(count: int) -> int:
    return broken() if strict else count  # type: ignore[no-any-return]


async def test_a_call_whose_arguments_no_longer_thaw_is_tool_changed_after_a_crash() -> None:
    """LP-36, LP-49: a validator that raises anything does not keep the run from going on."""
    strict.clear()
    entered = asyncio.Event()

    @tool(name="work", description="Works.", effect="read")
    async def work(count: Annotated[int, AfterValidator(check)]) -> str:
        entered.set()
        await asyncio.Event().wait()
        return "never"

    def loop() -> AgentLoop:
        return AgentLoop(ScriptedProvider(*scripts), tools=[work])

    scripts: list[Any] = [[call("work", {"count": 2}, call_id="a")]]
    first = LoopRig(loop())
    task = first.begin()
    await entered.wait()
    cut = [record for record in first.records if not isinstance(record.fact, CallFinished)]
    task.cancel()
    await asyncio.wait({task})
    strict.append(1)
    scripts[:] = ["done"]
    second = LoopRig(loop(), records=cut)
    assert await second.resume() == Completed()
    assert end_of(second).reason == "tool_changed"


# Hooks


HOOKS: dict[str, tuple[dict[str, Any], object]] = {
    "tools that are none": ({"tools": 5}, Failed("hook", message="prepare_next_turn returned int as tools")),
    "a model's name": ({"model": "m"}, Failed("hook", message="prepare_next_turn returned str as model")),
    "settings": ({"settings": {}}, Failed("hook", message="prepare_next_turn returned dict as settings")),
    "a prompt": (
        {"system_prompt": 5},
        Failed("hook", message="prepare_next_turn returned int as system_prompt"),
    ),
    "messages": ({"messages": 5}, Failed("hook", message="prepare_next_turn returned int as messages")),
    "a stream of messages": (
        {"messages": iter(())},
        Failed("hook", message="prepare_next_turn returned tuple_iterator as messages"),
    ),
    "a message that cannot be kept": (
        {"messages": [Message("m", "user", (Text(5),))]},  # type: ignore[arg-type]
        Failed("hook", message="prepare_next_turn returned something that is no message"),
    ),
}


@pytest.mark.parametrize("name", HOOKS)
async def test_a_next_turn_with_a_wrong_type_in_it_ends_the_run_as_a_failed_hook(name: str) -> None:
    """LP-5, table of 2.4"""
    change, outcome = HOOKS[name]
    run = rig(config=LoopConfig(prepare_next_turn=lambda info: NextTurn(**change)))
    assert await run.run() == outcome


async def test_a_sync_hook_that_raises_a_cancellation_has_failed_and_cancels_nothing() -> None:
    """Table of 2.4, LP-46: nobody has cancelled the run's task."""

    def hook(_: object) -> None:
        raise asyncio.CancelledError

    run = rig(config=LoopConfig(before_tool_call=hook))
    assert await run.run() == Completed()
    assert (end_of(run).outcome, end_of(run).reason) == ("refused", "hook_error")


async def test_a_block_may_give_any_reason() -> None:
    """Table of 2.4: it is a refusal with text."""
    run = rig(config=LoopConfig(before_tool_call=lambda check: Block(5)))  # type: ignore[arg-type]
    assert await run.run() == Completed()
    assert said(end_of(run)) == "5"


@pytest.mark.parametrize("parts", ["text", ("text",), Text("text"), 5])
async def test_an_override_that_is_no_result_withholds_it(parts: Any) -> None:
    """Table of 2.4: the call stays succeeded."""
    run = rig(config=LoopConfig(after_tool_call=lambda done: Override(parts)))
    assert await run.run() == Completed()
    assert (end_of(run).outcome, end_of(run).error) == ("succeeded", "withheld")


async def test_notifications_that_cannot_be_subscribed_to_are_logged_and_polling_goes_on() -> None:
    """Table of 2.4, LP-26"""

    class Source:
        def __aiter__(self) -> Any:
            return broken()

    run = rig(config=LoopConfig(steering_notifications=Source()))
    assert await run.run() == Completed()
    assert said(end_of(run)) == "did 1"


@pytest.mark.parametrize(
    "message",
    [
        Message("m", "user", (Text(5),)),  # type: ignore[arg-type]
        Message(5, "user", (Text("x"),)),  # type: ignore[arg-type]
        Message("m", "user", (Text("x"),), metadata={"a": object()}),
        Message("m", "user", "text"),  # type: ignore[arg-type]
    ],
)
async def test_a_message_of_a_source_that_cannot_be_recorded_is_noted_and_skipped(message: Message) -> None:
    """§6: a source's item of a wrong type."""
    offered = [[message, user_message("and this", "good")]]

    def source(_: object) -> Sequence[Message]:
        return offered.pop() if offered else ()

    run = rig(config=LoopConfig(get_follow_up_messages=source))
    assert await run.run() == Completed()
    assert [said.text for said in run.messages if said.role == "user"] == ["Hello", "and this"]


async def test_tools_that_can_no_longer_be_given_end_the_run_with_an_outcome() -> None:
    """LP-7, TL-3: one end, also where the callable fails between two turns; its words are not told."""
    given = [1, 1]

    def supply() -> list[Any]:
        return [plain_one] if given and given.pop() else broken()

    plain_one = plain()
    run = LoopRig(AgentLoop(ScriptedProvider([call("work", {}, call_id="a")], "done"), tools=supply))
    given[:] = [1, 1]
    assert await run.run() == Failed("config", message="tools: what gives them raised KeyError")
    assert run.kinds[-1] == "run_ended"
    given[:] = []
    with pytest.raises(StartRefused, match="tools"):
        await LoopRig(run.loop).run()


# Approval


async def never(*_: object) -> bool:
    return False


@pytest.mark.parametrize(
    "policy",
    [
        {"mode": "always", "allow": [never]},
        {"mode": "always", "deny": [never]},
        {"ask": [never]},
        {"critical": never},
    ],
)
async def test_an_async_function_in_the_policy_lets_nothing_through(policy: dict[str, Any]) -> None:
    """LP-33: a coroutine is true, whatever it would come to; a policy that fails denies."""
    run = rig(config=LoopConfig(approval=ApprovalPolicy(**policy)))
    assert await run.run() == Completed()
    assert (end_of(run).outcome, end_of(run).reason) == ("refused", "denied")


@pytest.mark.parametrize("name", ["deny", "ask", "allow"])
def test_one_name_in_the_place_of_a_list_is_refused(name: str) -> None:
    """LP-33, §6: its letters would be taken for patterns, and match nothing."""
    with pytest.raises(ConfigError, match=rf"approval\.{name} must be a list"):
        ApprovalPolicy(**{name: "work"})


async def test_an_answer_whose_rule_cannot_be_made_is_rejected_and_the_request_stays_open() -> None:
    """LP-35, §6: `remember` is the policy's own code."""
    policy = ApprovalPolicy(mode="always", remember=broken)
    run = rig(config=LoopConfig(approval=policy))
    task = run.begin()
    while not run.of(RequestOpened):
        await asyncio.sleep(0)
    (opened,) = run.of(RequestOpened)
    run.answer(opened.request.id, Allow(scope="thread"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    run.answer(opened.request.id, Allow())
    await task
    assert run.outcome == Completed()
    assert said(end_of(run)) == "did 1"


# Configuration


@pytest.mark.parametrize(
    "name", ["turns", "requests", "tool_calls", "total_tokens", "deadline", "parallel_tools"]
)
@pytest.mark.parametrize("value", ["5", -1, float("nan"), [], {}])
def test_a_limit_that_is_no_number_is_refused_with_its_name(name: str, value: object) -> None:
    """§6"""
    with pytest.raises(ConfigError, match=rf"limits\.{name}"):
        Limits(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["much", float("inf"), float("nan"), "-1", True, []])
def test_money_that_is_no_amount_is_refused(value: object) -> None:
    """§6, LP-38"""
    with pytest.raises(ConfigError, match=r"limits\.cost"):
        Limits(cost=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("mine", ["1.50", Decimal("1.50"), 1.5])
def test_a_limit_on_money_is_lowered_however_it_is_written(mine: Any) -> None:
    """§2.1: `loop.limits` may lower, never raise."""
    assert Limits(cost=mine).lowered({"cost": 1}).cost == 1
    assert Limits(cost=mine).lowered({"cost": 2}).cost == mine


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "some-model"),
        ("settings", {}),
        ("limits", None),
        ("retry", 3),
        ("approval", "never"),
        ("before_tool_call", "hook"),
        ("over_window_relief", 5),
        ("tool_timeout", "10"),
        ("cancel_grace", None),
        ("max_empty_retries", "x"),
        ("context_window_cap", "big"),
        ("steering_policy", []),
        ("steering_notifications", 5),
        ("hook_timeout", float("nan")),
    ],
)
def test_an_option_of_a_wrong_type_is_refused_with_its_name(name: str, value: object) -> None:
    """§6: at construction, naming field and value."""
    with pytest.raises(ConfigError, match=name):
        LoopConfig(**{name: value})  # type: ignore[arg-type]


def test_a_retry_policy_is_of_numbers() -> None:
    """§6"""
    with pytest.raises(ConfigError, match=r"retry\.attempts"):
        RetryPolicy(attempts="3")  # type: ignore[arg-type]


class Outcome(BaseException):
    """As test runners and other event loops have them."""


@pytest.mark.parametrize("kind", [Outcome, GeneratorExit])
async def test_a_run_whose_code_raises_what_is_no_exception_is_unknown_and_nobody_waits_for_ever(
    kind: type[BaseException],
) -> None:
    """LP-46, RC §3.8: a fault is raised, and the run has an end for everybody who waits."""
    provider = ScriptedProvider([call("work", {}, call_id="a")], "done")

    def supply() -> list[Tool]:
        if provider.requests:
            raise kind("x")
        return [plain()]

    async with RunController(AgentLoop(provider, tools=supply)) as runs:
        run = await runs.start(RunSpec("run", "thread", (user_message("Hello", "input"),)))
        found = (await asyncio.wait_for(run.wait(), 30)).outcome
        assert found == Unknown("error", f"{kind.__name__}: x")


@pytest.mark.parametrize(
    "event",
    [
        TextDelta(0, b"bytes"),  # type: ignore[arg-type]
        TextDelta(0, 5),  # type: ignore[arg-type]
        TextDelta("0", "x"),  # type: ignore[arg-type]
        TextDelta([], "x"),  # type: ignore[arg-type]
        ReasoningDelta(1, b"bytes"),  # type: ignore[arg-type]
        ReasoningDelta(1, 5),  # type: ignore[arg-type]
        ReasoningDelta(None, "x"),  # type: ignore[arg-type]
        ToolCallDelta(1, "c", 5),  # type: ignore[arg-type]
        ToolCallDelta(1, 5, "work"),  # type: ignore[arg-type]
        ToolCallDelta(1, "c", "work", b"{}"),  # type: ignore[arg-type]
        ToolCallDelta({}, "c", "work"),  # type: ignore[arg-type]
        BlockEnded(0, provider_data=object()),
        BlockEnded(0, provider_data={"x": float("nan")}),
        Notice(5),  # type: ignore[arg-type]
        ResponseStarted(5),  # type: ignore[arg-type]
    ],
    ids=lambda event: type(event).__name__,
)
async def test_an_event_of_a_wrong_shape_is_a_fault_of_the_adapter(event: ProviderEvent) -> None:
    """PV-1, RC-17: a typed end that says what was wrong; what came before it is kept, and the next send works."""
    shown: list[str] = []
    provider = ScriptedProvider([TextDelta(0, "so far"), event, " and more"], "well")
    agent = AgentController(provider, on_response_chunk=lambda piece, _: shown.append(piece))
    outcome = await (await agent.send("hi")).wait()
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.retryable) == ("bug", False)
    assert type(event).__name__ in outcome.message
    assert shown == ["so far"]
    assert agent.partial is not None
    assert agent.partial.text == "so far"
    assert (await (await agent.send("again")).result()).text == "well"
    await agent.aclose()


async def test_arguments_that_are_no_json_are_the_models_business() -> None:
    """PV-6: an object that cannot be stored is refused as arguments, and the model is told."""
    run = LoopRig(
        AgentLoop(
            ScriptedProvider([ToolCallDelta(0, "a", "work", {"count": float("nan")}, "a")], "done"),
            tools=[plain()],
        )
    )
    assert await run.run() == Completed()
    assert "not JSON" in said(end_of(run))
