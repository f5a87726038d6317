"""What the adapters put into a request beside its messages (issue 4, item 1)."""

from __future__ import annotations

import json

import pytest

from dialects import BY_NAME, DIALECTS, Dialect
from pilothouse.errors import ToolDefinitionError
from pilothouse.messages import Image, Message, Model, Reasoning, Structured, Text, ToolCall, ToolSpec
from pilothouse.providers import GeminiProvider, OpenAIChatProvider
from pilothouse.providers.anthropic import AnthropicProvider
from pilothouse.providers.openai_chat import CompatProfile
from pilothouse.providers.openai_chat.profile import LLAMA_CPP
from pilothouse.providers.openai_responses import OpenAIResponsesProvider
from pilothouse.responses import ModelRequest, ModelSettings, Notice, StreamEnd
from pilothouse.testing import Replay, ReplayServer
from wirekit import problems

every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
SCHEMA = {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}, "required": ["x"], "additionalProperties": False, "$defs": {"X": {"type": "integer"}}}  # fmt: skip
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}}}  # fmt: skip


def ask(model: str = "m", messages=None, **options) -> ModelRequest:
    settings = ModelSettings(**options.pop("settings", {}))
    return ModelRequest(
        Model(model), messages or [Message("u", "user", (Text("hi"),))], settings=settings, **options
    )


def body(dialect: Dialect, request: ModelRequest, **options) -> dict:
    made = dialect.provider(request.model, **options).body(request)
    return json.loads(json.dumps(made, default=dict))


WHERE = {
    "openai-chat": {
        "system": lambda b: b["messages"][0]["content"],
        "temperature": lambda b: b["temperature"],
        "limit": lambda b: b["max_completion_tokens"],
        "stop": lambda b: b["stop"],
        "tool": lambda b: (b["tools"][0]["function"]["name"], b["tools"][0]["function"]["parameters"]["type"]),
        "schema": lambda b: b["response_format"]["json_schema"]["schema"],
    },
    "openai-responses": {
        "system": lambda b: b["instructions"],
        "temperature": lambda b: b["temperature"],
        "limit": lambda b: b["max_output_tokens"],
        "tool": lambda b: (b["tools"][0]["name"], b["tools"][0]["parameters"]["type"]),
        "schema": lambda b: b["text"]["format"]["schema"],
    },
    "anthropic": {
        "system": lambda b: b["system"][0]["text"],
        "temperature": lambda b: b["temperature"],
        "limit": lambda b: b["max_tokens"],
        "stop": lambda b: b["stop_sequences"],
        "tool": lambda b: (b["tools"][0]["name"], b["tools"][0]["input_schema"]["type"]),
        "schema": lambda b: b["output_config"]["format"]["schema"],
    },
    "gemini": {
        "system": lambda b: b["systemInstruction"]["parts"][0]["text"],
        "temperature": lambda b: b["generationConfig"]["temperature"],
        "limit": lambda b: b["generationConfig"]["maxOutputTokens"],
        "stop": lambda b: b["generationConfig"]["stopSequences"],
        "tool": lambda b: (b["tools"][0]["functionDeclarations"][0]["name"], b["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"]["type"]),
        "schema": lambda b: b["generationConfig"]["responseJsonSchema"],
    },
}  # fmt: skip


@every_dialect
def test_settings_find_their_place(dialect: Dialect) -> None:
    """System prompt, figures, tools and schema, each where the dialect has it; `extra` passes through."""
    request = ask(
        system_prompt="Be brief.",
        tools=[ToolSpec("f", "does", SCHEMA)],
        settings={"temperature": 0.5, "max_output_tokens": 77, "stop": ("END",) if "stop" in WHERE[dialect.name] else (), "response_schema": SCHEMA, "extra": {"user_field": 1}},
    )  # fmt: skip
    made = body(dialect, request)
    want = {"system": "Be brief.", "temperature": 0.5, "limit": 77, "stop": ["END"], "tool": ("f", "object")}
    for name, find in WHERE[dialect.name].items():
        if name == "schema":
            assert find(made)["properties"]["x"] in ({"type": "integer"}, {"$ref": "#/$defs/X"})
        else:
            assert find(made) == want[name], name
    assert made["user_field"] == 1


