"""Anonymous credentials (experimental): a person has one pseudonym in each set, and no two of them can be linked."""
