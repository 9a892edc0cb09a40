"""The environment of the functions of reports: read once, every problem named at once."""

from fractions import Fraction

import pytest

from kanon.errors import ConfigurationError
from kanon.reports.settings import (
    AggregateSettings,
    CollectSettings,
    DecryptSettings,
    JobsSettings,
    RotateSettings,
    StoreSettings,
)

CONTROL = {"KANON_DEPLOYMENT": "stack/1", "KANON_CONTROL_TABLE": "control", "UNRELATED": "ignored"}
JOB = {
    **CONTROL,
    "KANON_REPORTS_BUCKET": "stack-reports",
    "KANON_SUMMARIES_BUCKET": "stack-summaries",
    "KANON_REPORT_BUCKETS": "",
    "KANON_REPORT_JOBS_TABLE": "jobs",
    "KANON_STAGES_URL": "https://stages",
    "KANON_EPSILON_CAP": "64",
    "KANON_DELTA_CAP": "1e-7",
}
COLLECT = {
    **CONTROL,
    "KANON_EDGE_SECRET": "",
    "KANON_ARRIVALS_URL": "https://arrivals",
    "KANON_ALLOWED_ORIGINS": "*",
}
STORE = {"KANON_REPORTS_BUCKET": "stack-reports"}
JOBS = {
    **JOB,
    "KANON_EDGE_SECRET": "",
    "KANON_BUDGETS_TABLE": "budgets",
    "KANON_LISTED_TYPES": "",
    "KANON_PERIOD": "3600",
}
DECRYPT = {**JOB, "KANON_WORK_BUCKET": "stack-work", "KANON_REPORT_KEY_PREFIX": "stack/report-keys/"}
AGGREGATE = {
    **JOB,
    "KANON_WORK_BUCKET": "stack-work",
    "KANON_LIST_BUCKET": "",
    "KANON_PERIOD": "3600",
    "KANON_BUDGETS_TABLE": "budgets",
    "KANON_MAPS_URL": "https://maps",
    "KANON_REPORT_NOISE_KEY_SECRET": "arn:noise",
}
ROTATE = {
    **CONTROL,
    "KANON_BUDGETS_TABLE": "budgets",
    "KANON_REPORT_JOBS_TABLE": "jobs",
    "KANON_REPORT_KEY_PREFIX": "stack/report-keys/",
    "KANON_KMS_KEY": "arn:key",
}
ENVIRONMENTS = {
    CollectSettings: COLLECT,
    StoreSettings: STORE,
    JobsSettings: JOBS,
    DecryptSettings: DECRYPT,
    AggregateSettings: AGGREGATE,
    RotateSettings: ROTATE,
}


@pytest.mark.parametrize("settings", ENVIRONMENTS)
def test_a_function_reads_exactly_its_variables(settings):
    given = {name for name in ENVIRONMENTS[settings] if name.startswith("KANON_")}
    assert {f"KANON_{name.upper()}" for name in settings.model_fields} == given
    settings.from_environment(ENVIRONMENTS[settings])


@pytest.mark.parametrize("settings", ENVIRONMENTS)
def test_every_missing_variable_is_named(settings):
    with pytest.raises(ConfigurationError) as refused:
        settings.from_environment({})
    assert all(f"KANON_{name.upper()}" in str(refused.value) for name in settings.model_fields)


@pytest.mark.parametrize("name", ["KANON_ARRIVALS_URL", "KANON_DEPLOYMENT"])
def test_an_empty_name_is_refused(name):
    with pytest.raises(ConfigurationError, match=name):
        CollectSettings.from_environment({**COLLECT, name: ""})


def test_caps_are_read_exactly():
    settings = JobsSettings.from_environment({**JOBS, "KANON_EPSILON_CAP": "0.1", "KANON_DELTA_CAP": "0.000000001"})
    assert settings.epsilon_cap == Fraction(1, 10)
    assert settings.delta_cap == Fraction(1, 10**9)


@pytest.mark.parametrize("cap", ["0", "64.001", "0.0001", "1.0005", "-1", "nan", "", "64 "])
def test_an_epsilon_cap_out_of_range_is_refused(cap):
    with pytest.raises(ConfigurationError, match="KANON_EPSILON_CAP"):
        JobsSettings.from_environment({**JOBS, "KANON_EPSILON_CAP": cap})


@pytest.mark.parametrize("cap", ["0", "0.002", "1e-13", "0.0000000000000001", "1e-7.0", ""])
def test_a_delta_cap_out_of_range_is_refused(cap):
    with pytest.raises(ConfigurationError, match="KANON_DELTA_CAP"):
        JobsSettings.from_environment({**JOBS, "KANON_DELTA_CAP": cap})


def test_jobs_may_name_the_buckets_of_the_stack_and_the_listed_ones():
    settings = JobsSettings.from_environment({**JOBS, "KANON_REPORT_BUCKETS": "one-more, and.another"})
    assert settings.buckets == {"stack-reports", "stack-summaries", "one-more", "and.another"}


@pytest.mark.parametrize("name", ["Upper", "a/b", "x", "s3://bucket"])
def test_an_invalid_bucket_name_is_refused(name):
    with pytest.raises(ConfigurationError, match="KANON_REPORT_BUCKETS"):
        JobsSettings.from_environment({**JOBS, "KANON_REPORT_BUCKETS": f"fine-name,{name}"})


def test_every_origin_is_allowed_unless_some_are_listed():
    assert CollectSettings.from_environment(COLLECT).allows("https://any.test")
    listed = {**COLLECT, "KANON_ALLOWED_ORIGINS": "https://a.test, https://b.test:8443"}
    settings = CollectSettings.from_environment(listed)
    assert settings.allows("https://a.test")
    assert settings.allows("https://b.test:8443")
    assert not settings.allows("https://b.test")
    assert not settings.allows("https://sub.a.test")


@pytest.mark.parametrize(
    "origins", ["", "http://a.test", "a.test", "https://a.test/", "*,https://a.test", "https://*.test"]
)
def test_an_origin_that_is_not_https_is_refused(origins):
    with pytest.raises(ConfigurationError, match=r"KANON_ALLOWED_ORIGINS: .*list https origins"):
        CollectSettings.from_environment({**COLLECT, "KANON_ALLOWED_ORIGINS": origins})