async def test_a_setting_without_a_field_is_refused_or_noted() -> None:
    """Stop sequences change the answer: refused before anything is sent. A seed only asks for luck: noted."""
    made = OpenAIResponsesProvider("m", base_url="http://127.0.0.1:1")
    (end,) = [event async for event in made.stream(ask(settings={"stop": ("END",)}))]
    assert isinstance(end, StreamEnd)
    assert end.error is not None
    assert (end.error.kind, "settings.stop" in end.error.message) == ("config", True)
    await made.aclose()
    for dialect, settings, noted in (
        ("openai-chat", {"seed": 1}, []),
        ("gemini", {"seed": 1}, []),
        ("openai-responses", {"seed": 1}, ["seed"]),
        ("anthropic", {"seed": 1}, ["seed"]),
        ("gemini", {"parallel_tool_calls": False}, ["parallel_tool_calls"]),
        ("gemini", {"parallel_tool_calls": True}, []),
    ):
        async with (
            ReplayServer(Replay(chunks=b"data: [DONE]\n\n")) as server,
            BY_NAME[dialect].provider("m", base_url=server.url) as provider,
        ):
            events = [event async for event in provider.stream(ask(tools=[ToolSpec("f")], settings=settings))]
        names = [
            event.detail for event in events if isinstance(event, Notice) and event.name == "setting_left_out"
        ]
        assert names == noted, (dialect, settings)


@every_dialect
def test_what_was_not_set_is_not_sent(dialect: Dialect) -> None:
    """The provider's defaults stay the provider's."""
    text = json.dumps(body(dialect, ask()))
    for word in ("temperature", "top_p", "topP", "tool", "seed", "stop", "null"):
        assert word not in text.replace('"store"', "")


@pytest.mark.parametrize(
    ("choice", "parallel", "want"),
    [
        ("auto", None, {"openai-chat": "auto", "openai-responses": "auto", "anthropic": {"type": "auto"}, "gemini": {"mode": "AUTO"}}),
        ("none", None, {"openai-chat": "none", "openai-responses": "none", "anthropic": {"type": "none"}, "gemini": {"mode": "NONE"}}),
        ("required", False, {"openai-chat": "required", "openai-responses": "required", "anthropic": {"type": "any", "disable_parallel_tool_use": True}, "gemini": {"mode": "ANY"}}),
        ("f", None, {"openai-chat": {"type": "function", "function": {"name": "f"}}, "openai-responses": {"type": "function", "name": "f"}, "anthropic": {"type": "tool", "name": "f"}, "gemini": {"mode": "ANY", "allowedFunctionNames": ["f"]}}),
        ({"own": 1}, None, {name: {"own": 1} for name in BY_NAME}),
    ],
)  # fmt: skip
@every_dialect
def test_tool_choices_have_one_spelling(dialect: Dialect, choice, parallel, want) -> None:
    """Words, the name of a tool, or an object of the dialect's own."""
    made = body(
        dialect, ask(tools=[ToolSpec("f")], settings={"tool_choice": choice, "parallel_tool_calls": parallel})
    )
    found = made["toolConfig"]["functionCallingConfig"] if dialect.name == "gemini" else made["tool_choice"]
    assert found == want[dialect.name]
    if parallel is not None and dialect.name.startswith("openai"):
        assert made["parallel_tool_calls"] is parallel


async def test_a_schema_that_contains_itself_is_refused_before_anything_is_sent() -> None:
    """PV-13: Gemini follows no references; the error names the tool, the stream ends as config."""
    request = ask(tools=[ToolSpec("walk", "", NODE)])
    provider = GeminiProvider("m", base_url="http://127.0.0.1:1")
    with pytest.raises(ToolDefinitionError, match="walk"):
        provider.body(request)
    (end,) = [event async for event in provider.stream(request)]
    assert isinstance(end, StreamEnd)
    assert (end.error.kind, end.error.code) == ("config", "tool_definition")
    assert OpenAIChatProvider("m").body(request)["tools"][0]["function"]["parameters"] == NODE


