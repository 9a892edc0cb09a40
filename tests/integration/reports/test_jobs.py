"""The function jobs: the aggregation service's calls, its answers and its errors, over real tables."""

import json
from typing import Any
from unittest import mock

import pytest

from kanon.reports.service.bodies import reader
from kanon.reports.shared_info import DAY
from kanon.reports.storage.report_jobs import ReportJobs, State
from tests.integration.gate.edge import Result
from tests.integration.gate.tables import Running
from tests.integration.reports.aggregation import WORK, body, discover
from tests.integration.reports.front import Front, front
from tests.unit.reports import made

CREATE, GET, PREFLIGHT, BUDGET, PUBLISH = (
    "/v1alpha/createJob",
    "/v1alpha/getJob",
    "/v1/jobs:preflight",
    "/v1/budget",
    "/v1/jobs:publish",
)
UNIT = (
    "api=attribution-reporting&version=1.0&reporting_origin=https://report.test"
    "&attribution_destination=https://shop.test&source_registration_time=1767139200&day=2025-12-31"
)


@pytest.fixture
def service(shared: Front) -> Front:
    """A deployment that tests share; each creates jobs of its own."""
    shared.reset()
    return shared


@pytest.fixture
def fresh(engine: Running) -> Front:
    """A deployment of one test, whose budgets are full."""
    return front(engine)


def asked(service: Front, job: str, **changes: Any) -> dict[str, Any]:
    """A body of createJob."""
    request = body(job, **changes)
    request |= {
        "input_data_bucket_name": service.reports_bucket,
        "output_data_bucket_name": service.summaries_bucket,
    }
    if "output_domain_bucket_name" in request["job_parameters"]:
        request["job_parameters"]["output_domain_bucket_name"] = service.summaries_bucket
    return request


def create(service: Front, job: str, **changes: Any) -> Result:
    return service.send("jobs", "POST", CREATE, asked(service, job, **changes))


def get(service: Front, job: str) -> Any:
    result = service.send("jobs", "GET", f"{GET}?job_request_id={job}")
    assert result.status == 200, result.body
    return result.json()


def reports(service: Front, count: int, name: str = "in/a.avro", first: int = 0, **changes: Any) -> None:
    service.service.put_reports(name, [made.report([(5, 1_000)], n, **changes) for n in range(first, first + count)])
    service.service.put_domain("domain/keys.avro", 5)


