"""AboveThreshold with periodic restart, exact and pure: no clock, no input or output, no randomness.

Source: Epasto et al., *Differentially Private Algorithms for k-Anonymity Server*, January 2023 ("the paper").
Read ``above_threshold`` first: it is Algorithms 1 and 2. ``laws`` and ``tape`` are its noise, ``members`` is
what it counts, ``steps`` is its time, ``parameters`` are its constants.
"""
