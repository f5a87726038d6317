"""The one way in which the local model fails before it answers: it is not available here."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError

INSTALL_ENGINE = "pip install 'pilothouse[local]'"
OTHER_MODELS = "give another model (--model local:/path/to.gguf), or set a provider's key"


class LocalModelUnavailable(UsageError):
    """The local model cannot be used. One line that says why and what to do.

    Attributes:
        reason: Why, without a full stop.
        remedy: What a person can do about it.
        path: The file concerned, where there is one.
    """

    code = "local_model_unavailable"

    def __init__(self, reason: str, remedy: str = OTHER_MODELS, *, path: Path | None = None) -> None:
        self.reason, self.remedy, self.path = reason, remedy, path
        super().__init__(f"cannot use the local model because {reason}: {remedy}")


__all__ = ["INSTALL_ENGINE", "OTHER_MODELS", "LocalModelUnavailable"]
