"""Quantities follow from the workload."""

import math
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from kanon.cost.billing import CostError, bill, read_measured, read_prices
from kanon.cost.evaluating import SlotStep
from kanon.cost.month import alternatives, request_gb_seconds, table_bytes, usage
from kanon.cost.popularity import Popularity
from kanon.cost.workload import Workload, logged, packed_bytes, sealed_bytes
from kanon.dynamo.units import item_size, write_units
from kanon.gate.slots import Layout
from kanon.gate.storage.aws.step_log import Row, pack_all
from tests.infrastructure.template import ROOT, functions, read
from tests.unit.examples import PUBLISHED

LOAD = Workload(PUBLISHED, 100.0, queries=5.0, sets=100_000)
MEASURED, PRICES = read_measured(), read_prices()


@pytest.mark.parametrize(("sets", "exponent"), [(1, 1.1), (500, 0.0), (3_000, 1.1), (50_000, 0.6), (50_000, 2.0)])
def test_the_groups_by_popularity_equal_the_groups_of_single_sets(sets: int, exponent: float) -> None:
    popularity = Popularity(sets, exponent)
    assert sum(group.sets for group in popularity.groups) == sets
    assert sum(group.sets * group.share for group in popularity.groups) == pytest.approx(1)
    weights = [rank**-exponent for rank in range(1, sets + 1)]
    total = sum(weights)
    for joins in (1, 1_000, 10**6):
        exact = sum(1 - (1 - weight / total) ** joins for weight in weights)
        assert popularity.touched(joins) == pytest.approx(exact, rel=0.002)


def test_the_number_of_touched_sets_equals_a_simulation() -> None:
    chance = Random(1)
    weights = [rank**-1.1 for rank in range(1, 20_001)]
    counted = [len(set(chance.choices(range(20_000), weights, k=5_000))) for _ in range(20)]
    # The standard deviation of a count is below 40, that of the mean of 20 below 9: 1% is more than two of them.
    assert Popularity(20_000, 1.1).touched(5_000) == pytest.approx(sum(counted) / 20, rel=0.01)


def test_a_billion_sets_are_computed_as_fast_as_a_million() -> None:
    assert len(Popularity(10**9, 1.1).groups) < 2_000


def test_batches_change_requests_and_never_the_answers_of_the_model() -> None:
    single, batched = usage(LOAD, MEASURED), usage(replace(LOAD, batch=500), MEASURED)
    joins = 100.0 * 730 * 3600
    assert single["apigateway.http"] - batched["apigateway.http"] == pytest.approx(joins * 499 / 500)
    assert batched["dynamodb.write"] < single["dynamodb.write"] / 1.5
    assert batched["dynamodb.read"] < single["dynamodb.read"]


def test_a_batch_is_written_as_one_packed_item_for_each_slot() -> None:
    rows = [Row(480_000, number.to_bytes(32, "big"), 65_535, "fledge", 10**9) for number in range(500)]
    for count in (2, 31, 500):
        assert packed_bytes(count) == item_size(pack_all(rows[:count], Layout(1, 0, 1)))
    # On one slot a batch is one item, and its units are those of that item.
    assert logged(500, 1).units == write_units(packed_bytes(500)) / 500
    assert (logged(1, 16).units, logged(1, 16).items) == (1, 1)
    # 500 joins fill all of 16 slots; two joins share a slot once in 256.
    assert logged(500, 16).items == pytest.approx(16 / 500)
    assert logged(2, 256).items == pytest.approx(1 - 1 / 512)


@pytest.mark.parametrize("value", [1, 30, 31, 512])
def test_a_join_of_a_listed_type_takes_one_unit_and_a_batch_takes_its_values_besides(value: int) -> None:
    size = sealed_bytes(value)
    rows = [Row(480_000, number.to_bytes(32, "big"), 65_535, "fledge", 10**9, bytes(size)) for number in range(500)]
    for count in (2, 31, 500):
        assert packed_bytes(count, size) == item_size(pack_all(rows[:count], Layout(1, 0, 1)))
    assert logged(1, 16, size).units == 1
    assert logged(500, 1, size).size == pytest.approx(logged(500, 1).size + 2 + size, abs=0.02)


