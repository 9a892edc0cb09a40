"""What a reader of table ReportJobs may learn, what an emptied one may refund, and what a changed setting may stop."""

import json
from contextlib import suppress
from fractions import Fraction
from hashlib import sha256
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kanon.reports.avro import write_summary
from kanon.reports.errors import JobError
from kanon.reports.service.bodies import read_publication, reader
from kanon.reports.service.job_routes import publish_again
from kanon.reports.service.stages import Stages
from kanon.reports.shared_info import ReportSource, parse, source_of, units
from kanon.reports.storage.report_jobs import JobRow, StageMessage, State
from kanon.reports.storage.work import sources_as_json
from tests.integration.reports.aggregation import DELTA_CAP, OUTPUT, WORK, Aggregation
from tests.integration.reports.tables import replace_table
from tests.integration.reports.test_stages import reports
from tests.unit.reports import made


@pytest.fixture
def service(service: Aggregation) -> Aggregation:
    service.put_domain("domain/keys.avro", 1)
    return service


# The table of jobs was lost, and an empty one stands in its place. The table of budgets is the old one.


def lose_jobs(service: Aggregation) -> None:
    replace_table(service.tables.client, service.tables.names["ReportJobs"])


def source(day: int) -> ReportSource:
    """What the reports of ``of_day`` are charged to."""
    return source_of(parse(of_day(day)[0].shared_info))


def of_day(day: int) -> list[Any]:
    return reports(10, 10 * day, scheduled_report_time=made.NOW - 86_400 * day)


def epsilon_of(service: Aggregation, day: int) -> int:
    (unit,) = units([source(day)], [0])
    return service.tables.spent(unit).epsilon


def test_a_job_does_not_return_what_an_earlier_job_of_its_name_spent(service: Aggregation) -> None:
    service.put_reports("in/a.avro", of_day(1))
    service.create("job", output_data_blob_prefix="out/first.avro")
    service.run()
    assert epsilon_of(service, 1) == 10_000
    lose_jobs(service)
    service.create("job", output_data_blob_prefix="out/second.avro")
    with suppress(AssertionError):
        service.run()
    service.tables.now += 86_400
    service.sweep()
    service.run()
    released = [name for name in service.names(OUTPUT) if name.startswith("out/")]
    assert epsilon_of(service, 1) == 10_000 * len(released)


