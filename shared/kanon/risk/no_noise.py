"""The privacy of a threshold without noise against an attacker who only watches.

Desfontaines (2020), section 3.2. A group's count is published if it is more than T (a threshold of k is T = k - 1).
Each of n clients is in the group with chance p; the attacker knows p and no client's membership, and wants to learn
whether one client is in the group. Theorem 4: with ``r = p (n-1) / ((1-p) T) < 1`` this is (eps, delta)-private with
``delta = P(B = T) / (1 - r)`` and ``eps = -ln(1 - delta)``, B binomial(n - 1, p). The exact delta at any eps is the
hockey-stick of the two distributions of the output. With b fake members of the attacker, T - b real clients remain
(Proposition 28).

Void against k - 1 fake members, void for repeated releases, not a guarantee of kanon. The rates of a log's groups are
counted by DuckDB.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kanon.joinlog import LogReading
from kanon.risk.errors import RiskError

if TYPE_CHECKING:
    import pyarrow as pa

    from kanon.risk.scan import Coded

EPSILONS = (0.1, 1.0, 3.0)
CAVEAT = "Void against k - 1 fake members, void for repeated releases, not a guarantee of kanon."


@dataclass(frozen=True)
class PlainThreshold:
    """A count that is published if it is more than ``threshold``.

    Args:
        clients: n, real clients, without the attacker's fakes.
        rate: p, the chance that a client is in the group.
        threshold: T; a service that publishes from k clients on has T = k - 1.
        fakes: b, the attacker's members of the group.

    Raises:
        RiskError: a number is out of its range.
    """

    clients: int
    rate: float
    threshold: int
    fakes: int = 0

    def __post_init__(self) -> None:
        if self.clients < 2:
            raise RiskError(f"there must be at least 2 clients, not {self.clients}")
        if not 0 < self.rate <= 1:
            raise RiskError(f"the chance to be in the group must be above 0 and at most 1, not {self.rate:g}")
        if not 0 <= self.fakes <= self.threshold:
            raise RiskError(
                f"with {self.fakes} fakes a threshold of more than {self.threshold} protects nobody:"
                f" give 0 to {self.threshold} fakes"
            )

    @property
    def _left(self) -> int:
        """T - b: the real clients below the threshold."""
        return self.threshold - self.fakes

    @property
    def r(self) -> float:
        """The theorem's r. It must be below 1."""
        if self.rate == 1 or self._left == 0:
            return math.inf
        return self.rate * (self.clients - 1) / ((1 - self.rate) * self._left)

    @property
    def delta_bound(self) -> float | None:
        """Theorem 4's delta; None if r >= 1 (no bound) or if it would be 1 or more."""
        if self.r >= 1:
            return None
        if self._left >= self.clients:
            return 0.0
        bound = float(self._others[self._left]) / (1 - self.r)
        return bound if bound < 1 else None

    @property
    def eps_bound(self) -> float | None:
        """Theorem 4's eps."""
        return None if self.delta_bound is None else -math.log1p(-self.delta_bound)

    @property
    def tail_exact(self) -> float:
        """The chance that at least T - b of the others are in the group: one more client can change the output."""
        return float(self._others[self._left :].sum())

    def exact_delta(self, epsilon: float) -> float:
        """The least delta at which the release is (epsilon, delta)-private for one client, both directions.

        With the client in the group the count j has the chance ``P(B = j - 1)``, without it ``P(B = j)``.
        """
        factor = math.exp(epsilon)
        with_client = self._others[self._left :]
        without = np.append(self._others[self._left + 1 :], 0.0)[: len(with_client)]
        joining = np.maximum(with_client - factor * without, 0.0).sum()
        leaving = np.maximum(without - factor * with_client, 0.0).sum()
        # The probability of no output is P(B < T - b) if the client is in the group, else P(B <= T - b).
        nothing = float(with_client[:1].sum()) - math.expm1(epsilon) * float(self._others[: self._left].sum())
        return max(float(joining), float(leaving) + max(nothing, 0.0))

    @cached_property
    def _others(self) -> NDArray[np.float64]:
        """P(B = j) for j = 0, 1, ... until it underflows."""
        others = self.clients - 1
        if self.rate == 1:
            return np.append(np.zeros(others), 1.0)
        most = min(others, int(10 * others * self.rate) + 2_000 + self._left)
        j = np.arange(most)
        odds = math.log(self.rate) - math.log1p(-self.rate)
        logs = np.concatenate([[0.0], np.cumsum(np.log((float(others) - j) / (j + 1)) + odds)])
        return np.exp(others * math.log1p(-self.rate) + logs)

    def as_json(self) -> dict[str, Any]:
        """All fields, for programs."""
        bound = self.eps_bound
        return {
            "clients": self.clients,
            "expected": self.clients * self.rate,
            "more_than": self.threshold,
            "fakes": self.fakes,
            "r": self.r if math.isfinite(self.r) else None,
            "delta_bound": self.delta_bound,
            "eps_bound": bound,
            "exact_delta_at_eps_bound": None if bound is None else self.exact_delta(bound),
            **{f"exact_delta_at_{epsilon:g}": self.exact_delta(epsilon) for epsilon in EPSILONS},
            "tail_exact": self.tail_exact,
        }


