"""The contract of a journal as tests: subclass in a test module, and say how yours is opened.

```python
class TestMine(DurableJournalConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.path = tmp_path / "mine.db"

    async def open_journal(self):
        return MyJournal(self.path)
```

No plug-in is needed: each test runs an event loop of its own and closes the journal that it opened.
"""

from __future__ import annotations

from .journal_suite.care import CareChecks
from .journal_suite.durable import DurableChecks
from .journal_suite.lists import ListChecks
from .journal_suite.ownership import OwnershipChecks
from .journal_suite.runs import RunChecks
from .sample_runs import SampleRun, claim_by


class JournalConformance(RunChecks, OwnershipChecks, ListChecks, CareChecks):
    """What every journal must do. `open_journal` returns an empty one at the first call of a test."""


class DurableJournalConformance(JournalConformance, DurableChecks):
    """What a journal must do that outlives its process: each `open_journal` of a test opens the same store."""


__all__ = ["DurableJournalConformance", "JournalConformance", "SampleRun", "claim_by"]
