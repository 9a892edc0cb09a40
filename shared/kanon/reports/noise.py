"""Discrete Laplace noise, ``P(x) ~ e**(-a |x|)`` on the integers, drawn digit by digit from a keyed tape; and the
release of one partition of a job, its exact sums with noise (Algorithm 1 of the Privacy Sandbox paper).

A geometric number with ratio ``q = e**-a`` has independent binary digits: digit i is 1 with probability
``1 / (1 + e**(a 2^i))``. The difference of two such numbers has the wanted distribution. So a draw compares 2K uniform
words with K thresholds of 256 bits, where K is the least with ``e**(-a 2^K) < 2^-256``. A word has 64 bits; if it
equals the threshold's first 64 bits (probability 2^-64), 192 more are read. The total variation distance of one draw
from the exact distribution is at most 2^-249. No floating-point number takes part.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from kanon.noise.exact import exp_bounds
from kanon.noise.words import WORD_BYTES, NoiseKey, length_prefixed
from kanon.reports.histogram import Histogram, exact_sums
from kanon.reports.job import PrivacyParameters

PRECISION = 256
"""Bits of a threshold: the first 64 are compared first, the other ``TIE_BITS`` in a tie."""
TIE_BITS = PRECISION - 8 * WORD_BYTES
_PIECE = 1 << 18
"""Bytes of tape drawn at once: few enough for the processor's cache."""


