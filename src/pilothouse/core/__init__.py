"""The rules, without I/O: pure functions and small state objects. Time, ids and randomness come in as arguments."""
