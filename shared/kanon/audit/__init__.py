"""The audit: tests whether the mechanism and the running service answer with the claimed distribution."""
