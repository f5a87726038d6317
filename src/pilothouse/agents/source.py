"""What a local agent's runs have told, as its surface draws it: the conversation, its state, the sub-agents of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import final

from ..core.agui.reduce import Child
from ..core.display import Display
from ..messages import JSON
from ..projection import EMPTY
from .children import Children


@final
class LocalSource:
    """A `Source` over one conversation.

    Attributes:
        subagents: of the run that is told now.
        state: the shared state, and over it the patch of a submission that is no fact yet (AG-72).
    """

    def __init__(self, now: Callable[[], float], shared: Mapping[str, JSON]) -> None:
        self.display = Display(now)
        self.subagents = Children(now)
        self._shared = shared
        self._patch: Mapping[str, JSON] = EMPTY
        self.state: Mapping[str, JSON] = EMPTY
        self._draw_state()

    @property
    def children(self) -> Mapping[str, Child]:
        """Sub-agents of the run."""
        return self.subagents.found

    def begin(self, generation: str, run_id: str, *, continues: bool) -> None:
        """Another attempt is told from here on."""
        self.subagents.clear()
        self.display.begin(generation, run_id, continues=continues)

    def clear(self) -> None:
        """Another thread is to be told."""
        self.display.clear()
        self.subagents.clear()

    def share(self, value: Mapping[str, JSON]) -> None:
        """The shared state is another one."""
        self._shared = value
        self._draw_state()

    def patch(self, patch: Mapping[str, JSON] = EMPTY) -> None:
        """Lays a patch over it; without one, what lay there is gone: it was taken back, or has become a fact."""
        self._patch = patch
        self._draw_state()

    def _draw_state(self) -> None:
        self.state = MappingProxyType({**self._shared, **self._patch})


__all__ = ["LocalSource"]
