"""``python -m infra.measure.risk``: the sketch of ``kanon risk`` against an exact group-by of Polars, in one run.

Prints the ratio of the median times. ``--large`` also generates a log of 10^8 rows (2 GB on disk, minutes) and prints
the peak resident memory of a process that sketches it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from kanon.risk.hashing import Key
from kanon.risk.sketching import sketch

MOST_RATIO = 2.5
MOST_MIB = 512
CHUNK = 1_000_000

_CHILD = """
import sys
from pathlib import Path
from kanon.risk.sketching import sketch
made = sketch(Path(sys.argv[1]), "set")
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(made.total_rows, round(made.number_of_values), int(peak.split()[1]) / 1024)
"""


def main(arguments: list[str] | None = None) -> int:
    """Measure; 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m infra.measure.risk", description=__doc__)
    parser.add_argument("log", type=Path, nargs="?", help="a log with set and client; without it one is generated")
    parser.add_argument("--turns", type=int, default=15, help="times each of the two is run")
    parser.add_argument("--large", action="store_true", help="sketch a generated log of --rows rows")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--form", choices=["parquet", "csv"], default="parquet", help="of the large log")
    asked = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        log = asked.log or generate(Path(folder) / "small.csv", 300_000)
        met = compare(log, asked.turns)
        if asked.large:
            met &= memory(generate(Path(folder) / f"large.{asked.form}", asked.rows))
    return 0 if met else 1


def compare(log: Path, turns: int) -> bool:
    """Print the ratio of the median times. Returns whether it meets the target."""
    key = Key.fresh()
    ours, theirs = alternating(lambda: sketch(log, "set", key=key), lambda: exact(log), turns)
    ratio = ours / theirs
    print(f"sketch {ours:.4f} s, exact group-by {theirs:.4f} s, ratio {ratio:.2f} (target: at most {MOST_RATIO})")
    return ratio <= MOST_RATIO


def exact(log: Path) -> pl.DataFrame:
    """The users of every set, by Polars: it reads and groups on all cores."""
    read = pl.scan_parquet(log) if log.suffix == ".parquet" else pl.scan_csv(log, infer_schema=False)
    return read.group_by("set").agg(pl.col("client").n_unique()).collect()


def alternating(ours: Callable[[], object], theirs: Callable[[], object], turns: int) -> tuple[float, float]:
    """The median wall time of each, in seconds. Both take turns; the first turn is not counted."""
    taken: list[list[float]] = [[], []]
    for turn in range(turns + 1):
        for work, times in list(zip((ours, theirs), taken, strict=True))[:: 1 if turn % 2 else -1]:
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
    return statistics.median(taken[0][1:]), statistics.median(taken[1][1:])


def memory(log: Path) -> bool:
    """Print the peak resident memory of a process that sketches the log. Returns whether it meets the target."""
    began = time.perf_counter()
    ran = subprocess.run([sys.executable, "-c", _CHILD, str(log)], capture_output=True, text=True, check=True)
    rows, values, peak = ran.stdout.split()
    print(
        f"{int(rows):,} rows ({log.stat().st_size / 1e6:,.0f} MB of {log.suffix[1:]}), about {int(values):,} values:"
        f" {time.perf_counter() - began:.0f} s, peak {float(peak):.0f} MiB (target: at most {MOST_MIB})"
    )
    return float(peak) <= MOST_MIB


def generate(path: Path, rows: int) -> Path:
    """Write a log: two million sets of uneven popularity, ten million clients; neither more than a tenth of rows."""
    random = np.random.default_rng(18)
    sets, clients = max(min(2_000_000, rows // 10), 1), max(min(10_000_000, rows // 10), 1)
    schema = pa.schema({"set": pa.string(), "client": pa.string()})
    writer = pq.ParquetWriter(path, schema) if path.suffix == ".parquet" else pacsv.CSVWriter(path, schema)
    with writer:
        for start in range(0, rows, CHUNK):
            number = min(CHUNK, rows - start)
            popular = (sets ** random.random(number)).astype(np.int64)  # log-uniform: density 1 / rank
            columns = [_names("set/", popular), _names("client-", random.integers(0, clients, number))]
            writer.write_table(pa.table(columns, schema=schema))
    return path


def _names(prefix: str, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


if __name__ == "__main__":
    sys.exit(main())
