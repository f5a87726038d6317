"""What a user's code raises that is no `Exception` is a failure like any other: typed, told, and over (AC-66, LP-7)."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pilothouse.conversation.controller import AgentController
from pilothouse.conversation.files import UploadFile, UploadOptions, UploadResult
from pilothouse.conversation.staging import StagedController
from pilothouse.conversation.uploads import UploadController
from pilothouse.events import Completed, Failed, Incomplete, Outcome, Unknown
from pilothouse.loop.approval import ApprovalPolicy
from pilothouse.loop.config import LoopConfig
from pilothouse.loop.tools import tool
from pilothouse.records import Descriptor
from pilothouse.testing.scripted import Hold, ScriptedProvider, call

TIME_S = 20.0
"""For what must not hang, which none of it should need."""


class Odd(BaseException):
    """Neither an `Exception` nor one of those that end something."""


STRANGE: list[type[BaseException]] = [GeneratorExit, Odd]


class Raises:
    """A function that raises once, and then returns None; `told` is a coroutine function that does the same."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind: type[BaseException] | None = kind

    def __call__(self, *_: Any, **__: Any) -> None:
        kind, self.kind = self.kind, None
        if kind is not None:
            raise kind("strange")

    async def told(self, *_: Any, **__: Any) -> None:
        self()


def talker(raises: Raises, **options: Any) -> AgentController:
    """A conversation that calls a tool; the options say what is strange."""
    options = {name: value(raises) if callable(value) else value for name, value in options.items()}
    made = options.pop("tool", {})

    @tool(name="work", **made)
    async def work() -> str:
        """Works."""
        return "worked"

    provider = ScriptedProvider(["a", call("work")], "done", "second", "third")
    return AgentController(provider, tools=[work], close_timeout=TIME_S, **options)


def hook(name: str, *, awaited: bool) -> Callable[[Raises], AgentController]:
    return lambda raises: talker(raises, config=LoopConfig(**{name: raises.told if awaited else raises}))


def callback(name: str, *, awaited: bool) -> Callable[[Raises], AgentController]:
    return lambda raises: talker(raises, **{name: lambda r: r.told if awaited else r})


class Stream:
    """A provider that raises at a place of its stream."""

    tag = "strange"

    def __init__(self, raises: Raises, at: str) -> None:
        self._inner = ScriptedProvider(["he", "llo"], "second", "third")
        self.default_model = self._inner.default_model
        self._raises, self._at = raises, at

    def stream(self, request: Any, /) -> Any:
        if self._at == "call":
            self._raises()
        return self._events(request)

    async def _events(self, request: Any) -> Any:
        try:
            if self._at == "first":
                self._raises()
            async for event in self._inner.stream(request):
                yield event
                if self._at == "middle":
                    self._raises()
        finally:
            if self._at == "close":
                self._raises()

    async def aclose(self) -> None:
        pass


class Plugged(StagedController[dict]):
    """An AI controller with a state whose part `at` raises."""

    def __init__(self, raises: Raises, at: str) -> None:
        self._raises, self._at = raises, at

    def _do(self, part: str) -> None:
        if part == self._at:
            self._raises()

    def get_tools(self) -> Any:
        @tool(name="work")
        async def work() -> str:
            """Works."""
            self.stage({"a": 1})
            return "worked"

        return [work]

    def encode(self, value: dict) -> dict:
        return value

    def decode(self, data: Any, version: int) -> dict:
        return data

    def public(self, value: dict) -> dict:
        self._do("public")
        return value

    async def prepare(self, value: dict, reply: Any) -> None:
        self._do("prepare")

    def apply(self, value: dict, prepared: object) -> None:
        self._do("apply")
        super().apply(value, prepared)

    async def on_response(self, event: Any) -> None:
        self._do("on_response")

    async def aclose(self) -> None:
        self._do("aclose")


def plugged(at: str) -> Callable[[Raises], AgentController]:
    def make(raises: Raises) -> AgentController:
        provider = ScriptedProvider(lambda r: [call(r.tools[0].name)], "done", "second", "third")
        return AgentController(provider, controllers=[Plugged(raises, at)], close_timeout=TIME_S)

    return make


class Foreign:
    """Somebody else's runtime."""

    def __init__(self, raises: Raises) -> None:
        self._raises = raises

    def describe(self) -> Descriptor:
        return Descriptor("strange")

    async def run(self, start: Any, port: Any, /) -> None:
        self._raises()
        from pilothouse.events import RunEnded

        await port.record(RunEnded(Completed()))


