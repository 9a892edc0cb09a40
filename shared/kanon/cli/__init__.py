"""The command line; not part of the layer."""
