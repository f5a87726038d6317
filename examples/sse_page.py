"""A chat page with FastAPI and server-sent events, without our server. `pip install fastapi uvicorn`, then
`uvicorn sse_page:app --app-dir examples` and open http://127.0.0.1:8000.

Each browser tab has a conversation, and sees it as one `view()` after each change. `pilothouse serve` gives much more (AG-UI,
replay, several readers, a journal); this shows what a page of one's own needs.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, StreamingResponse

from pilothouse import AgentController, Message, UsageError

PAGE = """<!doctype html><meta charset="utf-8"><title>Chat</title>
<main id="messages"></main><p id="live"></p><p id="state"></p>
<form id="composer"><input name="text" autofocus><button>Send</button>
<button type="button" id="stop">Stop</button> <button type="button" id="retry">Retry</button></form>
<script>
const id = crypto.randomUUID(), byId = name => document.getElementById(name)
const post = (action, body) => fetch(`/chats/${id}/${action}`, {method: "POST", body})
new EventSource(`/chats/${id}/events`).onmessage = event => {
  const view = JSON.parse(event.data)
  byId("messages").replaceChildren(...view.messages.map(message => Object.assign(
    document.createElement("p"),
    {textContent: message.role + ": " + (message.parts ?? []).map(part => part.text ?? "").join("")})))
  byId("live").textContent = ["streaming", "paused"].includes(view.state) ? view.text : ""
  byId("state").textContent = view.error ?? view.state
}
byId("composer").onsubmit = async event => {
  event.preventDefault()
  const draft = event.target.text.value
  event.target.text.value = ""
  if (!(await post("send", draft)).ok) event.target.text.value = draft
}
byId("stop").onclick = () => post("abort")
byId("retry").onclick = () => post("retry")
</script>"""


async def parrot(messages: tuple[Message, ...]) -> AsyncIterator[str]:
    """Plays the model: says it back, a word at a time."""
    for word in f"You said: {messages[-1].text}".split():
        await asyncio.sleep(0.05)
        yield word + " "


class Tab:
    """A conversation and who looks at it; the controller's host."""

    def __init__(self, provider: object = parrot) -> None:
        self.agent = AgentController(provider, host=self)
        self.watchers: set[asyncio.Event] = set()

    def request_update(self) -> None:
        """Called by the controller after each visible change: cheap, and many become one."""
        for watcher in self.watchers:
            watcher.set()

    async def views(self) -> AsyncIterator[bytes]:
        """The view now, and after each change; a reader that goes stops nothing."""
        changed = asyncio.Event()
        self.watchers.add(changed)
        try:
            while True:
                changed.clear()
                yield b"data: " + msgspec.json.encode(self.agent.view()) + b"\n\n"
                await changed.wait()
        finally:
            self.watchers.discard(changed)


tabs: dict[str, Tab] = {}


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Closes the conversations with the server."""
    yield
    for tab in tabs.values():
        await tab.agent.aclose()
    tabs.clear()


app = FastAPI(lifespan=lifespan)


@app.get("/")
async def page() -> HTMLResponse:
    """The page."""
    return HTMLResponse(PAGE)


@app.get("/chats/{chat}/events")
async def events(chat: str) -> StreamingResponse:
    """All changes of a conversation, for as long as somebody reads."""
    tab = tabs.setdefault(chat, Tab())
    return StreamingResponse(
        tab.views(), media_type="text/event-stream", headers={"cache-control": "no-store"}
    )


@app.post("/chats/{chat}/{action}", status_code=202)
async def act(chat: str, action: str, request: Request) -> dict[str, str]:
    """`send` (the body is the text), `retry`, `pause`, `resume`, `abort`; 409 says why not."""
    agent = tabs.setdefault(chat, Tab()).agent
    try:
        match action:
            case "send":
                await agent.send((await request.body()).decode())
            case "retry":
                await agent.retry()
            case "pause" | "resume" | "abort":
                getattr(agent, action)()
            case _:
                raise HTTPException(404)
    except UsageError as error:
        raise HTTPException(409, str(error)) from error
    return {"state": agent.state}
