"""What the package of the loop offers by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pilothouse import loop


@pytest.mark.parametrize("name", loop.__all__)
def test_each_public_name_leads_to_its_object(name: str) -> None:
    assert getattr(loop, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        loop.nothing


def test_nothing_is_loaded_before_a_name_is_used() -> None:
    """performance.md: importing costs next to nothing; schemas come with the first tool, not with the loop."""
    code = (
        "import sys, pilothouse.loop as loop; before = set(sys.modules); loop.AgentLoop, loop.LoopConfig; "
        "assert 'pilothouse.loop.agent' not in before; "
        "assert not {'pydantic', 'httpx2', 'jiter'} & set(sys.modules), 'heavy'"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
