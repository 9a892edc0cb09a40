"""kanon: serverless, differentially private measurement.

``gate`` answers whether about k clients share a value. Its ``mechanism`` decides, its ``storage`` keeps the
state, and the functions call its use cases ``joining``, ``evaluation`` and ``querying``.
"""

__version__ = "0.1.0"
