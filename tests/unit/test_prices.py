"""Money as decimal strings: by the model's prices, as a provider tells it, and summed (PV-8, LP-38)."""

from __future__ import annotations

from decimal import Decimal

import pytest

from pilothouse.core.canonical import encode
from pilothouse.core.prices import cost_of, cost_text, money_text
from pilothouse.messages import Price, Usage
from pilothouse.providers.frames import money

PRICES = Price("3", "15", cache_read="0.30", cache_write="3.75")


def test_cached_tokens_have_their_own_price() -> None:
    """Exact, also where a float would not be."""
    usage = Usage(input=1_000_000, cache_read=600_000, cache_write=100_000, output=1)
    assert cost_of(PRICES, 1_000_000, 1, usage) == Decimal("1.455015")
    assert cost_text(PRICES, usage) == "1.455015"
    assert cost_text(Price("0.1", "0.2"), Usage(input=1, output=1)) == "0.0000003"


@pytest.mark.parametrize("usage", [Usage(), Usage(input=5), Usage(output=5)], ids=repr)
def test_half_of_the_figures_give_no_cost(usage: Usage) -> None:
    """Unknown is not zero."""
    assert cost_text(PRICES, usage) is None


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        (0, "0"),
        (0.0, "0"),
        (1e-05, "0.00001"),
        (0.00014, "0.00014"),
        ("0.10", "0.1"),
        (12, "12"),
        (1.5, "1.5"),
    ],
)
def test_what_a_provider_tells_is_spelled_without_exponent(told: object, wanted: str) -> None:
    """Floats come in, decimal strings are kept."""
    assert money(told) == wanted


@pytest.mark.parametrize("told", [-1, True, "much", "NaN", float("inf"), float("nan"), 1e300, 5e-324, None, {}, [], 10**5000], ids=lambda told: str(type(told)))  # fmt: skip
def test_what_is_no_amount_is_none(told: object) -> None:
    """Nothing odd gets into a fact."""
    assert money(told) is None


def test_sums_are_exact_and_unknown_stays_unknown() -> None:
    """Of two responses; storable."""
    both = Usage(cost="0.1") + Usage(cost="0.2")
    assert both.cost == "0.3"
    assert (Usage(cost="0.1") + Usage()).cost == "0.1"
    assert (Usage() + Usage()).cost is None
    assert encode(both) == b'{"cost":"0.3"}'
    assert money_text(Decimal(100)) == "100"
