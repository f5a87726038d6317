"""Structured output: the final answer as one JSON value of a given type, validated, mended a bounded number of times."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, final

from ..core.canonical import check
from ..errors import ConfigError
from ..messages import JSON
from .jsonschema import problems_of
from .schema import InvalidArguments, reader_of

NAME: Final = "output"
ROOM: Final = 4
"""Levels of nesting that a fact puts around it."""
_FENCE: Final = re.compile(r"^\s*```[A-Za-z]*\s*\n(.*?)\n?\s*```\s*$", re.DOTALL)


class NotOutput(Exception):
    """An answer that is no such value; the text tells the model why."""


@final
class Output:
    """What a final answer must be.

    Attributes:
        schema: its JSON schema, given to the model with each request.
        read: makes the value of its JSON; raises `InvalidArguments`.
    """

    def __init__(self, schema: JSON, read: Callable[[JSON], Any]) -> None:
        self.schema = schema
        self.read = read

    def parse(self, text: str) -> tuple[JSON, Any]:
        """The JSON of an answer and the value that it is.

        Raises:
            NotOutput: it is none.
        """
        fenced = _FENCE.match(text)
        try:
            content = json.loads(fenced[1] if fenced else text, parse_constant=_refuse)
            check(content, depth=ROOM)  # an infinity may be written in digits; too deep is no fact
        except (ValueError, RecursionError) as error:
            raise NotOutput(f"The answer must be one JSON value and nothing else: {error}.") from None
        try:
            return content, self.read(content)
        except InvalidArguments as problem:
            raise NotOutput(f"The answer does not fit the schema:\n{problem}") from None


def output_of(kind: type[Any]) -> Output:
    """Output of a type that pydantic knows.

    Raises:
        ConfigError: it is none.
    """
    from pydantic import PydanticUserError
    from pydantic_core import SchemaError

    try:
        read, schema = reader_of(kind)
    except (PydanticUserError, SchemaError) as error:
        raise ConfigError(
            f"output_type must be a type that pydantic knows, got {kind!r:.60}: {error}"
        ) from None
    return Output(schema, read)


def output_by(schema: Mapping[str, JSON]) -> Output:
    """Output by a ready JSON schema; the value is the JSON itself."""

    def read(content: JSON) -> JSON:
        if problems := problems_of(content, schema):
            raise InvalidArguments("\n".join(f"- {problem}" for problem in problems))
        return content

    return Output(schema, read)


def repair_text(problem: str) -> str:
    """What the model is told of an answer that was no such value."""
    return f"{problem}\nAnswer again, with only the JSON value."


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")
