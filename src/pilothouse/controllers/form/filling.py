"""Filling a form: each value gets one verdict, good ones land whatever the others do, and the whole is judged once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError
from pydantic_core import to_jsonable_python

from ...messages import JSON
from .fields import MISSING, Field, Shape, get_at, with_at

logger: Final = logging.getLogger("pilothouse.form")

REASON: Final = 300


class FieldError(NamedTuple):
    """What is wrong with a field; `path` is empty for the form as a whole."""

    path: str
    message: str


@dataclass(frozen=True, slots=True)
class Judged:
    """A draft under the model.

    Attributes:
        value: only if it is complete and valid.
        missing: paths of required fields without a value.
        errors: of fields that have one, by path; several a field are joined.
        rules: messages about the form as a whole.
    """

    value: BaseModel | None
    missing: tuple[str, ...]
    errors: Mapping[str, str]
    rules: tuple[str, ...]


def faults(shape: Shape, judged: Judged) -> dict[str, str]:
    """What is wrong with values that are there, by path; also one that no reader can be shown."""
    found = dict(judged.errors)
    if judged.value is not None:
        for one in shape.fields.values():
            if one.visible and dump_of(judged.value, one) is MISSING:
                found[one.path] = "this value cannot be shown"
    return found


@dataclass(slots=True)
class Filled:
    """What became of a call of `fill`."""

    draft: dict[str, Any]
    accepted: list[str] = field(default_factory=list)
    rejected: dict[str, tuple[JSON, str]] = field(default_factory=dict)


def judge(shape: Shape, draft: Mapping[str, Any]) -> Judged:
    """Validates a draft once, as a whole."""
    absent = tuple(
        one.path
        for one in shape.fields.values()
        if one.required and get_at(draft, one.parts) is MISSING and not shape.default_above(one.parts, draft)
    )
    try:
        value = shape.model.model_validate(_complete(shape, draft), by_name=True, by_alias=False)
        shape.make(value)
    except ValidationError as error:
        return _sorted(shape, error, absent)
    except Exception as error:
        # A validator that stumbles over what is missing cannot be asked yet.
        if absent:
            logger.debug("the form cannot be checked yet", exc_info=error)
            return Judged(None, absent, {}, ())
        logger.exception("a validator of the form failed")
        return Judged(None, (), {}, ("the form could not be checked",))
    return Judged(value, (), {}, ())


def _complete(shape: Shape, draft: Mapping[str, Any]) -> dict[str, Any]:
    """Nested models without any value are there, so that what is missing in them is told by its own name."""
    data = dict(draft)
    for group in sorted(shape.groups):
        parts = group.split(".")
        if get_at(data, parts) is not MISSING or shape.default_above((*parts, ""), data):
            continue
        if any(one.required for one in shape.under(group)):
            data = with_at(data, parts, {})
    return data


def _sorted(shape: Shape, error: ValidationError, absent: tuple[str, ...]) -> Judged:
    missing, rules = list(absent), []
    errors: dict[str, str] = {}
    for one in error.errors(include_url=False, include_context=False, include_input=False):
        message = one["msg"][:REASON]
        found = shape.field_at(one["loc"])
        if found is None:
            rules.append(message)
        elif one["type"] == "missing" and len(one["loc"]) == len(found.parts):
            if found.path not in missing:
                missing.append(found.path)
        else:
            errors[found.path] = (
                f"{errors[found.path]}; {message}"[:REASON] if found.path in errors else message
            )
    order = list(shape.fields)
    return Judged(None, tuple(sorted(missing, key=order.index)), errors, tuple(rules))


def flat(shape: Shape, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[JSON, str]]]:
    """Values by the path of a field: nested objects are taken apart, unknown names refused."""
    found: dict[str, Any] = {}
    refused: dict[str, tuple[JSON, str]] = {}

    def take(path: str, value: Any) -> None:
        one = shape.fields.get(path)
        if one is not None and one.visible:
            if one.policy.read_only:
                refused[path] = (value, "this field is read-only")
            else:
                found[path] = value
        elif path in shape.groups and isinstance(value, Mapping):
            if not value:
                return
            for name, inner in value.items():
                take(f"{path}.{name}", inner)
        elif path in shape.groups and value is None:
            for inner_field in shape.under(path):
                if inner_field.visible:
                    take(inner_field.path, None)
        elif path in shape.groups:
            refused[path] = (value, "this is an object of several fields")
        else:
            refused[path] = (value, "unknown field")

    for path, value in values.items():
        take(str(path), value)
    return found, refused


def fill(shape: Shape, draft: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[Filled, Judged]:
    """Merges values into a copy of a draft and validates it; those with errors do not land, and it is validated again."""
    filled = Filled(_merged(shape, draft, values))
    judged = judge(shape, filled.draft)
    bad = {path: judged.errors[path] for path in values if path in judged.errors}
    if bad:
        filled.rejected = {path: (values[path], reason) for path, reason in bad.items()}
        filled.draft = _merged(
            shape, draft, {path: value for path, value in values.items() if path not in bad}
        )
        judged = judge(shape, filled.draft)
    filled.accepted = [path for path in values if path not in bad]
    if judged.value is not None:
        filled.draft = normalized(shape, filled.draft, judged.value)
    return filled, judged


def _merged(shape: Shape, draft: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    data = dict(draft)
    for path, value in values.items():
        parts = shape.fields[path].parts
        if value is not None and (group := shape.default_above(parts, data)):
            # Merged by field into the default.
            default = shape.defaults[".".join(group)].get_default(
                call_default_factory=True, validated_data={}
            )
            if isinstance(default, BaseModel):
                for one in shape.under(".".join(group)):
                    data = with_at(data, one.parts, _given(default, one, one.parts[len(group) :]))
        data = with_at(data, parts, MISSING if value is None else value)
    return data


def draft_of(shape: Shape, value: Any) -> dict[str, Any]:
    """A whole model as a draft."""
    data: dict[str, Any] = {}
    for one in shape.fields.values():
        data = with_at(data, one.parts, _given(value, one, one.parts))
    return data


def _given(value: Any, one: Field, parts: Sequence[str]) -> Any:
    """A field's value as a person would give it; `MISSING` if nobody could."""
    for part in parts[:-1]:
        value = getattr(value, part)
    if not one.secret and isinstance(value, BaseModel) and (dumped := _dumped(value, one)) is not MISSING:
        return dumped
    try:
        return to_jsonable_python(_opened(getattr(value, parts[-1])))
    except Exception:
        logger.exception("the value of %s is left out: it is no JSON", one.path)
        return MISSING


