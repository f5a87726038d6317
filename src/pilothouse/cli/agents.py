"""Which agent a command talks to: a target that the user names, a model string, a key that is set, or the local model."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

from ..conversation.controller import AgentController
from ..errors import ConfigError, UsageError

SYSTEM_PROMPT = "You are a helpful assistant. Answer briefly and clearly."

Say = Callable[[str], None]
Definition = AgentController | Callable[..., Any]


def load_target(target: str) -> Definition:
    """The agent that a target names: `file.py` with an `agent` in it, `file.py:NAME` or `module:NAME`.

    Raises:
        ConfigError: there is no such thing; the text says what was looked for.
    """
    name, _, attribute = target.partition(":") if not target.endswith(".py") else (target, "", "")
    module = _load_file(Path(name)) if name.endswith(".py") else _load_module(name, target)
    found = getattr(module, attribute or "agent", None)
    if found is None:
        raise ConfigError(
            f"{name} defines no {attribute!r}"
            if attribute
            else f"{name} defines no 'agent': call it so, or name yours: {name}:NAME"
        )
    if not isinstance(found, AgentController) and not callable(found):
        raise ConfigError(
            f"{target}: {attribute or 'agent'} must be an AgentController or a function that makes one, "
            f"got {type(found).__name__}"
        )
    if inspect.isasyncgenfunction(found):  # a model that yields text is an agent already
        return AgentController(found)
    if not isinstance(found, AgentController):
        try:
            inspect.signature(found).bind(None)
        except TypeError:
            raise ConfigError(
                f"{target}: {attribute or 'agent'}() must take one argument, the RunContext"
            ) from None
    return found  # type: ignore[no-any-return]


def template_of(definition: Definition) -> AgentController:
    """The conversation itself, or the one that a function makes when nobody in particular asks.

    Raises:
        ConfigError: the function raised, or made something else.
    """
    if isinstance(definition, AgentController):
        return definition
    from ..server.auth import Principal
    from ..server.context import RunContext

    try:
        made = definition(RunContext(Principal("", ""), "", "", "default"))
    except UsageError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the function that makes the agent raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, AgentController):
        raise ConfigError(f"the target must be, or make, an AgentController, got {type(made).__name__}")
    return made


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; a target is file.py, file.py:NAME or module:NAME")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except UsageError:
        raise
    except Exception as error:
        raise ConfigError(f"{path} cannot be loaded: {_why(error)}") from error
    return module


def _why(error: Exception) -> str:
    """What a file raised, in one line; a script that runs itself is the commonest of it."""
    said = f"{type(error).__name__}: {error}"
    if "asyncio.run()" in str(error) or "Runner.run()" in str(error):
        return f"{said}: put that call under `if __name__ == '__main__':`"
    return said


def _load_module(name: str, target: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{target}: no module named {error.name!r}; a target is file.py, file.py:NAME or module:NAME"
        ) from error
    except UsageError:
        raise
    except Exception as error:
        raise ConfigError(f"{name} cannot be imported: {_why(error)}") from error


class Agents:
    """Opens the agent of a command and what it needs, and closes it again; an async context manager."""

    def __init__(self, target: str | None, model: str | None, say: Say) -> None:
        if target is not None and model is not None:
            raise ConfigError("give a TARGET or --model, not both")
        self._target = target
        self._model = model
        self._say = say
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Definition:
        """The definition; for a model string a conversation template."""
        try:
            return await self._open()
        except BaseException:
            await self._stack.aclose()
            raise

    async def __aexit__(self, *exc: object) -> None:
        """Closes the local server and providers that were made here."""
        await self._stack.aclose()

    async def _open(self) -> Definition:
        if self._target is not None:
            found = load_target(self._target)
            self._say(f"agent {self._target}")
            return found
        from ..providers.resolve import configured, provider

        model = self._model
        if model is None and (found_key := configured()) is not None:
            model, key = found_key
            self._say(f"using {model} ({key} is set)")
        if model is None:
            self._say(
                "no key is set: using the local model SmolLM2-135M (small; it chats, it does not call tools)"
            )
            model = "local"
        if model.partition(":")[0] == "local":
            return await self._local(model)
        made = provider(model)
        self._stack.push_async_callback(made.aclose)
        return AgentController(made, system_prompt=SYSTEM_PROMPT)

    async def _local(self, spec: str) -> Definition:
        """The local model, loaded before anything is served, so that what is missing is told now."""
        from ..local.provider import LocalProvider
        from .progress import Progress

        with Progress() as progress:
            local = LocalProvider(spec, progress)
            self._stack.push_async_callback(local.aclose)
            await local.start()
        return AgentController(local, system_prompt=SYSTEM_PROMPT)
