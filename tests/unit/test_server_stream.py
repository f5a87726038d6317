"""The pump: kept alive, cut instead of closed, dead peers found (SV-40 … SV-62), on a clock that the test moves."""

from __future__ import annotations

import asyncio
from typing import Self

import pytest

from asgikit import Connection, ask, run_input, served
from pilothouse.errors import JournalUnavailable
from pilothouse.journal.memory import MemoryJournal
from pilothouse.server.settings import ServerLimits, StreamOptions
from pilothouse.server.stream import StreamCut
from pilothouse.testing.clock import StepClock
from pilothouse.testing.scripted import Hold, ScriptedProvider

POST = ("POST", "/agui/default")


class Still:
    """A server whose clock stands still, with a run that waits in mid-answer."""

    def __init__(self, **options) -> None:
        self.clock = StepClock()
        self.hold = Hold()
        self.app = served(ScriptedProvider(["one ", self.hold, "two"]), clock=self.clock, **options)

    async def __aenter__(self) -> Self:
        await self.app.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        closing = asyncio.ensure_future(self.app.drain(0.0))
        while not closing.done():
            await self.clock.advance(1.0)
        await closing

    def post(self, run: str = "r1", thread: str = "t1") -> Connection:
        return Connection(self.app, *POST, json_body=run_input(thread, run, "go"))

    def join(self) -> Connection:
        return Connection(self.app, "GET", "/agui?runId=r1&offset=-1")


STREAMS = [
    ("POST", "/agui/default", run_input("t2", "r2", "go"), {}),
    ("GET", "/agui/default?runId=r1&offset=-1", None, {}),
    ("GET", "/v1/runs/r1/events", None, {"accept": "text/event-stream"}),
]


@pytest.mark.parametrize(("method", "path", "body", "headers"), STREAMS)
async def test_every_stream_route_has_the_headers_and_the_framing(method, path, body, headers) -> None:
    """SV-40, SV-41, fixture 183: nothing on the way holds it back; LF only; padded first bytes; one line of JSON."""
    async with Still() as still, still.post() as first:
        await first.seen("one ")
        async with Connection(still.app, method, path, json_body=body, headers=headers) as stream:
            await stream.until(lambda: stream.frames)
            assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert stream.headers["cache-control"] == "no-cache, no-transform"
            assert stream.headers["x-accel-buffering"] == "no"
            assert stream.headers["pilothouse-run-id"] in ("r1", "r2")
            assert {"content-length", "content-encoding", "connection"}.isdisjoint(stream.headers)
            assert b"\r" not in stream.body
            assert b"event:" not in stream.body
            assert len(stream.body.partition(b"\n\n")[2].partition(b"\n\n")[0]) >= 2048
            lines = [line for line in stream.body.split(b"\n") if line and line[:1] != b":"]
            assert all(line.startswith((b"retry: ", b"id: ", b"data: {")) for line in lines)


async def test_silence_is_filled_with_padded_comments() -> None:
    """SV-42, fixture 183: every 15 s while nothing else goes out, during long tools and before the first token too."""
    async with Still() as still, still.post() as stream:
        await stream.seen("one ")
        before = len(stream.body)
        await still.clock.advance(14.9)
        assert len(stream.body) == before
        await still.clock.advance(0.2)
        beat = stream.body[before:]
        assert beat.startswith(b": ")
        assert beat.endswith(b"\n\n")
        assert len(beat) >= 1024
        await still.clock.advance(30.0)
        assert stream.body[before:].count(b": ") == 3
        still.hold.release()
        await stream.ended()
        assert stream.closed
        assert stream.text == "one two"


async def test_what_is_sent_puts_the_comment_off() -> None:
    """SV-42: only silence is filled."""
    async with Still() as still, still.post() as stream:
        await stream.seen("one ")
        await still.clock.advance(10.0)
        async with still.join() as other:
            await other.seen("one ")
            before = len(other.body)
            await still.clock.advance(10.0)
            assert len(other.body) == before


async def test_a_peer_that_accepts_nothing_is_cut() -> None:
    """SV-51: no note can reach it; the run and the other reader go on."""
    async with Still() as still, still.post() as dead:
        await dead.seen("one ")
        async with still.join() as other:
            await other.seen("one ")
            dead.stall()
            still.hold.release()
            await other.ended()
            assert other.text == "one two"
        await still.clock.advance(46.0)
        await dead.ended()
        assert isinstance(dead.error, StreamCut)
        assert dead.error.reason == "write_timeout"
        assert not dead.closed
        assert still.app.registry.cuts["write_timeout"] == 1