# --- the rates of a log ---------------------------------------------------------------------------

_EPOCH = "1970-01-01"
_INSERT = "insert into joins select distinct grp, usr, (day::date - '1970-01-01'::date) // $1 from batch"
_MEMORY = "512MB"  # the rest is spilled to disk


@dataclass(frozen=True)
class Rates:
    """The groups of a log.

    Attributes:
        clients: n, distinct users of the log.
        windows: windows from the first to the last day of the log.
        groups: value and mean number of distinct users in a window, from many to few.
    """

    clients: int
    windows: int
    groups: tuple[tuple[str, float], ...]


def rates(source: Path, value: str, user: str, window_days: int | None, reading: LogReading | None = None) -> Rates:
    """The rates of a log's groups, by DuckDB.

    Args:
        source: a CSV, JSON or Parquet file.
        value: the value column.
        user: the user column.
        window_days: length of a window; needs the column ``time``. None: the whole log is one window.
        reading: how the log is read; by default a row that cannot be read is an error.

    Raises:
        RiskError: the file or a row of it cannot be read, or it has no rows.
    """
    import duckdb
    import pyarrow as pa

    from kanon.risk.scan import batches

    columns = {"grp": value, "usr": user, **({"day": "day"} if window_days else {})}
    with (
        TemporaryDirectory() as folder,
        duckdb.connect(config={"memory_limit": _MEMORY, "temp_directory": folder}) as database,
    ):
        database.execute("create table joins (grp varchar, usr varchar, win bigint)")
        for batch in batches(source, columns.values(), user, reading):
            complete = pa.table({name: _text(batch[column]) for name, column in columns.items()}).drop_null()
            if not window_days:  # all rows have one day
                complete = complete.append_column("day", pa.repeat(_EPOCH, len(complete)))
            database.register("batch", complete)
            try:
                database.execute(_INSERT, [window_days or 1])
            except duckdb.ConversionException as error:
                raise RiskError("column 'day' must hold dates such as 2012-02-05") from error
        ((clients, windows),) = database.execute(
            "select count(distinct usr), coalesce(max(win) - min(win) + 1, 0) from joins"
        ).fetchall()
        groups = database.execute(
            "select grp, count(*) / $1 from (select distinct * from joins) group by grp order by 2 desc, 1", [windows]
        ).fetchall()
    if not groups:
        raise RiskError(f"{source} has no row with a {value} and a {user}")
    return Rates(clients, windows, tuple(groups))


def _text(column: "Coded") -> "pa.Array":
    import pyarrow as pa

    codes = pa.array(column.codes, mask=column.codes < 0)
    return pa.DictionaryArray.from_arrays(codes, column.texts.cast(pa.large_string()))
