"""Runs a GGUF model behind an OpenAI-compatible API on the loopback interface.

`LocalServer` owns one child process (`engine.py` says why it is one) and nothing else: it does not talk to the model.
Give `base_url`, `api_key` and `model` to any client of the OpenAI chat API.

The child ends when `close()` is called, when the server object is collected, when the interpreter exits, and when this
process dies in any way: then its standard input ends.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import secrets
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, final

from ..errors import UsageError
from .errors import INSTALL_ENGINE, OTHER_MODELS, LocalModelUnavailable
from .gguf import read_header
from .weights import SMOLLM2, Progress, find_or_fetch

logger = logging.getLogger(__name__)

SPEC: Final = "local"
DEFAULT_CONTEXT: Final = 4096  # tokens a conversation: 94 MB of memory each with the house model
DEFAULT_SLOTS: Final = 2  # answers written at the same time; further requests wait their turn
KEPT_LOG_LINES: Final = 20

SMOLLM2_SAMPLING: Final[Mapping[str, float]] = {"temp": 0.2, "top_p": 0.9}
"""For the house model, in llama.cpp's names; its makers' values. A penalty on repetition makes it wander from the facts."""
SMOLLM2_MAX_TOKENS: Final = 1024  # a model this small does not always find the end

_ENGINE: Final = Path(__file__).with_name("engine.py")


def default_threads() -> int:
    """One less than the cores that this process may use, at least 1.

    With all of them asked for, any other busy process makes llama.cpp's threads wait for each other at every layer:
    1 to 2 tokens/s instead of 80.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, cores - 1)


