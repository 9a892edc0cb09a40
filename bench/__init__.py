"""One file for each claim of docs/evidence/performance.md. ``python -m bench`` measures them."""
