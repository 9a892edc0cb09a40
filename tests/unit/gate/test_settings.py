"""The environment of the functions: read once, every problem named at once."""

import json
import re

import pytest

from kanon.errors import ConfigurationError
from kanon.gate.settings import (
    AnswerSettings,
    EvaluateSettings,
    GateSettings,
    JoinSettings,
    NoiseKeyEntry,
    QuerySettings,
)
from kanon.gate.slots import Layout, Layouts

COMMON = {
    "KANON_TYPES": '{"fledge": {"k": 50, "window": 720, "profile": "published"}}',
    "KANON_PERIOD": "3600",
    "KANON_SLOTS": "8",
    "KANON_DEPLOYMENT": "stack/1",
    "KANON_CONTROL_TABLE": "control",
    "UNRELATED": "ignored",
}
JOIN = {
    **COMMON,
    "KANON_STEP_LOG_TABLE": "log",
    "KANON_SET_PEPPER_SECRET": "arn:pepper",
    "KANON_CLIENT_KEY_SECRET": "arn:client",
    "KANON_OUTAGE_ALLOWANCE": "604800",
    "KANON_EDGE_SECRET": "",
    "KANON_LISTER_KEY": "",
    "KANON_ISSUER_KEY_SECRET": "",
}
QUERY = {
    **COMMON,
    "KANON_STATUSES_TABLE": "statuses",
    "KANON_STATES_BUCKET": "states",
    "KANON_SET_PEPPER_SECRET": "arn:pepper",
    "KANON_PUBLISH_DELAY": "1800",
    "KANON_ANONYMOUS_HASHES": "100",
    "KANON_MAX_STALE": "24",
    "KANON_EDGE_SECRET": "",
}
EVALUATE = {
    **COMMON,
    "KANON_STEP_LOG_TABLE": "log",
    "KANON_STATES_BUCKET": "states",
    "KANON_STATUSES_TABLE": "statuses",
    "KANON_NOISE_KEY_SECRET": "arn:noise",
    "KANON_NOISE_KEYS": '[{"id": "1", "from_step": 0}, {"id": "2", "from_step": 500000}]',
    "KANON_LOG_GENERATIONS": '[{"log": "6f1e-8a", "from_step": 7}, {"log": "6f1e-8a", "from_step": 9}]',
    "KANON_QUEUE_URL": "https://queue",
    "KANON_OUTAGE_ALLOWANCE": "604800",
    "KANON_GRACE": "120",
    "KANON_LEASE": "150",
    "KANON_PUBLISH_DELAY": "1800",
    "KANON_PUBLISH_MARGIN": "60",
    "KANON_MAX_STALE": "24",
}


def test_each_function_reads_its_own_environment() -> None:
    join = JoinSettings.from_environment(JOIN)
    assert (join.period, join.layouts, join.outage_allowance, join.step_log_table) == (
        3600,
        Layouts((Layout(8, 0),)),
        604_800,
        "log",
    )
    assert QuerySettings.from_environment(QUERY).publish_delay == 1800
    evaluate = EvaluateSettings.from_environment(EVALUATE)
    assert evaluate.noise_keys == (NoiseKeyEntry(id="1", from_step=0), NoiseKeyEntry(id="2", from_step=500_000))
    assert [(entry.log, entry.from_step) for entry in evaluate.log_generations] == [("6f1e-8a", 7), ("6f1e-8a", 9)]
    assert list(evaluate.tables.values()) == ["log", "statuses", evaluate.control_table]
    assert (evaluate.grace, evaluate.lease, evaluate.publish_margin) == (120, 150, 60)


def test_the_types_have_the_values_of_the_document_and_the_period() -> None:
    types = JoinSettings.from_environment(JOIN).read_types()
    assert types["fledge"].parameters.period == 3600


LISTED = {**JOIN, "KANON_TYPES": '{"terms": {"k": 50, "window": 24, "profile": "published", "listed": true}}'}


def test_join_takes_listed_types_with_the_key_of_their_lister_alone() -> None:
    assert JoinSettings.from_environment({**LISTED, "KANON_LISTER_KEY": "k" * 43}).read_types()["terms"].listed
    with pytest.raises(ConfigurationError, match=r"type 'terms' is listed.*run `kanon operate lister-key`.*ListerKey"):
        JoinSettings.from_environment(LISTED).read_types()


