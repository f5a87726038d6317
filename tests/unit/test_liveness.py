"""Proof that an owner's process is dead (JR-18, RC-49)."""

from __future__ import annotations

import os
import subprocess
import sys

from msgspec.structs import replace

from pilothouse.journal.liveness import LeaseClock, _start_of, provably_dead, this_process
from pilothouse.records import Owner


def test_this_process_lives() -> None:
    owner = this_process("me")
    assert owner.id == "me"
    assert not provably_dead(owner)


def test_a_killed_process_is_dead_before_and_after_its_parent_looks() -> None:
    """JR-18: a zombie writes nothing any more."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        alive = Owner("child", this_process("me").machine, child.pid, _start_of(child.pid) or "")
        assert not provably_dead(alive)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert provably_dead(alive)
        child.wait(10)
        assert provably_dead(alive)


def test_another_process_under_the_same_number_proves_it_too() -> None:
    """JR-18: numbers are used again, start times are not."""
    assert provably_dead(replace(this_process("me"), started="1"))


def test_nothing_is_proved_about_who_says_nothing_of_itself_or_lives_elsewhere() -> None:
    """RC-49: then only the lease counts."""
    assert not provably_dead(Owner("stranger"))
    assert not provably_dead(Owner("stranger", "another machine", 1, "1"))
    assert not provably_dead(replace(this_process("me"), started=""))


def test_lease_time_goes_on_from_what_was_told() -> None:
    clock = LeaseClock()
    clock.tell(5_000)
    assert 5_000 <= clock.now_ms() < 6_000
