"""The journal contract, check by check, grouped as its page groups it; `testing.journals` puts them together."""
