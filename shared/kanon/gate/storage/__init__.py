"""The gate's storage: what it is in the gate's own terms (``protocols``), in one directory and on AWS."""
