"""The simulator: computes the answers of a type on the operator's log, in process, without tables."""
