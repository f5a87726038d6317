"""What can go wrong in the shipped AI controllers, beside the errors that everything shares."""

from __future__ import annotations

from ..errors import ConfigError, PilothouseError, ToolError, UsageError


class MissingExtra(ConfigError, ImportError):
    """An optional part is not installed; says the command that installs it."""

    code = "missing_extra"

    def __init__(self, extra: str, package: str, why: str) -> None:
        self.extra, self.package = extra, package
        what = f"'pilothouse[{extra}]'" if extra else package
        super().__init__(f"cannot {why} without {package}: pip install {what}")


class QueryRefused(ToolError):
    """A query that is not let through to the database; nothing was sent.

    Attributes:
        rule: which rule it breaks, one word.
        place: the piece of the query, or where it is.
    """

    def __init__(self, rule: str, message: str, place: str = "") -> None:
        self.rule, self.place = rule, place
        super().__init__(f"{message}: {place}" if place else message)


class QueryFailed(ToolError):
    """The database refused or stopped a query; the text is fit for a model."""


class ExportLimit(UsageError):
    """An export would leave rows or bytes out, and nobody asked for that."""

    code = "export_limit"

    def __init__(self, what: str, limit: int) -> None:
        self.what, self.limit = what, limit
        super().__init__(
            f"cannot export because the result has more than {limit} {what}: narrow the query, or say limit=None"
        )


class MCPUnavailable(PilothouseError):
    """An MCP server cannot be reached or does not speak the protocol.

    Attributes:
        namespace: the controller's.
        reason: the innermost cause, without credentials.
    """

    code = "mcp_unavailable"
    retryable = True

    def __init__(self, namespace: str, reason: str) -> None:
        self.namespace, self.reason = namespace, reason
        super().__init__(f"cannot reach the MCP server {namespace}: {reason}")
