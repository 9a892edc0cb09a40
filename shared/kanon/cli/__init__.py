"""The command line: for people with a checkout, not part of the layer."""