def test_the_guide_has_the_units_of_joins_with_and_without_values() -> None:
    page = " ".join((ROOT / "docs" / "guides" / "cost.md").read_text().split())
    none, short, long = (f"{logged(100, 16, size).units:.2f}" for size in (0, sealed_bytes(32), sealed_bytes(512)))
    assert f"a join takes {none} write units without one, {short} with 32 bytes, {long} with 512" in page


def test_a_listed_type_costs_a_secret_and_more_of_what_carries_values() -> None:
    plain, listed = usage(LOAD, MEASURED), usage(replace(LOAD, value=512), MEASURED)
    assert listed["secrets.stored"] == plain["secrets.stored"] + 1
    assert listed["dynamodb.write"] == plain["dynamodb.write"]
    larger = {
        "lambda.arm64",
        "lambda.temporary",
        "dynamodb.read",
        "dynamodb.storage",
        "s3.puts",
        "s3.gets",
        "s3.storage",
    }
    assert {name for name in plain if listed[name] > plain[name]} == {*larger, "secrets.stored", "kms.requests"}
    batched = usage(replace(LOAD, batch=100, value=512), MEASURED)
    assert batched["dynamodb.write"] > usage(replace(LOAD, batch=100), MEASURED)["dynamodb.write"]


@pytest.mark.slow
def test_the_units_of_a_batch_equal_the_mean_of_random_batches() -> None:
    chance = Random(2)
    for batch in (10, 100):
        units = [
            sum(write_units(packed_bytes(count)) for count in Counter(chance.choices(range(16), k=batch)).values())
            for _ in range(400)
        ]
        assert logged(batch, 16).units == pytest.approx(sum(units) / len(units) / batch, rel=0.02)


def test_quantities_of_a_steady_load_grow_in_proportion() -> None:
    alike = Workload(PUBLISHED, 1_000.0, queries=50.0, sets=10**9, exponent=0.0)
    once, twice = usage(alike, MEASURED), usage(replace(alike, joins=2_000.0, queries=100.0), MEASURED)
    for name in ("apigateway.http", "dynamodb.write", "dynamodb.read", "logs.ingested", "lambda.arm64"):
        assert twice[name] == pytest.approx(2 * once[name], rel=0.01), name


def test_queries_read_a_stamp_each_and_after_a_tick_the_horizons_and_some_sets_until_the_objects_are_there() -> None:
    """One query a second, in one environment: it waits 30 s on average, and then loads an object with each request."""
    every_hour = replace(LOAD, queries=1.0, hashes=30, slots=16, crossed=16_000.0)
    read, without = (usage(one, MEASURED) for one in (every_hour, replace(every_hour, queries=0.0)))
    sets = 730 * 30 * (1 + 30 + 16 / 2)
    assert read["dynamodb.read"] - without["dynamodb.read"] == pytest.approx((730 * (3600 + 16) + sets) / 2)
    assert read["s3.gets"] - without["s3.gets"] == pytest.approx(730 * 16)


def test_where_nothing_crosses_only_the_first_query_after_a_tick_reads_sets() -> None:
    still = replace(LOAD, queries=1.0, hashes=30, slots=16, crossed=0.0)
    read, without = (usage(one, MEASURED) for one in (still, replace(still, queries=0.0)))
    assert read["dynamodb.read"] - without["dynamodb.read"] == pytest.approx(730 * (3600 + 16 + 30) / 2)
    assert read["s3.gets"] == without["s3.gets"]


@pytest.mark.parametrize(("sets", "slots"), [(1_100_000, 1), (9 * 10**6, 16)])
def test_more_true_sets_than_fit_into_an_object_or_into_memory_are_read_from_the_table(sets: int, slots: int) -> None:
    many = Workload(PUBLISHED, 10**6, batch=500, queries=1.0, hashes=30, sets=sets, exponent=0.0, slots=slots)
    assert many.popular == sets
    read, without = (usage(one, MEASURED) for one in (many, replace(many, queries=0.0)))
    assert read["dynamodb.read"] - without["dynamodb.read"] == pytest.approx(730 * (3600 * 31 + slots) / 2)
    assert read["s3.gets"] == without["s3.gets"]


def test_objects_of_true_sets_are_put_where_a_set_crosses() -> None:
    still, crossing, many = (
        SlotStep(replace(LOAD, crossed=crossed, sets=sets, exponent=0.0, joins=joins, batch=500), MEASURED)
        for crossed, sets, joins in ((0.0, 10, 1.0), (1e4, 10, 1.0), (1e4, 10**8, 1e8))
    )
    assert (still.shown, many.shown) == (0.0, 0.0)
    assert crossing.shown == pytest.approx(1.0)
    assert (crossing.put - still.put, crossing.got - still.got) == pytest.approx((1, 1))


