"""One module for each table, and one for objects. Only these know attribute names and object names."""
