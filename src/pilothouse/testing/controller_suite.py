"""The contract of an AI controller as tests: subclass in a test module, and say how yours is made.

```python
class TestMine(AIControllerConformance):
    def make(self):
        return MyController(database=":memory:")         # a fresh one, over the same outside world

    scripts = ([call("mine__fill", {"value": 1})], "done")   # what a model does with it, until it says something
```

`scripts` are responses as `ScriptedProvider` plays them; they must call tools of the controller, and end with a text. Of a
`StagedController` with endings that commit they must stage something. No plug-in is needed: each test runs an event loop of its own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Final, TypeAlias, TypeGuard

from ..contracts import Journal
from ..conversation.composition import Composition, Member
from ..conversation.controller import AgentController
from ..conversation.controllers import AIController
from ..conversation.staging import Change, StagedController
from ..core.canonical import digest_of, encode
from ..errors import ControllerInUse, ReplyFailed
from ..journal.memory import MemoryJournal
from .scripted import Hold, ScriptedProvider, failure

LIMIT_S: Final = 60.0

Check: TypeAlias = Callable[["AIControllerConformance"], Coroutine[object, object, None]]


def _check(body: Check) -> Callable[[AIControllerConformance], None]:
    """Makes a test method of a check: a loop of its own, and a limit of time."""

    async def run(suite: AIControllerConformance) -> None:
        async with asyncio.timeout(LIMIT_S):
            await body(suite)

    def test(self: AIControllerConformance) -> None:
        asyncio.run(run(self))

    test.__name__, test.__qualname__, test.__doc__ = body.__name__, body.__qualname__, body.__doc__
    return test


class _Neighbour:
    """Another controller of the same conversation; refuses sends when it is told to."""

    namespace = "neighbour"

    def __init__(self) -> None:
        self.refuses = False

    def get_tools(self) -> Sequence[Any]:
        return [self.wave]

    def wave(self) -> str:
        """Waves."""
        return "hello"

    def on_request(self, event: object) -> None:
        if self.refuses:
            raise PermissionError("the neighbour refuses")


class AIControllerConformance:
    """What every AI controller must do in a conversation; subclass it and define `make`, and `scripts` if it has tools.

    Attributes:
        scripts: responses of a model that calls its tools and then says something.
    """

    scripts: ClassVar[Sequence[Any]] = ("done",)

    def make(self) -> AIController:
        """A fresh controller."""
        raise TypeError(f"{type(self).__name__} must say how its controller is made")

    async def begin(self, controller: AIController) -> None:
        """Makes it ready for the scripts, if it needs that: connects it, gives it a model."""

    def _agent(self, controller: AIController, *scripts: Any, **options: Any) -> AgentController:
        provider = ScriptedProvider(*(scripts or self.scripts))
        return AgentController(provider, controllers=[controller, *options.pop("others", ())], **options)

    @_check
    async def test_its_shape_is_stable(self) -> None:
        """TC-61, TC-62, TC-104: namespace, instructions, exports and tools are what a conversation takes, and stay so."""
        controller = self.make()
        member = Member(controller)
        assert Member(controller).key == member.key
        assert not inspect.iscoroutinefunction(controller.get_tools), "get_tools is sync"
        first, second = member.tools(), member.tools()
        assert [made.name for made in first] == [made.name for made in second]
        assert digest_of([made.spec for made in first]) == digest_of([made.spec for made in second]), (
            "tool definitions must not change by themselves: prompt caches go by their bytes"
        )
        for made in first:
            assert made.spec.description, f"{made.name} has no description"
        assert all(callable(exporter) for exporter in member.exports.values())

    @_check
    async def test_it_lives_beside_others(self) -> None:
        """TC-60, TC-64: its tools have names of their own."""
        controller = self.make()
        await self.begin(controller)
        async with self._agent(controller, others=[_Neighbour()]) as agent:
            reply = await agent.send("go")
            await reply.result()
            assert reply.hook_errors == ()

    @_check
    async def test_it_serves_one_conversation_at_a_time(self) -> None:
        """TC-63."""
        controller = self.make()
        async with self._agent(controller):
            try:
                self._agent(controller)
            except ControllerInUse:
                pass
            else:
                raise AssertionError("a second conversation must be refused")
        async with self._agent(controller):
            pass

    @_check
    async def test_its_end_hook_stands_alone(self) -> None:
        """TC-17: on_response without on_request before it is a release of everything, and may come again."""
        controller = self.make()
        await self.begin(controller)
        refusing = [True]

        def interceptor(event: object) -> None:
            if refusing[0]:
                raise PermissionError("not now")

        async with self._agent(controller, interceptor=interceptor) as agent:
            for _ in range(2):
                await self._refused(agent)
            refusing[0] = False
            reply = await agent.send("go")
            await reply.result()
            assert reply.hook_errors == ()

    @_check
    async def test_what_it_takes_is_released_however_a_send_ends(self) -> None:
        """TC §3.5: refused by another, failed, stopped; the next send works each time."""
        controller, neighbour = self.make(), _Neighbour()
        await self.begin(controller)
        hold = Hold()
        provider = ScriptedProvider([failure("auth", "no")], ["…", hold], *self.scripts)
        async with AgentController(provider, controllers=[controller, neighbour]) as agent:
            neighbour.refuses = True
            await self._refused(agent)
            neighbour.refuses = False
            failed = await agent.send("fails")
            await failed.wait()
            assert failed.hook_errors == ()
            stopped = await agent.send("is stopped")
            await hold.reached()
            agent.abort()
            await stopped.wait_closed()
            assert stopped.hook_errors == ()
            reply = await agent.send("go")
            await reply.result()
            assert (reply.ending, reply.hook_errors) == ("completed", ())

    @_check
    async def test_closing_is_bounded_and_may_come_twice(self) -> None:
        """TC-68."""
        controller = self.make()
        close = getattr(controller, "aclose", None)
        async with self._agent(controller) as agent:
            await agent.open()
        if close is not None:
            await close()
            await close()

    async def _refused(self, agent: AgentController) -> None:
        """A send that something refuses before it is committed."""
        try:
            await agent.send("refused")
        except PermissionError:
            reply = agent.last_reply
        else:
            raise AssertionError("the send must have been refused")
        assert reply is not None
        assert reply.hook_errors == ()

    # State

    async def _staged(
        self, journal: Journal, *tail: Any
    ) -> tuple[StagedController[Any], AgentController, list[Change[Any]]] | None:
        controller = self.make()
        if not _staging(controller):
            return None
        await self.begin(controller)
        changes: list[Change[Any]] = []
        controller.on_change(changes.append)
        agent = self._agent(controller, *self.scripts, *tail, journal=journal, thread_id="conformance")
        return controller, await agent.open(), changes

    @_check
    async def test_its_state_is_committed_once_and_comes_back(self) -> None:
        """TC-74 … TC-77, TC-113: staged, committed with the end, told once, read again by a fresh one."""
        journal = MemoryJournal()
        found = await self._staged(journal)
        if found is None:
            return
        controller, agent, changes = found
        key = Member(controller).key
        reply = await agent.send("go")
        await reply.result()
        assert controller.state is not None, "the scripts must stage something"
        assert [(change.source, change.reply_id) for change in changes] == [("model", reply.id)]
        stored = controller.encode(controller.state)
        encode(stored)
        assert agent.controller_states[key] == stored
        await agent.aclose()
        fresh = self.make()
        assert isinstance(fresh, StagedController)
        await self.begin(fresh)
        told: list[Change[Any]] = []
        fresh.on_change(told.append)
        async with self._agent(fresh, journal=journal, thread_id="conformance") as again:
            assert again.restore_errors == {}
            assert fresh.state is not None
            read = fresh.encode(fresh.decode(stored, fresh.state_version))
            assert read == stored, "decode must give what encode wrote"
            assert told == [], "a restore tells nobody"

    @_check
    async def test_a_send_that_fails_leaves_its_state_alone(self) -> None:
        """TC-74: discarded; so does a prepare of somebody else that fails (TC-75)."""
        controller = self.make()
        if not _staging(controller):
            return
        await self.begin(controller)
        before = None if controller.state is None else controller.encode(controller.state)
        scripts = [*self.scripts[:-1], [failure("auth", "no")]]
        async with self._agent(controller, *scripts) as agent:
            try:
                await (await agent.send("go")).result()
            except ReplyFailed:
                now = None if controller.state is None else controller.encode(controller.state)
                assert now == before
                assert controller.staged is None
            else:
                raise AssertionError("the send must have failed")

    @_check
    async def test_its_state_goes_back_with_the_conversation(self) -> None:
        """TC-81: a regeneration goes back to the state in front of the answer."""
        found = await self._staged(MemoryJournal(), "again")
        if found is None:
            return
        controller, agent, changes = found
        async with agent:
            before = controller.state
            await (await agent.send("go")).result()
            await (await agent.regenerate(agent.messages[-1].id)).result()
            if controller.follow_history:
                assert controller.state == before
                assert changes[-1].source == "history"

    @_check
    async def test_its_exports_are_read_only(self) -> None:
        """TC-124: an export of a controller without a state, and with one, is bytes, or a ValueError that says why."""
        found = self.make()
        member = Composition([found], self).members[0]
        await self.begin(found)
        for name, exporter in member.exports.items():
            try:
                made = await exporter({})
            except (ValueError, LookupError):
                continue
            assert isinstance(made.data, bytes), name
            assert "/" in made.media_type, name


def _staging(controller: object) -> TypeGuard[StagedController[Any]]:
    """Whether its tools change a state; one that no ending commits is its own."""
    return isinstance(controller, StagedController) and bool(controller.commit_on)


__all__ = ["AIControllerConformance"]