def error(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = result.json()["error"]
    return found


# createJob


def test_a_job_is_created_run_and_reported(fresh: Front) -> None:
    reports(fresh, 10)
    result = create(fresh, "job")
    assert (result.status, result.json()) == (202, {})
    assert get(fresh, "job")["job_status"] == "RECEIVED"
    fresh.run_jobs()
    told = get(fresh, "job")
    assert told["job_status"] == "FINISHED"
    assert told["result_info"]["return_code"] == "SUCCESS"
    assert list(fresh.service.summary()) == [5]


def documented(service: Front, job: str) -> str:
    """A request as the aggregation service's API page describes it: epsilon and percentage are numbers."""
    return f"""{{
      "job_request_id": "{job}",
      "input_data_blob_prefix": "in/",
      "input_data_bucket_name": "{service.reports_bucket}",
      "output_data_blob_prefix": "out/{job}.avro",
      "output_data_bucket_name": "{service.summaries_bucket}",
      "job_parameters": {{
        "output_domain_blob_prefix": "domain/",
        "output_domain_bucket_name": "{service.summaries_bucket}",
        "attribution_report_to": "https://report.test",
        "debug_privacy_epsilon": 0.1,
        "report_error_threshold_percentage": 10.0
      }}
    }}"""


@pytest.mark.parametrize("stage", ["", "/stage"])
@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded", None])
def test_a_client_of_the_aggregation_service_needs_only_another_url(
    service: Front, stage: str, kind: str | None
) -> None:
    job = f"client{stage.replace('/', '-')}-{str(kind)[-4:]}"
    result = service.send("jobs", "POST", f"{stage}{CREATE}", documented(service, job), content_type=kind)
    assert (result.status, result.body) == (202, "{}")
    told = service.send("jobs", "GET", f"{stage}{GET}?job_request_id={job}").json()
    privacy = told.pop("privacy")
    assert told == {
        "job_status": "RECEIVED",
        "request_received_at": "2026-01-01T00:00:00Z",
        "request_updated_at": "2026-01-01T00:00:00Z",
        "job_request_id": job,
        "input_data_bucket_name": service.reports_bucket,
        "input_data_blob_prefix": "in/",
        "output_data_bucket_name": service.summaries_bucket,
        "output_data_blob_prefix": f"out/{job}.avro",
        "job_parameters": {
            "output_domain_blob_prefix": "domain/",
            "output_domain_bucket_name": service.summaries_bucket,
            "attribution_report_to": "https://report.test",
            "debug_privacy_epsilon": "0.1",
            "report_error_threshold_percentage": "10.0",
        },
    }
    assert privacy["epsilon"] == "0.1"


def test_a_job_is_durable_and_has_a_secret_before_the_answer(service: Front) -> None:
    assert create(service, "durable").status == 202
    row, other = service.service.row("durable"), None
    assert row.state is State.RECEIVED
    assert row.secret is not None
    assert len(row.secret) == 32
    assert create(service, "durable too").status == 202
    other = service.service.row("durable too")
    assert other.secret != row.secret
    messages = [json.loads(message["body"]) for message in service.queued("stages")]
    assert sorted(message.pop("job") for message in messages) == ["durable", "durable too"]
    assert messages == [{}, {}]


def test_a_repeated_id_is_refused_with_any_body(service: Front) -> None:
    assert create(service, "twice").status == 202
    before = service.service.row("twice")
    for changes in ({}, {"output_data_blob_prefix": "other"}):
        result = create(service, "twice", **changes)
        assert result.status == 409
        assert error(result) == {
            "code": 6,
            "message": "there is a job with this job_request_id: choose another one",
            "status": "ALREADY_EXISTS",
            "details": [{"reason": "DUPLICATE_JOB_KEY", "domain": "kanon", "metadata": {"field": "job_request_id"}}],
        }
    assert service.service.row("twice") == before
    assert len(service.queued("stages")) == 1


def test_a_job_that_is_not_stored_is_not_acknowledged(service: Front) -> None:
    service.fail = lambda operation: "InternalServerError" if operation == "TransactWriteItems" else None
    result = create(service, "lost")
    assert (result.status, result.headers["Retry-After"]) == (503, "5")
    assert error(result) == {
        "code": 14,
        "message": "the service is temporarily unavailable; retry after the time in Retry-After",
        "status": "UNAVAILABLE",
        "details": [{"reason": "SERVER_ERROR", "domain": "kanon", "metadata": {}}],
    }
    service.fail = lambda operation: None
    assert service.queued("stages") == []
    assert service.send("jobs", "GET", f"{GET}?job_request_id=lost").status == 404


def test_a_job_whose_answer_was_lost_on_the_way_is_created_once(service: Front) -> None:
    """The client of the table repeats the call, and finds the row that it wrote."""
    original = ReportJobs.create

    def repeated(self: ReportJobs, *arguments: Any) -> bool:
        original(self, *arguments)
        return original(self, *arguments)

    with mock.patch.object(ReportJobs, "create", repeated):
        assert create(service, "repeated").status == 202
        assert create(service, "repeated").status == 409
    assert len(service.queued("stages")) == 1


def test_a_job_whose_message_was_not_sent_is_found_by_the_schedule(fresh: Front) -> None:
    reports(fresh, 3)
    fresh.fail = lambda operation: "InternalFailure" if operation == "SendMessageBatch" else None
    assert create(fresh, "silent").status == 202
    assert "was not sent" in fresh.output.getvalue()
    fresh.service.sweep()
    fresh.service.run()
    assert get(fresh, "silent")["result_info"]["return_code"] == "SUCCESS"


WRONG: list[tuple[str, Any, str]] = [
    ("job_request_id", "a|b", "without a bar"),
    ("job_request_id", "x" * 129, "1 to 128"),
    ("output_data_blob_prefix", "\u00e4" * 451, "1 to 900 bytes"),
    ("output_data_blob_prefix", "secret\n", "control characters"),
    ("input_data_bucket_name", "secret-bucket", "ReportBuckets"),
    ("job_parameters__debug_privacy_epsilon", "64.001", "above 0, at most 64, with at most 3 decimals"),
    ("job_parameters__debug_privacy_epsilon", 0.0001, "3 decimals"),
    ("job_parameters__debug_privacy_epsilon", "secret", "decimal"),
    ("job_parameters__debug_run", True, "kanon reports aggregate"),
    ("job_parameters__report_error_threshold_percentage", 101, "0 to 100"),
    ("job_parameters__input_report_count", "secret", "whole number"),
    ("job_parameters__filtering_ids", ",".join(map(str, range(65))), "at most 64"),
    ("job_parameters__attribution_destinations", ",".join(f"https://{n}.test" for n in range(101)), "1 to 100"),
    ("output_domain", {"mod": "discover"}, "only mode and type there"),
    ("privacy_params", {"epsilon": "1"}, "only laplace_dp_params"),
]
"""Values that a job cannot have; each error names the field."""
NO_DOMAIN = {f"job_parameters__output_domain_{name}": None for name in ("bucket_name", "blob_prefix")}
REFUSED: list[tuple[dict[str, Any], str, str, str]] = [
    *(({name: value}, "VALIDATION_FAILED", name.replace("__", "."), why) for name, value, why in WRONG),
    ({"job_request_id": None}, "ARGUMENT_MISSING", "job_request_id", "is missing"),
    ({"job_request_id": ""}, "ARGUMENT_MISSING", "job_request_id", "is missing"),
    ({"job_request_id": 5}, "JSON_ERROR", "job_request_id", "give a text"),
    ({"skip_exhausted": "secret"}, "JSON_ERROR", "skip_exhausted", "true or false"),
    ({"job_parameters": "secret"}, "JSON_ERROR", "job_parameters", "give a JSON object"),
    ({"job_parameters__filtering_ids": ["secret"]}, "JSON_ERROR", "job_parameters.filtering_ids", "give a text"),
    ({"job_parameters__unknown": {"\ud800": 1}}, "JSON_ERROR", "body", "half of a character"),
    ({"input_data_blob_prefix": "\ud800"}, "JSON_ERROR", "body", "half of a character"),
    ({"input_data_blob_prefix": None}, "VALIDATION_FAILED", "input_data_blob_prefix", "exactly one of"),
    ({"input_data_blob_prefixes": ["a"]}, "VALIDATION_FAILED", "input_data_blob_prefix", "exactly one of"),
    (
        {"input_data_blob_prefix": None, "input_data_blob_prefixes": ["a"] * 51},
        *("VALIDATION_FAILED", "input_data_blob_prefixes", "at most 50"),
    ),
    (
        {"job_parameters__reporting_site": "https://report.test"},
        *("VALIDATION_FAILED", "job_parameters", "exactly one of attribution_report_to and reporting_site"),
    ),
    (
        {"output_domain": {"mode": "kanon", "type": "terms"}, **NO_DOMAIN},
        *("VALIDATION_FAILED", "output_domain.type", "Listed types: none; declare a type with listed, or use declared"),
    ),
    (
        {"output_domain": {"mode": "kanon"}, **NO_DOMAIN},
        *("ARGUMENT_MISSING", "output_domain.type", "is missing: name a listed type"),
    ),
    (
        {"output_domain": {"mode": "kanon", "type": "terms"}},
        *("VALIDATION_FAILED", "job_parameters.output_domain_bucket_name", "the mode kanon takes no declared keys"),
    ),
    (
        {"output_domain": {"mode": "declared", "type": "secret"}},
        *("VALIDATION_FAILED", "output_domain.type", "the mode declared takes no type: leave it out"),
    ),
    ({"output_domain": {"mode": "secret"}}, "VALIDATION_FAILED", "output_domain.mode", "declared, discover or kanon"),
    (
        {"output_domain": {"mode": "discover"}},
        *("VALIDATION_FAILED", "job_parameters.output_domain_bucket_name", "leave it out"),
    ),
    (
        {"privacy_params": {"laplace_dp_params": {"epsilon": "1"}}},
        *("VALIDATION_FAILED", "privacy_params.laplace_dp_params", "only job_epsilon and job_delta"),
    ),
    (
        discover(delta="1e-6"),
        *("VALIDATION_FAILED", "privacy_params.laplace_dp_params.job_delta", "1e-12 up to 1e-07"),
    ),
    (
        discover(epsilon="65"),
        *("VALIDATION_FAILED", "privacy_params.laplace_dp_params.job_epsilon", "at most 64"),
    ),
]


@pytest.mark.parametrize(("changes", "reason", "field", "why"), REFUSED)
def test_a_request_that_cannot_be_a_job_is_refused_with_what_to_change(
    service: Front, changes: dict[str, Any], reason: str, field: str, why: str
) -> None:
    request = asked(service, "refused", **changes)
    if changes.get("input_data_bucket_name"):
        request["input_data_bucket_name"] = changes["input_data_bucket_name"]
    for target in (CREATE, PREFLIGHT):
        result = service.send("jobs", "POST", target, request)
        assert result.status == 400
        assert error(result)["code"] == 3
        assert error(result)["status"] == "INVALID_ARGUMENT"
        assert error(result)["details"] == [{"reason": reason, "domain": "kanon", "metadata": {"field": field}}]
        assert error(result)["message"].startswith(f"{field}: ")
        assert why in error(result)["message"]
        assert "secret" not in result.body
    assert service.service.tables.jobs.read("refused") is None
    assert service.queued("stages") == []


MISSPELT = [
    ({"job_parameters__attribution_destination": "secret"}, "job_parameters", "attribution_destinations"),
    ({"job_parameters__debug_privacy_epsilonn": "secret"}, "job_parameters", "debug_privacy_epsilon"),
    ({"job_parameters__filtering_id": "secret"}, "job_parameters", "filtering_ids"),
    ({"skip_exhaused": "secret"}, "body", "skip_exhausted"),
    ({"output_domian": "secret"}, "body", "output_domain"),
    ({"secret": 1}, "body", None),
    ({"s" * 40_000: 1}, "body", None),
    ({"output_domain": {"mod": "discover"}}, "output_domain", "mode"),
    (
        {"privacy_params": {"laplace_dp_params": {"job_epsilom": "1"}}},
        "privacy_params.laplace_dp_params",
        "job_epsilon",
    ),
]


@pytest.mark.parametrize(("changes", "field", "near"), MISSPELT, ids=range(len(MISSPELT)))
def test_an_unknown_field_of_a_job_is_refused_with_the_nearest_name(
    service: Front, changes: dict[str, Any], field: str, near: str | None
) -> None:
    for target in (CREATE, PREFLIGHT):
        result = service.send("jobs", "POST", target, asked(service, "refused", **changes))
        assert result.status == 400
        assert error(result)["details"] == [
            {"reason": "VALIDATION_FAILED", "domain": "kanon", "metadata": {"field": field}}
        ]
        said = error(result)["message"]
        assert said.startswith(f"{field}: a field is unknown")
        assert ("did you mean" in said) == (near is not None)
        assert near is None or f"did you mean {near}?" in said
        assert "secret" not in result.body
        assert len(result.body) < 1_000
    assert service.service.tables.jobs.read("refused") is None


def test_the_harmless_fields_of_the_aggregation_service_are_accepted(service: Front) -> None:
    result = create(service, "harmless", postback_url="https://old.test", account_identity="somebody")
    assert result.status == 202, result.body


@pytest.mark.parametrize("field", ["postback_url", "account_identity", "input_data_blob_prefixes"])
def test_no_job_is_stored_with_values_that_are_nested(service: Front, field: str) -> None:
    """A reader with more calls on its stack could not read it again."""
    request = json.dumps(asked(service, "nested", **{field: 0}))
    for depth in (2, 100, *range(900, 1000)):
        result = service.send(
            "jobs", "POST", CREATE, request.replace(f'"{field}": 0', f'"{field}": {"[" * depth}{"]" * depth}')
        )
        assert result.status == 400, (depth, result.body)
    assert service.service.tables.jobs.read("nested") is None


def test_a_job_with_an_unknown_field_that_an_earlier_version_stored_still_runs(fresh: Front) -> None:
    reports(fresh, 3)
    request = asked(fresh, "earlier", unknown="x", job_parameters__unknown="x")
    assert fresh.service.tables.jobs.create("earlier", request, made.NOW, bytes(32))
    fresh.service.sweep()
    fresh.service.run()
    assert get(fresh, "earlier")["result_info"]["return_code"] == "SUCCESS"
    settings = fresh.module("jobs").SETTINGS
    assert reader(settings)(fresh.service.row("earlier")).job == "earlier"


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '{"a": 1, "a": 2}', "[" * 10_000])
@pytest.mark.parametrize("target", [CREATE, PREFLIGHT, PUBLISH])
def test_a_body_that_is_not_a_json_object_is_refused(service: Front, target: str, text: str) -> None:
    result = service.send("jobs", "POST", target, text)
    assert result.status == 400
    assert error(result)["code"] == 3
    assert [detail["reason"] for detail in error(result)["details"]] == ["JSON_ERROR"]


