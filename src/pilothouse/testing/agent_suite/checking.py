"""How a check of the suite becomes a test method: a loop of its own, a limit of time, what it needs of the backend."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from .driving import AgentDriver

LIMIT_S: Final = 60.0

Body: TypeAlias = Callable[[Any, AgentDriver], Coroutine[Any, Any, None]]


def check(*needs: str) -> Callable[[Body], Callable[[Any], None]]:
    """Makes a test of a check. Against a backend without what it `needs` there is nothing to test."""

    def made(body: Body) -> Callable[[Any], None]:
        async def run(suite: Any) -> None:
            driver: AgentDriver = suite.driver()
            if not set(needs) <= driver.capabilities:
                return
            try:
                async with asyncio.timeout(LIMIT_S):
                    await body(suite, driver)
            finally:
                await driver.aclose()

        def test(self: Any) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                asyncio.run(run(self))
                gc.collect()

        test.__name__, test.__qualname__, test.__doc__ = body.__name__, body.__qualname__, body.__doc__
        return test

    return made


def refused(
    kind: type[BaseException] | tuple[type[BaseException], ...], call: Callable[[], object]
) -> BaseException:
    """The error that a call raises at once."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"it was not refused with {kind}")


__all__ = ["check", "refused"]
