"""Several AI controllers as one: keys, names, claims, tools, what the model is told (TC §3.6, §3.10)."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from controlkit import Number, Plain, Told
from convkit import passes
from pilothouse import AgentController, BaseAIController, Export, LoopConfig, RunExtras, current_reply
from pilothouse.errors import (
    ConfigError,
    ControllerInUse,
    DuplicateTool,
    HookTimeout,
    InvalidTarget,
    UsageError,
)
from pilothouse.loop.tools import tool
from pilothouse.messages import ToolSpec
from pilothouse.testing import Hold, ScriptedProvider, ScriptedRuntime, StepClock
from pilothouse.testing.scripted import call, failure


@tool
def look() -> str:
    """Looks."""
    return "seen"


class Bare:
    """Any object with get_tools() is a controller."""

    def __init__(self, *tools) -> None:
        self.tools = tools

    def get_tools(self):
        return list(self.tools)


class Named(Bare):
    def __init__(self, namespace, *tools, instructions=None) -> None:
        super().__init__(*tools)
        self.namespace = namespace
        self.instructions = instructions


def names(provider, at=-1):
    return [spec.name for spec in provider.requests[at].tools]


async def test_a_namespace_is_put_before_the_names() -> None:
    """TC-61: the tool object is not changed; plain functions and tools alike; order is that of the controllers."""

    def own() -> str:
        """Own."""
        return "own"

    provider = ScriptedProvider([call("b__look"), call("own")], "ok")
    async with AgentController(
        provider, tools=[look], controllers=[Named("a", look), Named("b", look), Named("", own)]
    ) as agent:
        reply = await agent.send("hi")
        await reply.result()
        assert names(provider) == ["look", "a__look", "b__look", "own"]
        assert [m.text for m in agent.messages if m.role == "tool"] == ["seen", "own"]
    assert look.spec.name == "look"


@pytest.mark.parametrize("namespace", ["A", "1a", "a__b", "a-b", "a" * 25, "_a", 5])
def test_a_bad_namespace_is_refused(namespace) -> None:
    """TC-61, TC §8."""
    with pytest.raises(ConfigError, match="namespace"):
        AgentController(ScriptedProvider("ok"), controllers=[Named(namespace)])


def test_keys_are_unique() -> None:
    """TC-62: the namespace, else the class."""
    with pytest.raises(ConfigError, match="Bare and Bare have the same key 'Bare'"):
        AgentController(ScriptedProvider("ok"), controllers=[Bare(), Bare()])
    AgentController(ScriptedProvider("ok"), controllers=[Bare(), Named("Bare".lower())])


@pytest.mark.parametrize("item", [5, "text", None, object()])
def test_what_is_no_controller_is_refused(item) -> None:
    """TC §8: index and type are named."""
    with pytest.raises(TypeError, match=rf"controllers\[1\].*{type(item).__name__}"):
        AgentController(ScriptedProvider("ok"), controllers=[Bare(), item])
    with pytest.raises(TypeError, match=r"controllers\[0\] made"):
        AgentController(ScriptedProvider("ok"), controllers=[lambda: item])


def test_two_tools_of_one_name_name_both_owners() -> None:
    """TC-64: at construction, over controllers and tools=."""
    with pytest.raises(DuplicateTool) as caught:
        AgentController(ScriptedProvider("ok"), tools=[look], controllers=[Bare(look)])
    assert caught.value.name == "look"
    assert set(caught.value.owners) == {"the conversation's tools", "Bare"}
    with pytest.raises(DuplicateTool, match=r"Bare.*Named|Named.*Bare"):
        AgentController(ScriptedProvider("ok"), controllers=[Bare(look), Named("", look)])


async def test_a_duplicate_that_comes_later_refuses_the_send() -> None:
    """TC-64, AC-168: checked in every send, client tools too; the text is kept."""
    changing = Named("n", look)
    provider = ScriptedProvider("ok", "ok")
    async with AgentController(provider, tools=[look], controllers=[changing]) as agent:
        extras = RunExtras(client_tools=[ToolSpec("n__look", "x", {"type": "object"})])
        with pytest.raises(DuplicateTool) as caught:
            await agent.send("hi", extras=extras)
        assert caught.value.owners == ("the client", "n")
        changing.tools = (look, look)
        with pytest.raises(DuplicateTool):
            await agent.send("hi")
        assert (agent.last_reply.user_message.text, agent.messages, provider.requests) == ("hi", (), [])
        changing.tools = (look,)
        await (await agent.send("hi")).result()


def test_a_tool_that_cannot_be_offered() -> None:
    """TC-61, TC-64: names of at most 64 characters together; both names are told."""

    @tool(name="x" * 50)
    def long() -> str:
        """Long."""
        return ""

    with pytest.raises(ConfigError, match=r"x{50}.*of nnnnnnnnnnnnnnnnnn.*nnnnnnnnnnnnnnnnnn__x{50}"):
        AgentController(ScriptedProvider("ok"), controllers=[Named("n" * 18, long)])
    bad = tool(look.function)
    bad.spec = ToolSpec("look", "", {"type": "string"})
    with pytest.raises(ConfigError, match="schema of an object"):
        AgentController(ScriptedProvider("ok"), controllers=[Bare(bad)])


async def test_an_instance_serves_one_conversation_at_a_time() -> None:
    """TC-63: until that is closed, or collected; a failed constructor claims nothing."""
    shared = Bare(look)
    first = AgentController(ScriptedProvider("ok"), controllers=[shared])
    with pytest.raises(ControllerInUse) as caught:
        AgentController(ScriptedProvider("ok"), controllers=[Named("free"), shared])
    assert caught.value.key == "Bare"
    await first.aclose()
    second = AgentController(ScriptedProvider("ok"), controllers=[shared])
    del second
    gc.collect()
    with pytest.raises(DuplicateTool):
        AgentController(ScriptedProvider("ok"), tools=[look], controllers=[shared])
    third = AgentController(ScriptedProvider("ok"), controllers=[shared])
    assert third.controllers == (shared,)
    await third.aclose()


async def test_what_raises_at_registration_gives_all_claims_back() -> None:
    """TC-67."""

    class Broken(Bare):
        def get_tools(self):
            raise OSError("gone")

    good = Bare(look)
    with pytest.raises(OSError, match="gone"):
        AgentController(ScriptedProvider("ok"), controllers=[good, Broken()])
    await AgentController(ScriptedProvider("ok"), controllers=[good]).aclose()


async def test_a_runtime_without_host_tools() -> None:
    """TC-66: hooks alone work; tools and instructions have nowhere to go."""
    with pytest.raises(ConfigError, match="controllers have tools"):
        AgentController(ScriptedRuntime(), controllers=[Bare(look)])
    with pytest.raises(ConfigError, match="instructions"):
        AgentController(ScriptedRuntime(), controllers=[Named("n", instructions="Do.")])

    async def text(messages):
        yield "ok"

    with pytest.raises(ConfigError, match="text-only"):
        AgentController(text, controllers=[Bare(look)])
    told = Told()

    class Hooks(BaseAIController):
        def on_request(self, event):
            told.append(("request",))

        def on_response(self, event):
            told.append(("response",))

    async with AgentController(text, controllers=[Hooks()]) as agent:
        assert (await (await agent.send("hi")).result()).text == "ok"
    assert told.names() == ["request", "response"]


async def test_factories_make_controllers_for_each_conversation() -> None:
    """TC-69, AC-131: siblings; an object cannot be shared out."""
    made = []

    def make():
        made.append(Number("n"))
        return made[-1]

    async with AgentController(ScriptedProvider(*["ok"] * 4), controllers=[make]) as agent:
        twin = agent.sibling()
        assert len(made) == 2
        assert twin.controllers[0] is not agent.controllers[0]
        await (await twin.send("hi")).result()
        await twin.aclose()
        await (await agent.send("hi")).result()
        await agent.aclose()
    with pytest.raises(ConfigError, match="'n' serves one conversation"):
        AgentController(ScriptedProvider("ok"), controllers=[Number("n")]).sibling()
    AgentController(ScriptedProvider("ok"), controllers=[Number])  # a class is a factory


async def test_closing_closes_what_was_not_open_before(caplog: pytest.LogCaptureFixture) -> None:
    """TC-68: bounded, in reverse order; a failing one holds up nobody, and is told of."""
    closed = []

    class Closing(Named):
        is_open = False

        async def aclose(self):
            closed.append(self.namespace)
            if self.namespace == "b":
                raise OSError("broken pipe")

    kept = Closing("c")
    kept.is_open = True
    agent = AgentController(ScriptedProvider("ok"), controllers=[Closing("a"), Closing("b"), kept])
    await agent.aclose()
    await agent.aclose()
    assert closed == ["b", "a"]
    (failed,) = [record for record in caplog.records if "could not be closed" in record.message]
    assert "broken pipe" in str(failed.exc_info)


# What the model sees


async def test_tool_definitions_and_earlier_messages_stay_byte_for_byte() -> None:
    """TC-46, TC-103, proof 7: over 50 sends whose context changes each time."""
    times = iter(range(100))
    provider = ScriptedProvider(*["ok"] * 50)
    async with AgentController(
        provider,
        controllers=[Number("n"), Named("m", look, instructions="Look twice.")],
        send_context=lambda event: f"it is {next(times)}",
        system_prompt="Be kind.",
    ) as agent:
        for number in range(50):
            await (await agent.send(f"message {number}")).result()
    first, last = provider.requests[0], provider.requests[-1]
    assert {repr(request.tools) for request in provider.requests} == {repr(first.tools)}
    assert {request.system_prompt for request in provider.requests} == {first.system_prompt}
    for request in provider.requests:
        assert list(request.messages) == list(last.messages)[: len(request.messages)]
    assert "it is 3" in repr(last.messages[6])
    assert all("it is" not in message.text for message in last.messages)  # no part of what is shown


async def test_instructions_stand_behind_the_applications_own() -> None:
    """TC-104: in order, each under a heading, and the application's text comes first."""
    provider = ScriptedProvider("ok")
    controllers = [Named("b", instructions="Say B."), Named("a", instructions=" Say A. \n"), Named("c")]
    async with AgentController(provider, controllers=controllers, system_prompt="Be kind.") as agent:
        await (await agent.send("hi")).result()
    prompt = provider.requests[0].system_prompt
    assert prompt.startswith("Be kind.\n\n")
    assert (
        prompt.index("the text above holds") < prompt.index("## b\n\nSay B.") < prompt.index("## a\n\nSay A.")
    )
    assert "## c" not in prompt
    with pytest.raises(ConfigError, match="8192"):
        AgentController(ScriptedProvider("ok"), controllers=[Named("n", instructions="x" * 8193)])


