"""Servers of other frameworks that speak AG-UI, as a process: `python foreign_agents.py pydantic-ai|langgraph`.

Their models are fakes of their own kind. The address is printed once the server listens.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn


def pydantic_ai_app() -> Any:
    from pydantic_ai import Agent, DeferredToolRequests
    from pydantic_ai.messages import (
        ModelMessage,
        ModelResponse,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
    from pydantic_ai.ui.ag_ui import AGUIAdapter
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.routing import Route

    def last(messages: list[ModelMessage]) -> tuple[str, Any]:
        """What was said last: a user's text, or a tool's return."""
        for part in reversed(messages[-1].parts):
            if isinstance(part, ToolReturnPart):
                return "tool", part.content
            if isinstance(part, UserPromptPart):
                content = part.content
                return "user", content if isinstance(content, str) else " ".join(
                    str(item) for item in content
                )
        return "none", ""

    async def stream(messages: list[ModelMessage], info: AgentInfo):
        kind, said = last(messages)
        if kind == "tool":
            yield f"the tool said {said}"
        elif "think" in said:
            yield {0: DeltaThinkingPart(content="hm ")}
            yield {0: DeltaThinkingPart(content="well")}
            yield "Yes."
        elif "weather" in said:
            yield {0: DeltaToolCall(name="weather", json_args='{"city": "Oslo"}', tool_call_id="w1")}
        elif "show" in said:
            yield {0: DeltaToolCall(name="show", json_args='{"what": "map"}', tool_call_id="s1")}
        elif "fail" in said:
            raise RuntimeError("the model broke")
        else:
            users = sum(isinstance(part, UserPromptPart) for item in messages for part in item.parts)
            yield "you "
            yield f"said {said} ({users})"

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("unused")])

    del ToolCallPart
    agent = Agent(FunctionModel(answer, stream_function=stream), output_type=[str, DeferredToolRequests])

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather."""
        return f"sunny in {city}"

    async def endpoint(request: Request) -> Any:
        return await AGUIAdapter.dispatch_request(request, agent=agent)

    return Starlette(routes=[Route("/", endpoint, methods=["POST"])])


def langgraph_app() -> Any:
    from ag_ui_langgraph import LangGraphAgent, add_langgraph_fastapi_endpoint
    from fastapi import FastAPI
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.checkpoint.memory import MemorySaver
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.types import interrupt

    async def chat(state: MessagesState) -> dict[str, Any]:
        said = next(item.content for item in reversed(state["messages"]) if isinstance(item, HumanMessage))
        if "ask" in said:
            answer = interrupt({"question": "Really?"})
            said = f"answered {answer}"
        if "fail" in said:
            raise RuntimeError("the graph broke")
        model = GenericFakeChatModel(messages=iter([AIMessage(f"you said {said}")]))
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("chat", chat)
    graph.add_edge(START, "chat")
    graph.add_edge("chat", END)
    app = FastAPI()
    compiled = graph.compile(checkpointer=MemorySaver())
    add_langgraph_fastapi_endpoint(app, LangGraphAgent(name="graph", graph=compiled), "/")
    return app


def main(name: str) -> None:
    app = {"pydantic-ai": pydantic_ai_app, "langgraph": langgraph_app}[name]()
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    sockets = [config.bind_socket()]
    sockets[0].listen(64)  # who connects from now on waits until it serves
    print(f"http://127.0.0.1:{sockets[0].getsockname()[1]}/", flush=True)
    server.run(sockets=sockets)


if __name__ == "__main__":
    main(sys.argv[1])