def normalized(shape: Shape, draft: Mapping[str, Any], value: BaseModel) -> dict[str, Any]:
    """The draft as the model itself writes it, if reading that gives the same model; else as it was given."""
    data = dict(draft)
    for one in shape.fields.values():
        if one.visible and (dumped := dump_of(value, one)) is not MISSING:
            data = with_at(data, one.parts, dumped)
    return data if judge(shape, data).value == value else dict(draft)


def _opened(value: Any) -> Any:
    """With secrets as they are; pydantic writes stars."""
    match value:
        case SecretStr() | SecretBytes():
            return value.get_secret_value()
        case list() | tuple() | set() | frozenset():
            return [_opened(item) for item in value]
        case dict():
            return {name: _opened(item) for name, item in value.items()}
        case _:
            return value


def dump_of(value: BaseModel, one: Field) -> Any:
    """A field's JSON; `MISSING` if its serializer raises."""
    inner: Any = value
    for part in one.parts[:-1]:
        inner = getattr(inner, part)
    return _dumped(inner, one)


def _dumped(holder: BaseModel, one: Field) -> Any:
    try:
        dumped = holder.model_dump(mode="json", by_alias=False, include={one.parts[-1]}, warnings=False)
    except Exception:
        logger.exception("the value of %s cannot be shown", one.path)
        return MISSING
    return dumped.get(one.parts[-1], MISSING)