async def test_a_text_form_is_given_the_instructions_too() -> None:
    """TC-104, AC-52."""
    seen = []

    async def model(messages, options):
        seen.append(options.system_prompt)
        yield "ok"

    async with AgentController(model, controllers=[Named("n", instructions="Say N.")]) as agent:
        await (await agent.send("hi")).result()
    assert seen[0].endswith("Say N.")


async def test_a_runtime_without_a_system_prompt_is_told_by_a_tool() -> None:
    """TC-104: its description says it, and its result again."""
    offered = []

    class Agent(ScriptedRuntime):
        takes_instructions = False

        def offering(self, tools, instructions, *, digest=""):
            offered.append(([made.name for made in tools], instructions, tools[-1]))
            return self

    AgentController(Agent(), controllers=[Named("n", look, instructions="Look twice.")])
    (names_, instructions, last) = offered[0]
    assert (names_, instructions) == (["n__look", "n__instructions"], "")
    assert last.spec.description == "Look twice."
    assert last({}, None) == "Look twice."


async def test_a_set_that_changes_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """TC-2, TC-65: and the model is offered the new one, in that send."""
    changing = Named("n", look)
    provider = ScriptedProvider("a", "b", "c")
    caplog.set_level(logging.INFO, "pilothouse.conversation")
    async with AgentController(provider, controllers=[changing]) as agent:
        await (await agent.send("1")).result()
        await (await agent.send("2")).result()
        assert "have changed" not in caplog.text

        def other() -> str:
            """Other."""
            return "x"

        changing.tools = (look, other)
        await (await agent.send("3")).result()
    assert [names(provider, at) for at in range(3)] == [["n__look"], ["n__look"], ["n__look", "n__other"]]
    assert caplog.text.count("have changed") == 1


