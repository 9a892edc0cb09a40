"""Measurements: ``bench`` gives ratios to the bare libraries, ``load`` puts the local stack under load."""
