"""An agent with files and a shell in one folder. `python examples/sandbox.py [FOLDER] [TASK]`.

It reads as it likes, asks before it writes or runs anything, and cannot leave the folder. With a key in the environment a
real model works; without one a stand-in does a small job: it counts the words of every text file in the folder, writes
the counts to `counts.md`, and has the shell check them.

To watch it in a browser: `pilothouse serve examples/sandbox.py` (the folder is then ./sandbox).
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from pilothouse import AgentController, AgentLoop, RunController, RunSpec, ToolError, provider, tool
from pilothouse.events import CallFinished, RequestOpened, RunEnded, TextTold
from pilothouse.loop.config import Limits, LoopConfig
from pilothouse.messages import Message, Text
from pilothouse.records import Record
from pilothouse.testing.scripted import ScriptedProvider, call

PROMPT = "You work in one folder, with the tools. Read before you write. Say in one line what you did."


class Sandbox:
    """Tools that see one folder and nothing else."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.root.mkdir(parents=True, exist_ok=True)

    def inside(self, path: str) -> Path:
        """The path, if it is in the folder; links out of it do not count as inside."""
        found = (self.root / path).resolve()
        if not found.is_relative_to(self.root):
            raise ToolError(f"{path} is outside of the folder")
        return found

    def tools(self) -> list:
        """Reading is free; writing and running are asked about first, with exactly what will be done."""

        @tool(effect="read")
        def list_files(pattern: str = "**/*") -> list[str]:
            """Lists files.

            Args:
                pattern: A glob, relative to the folder.
            """
            found = sorted(path for path in self.root.glob(pattern) if path.is_file())
            return [
                str(path.relative_to(self.root)) for path in found if path.resolve().is_relative_to(self.root)
            ]

        @tool(effect="read", expose_errors=(OSError, UnicodeError))
        def read_file(path: str) -> str:
            """Reads a text file.

            Args:
                path: Relative to the folder.
            """
            return self.inside(path).read_text("utf-8")

        @tool(
            effect="idempotent",
            approval=True,
            resource=lambda args: f"file:{args['path']}",
            expose_errors=(OSError,),
        )
        def write_file(path: str, text: str) -> str:
            """Writes a text file; what it held is replaced.

            Args:
                path: Relative to the folder.
                text: All of its new content.
            """
            target = self.inside(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
            return f"{len(text)} characters written to {path}"

        @tool(approval=True, resource="shell", timeout=60)
        async def run(command: str) -> str:
            """Runs a shell command in the folder and gives its output.

            Args:
                command: For /bin/sh.
            """
            starting = asyncio.create_task(
                asyncio.create_subprocess_shell(
                    command,
                    cwd=self.root,
                    stdout=-1,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )
            )
            try:
                process = await asyncio.shield(
                    starting
                )  # a stop in here must not lose sight of what was begun
                output, _ = await process.communicate()
            finally:
                process = await starting
                if process.returncode is None:  # stopped: its children go with it
                    os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
            return f"exit code {process.returncode}\n{output.decode(errors='replace')}"

        return [list_files, read_file, write_file, run]


def stand_in(request):
    """Plays the model, a step a turn: list, read all, write, check, report."""
    results = {message.call_id: message.text for message in request.messages if message.role == "tool"}
    if "list" not in results:
        return ["I look what is here.\n", call("list_files", {"pattern": "**/*.txt"}, call_id="list")]
    names = [
        name for name in results["list"].strip("[]").replace('"', "").split(", ") if name and name[0] != "("
    ]
    reads = {f"read {name}": name for name in names}
    if not names:
        return "There is no text file here."
    if missing := [
        call("read_file", {"path": name}, call_id=key) for key, name in reads.items() if key not in results
    ]:
        return missing
    if "write" not in results:
        counts = "".join(f"| {name} | {len(results[key].split())} |\n" for key, name in reads.items())
        table = f"| file | words |\n|---|---:|\n{counts}"
        return [
            "I write the counts.\n",
            call("write_file", {"path": "counts.md", "text": table}, call_id="write"),
        ]
    if "check" not in results:
        return [call("run", {"command": f"wc -w {' '.join(map(repr, names))}"}, call_id="check")]
    if "did not allow" in results["write"]:
        return "I counted, and wrote nothing, as you wished."
    return f"I counted the words of {len(names)} files; the table is in counts.md, and wc agrees:\n{results['check']}"


def model():
    """The model of a key that is set, else the stand-in."""
    for key, name in (
        ("ANTHROPIC_API_KEY", "anthropic:claude-sonnet-4-5"),
        ("OPENAI_API_KEY", "openai:gpt-5-mini"),
    ):
        if os.environ.get(key):
            return provider(name)
    return ScriptedProvider(stand_in, repeat=True)


CONFIG = LoopConfig(limits=Limits(turns=30, tool_calls=100, deadline=600))


async def work(
    root: Path, task: str, allow: Callable[[str, dict], bool], show: Callable[[str], None] = lambda _: None
):
    """Does one job; `allow` is asked with tool and arguments before anything is written or run."""
    loop = AgentLoop(model(), tools=Sandbox(root).tools(), system_prompt=PROMPT, config=CONFIG)
    async with loop, RunController(loop) as runs:
        message = Message("task", "user", (Text(task),))
        run = await runs.start(RunSpec("job", "job", (message,)))
        async with run.stream() as items:
            async for item in items:
                fact = item.fact if isinstance(item, Record) else item.body
                match fact:
                    case TextTold():
                        show(fact.text)
                    case RequestOpened():
                        wanted = fact.request.data
                        if allow(wanted["tool"], wanted["arguments"]):
                            await run.approve(fact.request.id)
                        else:
                            await run.deny(fact.request.id, "the user said no")
                    case CallFinished():
                        show(f"\n  [{fact.call_id}: {fact.outcome}]\n")
                    case RunEnded():
                        break
        return await run.wait()


def ask(name: str, arguments: dict) -> bool:
    """Asks at the terminal."""
    shown = "\n    ".join(f"{key}: {value}" for key, value in arguments.items())
    return input(f"\n  {name}\n    {shown}\n  Allow? [y/N] ").strip().lower() in ("y", "yes")


agent = AgentController(
    model(),
    tools=Sandbox(Path("sandbox")).tools() if __name__ != "__main__" else [],
    system_prompt=PROMPT,
    config=CONFIG,
)

if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "sandbox")
    job = sys.argv[2] if len(sys.argv) > 2 else "Count the words of each text file and write a table of them."
    result = asyncio.run(work(folder, job, ask, lambda text: print(text, end="", flush=True)))
    print(f"\n({result.view.status})")
