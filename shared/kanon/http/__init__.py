"""The HTTP layer of a function: routing, validation, one error format. It knows nothing about sets."""
