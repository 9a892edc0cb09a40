"""Noise that every capability shares: exact integer distributions, certain rounding, keyed words, bounds.

Pure: no clock, no input or output, no randomness, nothing of another package.
"""
