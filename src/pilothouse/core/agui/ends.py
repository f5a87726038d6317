"""The last frames of a run on AG-UI, by the one table of endings (RC-86, SV-95)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from msgspec import UNSET, UnsetType, to_builtins

from ...commands import Request
from ...events import Failed, Incomplete, Outcome, Truncated, Unknown
from ...messages import JSON, Usage
from ..delivery import ENDINGS, Case, case_of, case_of_wait, reason_of
from . import events as agui
from .events import Event, Profile

Detail: TypeAlias = Literal["safe", "full"]
"""How much of a provider's error is told."""

_PHRASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "auth": "the provider refused the credentials",
        "rate_limit": "the provider's rate limit was reached",
        "quota": "the provider's quota is used up",
        "overloaded": "the provider is overloaded",
        "server_error": "the provider failed",
        "invalid_request": "the provider refused the request",
        "context_overflow": "the conversation is too long for the model",
        "transport": "the connection to the provider broke",
        "send_timeout": "no response began in time",
        "idle_timeout": "the response fell silent",
        "stalled": "the response fell silent",
        "malformed": "the provider's answer could not be read",
        "malformed_tool_call": "the model's tool call could not be read",
        "protocol": "the provider's answer contradicts itself",
        "start_refused": "the agent refused to start",
    }
)
_SECRETS: Final = re.compile(
    r"(?i)\b(?:sk|pk|rk|ghp|xox[a-z])[-_][\w\-]{6,}"  # keys by their usual looks
    r"|\b(?:key|token|bearer)[:= ]+(?=\S*\d)[\w\-./+=]{8,}"
    r"|(?<=://)[^/\s@]+@"  # credentials in an address
    r"|\b[A-Za-z0-9_\-]{32,}\b"  # long opaque words
)
_PATHS: Final = re.compile(r"(?<![\w:/])(?:/[\w.\-]+){2,}|\b[A-Za-z]:\\[^\s:]+")
_LENGTH: Final = 300


def error_text(outcome: Failed | Unknown, detail: Detail = "safe") -> str:
    """What went wrong, in one line. `safe` holds no key, path, body or traceback."""
    if isinstance(outcome, Unknown):
        why = outcome.reason or outcome.cause.replace("_", " ")
        said = one_line(why) if detail == "safe" else why
        if outcome.settled:
            return "the outcome is unknown, and was left so" + (f": {said}" if said else "")
        return "the outcome is unknown" + (f": {said}" if said else "")
    if detail == "full":
        return outcome.message or outcome.kind
    phrase = _PHRASES.get(outcome.kind, "")
    said = one_line(outcome.message)
    if not phrase:
        return said or f"the run failed ({outcome.kind})"
    return f"{phrase} ({said})" if said and said != phrase else phrase


