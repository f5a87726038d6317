"""What differs between the servers that speak Chat Completions."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class CompatProfile(Struct, frozen=True, kw_only=True):
    """How one family of servers bends the dialect. The defaults suit OpenAI and most compatible servers.

    Attributes:
        tag: names the server family; reasoning goes back only to the same one.
        usage_in_stream: ask for figures by `stream_options`.
        reasoning_fields: where reasoning may come, the first that holds text counts.
        reasoning_details: reasoning also comes as signed or encrypted objects (OpenRouter), which go back unchanged.
        replay_reasoning: the field in which reasoning goes back on its message; None leaves it out.
        think_tags: `explicit` takes `<think>…</think>` in the text for reasoning; `implicit` also when the opening
            tag was written by the server's template. Off once a reasoning field was seen.
        output_limit: the field for the output limit.
        max_id_length, id_charset: what a call id may look like.
        system_role: what system prompts are sent as.
        name_on_results: results carry their tool's name.
        strict_names: names of calls that the model made up are bent to what the server takes.
        strict_alternation: neighbouring messages of one role are merged, and only the first message may be the system's;
            chat templates of many open models fail on anything else.
    """

    tag: str = "openai-chat"
    usage_in_stream: bool = True
    reasoning_fields: tuple[str, ...] = ("reasoning_content", "reasoning")
    reasoning_details: bool = False
    replay_reasoning: str | None = None
    think_tags: Literal["off", "explicit", "implicit"] = "off"
    output_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    max_id_length: int = 40
    id_charset: str = "A-Za-z0-9_-"
    system_role: Literal["system", "developer"] = "system"
    name_on_results: bool = False
    strict_names: bool = False
    strict_alternation: bool = False


OPENAI = CompatProfile(
    tag="openai", output_limit="max_completion_tokens", reasoning_fields=(), strict_names=True
)
DEEPSEEK = CompatProfile(tag="deepseek", replay_reasoning="reasoning_content", strict_names=True)
MISTRAL = CompatProfile(
    tag="mistral", max_id_length=9, id_charset="A-Za-z0-9", name_on_results=True, strict_names=True
)
OPENROUTER = CompatProfile(
    tag="openrouter", replay_reasoning="reasoning", reasoning_details=True, strict_names=True
)
GROQ = CompatProfile(tag="groq", output_limit="max_completion_tokens", strict_names=True)
LLAMA_CPP = CompatProfile(
    tag="local",
    reasoning_fields=("reasoning_content",),
    replay_reasoning="reasoning_content",
    strict_alternation=True,
)

__all__ = ["DEEPSEEK", "GROQ", "LLAMA_CPP", "MISTRAL", "OPENAI", "OPENROUTER", "CompatProfile"]
