"""The AI SDK's UI message stream, without I/O: AG-UI events to its parts, and its messages to ours."""