def one_line(text: str) -> str:
    """The first line of a text, without what looks like a secret or a path."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = _PATHS.sub("…", _SECRETS.sub("…", line))
    return line if len(line) <= _LENGTH else line[: _LENGTH - 1] + "…"


def token_usage(spent: Iterable[tuple[str, str, Usage]]) -> list[agui.TokenUsage]:
    """One entry for each provider and model, in the order in which they were asked; figures not told are absent."""
    sums: dict[tuple[str, str], Usage] = {}
    for provider, model, usage in spent:
        before = sums.get((provider, model))
        sums[provider, model] = usage if before is None else before + usage
    return [_entry(provider, model, usage) for (provider, model), usage in sums.items() if _told(usage)]


def _told(usage: Usage) -> bool:
    return any(figure is not None for figure in (usage.input, usage.output, usage.total))


def _entry(provider: str, model: str, usage: Usage) -> agui.TokenUsage:
    def given(figure: int | None) -> int | UnsetType:
        return UNSET if figure is None else figure

    return agui.TokenUsage(
        provider or UNSET,
        model or UNSET,
        given(usage.input),
        given(usage.output),
        given(usage.total),
        given(usage.reasoning),
        given(usage.cache_read),
        given(usage.cache_write),
    )


# The frames


class Names:
    """What the frames of one segment echo and how they are to be written.

    Args:
        steps: turns are told as steps.
        on_interrupt: interrupts are told in the older way, too, by a CUSTOM event.
        encrypted: reasoning that only its provider can read is handed on; in profile 1.0 alone.
    """

    def __init__(
        self,
        thread_id: str,
        run_id: str,
        *,
        profile: Profile = "1.0",
        detail: Detail = "safe",
        steps: bool = False,
        on_interrupt: bool = False,
        encrypted: bool = False,
    ) -> None:
        self.thread_id = thread_id
        self.run_id = run_id
        self.profile = profile
        self.detail = detail
        self.steps = steps
        self.on_interrupt = on_interrupt
        self.encrypted = encrypted and profile == "1.0"

    def of(self, thread_id: str, run_id: str) -> Names:
        """The same for another segment."""
        return Names(
            thread_id,
            run_id,
            profile=self.profile,
            detail=self.detail,
            steps=self.steps,
            on_interrupt=self.on_interrupt,
            encrypted=self.encrypted,
        )

    def finished(
        self,
        outcome: agui.RunOutcome | UnsetType,
        usage: Sequence[agui.TokenUsage],
        result: JSON | UnsetType = UNSET,
    ) -> agui.RunFinished:
        """RUN_FINISHED with these ids."""
        return agui.RunFinished(
            self.thread_id, self.run_id, result=result, outcome=outcome, usage=list(usage) or UNSET
        )


_Make: TypeAlias = Callable[[Names, Any, Sequence[agui.TokenUsage]], tuple[Event, ...]]


def _success(names: Names, _outcome: Outcome, usage: Sequence[agui.TokenUsage]) -> tuple[Event, ...]:
    return (names.finished(agui.Success(), usage),)


def _noted(
    names: Names, outcome: Truncated | Incomplete, usage: Sequence[agui.TokenUsage]
) -> tuple[Event, ...]:
    said = {"outcome": str(outcome.__struct_config__.tag), "reason": reason_of(outcome)}
    if isinstance(outcome, Incomplete) and outcome.limit:
        said["limit"] = outcome.limit
    return (
        agui.Custom(f"pilothouse.{said['outcome']}", said),
        names.finished(agui.Success(), usage, {"pilothouse": said}),
    )


def _cancelled(names: Names, outcome: Outcome, usage: Sequence[agui.TokenUsage]) -> tuple[Event, ...]:
    if names.profile == "1.0":
        return (names.finished(agui.CancelledEnd(), usage),)
    note = {"reason": getattr(outcome, "reason", ""), "source": getattr(outcome, "source", "")}
    return (agui.Custom("pilothouse.cancelled", note), names.finished(UNSET, usage))


def _error(names: Names, outcome: Failed, usage: Sequence[agui.TokenUsage]) -> tuple[Event, ...]:
    code = outcome.code or outcome.kind
    return (agui.RunError(error_text(outcome, names.detail), code, list(usage) or UNSET),)


def _lost(code: str) -> _Make:
    def make(names: Names, outcome: Unknown, usage: Sequence[agui.TokenUsage]) -> tuple[Event, ...]:
        return (agui.RunError(error_text(outcome, names.detail), code, list(usage) or UNSET),)

    return make


_FRAMES: Final[Mapping[str, _Make]] = MappingProxyType(
    {
        "success": _success,
        "noted_success": _noted,
        "cancelled": _cancelled,
        "error": _error,
        "outcome_unknown": _lost("outcome_unknown"),
        "abandoned": _lost("abandoned"),
    }
)


def ending(names: Names, outcome: Outcome, usage: Sequence[agui.TokenUsage] = ()) -> tuple[Event, ...]:
    """The frames that tell an outcome: at most a note, then the one terminal event."""
    return _FRAMES[ENDINGS[case_of(outcome)].frame](names, outcome, usage)


def pausing(
    names: Names, requests: Sequence[Request], usage: Sequence[agui.TokenUsage] = ()
) -> tuple[Event, ...]:
    """The terminal event of a run that waits for answers (SV-93)."""
    if case_of_wait(tuple(requests)) is Case.AWAITING:
        if names.profile == "legacy":
            return (names.finished(UNSET, usage),)
        calls = [request.call_id for request in requests if request.call_id is not None]
        return (names.finished(agui.Success(calls), usage),)
    asked = [interrupt(request) for request in requests if request.kind != "external"]
    finished = names.finished(agui.Interrupted(asked), usage)
    if not names.on_interrupt:
        return (finished,)
    return (agui.Custom("on_interrupt", to_builtins(asked)), finished)


_REASONS: Final = MappingProxyType({"approval": "tool_call", "input": "input_required"})
_APPROVAL: Final = MappingProxyType(
    {
        "type": "object",
        "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
        "required": ["approved"],
    }
)


def interrupt(request: Request) -> agui.Interrupt:
    """A request as a person is asked it."""
    schema = request.schema
    if request.kind == "approval":
        properties = {**_APPROVAL["properties"], "editedArgs": {"type": "object"}}  # type: ignore[dict-item]
        schema = {**_APPROVAL, "properties": properties}
    expires = UNSET if request.expires_at_ms is None else _rfc3339(request.expires_at_ms)
    return agui.Interrupt(
        request.id,
        _REASONS.get(request.kind, f"pilothouse:{request.kind}"),
        request.prompt or UNSET,
        request.call_id or UNSET,
        schema if isinstance(schema, dict) else UNSET,
        expires,
        _metadata(request),
    )


def _metadata(request: Request) -> dict[str, JSON] | UnsetType:
    """What is known of the request besides; TanStack's client answers an approval only if it is marked so, in its words."""
    data = request.data
    if not isinstance(data, dict):
        return UNSET
    if request.kind != "approval":
        return data
    return {**data, "kind": "approval", "toolName": data.get("tool", ""), "input": data.get("arguments", {})}


def _rfc3339(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


__all__ = ["Detail", "Names", "ending", "error_text", "interrupt", "one_line", "pausing", "token_usage"]
