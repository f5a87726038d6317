"""What a conversation says of what is plugged into it: AI controllers, their states, the shared state, snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING

from ..messages import JSON
from .sending import Sender
from .setup import Setup
from .stage import Stage

if TYPE_CHECKING:
    from .controllers import AIController, Export
    from .snapshots import Snapshot


class Plugged:
    """The part of `AgentController` that only conversations with something plugged in need."""

    __slots__ = ()

    _setup: Setup
    _stage: Stage
    _sender: Sender

    @property
    def controllers(self) -> tuple[AIController, ...]:
        """The AI controllers, in order."""
        composition = self._setup.composition
        return () if composition is None else composition.controllers

    @property
    def controller_states(self) -> Mapping[str, JSON]:
        """The committed states of the AI controllers, by key."""
        composition = self._setup.composition
        return {} if composition is None else composition.states.now()

    @property
    def shared_state(self) -> Mapping[str, JSON]:
        """The state that interfaces see and may change with a send; a copy."""
        return deepcopy(dict(self._setup.shared.value))

    def watch_shared_state(self, callback: Callable[[Mapping[str, JSON]], object]) -> Callable[[], None]:
        """Calls back with the shared state after each change; returns a function that takes this back."""
        return self._setup.shared.watch(callback)

    @property
    def reserved_state(self) -> frozenset[str]:
        """Keys of the shared state that belong to AI controllers: nobody else can change them."""
        composition = self._setup.composition
        return frozenset() if composition is None else frozenset(composition.by_key)

    @property
    def plugged(self) -> bool:
        """Whether anything of a host's is called around its sends: controllers, interceptor, listeners, context."""
        return self._setup.plugged

    @property
    def restore_errors(self) -> Mapping[str, Exception]:
        """Why stored states could not be restored, by key; they are kept until something is committed over them."""
        composition = self._setup.composition
        return {} if composition is None else dict(composition.states.errors)

    @property
    def orphan_states(self) -> frozenset[str]:
        """Keys of stored states whose AI controller is not given; they are kept."""
        composition = self._setup.composition
        return frozenset() if composition is None else composition.states.orphans

    @property
    def exports(self) -> Mapping[str, tuple[str, ...]]:
        """What a surface may fetch: names of exports by key of the AI controller."""
        composition = self._setup.composition
        members = () if composition is None else composition.members
        return {member.key: tuple(member.exports) for member in members if member.exports}

    async def export(self, key: str, name: str, parameters: Mapping[str, str] | None = None) -> Export:
        """Fetches an export of an AI controller; read-only, within `hook_timeout`.

        Raises:
            InvalidTarget: there is none of that name. ValueError: a parameter is wrong. HookTimeout: it took too long.
        """
        from .exporting import export

        return await export(self._setup, key, name, parameters or {})

    def snapshot(self, *, attachments: bool = False) -> Snapshot:
        """The conversation as it is now, as a JSON-able value: finished messages, states, the message being answered.

        Attachments are named by digest, so it is restored over the same journal; with `attachments` their bytes are in
        it. Taken while a send lives it has no unfinished response; the message can be answered later by `retry()`.
        """
        from .snapshots import take

        return take(self._setup, self._stage, self._sender.thread.id, attachments=attachments)
