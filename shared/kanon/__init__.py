"""kanon: a serverless, differentially private k-anonymity service.

``mechanism`` decides, ``storage`` remembers, ``joining``, ``evaluation`` and ``querying`` are the three
use cases the functions call.
"""
