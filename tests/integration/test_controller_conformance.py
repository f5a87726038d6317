"""The conformance suite of AI controllers, on what the tests use, and on what ships (TC §10)."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from controlkit import Number, Plain, Told
from pilothouse import StagedController
from pilothouse.controllers import FormController, SQLGridController
from pilothouse.testing import AIControllerConformance
from pilothouse.testing.scripted import call


@dataclass
class Place:
    city: str
    berths: int = 1


class TestANumber(AIControllerConformance):
    scripts = ([call("n__add", {"by": 2})], "done")

    def make(self):
        return Number("n")


class TestHooksAlone(AIControllerConformance):
    scripts = ([call("p__touch")], "done")

    def make(self):
        return Plain(Told(), "p")


class Leaking(Plain):
    """Takes a lock, and does not release it when a send fails."""

    locked = False

    def on_request(self, event):
        if self.locked:
            raise RuntimeError("still locked")
        self.locked = True

    def on_response(self, event):
        if event.error is None and event.ending == "completed":
            self.locked = False


class Forgetful(StagedController[int]):
    namespace = "f"

    def get_tools(self):
        return [self.put]

    def put(self, value: int) -> str:
        """Puts."""
        self.stage(value)
        return "ok"

    def decode(self, data, version):
        return data + 1


def test_the_suite_finds_what_is_wrong() -> None:
    """A suite that cannot fail proves nothing."""

    class OfLeaking(AIControllerConformance):
        def make(self):
            return Leaking(Told(), "p")

    class OfForgetful(AIControllerConformance):
        scripts = ([call("f__put", {"value": 2})], "done")

        def make(self):
            return Forgetful()

    with pytest.raises(RuntimeError, match="still locked"):
        OfLeaking().test_what_it_takes_is_released_however_a_send_ends()
    with pytest.raises(AssertionError, match="decode must give"):
        OfForgetful().test_its_state_is_committed_once_and_comes_back()
    with pytest.raises(TypeError, match="must say how its controller is made"):
        AIControllerConformance().test_its_shape_is_stable()


class TestTheForm(AIControllerConformance):
    scripts = ([call("form__fill", {"values": {"city": "Oban"}})], "done")

    def make(self):
        return FormController(Place)


class TestTheGrid(AIControllerConformance):
    scripts = ([call("grid__query", {"query": "SELECT name FROM boats"})], "done")

    def make(self):
        folder = tempfile.mkdtemp()
        path = Path(folder) / "boats.db"
        with closing(sqlite3.connect(path)) as database:
            database.executescript(
                "CREATE TABLE boats (name TEXT); INSERT INTO boats VALUES ('Ada'), ('Grace');"
            )
        return SQLGridController(path)
