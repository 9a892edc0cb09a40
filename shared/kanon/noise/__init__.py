"""Noise for all capabilities: exact integer distributions, directed rounding, keyed words, privacy bounds.

Pure: no clock, no input or output, no randomness, no import from the rest of kanon.
"""
