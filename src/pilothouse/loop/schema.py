"""A tool's parameters: the JSON schema that the model is given, and its arguments as the values that the function gets.

pydantic makes the schema and validates; it is imported at the first tool, not with `pilothouse`. Everything that can
be built once a tool is built here, so that a call costs one validation.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
)

from msgspec import Struct

from ..core.canonical import check
from ..errors import ToolDefinitionError
from ..messages import JSON
from .coercion import Args, blame, explain, own, problems_of, second_chance
from .signature import Signature

if TYPE_CHECKING:
    from pydantic import TypeAdapter

JSONSchema: TypeAlias = Mapping[str, JSON]
logger: Final = logging.getLogger("pilothouse.loop")


class InvalidArguments(Exception):
    """Arguments do not fit; the text is for the model and names every violation with its path."""


class Frozen(Struct, frozen=True):
    """Arguments that were accepted: `json` is what is recorded and approved, `values` what the function gets."""

    json: dict[str, JSON]
    values: dict[str, Any]


class Parameters:
    """The parameters of one tool.

    Attributes:
        schema: JSON schema of an object, the same bytes each time.
    """

    def __init__(self, tool: str, signature: Signature) -> None:
        self._tool = tool
        self._adapter = _adapter(tool, signature)
        self._defaults: dict[str, JSON] = {}  # those that have a JSON form, in that form
        self._objects: dict[str, Any] = {}  # the same as they are
        for name, default in signature.defaults.items():
            self._take_default(name, default)
        self._plain = not signature.keyword_rest and all(map(_is_plain, signature.fields.values()))
        # Values of such types can be gone through once, which looking at them did.
        self._once = any(kind in repr(signature.fields) for kind in ("Iterable", "Iterator", "Generator"))
        self.schema: Final = self._make_schema()

    def _take_default(self, name: str, default: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a default that is not of its own type is dumped as it is
                dumped = self._adapter.dump_python({name: default}, mode="json")[name]
            check(dumped)
        except Exception:  # noqa: BLE001 - no JSON form: the function fills it in by itself
            return
        self._defaults[name], self._objects[name] = dumped, default

    def _make_schema(self) -> dict[str, JSON]:
        schema = _untitled(self._adapter.json_schema())
        properties = schema.setdefault("properties", {})
        for name, default in self._defaults.items():
            if default is not None:
                properties[name] = {**properties[name], "default": default}
        schema.setdefault("additionalProperties", False)
        return {"type": "object", **{key: value for key, value in schema.items() if key != "type"}}

    def accept(self, given: Args) -> Frozen:
        """Validates and freezes arguments of a model; the input is not changed (TL-6, TL-7).

        Raises:
            InvalidArguments: they do not fit, or what they became cannot be written down and read back.
        """
        values = self._validated(given)
        if self._plain:
            for name, default in self._objects.items():
                values.setdefault(name, default)
            return Frozen(values, own(values))
        return self._read_back({**self._defaults, **self._dump(values)})

    def thaw(self, frozen: Args) -> dict[str, Any]:
        """The values of arguments that were frozen before, for another attempt.

        Raises:
            InvalidArguments: the tool's types do not take what they wrote down.
        """
        return own(frozen) if self._plain else self._read_back(dict(frozen)).values

    def _validated(self, given: Args) -> dict[str, Any]:
        from pydantic import ValidationError

        validate = self._adapter.validator.validate_python
        try:
            return validate(given)  # type: ignore[no-any-return]
        except ValidationError as first:
            with suppress(ValidationError, TypeError, ValueError):
                # A strict type takes the JSON of its values, not the objects that JSON has.
                return self._adapter.validator.validate_json(json.dumps(given))  # type: ignore[no-any-return]
            helped = second_chance(given, first)
            if helped is None:
                raise InvalidArguments(explain(self._tool, first, given)) from None
        try:
            return validate(helped.arguments)  # type: ignore[no-any-return]
        except ValidationError as second:
            raise InvalidArguments(explain(self._tool, second, given, helped.before)) from None

    def _dump(self, values: dict[str, Any]) -> dict[str, JSON]:
        try:
            dumped = self._adapter.dump_python(values, mode="json")
            check(dumped)
        except Exception as error:  # noqa: BLE001 - serializers of the tool's own types are anybody's code
            raise InvalidArguments(blame(self._tool, str(error))) from None
        return dumped  # type: ignore[no-any-return]

    def _read_back(self, frozen: dict[str, JSON]) -> Frozen:
        """Makes the values from what was written down, so what runs is what was approved (TL-7)."""
        from pydantic import ValidationError

        defaulted = {name for name, value in self._defaults.items() if frozen.get(name, value) == value}
        given = {name: value for name, value in frozen.items() if name not in defaulted}
        try:
            values = self._adapter.validator.validate_json(json.dumps(given))
        except ValidationError as error:
            raise InvalidArguments(blame(self._tool, problems_of(error)[0])) from None
        again = self._dump(values)
        if again != given:
            odd = next((name for name in given if again.get(name) != given[name]), "?")
            raise InvalidArguments(blame(self._tool, f"{odd} is another value when it is read back"))
        if self._once:
            values = self._adapter.validator.validate_json(json.dumps(given))
        values |= {name: self._objects[name] for name in defaulted}
        return Frozen(frozen, values)


def reader_of(kind: type[Any] | None) -> tuple[Callable[[JSON], Any], JSON]:
    """How JSON of a person becomes a value of that type, and the type's JSON schema; None takes anything.

    What the reader raises is `InvalidArguments`.
    """
    if kind is None:
        return (lambda content: content), None
    from pydantic import TypeAdapter, ValidationError

    adapter = TypeAdapter(kind)

    def read(content: JSON) -> Any:
        try:
            try:
                return adapter.validate_python(content)
            except (
                ValidationError
            ):  # a strict type takes the JSON of its values, not the objects that JSON has
                return adapter.validate_json(json.dumps(content))
        except ValidationError as error:
            raise InvalidArguments("\n".join(problems_of(error))) from None
        except Exception as error:
            logger.exception("validating a value of type %r failed", kind)
            raise InvalidArguments("it could not be validated") from error

    return read, _untitled(adapter.json_schema())


# Building


def _adapter(tool: str, signature: Signature) -> TypeAdapter[dict[str, Any]]:
    from typing import NotRequired

    from pydantic import ConfigDict, TypeAdapter
    from typing_extensions import TypedDict

    make_typed_dict: Any = TypedDict  # mypy knows it with literal fields only

    def make(some: Mapping[str, Any]) -> TypeAdapter[dict[str, Any]]:
        optional = signature.defaults
        items = {name: NotRequired[hint] if name in optional else hint for name, hint in some.items()}
        kind: Any = make_typed_dict("Arguments", items)
        kind.__pydantic_config__ = ConfigDict(
            extra="allow" if signature.keyword_rest else "forbid", allow_inf_nan=False
        )
        return TypeAdapter(kind)

    try:
        adapter = make(signature.fields)
        schema = adapter.json_schema()
    except Exception as error:
        raise ToolDefinitionError(
            f"tool {tool}: {_culprit(make, signature.fields)} has no JSON schema; "
            "what a model can give is made of str, int, float, bool, list, dict, Literal, dataclasses and pydantic models"
        ) from error
    if (masked := _masked(schema)) is not None:
        raise ToolDefinitionError(
            f"tool {tool}: parameter {masked} masks itself when it is written down, so it could not be approved"
        )
    return adapter


def _culprit(make: Callable[[Mapping[str, Any]], Any], fields: Mapping[str, Any]) -> str:
    for name, hint in fields.items():
        try:
            make({name: hint}).json_schema()
        except Exception:  # noqa: BLE001 - whatever it is, this parameter is what it is about
            return f"parameter {name}: {getattr(hint, '__name__', hint)}"
    return "its signature"


def _masked(schema: Mapping[str, Any]) -> str | None:
    for name, value in schema.get("properties", {}).items():
        if '"writeOnly": true' in json.dumps(_resolved(value, schema.get("$defs", {}))):
            return str(name)
    return None


def _resolved(value: Any, definitions: Mapping[str, Any]) -> list[Any]:
    """A value with every definition that it refers to."""
    found, names = [value], set[str]()
    while True:
        text = json.dumps(found)
        new = [name for name in definitions if name not in names and f'"#/$defs/{name}"' in text]
        if not new:
            return found
        names.update(new)
        found += [definitions[name] for name in new]


_PLAIN: Final = (str, int, bool, type(None), float, list, dict, Any)


def _is_plain(hint: Any) -> bool:
    """Whether validating twice gives the same by construction: JSON types without validators of their own."""
    from pydantic.fields import FieldInfo

    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _is_plain(inner[0]) and all(isinstance(item, FieldInfo) for item in inner[1:])
    if origin is Literal:
        return all(isinstance(item, str | int | None) for item in inner)
    if get_origin(hint) in (Union, UnionType) or origin is list:
        return all(_is_plain(item) for item in inner)
    if origin is dict:
        return inner[0] is str and _is_plain(inner[1])
    return hint in _PLAIN


def _untitled(schema: Any, *, names: bool = False) -> Any:
    """A copy without the titles that pydantic makes up; `names`: the keys are names, not keywords."""
    if isinstance(schema, dict):
        return {
            key: _untitled(value, names=not names and key in ("properties", "$defs"))
            for key, value in schema.items()
            if names or key != "title" or not isinstance(value, str)
        }
    if isinstance(schema, list):
        return [_untitled(item) for item in schema]
    return schema
