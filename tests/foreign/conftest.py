"""One served process for a module of foreign clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodekit import FOREIGN
from served import Gate, Served


class Pilot(Served):
    """A served process and the gate of its agent."""

    gate: Gate


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pilot]:
    """`pilothouse serve` over the scripted agent."""
    folder: Path = tmp_path_factory.mktemp("served")
    gate = Gate(folder)
    pilot = Pilot(folder, str(FOREIGN / "agents.py"), env=gate.env)
    pilot.gate = gate
    with pilot:
        yield pilot
    gate.close()


@pytest.fixture
def thread(request: pytest.FixtureRequest) -> str:
    """A thread of its own for each test."""
    return re.sub(r"[^\w-]+", "-", request.node.name)
