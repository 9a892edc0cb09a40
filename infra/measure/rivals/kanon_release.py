"""The job with ``kanon release``: ``python kanon_release.py LOG TURNS``. Each turn has its own ledger."""

import json
import sys
import time
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

from kanon.release import Ledger, Spec, release

SPEC = Spec(groups=("set",), epsilon=Fraction(1), delta=Fraction(1, 10**6), groups_per_user=10)


def main() -> None:
    """Release TURNS times after one warm-up turn."""
    for _ in range(int(sys.argv[2]) + 1):
        with TemporaryDirectory() as folder:
            processor, wall = time.process_time(), time.perf_counter()
            made = release(Path(sys.argv[1]), SPEC, Ledger.at(Path(folder) / "ledger"), dataset="log")
            sets = len(made.released.rows)
            print(json.dumps([time.process_time() - processor, time.perf_counter() - wall, sets]))


if __name__ == "__main__":
    main()
