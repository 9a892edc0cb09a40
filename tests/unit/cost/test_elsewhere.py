"""The same load in other systems: each figure against one worked out by hand."""

import json
import re
from dataclasses import replace
from importlib.resources import files

import pytest

from kanon.cost import elsewhere
from kanon.cost.billing import bill, read_measured, read_prices
from kanon.cost.workload import Workload
from tests.unit.examples import PUBLISHED

MEASURED, PRICES = read_measured(), read_prices()
LOAD = Workload(PUBLISHED, 1_000.0, 500, 20.0, sets=10**7)
SECONDS, ROWS = 730 * 3600, 1_000 * 3600 * 720
SERVED = 20 * SECONDS * 100 / 2 / 1e6 * 0.125 + 22 * SECONDS / 1e6 + 20 * SECONDS / 1e6 * 0.2
"""Dollars for reads of statuses, requests to the API and calls of a function."""
OUT = SECONDS * (2 * (250 + 4 * 500) + 20 * (250 + 100 + 470)) / 1e9 * 0.09
"""Dollars for the answers."""


def dollars(name: str, load: Workload = LOAD) -> float:
    return elsewhere.totals(load, MEASURED, PRICES)[name]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Two nodes of two vCPUs and three keepers, 83 GB a node, a load balancer.
        ("ClickHouse, two replicas", 730 * 7 * 0.0408 + (2 * 2 * ROWS * 16 / 1e9 + 30) * 0.08 + 730 * 0.0305 + OUT),
        # One shard, two payload units a batch, three KPUs for 104 GB of state and one more.
        ("Kinesis and Flink", SERVED + 730 * (0.015 + 4 * 0.11) + 4 * SECONDS / 1e6 * 0.014 + 150 * 0.10),
        # 30,000 bytes a batch; the window is read 730 times.
        ("S3 and Athena", SERVED + SECONDS * 6e4 / 1e9 * (0.029 + 0.018) + ROWS * 16 / 1e12 * (730 * 5 + 23)),
        (
            "BigQuery",
            SERVED + SECONDS * 6e4 * (0.025 / (1 << 30) + 0.09 / 1e9)
            + ROWS * 24 * (0.02 / (1 << 30) + 730 * 6.25 / (1 << 40)),
        ),
    ],
)  # fmt: skip
def test_the_bill_of_another_system_equals_one_worked_out_by_hand(name: str, expected: float) -> None:
    assert dollars(name) == pytest.approx(expected, rel=0.02)


def test_every_system_is_priced_for_every_load_of_the_table() -> None:
    rows = list(elsewhere.table(PUBLISHED, MEASURED, PRICES))
    assert [row.load for row in rows] == [name for name, _ in elsewhere.LOADS]
    assert rows[-1].workload.sets == 10**9
    for row in rows:
        assert row.others.keys() == {system.name for system in elsewhere.SYSTEMS}
        assert row.others == elsewhere.totals(row.workload, MEASURED, PRICES)
        assert row.a_million == pytest.approx(row.ours.total / (row.workload.joins * SECONDS / 1e6))


def test_the_table_says_where_kanon_is_dearer() -> None:
    """The page names these: a small window is cheap to scan, and servers hold many sets cheaply."""
    small, medium, large, billion = elsewhere.table(PUBLISHED, MEASURED, PRICES)
    assert small.others["S3 and Athena"] < small.ours.total < small.others["ClickHouse, two replicas"]
    assert small.others["BigQuery"] < small.ours.total
    for load in (medium, large):
        assert load.ours.total < min(load.others.values())
    assert billion.others["ClickHouse, two replicas"] < billion.ours.total < billion.others["S3 and Athena"]


@pytest.mark.parametrize("system", elsewhere.SYSTEMS, ids=lambda system: system.name)
def test_a_system_costs_more_for_more_joins_and_names_what_it_assumes(system: elsewhere.System) -> None:
    loads = [replace(LOAD, joins=joins) for joins in (1.0, 1_000.0, 100_000.0)]
    totals = [bill(system.usage(load, MEASURED), PRICES).total for load in loads]
    assert totals == sorted(totals)
    assert len(system.assumes.split()) > 10


def test_every_price_of_another_system_says_what_confirms_it() -> None:
    text = files("kanon.cost").joinpath("prices.json").read_text()
    others = {"ec2", "ebs", "elb", "kinesis", "flink", "firehose", "athena", "bigquery"}
    for name, price in json.loads(text)["prices"].items():
        if name.partition(".")[0] in others:
            assert re.search(r"from memory|page of \w+ \d{4}|\(\d{4}\)", price["source"]), name
