"""The service on one machine: the gate's use cases over one directory."""
