"""AboveThreshold with periodic restart, exact and pure: no clock, no input or output, no randomness.

Source: Epasto et al., *Differentially Private Algorithms for k-Anonymity Server*, January 2023 ("the paper").
Read ``above_threshold`` first: it is Algorithms 1 and 2. ``tape`` and ``kanon.noise.laws`` give its noise,
``members`` what it counts, ``steps`` its time, and ``parameters`` its constants.
"""
