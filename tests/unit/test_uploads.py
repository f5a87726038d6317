"""Uploads before a send: states, places, retries, progress, stops, batches (AC-140 … AC-153), on a step clock."""

from __future__ import annotations

import asyncio
import math
from decimal import Decimal
from pathlib import Path

import pytest

from convkit import passes
from pilothouse.conversation.files import UploadFile, UploadResult, UploadState
from pilothouse.conversation.uploads import UploadController
from pilothouse.errors import AgentClosed, ConfigError, PermanentUploadError, UploadError, UsageError
from pilothouse.messages import File, Image
from pilothouse.testing.clock import StepClock


class Store:
    """A provider whose attempts end as a test wrote down: a result, an exception, or a future to be resolved."""

    def __init__(self, **scripts) -> None:
        self.scripts = scripts
        self.calls: list[str] = []
        self.options: list = []
        self.held: dict[str, asyncio.Future] = {}

    async def upload(self, file, options):
        self.calls.append(file.id)
        self.options.append(options)
        script = self.scripts.get(file.id)
        answer = script.pop(0) if isinstance(script, list) and script else script
        if isinstance(answer, BaseException):
            raise answer
        if answer == "hold":
            self.held[file.id] = asyncio.get_running_loop().create_future()
            return await self.held[file.id]
        if answer == "deaf":
            self.held[file.id] = asyncio.get_running_loop().create_future()
            while not self.held[file.id].done():
                try:
                    await asyncio.shield(self.held[file.id])
                except asyncio.CancelledError:
                    continue
            return self.held[file.id].result()
        return answer if answer is not None else done(file.id)


def done(name: str) -> UploadResult:
    return UploadResult(f"https://x.org/{name}")


def files(*names: str) -> list[UploadFile]:
    return [UploadFile(f"{name}.png", "image/png", 1, b"x", name) for name in names]


class Uploads:
    """A controller on a step clock, with a log of what it tells."""

    def __init__(self, store: Store, **options) -> None:
        self.clock = StepClock()
        self.told: list[tuple] = []
        callbacks = {
            "on_attachment_update": lambda item: self.told.append(("update", item.id, item.status)),
            "on_upload_complete": lambda item, result: self.told.append(("complete", item.id)),
            "on_upload_error": lambda item, error: self.told.append(("error", item.id)),
            "on_all_complete": lambda results: self.told.append(("all", len(results))),
            "on_all_settled": lambda items: self.told.append(("settled", len(items))),
            "on_state_change": lambda state: self.told.append(("state", state.value)),
        }
        self.store = store
        self.it = UploadController(store, clock=self.clock, **{**callbacks, **options})

    def statuses(self) -> dict[str, str]:
        return {name: item.status for name, item in self.it.items.items()}


async def test_a_file_is_told_of_from_its_queueing_to_its_end() -> None:
    """AC-143: update, then complete; then the state; then the batch."""
    uploads = Uploads(Store())
    items = uploads.it.add(files("a"))
    assert items[0].status == "uploading"
    assert (uploads.it.state, uploads.it.active_count) == (UploadState.UPLOADING, 1)
    assert [item.status for item in await uploads.it.wait()] == ["complete"]
    assert uploads.told == [
        ("update", "a", "pending"),
        ("update", "a", "uploading"),
        ("state", "uploading"),
        ("update", "a", "complete"),
        ("complete", "a"),
        ("state", "complete"),
        ("all", 1),
        ("settled", 1),
    ]
    assert uploads.it.results == {"a": done("a")}
    item = uploads.it.items["a"]
    assert (item.progress, item.url, item.attempt) == (100.0, "https://x.org/a", 1)
    await uploads.it.aclose()


