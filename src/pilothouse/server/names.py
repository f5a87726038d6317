"""Ids of clients and ids of the journal (SV-13).

A client chooses ids, and two tenants may choose the same. So what the journal knows a run or thread by is derived from
tenant and id; the client's own stands in the run's specification and is all that is shown. The tenant of the loopback
default keeps its ids as they are, so that the command line and the page speak of the same run.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from msgspec import Struct

from ..messages import JSON
from ..records import RunSpec
from .problems import invalid

EXTENSION: Final = "server/ids"
LOCAL: Final = "local"
ID_LIMIT: Final = 200

_DERIVED: Final = re.compile(r"[rt]-[0-9a-f]{40}")


class Ids(Struct, frozen=True, omit_defaults=True):
    """What a run's specification keeps of the request that began it. `digest` tells an equal request from another."""

    run: str
    thread: str
    agent: str
    digest: str = ""
    principal: str = ""

    def extension(self) -> dict[str, JSON]:
        """As it stands in the specification."""
        kept = {name: getattr(self, name) for name in self.__struct_fields__}
        return {EXTENSION: {name: value for name, value in kept.items() if value}}


def ids_of(spec: RunSpec) -> Ids:
    """The ids of a run as its client knows them; its own where it was not begun by a server."""
    kept = spec.extensions.get(EXTENSION)
    if not isinstance(kept, dict):
        return Ids(spec.run_id, spec.thread_id, "")
    known = {name: str(kept[name]) for name in Ids.__struct_fields__ if name in kept}
    return Ids(**{"run": spec.run_id, "thread": spec.thread_id, "agent": "", **known})


def checked(value: object, path: str) -> str:
    """An id as a client may choose it: 1–200 characters, no control characters.

    Raises:
        Problem: 422, naming the path.
    """
    if not isinstance(value, str) or not 1 <= len(value) <= ID_LIMIT:
        raise invalid((path, f"must be a text of 1 to {ID_LIMIT} characters"))
    if not is_id(value):
        raise invalid((path, "must not hold control characters"))
    return value


def is_id(value: str) -> bool:
    """Whether a text can be an id at all. What cannot is not looked up: some stores refuse NUL even in a question."""
    if not 1 <= len(value) <= ID_LIMIT:
        return False
    return not any(ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) <= 0xDFFF for char in value)


def journal_tenant(tenant: str) -> str:
    """The isolation key of a tenant. Whoever is on this machine shares that of programs which name none."""
    return "" if tenant == LOCAL else tenant


def run_key(tenant: str, run_id: str) -> str:
    """The journal's id of a run."""
    return _key(tenant, "r", run_id)


def thread_key(tenant: str, thread_id: str) -> str:
    """The journal's id of a thread."""
    return _key(tenant, "t", thread_id)


def _key(tenant: str, kind: str, client_id: str) -> str:
    if tenant == LOCAL and not _DERIVED.fullmatch(client_id):  # what looks derived is, so none can be forged
        return client_id
    digest = sha256(f"{tenant}\n{kind}\n{client_id}".encode()).hexdigest()
    return f"{kind}-{digest[:40]}"


__all__ = ["EXTENSION", "Ids", "checked", "ids_of", "is_id", "journal_tenant", "run_key", "thread_key"]
