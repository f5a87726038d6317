"""The child process that checks and draws charts: `python -m pilothouse.controllers.chart.worker`.

Length-prefixed JSON on standard input and output, one answer a question, until the input ends. It is a process because
vl-convert holds the interpreter lock for a whole conversion (20,000 nominal bars: over a minute) and a thread cannot be
stopped; it is not `multiprocessing`, which would import the user's main module again.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import struct
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import unquote

from ..limits import bound_memory

MEMORY: Final = 2 * 1024**3
"""Bytes that it may have: a spec of a few words can ask for any number of rows."""

SCHEMA_FILE: Final = "vega-lite-6.4.1.json.gz"
"""Of the Vega-Lite that is asked of vl-convert; its descriptions are left out."""

VERSION: Final = "6.4"

_KINDS: Final = {
    "layer": "TopLevelLayerSpec",
    "facet": "TopLevelFacetSpec",
    "repeat": "TopLevelRepeatSpec",
    "concat": "TopLevelConcatSpec",
    "vconcat": "TopLevelVConcatSpec",
    "hconcat": "TopLevelHConcatSpec",
}
"""Which definition a spec is held against, by the key that only its kind has; else it is a single view."""

_SIZE: Final = re.compile(r'<svg[^>]*?\bwidth="([\d.]+)"[^>]*?\bheight="([\d.]+)"')


def main() -> None:
    """Answers until the input ends."""
    bound_memory(MEMORY)
    questions = sys.stdin.buffer
    # What a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (question := _read(questions)) is not None:
        try:
            answer = _ACTIONS[question["do"]](question)
        except Exception as error:  # noqa: BLE001 - whatever a script engine raises is the answer
            answer = {"error": str(error).splitlines()[:3]}
        data = json.dumps(answer).encode()
        answers.write(struct.pack(">I", len(data)) + data)
        answers.flush()


def _read(stream: BinaryIO) -> dict[str, Any] | None:
    head = stream.read(4)
    if len(head) < 4:
        return None
    found: dict[str, Any] = json.loads(stream.read(struct.unpack(">I", head)[0]))
    return found


def _check(question: dict[str, Any]) -> dict[str, Any]:
    """Findings of the JSON schema, else what compiling says."""
    spec = question["spec"]
    findings = schema_findings(spec)
    if findings:
        return {"findings": findings}
    try:
        import vl_convert
    except ImportError:
        return {"findings": []}
    try:
        vl_convert.vegalite_to_svg(spec, vl_version=VERSION, allowed_base_urls=[])
    except ValueError as error:
        said = [line for line in str(error).splitlines() if line.strip()]
        return {"findings": [["", f"it does not compile: {(said[1:] or said)[0][:300]}"]]}
    return {"findings": []}


def _render(question: dict[str, Any]) -> dict[str, Any]:
    try:
        import vl_convert as vl
    except ImportError:
        return {"missing": "vl-convert-python"}
    spec, scale, form = question["spec"], question["scale"], question["format"]
    options: dict[str, Any] = {"vl_version": VERSION, "theme": question.get("theme")}
    if form == "html":
        page = vl.vegalite_to_html(_inert(spec), bundle=True, **options)
        return {"data": base64.b64encode(page.encode()).decode()}
    svg = vl.vegalite_to_svg(spec, allowed_base_urls=[], **options)
    size = _SIZE.search(svg)
    width, height = (float(size[1]), float(size[2])) if size else (0.0, 0.0)
    if width * height * scale * scale > question["max_area"]:
        return {"too_large": [width, height]}
    data = {
        "svg": lambda: bytes(svg, "utf-8"),
        "png": lambda: vl.svg_to_png(svg, scale=scale),
        "pdf": lambda: vl.svg_to_pdf(svg, scale=scale),
    }[form]()
    return {"data": base64.b64encode(data).decode()}


def _inert(value: Any) -> Any:
    """Texts that cannot end the script element in which the page of a chart has its spec."""
    if isinstance(value, str):
        return value.replace("</", "<\u200b/").replace("<!--", "<\u200b!--")
    if isinstance(value, dict):
        return {_inert(key): _inert(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_inert(item) for item in value]
    return value


# The JSON schema


def schema_findings(spec: dict[str, Any]) -> list[list[str]]:
    """What the JSON schema says, most telling first: the deepest places, an unknown name before a wrong type."""
    kind = next((name for key, name in _KINDS.items() if key in spec), "TopLevelUnitSpec")
    found: dict[str, tuple[tuple[int, int], str]] = {}
    for error in _validator(kind).iter_errors(spec):
        for leaf in _leaves(error):
            parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in leaf.instance_path]
            path = "".join(parts).lstrip(".")
            rank = (-len(parts), _RANKS.get(type(leaf.kind).__name__, 5))
            if path not in found or rank < found[path][0]:
                found[path] = (rank, str(leaf.message)[:200])
    ranked = sorted(found.items(), key=lambda item: item[1][0])
    # What is said of a place above another finding is mostly the same, seen from an alternative that was not meant.
    return [
        [path, message]
        for path, (_, message) in ranked
        if not any(other != path and other.startswith(path) for other in found)
    ]


_RANKS: Final = {"AdditionalProperties": 0, "Enum": 1, "Type": 2, "Required": 3, "Constant": 4}


def _leaves(error: Any) -> Iterator[Any]:
    branches = getattr(error.kind, "context", None)
    if not branches:
        yield error
        return
    for branch in branches:
        for inner in branch:
            yield from _leaves(inner)


@cache
def _schema() -> tuple[dict[str, Any], dict[str, str]]:
    data = gzip.decompress((Path(__file__).parent / SCHEMA_FILE).read_bytes())
    schema: dict[str, Any] = json.loads(data)
    # Its names hold `<`, `(` and `|`, which no reference may.
    names = {name: f"d{at}" for at, name in enumerate(schema["definitions"])}
    stack: list[Any] = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if isinstance(item.get("$ref"), str):
                item["$ref"] = f"#/definitions/{names[unquote(item['$ref'].removeprefix('#/definitions/'))]}"
            stack += item.values()
        elif isinstance(item, list):
            stack += item
    return {names[name]: value for name, value in schema["definitions"].items()}, names


@cache
def _validator(kind: str) -> Any:
    import jsonschema_rs

    definitions, names = _schema()
    return jsonschema_rs.Draft7Validator({"definitions": definitions, "$ref": f"#/definitions/{names[kind]}"})


_ACTIONS: Final = {"check": _check, "render": _render}

if __name__ == "__main__":
    main()
