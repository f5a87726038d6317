"""An agent with a form: what is written is filled in as the name, and two nights."""

from pydantic import BaseModel, Field

from pilothouse import AgentController
from pilothouse.controllers import FormController
from pilothouse.testing.scripted import ScriptedProvider, call


class Booking(BaseModel):
    name: str
    nights: int = Field(ge=1, le=9)
    port: str


def model(request):
    last = request.messages[-1]
    if last.role == "user":
        return [call("form__fill", {"values": {"name": last.text, "nights": 2}})]
    return "Which port?"


agent = AgentController(ScriptedProvider(model, repeat=True), controllers=[lambda: FormController(Booking)])
