"""Where the tests find the checkout and, where it is present, the public data beside it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
"""Papers, vectors and a real join log. They are no part of the project: a test that needs them is skipped without."""
REAL_LOG = SHARED / "data" / "joins-ansible.csv.gz"