def test_a_job_pays_again_for_units_that_an_earlier_job_of_its_name_paid_for(
    service: Aggregation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kanon.reports.storage.budgets.ROWS_A_CHUNK", 1)
    first, last = sorted((1, 2), key=lambda day: min(units([source(day)], [0])).row)
    service.put_reports("in/a.avro", of_day(first))
    service.create("job", output_data_blob_prefix="out/first.avro")
    service.run()
    lose_jobs(service)
    service.put_reports("in/b.avro", of_day(last))
    service.create("job", output_data_blob_prefix="out/second.avro")
    service.run()
    assert service.code("job") == "SUCCESS"
    assert (epsilon_of(service, first), epsilon_of(service, last)) == (20_000, 10_000)


# A reader of ReportJobs, such as the role of ``jobs``, knows the clear fields of reports, and guesses the rest.


def named(kind: str, body: bytes) -> str:
    """The name of an object of the work bucket by its content alone."""
    return f"{sha256(b'job').hexdigest()}/{kind}/{sha256(body).hexdigest()}"


def named_json(kind: str, value: Any) -> str:
    return named(kind, json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def described(report: Any, value: int) -> str:
    """The name of the description of a shard of one report, if the report has this value at key 3."""
    info = json.loads(report.shared_info)
    shard = {
        "partitions": [named("sums", made.key16(3) + value.to_bytes(8, "big"))],
        "ids": named("ids", bytes.fromhex(info["report_id"].replace("-", ""))),
        "sources": sources_as_json([source_of(parse(report.shared_info))]),
        "errors": {},
        "reports": 1,
        "accepted": 1,
        "duplicates": 0,
        "left_out": 0,
    }
    return named_json("map", shard)


def test_no_guess_of_an_exact_sum_can_be_checked_against_the_table_of_jobs(service: Aggregation) -> None:
    report = made.report([(3, 4_711)])
    service.put_reports("in/a.avro", [report])
    service.create("job")
    while not service.tables.jobs.recorded("job", "map"):
        service.run_one(service.queue.popleft())
    recorded = service.tables.jobs.recorded("job", "map")[0]
    service.run()
    kept = service.row("job").values["results"]  # for 400 days
    assert service.code("job") == "SUCCESS"
    guesses = {guess: described(report, guess) for guess in range(4_600, 4_800)}
    assert recorded not in guesses.values()
    assert kept not in [named_json("manifest", {"results": [guess]}) for guess in guesses.values()]


def test_no_guess_of_a_noisy_sum_can_be_checked_against_the_row_of_a_refused_job(service: Aggregation) -> None:
    """Nothing was paid for it. Jobs that are refused again and again would show its average."""
    service.put_reports("in/a.avro", reports(10))
    service.create("all", job_parameters__debug_privacy_epsilon="64", output_data_blob_prefix="out/all.avro")
    service.create("job", job_parameters__debug_privacy_epsilon="64")
    service.run()
    assert service.code("job") == "PRIVACY_BUDGET_EXHAUSTED"
    (recorded,) = service.tables.jobs.recorded("job", "reduce").values()
    for guess in range(-12_000, 16_000):  # within ten standard deviations of the sum of 2,000
        file = BytesIO()
        write_summary(file, made.keys16(1), np.array([guess]))
        assert recorded != named("staged", file.getvalue())


# What a deployment or another role changes behind a commit.


def taken_output(service: Aggregation) -> dict[str, str]:
    """An object where the summary should go, so that its job stays committed."""
    taken = {"Bucket": f"{service.prefix}-{OUTPUT}", "Key": "out/summary-1-of-1.avro"}
    service.s3.put_object(**taken, Body=b"of somebody else")
    service.put_reports("in/a.avro", reports(10))
    service.create("job")
    service.run()
    assert service.row("job").state is State.COMMITTED
    return taken


def test_a_summary_is_published_as_it_was_committed_or_not_at_all(service: Aggregation) -> None:
    """``decrypt`` may write to the work bucket, too: it must not decide what is released."""
    taken = taken_output(service)
    (part,) = service.row("job").values["parts"]
    service.s3.put_object(Bucket=f"{service.prefix}-{WORK}", Key=part, Body=b"exact sums")
    service.s3.delete_object(**taken)
    service.queue.append(StageMessage(job="job"))
    with suppress(RuntimeError):
        service.run()
    assert service.bucket(OUTPUT).found(taken["Key"]) is None


def deploy_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket of the input is taken out of ReportBuckets, and EpsilonCap is lowered below what jobs asked for."""
    settings: Any = SimpleNamespace(delta_cap=DELTA_CAP, epsilon_cap=Fraction(1), buckets=frozenset({OUTPUT}))
    monkeypatch.setattr(Aggregation, "request", lambda _, row: reader(settings)(row))


def test_a_committed_job_is_published_elsewhere_though_the_settings_no_longer_allow_it(
    service: Aggregation, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_output(service)
    row = service.row("job")
    place = {"output_data_bucket_name": OUTPUT, "output_data_blob_prefix": "out/other.avro"}
    elsewhere = read_publication({"job_request_id": "job", **place}, frozenset({OUTPUT}))
    publish_again(service.tables.jobs, row, elsewhere, service.tables.now)
    deploy_less(monkeypatch)
    service.queue.append(StageMessage(job="job"))
    service.run()
    assert service.code("job") == "SUCCESS"


@pytest.mark.parametrize("late", [False, True])
def test_a_job_that_holds_budget_ends_though_the_settings_no_longer_allow_it(
    service: Aggregation, monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    service.put_reports("in/a.avro", reports(10))
    service.create("job")
    with monkeypatch.context() as patch:

        def stopped(_: Stages, row: JobRow) -> None:
            raise RuntimeError(row.state)

        patch.setattr(Stages, "_commit", stopped)
        with suppress(RuntimeError):
            service.run()
    assert service.row("job").state is State.COMMITTING
    deploy_less(monkeypatch)
    service.tables.now += 86_400 * late
    service.sweep()
    service.run()
    assert service.code("job") == ("RETRIES_EXHAUSTED" if late else "SUCCESS")


def test_a_committed_job_whose_parts_are_gone_fails_loudly_and_stays_committed(service: Aggregation) -> None:
    taken = taken_output(service)
    (part,) = service.row("job").values["parts"]
    service.s3.delete_object(Bucket=f"{service.prefix}-{WORK}", Key=part)
    service.s3.delete_object(**taken)
    service.queue.append(StageMessage(job="job"))
    with pytest.raises(JobError):
        service.run()
    assert service.row("job").state is State.COMMITTED


def test_two_jobs_of_one_second_and_folder_each_name_their_own_units(service: Aggregation) -> None:
    for day in (1, 2):
        service.put_reports(f"in/{day}.avro", of_day(day))
    service.create("all", job_parameters__debug_privacy_epsilon="64", output_data_blob_prefix="out/all.avro")
    service.run()
    for day in (1, 2):
        one = {"input_data_blob_prefix": f"in/{day}", "output_data_blob_prefix": f"out/{day}.avro"}
        service.create(f"of day {day}", **one)
    service.run()
    first, second = (service.budget_file("exhausted", f"of day {day}") for day in (1, 2))
    assert first != second


def test_a_domain_that_a_worker_cannot_hold_is_refused_before_it_is_read(
    service: Aggregation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kanon.reports.service.shards.MOST_KEY_BYTES", 400)
    service.put_reports("in/a.avro", reports(10))
    service.put_domain("domain/more.avro", *range(100))
    monkeypatch.delattr("kanon.reports.service.shards.read_domain")
    service.create("job")
    service.run()
    assert service.code("job") == "INVALID_JOB"
    assert "a job declares at most 10,000,000 keys: split the domain" in service.row("job").values["message"]
