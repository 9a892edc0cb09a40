"""The planner: noise for a privacy target, what an operator must know of it, and its pictures."""
