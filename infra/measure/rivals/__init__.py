"""``make rivals``: users per set of a log, released by kanon and by two other libraries, in one run.

The job is the same for all: count the users of each set, epsilon 1, delta 1e-6, at most 10 sets a user. Each library
runs in a process of its own that reads the log, is warmed once, and prints the processor time and the wall time of each
turn and the number of released sets. All have two threads at most.
"""