@pytest.mark.parametrize("context", ["it is noon", lambda event: "it is noon"], ids=["text", "callable"])
async def test_context_is_stored_with_the_message(context) -> None:
    """TC-46: its last part; retry and regenerate keep it."""
    provider = ScriptedProvider([failure("auth", "x")], "ok", "other")
    async with AgentController(provider, send_context=context) as agent:
        await (await agent.send("hi")).wait()
        assert agent.messages[0].text == "hi"
        agent.update_options(send_context=lambda event: "never asked again")
        await (await agent.retry()).result()
        await (await agent.regenerate(agent.messages[-1].id)).result()
    assert {repr(request.messages[0]) for request in provider.requests} == {repr(agent.messages[0])}
    assert [part.text for part in agent.messages[0].parts] == ["hi", "it is noon"]


@pytest.mark.parametrize("context", [None, "", "  ", lambda event: None, lambda event: " "])
async def test_no_context_is_none(context) -> None:
    """TC-46."""
    async with AgentController(ScriptedProvider("ok"), send_context=context) as agent:
        await (await agent.send("hi")).result()
        assert len(agent.messages[0].parts) == 1


async def test_context_must_be_text() -> None:
    """TC-46: a failure before the commit."""
    async with AgentController(ScriptedProvider("ok"), send_context=lambda event: 5) as agent:
        with pytest.raises(TypeError, match="send_context"):
            await agent.send("hi")


# Re-entrance (TC-91)


