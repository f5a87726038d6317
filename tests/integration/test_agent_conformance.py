"""Every agent of ours under the public conformance suite of the contract (agent-contract §5)."""

from __future__ import annotations

import pytest

from agentkit import EndpointDriver, FakeDriver, LocalDriver, MinimalDriver, ServerDriver
from pilothouse.journal.sqlite import SQLiteJournal
from pilothouse.testing import AgentConformance


class TestLocalAgent(AgentConformance):
    """`LocalAgent` over a conversation in memory."""

    def driver(self) -> LocalDriver:
        return LocalDriver()


class TestLocalAgentOnDisk(AgentConformance):
    """The same over a real file: a registration takes a while."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path) -> None:
        self.path = tmp_path / "agents.db"

    def driver(self) -> LocalDriver:
        return LocalDriver(SQLiteJournal(self.path))


class TestAGUIAgentAgainstAnEndpoint(AgentConformance):
    """`AGUIAgent` over real HTTP against a scripted endpoint."""

    def driver(self) -> EndpointDriver:
        return EndpointDriver()


class TestAGUIAgentAgainstOurServer(AgentConformance):
    """`AGUIAgent` over real HTTP against our server."""

    def driver(self) -> ServerDriver:
        return ServerDriver()


class TestFakeAgent(AgentConformance):
    """The double without a network."""

    def driver(self) -> FakeDriver:
        return FakeDriver()


class TestABareAgent(AgentConformance):
    """A hand-written agent that has no optional member."""

    def driver(self) -> MinimalDriver:
        return MinimalDriver()