@pytest.mark.parametrize(
    ("name", "value", "result"),
    [
        ("concurrency", 1.9, 1), ("concurrency", 0, 1), ("concurrency", math.inf, 3), ("concurrency", True, 3),
        ("concurrency", None, 3), ("concurrency", "2", 3), ("max_retries", -1, 0), ("max_retries", 2.9, 2),
        ("max_retries", -math.inf, 2), ("retry_delay", -1, 0.0), ("retry_delay", 0.25, 0.25),
        ("retry_delay", math.nan, 1.0), ("upload_timeout", 0.5, 1.0), ("upload_timeout", 10**400, 2_147_483.0),
        ("upload_timeout", Decimal("2.5"), 2.5), ("upload_timeout", 0, 1.0),
    ],
)  # fmt: skip
def test_odd_options_mean_something_and_are_never_off(name: str, value: object, result: float) -> None:
    """AC-141: unlike the timeouts of a send, on purpose."""
    uploads = UploadController(Store(), **{name: value})
    assert uploads._options[name] == result
    uploads.update_options(**{name: value})
    assert uploads._options[name] == result


async def test_what_cannot_be_uploaded_is_an_error_at_once_and_alone() -> None:
    """AC-142: no content, a message of `validate`, a `validate` that raises; the others go on."""

    class Picky(Store):
        def validate(self, file):
            if file.id == "b":
                raise RuntimeError("odd")
            return "too large" if file.id == "c" else None

    uploads = Uploads(Picky())
    uploads.it.add([UploadFile("a", id="a"), *files("b", "c", "d")])
    assert uploads.statuses() == {"a": "error", "b": "error", "c": "error", "d": "uploading"}
    await uploads.it.wait()
    assert uploads.store.calls == ["d"]
    assert str(uploads.it.items["c"].error) == "too large"
    assert [entry for entry in uploads.told if entry[0] == "error"] == [("error", n) for n in "abc"]
    assert uploads.it.state is UploadState.ERROR
    assert ("all", 1) not in uploads.told
    assert uploads.told[-1] == ("settled", 4)
    await uploads.it.aclose()


async def test_two_failures_then_success_are_three_calls_and_waiting_holds_no_place() -> None:
    """AC-144, proof 22: an automatic retry goes to the front, with a new signal and limit."""
    store = Store(a=[OSError("1"), OSError("2"), None], b=["hold"], c=[None])
    uploads = Uploads(store, concurrency=1, retry_delay=2)
    uploads.it.add(files("a", "b", "c"))
    await passes()
    assert uploads.statuses() == {"a": "waiting", "b": "uploading", "c": "pending"}
    await uploads.clock.advance(2)
    assert uploads.statuses() == {"a": "pending", "b": "uploading", "c": "pending"}
    store.held["b"].set_result(done("b"))
    await passes()
    assert store.calls[:3] == ["a", "b", "a"]
    await uploads.clock.advance(2)
    await uploads.it.wait()
    assert store.calls.count("a") == 3
    assert uploads.it.items["a"].attempt == 3
    assert len({id(options.signal) for options in store.options}) == len(store.options)
    assert uploads.it.state is UploadState.COMPLETE
    await uploads.it.aclose()


async def test_attempts_end_and_a_permanent_error_is_not_tried_again() -> None:
    """AC-144: retries + 1 attempts."""
    store = Store(a=OSError("always"), b=PermanentUploadError("never"))
    uploads = Uploads(store, max_retries=1, retry_delay=0)
    uploads.it.add(files("a", "b"))
    for _ in range(5):
        await uploads.clock.advance(1)
    assert uploads.statuses() == {"a": "error", "b": "error"}
    assert (store.calls.count("a"), store.calls.count("b")) == (2, 1)
    assert str(uploads.it.items["a"].error) == "always"
    await uploads.it.aclose()


async def test_a_deaf_upload_is_left_behind() -> None:
    """AC-145: raced; its place is free, its late result is nobody's."""
    store = Store(a=["deaf"], b=[None])
    uploads = Uploads(store, concurrency=1, max_retries=0, upload_timeout=3)
    uploads.it.add(files("a", "b"))
    await uploads.clock.advance(3)
    await uploads.it.wait()
    assert uploads.statuses() == {"a": "error", "b": "complete"}
    assert str(uploads.it.items["a"].error) == "upload timed out after 3 s"
    assert store.options[0].signal.is_set()
    told = len(uploads.told)
    store.held["a"].set_result(done("a"))
    await passes()
    assert len(uploads.told) == told
    await uploads.it.aclose()


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (UploadResult("http://x.org/a"), "upload URL must use https, got http"),
        (UploadResult("https:///a"), "upload URL must name a host"),
        (UploadResult("https://[x"), "cannot be read"),
        (UploadResult("/a"), "got no scheme"),
        (UploadResult("https://x.org/a\nb"), "must not hold control characters"),
        ("https://x.org/a", "must return an UploadResult, got str"),
    ],
)
async def test_an_address_that_no_model_can_be_given_is_a_permanent_error(result: object, text: str) -> None:
    """AC-146: no retry."""
    store = Store(a=result)
    uploads = Uploads(store)
    uploads.it.add(files("a"))
    await uploads.it.wait()
    assert text in str(uploads.it.items["a"].error)
    assert store.calls == ["a"]
    await uploads.it.aclose()


