"""A chart whose data a model chooses by a query, and whose look by a Vega-Lite spec without data."""
