"""What one request sends: the context, rewritten for this request only (LP-11, steps 3 to 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from ..core.pairing import ANY_ID, Pairing, Repair, with_note
from ..events import Noted
from ..messages import Message, Text
from .hooks import HookFailed, TransformInfo
from .work import Payload, Work


@final
class Payloads:
    """Makes the payloads of one run.

    Attributes:
        untouched: whether the last payload is the context as it is.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self.untouched = True

    def make(self, wire: object, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages of the next request; the context itself is never changed.

        Args:
            wire: the provider, whose `wire_rules` say how it writes call ids.
            messages: the context, or what `transformed` made of it.
        """
        work = self._work
        if work.notes:
            messages = [*messages, self._note_message()]
        rules = getattr(wire, "wire_rules", ANY_ID)
        pairing = work.trail.pairing
        if pairing is None or pairing.wire != rules:
            pairing = work.trail.pairing = Pairing(rules)
        repaired, repair = pairing.repair(messages)
        self.untouched = repair is None and repaired is work.context
        if repair is not None:
            return self._with_note(repaired, repair)
        return Payload(work.context) if self.untouched else repaired

    def heal(self) -> None:
        """Forgets what was found clean: the next payload is looked at from its beginning."""
        self._work.trail.pairing = None

    async def transformed(self) -> list[Message]:
        """What the hook makes of the context, or a copy of it.

        Raises:
            HookFailed: `transform_context` failed: it may be the filter that hides secrets.
            Stopped: the run was stopped meanwhile.
        """
        work = self._work
        info = TransformInfo(work.run_id, work.thread_id, work.turn, work.attempt + 1, work.model, work.scope)
        hook = work.plan.config.transform_context
        assert hook is not None
        await work.recorder.write()  # somebody else's code may take its time: what is known is durable before
        changed = await work.hooks.call("transform_context", hook, list(work.context), info, returns=(list,))
        if changed is None:
            return list(work.context)
        if not all(isinstance(message, Message) for message in changed):
            raise HookFailed("transform_context returned something that is no message")
        return list(changed)

    def _note_message(self) -> Message:
        work = self._work
        return Message(f"{work.run_id}-note-{work.turn}", "user", (Text("\n\n".join(work.notes)),))

    def _with_note(self, messages: Sequence[Message], repair: Repair) -> Sequence[Message]:
        """Tells the model of results that are gone, and the record of the repair, once a run (LP-40)."""
        work = self._work
        note = repair.note
        if note is None or work.pairing_noted:
            return messages
        work.pairing_noted = True
        work.recorder.note(Noted("loop/pairing", {"dropped": list(repair.dropped)}))
        return with_note(messages, note)
