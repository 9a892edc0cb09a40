"""A job from createJob to its summary, stage by stage."""

from contextlib import suppress
from typing import Any

import pytest

from kanon.reports import mapping
from kanon.reports.avro import LEAST_REPORT, Report
from kanon.reports.errors import JobError
from kanon.reports.payload import open_sealed, seal
from kanon.reports.service.rotation import JOBS_REPLACED_MESSAGE, SPENT_MESSAGE
from kanon.reports.service.shards import read_plan
from kanon.reports.storage.objects import bucket_of, name_of
from kanon.reports.storage.report_jobs import MapMessage, StageMessage, State
from kanon.reports.storage.work import WorkFolder
from tests.integration.reports.aggregation import INPUT, OUTPUT, WORK, Aggregation, discover
from tests.integration.reports.tables import CAP
from tests.unit.reports import made


def reports(count: int, first: int = 0, **changes: Any) -> list[Any]:
    """Reports of one pair each: key 1 to 5, value 1,000 to 5,000."""
    return [made.report([(n % 5 + 1, (n % 5 + 1) * 1_000)], n, **changes) for n in range(first, first + count)]


def test_declared_keys_are_released_with_noise_and_the_budget_is_spent(service: Aggregation) -> None:
    service.finish([reports(100)], [*range(1, 9)])
    assert service.code("job") == "SUCCESS"
    found = service.summary()
    assert list(found) == list(range(1, 9))
    for key, value in found.items():  # the noise has a standard deviation of 9,268: false alarm below 1e-8
        assert abs(value - (20_000 * key if key <= 5 else 0)) < 170_000
    row = service.row("job")
    assert row.secret is None
    assert row.values["counters"]["accepted"] == 100
    assert service.names(WORK) == []


def test_a_job_spends_what_it_asks_for_from_the_units_of_its_reports(service: Aggregation) -> None:
    service.put_reports("in/a.avro", reports(10) + reports(10, 10, scheduled_report_time=made.NOW - 7200))
    service.put_domain("domain/keys.avro", 1)
    for number in range(7):
        service.create(f"job {number}", output_data_blob_prefix=f"out/{number}.avro")
    service.run()
    codes = [service.code(f"job {number}") for number in range(7)]
    assert codes == ["SUCCESS"] * 6 + ["PRIVACY_BUDGET_EXHAUSTED"]
    info = service.budget_file("exhausted", "job 6")
    units = info["privacy_budget_exhausted_info"]["aggregatable_input_budget_consumption_info"]
    assert [unit["epsilon_left"] for unit in units] == ["4", "4"]
    assert units[0]["jobs"] == [f"job {number}" for number in range(6)]
    assert service.row("job 6").values["message"].endswith("Nothing was spent.")


def test_discovered_keys_are_those_above_the_threshold(service: Aggregation) -> None:
    service.put_reports("in/a.avro", [made.report([(7, 60_000), (8, 1)], n) for n in range(10)])
    service.create("job", **discover())
    service.run()
    assert service.code("job") == "SUCCESS"
    assert list(service.summary()) == [7]


STRANGER = "https://stranger.test"


def test_reports_of_other_origins_do_not_end_a_job(service: Aggregation) -> None:
    """Once, 10 such reports beside 45 ended it, because 18 percent of the reports were in error."""
    service.finish([reports(45), reports(10, 100, reporting_origin=STRANGER, key=made.OTHER_KEY)], [1])
    assert service.code("job") == "SUCCESS"
    counters = service.row("job").values["counters"]
    assert (counters["accepted"], counters["left_out"], counters["rows"]) == (45, 10, 1)


