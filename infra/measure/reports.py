"""``python -m infra.measure.reports``: what aggregating reports costs against the bare libraries.

Every figure is a ratio of processor times of one run. The yardsticks are what nobody can leave out: decrypting each
payload, reading CBOR, writing Avro.
"""

from __future__ import annotations

import argparse
import os
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
from typing import Any

import cbor2
import fastavro
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from infra.measure.measure import Ratio, Turn, compare
from kanon.noise.words import NoiseKey
from kanon.reports import avro
from kanon.reports.acceptance import Rules
from kanon.reports.histogram import Histogram
from kanon.reports.hpke import PREFIX, SUITE, seal
from kanon.reports.mapping import BATCH, Selection, map_reports, read_cleartexts
from kanon.reports.noise import Randomness, Tape
from kanon.reports.parameters import Parameters
from kanon.reports.payload import Contribution, Layout, encode
from kanon.reports.reducing import reduce_partition
from kanon.reports.shared_info import SharedInfo

NOW = 1_767_225_600
KEY_ID = "k"
REAL = 10
"""Contributions of a report, of 20 slots."""
PARAMETERS = Parameters("declared", Fraction(10))
RANDOMNESS = Randomness(NoiseKey("bench", bytes(32)), "bench", "bench", bytes(32), bytes(32), "declared")


@dataclass(frozen=True)
class Made:
    """Reports on disk and in memory, all alike but for what they hold."""

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


def measured(*, short: bool) -> Iterator[Ratio]:
    """Every figure, as it is taken."""
    turns, reports, keys = (1, 200, 10_000) if short else (9, 4_000, 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        both = [made(Path(folder) / f"{seed}.avro", reports, seed) for seed in (1, 2)]
        yield mapping(both[0], turns)
        yield two_processes(both, turns)
        yield parsing(both[0], turns)
        yield from reducing(Path(folder) / "summary.avro", keys, min(turns, 5))


def mapping(reports: Made, turns: int) -> Ratio:
    """The whole map, from the Avro file to sums by key, against decrypting the same payloads from memory."""
    wires = [(report.payload, PREFIX + report.shared_info.encode()) for report in reports.reports]

    def bare() -> None:
        for wire, info in wires:
            SUITE.decrypt(wire, reports.key, info=info)

    return compare(
        "map of Avro reports (20 slots, 10 contributions)", "bare HPKE decryptions", "report",
        lambda _: Turn(len(wires), partial(_mapped, reports)), lambda _: Turn(len(wires), bare),
        turns=turns, target=0.75, at_least=True,
    )  # fmt: skip


def _mapped(reports: Made) -> None:
    found = map_reports(avro.read_reports(reports.path), reports.rules, Selection())
    if len(found.report_ids) != len(reports.reports):
        raise RuntimeError("a report was not accepted")


def two_processes(both: Sequence[Made], turns: int) -> Ratio:
    """Two files in two processes against both in one: the time of the slower process counts."""
    one, two = [], []
    paths = [reports.path for reports in both]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for number in range(turns + 1):
            alone = [pool.submit(_map_time, path) for path in paths[:1]]
            alone_time = alone[0].result() + pool.submit(_map_time, paths[1]).result()
            together = max(pool.map(_map_time, paths))
            if number:  # the first turn warms up
                one.append(alone_time)
                two.append(together)
    ratios = tuple(a / b for a, b in zip(one, two, strict=True))
    count = sum(len(reports.reports) for reports in both)
    return Ratio(
        "map in two processes", "in one, by processor time", "report", ratios,
        float(np.median(two)) / count, float(np.median(one)) / count, 1.8, at_least=True,
    )  # fmt: skip


def _map_time(path: Path) -> float:
    """Processor time of mapping one file, s."""
    rules = Rules(NOW, {KEY_ID: X25519PrivateKey.from_private_bytes(bytes(range(32)))})
    began = time.process_time()
    map_reports(avro.read_reports(path), rules, Selection())
    return time.process_time() - began


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
        lambda _: Turn(count, template), lambda _: Turn(count, bare), turns=turns, target=8, at_least=True,
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
        PARAMETERS.noise.draw(Tape(os.urandom(32)), len(domain))

    def turn(work: Any) -> Any:
        return lambda _: Turn(len(domain), work)

    yield compare(
        "noise of declared keys, epsilon 10", "bare Avro writer", "key", turn(noise), turn(bare),
        turns=turns, target=5, at_least=True,
    )  # fmt: skip
    yield compare(
        f"reduce of {len(domain):,} declared keys, 4 shards", "bare Avro writer", "key", turn(ours), turn(bare),
        turns=turns, target=1.4,
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Print a table of the figures. Times are the machine's too: a target that is missed is shown, not judged."""
    from infra.measure.bench import line

    parser = argparse.ArgumentParser(prog="python -m infra.measure.reports", description=__doc__)
    parser.add_argument("--short", action="store_true", help="small sizes: the figures say little")
    asked = parser.parse_args(arguments)
    print("| what | against | figure | lowest, highest | target | met |\n|---|---|---|---|---|---|")
    for result in measured(short=asked.short):
        print(line(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
