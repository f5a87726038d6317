"""The house has five floors, and nothing reaches up (design.md §3)."""

from __future__ import annotations

import ast
from pathlib import Path

import pilothouse

ROOT = Path(pilothouse.__file__).parent

# Longest prefix wins.
FLOORS = {
    "pilothouse": 4,  # the façade: lazy names of every floor
    "pilothouse._version": 0,
    "pilothouse.messages": 0,
    "pilothouse.responses": 0,
    "pilothouse.events": 0,
    "pilothouse.commands": 0,
    "pilothouse.records": 0,
    "pilothouse.projection": 0,
    "pilothouse.agent_contracts": 0,
    "pilothouse.agent_errors": 0,
    "pilothouse.errors": 0,
    "pilothouse.contracts": 0,
    "pilothouse.cluster": 0,
    "pilothouse.core": 1,
    "pilothouse.runs": 2,
    "pilothouse.loop": 2,
    "pilothouse.conversation": 2,
    "pilothouse.agents": 2,
    "pilothouse.journal": 2,
    "pilothouse.clock": 2,
    "pilothouse.cancel": 2,
    "pilothouse.scope": 2,
    "pilothouse.transport": 3,
    "pilothouse.providers": 3,
    "pilothouse.runtimes": 3,
    "pilothouse.remote": 3,
    "pilothouse.controllers": 3,
    "pilothouse.local": 3,
    "pilothouse.dispatch": 3,
    "pilothouse.server": 4,
    "pilothouse.cli": 4,
    "pilothouse.testing": 4,
}

FORBIDDEN = {
    0: {
        "asyncio",
        "sqlite3",
        "apsw",
        "httpx",
        "httpx2",
        "time",
        "random",
        "threading",
        "pydantic",
        "os",
        "socket",
    },
    1: {
        "asyncio",
        "sqlite3",
        "apsw",
        "httpx",
        "httpx2",
        "time",
        "random",
        "threading",
        "pydantic",
        "os",
        "socket",
    },
}


def floor_of(module: str) -> int | None:
    parts = module.split(".")
    while parts:
        if (floor := FLOORS.get(".".join(parts))) is not None:
            return floor
        parts.pop()
    return None


def modules() -> list[tuple[str, Path]]:
    out = []
    for path in sorted(ROOT.rglob("*.py")):
        names = path.relative_to(ROOT.parent).with_suffix("").parts
        out.append((".".join(names[:-1] if names[-1] == "__init__" else names), path))
    return out


def imports_of(path: Path, module: str) -> set[str]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            # `from pilothouse import messages` names a module, `from pilothouse.messages import Text` a name in one.
            found |= {f"{base}.{alias.name}" if base == "pilothouse" else base for alias in node.names}
    return found


def test_every_module_has_a_floor_and_imports_from_its_own_or_below() -> None:
    """No import points up, not even inside a function or under TYPE_CHECKING."""
    wrong = []
    for module, path in modules():
        floor = FLOORS.get(module) if module == "pilothouse" else floor_of(module)
        if (
            module != "pilothouse"
            and floor == FLOORS["pilothouse"]
            and not module.startswith(
                ("pilothouse.server", "pilothouse.cli", "pilothouse.testing", "pilothouse.__main__")
            )
        ):
            wrong.append(f"{module} stands on no floor")
            continue
        assert floor is not None
        for name in imports_of(path, module):
            if name.split(".")[0] == "pilothouse" and module != "pilothouse":
                target = floor_of(name)
                assert target is not None
                if name == "pilothouse" or target > floor:
                    wrong.append(f"{module} (floor {floor}) imports {name}")
            elif name.split(".")[0] in FORBIDDEN.get(floor, set()):
                wrong.append(f"{module} (floor {floor}) imports {name}")
    assert wrong == []


def test_no_runtime_knows_of_ai_controllers() -> None:
    """TC-82: what a send stages and commits is added by a port around the runtime's port, whatever runtime that is."""
    below = (
        "pilothouse.loop",
        "pilothouse.runs",
        "pilothouse.runtimes",
        "pilothouse.core",
        "pilothouse.journal",
    )
    above = ("pilothouse.conversation", "pilothouse.controllers")
    wrong = [
        f"{module} imports {name}"
        for module, path in modules()
        if module.startswith(below)
        for name in imports_of(path, module)
        if name.startswith(above)
    ]
    assert wrong == []
