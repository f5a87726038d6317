"""What the tests of AI controllers share: controllers that write down what they are told, in one list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pilothouse import BaseAIController, StagedController
from pilothouse.loop.tools import tool


class Told(list):
    """One list for everything that is called around a send, in order."""

    def names(self, start: int = 0) -> list[str]:
        return [entry[0] for entry in self[start:]]

    def of(self, *names: str) -> list[Any]:
        return [entry for entry in self if entry[0] in names]


class Plain(BaseAIController):
    """Writes down its hooks; raises or waits where it is told to."""

    def __init__(self, told: Told, namespace: str = "", *, is_async: bool = False, **at: Any) -> None:
        self.told = told
        self.namespace = namespace
        self.is_async = is_async
        self.at = at  # by hook name: an exception to raise, or a function to call with the event
        self.events: list[Any] = []
        self.responses: list[Any] = []

    def get_tools(self) -> Any:
        self.told.append((f"tools {self.namespace}",))
        self._do("tools", None)
        return [tool(self.touch)]

    async def touch(self) -> str:
        """Touches."""
        self.told.append((f"touch {self.namespace}",))
        return "touched"

    def _do(self, name: str, event: Any) -> Any:
        what = self.at.get(name)
        if isinstance(what, BaseException):
            raise what
        return None if what is None else what(event)

    def _hook(self, name: str, event: Any) -> Any:
        if not self.is_async:
            return self._do(name, event)

        async def later() -> None:
            found = self._do(name, event)
            if found is not None:
                await found

        return later()

    def on_request(self, event: Any) -> Any:
        self.told.append((f"request {self.namespace}", event))
        self.events.append(event)
        return self._hook("request", event)

    def on_response(self, event: Any) -> Any:
        self.told.append((f"response {self.namespace}", event))
        self.responses.append(event)
        return self._hook("response", event)


class Number(StagedController[int]):
    """A number that the model adds to."""

    def __init__(self, namespace: str = "n", told: Told | None = None) -> None:
        self.namespace = namespace
        self.told = Told() if told is None else told
        self.changes: list[Any] = []
        self.responses: list[Any] = []
        self.fail: dict[str, Any] = {}
        self.on_change(self.changes.append)

    def get_tools(self) -> Any:
        return [self.add, self.fall]

    async def add(self, by: int) -> str:
        """Adds."""
        self.stage((self.staged or self.state or 0) + by)
        return f"now {self.staged}, was {self.state}"

    async def fall(self, by: int) -> str:
        """Stages, and fails."""
        self.stage(by)
        raise ValueError("fell")

    async def prepare(self, value: int, reply: Any) -> object:
        self.told.append((f"prepare {self.namespace}", value))
        what = self.fail.get("prepare")
        if isinstance(what, BaseException):
            raise what
        if what is not None:
            await what()
        return ("prepared", value)

    def apply(self, value: int, prepared: object) -> None:
        self.told.append((f"apply {self.namespace}", value))
        if isinstance(what := self.fail.get("apply"), BaseException):
            raise what
        super().apply(value, prepared)

    def on_response(self, event: Any) -> None:
        self.told.append((f"response {self.namespace}", event))
        self.responses.append(event)


def raising(error: BaseException) -> Callable[[Any], None]:
    def hook(event: Any) -> None:
        raise error

    return hook
