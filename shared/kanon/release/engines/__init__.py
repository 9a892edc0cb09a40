"""Engines compute the bounded table: they run the SQL of ``sql``."""
