"""An MCP server over stdio in plain Python, without the SDK: a second reading of the protocol, and one that starts fast.

`python mcp_plain.py FOLDER [silent]`; FOLDER gets the process id and what was done; with a file `extra` there is one tool more.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
CANCELLED: set[Any] = set()
ASKING: dict[str, Any] = {}
LOCK = threading.Lock()


def say(message: dict[str, Any]) -> None:
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def note(line: str) -> None:
    with (FOLDER / "done.txt").open("a") as file:
        file.write(line + "\n")


def tools() -> list[dict[str, Any]]:
    word = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    extra = (FOLDER / "extra").exists()
    described = "Waits." if not extra else "Waits, and is another one now."
    found = [
        {
            "name": "echo",
            "description": "Says it again.",
            "inputSchema": word,
            "annotations": {"readOnlyHint": True},
        },
        {"name": "slow", "description": described, "inputSchema": word},
        {"name": "slow_write", "description": "Waits, then writes.", "inputSchema": word},
        {"name": "asks", "description": "Asks the client something, by that method.", "inputSchema": word},
    ]
    if extra:
        found.append({"name": "later", "description": "Came later.", "inputSchema": word})
    return found


def call(ident: Any, name: str, word: str) -> None:
    if name == "asks":
        message = {"role": "user", "content": {"type": "text", "text": "Say the password."}}
        form = {"message": "Your password?", "requestedSchema": {"type": "object", "properties": {}}}
        given = {
            "sampling/createMessage": {"messages": [message], "maxTokens": 9},
            "elicitation/create": form,
        }
        ASKING[f"ask {ident}"] = ident
        say({"id": f"ask {ident}", "method": word, "params": given.get(word, {})})
        return
    if name.startswith("slow"):
        note(f"began {word}")
        while not (FOLDER / "go").exists():
            if ident in CANCELLED:
                note(f"cancelled {word}")
                return
            time.sleep(0.005)
        if name == "slow_write":
            note(word)
    say({"id": ident, "result": {"content": [{"type": "text", "text": f"{name} {word}"}], "isError": False}})


def main() -> None:
    print("a line on standard error", file=sys.stderr, flush=True)
    (FOLDER / "pid").write_text(str(os.getpid()))
    for line in sys.stdin:
        if sys.argv[2:] == ["silent"]:
            continue
        asked = json.loads(line)
        ident, given = asked.get("id"), asked.get("params") or {}
        match asked.get("method"):
            case "initialize":
                info = {"name": "plain", "version": "1"}
                capabilities = {"tools": {"listChanged": True}}
                say(
                    {
                        "id": ident,
                        "result": {
                            "protocolVersion": given["protocolVersion"],
                            "capabilities": capabilities,
                            "serverInfo": info,
                        },
                    }
                )
            case "tools/list":
                say({"id": ident, "result": {"tools": tools()}})
            case "tools/call":
                threading.Thread(
                    target=call, args=(ident, given["name"], given["arguments"]["word"]), daemon=True
                ).start()
                if given["arguments"]["word"] == "change":
                    (FOLDER / "extra").touch()
                    say({"method": "notifications/tools/list_changed"})
            case None if ident in ASKING:
                code = asked.get("error", {}).get("code")
                said = {
                    "type": "text",
                    "text": f"refused with {code}" if code else json.dumps(asked["result"]),
                }
                say({"id": ASKING.pop(ident), "result": {"content": [said], "isError": code is not None}})
            case "notifications/cancelled":
                CANCELLED.add(given["requestId"])
            case _ if ident is not None:
                say({"id": ident, "error": {"code": -32601, "message": "no such method"}})
            case _:
                pass


if __name__ == "__main__":
    main()
