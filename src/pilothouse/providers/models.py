"""Sizes of well-known model families, in tokens: context window, output limit. What is not here is unknown (0)."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from ..messages import Model

# The first pattern that the model's id, without a vendor's prefix, begins with.
_SIZES: Final[tuple[tuple[re.Pattern[str], int, int], ...]] = tuple(
    (re.compile(pattern), window, output)
    for pattern, window, output in (
        (r"gpt-5", 400_000, 128_000),
        (r"gpt-4\.1", 1_047_576, 32_768),
        (r"gpt-4o|chatgpt-4o", 128_000, 16_384),
        (r"gpt-4-turbo", 128_000, 4_096),
        (r"gpt-4", 8_192, 8_192),
        (r"gpt-3\.5-turbo", 16_385, 4_096),
        (r"gpt-oss", 131_072, 131_072),
        (r"o[134]\b|o[134]-", 200_000, 100_000),
        (r"claude-3-(haiku|opus|sonnet)", 200_000, 4_096),
        (r"claude-3-5", 200_000, 8_192),
        (r"claude-3-7", 200_000, 64_000),
        (r"claude-opus-4-[01]\b|claude-opus-4-2", 200_000, 32_000),
        (r"claude-(opus|sonnet|haiku)-4", 200_000, 64_000),
        (r"claude", 200_000, 0),
        (r"gemini-(2\.5|3)", 1_048_576, 65_536),
        (r"gemini-2\.0|gemini-1\.5-flash", 1_048_576, 8_192),
        (r"gemini-1\.5-pro", 2_097_152, 8_192),
        (r"deepseek-(chat|reasoner|v3)", 131_072, 0),
        (r"mistral-large|mistral-medium", 131_072, 0),
        (r"grok-4", 256_000, 0),
        (r"grok-3", 131_072, 0),
    )
)


def with_known_sizes(model: Model) -> Model:
    """The model with its sizes filled in where it has none and its family is known."""
    name = model.id.rpartition("/")[2].lower()
    for pattern, window, output in _SIZES:
        if pattern.match(name):
            return msgspec.structs.replace(
                model,
                context_window=model.context_window or window,
                max_output_tokens=model.max_output_tokens or output,
            )
    return model


__all__ = ["with_known_sizes"]
