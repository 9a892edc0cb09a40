"""The planner: noise distributions for a privacy target, and the behaviour of a type with them."""