def test_a_job_of_more_than_64_kib_is_refused(service: Front) -> None:
    result = create(service, "long", postback_url="x" * (64 << 10))
    assert result.status == 413
    assert error(result)["message"] == "the body is larger than 65536 bytes; name fewer or shorter prefixes"
    assert error(result)["status"] == "INVALID_ARGUMENT"


def test_the_longest_request_fits_into_a_row(service: Front) -> None:
    prefixes = [f"{number:02}" + "\u00e4" * 150 for number in range(50)]
    result = create(
        service, "longest", input_data_blob_prefix=None, input_data_blob_prefixes=prefixes, postback_url="x" * 9000
    )
    assert result.status == 202, result.body
    assert get(service, "longest")["input_data_blob_prefixes"] == prefixes


def test_an_epsilon_above_the_cap_is_refused_before_a_job_exists(service: Front) -> None:
    service.reconfigure(KANON_EPSILON_CAP="0.5")
    result = create(service, "above the cap")
    assert (result.status, "at most 0.5, " in error(result)["message"]) == (400, True)


def test_no_job_is_created_or_reported_after_a_cap_has_changed(fresh: Front) -> None:
    assert create(fresh, "before").status == 202
    fresh.reconfigure(KANON_EPSILON_CAP="10")
    for result in (create(fresh, "after"), fresh.send("jobs", "GET", f"{GET}?job_request_id=before")):
        assert (result.status, error(result)["status"]) == (503, "UNAVAILABLE")
    assert "fingerprint mismatch" in fresh.output.getvalue()
    fresh.reconfigure(KANON_EPSILON_CAP="64")
    assert get(fresh, "before")["job_status"] == "RECEIVED"
    assert fresh.service.tables.jobs.read("after") is None


