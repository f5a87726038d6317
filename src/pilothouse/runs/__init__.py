"""Durable runs: one writer a run, live followers, commands, ownership, recovery."""
