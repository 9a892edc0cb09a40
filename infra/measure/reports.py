"""``python -m infra.measure.reports``: the time of aggregating reports against the bare libraries.

Every figure is a ratio of processor times of one run. The references are necessary work: decrypting each payload,
reading CBOR, writing Avro.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random

import cbor2
import fastavro
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from infra.measure.measure import Ratio, Turn, compare
from infra.measure.rows import Form, row
from kanon.noise.words import NoiseKey
from kanon.reports import avro
from kanon.reports.acceptance import Rules
from kanon.reports.histogram import Histogram
from kanon.reports.hpke import PREFIX, SUITE, seal
from kanon.reports.mapping import BATCH, Mapped, Selection, map_reports, read_cleartexts
from kanon.reports.noise import DiscreteLaplace, Randomness, Tape
from kanon.reports.parameters import Parameters
from kanon.reports.payload import Contribution, Layout, encode
from kanon.reports.reducing import reduce_partition
from kanon.reports.shared_info import SharedInfo

NOW = 1_767_225_600
KEY_ID = "k"
ROUNDS = 4
"""Maps of each file in a turn of two processes. A single map is too short: noise would decide the larger time."""
REAL = 10
"""Contributions of a report, of 20 slots."""
PARAMETERS = Parameters("declared", Fraction(10))
RANDOMNESS = Randomness(NoiseKey("bench", bytes(32)), "bench", "bench", bytes(32), bytes(32), "declared")


@dataclass(frozen=True)
class Made:
    """Reports on disk and in memory, with equal layouts and different contents."""

    path: Path
    key: X25519PrivateKey
    reports: Sequence[avro.Report]
    cleartexts: Sequence[bytes]

    @property
    def rules(self) -> Rules:
        """The rules of a job that accepts them."""
        return Rules(NOW, {KEY_ID: self.key})


def made(path: Path, count: int, seed: int) -> Made:
    """Write ``count`` reports of ten contributions in twenty slots, to 100,000 keys."""
    random, key, layout = Random(seed), X25519PrivateKey.from_private_bytes(bytes(range(32))), Layout(20)
    reports, cleartexts = [], []
    for _ in range(count):
        info = SharedInfo(
            "attribution-reporting", "1.0", str(uuid.UUID(int=random.getrandbits(128), version=4)),
            "https://report.test", NOW - random.randrange(86_400), "https://shop.test", NOW - 2 * 86_400,
        ).text()  # fmt: skip
        pairs = [Contribution(random.randrange(100_000) << 64, random.randrange(1, 6000)) for _ in range(REAL)]
        cleartexts.append(encode(pairs, layout))
        reports.append(avro.Report(seal(cleartexts[-1], key.public_key(), info), KEY_ID, info))
    avro.write_reports(path, reports)
    return Made(path, key, reports, cleartexts)


@row("reports: map")
def map_rows(form: Form) -> Iterator[Ratio]:
    """Reading reports: the whole map, the map in two processes, the parser of payloads."""
    turns, reports = form.size(9, 1), form.size(4_000, 200)
    with tempfile.TemporaryDirectory() as folder:
        both = [made(Path(folder) / f"{seed}.avro", reports, seed) for seed in (1, 2)]
        yield mapping(both[0], turns)
        yield two_processes(both, turns)
        yield parsing(both[0], turns)


@row("reports: reduce")
def reduce_rows(form: Form) -> Iterator[Ratio]:
    """Noise of declared keys, and the whole reduce."""
    with tempfile.TemporaryDirectory() as folder:
        yield from reducing(Path(folder) / "summary.avro", form.size(1_000_000, 10_000), form.size(5, 1))


def mapping(reports: Made, turns: int) -> Ratio:
    """The whole map, from the Avro file to sums by key, against decrypting the same payloads from memory."""
    wires = [(report.payload, PREFIX + report.shared_info.encode()) for report in reports.reports]

    def bare() -> None:
        for wire, info in wires:
            SUITE.decrypt(wire, reports.key, info=info)

    return compare(
        "map of Avro reports (20 slots, 10 contributions)", "bare HPKE decryptions", "report",
        partial(Turn, len(wires), partial(_mapped, reports)), partial(Turn, len(wires), bare),
        inside="Avro file, clear fields, decryption, parsing, duplicates, sums by key",
        turns=turns, target=0.75, at_least=True,
    )  # fmt: skip


def _mapped(reports: Made) -> None:
    found = map_reports(avro.read_reports(reports.path), reports.rules, Selection())
    if len(found.report_ids) != len(reports.reports):
        raise RuntimeError("a report was not accepted")


def two_processes(both: Sequence[Made], turns: int) -> Ratio:
    """Two files, one in each of two workers, against both in one process.

    A job ends when its busiest process does, so the time of two processes is the largest processor time of parent and
    workers. Processor time has no waiting for a core. So it shows whether the work is split evenly and the cost of
    passing results, also on a shared machine.
    """
    one, two = [], []
    paths = [reports.path for reports in both]
    count = ROUNDS * sum(len(reports.reports) for reports in both)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for number in range(turns + 1):
            began = time.process_time()
            for path in paths * ROUNDS:
                _map_file(path)
            alone = time.process_time() - began
            began = time.process_time()
            rounds = [list(pool.map(_map_and_pass, paths)) for _ in range(ROUNDS)]
            mapped = [pickle.loads(data) for done in rounds for data, _ in done]  # noqa: S301, made by the workers
            parent = time.process_time() - began
            workers = [sum(seconds for _, seconds in of_one) for of_one in zip(*rounds, strict=True)]
            if sum(len(shard.report_ids) for shard in mapped) != count:
                raise RuntimeError("a report was not accepted")
            if number:  # the first turn warms up
                one.append(alone)
                two.append(max(parent, *workers))
    ratios = tuple(a / b for a, b in zip(one, two, strict=True))
    return Ratio(
        "map in two processes", "the busiest of parent and two workers, with passing the results back",
        "the same two files in one process", "report", ratios,
        float(np.median(two)) / count, float(np.median(one)) / count, 1.8, at_least=True,
    )  # fmt: skip


def _map_file(path: Path) -> Mapped:
    rules = Rules(NOW, {KEY_ID: X25519PrivateKey.from_private_bytes(bytes(range(32)))})
    return map_reports(avro.read_reports(path), rules, Selection())


def _map_and_pass(path: Path) -> tuple[bytes, float]:
    """One file's map as a worker passes it to its parent, and the worker's processor time, s."""
    began = time.process_time()
    data = pickle.dumps(_map_file(path), pickle.HIGHEST_PROTOCOL)
    return data, time.process_time() - began


def parsing(reports: Made, turns: int) -> Ratio:
    """Reading cleartexts with the template against ``cbor2.loads`` and a loop over its pairs."""
    cleartexts = list(reports.cleartexts)

    def template() -> None:
        for start in range(0, len(cleartexts), BATCH):
            list(read_cleartexts(cleartexts[start : start + BATCH]))

    def bare() -> None:
        for cleartext in cleartexts:
            for pair in cbor2.loads(cleartext)["data"]:
                int.from_bytes(pair["bucket"], "big")
                int.from_bytes(pair["value"], "big")
                int.from_bytes(pair["id"], "big")

    count = len(cleartexts)
    return compare(
        "template parse of payloads", "cbor2.loads and a loop", "report",
        partial(Turn, count, template), partial(Turn, count, bare),
        inside="512 payloads at once, by their common layout", turns=turns, target=8, at_least=True,
    )  # fmt: skip


def reducing(output: Path, keys: int, turns: int) -> Iterator[Ratio]:
    """Declared keys: noise alone, and merge, noise and Avro together, against writing the same records bare."""
    random = np.random.default_rng(1)
    raw = np.zeros((keys, 16), np.uint8)
    raw[:, :8] = random.integers(0, 256, (keys, 8), dtype=np.uint8)
    domain = np.unique(raw.view("S16")[:, 0])
    shards = [Histogram.of(random.choice(domain, keys // 4), random.integers(1, 6000, keys // 4)) for _ in range(4)]
    release = reduce_partition(shards, domain, PARAMETERS, RANDOMNESS).release()
    metrics = release.metrics.tolist()
    records = [{"bucket": key, "metric": metric} for key, metric in zip(avro.listed(domain), metrics, strict=True)]

    def bare() -> None:
        with output.open("wb") as file:
            fastavro.writer(file, avro.SUMMARY, records)

    def ours() -> None:
        found = reduce_partition(shards, domain, PARAMETERS, RANDOMNESS).release()
        avro.write_summary(output, found.keys, found.metrics)

    def noise() -> None:
        DiscreteLaplace.of(PARAMETERS).draw(Tape(os.urandom(32)), len(domain))

    turn = partial(Turn, len(domain))
    yield compare(
        "noise of declared keys, epsilon 10", "bare Avro writer", "key", partial(turn, noise), partial(turn, bare),
        inside="drawing the noise of all keys",
        turns=turns, target=5, at_least=True,
    )  # fmt: skip
    yield compare(
        f"reduce of {len(domain):,} declared keys, 4 shards", "bare Avro writer", "key",
        partial(turn, ours), partial(turn, bare),
        inside="merging the shards, noise, threshold, the Avro file", turns=turns, target=1.4,
    )  # fmt: skip


if __name__ == "__main__":
    from infra.measure.bench import main

    sys.exit(main(["--rows", "reports: ", *sys.argv[1:]]))