# getJob


def test_a_job_is_in_progress_between_its_stages(service: Front) -> None:
    tables = service.service.tables
    assert create(service, "stages").status == 202
    for state in (State.MAPPING, State.MATCHING, State.REDUCING, State.COMMITTING, State.ABORTING):
        tables.jobs.move(service.service.row("stages"), state, tables.now + 5)
        told = get(service, "stages")
        assert (told["job_status"], "result_info" in told) == ("IN_PROGRESS", False)
        assert told["request_updated_at"] == "2026-01-01T00:00:05Z"
        assert told["privacy"]["rows_charged"] == 0


def test_a_job_reports_when_its_processing_started(fresh: Front) -> None:
    reports(fresh, 10)
    assert create(fresh, "begun").status == 202
    assert "request_processing_started_at" not in get(fresh, "begun")
    fresh.service.tables.now += 5
    fresh.run_jobs()
    fresh.service.tables.now += 5
    assert get(fresh, "begun")["request_processing_started_at"] == "2026-01-01T00:00:05Z"


def test_a_finished_job_reports_its_result_and_its_guarantee(fresh: Front) -> None:
    reports(fresh, 10)
    fresh.service.put_reports("in/b.avro", [made.report([(5, 1)], 20, scheduled_report_time=made.NOW - 91 * DAY)])
    assert create(fresh, "told").status == 202
    fresh.service.tables.now += 60
    fresh.run_jobs()
    told = get(fresh, "told")
    assert told["result_info"] == {
        "return_code": "SUCCESS_WITH_ERRORS",
        "return_message": "the summary is written",
        "error_summary": {
            "error_counts": [
                {"category": "ORIGINAL_REPORT_TIME_TOO_OLD", "count": 1},
                {"category": "NUM_REPORTS_WITH_ERRORS", "count": 1},
            ],
            "error_messages": [],
        },
        "finished_at": "2026-01-01T00:01:00Z",
    }
    privacy = told["privacy"]
    sentences = privacy.pop("this_summary") + privacy.pop("all_summaries")
    assert privacy == {
        "unit": "one source, or one device in one window of 600 seconds",
        "epsilon": "10",
        "delta": "0",
        "contribution_bound": 65_536,
        "mode": "declared",
        "standard_deviation": pytest.approx(9268.19, abs=0.01),
        "rows_charged": 1,
        "epsilon_cap": "64",
        "delta_cap": "0.0000001",
        "e_epsilon_cap": "6.23515e+27",
    }
    assert any(line.startswith("If the contributions of any one unit (") for line in sentences)
    assert any("standard deviation of 9,268" in line for line in sentences)
    assert any("not a guarantee for a person with many units" in line for line in sentences)


