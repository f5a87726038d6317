"""Does a test fail when the code is wrong? Changes a module in one place at a time and looks.

    python -m tests.oracles.mutants src/pilothouse/core/run.py

Each mutant is a copy of the package with one comparison, constant, condition, operator, return value or statement
changed. It is killed when the searches or the unit tests of the core say so, or when it cannot be imported.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = [
    f"tests/unit/test_{name}.py"
    for name in ("rules", "run", "settling", "view", "calls", "canonical", "names", "transcript")
]
QUICK = """
import asyncio, sys
from tests.oracles.alphabet import FULL
from tests.oracles.exhaustive import search
from tests.oracles.traces import check_many
found = search(4, limit=1).differences or search(2, FULL, limit=1).differences
asyncio.run(check_many(40))
sys.exit(bool(found))
"""
LIMIT_S = 120

OPPOSITE: dict[type, type] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add,
}  # fmt: skip


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Line, what was changed, and the changed source."""
    tree = ast.parse(source)
    quiet = _quiet(tree)
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in quiet:
            continue
        for what, change in _changes(node):
            twin = copy.deepcopy(tree)
            target = next(other for at, other in enumerate(ast.walk(twin)) if at == index)
            change(target, twin)
            try:
                changed = ast.unparse(ast.fix_missing_locations(twin))
            except ValueError:
                continue
            yield getattr(node, "lineno", 0), what, changed


def _quiet(tree: ast.AST) -> set[int]:
    """Nodes that say nothing at run time: docstrings, annotations, texts for people, types for a checker."""
    quiet: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
            parts = [node]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
            if isinstance(node.value, ast.Constant) and node.value.value is None:
                parts = [node]
        elif isinstance(node, ast.arg):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            parts = [node.returns, *node.decorator_list]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts = [node]
        for part in parts:
            if part is not None:
                quiet |= {id(inner) for inner in ast.walk(part)}
    return quiet


def _changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in OPPOSITE:
            yield (
                f"{type(op).__name__} turned round",
                lambda at, _: at.ops.__setitem__(0, OPPOSITE[type(at.ops[0])]()),
            )
        case ast.BoolOp():
            yield "and/or", lambda at, _: setattr(at, "op", OPPOSITE[type(at.op)]())
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            yield "plus/minus", lambda at, _: setattr(at, "op", OPPOSITE[type(at.op)]())
        case ast.UnaryOp(op=ast.Not()):
            yield (
                "not dropped",
                lambda at, _: _become(at, ast.Call(ast.Name("bool", ast.Load()), [at.operand], [])),
            )
        case ast.Constant(value=bool() as value):
            yield f"{value} turned round", lambda at, _: setattr(at, "value", not at.value)
        case ast.Constant(value=int() as value):
            yield f"{value} + 1", lambda at, _: setattr(at, "value", at.value + 1)
        case ast.Constant(value=str() as value) if value:
            yield f"{value!r} changed", lambda at, _: setattr(at, "value", f"{at.value}?")
        case ast.If() | ast.IfExp():
            yield "condition turned round", lambda at, _: setattr(at, "test", ast.UnaryOp(ast.Not(), at.test))
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield "returns None", lambda at, _: setattr(at, "value", ast.Constant(None))
        case ast.Assign() | ast.AugAssign() | ast.Delete():
            yield "statement dropped", _drop
        case ast.Expr(value=ast.Call()):
            yield "call dropped", _drop


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _become(at: ast.AST, other: ast.AST) -> None:
    at.__class__ = other.__class__
    at.__dict__ = dict(other.__dict__)


def _drop(at: ast.AST, tree: ast.AST) -> None:
    for parent in ast.walk(tree):
        for body in (getattr(parent, name, None) for name in ("body", "orelse")):
            if isinstance(body, list) and at in body:
                body[body.index(at)] = ast.Pass()


def killed(module: Path, changed: str, home: Path) -> str:
    """How a mutant died; empty if it lives."""
    target = home / module.relative_to(ROOT / "src")
    original = target.read_text()
    target.write_text(changed)
    environment = os.environ | {"PYTHONPATH": f"{home}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    steps = {
        "tests": [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            *TESTS,
        ],
        "search": [sys.executable, "-c", QUICK],
    }
    try:
        for name, command in steps.items():
            try:
                done = subprocess.run(
                    command, cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT_S, check=False
                )
            except subprocess.TimeoutExpired:
                return "time"
            if done.returncode:
                return name
        return ""
    finally:
        target.write_text(original)


def main() -> int:
    """Tries all mutants of a module; prints those that live and the share that was killed."""
    parser = argparse.ArgumentParser(description="Mutation testing of a module of the core.")
    parser.add_argument("module", type=Path)
    parser.add_argument("--every", type=int, default=1, help="only each n-th mutant")
    options = parser.parse_args()
    module = options.module.resolve()
    found = list(mutants(module.read_text()))[:: options.every]
    began, alive = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        shutil.copytree(
            ROOT / "src" / "pilothouse", home / "pilothouse", ignore=shutil.ignore_patterns("__pycache__")
        )
        if how := killed(module, module.read_text(), home):
            print(f"the unchanged module fails: {how}")
            return 1
        for line, what, changed in found:
            if not killed(module, changed, home):
                alive.append((line, what))
                print(f"alive: line {line}: {what}", flush=True)
    share = 100 * (1 - len(alive) / len(found))
    seconds = time.perf_counter() - began
    print(
        f"{module.name}: {len(found)} mutants, {len(found) - len(alive)} killed ({share:.1f} %), {seconds:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
