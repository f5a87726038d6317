"""The near end of the child process that checks and draws charts."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
import sys
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias, final

from ...errors import ToolError, UsageError
from ...messages import JSON
from ..errors import MissingExtra
from .spec import Finding

Format: TypeAlias = Literal["png", "svg", "pdf", "html"]
FORMATS: Final = ("png", "svg", "pdf", "html")

_KEPT: Final = (
    "PATH",
    "LANG",
    "LC_ALL",
    "SYSTEMROOT",
    "PYTHONPATH",
    "HOME",
    "FONTCONFIG_PATH",
    "VIRTUAL_ENV",
)
"""What of the environment the child needs; keys and tokens it does not."""


class RenderFailed(ToolError):
    """A chart could not be drawn; the text is fit for a model."""


@final
class Renderer:
    """One child process, started at the first question, ended at its time limit or by `aclose`.

    Args:
        timeout: seconds for one check or picture; then the process is killed and started again at the next use.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._closed = False

    async def check(self, spec: JSON) -> list[Finding]:
        """What the JSON schema of Vega-Lite says of a spec with data, else what compiling it says."""
        answer = await self._ask({"do": "check", "spec": spec})
        if "error" in answer:
            raise RenderFailed(f"The spec could not be checked: {' '.join(answer['error'])[:300]}")
        return [Finding(path, message) for path, message in answer["findings"]]

    async def render(
        self, spec: JSON, form: Format, *, scale: float, max_area: float, theme: str | None
    ) -> bytes:
        """Draws a spec with data.

        Raises:
            ValueError: the picture would be too large.
            MissingExtra: vl-convert is not installed.
            RenderFailed: it cannot be drawn, or took too long.
        """
        answer = await self._ask(
            {
                "do": "render",
                "spec": spec,
                "format": form,
                "scale": scale,
                "max_area": max_area,
                "theme": theme,
            }
        )
        if "missing" in answer:
            raise MissingExtra("chart", answer["missing"], "draw a chart")
        if "too_large" in answer:
            width, height = answer["too_large"]
            size = f"{width * scale:.0f} × {height * scale:.0f}"
            raise ValueError(f"the picture would be {size} pixels: choose a smaller scale")
        if "error" in answer:
            raise RenderFailed(f"The chart cannot be drawn: {' '.join(answer['error'])[:300]}")
        return base64.b64decode(answer["data"])

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        async with self._lock:
            if self._closed:
                raise UsageError("cannot draw because the chart is closed")
            try:
                async with asyncio.timeout(self._timeout):
                    return await self._answered(question)
            except TimeoutError:
                await self._kill()
                raise RenderFailed(
                    f"The chart took longer than {self._timeout:g} s; aggregate the data."
                ) from None
            except (EOFError, OSError):  # the child died: out of memory, or killed
                await self._kill()
                raise RenderFailed("The chart could not be drawn; the renderer ended.") from None
            except BaseException:  # an answer that nobody waits for must not be the next one's
                await self._kill()
                raise

    async def _answered(self, question: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        data = json.dumps(question, ensure_ascii=False).encode()
        process.stdin.write(struct.pack(">I", len(data)) + data)
        await process.stdin.drain()
        (size,) = struct.unpack(">I", await process.stdout.readexactly(4))
        found: dict[str, Any] = json.loads(await process.stdout.readexactly(size))
        return found

    async def _start(self) -> asyncio.subprocess.Process:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pilothouse.controllers.chart.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**kept, "TZ": "UTC"},
        )

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.wait())

    @property
    def pid(self) -> int | None:
        """Of the child, None while there is none."""
        return None if self._process is None else self._process.pid

    async def aclose(self) -> None:
        """Kills the child, also in the middle of a chart; once is enough."""
        self._closed = True
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
