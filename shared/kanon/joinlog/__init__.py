"""One reader of logs for every command: CSV, JSON or Parquet, plain or gzipped, a file or standard input.

``read_joins`` yields one join after the other. ``kanon.joinlog.batches`` reads the same rows as columns, twenty times
as fast; it needs pyarrow. A row that cannot be read is an error, or is left out alone and counted.
"""

from kanon.joinlog.rows import STANDARD_INPUT, Columns, LogError, LoggedJoin, LogReading, read_joins

__all__ = ["STANDARD_INPUT", "Columns", "LogError", "LogReading", "LoggedJoin", "read_joins"]