def test_a_job_that_discovers_its_keys_reports_its_threshold(service: Front) -> None:
    assert create(service, "discovers", **discover()).status == 202
    privacy = get(service, "discovers")["privacy"]
    assert (privacy["mode"], privacy["threshold"], privacy["delta"]) == ("discover", 181_715, "0.00000001")


def test_a_refused_job_says_that_nothing_was_spent(fresh: Front) -> None:
    assert create(fresh, "nothing to read").status == 202
    reports(fresh, 3, "other/a.avro")
    assert create(fresh, "first", input_data_blob_prefix="other/", **_epsilon("60")).status == 202
    fresh.run_jobs()
    assert create(fresh, "second", input_data_blob_prefix="other/").status == 202
    fresh.run_jobs()
    for job, code in (("nothing to read", "INPUT_DATA_READ_FAILED"), ("second", "PRIVACY_BUDGET_EXHAUSTED")):
        told = get(fresh, job)
        assert told["job_status"] == "FINISHED"
        assert told["result_info"]["return_code"] == code
        assert told["result_info"]["return_message"].endswith("Nothing was spent.")
        assert told["privacy"]["rows_charged"] == 0


def test_a_job_with_too_many_reports_in_error_counts_them(fresh: Front) -> None:
    reports(fresh, 3)
    old = [made.report([(5, 1)], 10 + n, scheduled_report_time=made.NOW - 91 * DAY) for n in range(2)]
    fresh.service.put_reports("in/b.avro", old)
    assert create(fresh, "errors").status == 202
    fresh.run_jobs()
    told = get(fresh, "errors")
    assert told["result_info"]["return_code"] == "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD"
    assert told["result_info"]["error_summary"]["error_counts"] == [
        {"category": "ORIGINAL_REPORT_TIME_TOO_OLD", "count": 2},
        {"category": "NUM_REPORTS_WITH_ERRORS", "count": 2},
    ]
    assert told["privacy"]["rows_charged"] == 0


def _epsilon(epsilon: str) -> dict[str, Any]:
    return {"job_parameters__debug_privacy_epsilon": epsilon}


def test_a_job_is_reported_even_if_its_bucket_is_no_longer_listed(service: Front) -> None:
    service.reconfigure(KANON_REPORT_BUCKETS="one-more")
    request = asked(service, "moved") | {"input_data_bucket_name": "one-more"}
    assert service.send("jobs", "POST", CREATE, request).status == 202
    service.reconfigure(KANON_REPORT_BUCKETS="")
    assert get(service, "moved")["input_data_bucket_name"] == "one-more"


@pytest.mark.parametrize(
    ("query", "status", "code", "reason"),
    [
        ("?job_request_id=unknown", 404, 5, "JOB_NOT_FOUND"),
        ("", 400, 3, "ARGUMENT_MISSING"),
        ("?job_request_id=", 400, 3, "ARGUMENT_MISSING"),
        ("?job_request_id=|open", 400, 3, "VALIDATION_FAILED"),
    ],
)
def test_a_missing_job_is_404(service: Front, query: str, status: int, code: int, reason: str) -> None:
    result = service.send("jobs", "GET", GET + query)
    assert result.status == status
    assert error(result)["code"] == code
    assert error(result)["details"] == [{"reason": reason, "domain": "kanon", "metadata": {"field": "job_request_id"}}]


