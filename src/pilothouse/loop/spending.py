"""Tokens and money of a run against its limits: reserved before a request, settled after it (LP-38)."""

from __future__ import annotations

from decimal import Decimal
from typing import Final, final

from msgspec import Struct

from ..core.prices import MILLION, cost_of
from ..messages import Model, Usage
from .config import Limits

MIN_OUTPUT: Final = 1_024
"""Tokens: an output budget is lowered to what is left, but not below this (or the whole budget, if that is less)."""


_NOTHING: Final = Decimal(0)


class Permit(Struct, frozen=True):
    """Whether a request may be sent: the limit that forbids it, or the output budget that it may have."""

    limit: str | None = None
    output: int | None = None


@final
class Spending:
    """What a run has used. An attempt whose provider told nothing counts as estimated.

    Attributes:
        bounded: whether there is any limit on it.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.bounded = (
            limits.input_tokens is not None
            or limits.output_tokens is not None
            or limits.total_tokens is not None
            or limits.cost is not None
        )
        self.input = 0
        self.output = 0
        self.cost = _NOTHING

    def settle(self, model: Model, usage: Usage | None, estimate: int, said: int) -> None:
        """Counts an attempt: its figures, or else the estimates of what was sent and of what came."""
        given = usage.input if usage is not None and usage.input is not None else estimate
        taken = usage.output if usage is not None and usage.output is not None else said
        self.input += given
        self.output += taken
        if usage is not None and usage.cost is not None:  # the provider's own, or by the prices then
            self.cost += Decimal(usage.cost)
        elif model.prices is not None:
            self.cost += cost_of(model.prices, given, taken, usage)

    def charge(self, usage: Usage) -> None:
        """Counts what was used elsewhere: by a sub-agent, or for making the context smaller."""
        self.input += usage.input or 0
        self.output += usage.output or 0
        if usage.cost is not None:
            self.cost += Decimal(usage.cost)

    def tokens_left(self) -> int | None:
        """Tokens that are left of `total_tokens`, None without that limit."""
        return _left(self._limits.total_tokens, self.input + self.output)

    def permit(self, model: Model, wanted: int | None, estimate: int) -> Permit:
        """Whether a request of that size may be sent, and with which output budget."""
        if not self.bounded:
            return Permit(output=wanted)
        limits = self._limits
        budget = wanted if wanted is not None else (model.max_output_tokens or MIN_OUTPUT)
        if limits.input_tokens is not None and self.input + estimate > limits.input_tokens:
            return Permit("input_tokens")
        least = min(budget, MIN_OUTPUT)
        for name, left in (
            ("output_tokens", _left(limits.output_tokens, self.output)),
            ("total_tokens", _left(limits.total_tokens, self.input + self.output + estimate)),
            ("cost", self._affordable(model, estimate)),
        ):
            if left is None:
                continue
            if left < least:
                return Permit(name)
            budget = min(budget, left)
        return Permit(output=budget)

    def _affordable(self, model: Model, estimate: int) -> int | None:
        """Output tokens that the rest of the money pays for."""
        limit, prices = self._limits.cost, model.prices
        if limit is None:
            return None
        assert prices is not None, "the plan has seen to it"
        left = Decimal(str(limit)) - self.cost - Decimal(prices.input) * estimate / MILLION
        each = Decimal(prices.output) / MILLION
        return MILLION * MILLION if each == 0 and left >= 0 else int(left / each) if each else -1


def _left(limit: int | None, used: int) -> int | None:
    return None if limit is None else limit - used
