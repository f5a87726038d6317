"""AG-UI: event models, verifier, projector and the reading of what a client sends. Pure; no I/O."""