# preflight


def preflight(service: Front, **changes: Any) -> Any:
    result = service.send("jobs", "POST", PREFLIGHT, asked(service, "preflight", **changes))
    assert result.status == 200, result.body
    return result.json()


def test_preflight_counts_reports_and_units_and_spends_nothing(fresh: Front) -> None:
    early = {"scheduled_report_time": made.NOW - 30 * 3600}
    reports(fresh, 5)
    reports(fresh, 4, "in/b.avro", 3)
    reports(fresh, 2, "in/c.avro", 10, **early)
    reports(fresh, 3, "in/d.avro", 20, attribution_destination="https://other.test")
    fresh.service.put_reports("in/e.avro", [made.report([(5, 1)], 30, reporting_origin="https://stranger.test")])
    found = preflight(
        fresh,
        job_parameters__filtering_ids="0,3",
        job_parameters__attribution_destinations="https://shop.test",
    )
    assert found == {
        "reports": 15,
        "accepted": 11,
        "duplicates": 2,
        "left_out": 4,
        "errors": {},
        "units": 4,
        "rows": 4,
        "would_fail": [],
        "standard_deviation": pytest.approx(9268.19, abs=0.01),
    }
    writes = {"TransactWriteItems", "PutItem", "UpdateItem", "PutObject"}
    written = [params for name, params in fresh.calls if name in writes]
    assert [params["Key"] for params in written] == [{"name": {"S": "function#jobs"}}]
    assert fresh.service.tables.jobs.read("preflight") is None


def test_preflight_names_the_units_that_are_short_of_budget(fresh: Front) -> None:
    reports(fresh, 5)
    assert create(fresh, "spends", **_epsilon("60")).status == 202
    fresh.run_jobs()
    assert preflight(fresh, **_epsilon("4"))["would_fail"] == []
    (short,) = preflight(fresh, **discover("4.001"))["would_fail"]
    assert (short["epsilon_left"], short["delta_left"], short["jobs"]) == ("4", "0.0000001", ["spends"])
    unit = short["aggregateable_input_budget_id"]
    assert unit["relevant_shared_info"]["reporting_origin"] == made.ORIGIN
    # The budget of a preflight is that of a job.
    assert create(fresh, "refused", **_epsilon("4.001")).status == 202
    assert create(fresh, "passes", output_data_blob_prefix="out/b", **_epsilon("4")).status == 202
    fresh.run_jobs()
    codes = [get(fresh, job)["result_info"]["return_code"] for job in ("refused", "passes")]
    assert codes == ["PRIVACY_BUDGET_EXHAUSTED", "SUCCESS"]


@pytest.mark.parametrize(
    ("limit", "value", "why"),
    [
        ("service.answers.MOST_REPORTS", 4, "more than 4 reports: use longer prefixes"),
        ("service.answers.MOST_BYTES", 1 << 10, "MiB: use longer prefixes"),
        ("service.answers.MOST_OBJECTS", 1, "more than 1 objects under the prefixes: take fewer at once"),
        ("service.answers.MOST_UNITS", 0, "more than 0 units: use longer prefixes"),
        ("storage.budgets.MOST_ROWS", 0, "name the attribution_destinations"),
    ],
)
def test_preflight_of_too_much_says_to_use_longer_prefixes(
    service: Front, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, why: str
) -> None:
    reports(service, 5)
    reports(service, 1, "in/b.avro", 9)
    monkeypatch.setattr(f"kanon.reports.{limit}", value)
    result = service.send("jobs", "POST", PREFLIGHT, asked(service, "preflight"))
    assert result.status == 400
    assert why in error(result)["message"]


def test_preflight_of_objects_that_cannot_be_read_says_why(service: Front) -> None:
    result = service.send("jobs", "POST", PREFLIGHT, asked(service, "preflight"))
    assert (result.status, "there is no object under the prefix" in result.body) == (400, True)
    service.service.s3.put_object(Bucket=service.reports_bucket, Key="in/secret.avro", Body=b"secret")
    result = service.send("jobs", "POST", PREFLIGHT, asked(service, "preflight"))
    assert (result.status, "it is not an Avro file" in result.body) == (400, True)
    assert "secret" not in result.body
    reports(service, 1, "in/secret.avro", version="2.0")
    result = service.send("jobs", "POST", PREFLIGHT, asked(service, "preflight"))
    assert (result.status, "version above 1" in result.body) == (400, True)


