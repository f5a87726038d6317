"""The bridge for code that is not async: what leaves through it, and what goes on after it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading

import pytest

from pilothouse.conversation.controller import AgentController
from pilothouse.conversation.sync import run_sync


async def answer(messages):
    yield "Hel"
    yield "lo"


async def five() -> int:
    return 5


def test_an_exit_of_the_work_reaches_its_caller_and_nobody_else() -> None:
    """AC-66: `sys.exit()` is not swallowed, nobody waits for ever because of it, and the next call works."""

    async def leave() -> None:
        await asyncio.sleep(0)
        sys.exit(3)

    with pytest.raises(SystemExit):
        run_sync(leave())
    assert run_sync(five) == 5


def test_an_exit_in_a_callback_reaches_who_waits_for_the_answer() -> None:
    """AC-66: a callback that exits ends the call that waits for the send, as `asyncio.run` would."""

    def leave(*_) -> None:
        raise SystemExit(4)

    agent = AgentController(answer, on_response_chunk=leave, close_timeout=0.01)

    async def ask():
        return await (await agent.send("Hello")).wait()

    with pytest.raises(SystemExit):
        run_sync(ask)
    run_sync(agent.aclose)
    assert run_sync(five) == 5


def test_ctrl_c_is_raised_once_the_work_has_ended() -> None:
    """The work's own `finally` has run when `KeyboardInterrupt` comes out."""
    seen: list[str] = []
    caller = threading.main_thread().ident

    def press() -> None:
        while sys._current_frames()[caller].f_code.co_name != "wait":  # it may be on its way there
            pass
        os.kill(os.getpid(), signal.SIGINT)

    async def work() -> None:
        try:
            threading.Thread(target=press).start()
            await asyncio.Event().wait()
        finally:
            for _ in range(1000):
                await asyncio.sleep(0)
            seen.append("ended")

    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a job in the background has it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            run_sync(work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["ended"]


def _in_a_child(told) -> None:
    told.send(run_sync(five))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_a_loop_of_its_own() -> None:
    """Servers fork their workers after the first use: the parent's thread does not come along."""
    assert run_sync(five) == 5
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    child = fork.Process(target=_in_a_child, args=(theirs,))
    child.start()
    try:
        assert ours.poll(30)
        assert ours.recv() == 5
    finally:
        child.kill()
        child.join()