def text_form(raises: Raises) -> AgentController:
    async def answer(messages: Any) -> str:
        raises()
        return "hello"

    return AgentController(answer, close_timeout=TIME_S)


PLACES: dict[str, tuple[Callable[[Raises], AgentController], type[Outcome]]] = {
    **{
        f"{name}, {'async' if awaited else 'sync'}": (hook(name, awaited=awaited), ends)
        for name, ends in {
            "before_tool_call": Completed,
            "after_tool_call": Completed,
            "transform_context": Failed,
            "prepare_next_turn": Failed,
            "should_stop_after_turn": Incomplete,
            "get_steering_messages": Completed,
            "get_follow_up_messages": Completed,
        }.items()
        for awaited in (False, True)
    },
    **{
        f"{name}, {'async' if awaited else 'sync'}": (callback(name, awaited=awaited), Completed)
        for name in (
            "on_state_change",
            "on_messages_change",
            "on_response_start",
            "on_response_chunk",
            "on_response_complete",
            "response_listener",
        )
        for awaited in (False, True)
    },
    **{
        f"stream, {at}": (lambda r, at=at: AgentController(Stream(r, at)), Failed)
        for at in ("call", "first", "middle")
    },
    "stream, close": (lambda r: AgentController(Stream(r, "close")), Completed),
    "text form": (text_form, Failed),
    "approval policy": (
        lambda r: talker(r, config=LoopConfig(approval=ApprovalPolicy(critical=r))),
        Completed,
    ),
    **{
        f"tool, {name}": (lambda r, name=name: talker(r, tool={name: r}), Completed)
        for name in ("approval", "effect", "prepare")
    },
    "tool, resource": (lambda r: talker(r, tool={"resource": r, "effect": "idempotent"}), Completed),
    **{
        f"AI controller, {at}": (plugged(at), Completed)
        for at in ("public", "apply", "on_response", "aclose")
    },
    "AI controller, prepare": (plugged("prepare"), Failed),
    "runtime": (lambda r: AgentController(Foreign(r), close_timeout=TIME_S), Unknown),
}


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("place", PLACES)
async def test_a_send_ends_typed_whatever_is_raised(place: str, strange: type[BaseException]) -> None:
    """LP-7, AC-66, §2.4: nobody waits for ever, the next send works, and so does the close."""
    make, ends = PLACES[place]
    raises = Raises(strange)
    agent = make(raises)
    async with asyncio.timeout(TIME_S):
        reply = await agent.send("1")
        assert isinstance(await reply.wait(), ends)
        assert await reply.wait_closed()
        if ends is Unknown:
            await reply.run.abandon("it was strange")
            await agent.open()
        assert isinstance(await (await agent.send("2")).wait(), Completed)
        await agent.aclose()
    assert raises.kind is None, "it was never called"


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("place", ["upload", "validate", "on_upload_complete", "on_attachment_update"])
async def test_uploads_end_whatever_is_raised(place: str, strange: type[BaseException]) -> None:
    """AC-142, AC-143: it is the file's own failure, and nobody waits for ever."""
    raises = Raises(strange)

    class Store:
        async def upload(self, file: UploadFile, options: UploadOptions) -> UploadResult:
            if place == "upload":
                raises()
            return UploadResult(f"https://files.example/{file.name}")

        def validate(self, file: UploadFile) -> None:
            if place == "validate":
                raises()

    more = {place: raises} if place.startswith("on_") else {}
    async with asyncio.timeout(TIME_S), UploadController(Store(), max_retries=0, **more) as uploads:
        uploads.add([UploadFile.from_bytes(b"1", "one.txt"), UploadFile.from_bytes(b"2", "two.txt")])
        first, second = await uploads.wait()
        assert second.status == "complete"
        if place.startswith("on_"):
            assert first.status == "complete"
        else:
            assert first.status == "error"
            assert strange.__name__ in str(first.error)
    assert raises.kind is None


def test_a_conversation_that_is_thrown_away_leaves_at_once() -> None:
    """LP-46: `GeneratorExit` that closes a coroutine is no failure of anybody's: nothing is awaited any more."""
    complaints: list[Any] = []
    gc.collect()  # what other tests left is not looked at
    before, sys.unraisablehook = sys.unraisablehook, complaints.append
    try:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # of the tasks that are thrown away
        hold = Hold()
        agent = AgentController(ScriptedProvider(["a", hold]))
        loop.run_until_complete(agent.send("1"))
        loop.run_until_complete(hold.reached())
        loop.close()
        del agent, hold, loop
        gc.collect()
    finally:
        sys.unraisablehook = before
    assert [str(item.exc_value) for item in complaints] == []