@pytest.mark.parametrize("call", ["ListObjectsV2", "GetObject"])
def test_preflight_of_a_bucket_that_only_jobs_read_says_so(service: Front, call: str) -> None:
    """The role of the function has no permission on the bucket of summaries."""
    service.service.s3.put_object(Bucket=service.summaries_bucket, Key="in/a.avro", Body=b"not read")
    service.fail = lambda called: "AccessDenied" if called == call else None
    asks = {**asked(service, "preflight"), "input_data_bucket_name": service.summaries_bucket}
    result = service.send("jobs", "POST", PREFLIGHT, asks)
    assert result.status == 400
    message = error(result)["message"]
    assert "preflight may not read" in message
    assert "only jobs read the bucket of summaries" in message
    assert service.summaries_bucket not in result.body


# The budget


def test_the_budget_of_a_day_is_full_until_a_job_spends(fresh: Front) -> None:
    result = fresh.send("jobs", "GET", f"{BUDGET}?{UNIT}")
    assert result.status == 200, result.body
    full = {"epsilon_left": "64", "delta_left": "0.0000001"}
    assert result.json() == {
        "day": "2025-12-31",
        "epsilon_cap": "64",
        "delta_cap": "0.0000001",
        "charged": False,
        "hours": [{"hour": hour, **full} for hour in range(24)],
        "jobs": [],
    }
    reports(fresh, 5)
    assert create(fresh, "spends", **discover("10.5", "1e-8")).status == 202
    fresh.run_jobs()
    told = fresh.send("jobs", "GET", f"{BUDGET}?{UNIT}").json()
    assert told["hours"][22] == {"hour": 22, **full}
    assert told["hours"][23] == {"hour": 23, "epsilon_left": "53.5", "delta_left": "0.00000009"}
    assert told["jobs"] == [{"job_request_id": "spends", "hours": [23], "epsilon": "10.5", "delta": "0.00000001"}]
    other = fresh.send("jobs", "GET", f"{BUDGET}?{UNIT}&filtering_id=1").json()
    assert (other["hours"][23]["epsilon_left"], other["jobs"]) == ("64", [])
    assert (told["charged"], other["charged"]) == (True, False)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (("day=2025-12-31", ""), "day"),
        (("day=2025-12-31", "day=yesterday"), "day"),
        (("day=2025-12-31", "day=1969-12-31"), "day"),
        (("api=attribution-reporting&", ""), "reporting_origin"),
        (("api=attribution-reporting", "api=secret"), "api"),
        (("api=attribution-reporting", "api=kanon"), "attribution_destination"),
        (("version=1.0", "version=2.0"), "version"),
        (("version=1.0", "version=0.0"), "version"),
        (("https://report.test", "report.test"), "reporting_origin"),
        (("day=", "filtering_id=-1&day="), "filtering_id"),
        (("day=", "filtering_ids=1&day="), "query"),
        (("attribution_destination=", "destination="), "query"),
        (("day=", "filtering_id=18446744073709551616&day="), "filtering_id"),
    ],
)
def test_a_budget_without_a_unit_is_refused(service: Front, change: tuple[str, str], field: str) -> None:
    result = service.send("jobs", "GET", f"{BUDGET}?{UNIT.replace(*change)}")
    assert result.status == 400
    assert error(result)["details"][0]["metadata"] == {"field": field}
    assert "secret" not in result.body


def test_a_signature_in_the_query_of_a_budget_is_not_a_parameter(service: Front) -> None:
    result = service.send("jobs", "GET", f"{BUDGET}?{UNIT}&X-Amz-Signature=0&X-Amz-Date=0")
    assert result.status == 200, result.body


# publish


def committed(fresh: Front, job: str = "job") -> None:
    """A job that has spent, and whose output name is taken by something else."""
    reports(fresh, 5)
    fresh.service.s3.put_object(Bucket=fresh.summaries_bucket, Key="out/summary-1-of-1.avro", Body=b"taken")
    assert create(fresh, job).status == 202
    fresh.run_jobs()


def publish(service: Front, job: str, **more: Any) -> Result:
    return service.send("jobs", "POST", PUBLISH, {"job_request_id": job, **more})


def test_an_unwritten_summary_can_be_published_elsewhere_without_budget(fresh: Front) -> None:
    committed(fresh)
    told = get(fresh, "job")
    assert told["job_status"] == "FINISHED"
    assert told["result_info"]["return_code"] == "RESULT_WRITE_ERROR"
    assert "free of charge" in told["result_info"]["return_message"]
    assert told["privacy"]["rows_charged"] == 1
    before = fresh.send("jobs", "GET", f"{BUDGET}?{UNIT}").json()
    result = publish(fresh, "job", output_data_blob_prefix="elsewhere/summary.avro")
    assert (result.status, result.body) == (202, "{}")
    assert get(fresh, "job")["job_status"] == "IN_PROGRESS"
    fresh.run_jobs()
    told = get(fresh, "job")
    assert (told["result_info"]["return_code"], told["output_data_blob_prefix"]) == (
        "SUCCESS",
        "elsewhere/summary.avro",
    )
    assert list(fresh.service.summary("elsewhere/summary-1-of-1.avro")) == [5]
    assert fresh.send("jobs", "GET", f"{BUDGET}?{UNIT}").json() == before
    assert fresh.service.names(WORK) == []


