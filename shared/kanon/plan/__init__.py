"""The planner: noise distributions for a privacy target, how a type with them behaves, and pictures of it."""