def test_references_are_inlined_for_gemini() -> None:
    """PV-13: also those that lead to others, and with words beside them."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/A", "description": "beside"},
            "definitions": {"type": "string"},
        },
        "$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/B"}}, "B": {"type": "integer"}},
    }
    made = GeminiProvider("m").body(ask(tools=[ToolSpec("f", "", schema)]))["tools"][0][
        "functionDeclarations"
    ][0]
    assert made["parametersJsonSchema"] == {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "integer"}, "description": "beside"},
            "definitions": {"type": "string"},
        },
    }
    with pytest.raises(ToolDefinitionError, match="not in it"):
        GeminiProvider("m").body(ask(tools=[ToolSpec("f", "", {"properties": {"a": {"$ref": "#/$defs/C"}}})]))


def _nested(depth: int) -> dict:
    schema: dict = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


@every_dialect
async def test_a_request_that_is_nested_too_deep_is_a_config_error(dialect: Dialect) -> None:
    """PV-1, PV-13: schemas, results and settings; nothing is raised and nothing is sent."""
    result = Message("r", "tool", (Structured(_nested(50_000)),), call_id="c")
    history = [Message("u", "user", (Text("hi"),)), Message("a", "assistant", (ToolCall("c", "f"),)), result]
    provider = dialect.provider("m", base_url="http://127.0.0.1:1")
    for request in (
        ask(tools=[ToolSpec("f", "", _nested(50_000))]),
        ask(messages=history),
        ask(settings={"extra": {"x": object()}}),
    ):
        (end,) = [event async for event in provider.stream(request)]
        assert isinstance(end, StreamEnd)
        assert end.error is not None
        assert end.error.kind == "config"
    made = json.dumps(provider.body(ask(tools=[ToolSpec("f", "", _nested(60))])), default=dict)
    assert made.count('"x"') == 60


def test_a_schema_that_doubles_at_each_step_is_refused_at_once() -> None:
    """PV-13: twenty types that hold the next one twice are a million without references."""
    steps = {
        f"D{n}": {"properties": {side: {"$ref": f"#/$defs/D{n + 1}"} for side in "ab"}} for n in range(20)
    }
    schema = {"properties": {"r": {"$ref": "#/$defs/D0"}}, "$defs": {**steps, "D20": {"type": "integer"}}}
    with pytest.raises(ToolDefinitionError, match="50000 values"):
        GeminiProvider("m").body(ask(tools=[ToolSpec("f", "", schema)]))


def test_chat_profiles_bend_the_request() -> None:
    """Output limit, role, usage flag, alternation, ids and names as a server wants them."""
    profile = CompatProfile(
        usage_in_stream=False, output_limit="max_completion_tokens", system_role="developer",
        strict_alternation=True, max_id_length=9, id_charset="A-Za-z0-9", name_on_results=True,
    )  # fmt: skip
    messages = [
        Message("u1", "user", (Text("a"),)), Message("u2", "user", (Text("b"),)),
        Message("a", "assistant", (ToolCall("call_long_id", "f"),)),
        Message("r", "tool", (Text("ok"),), call_id="call_long_id"),
    ]  # fmt: skip
    made = OpenAIChatProvider("m", profile=profile).body(
        ask(messages=messages, system_prompt="s", settings={"max_output_tokens": 5})
    )
    assert "stream_options" not in made
    assert made["max_completion_tokens"] == 5
    assert [message["role"] for message in made["messages"]] == ["developer", "user", "assistant", "tool"]
    assert made["messages"][1]["content"] == "a\n\nb"
    assert made["messages"][3]["name"] == "f"
    call_id = made["messages"][3]["tool_call_id"]
    assert made["messages"][2]["tool_calls"][0]["id"] == call_id
    assert len(call_id) == 9


def test_a_strict_template_gets_one_system_message_and_turns_that_alternate() -> None:
    """llama.cpp's templates: what the system says later is said as the user; parts and texts are joined."""
    image = Image("image/png", data=b"x")
    messages = [
        Message("s", "system", (Text("also"),)),
        Message("u1", "user", (Text("a"),)),
        Message("u2", "user", (Text("b"), image)),
        Message("a1", "assistant", (Reasoning("hm", None, "local"), Text("one"))),
        Message("a2", "assistant", (Text("two"), ToolCall("c1", "f"), ToolCall("c2", "f"))),
        Message("r1", "tool", (Text("ok"),), call_id="c1"),
        Message("r2", "tool", (image,), call_id="c2"),
        Message("s2", "system", (Text("late"),)),
        Message("u3", "user", (Text("go"),)),
    ]
    made = OpenAIChatProvider("m", profile=LLAMA_CPP).body(ask(messages=messages, system_prompt="be brief"))
    said = made["messages"]
    assert [one["role"] for one in said] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert said[0]["content"] == "be brief\n\nalso"
    assert [part["type"] for part in said[1]["content"]] == ["text", "text", "image_url"]
    assert (said[2]["content"], said[2]["reasoning_content"]) == ("one\n\ntwo", "hm")
    assert len(said[2]["tool_calls"]) == 2
    assert [part.get("text") for part in said[5]["content"]][-2:] == ["late", "go"]
    assert problems("openai-chat", said) == []


