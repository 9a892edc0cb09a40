"""The edge of an HTTP function: routing, validation, one form of errors. Nothing in it knows a set."""
