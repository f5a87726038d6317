"""A grid whose rows a model chooses by writing a query that can only read."""
