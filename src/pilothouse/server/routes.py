"""Which handler serves which method and path: a small tree over the segments of the raw path.

The raw path is used because ids may hold any printable character, a slash too: a segment is decoded after the split.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from starlette.types import ASGIApp, Scope

from .call import Call
from .problems import Problem

Handler: TypeAlias = Callable[[Call], Awaitable[ASGIApp]]


class Match(NamedTuple):
    """A route that was found. `template` names it in logs."""

    handler: Handler
    params: Mapping[str, str]
    template: str


class _Node:
    __slots__ = ("children", "handlers", "name", "param", "template")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.param: _Node | None = None
        self.name = ""
        self.handlers: dict[str, Handler] = {}
        self.template = ""


class Routes:
    """The table of routes."""

    def __init__(self) -> None:
        self._root = _Node()
        self.table: list[tuple[str, str, Handler]] = []

    def add(self, method: str, template: str, handler: Handler) -> None:
        """Adds a route; `{name}` stands for one segment."""
        node = self._root
        for segment in template.strip("/").split("/"):
            if segment.startswith("{"):
                if node.param is None:
                    node.param = _Node()
                    node.param.name = segment[1:-1]
                node = node.param
            else:
                node = node.children.setdefault(segment, _Node())
        node.handlers[method] = handler
        node.template = template
        self.table.append((method, template, handler))

    def find(self, method: str, path: str) -> Match | None:
        """The route of a raw path below the mount point; None if there is none.

        Raises:
            Problem: 405, with the methods that there are.
        """
        node = self._root
        params: dict[str, str] = {}
        for segment in path.strip("/").split("/"):
            if (child := node.children.get(segment)) is not None:
                node = child
            elif node.param is not None and segment:
                node = node.param
                params[node.name] = unquote(segment, errors="replace")
            else:
                return None
        if not node.handlers:
            return None
        handler = node.handlers.get("GET" if method == "HEAD" else method)
        if handler is None:
            allowed = ", ".join(sorted(node.handlers))
            raise Problem(405, "method_not_allowed", f"{method} is not for this", headers={"Allow": allowed})
        return Match(handler, params, node.template)


def raw_path(scope: Scope) -> str:
    """The raw path below the mount point (SV-2)."""
    raw = scope.get("raw_path")
    path = quote(scope["path"], safe="/%~:@!$&'()*+,;=") if raw is None else raw.decode("latin-1")
    path = path.partition("?")[0]
    root = quote(scope.get("root_path", ""), safe="/%~:@!$&'()*+,;=")
    if root and path.startswith(root):
        path = path[len(root) :]
    return path or "/"


__all__ = ["Handler", "Match", "Routes", "raw_path"]
