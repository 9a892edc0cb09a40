"""Operator tasks on a running stack: check it, skip steps, repair it."""