def test_a_plan_skips_what_its_job_does_not_ask_for(service: Aggregation) -> None:
    hour = made.NOW - 3600
    names = {
        origin: [
            name_of("kanon", made.NOW, bucket_of(origin), [time, time], bytes([number]))
            for number, time in enumerate((hour, hour - 86_400, made.NOW - 92 * 86_400))
        ]
        for origin in (made.ORIGIN, STRANGER)
    }
    for origin, (now, before, old) in names.items():
        service.put_reports(now, reports(5, reporting_origin=origin))
        service.put_reports(before, reports(3, 5, reporting_origin=origin, scheduled_report_time=hour - 86_400))
        service.put_reports(old, reports(3, 8, reporting_origin=origin, scheduled_report_time=made.NOW - 92 * 86_400))
    earlier = "reports/kanon/2025/12/31/23/earlier.avro"
    service.put_reports(earlier, reports(2, 20) + reports(1, 30, scheduled_report_time=made.NOW - 91 * 86_400))
    service.put_domain("domain/keys.avro", 1)
    moment = {
        "job_parameters__scheduled_from": "2025-12-31T22:00:00Z",
        "job_parameters__scheduled_before": "2026-01-01T00:00:00Z",
    }
    for job, changes in {"all": {}, "hours": moment}.items():
        service.create(job, input_data_blob_prefix="reports/", output_data_blob_prefix=f"out/{job}", **changes)
        service.run_one(service.queue.pop())
        plan = read_plan(WorkFolder(service.bucket(WORK), job), service.row(job).values["plan"])
        wanted = names[made.ORIGIN][: 2 if job == "all" else 1]
        assert {one.key for shard in plan.shards for one in shard} == {*wanted, earlier}
    service.run()
    assert [service.code(job) for job in ("all", "hours")] == ["SUCCESS_WITH_ERRORS", "SUCCESS"]
    assert [service.row(job).values["counters"]["accepted"] for job in ("all", "hours")] == [10, 7]


