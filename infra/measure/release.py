"""``python -m infra.measure.release LOG``: a whole release against DuckDB's own ``count(distinct)``, in one run.

It compares the median processor time of reading, bounding to 10 sets per user, paying, noise and publishing with that
of one query that counts the users of each set. ``--times 40`` first writes 40 copies of the log, each with its own
clients, and prints the peak memory of a process that releases them.
"""

import argparse
import gzip
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from kanon.release import Ledger, Spec, release

MOST_RATIO, MOST_RATIO_LARGE, MOST_MIB = 4.5, 4.0, 1024
SPEC = Spec(groups=("set",), epsilon=Fraction(1), delta=Fraction(1, 10**6), groups_per_user=10)
_PEAK = """
import sys
from pathlib import Path
from infra.measure.release import released
released(Path(sys.argv[1]))
print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def main(arguments: list[str] | None = None) -> int:
    """Measure; 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m infra.measure.release", description=__doc__)
    parser.add_argument("log", type=Path, help="a CSV log with time, set and client, plain or gzipped")
    parser.add_argument("--turns", type=int, default=7, help="times each is run")
    parser.add_argument("--times", type=int, default=1, help="copies of the log, with clients of their own")
    asked = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        log = asked.log if asked.times == 1 else copies(asked.log, asked.times, Path(folder) / "large.csv")
        ours, plain = (median(run, asked.turns) for run in (lambda: released(log), lambda: counted(log)))
        most = MOST_RATIO if asked.times == 1 else MOST_RATIO_LARGE
        print(f"release {ours:.2f} s, count(distinct) {plain:.2f} s: ratio {ours / plain:.2f} (at most {most})")
        met = ours <= most * plain
        if asked.times > 1:
            command = [sys.executable, "-c", _PEAK, log]
            peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(f"peak memory {peak} MiB (at most {MOST_MIB})")
            met &= peak <= MOST_MIB
    return 0 if met else 1


def released(log: Path) -> None:
    """A release with a ledger of its own."""
    with TemporaryDirectory() as folder:
        release(log, SPEC, Ledger.at(Path(folder) / "ledger"), dataset="log")


def counted(log: Path) -> None:
    """The users of each set, by the engine alone."""
    with duckdb.connect() as connection:
        relation = connection.read_csv(str(log), all_varchar=True)
        connection.sql('select "set", count(distinct client) from relation group by 1').fetchall()
        assert relation.columns


def copies(log: Path, times: int, at: Path) -> Path:
    """Copies of the log, each with its own clients."""
    with gzip.open(log, "rt") if log.suffix == ".gz" else log.open() as file:
        header, *lines = file.read().splitlines()
    with at.open("w") as file:
        file.write(f"{header}\n")
        for copy in range(times):
            file.writelines(f"{line}-{copy}\n" for line in lines)
    return at


def median(run: Callable[[], None], turns: int) -> float:
    """The median processor time of a turn, after one to warm up."""
    run()
    taken = []
    for _ in range(turns):
        began = time.process_time()
        run()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


if __name__ == "__main__":
    sys.exit(main())
