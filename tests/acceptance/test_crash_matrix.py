"""A sample of the crash matrix; whole: `python tests/crash_matrix.py --store sqlite --cuts 500` (run-controller §3.15)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from postgres_server import shared_dsn

MATRIX = Path(__file__).parent.parent / "crash_matrix.py"


@pytest.mark.parametrize(("store", "cuts"), [("sqlite", 24), ("postgres", 10)])
def test_no_cut_loses_a_fact_or_repeats_an_effect(store: str, cuts: int) -> None:
    """Promises 4 to 7, RC-32, RC-50, EF-1, EF-2, issue 3: killed before and after journal writes."""
    environment = {**os.environ, "PILOTHOUSE_TEST_POSTGRES": shared_dsn() if store == "postgres" else ""}
    command = [
        sys.executable,
        str(MATRIX),
        "--store",
        store,
        "--cuts",
        str(cuts),
        "--per-run",
        str(cuts // 2),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"(\d+) cuts", done.stdout)
    assert counted is not None
    assert int(counted[1]) >= cuts
