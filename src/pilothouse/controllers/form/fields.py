"""The fields of a model, addressed by dotted names, and what a language model may know and do of each."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, get_args, get_origin, is_typeddict

from pydantic import BaseModel, ConfigDict, SecretBytes, SecretStr, create_model
from pydantic.fields import FieldInfo

from ...errors import ConfigError
from ...messages import JSON
from ..texts import one_line
from .options import Option, OptionSearch, as_options

MISSING: Final = object()
"""No value at a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPolicy:
    """What a language model may know and do of a field.

    Attributes:
        hidden: the field does not exist for it.
        read_only: it is shown, and cannot be written.
        mask: its value is not shown, and can be written.
        ask: while it is missing, the person is to be asked, not guessed for.
        description: instead of the model's own.
        options: the values that are allowed, or a search for them.
    """

    hidden: bool = False
    read_only: bool = False
    mask: bool = False
    ask: bool = False
    description: str | None = None
    options: Sequence[Option | JSON] | OptionSearch | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """One value of a form: a leaf, or everything that is no nested model.

    Attributes:
        path: dotted Python names.
        parts: the same in pieces.
        aliases: for each piece, other names that errors may call it by.
    """

    path: str
    parts: tuple[str, ...]
    aliases: tuple[frozenset[str], ...]
    info: FieldInfo
    required: bool
    secret: bool
    policy: FieldPolicy

    @property
    def visible(self) -> bool:
        """Whether it exists for a language model."""
        return not (self.policy.hidden or self.secret)

    def describe(self) -> str:
        """One line for a language model; static."""
        words = [_type_word(self.info.annotation)]
        words += [str(rule) for rule in map(_rule, self.info.metadata) if rule]
        if self.required:
            words.append("required")
        if self.policy.read_only:
            words.append("read-only")
        if self.policy.ask:
            words.append("ask the person, do not guess")
        options = self.policy.options
        if callable(options):
            words.append("choose from `options`")
        elif options is not None:
            shown = [one.label for one in as_options(options)]
            words.append("one of " + " | ".join(shown) if len(shown) <= 50 else "choose from `options`")
        text = self.policy.description or self.info.description or ""
        return f"- {self.path} ({', '.join(words)})" + (f": {one_line(text)}" if text else "")


class Shape:
    """All fields of a model, and what makes its values.

    Args:
        model: a pydantic model, a dataclass or a TypedDict.
        policies: by path.

    Raises:
        TypeError: something else.
        ConfigError: a policy for a field that does not exist.
    """

    def __init__(self, model: Any, policies: Mapping[str, FieldPolicy]) -> None:
        self.model, self.make = _as_model(model)
        self.defaults: dict[str, FieldInfo] = {}
        """Nested models that have a default, by path: what is missing in one is missing only once something is written."""
        found = _walk(self.model, (), (), policies, (self.model,), self.defaults)
        self.fields = {field.path: field for field in found}
        self.groups = {
            ".".join(field.parts[:depth])
            for field in self.fields.values()
            for depth in range(1, len(field.parts))
        }
        if unknown := set(policies) - set(self.fields) - self.groups:
            raise ConfigError(f"fields: there is no {min(unknown)!r}; there are {', '.join(self.fields)}")

    def field_at(self, location: Sequence[int | str]) -> Field | None:
        """The field that an error's location is about; None for the form as a whole."""
        for field in self.fields.values():
            if len(location) >= len(field.parts) and all(
                found == part or found in other
                for found, part, other in zip(location, field.parts, field.aliases, strict=False)
            ):
                return field
        return None

    def under(self, group: str) -> list[Field]:
        """The fields of a nested model."""
        return [field for path, field in self.fields.items() if path.startswith(f"{group}.")]

    def default_above(self, parts: Sequence[str], draft: Mapping[str, Any]) -> tuple[str, ...]:
        """The nested model that a place is in, is not in the draft, and has a default; empty if none is."""
        for depth in range(1, len(parts)):
            if ".".join(parts[:depth]) in self.defaults and get_at(draft, parts[:depth]) is MISSING:
                return tuple(parts[:depth])
        return ()


