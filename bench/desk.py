"""`kanon release` and `kanon simulate` relative to exact queries of DuckDB on the same file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fractions import Fraction
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from bench.harness import Comparison, Form, Side, Turn
from bench.stack import PERIOD, fledge
from kanon.joinlog.numbered import read_batches
from kanon.release import Ledger, Spec
from kanon.release import release as release_with
from kanon.release.engines.duckdb import DuckDB
from kanon.simulate.part import PartKeys
from kanon.simulate.run import Simulation
from kanon.simulate.run import simulate as simulate_with

FIRST, DAYS = 1_767_225_600, 45
CHUNK = 1_000_000
GROUPS_A_USER = 20
"""More than any user of the generated log has, so nothing is left out."""
COUNTS = """select "set", count(distinct client) from read_csv(?) group by "set" order by "set" """
SLIDING = """
    with joins as (select "set", client, time // {period} as step from read_csv($log)),
    bounds as (select count(*) as joins, max(step) + 1 as until from joins),
    touched as (select distinct "set", client, step from joins),
    ends as (
        select "set", step, coalesce(step > lag(step) over member + {window}, true) as begins,
            coalesce(lead(step) over member > step + {window}, true) as ends
        from touched window member as (partition by "set", client order by step)),
    changes as (
        select "set", since, sum(change) as change from (
            select "set", step as since, 1 as change from ends where begins
            union all select "set", step + {window}, -1 from ends where ends)
        group by all),
    counts as (
        select "set", since, lead(since) over counted as next, sum(change) over counted as count
        from changes window counted as (partition by "set" order by since))
    select (select joins from bounds), (select count(distinct "set") from joins),
        (select count(*) from (select distinct "set", step from joins)), count(distinct "set"),
        sum(least(next, until) - since)::bigint
    from counts, bounds where count >= {k} and since < until
"""
"""Joins, sets, touched sets of all steps, sets that ever count k clients in a window, and their steps with k or more:
the exact count changes where a client's run of joins without a gap of a window begins, and a window after its end."""


def rows(form: Form) -> Iterator[Comparison]:
    """One release and one simulation."""
    with TemporaryDirectory() as folder:
        groups = form.size(200_000, 500)
        log = generate(Path(folder) / "release.csv", 10 * groups, groups, users=4 * groups)
        yield Comparison(
            f"release of {groups:,} groups, {10 * groups:,} rows",
            "reading and checking the CSV, bounding, ledger, noise, the released rows",
            "DuckDB's count(distinct) of the same file", "row",
            Side(release, (log, 10 * groups)), Side(counts, (log, 10 * groups)), form.size(3, 1), 2.0,
        )  # fmt: skip
        joins = form.size(10_000_000, 20_000)
        log = generate(Path(folder) / "simulate.csv", joins, joins // 10, users=joins // 3)
        yield Comparison(
            f"simulate, {joins:,} joins over up to {joins // 10:,} sets",
            "reading and checking the CSV, keys and tokens, exact counts, the service's answers and their cost",
            "the exact sliding count in DuckDB", "join",
            Side(simulation, (log, joins)), Side(sliding, (log, joins)), form.size(3, 1), 2.0, warm=form.short,
        )  # fmt: skip


def generate(path: Path, joins: int, sets: int, users: int) -> Path:
    """Write a log of 45 days in the order of time: sets of uneven popularity, clients of even activity."""
    random = np.random.default_rng(15)
    schema = pa.schema({"time": pa.int64(), "set": pa.string(), "client": pa.string()})
    # Every set has a join; the others go to set number r in proportion to 1 / r.
    owners = np.concatenate((np.arange(1, min(sets, joins) + 1), sets ** random.random(max(0, joins - sets))))
    random.shuffle(owners)
    with pacsv.CSVWriter(path, schema, write_options=pacsv.WriteOptions(quoting_style="none")) as writer:
        for start in range(0, joins, CHUNK):
            chosen = owners[start : start + CHUNK].astype(np.int64)
            begin, end = (FIRST + DAYS * 86_400 * at // joins for at in (start, start + len(chosen)))
            times = np.sort(random.integers(begin, max(end, begin + 1), len(chosen)))
            clients = random.integers(0, users + 1, len(chosen))
            columns = [pa.array(times), _names("set/", chosen), _names("client-", clients)]
            writer.write_table(pa.table(columns, schema=schema))
    return path


def _names(prefix: str, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


@contextmanager
def release(log: Path, joins: int) -> Iterator[Callable[[], Turn]]:
    """Releases, each with a ledger of its own. The answer is the table before noise."""
    spec = Spec(groups=("set",), epsilon=Fraction(1), delta=Fraction(1, 10**6), groups_per_user=GROUPS_A_USER)
    with DuckDB().table([log], spec.bounding, secret="none") as table:  # noqa: S106, nothing is sampled
        exact = [row for piece in table._pieces("by name") for row in zip(*piece.to_pydict().values(), strict=True)]  # noqa: SLF001
    with TemporaryDirectory() as folder:
        ledgers = (Ledger.at(Path(folder) / str(number)) for number in itertools.count())
        work = partial(_released, log, spec, ledgers)
        yield lambda: Turn(joins, work, lambda _: exact)


def _released(log: Path, spec: Spec, ledgers: Iterator[Ledger]) -> None:
    release_with(log, spec, next(ledgers), dataset="log")


def counts(log: Path, joins: int) -> AbstractContextManager[Callable[[], Turn]]:
    """The exact number of users of each group."""
    return nullcontext(lambda: Turn(joins, partial(_fetched, COUNTS, [str(log)]), lambda found: found))


def _fetched(query: str, parameters: Any) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("set enable_progress_bar = false")
        return connection.execute(query, parameters).fetchall()


def simulation(log: Path, joins: int) -> AbstractContextManager[Callable[[], Turn]]:
    """``kanon simulate`` with one type."""

    def work() -> Simulation:
        return simulate_with(read_batches(log), [fledge()], PartKeys.from_seed(1), PERIOD)

    def answer(found: Simulation) -> list[tuple[int, ...]]:
        (one,) = found.outcomes
        return [(one.joins, one.sets, one.touched, one.sets_reached, one.answers_reached)]

    return nullcontext(lambda: Turn(joins, work, answer))


def sliding(log: Path, joins: int) -> AbstractContextManager[Callable[[], Turn]]:
    """The exact counts of the same type."""
    parameters = fledge().parameters
    query = SLIDING.format(period=PERIOD, window=parameters.window, k=parameters.k)
    return nullcontext(lambda: Turn(joins, partial(_fetched, query, {"log": str(log)}), lambda found: found))
