"""One module for each table, and one for objects: only these know attribute names and object names."""