def _as_model(given: Any) -> tuple[type[BaseModel], Callable[[BaseModel], Any]]:
    if isinstance(given, type) and issubclass(given, BaseModel):
        return given, lambda value: value
    config = ConfigDict(arbitrary_types_allowed=True)
    if dataclasses.is_dataclass(given) and isinstance(given, type):
        hints = typing.get_type_hints(given, include_extras=True)
        members: dict[str, Any] = {}
        for one in dataclasses.fields(given):
            if not one.init:
                continue
            if one.default_factory is not dataclasses.MISSING:
                default: Any = FieldInfo(default_factory=one.default_factory)
            else:
                default = ... if one.default is dataclasses.MISSING else one.default
            members[one.name] = (hints[one.name], default)
        made: type[BaseModel] = create_model(given.__name__, __config__=config, **members)
        kind = given
        return made, lambda value: kind(**{name: getattr(value, name) for name in type(value).model_fields})
    if is_typeddict(given):
        hints = typing.get_type_hints(given)
        members = {
            name: (hint, ... if name in given.__required_keys__ else None) for name, hint in hints.items()
        }
        made = create_model(given.__name__, __config__=config, **members)
        return made, lambda value: {name: getattr(value, name) for name in value.model_fields_set}
    raise TypeError(f"a form needs a pydantic model, a dataclass or a TypedDict, got {given!r}")


def _walk(
    model: type[BaseModel],
    above: tuple[str, ...],
    aliases: tuple[frozenset[str], ...],
    policies: Mapping[str, FieldPolicy],
    seen: tuple[type, ...],
    defaults: dict[str, FieldInfo],
    inherited: FieldPolicy | None = None,
) -> Iterator[Field]:
    for name, info in model.model_fields.items():
        parts = (*above, name)
        path = ".".join(parts)
        others = (
            *aliases,
            frozenset(one for one in (info.alias, info.validation_alias) if isinstance(one, str)),
        )
        policy = policies.get(path) or inherited or FieldPolicy()
        inner = info.annotation
        if (
            isinstance(inner, type)
            and issubclass(inner, BaseModel)
            and inner not in seen
            and not info.exclude
        ):
            group = policy if path in policies or inherited else None
            if not info.is_required():
                defaults[path] = info
            yield from _walk(inner, parts, others, policies, (*seen, inner), defaults, group)
            continue
        secret = bool(info.exclude) or _holds(info.annotation, (SecretStr, SecretBytes))
        yield Field(path, parts, others, info, info.is_required(), secret, policy)


def _holds(annotation: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, kinds):
        return True
    return any(_holds(part, kinds) for part in get_args(annotation))


def _type_word(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "one of " + " | ".join(str(value) for value in get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "one of " + " | ".join(str(one.value) for one in annotation)
    return getattr(annotation, "__name__", None) or str(annotation).replace("typing.", "")


def _rule(rule: Any) -> str:
    for name, words in (
        ("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"),
        ("min_length", "length at least"), ("max_length", "length at most"), ("pattern", "matches"),
    ):  # fmt: skip
        if (value := getattr(rule, name, None)) is not None:
            return f"{words} {value}"
    return ""


# Values at paths of nested objects


def get_at(data: Any, parts: Sequence[str]) -> Any:
    """The value at a path, `MISSING` if there is none."""
    for part in parts:
        if not isinstance(data, Mapping) or part not in data:
            return MISSING
        data = data[part]
    return data


def with_at(data: Mapping[str, Any], parts: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy with another value at a path; `MISSING` takes it away."""
    copied = dict(data)
    head, *rest = parts
    if rest:
        inner = copied.get(head)
        below = with_at(inner if isinstance(inner, Mapping) else {}, rest, value)
        if below or value is not MISSING:
            copied[head] = below
        else:
            copied.pop(head, None)
    elif value is MISSING:
        copied.pop(head, None)
    else:
        copied[head] = value
    return copied
