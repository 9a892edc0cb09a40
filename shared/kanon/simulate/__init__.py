"""The simulator: what a type would answer on a log of one's own, decided in process, without tables."""
