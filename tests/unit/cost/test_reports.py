"""The quantities of reports follow from their load."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.cost import reports as module
from kanon.cost.billing import CostError, bill, read_measured, read_prices
from kanon.cost.month import added
from kanon.cost.reports import ReportLoad, commit_units, job_bytes, limits, requests_of_job, table, times, usage
from kanon.dynamo.units import item_size, write_units

MEASURED, PRICES = read_measured(), read_prices()
LOAD = ReportLoad(1_000_000)


def test_a_row_of_budget_with_all_its_hours_is_one_write_unit() -> None:
    left: dict[str, dict[str, Any]] = {"row": {"B": bytes(32)}, "part": {"S": "left"}, "ttl": {"N": "1771200000"}}
    left |= {f"{kind}{hour:02}": {"N": "9" * digits} for hour in range(24) for kind, digits in (("e", 5), ("d", 9))}
    assert write_units(item_size(left)) == write_units(module.LEFT_BYTES) == 1


def test_a_commit_takes_four_units_for_each_row_and_for_each_chunk_and_three_for_its_witness() -> None:
    assert write_units(job_bytes(LOAD)) == 2
    assert commit_units(replace(LOAD, rows=49)) == 49 * 4 + 4 + 3
    assert commit_units(replace(LOAD, rows=50)) == 50 * 4 + 2 * 4 + 3
    assert commit_units(replace(LOAD, rows=30_000)) == 30_000 * 4 + 613 * 4 + 3


def test_a_stack_without_reports_has_the_bill_of_the_gate() -> None:
    one, other = ({"lambda.requests": 2.0, "kms.keys": 1.0}, {"lambda.requests": 3.0, "s3.puts": 4.0})
    assert added(one, {}) == one
    assert added(one, other) == {"lambda.requests": 5.0, "kms.keys": 1.0, "s3.puts": 4.0}


def test_quantities_of_reports_grow_in_proportion_once_batches_are_full() -> None:
    once, twice = usage(replace(LOAD, reports=5e7), MEASURED), usage(replace(LOAD, reports=1e8), MEASURED)
    for name in ("apigateway.http", "sqs.requests", "lambda.arm64", "logs.ingested", "s3.storage"):
        assert twice[name] == pytest.approx(2 * once[name], rel=0.01), name


def test_a_report_is_sent_once_and_received_and_deleted_with_nine_others() -> None:
    none, some = usage(replace(LOAD, reports=0.0, jobs=0.0), MEASURED), usage(replace(LOAD, jobs=0.0), MEASURED)
    assert some["sqs.requests"] - none["sqs.requests"] == pytest.approx(1.2 * 1e6 * 730 / 24)
    large = usage(replace(LOAD, size=60_000, jobs=0.0), MEASURED)  # 75 KB in base64: two requests
    assert large["sqs.requests"] - none["sqs.requests"] == pytest.approx((2 + 2 * 1.2) * 1e6 * 730 / 24)


def test_a_report_is_kept_for_97_days_and_the_schedules_run_without_any() -> None:
    assert usage(replace(LOAD, size=1_000), MEASURED)["s3.storage"] == pytest.approx(97)
    runs, mean = 2 * 12 * 730, (3008 + 512) / 2 / 1024
    assert module.gb_seconds(ReportLoad(0.0, jobs=0.0), MEASURED) == pytest.approx(
        runs * MEASURED["sweep_ms"] / 1000 * mean
    )


def test_few_reports_make_few_objects_and_many_make_full_ones() -> None:
    day = 1e6 * 730 / 24
    few = usage(replace(LOAD, reports=10.0, jobs=0.0), MEASURED)
    assert few["s3.puts"] == pytest.approx(10 * 730 / 24)
    many = usage(replace(LOAD, reports=1e9, jobs=0.0), MEASURED)
    message = LOAD.size * 1.25 + MEASURED["message_bytes"]
    assert many["s3.puts"] == pytest.approx(1000 * day * message / 6e6 * MEASURED["objects_a_batch"])


def test_more_shards_take_more_requests_and_a_higher_concurrency_takes_less_time() -> None:
    small, large = (requests_of_job(replace(LOAD, reports=count), count / 1000) for count in (1e6, 1e7))
    assert all(more > less for less, more in zip(small, large, strict=True))
    slow, fast = (times(replace(LOAD, reports=1e7, concurrency=c), MEASURED) for c in (10, 1000))
    assert fast.mapping < slow.mapping / 15
    assert (fast.reducing, fast.workers) == (slow.reducing, slow.workers)


def test_every_quantity_of_reports_has_a_price() -> None:
    made = bill(usage(LOAD, MEASURED), PRICES)
    assert {line.name for line in made.lines} == set(usage(LOAD, MEASURED))
    assert made.total == pytest.approx(sum(dollars for _, dollars in made.by_service()))


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ({"reports": 1e8}, "1,938 shards, a job reads at most 1,000"),
        ({"size": 100, "reports": 6e8}, "a shard takes 1,3[0-9]{2} s, a worker has 900"),
        ({"reports": 5e7, "concurrency": 2}, "does not end within 24 hours"),
    ],
)
def test_the_limits_that_a_job_meets_are_named(change: dict[str, float], limit: str) -> None:
    assert limits(LOAD, MEASURED) == ()
    slow = {**MEASURED, "map_report_ms": 2.0, "object_ms": 10_000.0}
    assert any(re.search(limit, text) for text in limits(replace(LOAD, **change), slow))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reports": -1.0}, "reports a day must lie between 0 and"),
        ({"size": 10}, "bytes of a report must lie between 100 and 196,608, not 10"),
        ({"keys": 0}, "keys of a job must lie between 1 and 10,000,000, not 0"),
        ({"rows": 30_001}, "rows of budget of a job must lie between 0 and 30,000"),
        ({"concurrency": 1}, "the map concurrency must lie between 2"),
    ],
)
def test_a_load_beyond_the_limits_of_the_service_is_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(CostError, match=message):
        replace(LOAD, **change)  # type: ignore[arg-type]


def test_the_table_crosses_reports_keys_and_concurrency_and_every_job_of_it_can_run() -> None:
    rows = list(table(MEASURED, PRICES))
    assert len(rows) == 3 * 2 * 3
    assert {row.limits for row in rows} == {()}
    by_place = {(row.load.reports, row.load.keys, row.load.concurrency): row for row in rows}
    assert by_place[10**7, 10**4, 50].job.total < by_place[5 * 10**7, 10**4, 50].job.total
    dear, cheap = by_place[10**7, 10**4, 50].collected.total, by_place[10**6, 10**4, 50].collected.total
    assert dear == pytest.approx(10 * cheap, rel=0.05)


def run(*arguments: str) -> str:
    return CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1"}).invoke(app, ["cost", *arguments]).output


def test_the_bill_of_a_stack_with_reports_adds_up_gate_and_reports() -> None:
    without = json.loads(run("--json"))
    both = json.loads(run("--reports", "1000000", "--json"))
    assert without["reports"] is None
    assert both["dollarsAMonth"] == pytest.approx(without["dollarsAMonth"] + both["reports"]["dollarsAMonth"])
    assert both["dollarsAMillionJoins"] == pytest.approx(without["dollarsAMillionJoins"])
    assert both["alternatives"]["one join a request"] == pytest.approx(both["dollarsAMonth"])
    shown = run("--reports", "1000000")
    assert f"Reports are ${both['reports']['dollarsAMonth']:,.2f} of the total." in shown
    assert "Shards of a job: 20." in shown


def test_a_job_beyond_a_limit_is_refused_with_the_limit() -> None:
    assert "Beyond a limit: 1,938 shards" in run("--reports", "100000000")
    assert "kanon cost: jobs a day must lie between" in run("--reports", "1", "--jobs", "-1")