@final
class LocalServer:
    """A GGUF model in a process of its own, behind an OpenAI-compatible API. Not started by being made.

    Use it as an async context manager, or call `start()` (blocks while the model is loaded) and `close()`.

    Attributes:
        path: The GGUF file.
        model: The name under which the API knows the model.
        context_window: Tokens that one conversation may hold, prompt and answer together.
        calls_tools: Whether the model's chat template has a place for tools.
        api_key: The bearer token that the API wants; made for this server, told to nobody else.
        threads: Threads that compute.
        slots: Answers that are written at the same time.
    """

    def __init__(
        self,
        path: Path,
        *,
        alias: str | None = None,
        threads: int | None = None,
        context: int = DEFAULT_CONTEXT,
        slots: int = DEFAULT_SLOTS,
        max_tokens: int | None = None,
        sampling: Mapping[str, float] | None = None,
    ) -> None:
        """Checks the file; loads nothing.

        Args:
            path: The GGUF file.
            alias: The model's name in the API; else what the file calls it.
            threads: Threads that compute; else one less than the cores.
            context: Tokens that one conversation may hold; what the model was trained for is the limit.
            slots: Answers written at the same time. Each takes memory for `context` tokens.
            max_tokens: Length of an answer, in tokens, where a request does not say; else until the window is full.
            sampling: llama.cpp's sampling values for requests that do not say; else llama.cpp's own.

        Raises:
            LocalModelUnavailable: The file is missing or no whole GGUF file, or `pilothouse[local]` is not installed.
        """
        _check_engine()
        header = read_header(path)
        self.path = path.absolute()
        self.model = alias or header.name or path.stem
        self.context_window = min(context, header.context_length or context)
        self.calls_tools = header.calls_tools
        self.api_key = secrets.token_urlsafe(24)
        self.threads = threads if threads is not None else default_threads()
        self.slots = slots
        self._max_tokens = max_tokens if max_tokens is not None else -1
        self._sampling = dict(sampling or {})
        self._address = ""  # set once, when the model is loaded
        self._closed = False
        self._starting = threading.Lock()  # held by the thread that loads
        self._state = threading.Lock()  # guards _closed and _stop; never held while waiting
        self._stop: weakref.finalize[[subprocess.Popen[bytes], int], LocalServer] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        """The root of the API, `http://127.0.0.1:PORT/v1`.

        Raises:
            UsageError: The server was not started.
        """
        if not self._address:
            raise UsageError("cannot tell the local model's address before start()")
        return f"{self._address}/v1"

    @property
    def running(self) -> bool:
        """Whether the model is loaded and its process lives."""
        return bool(self._address) and self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Loads the model and returns when it can answer; does nothing when it runs already. Blocks.

        `close()` from another thread ends the wait.

        Raises:
            LocalModelUnavailable: llama.cpp cannot load the file; its own words are in the text.
            UsageError: The server was closed.
        """
        with self._starting:
            if self.running:
                return
            process = self._spawn()
            said: list[str] = []
            listener = threading.Thread(
                target=_listen, args=(process.stderr, said), name="pilothouse-local-log", daemon=True
            )
            listener.start()
            answer = _order(process, self._order())
            with self._state:
                closed, stop = self._closed, self._stop
                if "address" in answer and not closed:
                    self._address = str(answer["address"])
                    return
            assert stop is not None
            stop()
            listener.join()
            if closed:
                raise UsageError("cannot start the local model because it was closed meanwhile")
            why = said[0] if said else str(answer.get("error", "its process ended"))
            raise LocalModelUnavailable(f"llama.cpp cannot load {self.path.name} ({why})", path=self.path)

    def close(self) -> None:
        """Ends the process at once, whatever it is doing. From any thread, any number of times."""
        with self._state:
            self._closed = True
            self._address = ""
            stop = self._stop
        if stop is not None:
            stop()

    async def aclose(self) -> None:
        """As `close()`, without blocking the event loop for the few milliseconds that the system takes."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> LocalServer:
        """Starts in a worker thread; a cancellation closes the server, which ends that thread's wait."""
        try:
            await asyncio.to_thread(self.start)
        except asyncio.CancelledError:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._state:
            if self._closed:
                raise UsageError("cannot start the local model while closed")
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and file
                # -P: the folder of the script is no place to import from.
                [sys.executable, "-P", str(_ENGINE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Ctrl-C in the terminal is for us: the model goes on until we close it.
                start_new_session=True,
                creationflags=_creation_flags(),
            )
            self._process = process
            self._stop = weakref.finalize(self, _end, process, os.getpid())
            return process

    def _order(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "alias": self.model,
            "threads": self.threads,
            "context": self.context_window,
            "slots": self.slots,
            "api_key": self.api_key,
            "max_tokens": self._max_tokens,
            "sampling": self._sampling,
        }


def open_model(
    spec: str = SPEC,
    progress: Progress | None = None,
    *,
    threads: int | None = None,
    context: int = DEFAULT_CONTEXT,
) -> LocalServer:
    """Returns a server, not yet started, for `local` (the house model, fetched at first use) or `local:/path/to.gguf`.

    Blocks while it fetches and checks: call it in a worker thread.

    Raises:
        LocalModelUnavailable: The file cannot be had or used; the text says what to do.
        ValueError: `spec` is neither form.
    """
    kind, _, file = spec.partition(":")
    if kind != SPEC or spec == f"{SPEC}:":
        raise ValueError(f"{spec!r} is neither {SPEC!r} nor '{SPEC}:/path/to.gguf'")
    _check_engine()  # before 98 MB are fetched for it
    if file:
        return LocalServer(Path(file).expanduser(), threads=threads, context=context)
    return LocalServer(
        find_or_fetch(progress),
        alias=SMOLLM2.model,
        threads=threads,
        context=context,
        max_tokens=SMOLLM2_MAX_TOKENS,
        sampling=SMOLLM2_SAMPLING,
    )


def _check_engine() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        raise LocalModelUnavailable("llama.cpp is not installed", f"{INSTALL_ENGINE}, or {OTHER_MODELS}")


def _creation_flags() -> int:
    if sys.platform == "win32":
        return subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
    return 0


def _order(process: subprocess.Popen[bytes], order: Mapping[str, Any]) -> dict[str, Any]:
    """Sends the order and waits for the answer; `{}` when the process ended instead."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline() or b"{}")
    except (OSError, ValueError):  # it was killed, by close() or from outside
        return {}
    assert isinstance(answer, dict)
    return answer


def _listen(stream: IO[bytes] | None, said: list[str]) -> None:
    """Hands llama.cpp's lines to our log until the process ends, and keeps the first ones: they hold the cause."""
    assert stream is not None
    with stream:
        for line in stream:
            text = line.decode("utf-8", "replace").strip()
            logger.debug("llama.cpp: %s", text)
            if len(said) < KEPT_LOG_LINES:
                said.append(text)


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """Kills the process and takes its exit status. It holds nothing that would have to be saved."""
    if os.getpid() != owner:  # a fork of the owner exits; the model is not its to end
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # unsent bytes of an order that nobody reads any more
                continue


__all__ = ["DEFAULT_CONTEXT", "DEFAULT_SLOTS", "LocalServer", "default_threads", "open_model"]