async def test_progress_is_clamped_and_never_falls_and_late_calls_are_ignored() -> None:
    """AC-147: from any thread."""
    store = Store(a=["hold"])
    uploads = Uploads(store)
    uploads.it.add(files("a"))
    await passes()
    tell, seen = store.options[0].on_progress, []
    for value in (10, 5, 50.5, "x", math.nan, True, None, 1000):
        tell(value)
        seen.append(uploads.it.items["a"].progress)
    assert seen == [10, 10, 50.5, 50.5, 50.5, 50.5, 50.5, 100]
    store.held["a"].set_result(done("a"))
    await uploads.it.wait()
    told = len(uploads.told)
    await asyncio.to_thread(tell, 3)
    await passes()
    assert len(uploads.told) == told
    await uploads.it.aclose()


async def test_retrying_by_hand() -> None:
    """AC-148: errored or cancelled only, from the first attempt, at the end of the queue."""
    store = Store(a=[PermanentUploadError("no"), None], b=["hold"])
    uploads = Uploads(store, concurrency=1)
    uploads.it.add(files("a", "b"))
    await passes()
    with pytest.raises(UsageError, match="'nope'"):
        uploads.it.retry("nope")
    assert not uploads.it.retry("b")
    assert uploads.it.retry("a")
    assert not uploads.it.retry("a")
    assert uploads.statuses() == {"a": "pending", "b": "uploading"}
    store.held["b"].set_result(done("b"))
    await uploads.it.wait()
    assert not uploads.it.retry("a")
    assert (uploads.it.state, uploads.it.items["a"].attempt) == (UploadState.COMPLETE, 1)
    store.validate = lambda file: "gone"
    uploads.it.add(files("c"))
    assert not uploads.it.retry("c")
    assert str(uploads.it.items["c"].error) == "gone"
    await uploads.it.aclose()


@pytest.mark.parametrize("status", ["pending", "uploading", "waiting", "error"])
async def test_cancelling_frees_the_place(status: str) -> None:
    """AC-149: an update, the state derived anew, a late result ignored."""
    store = Store(a=[OSError("x")] if status in ("waiting", "error") else ["hold"], b=["hold"], c=[None])
    uploads = Uploads(store, concurrency=1, max_retries=0 if status == "error" else 2)
    names = ("b", "a", "c") if status == "pending" else ("a", "c")
    uploads.it.add(files(*names))
    await passes()
    assert uploads.statuses()["a"] == status
    assert uploads.it.cancel("a")
    assert (uploads.statuses()["a"], uploads.it.items["a"].error) == ("cancelled", None)
    assert ("update", "a", "cancelled") in uploads.told
    assert not uploads.it.cancel("a")
    assert not uploads.it.cancel("nope")
    if "b" in store.held:
        store.held["b"].set_result(done("b"))
    await uploads.it.wait()
    assert not uploads.it.cancel("c")
    assert (uploads.statuses()["c"], uploads.it.state) == ("complete", UploadState.COMPLETE)
    await passes()
    assert uploads.it.active_count == 0
    await uploads.it.aclose()


async def test_aborting_keeps_results_and_resetting_forgets_all() -> None:
    """AC-150: each live item is cancelled with an update, without an error."""
    store = Store(a=[None], b=["hold"])
    uploads = Uploads(store)
    uploads.it.add(files("a", "b"))
    await passes()
    uploads.it.abort_all()
    assert uploads.statuses() == {"a": "complete", "b": "cancelled"}
    assert store.options[1].signal.reason == "aborted"
    assert not [entry for entry in uploads.told if entry[0] == "error"]
    assert uploads.it.state is UploadState.COMPLETE
    uploads.it.reset()
    assert (dict(uploads.it.items), dict(uploads.it.results), uploads.it.state) == ({}, {}, UploadState.IDLE)
    assert uploads.told[-1] == ("state", "idle")
    await uploads.it.aclose()