@pytest.mark.parametrize("key", ["k", "k" * 42, "k" * 44, "k" * 42 + "=", "+" * 43, "k" * 43 + "\n"])
def test_a_key_of_another_form_is_refused(key: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^KANON_LISTER_KEY: "):
        JoinSettings.from_environment({**LISTED, "KANON_LISTER_KEY": key})


@pytest.mark.parametrize(
    ("settings", "environment"), [(JoinSettings, JOIN), (QuerySettings, QUERY), (EvaluateSettings, EVALUATE)]
)
def test_every_missing_variable_is_named(settings: type[GateSettings], environment: dict[str, str]) -> None:
    wanted = {name for name in environment if name.startswith("KANON_")}
    with pytest.raises(ConfigurationError) as error:
        settings.from_environment({})
    assert str(error.value) == "; ".join(f"KANON_{name.upper()}: Field required" for name in settings.model_fields)
    assert {f"KANON_{name.upper()}" for name in settings.model_fields} == wanted


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("KANON_PERIOD", "0", "KANON_PERIOD: Input should be greater than or equal to 1"),
        ("KANON_PERIOD", "86401", "KANON_PERIOD: Input should be less than or equal to 86400"),
        ("KANON_PERIOD", "an hour", "KANON_PERIOD: Input should be a valid integer"),
        ("KANON_SLOTS", "0", "KANON_SLOTS: Input should be greater than or equal to 1"),
        ("KANON_SLOTS", "512", "KANON_SLOTS: Input should be less than or equal to 256"),
        ("KANON_SLOTS", "6", "KANON_SLOTS: the number of slots must be a power of two"),
        ("KANON_DEPLOYMENT", "", "KANON_DEPLOYMENT: String should have at least 1 character"),
        ("KANON_GRACE", "-1", "KANON_GRACE: Input should be greater than or equal to 0"),
        ("KANON_LEASE", "a while", "KANON_LEASE: Input should be a valid integer"),
        ("KANON_OUTAGE_ALLOWANCE", "99999999", "KANON_OUTAGE_ALLOWANCE: Input should be less than or equal to"),
    ],
)
def test_a_wrong_variable_is_named_with_what_it_should_be(variable: str, value: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{re.escape(message)}"):
        EvaluateSettings.from_environment({**EVALUATE, variable: value})


@pytest.mark.parametrize("slots", [1, 2, 64, 256])
def test_the_number_of_slots_is_a_power_of_two_up_to_256(slots: int) -> None:
    for text in (str(slots), json.dumps([{"slots": slots, "from_step": 0}])):
        assert JoinSettings.from_environment({**JOIN, "KANON_SLOTS": text}).layouts == Layouts((Layout(slots, 0),))


def test_slots_are_listed_by_their_first_steps() -> None:
    text = '[{"slots":1,"from_step":0},{"slots":16,"partitions":8,"from_step":494000}]'
    layouts = JoinSettings.from_environment({**JOIN, "KANON_SLOTS": text}).layouts
    assert layouts == Layouts((Layout(1, 0), Layout(16, 494_000, 8)))


SOME, IN_ORDER = "list at least one entry", "list the entries in the order of from_step, each step once"


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("SLOTS", "[]", SOME),
        ("SLOTS", '[{"slots":1,"from_step":5},{"slots":2,"from_step":5}]', IN_ORDER),
        ("SLOTS", '[{"slots":1,"from_step":5},{"slots":2,"from_step":4}]', IN_ORDER),
        ("SLOTS", '[{"slots":3,"from_step":0}]', "the number of slots must be a power of two"),
        ("SLOTS", '[{"slots":true,"from_step":0}]', "Input should be a valid integer"),
        ("SLOTS", '[{"slots":1,"from_step":-1}]', "Input should be greater than or equal to 0"),
        ("SLOTS", '[{"slots":1}]', "Field required"),
        ("SLOTS", '[{"slots":1,"partitions":3,"from_step":0}]', "the number of partitions must be a power of two"),
        ("SLOTS", '[{"slots":1,"partitions":32,"from_step":0}]', "Input should be less than or equal to 16"),
        ("SLOTS", '"16', "Unterminated string"),
        ("SLOTS", "[" * 100_000, "the list is nested too deeply"),
        ("NOISE_KEYS", "[]", SOME),
        ("NOISE_KEYS", '[{"id":"1","from_step":5},{"id":"2","from_step":5}]', IN_ORDER),
        ("NOISE_KEYS", '[{"id":"1","from_step":5},{"id":"2","from_step":4}]', IN_ORDER),
        ("NOISE_KEYS", '[{"id":"1","from_step":5},{"id":"1","from_step":9}]', "list each noise key once"),
        ("NOISE_KEYS", '[{"id":"1","from_step":-1}]', "Input should be greater than or equal to 0"),
        ("NOISE_KEYS", '[{"id":"","from_step":1}]', "String should match pattern"),
        ("NOISE_KEYS", '[{"id":"a b","from_step":1}]', "String should match pattern"),
        ("NOISE_KEYS", '[{"id":"1\\n","from_step":1}]', "String should match pattern"),
        ("NOISE_KEYS", '[{"id":"1"}]', "Field required"),
        ("NOISE_KEYS", '[{"id":"1","from_step":0,"key":"x"}]', "there is no field 'key'"),
        ("NOISE_KEYS", "1", "Input should be a valid tuple"),
        ("NOISE_KEYS", "{", ""),
        ("NOISE_KEYS", "", ""),
        ("LOG_GENERATIONS", '[{"log":"a","from_step":5},{"log":"b","from_step":5}]', IN_ORDER),
        ("LOG_GENERATIONS", '[{"log":"a","from_step":5},{"log":"b","from_step":4}]', IN_ORDER),
        ("LOG_GENERATIONS", '[{"log":"a","from_step":0}]', "Input should be greater than or equal to 1"),
        ("LOG_GENERATIONS", '[{"log":"","from_step":1}]', "String should match pattern"),
        ("LOG_GENERATIONS", '[{"log":"a\\n","from_step":1}]', "String should match pattern"),
        ("LOG_GENERATIONS", '[{"log":"a","from_step":"1"}]', "Input should be a valid integer"),
        ("LOG_GENERATIONS", '[{"log":"a"}]', "Field required"),
        ("LOG_GENERATIONS", "1", "Input should be a valid tuple"),
        ("LOG_GENERATIONS", "", ""),
    ],
)
def test_a_wrong_list_of_entries_is_refused(variable: str, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^KANON_{variable}: {re.escape(message)}"):
        EvaluateSettings.from_environment({**EVALUATE, f"KANON_{variable}": text})


def test_a_publish_margin_longer_than_the_period_is_refused():
    with pytest.raises(ConfigurationError, match=r"KANON_PUBLISH_MARGIN.*must not be longer than the period"):
        EvaluateSettings.from_environment(EVALUATE | {"KANON_PERIOD": "300", "KANON_PUBLISH_MARGIN": "301"})


@pytest.mark.parametrize(("delay", "allowed"), [("86400", True), ("86401", False)])
@pytest.mark.parametrize(("settings", "environment"), [(QuerySettings, QUERY), (EvaluateSettings, EVALUATE)])
def test_no_window_is_shorter_than_the_publish_delay(
    settings: type[AnswerSettings], environment: dict[str, str], delay: str, allowed: bool
) -> None:
    types = '{"short": {"k": 50, "window": 24, "profile": "published"}}'
    read = settings.from_environment({**environment, "KANON_TYPES": types, "KANON_PUBLISH_DELAY": delay})
    if allowed:
        assert read.read_types()
    else:
        with pytest.raises(
            ConfigurationError, match="a window of 24 steps is shorter than the publish delay of 86401 s"
        ):
            read.read_types()


@pytest.mark.parametrize(
    ("hold", "delay", "stale", "allowed"),
    [
        (24, "1800", "24", True),
        (24, "1800", "99", True),  # a window at most
        (24, "7200", "24", False),
        (25, "7200", "24", True),
        (24, "7200", "23", True),
        (24, "86400", "1", True),
        (24, "86400", "2", False),
    ],
)
def test_a_reader_never_needs_a_crossing_that_is_not_kept(hold: int, delay: str, stale: str, allowed: bool) -> None:
    types = json.dumps({"after": {"k": 50, "window": 24, "profile": "crossing", "hold": hold}})
    changes = {"KANON_TYPES": types, "KANON_PUBLISH_DELAY": delay, "KANON_MAX_STALE": stale}
    read = EvaluateSettings.from_environment({**EVALUATE, **changes})
    if allowed:
        assert read.read_types()
    else:
        with pytest.raises(ConfigurationError, match=f"a hold of {hold} steps is too short for MaxStale {stale}"):
            read.read_types()
    assert QuerySettings.from_environment({**QUERY, **changes}).read_types()
