"""Who owns a run, and whether that owner still lives.

A lease says so by time. On the same machine a process can be *proved* dead: no such process, or one that started at
another time under the same number. A proof needs the same kernel boot and process namespace; where that is not
certain, only the lease counts. Correctness never rests on either: the fence in the store does that (RC-49).
"""

from __future__ import annotations

import os
from functools import cache
from typing import Final, final

from ..clock import SystemClock
from ..records import Owner

_PROC: Final = os.path.exists("/proc/self/stat")  # noqa: PTH110 - pathlib is five milliseconds of a first answer
"""Linux: processes are files."""


def this_process(owner_id: str) -> Owner:
    """An owner that other processes of this machine can tell to be alive or dead."""
    pid = os.getpid()
    return Owner(owner_id, _machine(), pid, _own_start(pid))


def provably_dead(owner: Owner) -> bool:
    """Whether the owner's process is certainly gone; False also where nobody can know."""
    if not owner.machine or not owner.started or owner.machine != _machine():
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it exists, but is somebody else's
        return False
    started = _start_of(owner.pid)
    return started is not None and started != owner.started


@final
class LeaseClock:
    """The time by which a store judges leases: the clock of whoever claimed last, carried on by the system's.

    So a store needs no clock of its own, and a test that moves a `StepClock` moves its leases too.
    """

    __slots__ = ("_clock", "_skew_ms")

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._skew_ms = 0

    def tell(self, now_ms: int) -> None:
        """A claimer or renewer says what time it is."""
        self._skew_ms = now_ms - self._clock.time_ms()

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        return self._clock.time_ms() + self._skew_ms


@cache
def _own_start(pid: int) -> str:
    return _start_of(pid) or ""


@cache
def _machine() -> str:
    """Names the boot and the process namespace in which a process number means something; empty if unknown."""
    if _PROC:
        try:
            boot = _read("/proc/sys/kernel/random/boot_id").decode("ascii").strip()
            return f"{boot}/{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - as above
        except OSError:
            return ""
    if os.name != "posix":
        return ""
    import uuid

    return f"{uuid.getnode():x}"


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - as above
        return file.read()


def _start_of(pid: int) -> str | None:
    """When a process began, in the system's own words; empty for one that is dead, None where it cannot be known."""
    if not _PROC:
        return _start_by_ps(pid)
    try:
        stat = _read(f"/proc/{pid}/stat")
    except FileNotFoundError:
        return None  # hidden (hidepid), or gone since it was asked for: the next look tells
    except ProcessLookupError:
        return ""
    except OSError:
        return None
    # proc(5): the name in parentheses may hold anything; after it come state (field 3) … starttime (field 22).
    fields = stat[stat.rindex(b")") + 2 :].split()
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def _start_by_ps(pid: int) -> str | None:
    if os.name != "posix":
        return None
    import subprocess

    try:
        shown = subprocess.run(  # noqa: S603 - a fixed program with a number
            ["/bin/ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, check=False, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return shown.stdout.decode("ascii", "replace").strip() or None


__all__ = ["LeaseClock", "provably_dead", "this_process"]