@pytest.mark.parametrize("how", ["wait", "result", "wait_closed"])
async def test_a_tool_that_waits_for_its_own_reply_is_told_so(how: str) -> None:
    """TC-91: it would wait for itself; a task of its own does not, and hears the end."""
    tasks = []

    @tool
    async def act() -> str:
        """Acts."""
        reply = current_reply()
        tasks.append(asyncio.create_task(getattr(reply, how)()))
        try:
            await getattr(reply, how)()
        except UsageError as error:
            return str(error)
        return "waited"

    provider = ScriptedProvider([call("act")], "done")
    async with AgentController(provider, tools=[act], controllers=[Number("n")]) as agent:
        assert (await (await agent.send("hi")).result()).text == "done"
        (result,) = [message for message in provider.requests[-1].messages if message.role == "tool"]
        assert "would wait for itself" in result.text
        await asyncio.gather(*tasks)


@pytest.mark.parametrize(
    "where", ["request", "response", "prepare", "tool", "loop", "interceptor", "listener"]
)
@pytest.mark.parametrize("policy", ["raise", "queue", "supersede", "drop"])
async def test_a_send_inside_the_live_send(where: str, policy: str) -> None:
    """TC-91, proof 6: it would wait for itself; a task of its own does not."""
    seen = []
    tasks = []
    agent: AgentController

    async def try_it(*_) -> None:
        if seen:
            return
        seen.append("tried")
        try:
            reply = await agent.send("again", when_busy=policy)
            seen.append(reply.ending)
        except UsageError as error:
            seen.append(type(error).__name__)
        if policy == "queue":
            tasks.append(asyncio.create_task(agent.send("task", when_busy="queue")))

    @tool
    async def act() -> str:
        """Acts."""
        if where == "tool":
            await try_it()
        return "done"

    number = Number("n")
    if where == "prepare":
        number.fail["prepare"] = try_it
    at = {where: try_it, "is_async": True} if where in ("request", "response") else {}
    agent = AgentController(
        ScriptedProvider([call("act"), call("n__add", {"by": 1})], "one", "two", "three"),
        tools=[act],
        controllers=[number, Plain(Told(), "p", **at)],
        interceptor=try_it if where == "interceptor" else None,
        request_listener=try_it if where == "listener" else None,
        config=LoopConfig(before_tool_call=try_it) if where == "loop" else None,
    )
    async with agent:
        await (await agent.send("hi")).wait()
        await passes()
        assert seen[1] == {"raise": "AgentBusy", "drop": "rejected"}.get(policy, "UsageError")
        for task in tasks:
            assert (await (await task).result()).text == "two"


async def test_a_send_inside_an_end_hook_after_a_stop() -> None:
    """TC-91: the state is idle then, and the hook is still one of the send that was stopped."""
    seen = []
    hold = Hold()

    async def again(event) -> None:
        try:
            await agent.send("again", when_busy="queue")
        except UsageError as error:
            seen.append(str(error))

    agent = AgentController(
        ScriptedProvider(["a", hold], "b"), controllers=[Plain(Told(), "p", response=again, is_async=True)]
    )
    async with agent:
        await agent.send("hi")
        await hold.reached()
        agent.abort()
        for _ in range(200):
            await asyncio.sleep(0)
            if seen:
                break
    assert "wait for itself" in seen[0]


# Exports (TC-124)


class Exporting(BaseAIController):
    namespace = "x"

    def __init__(self) -> None:
        self.exports = {"rows": self.rows, "slow": self.slow}

    async def rows(self, parameters):
        if parameters.get("limit") == "no":
            raise ValueError("limit must be a number")
        return Export("application/json", b"[]", "rows.json")

    async def slow(self, parameters):
        await asyncio.Event().wait()


async def test_a_surface_fetches_exports_by_name() -> None:
    """TC-124: read-only, bounded, ValueError for a bad parameter."""
    clock = StepClock()
    agent = AgentController(ScriptedProvider("ok"), controllers=[Exporting()], clock=clock, hook_timeout=2)
    assert agent.exports == {"x": ("rows", "slow")}
    assert await agent.export("x", "rows") == Export("application/json", b"[]", "rows.json")
    with pytest.raises(ValueError, match="limit"):
        await agent.export("x", "rows", {"limit": "no"})
    for key, name in (("x", "other"), ("y", "rows")):
        with pytest.raises(InvalidTarget):
            await agent.export(key, name)
    fetching = asyncio.ensure_future(agent.export("x", "slow"))
    await clock.until_sleeping()
    await clock.advance(2)
    with pytest.raises(HookTimeout):
        await fetching
    await agent.aclose()


async def test_an_object_that_can_be_called_is_a_tool_too() -> None:
    """TC-2: hashable or not."""

    class Wave:
        __name__ = "wave"
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> str:
            """Waves."""
            return "hello"

        def __eq__(self, other: object) -> bool:
            return self is other

    provider = ScriptedProvider([call("n__wave")], "ok")
    async with AgentController(provider, controllers=[Named("n", Wave())]) as agent:
        await (await agent.send("hi")).result()
        assert [m.text for m in agent.messages if m.role == "tool"] == ["hello"]