def test_profiles_are_found_by_the_host() -> None:
    """A name inside another host's name is not that server."""
    for url, tag in (
        ("https://api.openai.com/v1", "openai"),
        ("https://api.deepseek.com/v1", "deepseek"),
        ("https://x.openai.azure.com/openai/v1", "openai"),
        ("https://evil-openrouter.ai.invalid/v1", "openai-chat"),
        ("http://127.0.0.1:8000/v1", "openai-chat"),
    ):
        assert OpenAIChatProvider("m", base_url=url).tag == tag


def test_reasoning_goes_back_where_the_server_wants_it() -> None:
    """[027]: in its field, on its message, only to the same family."""
    from pilothouse.core.assembly import Assembly
    from pilothouse.providers.openai_chat import OpenAIChatDecoder, to_wire
    from wirekit import wire_cases

    (case,) = [case for case in wire_cases("openai-chat") if case.id.startswith("027")]
    profile = CompatProfile(tag="deepseek", replay_reasoning="reasoning_content")
    assembly = Assembly("m", tag="deepseek")
    for event in OpenAIChatDecoder(profile).feed(case.body):
        assembly.feed(event)
    (sent,) = to_wire([assembly.message()], profile)
    assert sent["reasoning_content"] == "Need the tide table."
    assert sent["tool_calls"][0]["id"] == "call_ds"
    assert (
        "reasoning_content"
        not in to_wire(
            [assembly.message()], CompatProfile(tag="other", replay_reasoning="reasoning_content")
        )[0]
    )
    assert "reasoning_content" not in to_wire([assembly.message()])[0]


def test_responses_store_nothing_and_ask_for_encrypted_reasoning() -> None:
    """The default of the page; models without reasoning refuse the question."""
    made = OpenAIResponsesProvider("gpt-5").body(ask("gpt-5"))
    assert (made["store"], made["include"]) == (False, ["reasoning.encrypted_content"])
    assert "include" not in OpenAIResponsesProvider("gpt-4o").body(ask("gpt-4o"))


def test_a_stored_response_gets_the_open_results_before_new_input() -> None:
    """With previous_response_id only what is new goes, outputs first."""
    from pilothouse.core.pairing import repair
    from pilothouse.messages import ToolCall

    history = [
        Message("u", "user", (Text("q"),)),
        Message("a", "assistant", (ToolCall("c1", "f"), ToolCall("c2", "f"))),
        Message("r", "tool", (Text("one"),), call_id="c1"),
        Message("v", "user", (Text("stop"),)),
    ]
    request = ask(messages=repair(history)[0], settings={"extra": {"previous_response_id": "resp_1"}})
    items = OpenAIResponsesProvider("gpt-5").body(request)["input"]
    assert [item.get("call_id", item.get("role")) for item in items] == ["c1", "c2", "user"]


