"""NOTIFY and LISTEN of a Postgres journal: its processes wake each other here, and nowhere else.

A notification carries no data: it says "look". It may be lost, with its connection or behind a pooler in transaction
mode; so whoever waits for one also looks now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Literal, TypeAlias, final

import asyncpg

from ..errors import JournalError
from .postgres_link import Link, close_quietly

logger = logging.getLogger("pilothouse.journal")

Word: TypeAlias = Literal[
    "moved",  # facts were committed
    "inbox",  # a command was posted, or somebody follows a run
    "answered",  # a posted command has its answer
    "told",  # deltas were sent
]
"""What a notification is about."""

RETRY_S: Final = 0.5
"""Seconds until listening is tried again where the connection was lost."""


@final
class Notifications:
    """One connection that listens, made at the first `on`; it comes back by itself when it was lost."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._callbacks: dict[Word, list[Callable[[], object]]] = {}
        self._heard: set[Word] = set()
        self._listening: asyncio.Task[None] | None = None
        self._more = asyncio.Event()  # another word is asked for, or the connection was lost

    def channel(self, word: Word) -> str:
        """The channel of a word in this schema."""
        return f"{self._link.schema}_{word}"

    def hears(self, word: Word) -> bool:
        """Whether the server sends us this word now, as far as we know."""
        return word in self._heard

    def on(self, word: Word, callback: Callable[[], object]) -> Callable[[], None]:
        """Calls back at each notification, and whenever some may have been missed; returns what takes this back."""
        self._callbacks.setdefault(word, []).append(callback)
        self._more.set()
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen(), name="pilothouse-journal-listens")

        def take_back() -> None:
            if callback in self._callbacks.get(word, ()):
                self._callbacks[word].remove(callback)

        return take_back

    async def notify(self, word: Word) -> None:
        """Wakes the other processes; where that fails they look by themselves a moment later."""
        with suppress(JournalError):
            channel = self.channel(word)
            await self._link.read(lambda db: db.execute("SELECT pg_notify($1, '')", channel))

    async def aclose(self) -> None:
        """Listens no more."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait((self._listening,))

    async def _listen(self) -> None:
        while True:
            connection: asyncpg.Connection | None = None
            try:
                connection = await self._link.connect()
                connection.add_termination_listener(lambda _: self._more.set())
                await self._hear(connection)
            except (JournalError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
                logger.debug("listening is tried again: %s", error)
            finally:
                self._heard.clear()
                if connection is not None:
                    await close_quietly(connection)
            await asyncio.sleep(RETRY_S)

    async def _hear(self, connection: asyncpg.Connection) -> None:
        """Until the connection is lost; words that are asked for meanwhile are listened for too."""
        while not connection.is_closed():
            self._more.clear()
            for word in [word for word in self._callbacks if word not in self._heard]:
                await connection.add_listener(self.channel(word), partial(self._call, word))
                self._heard.add(word)
                self._call(word)  # what was said before it listened
            await self._more.wait()

    def _call(self, word: Word, *_: object) -> None:
        for callback in tuple(self._callbacks.get(word, ())):
            callback()


__all__ = ["Notifications", "Word"]
