"""The membership attack on HyperLogLog: a stored cardinality sketch reveals its members.

Desfontaines (2020), section 3.3. An attacker with the registers and the hash function inserts a candidate. If no
register changes, the candidate was probably inserted before. A member never changes a register, so every member is
found. After n insertions a stranger also changes none with the chance ``sum_r 2^-r (1 - (1 - 2^(-p-r+1))^n)``. Without
the secret key the attacker computes other hashes, which do not separate members from strangers.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kanon.joinlog import LogReading
from kanon.risk.errors import RiskError
from kanon.risk.hashing import HashArray, HashKey, Registers, estimate, index_and_rank, public_hashes, registers_of

Floats = NDArray[np.float64]

HASH_BITS = 64
PRECISION = 15
"""A sketch has 2^15 registers."""


@dataclass(frozen=True)
class Attack:
    """The result of an attack: members found, strangers taken for members."""

    members: int
    strangers: int
    found: int
    false: int

    @property
    def hit_rate(self) -> float:
        """Share of the members that are found."""
        return self.found / self.members

    @property
    def false_rate(self) -> float:
        """Share of the strangers that are taken for members."""
        return self.false / self.strangers if self.strangers else 0.0

    @property
    def precision(self) -> float:
        """Share of true members among all that are taken for members."""
        return self.found / max(self.found + self.false, 1)

    @property
    def chance(self) -> float:
        """The probability that guessing finds as many members: the upper tail of the hypergeometric distribution.

        A value below about 0.001 shows that the attack works.
        """
        hits, everybody = self.found + self.false, self.members + self.strangers
        logs: Floats = np.append(0.0, np.cumsum(np.log(np.arange(1.0, everybody + 1))))  # of factorials

        def ways(n: int, chosen: NDArray[np.int64]) -> Floats:
            of_ways: Floats = logs[n] - logs[chosen] - logs[n - chosen]
            return of_ways

        among = np.arange(max(self.found, hits - self.strangers), min(hits, self.members) + 1)
        of_all = ways(everybody, np.array([hits]))
        return min(float(np.exp(ways(self.members, among) + ways(self.strangers, hits - among) - of_all).sum()), 1.0)

    def as_json(self) -> dict[str, Any]:
        """All of it, for a program."""
        rates = {"hit_rate": self.hit_rate, "false_rate": self.false_rate, "precision": self.precision}
        return {**asdict(self), **rates, "chance": self.chance}


@dataclass(frozen=True)
class Leak:
    """The attack on one group, with a public hash and with a secret key.

    Attributes:
        precision_bits: p: 2^p registers.
        estimate: the sketch's estimate of the number of members.
        predicted_false_rate: the closed form.
        predicted_spread: standard deviation of the false rate around it.
        public: the attack if the hash is public.
        keyed: the attack if the hash has a key the attacker does not know.
    """

    precision_bits: int
    estimate: float
    predicted_false_rate: float
    predicted_spread: float
    public: Attack
    keyed: Attack

    def as_json(self) -> dict[str, Any]:
        """All of it, for a program."""
        return {**asdict(self), "public": self.public.as_json(), "keyed": self.keyed.as_json()}


def leak(members: Sequence[bytes], candidates: Sequence[bytes], p: int, key: HashKey) -> Leak:
    """Attack the sketch of the members with all candidates.

    Args:
        members: distinct user ids, each of them also a candidate.
        candidates: distinct user ids.
        p: 2^p registers.
        key: the key of the second attack; the attacker does not know it.
    """
    guesses = public_hashes(candidates)
    group = set(members)
    inside = np.array([candidate in group for candidate in candidates])
    registers = registers_of(public_hashes(members), p)
    secret = registers_of(key.users(members), p)
    strangers = int((~inside).sum())
    return Leak(
        p,
        estimate(registers),
        false_rate(p, len(members)),
        false_rate_spread(p, len(members), strangers),
        _attack(registers, guesses, inside, p),
        _attack(secret, guesses, inside, p),
    )


def _attack(registers: Registers, guesses: HashArray, inside: NDArray[np.bool_], p: int) -> Attack:
    taken = ignored(registers, guesses, p)
    members = int(inside.sum())
    return Attack(members, len(inside) - members, int((taken & inside).sum()), int((taken & ~inside).sum()))


def ignored(registers: Registers, hashes: HashArray, p: int) -> NDArray[np.bool_]:
    """For each hash, whether it would change no register."""
    index, rank = index_and_rank(hashes, p)
    return rank <= registers[index]


def false_rate(p: int, n: int) -> float:
    """The chance that a stranger changes none of 2^p registers after n insertions."""
    weights, _, below = _ranks(p, n)
    return float((weights * -np.expm1(below)).sum())


def false_rate_spread(p: int, n: int, strangers: int) -> float:
    """The standard deviation, over the hash function, of the false rate among ``strangers`` strangers.

    The registers R_j have the rate ``X = 2^-p sum_j x_j`` with ``x_j = sum_{r <= R_j} 2^-r``; its variance is added to
    that of the strangers. Registers are multinomial: ``P(R_1 < r, R_2 < s) = (1 - a_r - a_s)^n``.
    """
    mean, m = false_rate(p, n), 2.0**p
    weights, reach, below = _ranks(p, n)
    both = np.outer(weights, weights)
    square = float((both * -np.expm1(np.maximum.outer(below, below))).sum())
    shared = np.outer(reach / (1 - reach), reach / (1 - reach))  # 1 - (1 - a_r - a_s) / ((1 - a_r) (1 - a_s))
    covariance = float((both * np.exp(np.add.outer(below, below)) * np.expm1(n * np.log1p(-shared))).sum())
    of_registers = (square - mean**2) / m + (1 - 1 / m) * covariance
    return math.sqrt(max(of_registers, 0.0) + mean * (1 - mean) / max(strangers, 1))


def _ranks(p: int, n: int) -> tuple[Floats, Floats, Floats]:
    """For r = 1..64-p: ``2^-r``; ``a_r = 2^(-p-r+1)``, by which an insertion reaches r; ``n log(1 - a_r)``."""
    weights: Floats = np.ldexp(np.ones(HASH_BITS - p), -np.arange(1, HASH_BITS - p + 1))
    reach: Floats = weights * 2.0 ** (1 - p)
    below: Floats = n * np.log1p(-reach)
    return weights, reach, below


def users_of(
    source: Path, group: str, value: str, user: str, reading: LogReading | None = None
) -> tuple[list[bytes], list[bytes]]:
    """The users of the values that match a pattern, and all users; both in the order of their bytes.

    Args:
        source: a CSV, JSON or Parquet file.
        group: a value, or a pattern with ``*`` and ``?``.
        value: the value column.
        user: the user column.
        reading: how the log is read; by default a row that cannot be read is an error.

    Raises:
        RiskError: the file or a row of it cannot be read, no value matches, or all users are members.
    """
    from kanon.risk.scan import batches

    members: set[bytes] = set()
    everybody: set[bytes] = set()
    for batch in batches(source, [value], user, reading):
        values, users = batch[value], batch[user]
        texts = values.texts.to_pylist()
        chosen = np.array([fnmatchcase(text.decode(), group) for text in texts] + [False])  # the last is code -1
        everybody.update(users.texts_of(np.unique(users.codes[users.codes >= 0])))
        members.update(users.texts_of(np.unique(users.codes[chosen[values.codes] & (users.codes >= 0)])))
    if not members:
        raise RiskError(f"no value of column {value!r} matches --group: give a value of the log, or a pattern with *")
    return sorted(members), sorted(everybody)
