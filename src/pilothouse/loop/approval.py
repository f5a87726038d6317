"""Which calls may run by themselves, which a person is asked about, which never run (LP-33 … LP-35). Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, final

from msgspec import Struct

from ..errors import ConfigError
from ..messages import JSON

if TYPE_CHECKING:
    from .hooks import CallCheck
    from .tools import Tool

Match: TypeAlias = "str | Callable[[CallCheck], bool]"
"""A tool's name, with `*` and `?` as in file names, or a function that looks at the call."""

Mode: TypeAlias = Literal[
    "never",  # nothing is asked
    "declared",  # tools that ask for it
    "writes",  # everything that is neither `read` nor `human`
    "always",  # everything
]


class Decision(Struct, frozen=True):
    """What the policy says; `reason` is for the person or the model."""

    way: Literal["run", "ask", "deny"]
    reason: str = ""


class Rule(NamedTuple):
    """What a person allowed for the whole thread: that tool, with these arguments among its own.

    `pin` is the tool's as it was then: what was allowed for one tool says nothing of another one under its name.
    """

    tool: str
    arguments: Mapping[str, JSON]
    pin: str = ""

    def fits(self, check: CallCheck) -> bool:
        """Whether a call is covered."""
        return check.tool == self.tool and all(
            name in check.args and check.args[name] == value for name, value in self.arguments.items()
        )


@final
class ApprovalPolicy(Struct, frozen=True, kw_only=True, eq=False):
    """First match wins: `deny`, `critical`, `ask`, a changed tool, `allow`, a remembered rule, the tool's wish, `mode`.

    Attributes:
        critical: calls that a person is asked about even in mode `never`, and whatever was remembered.
        timeout: seconds that a request waits; None waits for ever.
        on_timeout: what an expired request is.
        unattended: what a call that needs a person is where nobody can answer.
        remember: for an answer with scope `thread`: the arguments that another call must have too. By default all of
            them; the name alone is never enough by itself.
    """

    mode: Mode = "declared"
    deny: Sequence[Match] = ()
    ask: Sequence[Match] = ()
    allow: Sequence[Match] = ()
    critical: Callable[[CallCheck], bool] | None = None
    timeout: float | None = None
    on_timeout: Literal["deny"] = "deny"
    unattended: Literal["wait", "deny"] = "wait"
    remember: Callable[[CallCheck], Mapping[str, JSON]] | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("never", "declared", "writes", "always"):
            raise ConfigError(f"approval.mode must be never, declared, writes or always, not {self.mode!r}")
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigError(
                f"approval.timeout must be positive, or None for no limit, not {self.timeout!r}"
            )
        for name in ("deny", "ask", "allow"):
            if isinstance(given := getattr(self, name), str) or not isinstance(given, Sequence):
                raise ConfigError(f"approval.{name} must be a list of names or functions, not {given!r}")
        if self.unattended not in ("wait", "deny"):
            raise ConfigError(f"approval.unattended must be wait or deny, not {self.unattended!r}")

    def decide(self, check: CallCheck, tool: Tool, rules: Sequence[Rule]) -> Decision:
        """Says whether a call runs, is asked about, or is denied. What its functions raise passes through."""
        if _any(self.deny, check):
            return Decision("deny", "The policy does not allow this call.")
        if self.critical is not None and _says(self.critical, check):
            return Decision("ask", "critical")
        if _any(self.ask, check):
            return Decision("ask", "policy")
        if tool.overrules is not None and tool.overrules():
            return Decision("ask", "changed")
        if _any(self.allow, check) or any(rule.pin == tool.pin and rule.fits(check) for rule in rules):
            return _RUN
        wish = _says(tool.approval, check) if callable(tool.approval) else tool.approval
        if self.mode == "never":
            return _RUN
        if wish is not None:
            return Decision("ask", "tool") if wish else _RUN
        if self.mode == "always" or (self.mode == "writes" and check.effect not in ("read", "human")):
            return Decision("ask", self.mode)
        return _RUN

    def rule(self, check: CallCheck, tool: Tool) -> Rule:
        """What an allow for the thread is remembered as."""
        return Rule(check.tool, dict(check.args if self.remember is None else self.remember(check)), tool.pin)


_RUN: Final = Decision("run")


def _any(matches: Sequence[Match], check: CallCheck) -> bool:
    return any(
        _says(match, check) if callable(match) else fnmatchcase(check.tool, match) for match in matches
    )


def _says(function: Callable[[CallCheck], Any], check: CallCheck) -> Any:
    """The answer of a user's function. One that has to be awaited would be true whatever it comes to."""
    answer = function(check)
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError("a function of the approval policy must not be async")
    return answer


def is_plain(policy: ApprovalPolicy, tool: Tool) -> bool:
    """Whether a call of this tool runs without a look at the policy: the usual case, at no cost."""
    plain = policy.mode in ("declared", "never") and policy.critical is None
    return plain and not policy.deny and not policy.ask and (tool.approval is None or tool.approval is False)


def as_data(check: CallCheck, reason: str, digest: str) -> dict[str, Any]:
    """What a request shows and what a resumed run needs: tool, exactly these arguments, their digest, the effect."""
    return {
        "tool": check.tool,
        "arguments": dict(check.args),
        "digest": digest,
        "effect": check.effect,
        "reason": reason,
    }
