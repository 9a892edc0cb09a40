"""Engines compute the bounded table; each runs, or prints, the text of ``sql``."""
