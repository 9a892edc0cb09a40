"""Hypothesis without deadlines: a busy machine is no reason to fail."""

from hypothesis import settings

settings.register_profile("kanon", deadline=None)
settings.load_profile("kanon")
