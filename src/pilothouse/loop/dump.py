"""The request as it was before a provider shaped it, without secrets and within bounds (LP-50)."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, final

import msgspec

from ..errors import ConfigError
from ..messages import JSON
from ..responses import ModelRequest

logger: Final = logging.getLogger("pilothouse.loop")

PATTERNS: Final[tuple[str, ...]] = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)",
    r"\b(sk|pk|rk|sess|xox[abprs]|gh[pousr]|glpat|npm|hf|AIza|ya29)[-_.][A-Za-z0-9_\-.]{8,}",
    r"\bAIza[0-9A-Za-z_\-]{20,}",
    r"\bAKIA[0-9A-Z]{12,}",
    r"\beyJ[A-Za-z0-9_\-]{4,}\.[A-Za-z0-9_\-]{4,}\.[A-Za-z0-9_\-]*",
    r"(?i)\bbearer\s+[A-Za-z0-9_\-.=+/]{8,}",
)
"""Common shapes of tokens, and PEM blocks."""

SECRET_KEYS: Final = re.compile(
    r"(?i)(pass(word|wd|phrase)?|secret|token|api[-_]?key|authorization|cookie|credential|private[-_]?key)$"
)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]{512,}={0,2}")


@final
class Redactor:
    """Takes secrets out of texts and JSON. Its `repr` never shows one.

    Args:
        secrets: texts that are replaced wherever they stand.
        patterns: regular expressions of what else is replaced.
        replace: what stands in their place.
    """

    __slots__ = ("_patterns", "_replace", "_secrets")

    def __init__(
        self,
        secrets: Sequence[str] = (),
        patterns: Sequence[str] = PATTERNS,
        replace: str = "[redacted]",
    ) -> None:
        # The longest first: a secret may contain another one.
        self._secrets = sorted((secret for secret in secrets if secret), key=len, reverse=True)
        self._replace = replace
        try:
            self._patterns = [re.compile(pattern, re.DOTALL) for pattern in patterns]
        except re.error as error:
            raise ConfigError(f"redactor.patterns: {error}") from None

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._secrets)} secrets and {len(self._patterns)} patterns>"

    def text(self, text: str) -> str:
        """The text without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, self._replace)
        for pattern in self._patterns:
            text = pattern.sub(self._replace, text)
        return text

    def json(self, value: JSON) -> JSON:
        """The value without secrets; base64 becomes its size and digest."""
        if isinstance(value, str):
            return self.text(_BASE64.sub(_described, value))
        if isinstance(value, Mapping):
            return {
                self.text(key): self._replace if _hides(key, item) else self.json(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        return value


def _hides(key: str, value: Any) -> bool:
    return isinstance(value, str) and bool(value) and SECRET_KEYS.search(key) is not None


def _described(match: re.Match[str]) -> str:
    text = match.group()
    return f"[base64, {len(text)} characters, sha256 {sha256(text.encode()).hexdigest()[:16]}]"


def dump_of(request: ModelRequest, redactor: Redactor, limit: int) -> dict[str, JSON]:
    """What the manifest holds of the whole request: its redacted JSON, cut to `limit` bytes, with the full digest.

    If the redactor fails there is no dump, and it says so.
    """
    try:
        neutral = msgspec.to_builtins(
            {
                "model": request.model,
                "system_prompt": request.system_prompt,
                "messages": list(request.messages),
                "tools": list(request.tools),
                "settings": request.settings,
            }
        )
        body = msgspec.json.encode(redactor.json(neutral), order="sorted")
    except Exception:
        logger.exception("the redactor failed: no wire dump")
        return {"raw_wire_dump": None, "raw_wire_dump_failed": True}
    cut = body[:limit].decode("utf-8", "ignore")
    dump: dict[str, JSON] = {"raw_wire_dump": cut, "raw_wire_dump_digest": sha256(body).hexdigest()}
    if len(body) > limit:
        dump["raw_wire_dump_bytes"] = len(body)
    return dump
