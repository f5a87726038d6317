"""How what is plugged into a conversation gets into its runs: tools, states, the shared state (TC-25, TC-64, TC-80 … 82).

Functions over a `Sender`, called at the moments that its docstrings name. Only conversations that have something plugged
in, tools, or a change of the shared state come here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import copy_context
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ..commands import Command, FollowUp, Replace, Steer
from ..contracts import RunPort, Runtime
from ..core.canonical import digest_of
from ..core.state_notes import NOTE
from ..errors import ConfigError, SendRefused
from ..events import ContinuityLost, Noted, Outcome, RunAbandoned, RunEnded
from ..messages import JSON, MEDIA, InputPart
from ..records import Parent, Record, RunSpec, Start
from .calling import HookCaller
from .composition import Composition, Offer
from .extras import RunExtras
from .forms import NO_TOOLS, TextRuntime
from .interceptor import PromptEvent
from .leftover import given_again
from .order import Order
from .past import retold
from .reply import Reply
from .sealing import Changes, ReplyPort
from .staging import Change
from .states import BASE, REQUEST, Stored, content, patch_for, patch_of, shared_at, staged_in, states_at

if TYPE_CHECKING:
    from .around import Around
    from .sending import Sender

logger = logging.getLogger("pilothouse.conversation")

# Tools


def with_offer(runtime: Runtime, offer: Offer, composition: Composition, *, digest: str = "") -> Runtime:
    """The runtime with the tools of AI controllers, and with what they tell the model.

    Raises:
        ConfigError: it takes none.
    """
    tools, instructions = offer.tools, composition.instructions
    what = "tools" if tools else "instructions" if instructions else ""
    if not what:
        return runtime
    if isinstance(runtime, TextRuntime):
        if tools:
            raise ConfigError(f"controllers have tools, and {NO_TOOLS}")
        return runtime.offering(instructions, digest=digest)
    offering: Callable[..., Runtime] | None = getattr(runtime, "offering", None)
    if offering is None:
        raise ConfigError(f"controllers have {what}, and the runtime takes none: use a Provider")
    if instructions and not getattr(runtime, "takes_instructions", True):
        tools, instructions = (*tools, *composition.telling_tools), ""
    return offering(tools, instructions, digest=digest)


def own_names(runtime: Runtime) -> dict[str, str]:
    """The tools that the conversation has besides its controllers, with their owner."""
    return dict.fromkeys(getattr(runtime, "tool_names", ()), "the conversation's tools")


def offer(sender: Sender, around: Around, order: Order) -> Offer:
    """The tools of this send; its run is driven with them (TC-64).

    Raises:
        ConfigError: they cannot be offered together.
    """
    setup = sender.setup
    composition, route = setup.composition, setup.route
    assert composition is not None
    others = own_names(around.base)
    others.update({spec.name: "the client" for spec in order.extras.client_tools})
    found = composition.offer(others)
    if found is not composition.registered:
        runtime = with_offer(
            around.base,
            found,
            composition,
            digest=str(getattr(route.runtime, "config_digest", "")),
        )
        route.offer(around.reply.id, runtime)
    if found.digest != composition.told:
        if composition.told is not None:
            logger.info(
                "the tools of thread %s have changed: prompt caches start anew", around.reply.thread_id
            )
        composition.told = found.digest
    return found


# The specification


def request_digest(parts: tuple[InputPart, ...] | None, extras: RunExtras, aim: object) -> str:
    """What the caller of a send passed, before anything replaced it (TC-25)."""
    shown: list[JSON] = []
    for part in parts or ():
        if isinstance(part, MEDIA) and part.data is not None:
            shown.append([part.mime_type, part.filename, sha256(part.data).hexdigest()])
        else:
            shown.append(msgspec.to_builtins(part))
    parent = None if extras.parent is None else extras.parent.run_id
    return digest_of([shown, parts is None, parent, msgspec.to_builtins(aim)])


async def extensions(sender: Sender, reply: Reply, order: Order) -> dict[str, JSON]:
    """What hooks and states put into the specification of a run."""
    setup = sender.setup
    journal = setup.runs.journal
    found: dict[str, JSON] = {}
    if reply.around is not None:
        found[REQUEST] = reply.around.given
        if setup.composition is not None and (base := await setup.composition.states.base(journal)):
            found[BASE] = base
    # Where the run may be driven elsewhere, what comes later than this could not reach its first append.
    patch = reply.take_patch() if setup.runs.may_move else reply.patch
    if patch:
        found[NOTE] = await patch_for(journal, patch)
    return found


# The run


async def enter(sender: Sender, reply: Reply, start: Start, port: RunPort, runtime: Runtime) -> RunPort:
    """The port that the runtime of a run is given: it adds what the send changes."""
    setup, around, changes = sender.setup, reply.around, reply.changes
    if changes is None:
        composition = None if around is None else setup.composition
        largest = setup.runs.limits.max_artifact_bytes
        changes = reply.changes = Changes(reply, composition, setup.shared, largest)
        if around is not None and around.offer is not None:
            changes.owners = around.offer.owners
        patch = reply.take_patch()
        if reply.resumed:
            if composition is not None:
                changes.folded(*await staged_in(setup.runs.journal, start.spec.run_id, composition))
            records = [record async for record in port.facts()]
            told = any(isinstance(item.fact, Noted) and item.fact.name == NOTE for item in records)
            patch = None if told else await patch_of(setup.runs.journal, start.spec)
        changes.begin(patch, () if around is None else around.restaged, reply.notes)
    return ReplyPort(port, changes, reopens=bool(getattr(runtime, "reopens", False)))


async def resumed(sender: Sender, spec: RunSpec) -> None:
    """A run that an earlier process began is taken up again: the hooks are told before anything is written (TC-115)."""
    setup = sender.setup
    if sender.live(spec.run_id) is not None:
        return
    parts: Any = spec.input[-1].parts if spec.input else None
    order = Order(parts, RunExtras(), aim=None if parts else ("resumed", spec.run_id))
    reply = sender.make(spec.run_id, order)
    reply.options = sender.options
    reply.user_message = spec.input[-1] if spec.input else None
    reply.commit(setup.runs.run(spec.run_id))
    reply.hand_over()
    reply.resumed = True
    reply.patch = await patch_of(setup.runs.journal, spec)
    sender.loop = asyncio.get_running_loop()
    if not sender.thread.opened or sender.thread.head is None:
        await load(sender, Parent(spec.run_id))
    if not setup.plugged:
        _follow(sender, reply, None)
        return
    from .around import Around

    around = reply.around = Around(sender, reply, order, resumed=True)
    try:
        await sender.spawn(around.request(), around.caller.context)
    except BaseException as error:
        sender.forget(reply)
        await around.gave_up(error)
        raise
    _follow(sender, reply, around)


def _follow(sender: Sender, reply: Reply, around: Around | None) -> None:
    """Tells the hooks of a resumed run how it ends; the conversation shows what it has become."""
    runs = sender.setup.runs

    def observe(item: object) -> None:
        if not isinstance(item, Record):
            return
        fact = item.fact
        if isinstance(fact, Noted) and fact.name == NOTE:
            sender.setup.shared.take(fact.data)
        elif isinstance(fact, RunEnded | RunAbandoned | ContinuityLost):
            sender.spawn(_ended(sender, reply, around))

    reply.unobserve = runs.observe(reply.id, observe)


async def _ended(sender: Sender, reply: Reply, around: Around | None) -> None:
    runs = sender.setup.runs
    if reply.outcome is None:
        await retold(runs, reply)
    outcome = reply.outcome
    assert outcome is not None
    if around is not None:
        view = await runs.inspect(reply.id)
        recorded: Outcome | None = view.outcome
        around.ended(outcome, reply.error, lambda: None, recorded)
    elif reply.changes is not None:
        reply.changes.closed = True
    if sender.thread.head == reply.id and not sender.stage.busy:
        await sender.thread.load(sender, sender.stage, again=True)


# Opening, and going back


async def load(sender: Sender, at: Parent | None) -> None:
    """Takes the states and the shared state from the journal, as they are at that place (TC-113)."""
    setup = sender.setup
    runs = setup.runs
    setup.shared.replace(await shared_at(runs, at))
    if setup.composition is not None:
        await setup.composition.states.restore_all(runs.journal, await states_at(runs, at))


async def go_to_parent(sender: Sender, around: Around, order: Order) -> None:
    """A regeneration, an edit or a fork: states go back to where the new run hangs (TC-81)."""
    setup = sender.setup
    parent = order.parent or order.extras.parent
    if order.kind == "retry":
        if setup.composition is not None and parent is not None:
            around.restaged = await _staged_again(sender, setup.composition, parent, order)
        return
    if not order.moves or (parent is not None and parent == Parent(sender.thread.head or "")):
        return
    around.shared = await shared_at(setup.runs, parent)
    if setup.composition is None:
        return
    at = await states_at(setup.runs, parent)
    for member in setup.composition.staged:
        controller = member.staged
        assert controller is not None
        if controller.follow_history:
            await _go_back(sender, around, member.key, controller, at.get(member.key))
    around.at_head = {**setup.composition.states.at_head, **at}


async def _go_back(sender: Sender, around: Around, key: str, controller: Any, stored: Stored | None) -> None:
    """Restores one state, unless it is that already."""
    before = controller.state
    if stored is None:
        if before is None:
            return
        value = None
    else:
        if before is not None and digest_of(controller.encode(before)) == stored.digest:
            return
        value = controller.decode(await content(sender.setup.runs.journal, stored), stored.version)
    around.went_back.append((key, controller, before))
    await around.caller.call(key, "restore", controller.restore, value)
    controller.changed(Change(before, controller.state, "history", around.reply.id))


async def _staged_again(sender: Sender, composition: Composition, parent: Parent, order: Order) -> list[Any]:
    """What the calls that a retry keeps had staged: the model reads their results as done."""
    kept = {message.call_id for message in order.keep or () if message.role == "tool"}
    found, _ = await staged_in(sender.setup.runs.journal, parent.run_id, composition)
    return [item for item in found if item.call_id in kept]


# What is said to a run


def nothing(said: object) -> None:
    """What an interceptor has to return.

    Raises:
        TypeError: it returned something, which would be lost.
    """
    if said is not None:
        raise TypeError(f"an interceptor must return None, got {type(said).__name__}")


async def screened(sender: Sender, command: Command) -> Command:
    """Steering and follow-ups pass the interceptor, by whatever path they come (TC-26).

    Raises:
        SendRefused: it refused them; nothing was recorded.
    """
    interceptor = sender.setup.interceptor
    if interceptor is None or given_again.get():
        return command
    body = command.body
    assert isinstance(body, Steer | FollowUp | Replace)
    message = body.message
    if sender.said is None:
        sender.said = {}
    known = sender.said.get(command.id)
    if known is not None and known[0] == message:
        return replace(command, body=replace(body, message=known[1]))
    event = PromptEvent(
        message.text,
        message.attachments,
        kind="follow_up" if isinstance(body, FollowUp) else "steer",
        thread_id=sender.thread.id,
        reply_id=command.run_id,
    )
    caller = HookCaller(copy_context(), sender.clock, sender.options["hook_timeout"])
    nothing(await caller.call("", "interceptor", interceptor, event))
    verdict = event.close()
    if verdict.rejected:
        raise SendRefused(sender.live(command.run_id), verdict.reason)
    if not verdict.replaced:
        return command
    put = replace(message, parts=verdict.parts(message.parts))
    sender.said[command.id] = (message, put)
    return replace(command, body=replace(body, message=put))


__all__ = [
    "enter",
    "extensions",
    "go_to_parent",
    "load",
    "nothing",
    "offer",
    "own_names",
    "request_digest",
    "resumed",
    "screened",
    "with_offer",
]