def test_a_summary_is_published_at_its_place_once_the_name_is_free(fresh: Front) -> None:
    committed(fresh)
    fresh.service.s3.delete_object(Bucket=fresh.summaries_bucket, Key="out/summary-1-of-1.avro")
    assert publish(fresh, "job").status == 202
    fresh.run_jobs()
    assert get(fresh, "job")["result_info"]["return_code"] == "SUCCESS"
    assert list(fresh.service.summary()) == [5]


def test_no_summary_may_go_to_the_bucket_of_reports(fresh: Front) -> None:
    committed(fresh)
    another, again = asked(fresh, "another"), {"job_request_id": "job"}
    for path, sent in ((CREATE, another), (PREFLIGHT, another), (PUBLISH, again)):
        result = fresh.send("jobs", "POST", path, sent | {"output_data_bucket_name": fresh.reports_bucket})
        assert result.status == 400
        assert error(result)["details"][0]["metadata"] == {"field": "output_data_bucket_name"}
        assert "name the bucket of summaries" in error(result)["message"]


def test_a_summary_that_cannot_be_published_says_what_to_do(fresh: Front) -> None:
    assert publish(fresh, "unknown").status == 404
    assert create(fresh, "waits").status == 202
    committed(fresh)
    create(fresh, "fails", input_data_blob_prefix="nothing/")
    create(fresh, "published", output_data_blob_prefix="out/other")
    fresh.run_jobs()
    assert create(fresh, "received").status == 202
    reasons = {
        "received": "has not committed yet",
        "fails": "create a new job",
        "published": "copy its objects",
    }
    for job, why in reasons.items():
        result = publish(fresh, job)
        assert (result.status, error(result)["code"]) == (409, 6)
        assert why in error(result)["message"]
    fresh.service.tables.now += 30 * DAY
    result = publish(fresh, "job")
    assert (result.status, "deleted after 30 days" in error(result)["message"]) == (409, True)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"job_request_id": ""}, "job_request_id"),
        ({"output_data_bucket_name": "secret-bucket"}, "output_data_bucket_name"),
        ({"output_data_blob_prefix": "secret\n"}, "output_data_blob_prefix"),
        ({"output_data_prefix": "secret"}, "body"),
        ({"output_data_bucket_name": False}, "output_data_bucket_name"),
    ],
)
def test_a_publication_without_a_valid_place_is_refused(service: Front, changes: dict[str, Any], field: str) -> None:
    result = service.send("jobs", "POST", PUBLISH, {"job_request_id": "job", **changes})
    assert result.status == 400
    assert error(result)["details"][0]["metadata"] == {"field": field}
    assert "secret" not in result.body


# Logs


def test_no_log_line_names_a_job_an_origin_or_a_bucket(fresh: Front) -> None:
    committed(fresh, "name of a job")
    for operation in ("SendMessageBatch", "GetItem", "TransactWriteItems", "Query", "ListObjectsV2", "BatchGetItem"):
        fresh.fail = lambda called, failing=operation: "AccessDenied" if called == failing else None  # type: ignore[misc]
        create(fresh, "name of another job")
        fresh.send("jobs", "GET", f"{GET}?job_request_id=name of a job")
        fresh.send("jobs", "POST", PREFLIGHT, asked(fresh, "name of a job"))
        fresh.send("jobs", "GET", f"{BUDGET}?{UNIT}")
        publish(fresh, "name of a job", output_data_blob_prefix="secret/prefix")
    output = fresh.output.getvalue()
    assert "call refused" in output
    private = ("name of a", "report.test", "shop.test", "secret/", fresh.reports_bucket, fresh.summaries_bucket)
    for word in private:
        assert word not in output


@pytest.mark.parametrize(("method", "target"), [("GET", CREATE), ("POST", GET), ("GET", "/v1/jobs"), ("POST", "/")])
def test_other_paths_are_not_found_in_the_same_form(service: Front, method: str, target: str) -> None:
    result = service.send("jobs", method, target, "{}" if method == "POST" else None)
    assert result.status == 404
    assert (error(result)["code"], error(result)["status"]) == (5, "NOT_FOUND")


def test_a_stored_request_that_is_no_longer_valid_is_an_error_of_the_service(fresh: Front) -> None:
    committed(fresh)
    tables = fresh.service.tables
    too_much = json.dumps(asked(fresh, "job", job_parameters__debug_privacy_epsilon="1000"))
    tables.client.update_item(
        TableName=tables.names["ReportJobs"],
        Key={"job": {"S": "job"}, "part": {"S": "job"}},
        UpdateExpression="SET #request = :stored",
        ConditionExpression="attribute_exists(#request)",
        ExpressionAttributeNames={"#request": "request"},
        ExpressionAttributeValues={":stored": {"S": too_much}},
    )
    result = fresh.send("jobs", "GET", f"{GET}?job_request_id=job")
    assert result.status == 500
    assert "no longer valid" not in result.body
    assert "unexpected error" in fresh.output.getvalue()
