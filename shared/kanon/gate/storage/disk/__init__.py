"""The gate's storage in one directory: joins and answers in SQLite, states in files."""