@dataclass(frozen=True)
class PartitionTape:
    """The randomness of one partition of a job: all its words derive from a seed of 32 bytes."""

    seed: bytes

    def stream(self) -> CipherContext:
        """AES-256-CTR from counter 0; key number i of the partition reads words ``2Ki`` to ``2K(i+1) - 1``."""
        return Cipher(AES(self.seed), CTR(bytes(16))).encryptor()

    def tie(self, key: int, attempt: int, word: int) -> int:
        """The other 192 bits of one word of a key, big-endian. Read only in a tie."""
        name = length_prefixed(b"kanon/reports/tie/1", self.seed, _number(key), _number(attempt), _number(word))
        return int.from_bytes(hashlib.shake_256(name).digest(TIE_BITS // 8), "big")

    def again(self, key: int, attempt: int, words: int) -> NDArray[np.uint64]:
        """The words of the next attempt of one key, ``attempt >= 1``."""
        name = length_prefixed(b"kanon/reports/again/1", self.seed, _number(key), _number(attempt))
        return np.frombuffer(hashlib.shake_256(name).digest(WORD_BYTES * words), "<u8")


@dataclass(frozen=True)
class Randomness:
    """The seed of a job's noise. The same job and sums give the same noise; other sums give independent noise.

    Args:
        key: secret of the deployment.
        deployment: its name.
        job: id of the job.
        job_secret: 32 random bytes of this job, forgotten when it ends.
        plan_digest: SHA-256 of the job's plan: inputs, parameters, version of the mechanism.
        mode: ``declared``, ``discover`` or ``kanon``.
    """

    key: NoiseKey
    deployment: str
    job: str
    job_secret: bytes
    plan_digest: bytes
    mode: str

    def __post_init__(self) -> None:
        if len(self.job_secret) != 32 or len(self.plan_digest) != 32:
            raise ValueError("a job secret and a plan digest are 32 bytes each")

    def __repr__(self) -> str:
        return f"Randomness(key={self.key!r})"

    def tape(self, partition: int, content_digest: bytes) -> PartitionTape:
        """The tape of one partition; ``content_digest`` is the digest of the exact sums."""
        name = length_prefixed(
            b"kanon/reports/noise/1",
            self.key.secret,
            self.key.id.encode(),
            self.deployment.encode(),
            self.job.encode(),
            self.job_secret,
            self.plan_digest,
            self.mode.encode(),
            _number(partition),
            content_digest,
        )
        return PartitionTape(hashlib.shake_256(name).digest(32))


@dataclass(frozen=True)
class DiscreteLaplace:
    """The noise distribution ``P(x) ~ e**(-a |x|)``.

    Privacy guarantee: if a sum changes by v, every probability changes by a factor of at most ``e**(a v)``, up to a
    distance of 2^-249 per draw.

    Args:
        a: rate, epsilon divided by the contribution bound.
        most: the condition ``|x| <= most``, met by drawing again, never by clamping; ``None`` for all integers.
    """

    a: Fraction
    most: int | None = None

    @classmethod
    def of(cls, parameters: PrivacyParameters) -> "DiscreteLaplace":
        """The noise of a job: its rate is epsilon / contribution bound; the threshold bounds it if there is one."""
        return cls(parameters.epsilon / parameters.contribution_bound, parameters.threshold)

    @cached_property
    def thresholds(self) -> tuple[int, ...]:
        """``floor(2^256 / (1 + e**(a 2^i)))`` for each digit i, computed exactly."""
        return _thresholds(self.a)

    @property
    def digits(self) -> int:
        """K, the binary digits of each of the two geometric numbers."""
        return len(self.thresholds)

    def draw(self, tape: PartitionTape, count: int) -> NDArray[np.int64]:
        """Noise for ``count`` keys, in the order of the keys."""
        noise = np.empty(count, np.int64)
        for start, words in _pieces(tape, count, 2 * self.digits):
            noise[start : start + len(words)] = self._numbers(tape, start, words)
        if self.most is not None:
            for key in np.flatnonzero(np.abs(noise) > self.most).tolist():
                noise[key] = self._redrawn(tape, key)
        return noise

    def _redrawn(self, tape: PartitionTape, key: int) -> int:
        attempt = 0
        while True:
            attempt += 1
            words = tape.again(key, attempt, 2 * self.digits)[None, :]
            number = int(self._numbers(tape, key, words, attempt)[0])
            if self.most is None or abs(number) <= self.most:
                return number

    def _numbers(
        self, tape: PartitionTape, start: int, words: NDArray[np.uint64], attempt: int = 0
    ) -> NDArray[np.int64]:
        """One draw for each row of 2K words; row r belongs to key ``start + r``."""
        tops = self._tops[: len(words)]
        ones = words < tops
        ties = words == tops
        if ties.any():  # once in 2^64 words
            for row, word in np.argwhere(ties).tolist():
                rest = self.thresholds[word % self.digits] & ((1 << TIE_BITS) - 1)
                ones[row, word] = tape.tie(start + row, attempt, word) < rest
        return _differences(ones, self.digits)

    @cached_property
    def _tops(self) -> NDArray[np.uint64]:
        """The first 64 bits of the thresholds, for both geometric numbers; a row for each key of a piece."""
        row = np.array([threshold >> TIE_BITS for threshold in self.thresholds] * 2, np.uint64)
        return np.tile(row, (_keys_of_a_piece(len(row)), 1))


def _keys_of_a_piece(width: int) -> int:
    return max(1, _PIECE // (WORD_BYTES * width))


def _pieces(tape: PartitionTape, count: int, width: int) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """The tape of ``count`` keys in pieces: index of the first key, words of shape (keys, width).

    Each piece overwrites the last one: allocating memory for each would take longer than the cipher.
    """
    stream = tape.stream()
    keys = _keys_of_a_piece(width)
    zeros = memoryview(bytes(WORD_BYTES * width * keys))
    words = np.empty((keys, width), "<u8")
    for start in range(0, count, keys):
        piece = words[: count - start]
        stream.update_into(zeros[: piece.nbytes], piece.data.cast("B"))
        yield start, piece


def _differences(ones: NDArray[np.bool_], digits: int) -> NDArray[np.int64]:
    """The first geometric number minus the second; a row holds the digits of both, lowest first."""
    bits = np.zeros((len(ones), 2, 64), bool)
    bits[:, 0, :digits], bits[:, 1, :digits] = ones[:, :digits], ones[:, digits:]
    numbers = np.packbits(bits, bitorder="little").view("<i8").reshape(-1, 2)
    difference: NDArray[np.int64] = numbers[:, 0] - numbers[:, 1]
    return difference


@lru_cache(maxsize=64)
def _thresholds(a: Fraction) -> tuple[int, ...]:
    if not Fraction(1, 1 << 50) <= a <= 200:
        raise ValueError("the rate of the noise must be from 2^-50 to 200")
    found: list[int] = []
    while not found or _digit_matters(a * (1 << len(found))):
        found.append(_threshold(a * (1 << len(found))))
    return tuple(found)


def _digit_matters(x: Fraction, bits: int = 2 * PRECISION) -> bool:
    """Whether ``e**-x >= 2^-256``."""
    low, high = exp_bounds(x, bits)
    limit = 1 << PRECISION
    if (low <= limit) == (high <= limit):
        return low <= limit
    return _digit_matters(x, 2 * bits)


def _threshold(x: Fraction, bits: int = 2 * PRECISION) -> int:
    """``floor(2^256 / (1 + e**x))``, exactly: the upper and lower bounds of ``e**x`` must give the same integer."""
    low, high = exp_bounds(x, bits)
    least, most = (int((1 << PRECISION) / (1 + bound)) for bound in (high, low))
    return least if least == most else _threshold(x, 2 * bits)


def _number(number: int) -> bytes:
    return number.to_bytes(8, "big")


MECHANISM = "kanon/reports/1"
"""Version of the mechanism. Change it with every change of the computation: it changes the noise."""


@dataclass(frozen=True)
class ReleasedPartition:
    """One partition of a summary: keys in ascending order, and their noisy sums. This may be published."""

    keys: NDArray[np.bytes_]
    metrics: NDArray[np.int64]


@dataclass(frozen=True)
class Noised:
    """One partition with its noise. Publish only ``release()``: the other fields show exact sums."""

    exact: Histogram
    noise: NDArray[np.int64]
    threshold: int | None

    def release(self) -> ReleasedPartition:
        """All declared keys, or the discovered keys whose noisy sum is *above* the threshold."""
        metrics = self.exact.sums + self.noise
        if self.threshold is None:
            return ReleasedPartition(self.exact.keys, metrics)
        passes = metrics > self.threshold
        return ReleasedPartition(self.exact.keys[passes], metrics[passes])


def reduce_partition(
    sums: Iterable[Histogram],
    domain: NDArray[np.bytes_] | None,
    parameters: PrivacyParameters,
    randomness: Randomness,
    partition: int = 0,
) -> Noised:
    """Merge the shards' sums of one partition and add noise. ``domain`` has its declared keys, None in discovery.

    With declared keys, all of them are released, also those without reports, and no others. In discovery a key without
    reports could never pass, since noise is at most the threshold.

    Raises:
        JobError: the sums reach 2^62.
    """
    exact = exact_sums(sums, domain)
    tape = randomness.tape(partition, exact.digest())
    return Noised(exact, DiscreteLaplace.of(parameters).draw(tape, len(exact.keys)), parameters.threshold)
