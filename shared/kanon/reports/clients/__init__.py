"""Clients of reports: they turn events on a device into reports and keep the bound of every unit.

All functions are pure: time, randomness and state are arguments. Times are whole milliseconds
since 1970. The *Privacy Sandbox paper* is *On the Differential Privacy and Interactivity of Privacy Sandbox Reports*
(arXiv 2412.16916).
"""