def test_only_lines_that_the_functions_write_are_charged() -> None:
    """Every function drops the START, END and REPORT lines of Lambda."""
    for file in ("template.yaml", "infra/reports.yaml", "infra/anonymous.yaml"):
        document = read(ROOT / file)
        for name, function in functions(document).items():
            assert function["LoggingConfig"]["SystemLogLevel"] == "WARN", name
    joins_only = Workload(PUBLISHED, 1_000.0, slots=1)
    joins, environments = 1_000 * 3600 * 730, math.ceil(1_000 * (1.14 * 1769 / 512 + 5) / 1000)
    lines = (0.001 * joins + environments * 60 * 730) * MEASURED["join_log_bytes"]
    lines += joins * MEASURED["access_log_bytes"] + 730 * MEASURED["evaluate_log_bytes"]
    assert usage(joins_only, {**MEASURED, "join_ms": 1.14})["logs.ingested"] * 1e9 == pytest.approx(lines)


def test_seldom_joins_write_a_line_each() -> None:
    """An environment waits a minute for its next line; a join comes every 100 s."""
    seldom = Workload(PUBLISHED, 0.01, sets=10, slots=1)
    lines = 0.01 * 3600 * 730 * (MEASURED["join_log_bytes"] + MEASURED["access_log_bytes"])
    lines += 730 * MEASURED["evaluate_log_bytes"]
    assert usage(seldom, MEASURED)["logs.ingested"] * 1e9 == pytest.approx(lines)


def test_the_quantities_of_a_load_equal_those_worked_out_by_hand() -> None:
    """100 single joins and 5 queries of 100 hashes a second, of which ten are true; 16 slots, one step an hour."""
    used, seconds, values = usage(LOAD, MEASURED), 730 * 3600, MEASURED
    calls = 105 * seconds + 16 * 730 + 730
    assert used["lambda.requests"] == pytest.approx(calls)
    objects = used["s3.puts"] + used["s3.gets"]
    assert used["kms.requests"] == pytest.approx(values["cold_starts"] * calls + 0.01 * objects)
    assert used["secrets.requests"] == pytest.approx(2 * values["cold_starts"] * calls)
    answers = 100 * (values["header_bytes"] + 4) + 5 * (values["header_bytes"] + 100 + 470)
    assert used["transfer.out"] * 1e9 == pytest.approx(seconds * answers)
    join = values["join_ms"] * 1769 / 512 + values["call_ms"]
    query = (values["query_ms"] + 100 * values["hash_ms"]) * 1769 / 512 + values["call_ms"]
    assert request_gb_seconds(LOAD, MEASURED) == pytest.approx(0.5 * (100 * join + 5 * query) / 1000)
    one_set = replace(LOAD, sets=1)
    assert table_bytes(one_set) == pytest.approx(100 * 7 * 86_400 * (packed_bytes(1) + 100) + 200)


def test_every_alternative_has_a_price_and_the_first_ones_are_the_batches() -> None:
    others = alternatives(LOAD, MEASURED, {})
    totals = {name: bill(used, PRICES).total for name, used in others.items()}
    assert list(totals)[:4] == ["one join a request", "batches of 10", "batches of 100", "batches of 500"]
    assert totals["one join a request"] == bill(usage(LOAD, MEASURED), PRICES).total
    assert sorted(list(totals.values())[:4], reverse=True) == list(totals.values())[:4]
    requests = usage(LOAD, MEASURED)["apigateway.http"]
    base = totals["one join a request"]
    assert totals["REST API instead of HTTP API"] - base == pytest.approx(2.5 * requests / 1e6)
    edge = others["with CloudFront and WAF in front"]
    assert edge["cloudfront.requests"] == edge["waf.requests"] == requests


def test_counting_by_queries_reads_every_item_of_the_window() -> None:
    others = alternatives(replace(LOAD, sets=1), MEASURED, {})
    counted_usage = next(used for name, used in others.items() if "counted by queries" in name)
    rows = 100.0 * 3600 * 720
    hashes = 5.0 * 730 * 3600 * 100
    assert counted_usage["dynamodb.read"] == pytest.approx(hashes * rows * packed_bytes(1) / 4096 / 2, rel=0.001)
    assert counted_usage["s3.storage"] == counted_usage["sqs.requests"] == 0
    assert len(others) == 12


