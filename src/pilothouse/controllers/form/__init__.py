"""A form that a model fills, value by value, each with a verdict."""