def test_a_job_of_too_many_shards_spends_nothing_and_may_be_split_by_hours(
    service: Aggregation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kanon.reports.service.shards.SHARD_BYTES", 1)
    monkeypatch.setattr("kanon.reports.service.shards.MOST_SHARDS", 2)
    for number, time in enumerate((made.NOW - 7200, made.NOW - 3600, made.NOW - 3600)):
        name = name_of("kanon", made.NOW, bucket_of(made.ORIGIN), [time, time], bytes([number]))
        service.put_reports(name, reports(2, 2 * number, scheduled_report_time=time))
    service.put_domain("domain/keys.avro", 1)
    folder = {"input_data_blob_prefix": "reports/"}
    hours = [f"2025-12-31T{hour}:00:00Z" for hour in (22, 23)] + ["2026-01-01T00:00:00Z"]
    service.create("all", **folder)
    for part in range(2):
        between = {
            "job_parameters__scheduled_from": hours[part],
            "job_parameters__scheduled_before": hours[part + 1],
        }
        service.create(f"part {part}", **folder, **between, output_data_blob_prefix=f"out/{part}")
    service.run()
    assert service.code("all") == "INVALID_JOB"
    message = service.row("all").values["message"]
    assert "split it by scheduled_from and scheduled_before, so that no hour is charged twice" in message
    assert message.endswith("Nothing was spent.")
    assert [service.code(f"part {part}") for part in range(2)] == ["SUCCESS", "SUCCESS"]
    assert [service.row(f"part {part}").values["counters"]["reports"] for part in range(2)] == [2, 4]
    budgets = service.tables.budgets
    (row,) = {row for row, _ in budgets.holders()}
    assert [(job, at) for job, at, _ in budgets.taken(row)] == [("part 0", (22,)), ("part 1", (23,))]


# A shard in pieces: a worker may die between any two of them.


def sums_of(service: Aggregation, job: str) -> tuple[dict[int, int], Any]:
    """The exact sums and the counts of a job's only shard."""
    mapped = WorkFolder(service.bucket(WORK), job).mapped(service.tables.jobs.recorded(job, "map")[0])
    (sums,) = mapped.partitions
    counts = mapped.reports, mapped.duplicates, mapped.errors, len(mapped.report_ids), mapped.sources
    return made.by_bucket((sums.keys, sums.sums)), counts


def in_pieces(service: Aggregation, monkeypatch: pytest.MonkeyPatch) -> MapMessage:
    """A job whose shard has 55 reports in pieces of 10, some of them twice and some in error. Returns its message."""
    files = [reports(30) + reports(5, 7), reports(5, 90, key=made.OTHER_KEY) + reports(15, 20)]
    one = reports(1)[0]
    monkeypatch.setattr("kanon.reports.service.shards.PIECE_BYTES", 10 * (len(one.payload) + len(one.shared_info)) - 99)
    service.begin(files, range(1, 6), job_parameters__report_error_threshold_percentage="50")
    service.run_one(service.queue.popleft())
    message = service.queue.popleft()
    assert isinstance(message, MapMessage)
    return message


UNDISTURBED = ({1: 7_000, 2: 14_000, 3: 21_000, 4: 28_000, 5: 35_000}, (55, 15, {"DECRYPTION_ERROR": 5}, 35, 1))


@pytest.mark.parametrize("crash", [1, 3, 4, 7, 11])
def test_a_worker_continues_where_one_that_died_has_stopped(
    service: Aggregation, monkeypatch: pytest.MonkeyPatch, crash: int
) -> None:
    message = in_pieces(service, monkeypatch)
    opened: list[Any] = []
    monkeypatch.setattr(mapping, "open_sealed", lambda wire, *rest: opened.append(wire) or open_sealed(wire, *rest))
    calls = iter(range(100))

    def dying(*_: Any, **__: Any) -> None:
        if next(calls) == crash:
            raise OSError("the worker died")

    client = service.tables.client
    client.meta.events.register("before-call.dynamodb.PutItem", dying)
    real = service.s3.put_object
    monkeypatch.setattr(service.s3, "put_object", lambda **given: (dying(), real(**given))[1])
    with suppress(OSError):
        service.shards.run(message)
    client.meta.events.unregister("before-call.dynamodb.PutItem", dying)
    monkeypatch.setattr(service.s3, "put_object", real)
    assert len(opened) <= 55
    monkeypatch.setattr("kanon.reports.service.shards.PIECE_BYTES", 4_321)  # another version of the function
    service.shards.run(message)
    sums, (*counts, sources) = sums_of(service, "job")
    assert (sums, (*counts, len(sources))) == UNDISTURBED
    assert len(opened) <= 55 + 10


def test_a_worker_without_time_leaves_the_rest_to_the_sweep(
    service: Aggregation, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = in_pieces(service, monkeypatch)
    for piece in range(5):
        service.tables.now += 200
        assert service.shards.run(message, lambda: False) == []
        assert len(service.tables.jobs.recorded("job", "piece#map#000000")) == piece + 1
        assert service.tables.jobs.moved_at(service.row("job")) == service.tables.now
    assert service.shards.run(message, lambda: False) != []
    assert sums_of(service, "job")[0] == UNDISTURBED[0]
    service.sweep()
    service.run()
    assert service.code("job") == "SUCCESS_WITH_ERRORS"
    assert service.names(WORK) == []
    assert service.tables.jobs.recorded("job", "piece#map#000000") == {}


def test_reports_without_bytes_end_a_piece_too(service: Aggregation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kanon.reports.service.shards.PIECE_BYTES", 10 * LEAST_REPORT)
    service.begin([[Report(b"", "key", "")] * 25], [1])
    service.run_one(service.queue.popleft())
    message = service.queue.popleft()
    assert isinstance(message, MapMessage)
    service.shards.run(message)
    assert len(service.tables.jobs.recorded("job", "piece#map#000000")) == 2


def test_of_two_workers_on_one_shard_the_slower_one_stops(
    service: Aggregation, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = in_pieces(service, monkeypatch)
    turns = [3]

    def overtaken() -> bool:
        while turns:
            turns.pop()
            monkeypatch.setattr("kanon.reports.service.shards.PIECE_BYTES", 2_000)
            service.shards.run(message, lambda: False)
        return True

    assert service.shards.run(message, overtaken) == []
    assert service.shards.run(message) != []
    sums, (*counts, sources) = sums_of(service, "job")
    assert (sums, (*counts, len(sources))) == UNDISTURBED


def test_a_report_in_two_shards_counts_once(service: Aggregation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kanon.reports.service.shards.SHARD_BYTES", 1)
    service.finish([reports(20), reports(20, 10)], [1])
    assert service.code("job") == "SUCCESS"
    counters = service.row("job").values["counters"]
    assert (counters["reports"], counters["accepted"], counters["duplicates"]) == (40, 30, 10)


def test_a_summary_of_several_parts_has_every_key_once(service: Aggregation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kanon.reports.histogram.KEYS_A_PARTITION", 10)
    service.finish([reports(20)], [*range(40)])
    found = [service.summary(f"out/summary-{part}-of-4.avro") for part in range(1, 5)]
    assert sorted(key for part in found for key in part) == list(range(40))


def test_units_short_of_budget_are_left_out_if_the_job_asks_for_it(service: Aggregation) -> None:
    early = {"scheduled_report_time": made.NOW - 7200}
    service.put_reports("in/a.avro", reports(10, **early))
    service.put_domain("domain/keys.avro", 1)
    service.create("first", job_parameters__debug_privacy_epsilon="60", output_data_blob_prefix="out/1.avro")
    service.run()
    service.put_reports("in/b.avro", reports(10, 10))
    service.create("refused", output_data_blob_prefix="out/2.avro")
    service.create("second", skip_exhausted=True, output_data_blob_prefix="out/3.avro")
    service.run()
    assert [service.code(job) for job in ("first", "refused", "second")] == [
        "SUCCESS",
        "PRIVACY_BUDGET_EXHAUSTED",
        "SUCCESS",
    ]
    row = service.row("second")
    assert row.values["counters"]["left_out"] == 10
    assert row.values["counters"]["accepted"] == 10
    info = service.budget_file("skipped", "second")
    (left_out,) = info["privacy_budget_exhausted_info"]["aggregatable_input_budget_consumption_info"]
    assert (left_out["epsilon_left"], left_out["jobs"]) == ("4", ["first"])


def test_an_object_that_changed_since_the_plan_fails_the_job_and_spends_nothing(service: Aggregation) -> None:
    service.begin([reports(10)], [1])
    service.run_one(service.queue.popleft())
    service.put_reports("in/a.avro", reports(11))
    service.run()
    assert service.code("job") == "INPUT_DATA_READ_FAILED"
    assert service.tables.budgets.epoch() is not None
    assert service.names(OUTPUT) == ["domain/keys.avro"]
    assert service.names(WORK) == []


def test_a_late_shard_of_a_job_that_has_ended_leaves_nothing(
    service: Aggregation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kanon.reports.service.shards.SHARD_BYTES", 1)
    service.begin([reports(10), reports(10, 10)], [1])
    service.run_one(service.queue.popleft())
    first, second = service.queue
    service.put_reports("in/a.avro", reports(11))
    service.run()
    assert service.code("job") == "INPUT_DATA_READ_FAILED"
    service.bucket(WORK).put_new(f"{WorkFolder(service.bucket(WORK), 'job').folder}sums/late", b"written after the end")
    for message in (first, second):
        service.run_one(message)
    service.run()
    assert service.names(WORK) == []


def test_an_existing_output_is_never_overwritten_and_the_summary_may_be_published_elsewhere(
    service: Aggregation,
) -> None:
    taken = {"Bucket": f"{service.prefix}-{OUTPUT}", "Key": "out/summary-1-of-1.avro"}
    service.s3.put_object(**taken, Body=b"somebody's")
    service.begin([reports(10)], [1])
    service.run()
    row = service.row("job")
    assert (row.state, row.values["code"]) == (State.COMMITTED, "RESULT_WRITE_ERROR")
    assert [name.split("/")[1] for name in service.names(WORK)] == ["staged"], "no exact sums while nobody can publish"
    assert service.bucket(OUTPUT).read(taken["Key"]) == b"somebody's"
    place, (part,) = {"Bucket": f"{service.prefix}-{WORK}"}, service.names(WORK)
    staged = service.bucket(WORK).read(part)
    service.s3.put_object(**place, Key=part, Body=staged + b"changed")
    assert service.tables.jobs.move(row, State.COMMITTED, service.tables.now, output=[OUTPUT, "changed/s.avro"])
    with pytest.raises(RuntimeError, match="does not match its name"):
        service.run_one(StageMessage(job="job"))
    service.s3.put_object(**place, Key=part, Body=staged)
    row = service.row("job")
    assert service.tables.jobs.move(row, State.COMMITTED, service.tables.now, output=[OUTPUT, "other/s.avro"])
    service.queue.append(StageMessage(job="job"))
    service.run()
    assert service.code("job") == "SUCCESS"
    assert list(service.summary("other/s-1-of-1.avro")) == [1]


@pytest.mark.parametrize(("seconds", "code", "published"), [(-1, "SUCCESS", 1), (0, "RESULT_WRITE_ERROR", 0)])
def test_a_summary_is_published_within_30_days_of_its_commit_or_never(
    service: Aggregation, seconds: int, code: str, published: int
) -> None:
    """The output is free again, but a reader of the answer must not find a summary that was given up."""
    taken = {"Bucket": f"{service.prefix}-{OUTPUT}", "Key": "out/summary-1-of-1.avro"}
    service.s3.put_object(**taken, Body=b"somebody's")
    service.begin([reports(10)], [1])
    service.tables.now += 3600
    service.run()
    service.s3.delete_object(**taken)
    service.tables.now += 30 * 86_400 + seconds
    service.queue.append(StageMessage(job="job"))
    service.run()
    assert service.code("job") == code
    assert service.names(OUTPUT).count(taken["Key"]) == published
    assert service.names(WORK) == []


def test_too_many_reports_in_error_end_a_job_and_spend_nothing(service: Aggregation) -> None:
    bad = [made.report([(1, 1)], n, key=made.OTHER_KEY) for n in range(50)]
    service.begin([bad + reports(50, 50)], [1])
    service.create("lenient", job_parameters__report_error_threshold_percentage="60", output_data_blob_prefix="o2")
    service.run()
    assert service.code("job") == "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD"
    assert service.code("lenient") == "SUCCESS_WITH_ERRORS"


def junk(count: int) -> list[Any]:
    """What anybody can send with the clear fields of honest reports: most do not open, one holds no pairs."""
    unreadable = Report(seal(b"junk", made.KEY.public_key(), text := made.info(999).text()), made.KEY_ID, text)
    return [unreadable, *(made.report([(1, 1)], 1000 + n, key=made.OTHER_KEY) for n in range(count - 1))]


@pytest.mark.parametrize("percent", [None, "10"])
def test_junk_sinks_a_job_over_the_collectors_bucket_only_if_the_job_says_so(
    service: Aggregation, percent: str | None
) -> None:
    service.collected = INPUT
    service.finish([reports(5) + junk(95)], [1], job_parameters__report_error_threshold_percentage=percent)
    refused = percent is not None
    assert service.code("job") == ("REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD" if refused else "SUCCESS_WITH_ERRORS")
    counters = service.row("job").values["counters"]
    assert counters["errors"] == {"DECRYPTION_ERROR": 94, "REPORT_PARSING_ERROR": 1}
    assert refused or (counters["accepted"], counters["rows"]) == (5, 1)


def test_a_job_without_any_report_that_counts_spends_nothing(service: Aggregation) -> None:
    service.collected = INPUT
    service.begin([junk(7)], [1])
    service.create("anyway", job_parameters__report_error_threshold_percentage="100", output_data_blob_prefix="o2")
    service.run()
    assert [service.code(job) for job in ("job", "anyway")] == [
        "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD",
        "SUCCESS_WITH_ERRORS",
    ]
    message = service.row("job").values["message"]
    assert "7 of 7 reports are in error (DECRYPTION_ERROR 6, REPORT_PARSING_ERROR 1), so none counts" in message
    assert {job for _, job in service.tables.budgets.holders()} == {"anyway"}


def run_until(service: Aggregation, job: str, state: State) -> None:
    """Create a job over one row of budget, and run it until it is in this state."""
    service.put_reports("in/a.avro", reports(10))
    service.put_domain("domain/keys.avro", 1)
    service.create(job)
    while service.row(job).state is not state:
        if isinstance(message := service.queue.popleft(), StageMessage):
            message = StageMessage(job=job)
            service.queue += [*service.stages.run(message, lambda: False), message]
        else:
            service.run_one(message)
    service.queue.clear()


def put_back(service: Aggregation, state: State) -> None:
    """Run a job to its end, and put back its row of this state, as a restore does."""
    run_until(service, "job", state)
    copy = service.tables.copy("job")
    service.queue.append(StageMessage(job="job"))
    service.run()
    assert service.code("job") == "SUCCESS"
    assert len(list(service.tables.budgets.holders())) == 1
    service.tables.put_back(copy)
    service.queue.append(StageMessage(job="job"))


def test_a_finished_job_whose_row_is_put_back_releases_nothing_with_the_same_plan(service: Aggregation) -> None:
    put_back(service, State.RECEIVED)
    before = service.names(OUTPUT)
    service.run()
    assert service.code("job") == "PRIVACY_BUDGET_ERROR"
    assert service.row("job").values["message"] == SPENT_MESSAGE
    assert not service.row("job").committed
    assert service.names(OUTPUT) == before
    assert len(list(service.tables.budgets.holders())) == 1
    assert service.names(WORK) == []


def test_a_finished_job_whose_row_is_put_back_pays_every_row_of_another_plan(service: Aggregation) -> None:
    put_back(service, State.RECEIVED)
    days = [made.NOW - 86_400 * day for day in range(2, 60)]
    more = [made.report([(1, 1)], 100 + n, scheduled_report_time=day) for n, day in enumerate(days)]
    service.put_reports("in/b.avro", more)
    service.bucket(OUTPUT).delete_under("out/")
    service.run()
    assert service.code("job") == "SUCCESS"
    assert service.row("job").values["counters"]["rows"] == 59
    assert len(list(service.tables.budgets.holders())) == 1 + 59


def test_no_job_is_planned_or_commits_on_a_table_of_jobs_that_was_replaced(
    service: Aggregation, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_until(service, "committing", State.COMMITTING)
    service.create("received")

    def replaced() -> Any:
        raise JobError("PRIVACY_BUDGET_ERROR", JOBS_REPLACED_MESSAGE)

    service.ring = replaced
    monkeypatch.setattr(service.tables, "in_force", lambda _: False)
    service.sweep()
    service.run()
    for job in ("committing", "received"):
        assert service.code(job) == "PRIVACY_BUDGET_ERROR"
        assert service.row(job).values["message"].endswith("operator's guide. Nothing was spent.")
    assert list(service.tables.budgets.holders()) == []


def test_a_job_that_was_paused_for_a_day_commits_nothing(service: Aggregation) -> None:
    service.begin([reports(10)], [1])
    service.run_one(service.queue.popleft())
    service.tables.now += 86_400
    service.run()
    assert service.code("job") == "RETRIES_EXHAUSTED"


def test_the_sweep_resumes_jobs_whose_messages_were_lost(service: Aggregation) -> None:
    service.begin([reports(10)], [1])
    for _ in range(20):
        service.queue.clear()
        service.sweep()
        if not service.queue:
            break
        service.run_one(service.queue.popleft())
    assert service.code("job") == "SUCCESS"
    assert CAP.epsilon
