"""Several AI controllers as one: their keys and claims, their tools under one set of names, what they tell the model.

One `Composition` a conversation that has controllers. The order is the one in which they were given.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Final, TypeAlias, cast
from weakref import ref

from msgspec.structs import replace

from ..cancel import ENDING, is_closing
from ..clock import within
from ..contracts import Clock
from ..core.canonical import NotJSON, encode
from ..errors import ConfigError, ControllerInUse, DuplicateTool
from ..loop.ready_tools import schema_tool
from ..loop.tools import Tool, ToolLike, ToolSet, tool
from ..messages import ToolSpec
from .controllers import AIController, BaseAIController, Exporter
from .staging import StagedController
from .states import States

logger = logging.getLogger("pilothouse.conversation")

ControllerLike: TypeAlias = AIController | Callable[[], AIController]

SEPARATOR: Final = "__"
MAX_INSTRUCTIONS: Final = 8_192
"""Bytes of `instructions`."""

LONGEST_NAME: Final = 64

_NAMESPACE: Final = re.compile(r"[a-z][a-z0-9_]{0,23}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")

PRECEDENCE: Final = "What follows describes tools of the application. Where it contradicts the text above, the text above holds."

_claims: Final[dict[int, tuple[object, ref[Any]]]] = {}
"""Who serves whom: by id of the AI controller, which its owner keeps alive for as long as the claim can hold."""


class Member:
    """One AI controller of a conversation.

    Attributes:
        key: its namespace, else the name of its class.
        staged: itself, if it has a state that the model changes.
        closes: it is closed with the conversation.
        given: it was given as an object, not made for this conversation.
    """

    __slots__ = ("_made", "closes", "controller", "given", "key", "namespace", "staged")

    def __init__(self, controller: Any) -> None:
        self.controller = controller
        self.namespace = _namespace_of(controller)
        self.key = self.namespace or type(controller).__name__
        _ = self.instructions  # refused now, not in a send
        self.staged: StagedController[Any] | None = (
            controller if isinstance(controller, StagedController) else None
        )
        self.closes = callable(getattr(controller, "aclose", None)) and not _is_open(controller)
        self.given = True
        self._made: dict[Any, Tool] = {}

    @property
    def instructions(self) -> str:
        """What it tells the model: static, but that of a server is known only once somebody is connected to it."""
        return _instructions_of(self.controller, self.key)

    @property
    def exports(self) -> Mapping[str, Exporter]:
        """What a surface may fetch."""
        return getattr(self.controller, "exports", None) or {}

    def hook(self, name: str) -> Callable[..., Any] | None:
        """`on_request` or `on_response`, None where it does nothing."""
        found = getattr(self.controller, name, None)
        inherited = getattr(type(self.controller), name, None) is getattr(BaseAIController, name)
        return None if found is None or inherited else cast("Callable[..., Any]", found)

    def tools(self) -> list[Tool]:
        """Its tools as the model sees them, made once each.

        Raises:
            ConfigError: one cannot be offered.
        """
        given = self.controller.get_tools()
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise ConfigError(f"get_tools of {self.key} must return a sequence of tools, got {given!r}")
        made: dict[Any, Tool] = {}
        found = []
        for item in given:
            key = item if isinstance(item, Hashable) else id(item)
            made[key] = self._made.get(key) or self._named(item)
            found.append(made[key])
        self._made = made
        return found

    def _named(self, item: ToolLike) -> Tool:
        own = item if isinstance(item, Tool) else tool(item)
        name = f"{self.namespace}{SEPARATOR}{own.name}" if self.namespace else own.name
        shown = (
            f"tool {own.name!r} of {self.key} (for the model {name!r})"
            if self.namespace
            else f"tool {name!r}"
        )
        if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
            raise ConfigError(
                f"{shown}: a name is a letter or _, then letters, digits, _ or -, at most {LONGEST_NAME} together"
            )
        schema = own.spec.parameters
        if schema and schema.get("type") != "object":
            raise ConfigError(f"{shown}: its parameters must be a JSON schema of an object")
        try:
            encode(own.spec)
        except NotJSON as error:
            raise ConfigError(f"{shown}: its schema is no JSON: {error}") from error
        if name == own.name:
            return own
        named = copy(own)
        named.spec = replace(own.spec, name=name)
        return named


class Offer:
    """The tools of one send.

    Attributes:
        tools: of all controllers, in order.
        owners: key of the controller that a tool belongs to, by its name.
        digest: of names, descriptions, schemas and order.
    """

    __slots__ = ("digest", "owners", "tools")

    def __init__(self, tools: tuple[Tool, ...], owners: Mapping[str, str]) -> None:
        self.tools = tools
        self.owners = owners
        self.digest = ToolSet(tools).digest if tools else ""


class Composition:
    """The AI controllers of one conversation.

    Args:
        given: controllers, or callables that make one; those are called here.
        owner: the conversation; a claim ends with it.

    Raises:
        TypeError: an element is neither.
        ConfigError: a bad or doubled key, tool or text. ControllerInUse: another conversation has it.
    """

    def __init__(self, given: Sequence[ControllerLike], owner: object) -> None:
        self.factories = all(_is_factory(item) for item in given)
        self.given = tuple(given)
        made = [_made(index, item) for index, item in enumerate(given)]
        self.members = tuple([Member(controller) for controller in made])
        for member, item in zip(self.members, given, strict=True):
            member.given = not _is_factory(item)
        self._check_keys()
        self.by_key: Final[Mapping[str, Member]] = {member.key: member for member in self.members}
        self._claimed: list[int] = []
        for member in self.members:
            if _claimed(member.controller, owner):
                raise ControllerInUse(member.key)
        for member in self.members:
            _claims[id(member.controller)] = (member.controller, ref(owner, _forget(id(member.controller))))
            self._claimed.append(id(member.controller))
        self._last: Offer | None = None
        self.registered: Offer | None = None  # what they offered when the conversation was made
        self.told: str | None = None  # digest of what the model was offered last
        self.states = States(self)

    def _check_keys(self) -> None:
        seen: dict[str, Member] = {}
        for member in self.members:
            if (other := seen.setdefault(member.key, member)) is not member:
                raise ConfigError(
                    f"controllers: {type(other.controller).__name__} and {type(member.controller).__name__} "
                    f"have the same key {member.key!r}: give one of them another namespace"
                )

    @property
    def controllers(self) -> tuple[AIController, ...]:
        """In order."""
        return tuple([member.controller for member in self.members])

    @property
    def staged(self) -> tuple[Member, ...]:
        """Those with a state that the model changes."""
        return tuple([member for member in self.members if member.staged is not None])

    def offer(self, others: Mapping[str, str] | None = None) -> Offer:
        """Asks every controller for its tools and checks them together, with `others` (owner by name).

        Raises:
            DuplicateTool: names both owners. ConfigError: a tool cannot be offered. Whatever a `get_tools` raises.
        """
        owners: dict[str, str] = {}
        tools: list[Tool] = []
        taken = dict(others or {})
        for member in self.members:
            for made in member.tools():
                first = owners.get(made.name) or taken.get(made.name)
                if first is not None:
                    raise DuplicateTool(made.name, (first, member.key))
                owners[made.name] = member.key
                tools.append(made)
        last = self._last
        if last is not None and last.tools == tuple(tools):
            return last
        found = Offer(tuple(tools), owners)
        self._last = found
        return found

    @property
    def instructions(self) -> str:
        """What they tell the model, each under its heading; static, so that a prompt cache holds."""
        told = [member for member in self.members if member.instructions]
        if not told:
            return ""
        return "\n\n".join([PRECEDENCE, *[f"## {member.key}\n\n{member.instructions}" for member in told]])

    @property
    def telling_tools(self) -> tuple[Tool, ...]:
        """The same for a runtime without a system prompt: one tool a controller, whose description it is."""
        told = [member for member in self.members if member.instructions]
        return tuple(
            [_telling(f"{member.key}{SEPARATOR}instructions", member.instructions) for member in told]
        )

    async def aclose(self, limit: float, clock: Clock) -> None:
        """Closes those that were not open yet when they were registered, bounded, and gives all up."""
        until = clock.monotonic() + limit
        task = asyncio.current_task()
        assert task is not None
        cancels = task.cancelling()
        for member in reversed(self.members):
            if member.closes:
                try:
                    await within(clock, until - clock.monotonic(), member.controller.aclose())
                except TimeoutError:
                    logger.warning("AI controller %s did not close within close_timeout", member.key)
                except BaseException as error:
                    stopped = isinstance(error, asyncio.CancelledError) and task.cancelling() > cancels
                    if stopped or isinstance(error, ENDING) or is_closing(error, task):
                        raise
                    logger.exception("AI controller %s could not be closed", member.key)
        self.release()

    def release(self) -> None:
        """Gives the controllers up: another conversation may have them."""
        for name in self._claimed:
            _claims.pop(name, None)
        self._claimed = []


def _telling(name: str, text: str) -> Tool:
    def tell(_arguments: object, _context: object) -> str:
        return text

    return schema_tool(ToolSpec(name, text, {"type": "object", "properties": {}}), tell, effect="read")


def _is_factory(item: object) -> bool:
    return isinstance(item, type) or not isinstance(item, AIController)


def _made(index: int, item: object) -> object:
    if not _is_factory(item):
        return item
    if not callable(item):
        raise TypeError(
            f"controllers[{index}] must have get_tools(), or be a callable that makes such an object; "
            f"got {type(item).__name__}"
        )
    made = item()
    if isinstance(made, type) or not isinstance(made, AIController):
        raise TypeError(f"controllers[{index}] made {type(made).__name__}, which has no get_tools()")
    return made


def _namespace_of(controller: object) -> str:
    found = getattr(controller, "namespace", "") or ""
    if found and (not isinstance(found, str) or not _NAMESPACE.fullmatch(found) or SEPARATOR in found):
        raise ConfigError(
            f"namespace {found!r} of {type(controller).__name__}: a lower case letter, then up to 23 lower case "
            f"letters, digits and single _"
        )
    return str(found)


def _instructions_of(controller: object, key: str) -> str:
    found = getattr(controller, "instructions", None)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise ConfigError(f"instructions of {key} must be str, got {type(found).__name__}")
    if (size := len(found.encode("utf-8", "replace"))) > MAX_INSTRUCTIONS:
        raise ConfigError(f"instructions of {key} have {size} bytes, the limit is {MAX_INSTRUCTIONS}")
    return found.strip()


def _is_open(controller: object) -> bool:
    """Whether it says that its connections, files or processes are open already."""
    return bool(getattr(controller, "is_open", False))


def _claimed(controller: object, owner: object) -> bool:
    found = _claims.get(id(controller))
    if found is None or found[0] is not controller:
        return False
    holder = found[1]()
    return holder is not None and holder is not owner


def _forget(name: int) -> Callable[[ref[Any]], None]:
    def forget(gone: ref[Any]) -> None:
        found = _claims.get(name)
        if found is not None and found[1] is gone:
            del _claims[name]

    return forget


__all__ = ["Composition", "ControllerLike", "Member", "Offer"]
