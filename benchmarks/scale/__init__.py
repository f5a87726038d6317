"""Where one Postgres saturates: appends, wake-ups, followers on other nodes. `python -m benchmarks.scale` prints all of it."""
