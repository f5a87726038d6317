"""The page's own unit tests, as `npm test` in web/ runs them: how events become what is shown."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "web"


@pytest.mark.foreign
def test_the_units_of_the_page() -> None:
    """The transcript that the page folds from events, and what it sends of a long one."""
    ran = subprocess.run(
        ["npm", "test", "--silent"], cwd=WEB, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
