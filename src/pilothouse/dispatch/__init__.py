"""Engines that give runs to workers: DBOS on the journal's own Postgres, and Temporal. Each is an extra of its own."""
