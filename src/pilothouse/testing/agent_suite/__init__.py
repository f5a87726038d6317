"""The `Agent` contract as tests; `pilothouse.testing.AgentConformance` is what to subclass."""
