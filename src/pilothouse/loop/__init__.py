"""The agent loop: the runtime that Pilothouse ships, driven by facts alone."""
