"""The job with ``kanon release``."""

from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

from kanon.release import Ledger, Spec
from kanon.release import release as release_with

SPEC = Spec(groups=("set",), epsilon=Fraction(1), delta=Fraction(1, 10**6), groups_per_user=10)


def release(log: Path) -> int:
    """Release with a ledger of its own; the number of released sets."""
    with TemporaryDirectory() as folder:
        return len(release_with(log, SPEC, Ledger.at(Path(folder) / "ledger"), dataset="log").released.rows)
