"""Aggregating reports against necessary work: decrypting each payload, reading CBOR, writing Avro."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fractions import Fraction
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import fastavro
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from bench.harness import Comparison, Form, Side, Turn
from kanon.noise.words import NoiseKey
from kanon.reports import avro
from kanon.reports.acceptance import Rules
from kanon.reports.histogram import Histogram
from kanon.reports.hpke import PREFIX, SUITE, seal
from kanon.reports.keys import PublicKey
from kanon.reports.mapping import Selection, map_reports
from kanon.reports.noise import Randomness
from kanon.reports.parameters import Parameters
from kanon.reports.payload import Contribution, Layout, encode
from kanon.reports.reducing import reduce_partition
from kanon.reports.shared_info import SharedInfo

NOW = 1_767_225_600
KEY_ID = "k"
ORIGIN, DESTINATION = "https://report.test", "https://shop.test"
REAL, SLOTS = 10, 20
"""Contributions of a report, and its slots."""
PRIVATE = X25519PrivateKey.from_private_bytes(bytes(range(32)))
PARAMETERS = Parameters("declared", Fraction(10))
RANDOMNESS = Randomness(NoiseKey("bench", bytes(32)), "bench", "bench", bytes(32), bytes(32), "declared")


def rows(form: Form) -> Iterator[Comparison]:
    """Map and reduce."""
    turns, count = form.size(9, 1), form.size(4_000, 200)
    yield Comparison(
        "map of Avro reports (20 slots, 10 contributions)",
        "Avro file, clear fields, decryption, parsing, duplicates, sums by key", "bare HPKE decryptions", "report",
        Side(whole_map, (count,)), Side(decryptions, (count,)), turns, 0.75, at_least=True,
    )  # fmt: skip
    keys, turns = form.size(1_000_000, 10_000), form.size(5, 1)
    yield Comparison(
        f"reduce of {keys:,} declared keys, 4 shards", "merging the shards, noise, threshold, the Avro file",
        "bare Avro writer", "key", Side(whole_reduce, (keys,)), Side(bare_writer, (keys,)), turns, 1.4,
    )  # fmt: skip


class Made(NamedTuple):
    """A report, and what HPKE decrypts of it: the payload and its info."""

    report: avro.Report
    wire: tuple[bytes, bytes]


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
        payload = seal(encode(pairs, layout), key.key, info)
        reports.append(Made(avro.Report(payload, key.id, info), (payload, PREFIX + info.encode())))
    return reports


def bucket(number: int) -> int:
    """A key of 128 bits: any two differ in their first half."""
    return (number * 0x9E3779B97F4A7C15 % (1 << 64)) << 64 | number


def decrypt(wires: Iterable[tuple[bytes, bytes]], key: X25519PrivateKey) -> None:
    """The bare decryptions of some reports."""
    for wire, info in wires:
        SUITE.decrypt(wire, key, info=info)


def of_one_key(count: int) -> list[Made]:
    """The same reports on both sides."""
    return made(1, count, 100_000, PublicKey(KEY_ID, PRIVATE.public_key()))


@contextmanager
def whole_map(count: int) -> Iterator[Callable[[], Turn]]:
    """The whole map, from the Avro file to sums by key."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "reports.avro"
        avro.write_reports(path, [one.report for one in of_one_key(count)])

        def work() -> None:
            mapped = map_reports(avro.read_reports(path), Rules(NOW, {KEY_ID: PRIVATE}), Selection())
            if len(mapped.report_ids) != count:
                raise RuntimeError("a report was not accepted")

        yield lambda: Turn(count, work)


def decryptions(count: int) -> AbstractContextManager[Callable[[], Turn]]:
    """Decrypting the same payloads from memory."""
    wires = [each.wire for each in of_one_key(count)]
    return nullcontext(lambda: Turn(count, partial(decrypt, wires, PRIVATE)))


def _domain_and_shards(keys: int) -> tuple[Any, list[Histogram]]:
    random = np.random.default_rng(1)
    raw = np.zeros((keys, 16), np.uint8)
    raw[:, :8] = random.integers(0, 256, (keys, 8), dtype=np.uint8)
    domain = np.unique(raw.view("S16")[:, 0])
    return domain, [
        Histogram.of(random.choice(domain, keys // 4), random.integers(1, 6000, keys // 4)) for _ in range(4)
    ]


@contextmanager
def whole_reduce(keys: int) -> Iterator[Callable[[], Turn]]:
    """Merging the shards, noise and the Avro file."""
    with TemporaryDirectory() as folder:
        output, (domain, shards) = Path(folder) / "summary.avro", _domain_and_shards(keys)

        def work() -> None:
            found = reduce_partition(shards, domain, PARAMETERS, RANDOMNESS).release()
            avro.write_summary(output, found.keys, found.metrics)

        yield lambda: Turn(len(domain), work)


@contextmanager
def bare_writer(keys: int) -> Iterator[Callable[[], Turn]]:
    """Writing the same records with fastavro."""
    with TemporaryDirectory() as folder:
        output, (domain, shards) = Path(folder) / "summary.avro", _domain_and_shards(keys)
        metrics = reduce_partition(shards, domain, PARAMETERS, RANDOMNESS).release().metrics.tolist()
        records = [{"bucket": key, "metric": metric} for key, metric in zip(avro.listed(domain), metrics, strict=True)]

        def work() -> None:
            with output.open("wb") as file:
                fastavro.writer(file, avro.SUMMARY, records)

        yield lambda: Turn(len(domain), work)
