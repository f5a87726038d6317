"""Our four adapters pass the suite that third parties are given, and the suite notices what is wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pilothouse.contracts import Provider
from pilothouse.messages import Model
from pilothouse.providers import (
    AnthropicProvider,
    GeminiProvider,
    OpenAIChatProvider,
    OpenAIResponsesProvider,
)
from pilothouse.responses import ModelRequest, ProviderEvent, StreamEnd, TextDelta
from pilothouse.testing import ProviderConformance, Recording
from wirekit import WireCase, wire_cases


def recorded(dialect: str, *numbers: str) -> list[Recording]:
    def recording(case: WireCase) -> Recording:
        tools = tuple(call["name"] for call in case.expect["tool_calls"])
        return Recording(
            body=case.body, text=case.expect["text"], terminal=case.expect["terminal"], tools=tools
        )

    return [recording(case) for case in wire_cases(dialect) if case.id[:3] in numbers]


class TestOpenAIChat(ProviderConformance):
    recordings = recorded("openai-chat", "013", "020")

    def open_provider(self, base_url: str) -> Provider:
        return OpenAIChatProvider("m", base_url=base_url)


class TestOpenAIResponses(ProviderConformance):
    recordings = recorded("openai-responses", "080")

    def open_provider(self, base_url: str) -> Provider:
        return OpenAIResponsesProvider("m", base_url=base_url)


class TestAnthropic(ProviderConformance):
    recordings = recorded("anthropic", "054", "064")

    def open_provider(self, base_url: str) -> Provider:
        return AnthropicProvider("m", base_url=base_url)


class TestGemini(ProviderConformance):
    recordings = recorded("gemini", "070")

    def open_provider(self, base_url: str) -> Provider:
        return GeminiProvider("m", base_url=base_url)


class _Careless:
    """Reads a body as text, believes every end, and lets exceptions out."""

    tag = "careless"
    default_model = Model("m")

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        import httpx2

        async with httpx2.AsyncClient() as client, client.stream("POST", self.base_url) as response:
            async for text in response.aiter_text():
                yield TextDelta(0, text)
        yield StreamEnd("complete")

    async def aclose(self) -> None:
        pass


class _CarelessSuite(ProviderConformance):
    recordings = (Recording(body=b"Hello", text="Hello"),)

    def open_provider(self, base_url: str) -> Provider:
        return _Careless(base_url)


@pytest.mark.parametrize(
    "name",
    [
        "test_events_come_in_order_and_end_once",
        "test_a_cut_is_never_a_success_that_was_not_there",
        "test_no_answer_is_a_transport_error",
        "test_error_statuses_have_their_kind",
        "test_a_body_of_another_kind_is_no_success",
    ],
)
def test_the_suite_notices_a_careless_provider(name: str) -> None:
    """A suite that everything passes proves nothing."""
    with pytest.raises(Exception):
        getattr(_CarelessSuite(), name)()