def test_a_function_url_leaves_out_the_gateway_and_its_log_for_single_joins_alone() -> None:
    others, joins = alternatives(LOAD, MEASURED, {}), 100.0 * 3600 * 730
    base, edge = others["one join a request"], others["with CloudFront and WAF in front"]
    signed = others["single joins at a function URL, signed"]
    behind = others["with CloudFront and WAF in front, single joins at a function URL"]
    for url, api in ((signed, base), (behind, edge)):
        less = {name: api[name] - url[name] for name in api if api[name] != url[name]}
        logged = joins * MEASURED["access_log_bytes"] / 1e9
        rules = {} if url is signed else {"waf.rules": -1}
        assert less == pytest.approx(
            {"apigateway.http": joins, "logs.ingested": logged, "logs.stored": logged, **rules}
        )
    totals = [bill(used, PRICES).total for used in (signed, base, behind, edge)]
    assert totals == sorted(totals)  # an edge costs more than the gateway that a URL saves
    assert not [name for name in alternatives(replace(LOAD, batch=10), MEASURED, {}) if "URL" in name]


def test_a_join_through_a_relay_is_a_second_call_that_waits_for_the_first() -> None:
    others, joins = alternatives(LOAD, MEASURED, {}), 100.0 * 3600 * 730
    base, relayed = others["one join a request"], others["single joins through a relay"]
    more = {name: relayed[name] - base[name] for name in relayed if relayed[name] != base[name]}
    milliseconds = (MEASURED["join_ms"] + MEASURED["gateway_ms"]) * 1769 / 512 + 2 * 5.0
    logged = joins * MEASURED["query_log_bytes"] / 1e9
    assert more == pytest.approx(
        {
            "lambda.requests": joins,
            "lambda.arm64": joins * milliseconds / 1000 / 2,
            "logs.ingested": logged,
            "logs.stored": logged,
            "cloudwatch.metrics": 2,
            "cloudwatch.alarms": 3,
            "kms.requests": 0.002 * joins,
            "secrets.stored": 2,
            "secrets.requests": 0.002 * joins,
            "transfer.out": joins * 1072 / 1e9,
        }
    )
    assert 0.5 < (bill(relayed, PRICES).total - bill(base, PRICES).total) / joins * 1e6 < 0.7
    assert "single joins through a relay" not in alternatives(replace(LOAD, batch=10), MEASURED, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"joins": -1.0}, "joins must lie between 0 and"),
        ({"joins": float("nan")}, "joins must lie between"),
        ({"batch": 501}, "batch must lie between 1 and 500, not 501"),
        ({"hashes": 0}, "hashes must lie between 1 and 1,000, not 0"),
        ({"sets": 0}, "sets must lie between 1"),
        ({"exponent": 5.0}, "exponent must lie between 0 and 4"),
        ({"touched": 200_000.0}, r"the smaller of sets \(100,000\) and joins a step \(360,000\), not 200,000"),
        ({"slots": 3}, "slots must be a power of two up to 256, not 3"),
    ],
)
def test_a_workload_beyond_the_limits_of_the_service_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(CostError, match=message):
        replace(LOAD, **change)  # type: ignore[arg-type]


def test_a_credential_costs_its_verification_twice() -> None:
    """Once in join, and once in the gateway, which waits."""
    others = alternatives(replace(LOAD, batch=1), MEASURED, {})
    plain = others["single joins through a relay"]
    added = others["single joins through a relay, with credentials"]["lambda.arm64"] - plain["lambda.arm64"]
    without = alternatives(replace(LOAD, batch=1), {**MEASURED, "verify_ms": 0.0}, {})
    free = without["single joins through a relay, with credentials"]
    assert {name: free[name] - plain[name] for name in free if free[name] - plain[name] >= 1} == pytest.approx(
        {"cloudwatch.metrics": 3, "cloudwatch.alarms": 5, "secrets.stored": 2}
        | dict.fromkeys(("kms.requests", "secrets.requests"), MEASURED["cold_starts"] * 100 * 730 * 3600)
    )
    assert added >= 2 * 100.0 * 730 * 3600 * MEASURED["verify_ms"] / 1000 * 0.125
