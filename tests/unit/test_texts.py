"""Text of strangers (TC-102)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from mcp.types import CallToolResult, ResourceLink, TextContent, Tool

from pilothouse.controllers.form.options import Option, as_options
from pilothouse.controllers.mcp.offers import offers
from pilothouse.controllers.mcp.results import error_of, result_of
from pilothouse.controllers.sql.schema import ColumnInfo, Schema, TableInfo
from pilothouse.controllers.texts import lines, one_line

ACTING = "\x1b[2Ja\x00b\x9bc\u202ed\u2066e\u2028f\x07"


@pytest.mark.parametrize(
    "text", ["Grüße, 世界", "👩‍👩‍👧 family", "مرحبا", "tab\tand\nline", "naïve — “quoted”"]
)
def test_what_people_write_stays(text: str) -> None:
    """TC-102: letters of any script, joined emoji, tabs and line ends."""
    assert lines(text) == text
    assert one_line(text) == " ".join(text.split())


def test_marks_that_act_are_taken_out_wherever_a_model_reads() -> None:
    """TC-102: terminal sequences, line separators, marks that turn text around; in results, errors, labels and schemas."""
    assert lines("a\r\nb\rc") == "a\nb c"
    texts = [lines(ACTING), one_line(ACTING)]
    link = ResourceLink(type="resource_link", uri="file:///a", name=ACTING, description=ACTING)
    found = result_of(CallToolResult(content=[TextContent(type="text", text=ACTING), link]))
    texts += [part.text for part in found.parts or ()]
    failed = result_of(CallToolResult(content=[TextContent(type="text", text=ACTING)], is_error=True))
    texts += [part.text for part in failed.parts or ()]
    texts.append(str(error_of(SimpleNamespace(code=1, message=ACTING))))  # type: ignore[arg-type]
    tool = Tool(name="a", description=ACTING, input_schema={"type": "object"})
    texts.append(offers("t", [tool], include=None, exclude=(), effects={}, trust=False)[0].description)
    texts += [option.label for option in as_options([Option(1, ACTING), ACTING])]
    table = TableInfo(ACTING, (ColumnInfo(ACTING, ACTING),), "table")
    texts.append(Schema("sqlite", [table], []).text(ACTING))
    for text in texts:
        assert text
        assert not set(text) & set("\x1b\x00\x9b\u202e\u2066\u2028\x07"), text