async def test_a_slow_peer_gets_everything_merged() -> None:
    """SV-43, SV-50: nothing is dropped, neighbours are one frame, the run never waits."""
    provider = ScriptedProvider([str(n % 10) for n in range(2000)])
    clock = StepClock()
    app = served(provider, clock=clock)
    await app.start()
    async with Connection(app, *POST, json_body=run_input("t1", "r1", "go")) as slow:
        await slow.until(lambda: "RUN_STARTED" in slow.types)
        slow.stall()
        while (await ask(app, "GET", "/v1/runs/r1")).json()["status"] != "completed":
            await clock.advance(0.1)
        slow.accept()
        await slow.ended()
        assert slow.text == "".join(str(n % 10) for n in range(2000))
        assert slow.types.count("TEXT_MESSAGE_CONTENT") < 50
    closing = asyncio.ensure_future(app.drain(0.0))
    while not closing.done():
        await clock.advance(1.0)


async def test_our_own_time_limit_is_a_cut_and_the_rest_is_resumed() -> None:
    """SV-56, SV-57, fixture 181: never a terminal event, never a clean close; the id goes on from there."""
    async with Still(streams=StreamOptions(max_duration=20.0)) as still:
        async with still.post() as stream:
            await stream.seen("one ")
            last = [frame.id for frame in stream.frames if frame.id][-1]
            await still.clock.advance(20.0)
            await stream.ended()
            assert isinstance(stream.error, StreamCut)
            assert not stream.closed
            assert stream.events[-1]["name"] == "pilothouse.cut"
            assert not {"RUN_FINISHED", "RUN_ERROR"} & set(stream.types)
        still.hold.release()
        rest = await ask(still.app, *POST, run_input("t1", "r1", "go"), headers={"last-event-id": last})
        assert rest.text == "two"
        assert rest.types[-1] == "RUN_FINISHED"


async def test_behind_middleware_that_closes_cleanly_a_cut_is_an_error_terminal() -> None:
    """SV-58: `cut="error"`."""
    async with Still(streams=StreamOptions(max_duration=20.0, cut="error")) as still, still.post() as stream:
        await stream.seen("one ")
        await still.clock.advance(20.0)
        await stream.ended()
        assert stream.error is None
        assert stream.closed
        assert stream.events[-1]["type"] == "RUN_ERROR"
        assert stream.events[-1]["code"] == "stream_cut"


async def test_a_journal_that_fails_under_a_stream_cuts_it() -> None:
    """SV-56: a fault of the server is no end of the run."""

    class Failing(MemoryJournal):
        away = False

        async def read(self, run_id, *, after=0, limit=500, kinds=None):
            if self.away:
                raise JournalUnavailable("gone")
            return await super().read(run_id, after=after, limit=limit, kinds=kinds)

    journal = Failing()
    async with Still(journal=journal) as still, still.post() as first:
        await first.seen("one ")
        journal.away = True
        async with Connection(
            still.app, "GET", "/v1/runs/r1/events", headers={"accept": "text/event-stream"}
        ) as late:
            await late.ended()
            assert isinstance(late.error, StreamCut)
            assert late.error.reason == "journal_unavailable"
        journal.away = False


async def test_a_fault_of_the_projection_ends_its_stream_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """SV-59: deterministic, so no cut: the error terminal `internal`; the run is untouched."""
    from pilothouse.server import agui as face

    async def broken(self, wanted):
        raise RuntimeError("our bug")

    async with Still() as still, still.post() as first:
        await first.seen("one ")
        monkeypatch.setattr(face.Following, "_filled", broken)
        bad = await ask(still.app, "GET", "/agui?runId=r1&offset=-1")
        assert bad.closed
        assert bad.events[-1] == {
            "type": "RUN_ERROR", "message": "the stream of this run cannot be shown", "code": "internal",
        }  # fmt: skip
        monkeypatch.undo()
        still.hold.release()
        await first.ended()
        assert first.types[-1] == "RUN_FINISHED"


class CountedReads(MemoryJournal):
    """A journal that counts how often facts are read."""

    reads = 0

    async def read(self, *args, **kwargs):
        """Counted."""
        self.reads += 1
        return await super().read(*args, **kwargs)


