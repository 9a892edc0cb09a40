"""One streaming reader of join logs: CSV, JSON lines or Parquet, plain or gzipped, a file or standard input.

``read_joins`` yields one join after the other. ``kanon.joinlog.batches`` yields the same joins as columns, ten times as
fast; it needs pyarrow.
"""

from kanon.joinlog.rows import STANDARD_INPUT, Columns, Join, LogError, read_joins

__all__ = ["STANDARD_INPUT", "Columns", "Join", "LogError", "read_joins"]
