"""An agent that asks before it pays, one payment or two."""

from pilothouse import AgentController, tool
from pilothouse.testing import ScriptedProvider
from pilothouse.testing.scripted import call


@tool(approval=True)
def pay(amount: int, to: str) -> str:
    """Pays."""
    return f"paid {amount} to {to}"


def answer(request):
    last, n = request.messages[-1], len(request.messages)
    if last.role == "tool":
        return "That is done."
    payments = [("harbour", 1), ("pilot", 2)][: 2 if "both" in last.text else 1]
    if "pay" not in last.text:
        return f"You said {last.text}."
    return [
        "As you wish.",
        *[call("pay", {"amount": n_, "to": to}, call_id=f"c{n}{to}") for to, n_ in payments],
    ]


agent = AgentController(ScriptedProvider(*[answer] * 50), tools=[pay])
