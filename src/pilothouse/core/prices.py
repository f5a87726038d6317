"""What tokens cost: exact decimals, no floats."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Final

from ..messages import Price, Usage

MILLION: Final = 1_000_000


def cost_of(prices: Price, given: int, taken: int, usage: Usage | None = None) -> Decimal:
    """Money for so many tokens; cached ones at their own price where there is one."""
    cached = (usage.cache_read or 0) if usage is not None else 0
    written = (usage.cache_write or 0) if usage is not None else 0
    plain = max(0, given - cached - written)
    read_price = prices.input if prices.cache_read is None else prices.cache_read
    write_price = prices.input if prices.cache_write is None else prices.cache_write
    money = (
        Decimal(prices.input) * plain
        + Decimal(read_price) * cached
        + Decimal(write_price) * written
        + Decimal(prices.output) * taken
    )
    return money / MILLION


def cost_text(prices: Price, usage: Usage) -> str | None:
    """What a response cost as a decimal string; None while its input or output is not known."""
    if usage.input is None or usage.output is None:
        return None
    return money_text(cost_of(prices, usage.input, usage.output, usage))


def is_money(text: object) -> bool:
    """Whether that is an amount as a decimal string."""
    try:
        return isinstance(text, str) and Decimal(text).is_finite()
    except InvalidOperation:
        return False


def money_text(money: Decimal) -> str:
    """Digits without an exponent and without zeros at the end."""
    text = f"{money:f}"
    return text.rstrip("0").rstrip(".") or "0" if "." in text else text


__all__ = ["MILLION", "cost_of", "cost_text", "is_money", "money_text"]
