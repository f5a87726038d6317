"""Where the states of AI controllers are in the journal, and how they follow history (TC-80, TC-81, TC-113).

The state at a run is the one committed with its end, else its base: what it was when the run was registered. Values are
stored once, by digest; a state whose controller is not given, or cannot be read any more, is carried on as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import msgspec

from ..contracts import Journal
from ..core.canonical import encode
from ..core.jsonpatch import PatchError
from ..core.recent import Recent
from ..core.state_notes import NOTE, STAGED, noted
from ..errors import ArtifactNotFound
from ..events import CallFinished, Noted
from ..messages import JSON, Value
from ..records import Parent, Record, RunSpec
from ..runs.controller import RunController
from .sealing import COMMITTED, Staged

if TYPE_CHECKING:
    from .composition import Composition

logger = logging.getLogger("pilothouse.conversation")

BASE: Final = "controllers/base"
REQUEST: Final = "controllers/request"

INLINE_PATCH: Final = 4_096
"""Bytes of the first change of the shared state that stay in the specification; a larger one is a blob."""


class Stored(Value):
    """A state in the journal: exactly one of `value` and `digest` of a blob counts, `digest` is always there."""

    version: int
    digest: str
    value: JSON = None
    inline: bool = False


class States:
    """The stored states of one conversation, as they are at its head.

    Attributes:
        at_head: by key, also of controllers that are not given.
        errors: why a stored state could not be restored.
    """

    __slots__ = ("_composition", "_left", "_put", "at_head", "errors")

    def __init__(self, composition: Composition) -> None:
        self._composition = composition
        self.at_head: dict[str, Stored] = {}
        self.errors: dict[str, Exception] = {}
        self._left: dict[str, object] = {}  # what a restore that failed left of a state
        self._put: set[str] = set()

    @property
    def orphans(self) -> frozenset[str]:
        """Keys of stored states whose controller is not given."""
        return frozenset(self.at_head) - frozenset([member.key for member in self._composition.staged])

    def committed(self, key: str, staged: Staged) -> None:
        """A state was committed with the end of a run."""
        self.errors.pop(key, None)
        inline = staged.ref is None
        value = msgspec.json.decode(staged.body) if inline else None
        self.at_head[key] = Stored(staged.version, staged.digest, value, inline)
        if not inline:
            self._put.add(staged.digest)

    def now(self) -> dict[str, JSON]:
        """The committed states by key, as JSON."""
        found: dict[str, JSON] = {}
        for member in self._composition.staged:
            assert member.staged is not None
            if member.staged.state is not None:
                found[member.key] = member.staged.encode(member.staged.state)
        return found

    async def base(self, journal: Journal) -> dict[str, JSON]:
        """Puts every state into the journal and names it by version and digest."""
        found: dict[str, JSON] = {}
        for member in self._composition.staged:
            controller = member.staged
            assert controller is not None
            if controller.state is None:
                continue
            if member.key in self.errors and controller.state is self._left.get(member.key):
                continue
            body = encode(controller.encode(controller.state))
            digest = sha256(body).hexdigest()
            await self._store(journal, digest, body)
            found[member.key] = {"version": controller.state_version, "digest": digest}
        for key, stored in self.at_head.items():
            if key in found or (key in self._composition.by_key and key not in self.errors):
                continue
            if stored.inline:
                await self._store(journal, stored.digest, encode(stored.value))
            found[key] = {"version": stored.version, "digest": stored.digest}
        return found

    async def _store(self, journal: Journal, digest: str, body: bytes) -> None:
        if digest not in self._put:
            await journal.put_blob(body, "application/json")
            self._put.add(digest)

    async def restore_all(self, journal: Journal, at: Mapping[str, Stored]) -> None:
        """A thread was opened: every controller goes to its stored state; what cannot be read stays stored."""
        self.at_head, self.errors = dict(at), {}
        for member in self._composition.staged:
            controller, stored = member.staged, at.get(member.key)
            assert controller is not None
            # First, so that a controller may keep what it can of a state that fails: a grid its query, without rows.
            controller.state = None
            try:
                await controller.restore(
                    None
                    if stored is None
                    else controller.decode(await content(journal, stored), stored.version)
                )
            except Exception as error:
                logger.exception("the stored state of %s cannot be restored; it is kept", member.key)
                self.errors[member.key] = error
                self._left[member.key] = controller.state
        for key in {*self.orphans, *self.errors} & set(at):  # held, so that a snapshot has them
            stored = at[key]
            try:
                self.at_head[key] = Stored(
                    stored.version, stored.digest, await content(journal, stored), True
                )
            except ArtifactNotFound:
                logger.exception("the stored state of %s is not in the journal", key)


async def content(journal: Journal, stored: Stored) -> JSON:
    """What `encode` wrote."""
    if stored.inline:
        return stored.value
    return msgspec.json.decode(await journal.get_blob(stored.digest))


async def notes_of(journal: Journal, run_id: str, *more: str) -> list[Record]:
    """The notes of a run, and facts of other kinds, in order."""
    kinds = frozenset({"noted", *more})
    found: list[Record] = []
    after = 0
    while True:
        page = await journal.read(run_id, after=after, kinds=kinds)
        found += page.records
        if not page.more or not page.records:
            return found
        after = page.records[-1].seq


_MESSAGES: Final = ("message_added", "call_finished")
"""Kinds of facts that are messages of a transcript."""


async def cut_of(runs: RunController, parent: Parent, records: Sequence[Record]) -> int | None:
    """Up to which fact a run is kept, None where it is kept whole; `records` holds its messages."""
    upto = parent.seq or None
    if parent.keep_through is None:
        return upto
    messages = [record for record in records if not isinstance(record.fact, Noted)]
    if not messages or _message_id(messages[-1]) == parent.keep_through:
        return upto
    last = (await runs.own_messages(parent.run_id))[-1]
    if last.message.id == parent.keep_through:  # results stand in the order of their calls
        return upto
    return next((record.seq for record in messages if _message_id(record) == parent.keep_through), 0)


def _message_id(record: Record) -> str:
    fact = record.fact
    return f"result:{fact.call_id}" if isinstance(fact, CallFinished) else str(getattr(fact, "message").id)  # noqa: B009


async def states_at(runs: RunController, parent: Parent | None) -> dict[str, Stored]:
    """The states at the end of a run, or, where it is not kept whole, in front of it."""
    if parent is None:
        return {}
    spec = await runs.registered(parent.run_id)
    found: dict[str, Stored] = {}
    base = spec.extensions.get(BASE)
    if isinstance(base, Mapping):
        for key, entry in base.items():
            found[key] = Stored(int(entry["version"]), str(entry["digest"]))
    records = await notes_of(runs.journal, parent.run_id, *_MESSAGES)
    if await cut_of(runs, parent, records) is None:
        for record in records:
            if isinstance(record.fact, Noted) and record.fact.name == COMMITTED:
                found.update(_committed(record.fact.data))
    return found


def _committed(data: Any) -> dict[str, Stored]:
    found = {}
    for key, entry in data.items():
        if "artifact" in entry:
            found[key] = Stored(int(entry["version"]), str(entry["artifact"]["digest"]))
        else:
            found[key] = Stored(int(entry["version"]), str(entry["digest"]), entry["value"], True)
    return found


async def staged_in(
    journal: Journal, run_id: str, composition: Composition
) -> tuple[list[Staged], list[Staged]]:
    """What the calls of a run have staged: what counts, in the order in which they ended; what is still to end."""
    values: dict[str, Staged] = {}
    order: list[Staged] = []
    own_calls = False
    for record in await notes_of(journal, run_id, "call_finished", "call_started"):
        fact = record.fact
        if isinstance(fact, Noted) and fact.name == STAGED:
            staged = await _staged(journal, fact.data, composition)
            if staged is None:
                continue
            if own_calls:
                values[staged.call_id] = staged
            else:  # staged again from the run before
                order.append(staged)
        elif isinstance(fact, CallFinished):
            kept = values.pop(fact.call_id, None)
            if kept is not None and fact.outcome == "succeeded" and not fact.is_error:
                order.append(kept)
        elif fact.kind == "call_started":
            own_calls = True
    return order, list(values.values())


async def _staged(journal: Journal, data: Any, composition: Composition) -> Staged | None:
    member = composition.by_key.get(data["key"])
    if member is None or member.staged is None:
        logger.warning("a staged state of %s is left out: no such AI controller is given", data["key"])
        return None
    if "artifact" in data:
        body = await journal.get_blob(data["artifact"]["digest"])
    else:
        body = encode(data["value"])
    value = member.staged.decode(msgspec.json.decode(body), int(data["version"]))
    staged = Staged(member.key, data["call_id"], value, body, int(data["version"]))
    staged.noted = True
    return staged


# The shared state


async def patch_for(journal: Journal, patch: Mapping[str, JSON]) -> JSON:
    """The first change of the shared state, as the specification of a run names it."""
    body = encode(patch)
    if len(body) <= INLINE_PATCH:
        return {"patch": dict(patch)}
    ref = await journal.put_blob(body, "application/json")
    return {"digest": ref.digest}


async def patch_of(journal: Journal, spec: RunSpec) -> dict[str, JSON] | None:
    """The first change of the shared state that a run was registered with."""
    given = spec.extensions.get(NOTE)
    if not isinstance(given, Mapping):
        return None
    if "digest" in given:
        return msgspec.json.decode(await journal.get_blob(str(given["digest"])))  # type: ignore[no-any-return]
    patch = given.get("patch")
    return dict(patch) if isinstance(patch, Mapping) else None


_folds: Final[WeakKeyDictionary[RunController, Recent[dict[str, JSON]]]] = WeakKeyDictionary()
"""The shared state behind runs that have ended: it never changes, and a thread goes on from its head."""


async def shared_at(runs: RunController, parent: Parent | None) -> dict[str, JSON]:
    """The shared state at a place of the tree: the fold of the notes along the path (TC-120)."""
    kept = _folds.setdefault(runs, Recent())
    line: list[tuple[RunSpec, Sequence[JSON], bool]] = []
    cursor = parent
    state: dict[str, JSON] = {}
    while cursor is not None:
        found = kept.get(cursor.run_id)
        if found is not None and cursor.keep_through is None and not cursor.seq:
            state = found
            break
        spec = await runs.registered(cursor.run_id)
        records = await notes_of(runs.journal, cursor.run_id, *_MESSAGES, "run_ended")
        ended = any(record.fact.kind == "run_ended" for record in records)
        cut = await cut_of(runs, cursor, [record for record in records if record.fact.kind != "run_ended"])
        if cut is None and ended and found is not None:
            state = found
            break
        notes = [note for seq, note in _changes(records) if cut is None or seq <= cut]
        line.append((spec, notes, cut is None and ended))
        cursor = spec.parent
    for spec, changes, final in reversed(line):
        patch = await patch_of(runs.journal, spec)
        if patch is not None:
            state = {**state, **patch}
        for note in changes:
            try:
                state = noted(state, note)
            except PatchError as error:
                logger.warning("a note of the shared state of run %s does not apply: %s", spec.run_id, error)
        if final:
            kept.put(spec.run_id, state)
    return state


def _changes(records: Sequence[Record]) -> list[tuple[int, JSON]]:
    return [
        (record.seq, record.fact.data)
        for record in records
        if isinstance(record.fact, Noted) and record.fact.name == NOTE
    ]


__all__ = [
    "BASE",
    "REQUEST",
    "States",
    "Stored",
    "content",
    "patch_for",
    "patch_of",
    "shared_at",
    "staged_in",
    "states_at",
]
