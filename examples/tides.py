"""An agent with tools, to be served: `pilothouse serve examples/tides.py` or `pilothouse chat examples/tides.py`.

With a key it uses a real model. Without one a stand-in plays the model, so that the tools can be seen at work: it asks for
the tide of every port that the message names, and books a berth where the message says so.
"""

import os
from datetime import date

from pilothouse import AgentController, ToolError, provider, tool
from pilothouse.testing.scripted import ScriptedProvider, call

PORTS = {"Brest": ("04:52", "17:10"), "Oban": ("06:31", "18:55"), "Dover": ("11:08", "23:29")}


@tool(effect="read")
async def get_tide(port: str, day: date | None = None) -> dict:
    """High water at a port.

    Args:
        port: Port name, as on the chart.
        day: Defaults to today.
    """
    if port not in PORTS:
        raise ToolError(f"no tide table for {port}")
    return {"port": port, "day": (day or date.today()).isoformat(), "high_water": PORTS[port]}


@tool
def book_berth(port: str, nights: int = 1) -> str:
    """Book a berth. It cannot be taken back, so it is never repeated after a crash.

    Args:
        port: Port name.
        nights: How many.
    """
    return f"Berth booked in {port} for {nights} night{'s' if nights > 1 else ''}."


def stand_in(request):
    """Plays the model: calls tools for what the last message asks, then reports."""
    last = request.messages[-1]
    if last.role == "user":
        wanted = [port for port in PORTS if port.lower() in last.text.lower()]
        calls = [call("get_tide", {"port": port}) for port in wanted]
        if "book" in last.text.lower():
            calls += [call("book_berth", {"port": port}) for port in wanted]
        names = ", ".join(PORTS)
        return calls or f"Ask me about high water in {names}; say *book* to get a berth there."
    asked = max(at for at, message in enumerate(request.messages) if message.role == "user")
    results = [message.text for message in request.messages[asked:] if message.role == "tool"]
    return ["Here is what I found:\n\n", *[f"* {text}\n" for text in results]]


def model():
    """The model of a key that is set, else the stand-in."""
    for key, name in (
        ("ANTHROPIC_API_KEY", "anthropic:claude-sonnet-4-5"),
        ("OPENAI_API_KEY", "openai:gpt-5-mini"),
    ):
        if os.environ.get(key):
            return provider(name)
    return ScriptedProvider(stand_in, repeat=True)


agent = AgentController(
    model(),
    tools=[get_tide, book_berth],
    system_prompt="You help skippers. Use the tools; never guess a tide.",
)
