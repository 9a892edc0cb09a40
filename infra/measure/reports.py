"""The time of aggregating reports against necessary work: decrypting each payload, reading CBOR, writing Avro."""

from __future__ import annotations

import os
import pickle
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import NamedTuple

import cbor2
import fastavro
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from infra.measure.measure import Ratio, Turn, compare
from infra.measure.rows import Form, row
from kanon.dynamo.batches import chunks
from kanon.noise.words import NoiseKey
from kanon.reports import avro
from kanon.reports.acceptance import Rules
from kanon.reports.histogram import Histogram
from kanon.reports.hpke import PREFIX, SUITE, seal
from kanon.reports.keys import PublicKey
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
ORIGIN, DESTINATION = "https://report.test", "https://shop.test"
REAL, SLOTS = 10, 20
"""Contributions of a report, and its slots."""
PRIVATE = X25519PrivateKey.from_private_bytes(bytes(range(32)))
PARAMETERS = Parameters("declared", Fraction(10))
RANDOMNESS = Randomness(NoiseKey("bench", bytes(32)), "bench", "bench", bytes(32), bytes(32), "declared")


class Made(NamedTuple):
    """A report and what it encrypts."""

    report: avro.Report
    cleartext: bytes

    @property
    def wire(self) -> tuple[bytes, bytes]:
        """What HPKE decrypts: the payload and its info."""
        return self.report.payload, PREFIX + self.report.shared_info.encode()


def made(seed: int, count: int, keys: int, key: PublicKey) -> list[Made]:
    """Reports of ten contributions to any of the keys, in twenty slots."""
    random, layout = Random(seed), Layout(SLOTS)
    reports = []
    for _ in range(count):
        info = SharedInfo(
            "attribution-reporting", "1.0", str(uuid.UUID(int=random.getrandbits(128), version=4)), ORIGIN,
            NOW - random.randrange(86_400), DESTINATION, NOW - 2 * 86_400,
        ).text()  # fmt: skip
        pairs = [Contribution(bucket(random.randrange(keys)), random.randrange(1, 6_000)) for _ in range(REAL)]
        cleartext = encode(pairs, layout)
        reports.append(Made(avro.Report(seal(cleartext, key.key, info), key.id, info), cleartext))
    return reports


def bucket(number: int) -> int:
    """A key of 128 bits: any two differ in their first half."""
    return (number * 0x9E3779B97F4A7C15 % (1 << 64)) << 64 | number


def decrypt(wires: Iterable[tuple[bytes, bytes]], key: X25519PrivateKey) -> None:
    """The bare decryptions of some reports."""
    for wire, info in wires:
        SUITE.decrypt(wire, key, info=info)


@row("reports: map")
def map_rows(form: Form) -> Iterator[Ratio]:
    """Reading reports: the whole map, the map in two processes, the parser of payloads."""
    turns, count = form.size(9, 1), form.size(4_000, 200)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{seed}.avro" for seed in (1, 2)]
        both = [made(seed, count, 100_000, PublicKey(KEY_ID, PRIVATE.public_key())) for seed in (1, 2)]
        for path, reports in zip(paths, both, strict=True):
            avro.write_reports(path, [each.report for each in reports])
        yield mapping(paths[0], both[0], turns)
        yield two_processes(paths, 2 * count, turns)
        yield parsing([each.cleartext for each in both[0]], turns)


@row("reports: reduce")
def reduce_rows(form: Form) -> Iterator[Ratio]:
    """Noise of declared keys, and the whole reduce."""
    with tempfile.TemporaryDirectory() as folder:
        yield from reducing(Path(folder) / "summary.avro", form.size(1_000_000, 10_000), form.size(5, 1))


def mapping(path: Path, reports: Sequence[Made], turns: int) -> Ratio:
    """The whole map, from the Avro file to sums by key, against decrypting the same payloads from memory."""
    wires = [each.wire for each in reports]

    def whole() -> None:
        if len(_map_file(path).report_ids) != len(wires):
            raise RuntimeError("a report was not accepted")

    return compare(
        "map of Avro reports (20 slots, 10 contributions)", "bare HPKE decryptions", "report",
        partial(Turn, len(wires), whole), partial(Turn, len(wires), partial(decrypt, wires, PRIVATE)),
        inside="Avro file, clear fields, decryption, parsing, duplicates, sums by key",
        turns=turns, target=0.75, at_least=True,
    )  # fmt: skip


def two_processes(paths: Sequence[Path], reports: int, turns: int) -> Ratio:
    """Two files with so many reports, one in each of two workers, against both in one process.

    A job ends when its busiest process does, so the time of two processes is the largest processor time of parent and
    workers. Processor time has no waiting for a core. So it shows whether the work is split evenly and the cost of
    passing results, also on a shared machine.
    """
    one, two = [], []
    count = ROUNDS * reports
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for number in range(turns + 1):
            began = time.process_time()
            for path in [*paths] * ROUNDS:
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
    return map_reports(avro.read_reports(path), Rules(NOW, {KEY_ID: PRIVATE}), Selection())


def _map_and_pass(path: Path) -> tuple[bytes, float]:
    """One file's map as a worker passes it to its parent, and the worker's processor time, s."""
    began = time.process_time()
    data = pickle.dumps(_map_file(path), pickle.HIGHEST_PROTOCOL)
    return data, time.process_time() - began


def parsing(cleartexts: Sequence[bytes], turns: int) -> Ratio:
    """Reading cleartexts with the template against ``cbor2.loads`` and a loop over its pairs."""

    def template() -> None:
        for some in chunks(cleartexts, BATCH):
            list(read_cleartexts(some))

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