def test_thinking_is_asked_for_as_the_model_takes_it() -> None:
    """Budgets for older models, a level for newer ones; the output limit leaves room for the thoughts."""
    old = AnthropicProvider("claude-sonnet-4-5").body(
        ask("claude-sonnet-4-5", settings={"reasoning_effort": "low", "max_output_tokens": 100})
    )
    assert old["thinking"]["budget_tokens"] < old["max_tokens"]
    new = AnthropicProvider("claude-opus-4-6").body(
        ask("claude-opus-4-6", settings={"reasoning_effort": "high"})
    )
    assert (new["thinking"], new["output_config"]) == ({"type": "adaptive"}, {"effort": "high"})
    for model, field in (("gemini-2.5-flash", "thinkingBudget"), ("gemini-3-pro", "thinkingLevel")):
        made = GeminiProvider(model).body(ask(model, settings={"reasoning_effort": "low"}))
        assert field in made["generationConfig"]["thinkingConfig"]


def test_prompt_caching_marks_the_fixed_part_and_the_last_message() -> None:
    """Two marks; without caching none; the messages that were given are not marked."""
    request = ask(system_prompt="s", tools=[ToolSpec("f")])
    text = json.dumps(AnthropicProvider("m").body(request), default=dict)
    assert text.count("cache_control") == 2
    assert "cache_control" not in json.dumps(
        AnthropicProvider("m", prompt_caching=False).body(request), default=dict
    )
    assert AnthropicProvider("m").body(request) == AnthropicProvider("m").body(request)


def test_leading_system_messages_join_the_system_prompt() -> None:
    """Dialects without a system role in their messages lose none of it; later ones stay where they are."""
    messages = [Message("s", "system", (Text("rule one"),)), Message("u", "user", (Text("hi"),)), Message("t", "system", (Text("rule two"),))]  # fmt: skip
    of_its_own = {
        "anthropic": "system",
        "gemini": "systemInstruction",
    }  # the field that is all of the system's
    for dialect in DIALECTS:
        made = body(dialect, ask(messages=messages, system_prompt="prompt"))
        if (field := of_its_own.get(dialect.name)) is not None:
            fixed = json.dumps(made.pop(field))
            assert fixed.index("prompt") < fixed.index("rule one")
            assert "rule two" not in fixed
            assert "rule one" not in json.dumps(made)
        else:
            text = json.dumps(made)
            assert "prompt" in text
            assert text.index("rule one") < text.index('"hi"')
        rest = json.dumps(made)
        assert rest.index('"hi"') < rest.index("rule two")


def test_addresses_and_keys_are_where_the_dialect_wants_them() -> None:
    """No key in an address; a query of the base address stays."""
    request = ask("gemini-x")
    assert GeminiProvider("gemini-x").url(request).endswith("/models/gemini-x:streamGenerateContent?alt=sse")
    assert (
        OpenAIChatProvider("m", base_url="https://x/v1?api-version=1").url(request)
        == "https://x/v1/chat/completions?api-version=1"
    )
    assert AnthropicProvider("m", base_url="https://x/v1/").url(request) == "https://x/v1/messages"
    assert AnthropicProvider("m").url(request) == "https://api.anthropic.com/v1/messages"
    for provider in (
        GeminiProvider("m"),
        OpenAIChatProvider("m"),
        AnthropicProvider("m"),
        OpenAIResponsesProvider("m"),
    ):
        assert any("KEY" in value for value in provider.auth_headers("KEY").values())
        assert "KEY" not in provider.url(request)
        assert "KEY" not in repr(provider)


@every_dialect
def test_a_provider_writes_and_reads_its_own_wire(dialect: Dialect) -> None:
    """PV-13: the same as the functions, with the provider's own tag and profile."""
    provider = dialect.provider("m")
    messages = [
        Message("u", "user", (Text("hi"),)),
        Message("a", "assistant", (Text("yes"),)),
        Message("v", "user", (Text("go"),)),
    ]
    wire = provider.to_wire(messages)
    assert wire == dialect.to_wire(messages)
    assert [message.text for message in provider.from_wire(wire)] == ["hi", "yes", "go"]
