"""Uploads files before a send, several at once, with retries; usable alone (AC-140 … AC-153).

Each file is an `_Upload`: a number of attempts, one after another. An attempt is fenced by its number: what comes of an
earlier or a stopped one changes nothing, so that an upload that ignores its stop neither holds its place nor comes back.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, Self, final

from ..cancel import ENDING, LEAVING, Token, bound, check_on, is_closing
from ..clock import SystemClock, wait_any, within
from ..contracts import Clock, Host
from ..errors import AgentClosed, ConfigError, PermanentUploadError, UploadError, UsageError
from ..loop.timers import call_later
from ..messages import Media
from .attachments import Attachment
from .files import (
    LIVE,
    OPTIONS,
    UploadFile,
    UploadItem,
    UploadOptions,
    UploadProvider,
    UploadResult,
    UploadState,
    UploadStatus,
    check_url,
    full_type,
    progress_of,
    sanitized,
)
from .notify import Notifier
from .options import seconds

logger = logging.getLogger("pilothouse.conversation")

CALLBACKS: Final = (
    "on_attachment_update",
    "on_upload_complete",
    "on_upload_error",
    "on_all_complete",
    "on_all_settled",
    "on_state_change",
    "on_callback_error",
)


class _Upload:
    """A file on its way."""

    __slots__ = ("item", "result", "signal", "stop_waiting", "task", "tries")

    def __init__(self, file: UploadFile) -> None:
        self.item = UploadItem(file.id, file)
        self.result: UploadResult | None = None
        self.tries = 0  # attempts since it was added or retried by hand
        self.signal: Token | None = None
        self.task: asyncio.Task[None] | None = None
        self.stop_waiting: Callable[[], None] | None = None


@final
class UploadController:
    """Takes files through a provider. `async with` it, or call `aclose()`.

    Args:
        concurrency: attempts at once.
        max_retries: further attempts of a file that failed.
        retry_delay: seconds before each of them; the file's place is free meanwhile.
        upload_timeout: seconds for one attempt.
        host: told by `request_update()` after each change.
        callbacks: `on_attachment_update(item)`, `on_upload_complete(item, result)`, `on_upload_error(item, error)`,
            `on_all_complete(results)`, `on_all_settled(items)`, `on_state_change(state)`,
            `on_callback_error(error, name)`; plain or async.
    """

    def __init__(
        self,
        provider: UploadProvider,
        *,
        concurrency: object = None,
        max_retries: object = None,
        retry_delay: object = None,
        upload_timeout: object = None,
        host: Host | None = None,
        clock: Clock | None = None,
        close_timeout: object = None,
        **callbacks: Callable[..., object] | None,
    ) -> None:
        self._provider = _checked(provider)
        self._options: dict[str, Any] = {**dict.fromkeys(CALLBACKS), "close_timeout": 5.0}
        self.update_options(
            concurrency=concurrency,
            max_retries=max_retries,
            retry_delay=retry_delay,
            upload_timeout=upload_timeout,
            close_timeout=close_timeout,
            **callbacks,
        )
        self._host = host
        self._clock = clock or SystemClock()
        self._uploads: dict[str, _Upload] = {}
        self._queue: deque[str] = deque()
        self._active: set[str] = set()
        self._batch: dict[str, None] = {}
        self._orphans: set[asyncio.Task[Any]] = set()
        self._state = UploadState.IDLE
        self._waiters: list[asyncio.Future[None]] = []
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None  # the first that it was used on
        self._notifier = Notifier(lambda name: self._options[name])

    # Reading

    @property
    def state(self) -> UploadState:
        """Uploading wins, then error, then complete; cancelled files do not count (AC-140)."""
        statuses = {upload.item.status for upload in self._uploads.values()}
        if statuses & LIVE:
            return UploadState.UPLOADING
        if "error" in statuses:
            return UploadState.ERROR
        return UploadState.COMPLETE if "complete" in statuses else UploadState.IDLE

    @property
    def items(self) -> Mapping[str, UploadItem]:
        """All files, in the order in which they were added."""
        return MappingProxyType({name: upload.item for name, upload in self._uploads.items()})

    @property
    def results(self) -> Mapping[str, UploadResult]:
        """Where the complete ones are."""
        found = {name: upload.result for name, upload in self._uploads.items() if upload.result is not None}
        return MappingProxyType(found)

    @property
    def active_count(self) -> int:
        """Attempts under way."""
        return len(self._active)

    @property
    def queued_count(self) -> int:
        """Files that wait for a place."""
        return len(self._queue)

    # Acting

    def add(self, files: Iterable[UploadFile]) -> tuple[UploadItem, ...]:
        """Queues files; one that is live or complete already is not uploaded twice, one that failed is tried again.

        Raises:
            AgentClosed, TypeError, UsageError: nothing was queued.
        """
        self._check_usable("upload")
        given = tuple(files)
        for index, file in enumerate(given):
            if not isinstance(file, UploadFile):
                raise TypeError(f"files[{index}] must be an UploadFile, got {type(file).__name__}")
        for file in given:
            known = self._uploads.get(file.id)
            if known is None:
                known = self._uploads[file.id] = _Upload(file)
            elif known.item.status in LIVE or known.item.status == "complete":
                continue
            self._enqueue(known)
        self._settle()
        return tuple([self._uploads[file.id].item for file in given])

    def retry(self, id: str) -> bool:
        """Tries a failed or cancelled file again, from its first attempt; whether it was queued.

        Raises:
            UsageError: no such file.
        """
        self._check_usable("retry")
        upload = self._uploads.get(id)
        if upload is None:
            raise UsageError(f"cannot retry {id!r}: no such upload")
        if upload.item.status not in ("error", "cancelled"):
            return False
        queued = self._enqueue(upload)
        self._settle()
        return queued

    def cancel(self, id: str) -> bool:
        """Gives a file up; False if it is unknown, complete or cancelled already."""
        self._check_thread("cancel")
        upload = self._uploads.get(id)
        if upload is None or upload.item.status in ("complete", "cancelled"):
            return False
        self._stop(upload, "cancelled")
        self._settle()
        return True

    def abort_all(self) -> None:
        """Cancels all that is live; results and errors stay."""
        self._check_thread("abort")
        for upload in self._uploads.values():
            if upload.item.status in LIVE:
                self._stop(upload, "aborted")
        self._settle()

    def reset(self) -> None:
        """Cancels all that is live, and forgets everything."""
        self.abort_all()
        self._uploads.clear()
        self._settle()

    def set_provider(self, provider: UploadProvider) -> None:
        """Swaps the provider; while uploading, with a warning, and what is live is cancelled.

        Raises:
            TypeError: it cannot upload; nothing was changed.
        """
        checked = _checked(provider)
        if self.state is UploadState.UPLOADING:
            logger.warning("set_provider while uploading: aborting")
            self.abort_all()
        self._provider = checked

    def update_options(self, **changes: object) -> None:
        """Changes options and callbacks, all or nothing; they serve from the next attempt.

        Raises:
            ConfigError: no such option, or a callback that cannot be called.
        """
        fresh: dict[str, Any] = {}
        for name, value in changes.items():
            if name in OPTIONS:
                fresh[name] = sanitized(name, value)
            elif name == "close_timeout":
                fresh[name] = seconds(name, value)
            elif name not in CALLBACKS:
                names = ", ".join((*OPTIONS, "close_timeout", *CALLBACKS))
                raise ConfigError(f"unknown option {name!r}; valid names: {names}")
            elif value is not None and not callable(value):
                raise ConfigError(f"{name} must be callable, got {type(value).__name__}")
            else:
                fresh[name] = value
        self._options.update(fresh)

    async def wait(self) -> tuple[UploadItem, ...]:
        """Waits until nothing is under way; gives all files.

        Raises:
            UsageError: something is under way on another event loop.
        """
        while self.state is UploadState.UPLOADING:
            bound(self._loop, "wait", "an upload controller")
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return tuple(self.items.values())

    def take(self) -> tuple[Media, ...]:
        """The complete files as attachments, in the order in which they were added; they are forgotten here.

        Raises:
            UsageError: something is under way.
        """
        if self.state is UploadState.UPLOADING:
            raise UsageError("cannot take attachments while uploading: wait() first")
        taken: list[Media] = []
        results = self.results
        for name, result in results.items():
            file = self._uploads[name].item.file
            mime_type = full_type(file.mime_type)
            taken.append(Attachment(url=result.url, mime_type=mime_type, filename=file.name or None))
        for name in results:  # all of them could be made: none is lost
            del self._uploads[name]
        self._settle()
        return tuple(taken)

    async def __aenter__(self) -> Self:
        """Returns itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Closes."""
        await self.aclose()

    async def aclose(self) -> None:
        """Cancels all that is live, refuses more, and waits up to `close_timeout` for what runs. Idempotent."""
        self._check_thread("close")
        self._closed = True
        self.abort_all()
        limit = self._options["close_timeout"]
        try:
            await within(self._clock, limit, _ended(self._orphans))
        except TimeoutError:
            logger.warning("%d uploads did not end within close_timeout", len(self._orphans))
        if self._notifier.waiting:  # not for the callback that closes us
            try:
                await within(self._clock, limit, self._notifier.join())
            except TimeoutError:
                self._notifier.cancel()

    def _check_usable(self, action: str) -> None:
        if self._closed:
            raise AgentClosed(action)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise UsageError(f"cannot {action} without a running event loop") from None
        self._loop = bound(self._loop, action, "an upload controller")

    def _check_thread(self, action: str) -> None:
        if self._loop is not None and not self._loop.is_closed():
            check_on(self._loop, action)

    # One file

    def _enqueue(self, upload: _Upload) -> bool:
        """To the end of the queue, as if it were new; False if it cannot be uploaded at all."""
        item = upload.item
        upload.result, upload.tries = None, 0
        self._batch[item.id] = None
        problem = self._problem(item.file)
        if problem is not None:
            upload.item = UploadItem(item.id, item.file)
            self._failed(upload, problem)
            return False
        self._change(upload, status="pending", progress=0.0, attempt=0, error=None, url=None)
        self._queue.append(item.id)
        return True

    def _problem(self, file: UploadFile) -> Exception | None:
        if file.source is None:
            return PermanentUploadError(f"{file.name} has no content")
        validate = getattr(self._provider, "validate", None)
        if validate is None:
            return None
        try:
            why = validate(file)
        except ENDING:
            raise
        except BaseException as error:  # noqa: BLE001 - errors this file only (AC-142)
            return _shown(error)
        return None if why is None else PermanentUploadError(str(why))

    def _pump(self) -> None:
        while self._queue and len(self._active) < self._options["concurrency"]:
            upload = self._uploads[self._queue.popleft()]
            upload.tries += 1
            upload.signal = Token()
            self._active.add(upload.item.id)
            self._change(upload, status="uploading", progress=0.0, attempt=upload.tries, error=None)
            work = self._attempt(upload, upload.signal, self._provider, self._options["upload_timeout"])
            upload.task = asyncio.get_running_loop().create_task(work, name="pilothouse-upload")

    async def _attempt(self, upload: _Upload, signal: Token, provider: UploadProvider, limit: float) -> None:
        """One attempt, raced with its time (AC-145): one that is deaf is left behind."""
        told = self._progress_teller(upload, signal)
        work = asyncio.ensure_future(provider.upload(upload.item.file, UploadOptions(signal, told)))
        self._orphans.add(work)
        work.add_done_callback(self._came_home)
        task = asyncio.current_task()
        error: Exception
        try:
            await wait_any(self._clock, limit, work)
            result = _result_of(work, limit)
        except asyncio.CancelledError:
            if not work.cancelled() or upload.signal is not signal:
                raise
            error = UploadError("the provider cancelled its own upload")
        except ENDING:
            raise
        except BaseException as failure:  # a provider may raise anything; it is told of the file
            if is_closing(failure, task):
                raise
            error = _shown(failure)
        else:
            self._completed(upload, signal, result)
            return
        finally:
            if not work.done():
                signal.set("timeout" if upload.signal is signal else "cancelled")
                work.cancel()
        self._tried(upload, signal, error)

    def _came_home(self, work: asyncio.Future[Any]) -> None:
        self._orphans.discard(work)
        if not work.cancelled():
            work.exception()

    def _progress_teller(self, upload: _Upload, signal: Token) -> Callable[[float], None]:
        loop = asyncio.get_running_loop()

        def apply(value: object) -> None:
            if upload.signal is not signal or upload.item.status != "uploading":
                return
            progress = progress_of(value, upload.item.progress)
            if progress is not None:
                self._change(upload, progress=progress)
                self._tell()

        def told(value: float) -> None:
            try:
                here = asyncio.get_running_loop() is loop
            except RuntimeError:
                here = False
            if here:
                apply(value)
            else:
                loop.call_soon_threadsafe(apply, value)

        return told

    def _leave(self, upload: _Upload) -> None:
        """Its attempt is over: the place is free, and what comes late is not its own."""
        upload.signal, upload.task = None, None
        self._active.discard(upload.item.id)

    def _completed(self, upload: _Upload, signal: Token, result: UploadResult) -> None:
        if upload.signal is not signal:
            return
        self._leave(upload)
        upload.result = result
        self._change(upload, status="complete", progress=100.0, url=result.url)
        self._notifier.tell("on_upload_complete", upload.item, result)
        self._settle()

    def _tried(self, upload: _Upload, signal: Token, error: Exception) -> None:
        """An attempt failed: another one after a while, in front of the others, or the end (AC-144)."""
        if upload.signal is not signal:
            return
        self._leave(upload)
        if isinstance(error, PermanentUploadError) or upload.tries > self._options["max_retries"]:
            self._failed(upload, error)
        else:
            self._change(upload, status="waiting", error=error)
            upload.stop_waiting = call_later(
                self._clock, self._options["retry_delay"], lambda: self._again(upload)
            )
        self._settle()

    def _again(self, upload: _Upload) -> None:
        upload.stop_waiting = None
        self._change(upload, status="pending")
        self._queue.appendleft(upload.item.id)
        self._settle()

    def _failed(self, upload: _Upload, error: Exception) -> None:
        self._change(upload, status="error", error=error)
        self._notifier.tell("on_upload_error", upload.item, error)

    def _stop(self, upload: _Upload, reason: str) -> None:
        signal, task = upload.signal, upload.task
        self._leave(upload)
        if upload.stop_waiting is not None:
            upload.stop_waiting()
            upload.stop_waiting = None
        if upload.item.id in self._queue:
            self._queue.remove(upload.item.id)
        self._change(upload, status="cancelled", error=None)
        if signal is not None:
            signal.set(reason)
        if task is not None:
            task.cancel()

    # What follows from a change

    def _change(self, upload: _Upload, **fields: Any) -> None:
        upload.item = replace(upload.item, **fields)
        self._notifier.tell("on_attachment_update", upload.item)

    def _settle(self) -> None:
        """Starts what may start, then the state, then the end of a batch (AC-143, AC-152), then everybody is told."""
        self._pump()
        state = self.state
        if state is not self._state:
            self._state = state
            self._notifier.tell("on_state_change", state)
        if state is not UploadState.UPLOADING:
            self._end_batch()
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        self._tell()

    def _end_batch(self) -> None:
        batch = [self._uploads[name] for name in self._batch if name in self._uploads]
        self._batch = {}
        if not batch:
            return
        results = tuple([upload.result for upload in batch if upload.result is not None])
        statuses: set[UploadStatus] = {upload.item.status for upload in batch}
        if results and "error" not in statuses:
            self._notifier.tell("on_all_complete", results)
        self._notifier.tell("on_all_settled", tuple([upload.item for upload in batch]))

    def _tell(self) -> None:
        if self._host is not None:
            try:
                self._host.request_update()
            except LEAVING:
                raise
            except BaseException as error:  # noqa: BLE001 - a host cannot break the machine
                self._notifier.failed(error, "request_update")
        self._notifier.drain()


def _checked(provider: Any) -> UploadProvider:
    if isinstance(provider, type) or not inspect.iscoroutinefunction(getattr(provider, "upload", None)):
        shown = f"the class {provider.__name__}" if isinstance(provider, type) else type(provider).__name__
        raise TypeError(f"an upload provider has an async upload(file, options); got {shown}")
    return provider  # type: ignore[no-any-return]


def _shown(error: BaseException) -> Exception:
    """A failure as an item holds it."""
    return error if isinstance(error, Exception) else UploadError(f"the provider raised {error!r}")


def _result_of(work: asyncio.Future[UploadResult], limit: float) -> UploadResult:
    if not work.done():
        raise UploadError(f"upload timed out after {limit:g} s")
    return check_url(work.result())


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    while tasks:
        await asyncio.wait(set(tasks))
