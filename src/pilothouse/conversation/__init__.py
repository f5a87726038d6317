"""A conversation and the life of each send."""
