"""Fixtures for tests that are processes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from served import Gate


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """The test's side of the held agent."""
    made = Gate(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """A headless Chromium. For one module: playwright holds an event loop while it lives, and other tests want theirs."""
    from playwright.sync_api import sync_playwright

    flags = [
        "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
    ]  # fmt: skip
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    assert chromium is not None, "the page's tests need a Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield browser
        browser.close()