async def test_many_readers_see_the_same_and_share_what_is_written() -> None:
    """SV-52, RC-76: 64 readers, one encoding of each flowing frame; the conversation at the end is read once for all."""
    hold = Hold()
    pieces = [f"{n} " for n in range(50)]
    script: list = [pieces[0], hold]
    for piece in pieces[1:]:
        script.append(piece)
    journal = CountedReads()
    app = served(ScriptedProvider(script), journal=journal)
    async with app.lifespan(), Connection(app, *POST, json_body=run_input("t1", "r1", "go")) as first:
        await first.seen("0 ")
        readers = [Connection(app, "GET", "/agui?runId=r1&offset=-1") for _ in range(63)]
        for reader in readers:
            await reader.__aenter__()
        await asyncio.gather(*[reader.seen("0 ") for reader in readers])
        assert app.registry.followers("r1") == 64
        before = journal.reads
        hold.release()
        await asyncio.gather(first.ended(), *[reader.ended() for reader in readers])
        assert journal.reads - before < 16
        assert {reader.text for reader in [first, *readers]} == {"".join(pieces)}
        tails = {reader.body.partition(b"TEXT_MESSAGE_START")[2] for reader in readers}
        assert len(tails) == 1
        for reader in readers:
            await reader.__aexit__(None, None, None)
    assert len(app.registry) == 0
    assert app.registry.followers("r1") == 0


async def test_runs_and_reconnects_leave_nothing_behind() -> None:
    """SV-52, fixture 165: after 200 runs with two readers each no task, no stream, no conversation is in memory."""
    app = served(ScriptedProvider("ok", repeat=True))
    async with app.lifespan():
        tasks = len(asyncio.all_tasks())
        for number in range(200):
            body = run_input(f"t{number}", f"r{number}", "go")
            await asyncio.gather(ask(app, *POST, body), ask(app, *POST, body))
        await asyncio.sleep(0)
        assert len(app.registry) == 0
        assert not app.registry._reader_caches
        assert not app._served.by_name["default"]._conversations
        assert len(asyncio.all_tasks()) <= tasks + 1  # the run controller's one housekeeping task


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        (ServerLimits(streams=2), (503, "overloaded")),
        (ServerLimits(streams_per_tenant=2), (429, "too_many_streams")),
    ],
    ids=["server", "tenant"],
)
async def test_open_streams_are_counted_and_a_closed_one_gives_its_place_back(
    limits: ServerLimits, refusal: tuple[int, str]
) -> None:
    """§2 limits: also of different runs; who leaves makes room."""
    held = [["a", Hold()] for _ in range(4)]
    app = served(ScriptedProvider(*held), limits=limits)
    async with app.lifespan():
        tabs = [Connection(app, *POST, json_body=run_input(f"t{n}", f"r{n}", "go")) for n in range(2)]
        async with tabs[0] as first, tabs[1] as second:
            await first.seen("a")
            await second.seen("a")
            for _ in range(2):
                refused = await ask(app, *POST, run_input("t3", "r3", "go"))
                assert (refused.status, refused.json()["code"]) == refusal
                assert "retry-after" in refused.headers
            first.leave()
            await first.ended()
            async with Connection(app, "GET", "/agui?runId=r0") as again:
                await again.seen("a")
                assert (await ask(app, "GET", "/agui?runId=r1")).status == refusal[0]


async def test_two_who_join_late_are_shown_the_same_conversation() -> None:
    """SV-48: made once for both, and given to both."""
    hold = Hold()
    app = served(ScriptedProvider("before", ["now ", hold, "done"]))
    async with app.lifespan():
        await ask(app, *POST, run_input("t1", "r1", "one"))
        async with Connection(app, *POST, json_body=run_input("t1", "r2", "two")) as first:
            await first.seen("now ")
            async with (
                Connection(app, "GET", "/agui?runId=r2") as second,
                Connection(app, "GET", "/agui?runId=r2") as third,
            ):
                await second.seen("now ")
                await third.seen("now ")
                hold.release()
                for tab in (first, second, third):
                    await tab.ended()
                shown = [
                    [event["messages"] for event in tab.events if event["type"] == "MESSAGES_SNAPSHOT"]
                    for tab in (second, third)
                ]
                assert shown[0] == shown[1]
                assert "before" in [message.get("content") for message in shown[0][0]]
                assert (second.text, third.text) == ("now done", "now done")
