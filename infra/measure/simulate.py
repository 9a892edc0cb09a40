"""``python -m infra.measure.simulate``: `kanon simulate` on a generated log, against parsing and hashing alone.

Prints processor time, elapsed time and peak memory, all processes together, and the ratio of the processor times.
``--joins`` and ``--sets`` change the size of the log; the targets are for ten million joins over a million sets.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from kanon.gate.names import client_token, set_key
from kanon.gate.types import read_types
from kanon.joinlog.numbered import read_batches
from kanon.simulate.keys import Keys
from kanon.simulate.part import digest
from kanon.simulate.run import simulate

MOST_RATIO = 1.5
MOST_SECONDS = 60.0
MOST_MIB = 1024
PERIOD = 3600
TYPES = '{"fledge": {"k": 50, "window": 720, "profile": "published"}}'
CHUNK = 1_000_000
_BETWEEN_SAMPLES = 0.1


@dataclass(frozen=True)
class Spent:
    """The usage of a process and its children: seconds of processor time, elapsed seconds, peak MiB."""

    processor: float
    elapsed: float
    memory: float


def main(arguments: list[str] | None = None) -> int:
    """Measure; 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m infra.measure.simulate", description=__doc__)
    parser.add_argument("--joins", type=int, default=10_000_000)
    parser.add_argument("--sets", type=int, default=1_000_000)
    asked = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        log = generate(Path(folder) / "log.csv", asked.joins, asked.sets)
        print(f"{asked.joins:,} joins over up to {asked.sets:,} sets, {log.stat().st_size / 1e6:,.0f} MB of CSV")
        alone = spent(parse_and_hash, log)
        print(f"parsing and hashing alone: {alone.processor:.1f} s of processor time, {alone.elapsed:.1f} s")
        whole = spent(simulate_all, log)
    cores = min(2, os.cpu_count() or 1)
    seconds, ratio = whole.processor / cores, whole.processor / alone.processor
    print(
        f"kanon simulate: {whole.processor:.1f} s of processor time, {seconds:.1f} s on each of {cores} cores"
        f" (target: at most {MOST_SECONDS:.0f}), {whole.elapsed:.1f} s elapsed here,"
        f" {whole.memory:,.0f} MiB at most (target: at most {MOST_MIB:,})"
    )
    print(f"ratio {ratio:.2f} (target: at most {MOST_RATIO})")
    return 0 if ratio <= MOST_RATIO and seconds <= MOST_SECONDS and whole.memory <= MOST_MIB else 1


def generate(path: Path, joins: int, sets: int) -> Path:
    """Write a log of 45 days in the order of time: sets of uneven popularity, clients of even activity."""
    random = np.random.default_rng(15)
    schema = pa.schema({"time": pa.int64(), "set": pa.string(), "client": pa.string()})
    # Every set has a join; the others go to set number r in proportion to 1 / r.
    owners = np.concatenate((np.arange(1, min(sets, joins) + 1), sets ** random.random(max(0, joins - sets))))
    random.shuffle(owners)
    with pacsv.CSVWriter(path, schema) as writer:
        for start in range(0, joins, CHUNK):
            chosen = owners[start : start + CHUNK].astype(np.int64)
            begin, end = (1_767_225_600 + 45 * 86_400 * at // joins for at in (start, start + len(chosen)))
            times = np.sort(random.integers(begin, max(end, begin + 1), len(chosen)))
            clients = random.integers(0, joins // 3 + 1, len(chosen))
            columns = [pa.array(times), _names("set/", chosen), _names("client-", clients)]
            writer.write_table(pa.table(columns, schema=schema))
    return path


def _names(prefix: str, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


def parse_and_hash(log: Path) -> None:
    """Read the log, compute the key of every set once and the token of every join: the work of any simulation."""
    keys = Keys.from_seed(1)
    known: dict[bytes, bytes] = {}
    for batch in read_batches(log):
        for set_, who in zip(batch.sets.numbers.tolist(), batch.clients.numbers.tolist(), strict=True):
            text, client = batch.sets.texts[set_], batch.clients.texts[who]
            key = known.get(text)
            if key is None:
                key = known[text] = set_key(keys.pepper, "fledge", digest(text))
            client_token(keys.client_key, key, "client", client, 16)


def simulate_all(log: Path) -> None:
    """Run ``kanon simulate`` with one type."""
    simulate(read_batches(log), list(read_types(TYPES, PERIOD).values()), Keys.from_seed(1), PERIOD)


def spent(work: Callable[[Path], None], log: Path) -> Spent:
    """Run the work in its own process and measure it."""
    most = 0.0
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        running = pool.submit(_measured, work, log)
        (process,) = multiprocessing.active_children()
        while not running.done():
            most = max(most, sum(map(_memory, _family(process.pid or 0))))
            wait([running], _BETWEEN_SAMPLES)
    return Spent(*running.result(), most)


def _measured(work: Callable[[Path], None], log: Path) -> tuple[float, float]:
    """Seconds of processor time, and elapsed seconds."""
    before, began = os.times(), time.perf_counter()
    work(log)
    after = os.times()
    return sum(after[:4]) - sum(before[:4]), time.perf_counter() - began


def _family(pid: int) -> list[int]:
    """A process and all that it started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(member for child in children for member in _family(int(child)))]


def _memory(pid: int) -> float:
    """MiB of a process; shared memory is divided among its processes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


if __name__ == "__main__":
    sys.exit(main())
