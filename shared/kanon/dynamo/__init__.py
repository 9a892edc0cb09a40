"""Shared code of the table modules: batches, conditions, limits, capacity units."""