async def test_swapping_the_provider_warns_only_while_uploading(caplog: pytest.LogCaptureFixture) -> None:
    """AC-151: and aborts then; what cannot upload is refused."""
    uploads = Uploads(Store(a=PermanentUploadError("x"), b=["hold"]))
    uploads.it.add(files("a"))
    await uploads.it.wait()
    uploads.it.set_provider(Store(b=["hold"]))
    assert "set_provider" not in caplog.text
    uploads.it.add(files("b"))
    with pytest.raises(TypeError, match="got the class Store"):
        uploads.it.set_provider(Store)
    with pytest.raises(TypeError, match="got int"):
        uploads.it.set_provider(3)
    assert uploads.statuses()["b"] == "uploading"
    uploads.it.set_provider(Store())
    assert "set_provider while uploading" in caplog.text
    assert uploads.statuses()["b"] == "cancelled"
    await uploads.it.aclose()


async def test_batches_settle_once_whatever_an_old_error_says() -> None:
    """AC-152, proof 22: three batches with an old error; a double add is one upload."""
    store = Store(a=PermanentUploadError("x"), b=["hold"])
    uploads = Uploads(store)
    uploads.it.add(files("a"))
    await uploads.it.wait()
    uploads.it.add(files("b"))
    uploads.it.add(files("b", "c"))
    await passes()
    store.held["b"].set_result(done("b"))
    await uploads.it.wait()
    uploads.it.add(files("c"))
    uploads.it.add(files("d"))
    await uploads.it.wait()
    ends = [entry for entry in uploads.told if entry[0] in ("all", "settled")]
    assert ends == [("settled", 1), ("all", 2), ("settled", 2), ("all", 1), ("settled", 1)]
    assert (store.calls.count("b"), store.calls.count("c")) == (1, 1)
    assert uploads.it.state is UploadState.ERROR
    uploads.it.add(files("a"))
    await uploads.it.wait()
    assert store.calls.count("a") == 2
    await uploads.it.aclose()


async def test_taking_gives_attachments_in_the_order_of_adding() -> None:
    """AC-153: short types in full; not while uploading; errors stay."""
    store = Store(a=["hold"], b=[None], c=PermanentUploadError("x"))
    uploads = Uploads(store)
    uploads.it.add([*files("a"), UploadFile("b.pdf", "pdf", 1, b"x", "b"), *files("c")])
    await passes()
    with pytest.raises(UsageError, match="while uploading"):
        uploads.it.take()
    store.held["a"].set_result(done("a"))
    await uploads.it.wait()
    assert uploads.it.take() == (
        Image("image/png", "https://x.org/a", filename="a.png"),
        File("application/pdf", "https://x.org/b", filename="b.pdf"),
    )
    assert uploads.statuses() == {"c": "error"}
    assert uploads.it.take() == ()
    await uploads.it.aclose()


async def test_taking_loses_nothing_where_one_cannot_be_taken() -> None:
    """AC-153: the complete ones are forgotten once all of them were given."""
    uploads = Uploads(Store(a=[None], b=[None]))
    uploads.it.add([*files("a"), UploadFile(3, "pdf", 1, b"x", "b")])  # type: ignore[arg-type]
    await uploads.it.wait()
    with pytest.raises(ValueError, match="filename"):
        uploads.it.take()
    assert uploads.statuses() == {"a": "complete", "b": "complete"}
    await uploads.it.aclose()


async def test_callbacks_cannot_break_uploads() -> None:
    """AC-143, AC-66: a stored result is final; each error is told."""
    told = []

    def boom(*_):
        raise RuntimeError("mine")

    names = [
        "on_attachment_update",
        "on_upload_complete",
        "on_all_complete",
        "on_all_settled",
        "on_state_change",
    ]
    store = Store()
    uploads = Uploads(
        store, **dict.fromkeys(names, boom), on_callback_error=lambda error, name: told.append(name)
    )
    uploads.it.add(files("a"))
    await uploads.it.wait()
    assert (store.calls, uploads.it.state) == (["a"], UploadState.COMPLETE)
    assert set(told) == set(names)
    await uploads.it.aclose()


