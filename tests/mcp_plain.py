"""An MCP server over stdio in plain Python, without the SDK: a second reading of the protocol, and one that starts fast.

`python mcp_plain.py FOLDER [silent | flood | deaf]`; FOLDER gets the process id and what was done; with a file `extra` there is one
tool more.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
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


def flood() -> None:
    """One line without an end; the file `sent` has a byte for each KiB that somebody took."""
    with (FOLDER / "sent").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(os.write(1, b"x" * 65_536) // 1024))


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
        {
            "name": "floods",
            "description": "Answers with a line without an end, or lines.",
            "inputSchema": word,
        },
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
    if name == "floods":
        note(f"floods {word}")
        if word == "line":
            flood()
        for at in range(int(word)):
            say(
                {"method": "notifications/message", "params": {"level": "info", "data": f"{at} " + "x" * 500}}
            )
            sys.stdout.write("no message at all\n")
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


def stay() -> None:
    """Neither it nor its child leaves when asked to; both pids are told."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    told = {"child": child.pid, "folder": str(Path.cwd()), "environment": dict(os.environ)}
    (FOLDER / "told").write_text(json.dumps(told))


def main() -> None:
    print("a line on standard error", file=sys.stderr, flush=True)
    (FOLDER / "pid").write_text(str(os.getpid()))
    if sys.argv[2:] == ["deaf"]:
        stay()
    for line in sys.stdin:
        if sys.argv[2:] == ["silent"]:
            continue
        if sys.argv[2:] == ["flood"]:
            flood()
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
    if sys.argv[2:] == ["deaf"]:
        time.sleep(600)


if __name__ == "__main__":
    main()
