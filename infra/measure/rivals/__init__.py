"""``make rivals``: users per set of a log, released by kanon and by two other libraries, in one run.

The job is the same for all: count the users of each set, epsilon 1, delta 1e-6, at most 10 sets per user. Each library
runs in its own process (``turns.py``), which reads the log, has one warm-up turn, and prints the processor time and the
wall time of each turn and the number of released sets. All have two threads at most.
"""