async def test_closing_is_bounded_and_refuses_more() -> None:
    """AC-87: also with an upload that ignores its stop."""
    store = Store(a=["deaf"])
    uploads = Uploads(store, close_timeout=2)
    uploads.it.add(files("a"))
    await passes()
    closing = asyncio.ensure_future(uploads.it.aclose())
    await uploads.clock.advance(3)
    await closing
    assert uploads.statuses() == {"a": "cancelled"}
    with pytest.raises(AgentClosed):
        uploads.it.add(files("b"))
    store.held["a"].set_result(done("a"))
    await passes()
    await uploads.it.aclose()


async def test_closing_from_an_async_callback_does_not_wait_for_itself() -> None:
    """AC-87: the clock stands still, so nothing that is bounded by it is waited for."""
    closed = asyncio.Event()

    async def close(_results) -> None:
        await uploads.it.aclose()
        closed.set()

    uploads = Uploads(Store(), on_all_complete=close)
    uploads.it.add(files("a"))
    async with asyncio.timeout(10):
        await closed.wait()
    assert uploads.clock.monotonic() == 0


def test_bad_input_is_refused() -> None:
    """AC-163: the name and what is wrong; nothing is queued."""
    with pytest.raises(ConfigError, match="nonsense"):
        UploadController(Store(), nonsense=print)
    with pytest.raises(ConfigError, match="on_state_change"):
        UploadController(Store(), on_state_change=3)
    uploads = UploadController(Store())
    with pytest.raises(UsageError, match="running event loop"):
        uploads.add(files("a"))
    assert dict(uploads.items) == {}


async def test_files_come_from_disk_and_memory(tmp_path: Path) -> None:
    """§3.12: name, type and size; wrong things are refused before any is queued."""
    (tmp_path / "n.txt").write_text("hi")
    file = UploadFile.from_path(tmp_path / "n.txt", id="n")
    assert (file.name, file.mime_type, file.size, file.source) == (
        "n.txt",
        "text/plain",
        2,
        tmp_path / "n.txt",
    )
    assert UploadFile.from_bytes(b"abc", "x.png").mime_type == "image/png"
    async with UploadController(Store()) as uploads:
        with pytest.raises(TypeError, match=r"files\[1\]"):
            uploads.add([file, "x"])
        assert dict(uploads.items) == {}
    assert issubclass(PermanentUploadError, UploadError)


def test_uploads_live_on_one_event_loop() -> None:
    """AC-121 of uploads: whoever comes from another one is told so at once, and does not wait for what cannot come."""
    store = Store(a="hold")

    async def first() -> UploadController:
        uploads = UploadController(store)
        uploads.add(files("a"))
        await passes()

        async def elsewhere() -> None:
            with pytest.raises(
                UsageError, match=r"cannot upload on another event loop: use asyncio\.run_coroutine"
            ):
                uploads.add(files("b"))
            with pytest.raises(UsageError, match="cannot wait on another event loop"):
                await uploads.wait()
            for act in (lambda: uploads.cancel("a"), uploads.abort_all, uploads.reset):
                with pytest.raises(UsageError, match="from another thread"):
                    act()
            with pytest.raises(UsageError, match="from another thread"):
                await uploads.aclose()

        await asyncio.to_thread(asyncio.run, elsewhere())
        assert uploads.items["a"].status == "uploading"
        return uploads

    async def second(uploads: UploadController) -> None:
        for use in (lambda: uploads.add(files("b")), lambda: uploads.retry("a")):
            with pytest.raises(UsageError, match="has ended, so make an upload controller in each"):
                use()
        with pytest.raises(UsageError, match="has ended"):
            await uploads.wait()
        await uploads.aclose()
        assert uploads.items["a"].status == "cancelled"

    asyncio.run(second(asyncio.run(first())))
    assert store.calls == ["a"]
