"""End-to-end cases of browsers' clients: those about what these clients do, and why others are left out."""

from fractions import Fraction

import pytest

from kanon.reports.clients.event_json import PATH
from tests.integration.reports.clients.vectors import (
    AGGREGATE_PATH,
    E2E,
    FOLDER,
    Run,
    aggregatable_facts,
    event_facts,
    expected_aggregatable,
    expected_events,
    load,
    steps_of_e2e,
)

LEFT_OUT = {
    "aggregate_debug_report": "aggregatable debug reports are not built",
    "aggregate_debug_report_version_bump": "aggregatable debug reports are not built",
    "aggregatable_debug_source_storage_limit": "limits on stored sources are not built",
    "flex_event_attribution_rate_limits_aggregate_and_v1_interplay": "rate limits are not built",
    "flex_event_with_coarse_destinations": "sources with an app and a web destination are not built",
    "flex_lite_with_coarse_destinations": "sources with an app and a web destination are not built",
}

CLAIMED = {
    "aggregatable_dedup_2_dedup_keys_stored_in_db",
    "aggregatable_dedup_3_triggers_2_dedup",
    "aggregatable_dedup_key_no_source_filters",
    "aggregatable_dedup_key_null_not_selected",
    "aggregatable_dedup_keys_beyond_long_value",
    "aggregatable_many_trigger_data",
    "aggregatable_no_matching_source_exclude_source_registration_time_debug_key",
    "aggregatable_no_matching_source_exclude_source_registration_time_set_context_id_debug_key",
    "aggregatable_over_contributions_limit",
    "aggregatable_three_of_three_entries",
    "aggregatable_trigger_aggregate_report_window_passed_app-web_exclude_source_registration_time",
    "aggregatable_trigger_no_matching_filter_data_app-app_exclude_source_registration_time",
    "aggregatable_trigger_no_matching_filter_data_web-app_exclude_source_registration_time",
    "aggregatable_two_contributions_debug_api",
    "aggregatable_two_contributions_debug_api_trigger",
    "aggregatable_two_contributions_exclude_source_registration_time_set_context_id",
    "aggregatable_two_contributions_no_adid_debug_api_source",
    "aggregatable_two_contributions_null_reports",
    "aggregatable_values_filtering_no_contributions",
    "aggregatable_values_filtering_two_contributions",
    "flex_event_incremental_bucket_larger_than_one_for_count_generate_report",
    "flex_event_mixed_priority_for_multiple_reports",
    "flex_event_nav_source_over_max_info_gain_limit",
    "flex_event_one_sources_default_nav_three_triggers",
    "flex_event_two_specs_trigger_priority_wins",
    "flex_event_value_sum_event_no_trigger_dedup_key",
    "flex_event_value_sum_event_source_across_report_window_debug_report",
    "flex_event_value_sum_event_source_base_case_no_report_one_trigger",
    "flex_event_value_sum_honor_dedup_keys",
    "flex_event_value_sum_two_specs_two_report_windows_multiple_debug_keys",
    "flex_lite_api_enabled_beyond_last_window",
    "flex_lite_enabled_max_report_states",
    "randomized_response_0_report",
    "randomized_response_1_report",
}

CASES = {path.stem: path for path in sorted((FOLDER / "e2e").glob("*/*.json"))}
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="the public vectors are not beside this checkout")


def null_rates(case):
    """The rates of null reports that a case sets; without a setting its outcome holds none."""
    flags = case.get("phflags_override", {})
    names = ("excl", "incl")
    return tuple(
        Fraction(flags.get(f"measurement_null_agg_report_rate_{name}_source_registration_time", 0)) for name in names
    )


def test_every_case_is_claimed_or_left_out_for_a_reason():
    assert CLAIMED | LEFT_OUT.keys() == CASES.keys()
    assert not CLAIMED & LEFT_OUT.keys()


@pytest.mark.parametrize("name", sorted(CLAIMED))
def test_a_case_gives_its_recorded_reports(name):
    case = load(CASES[name])
    made = Run(steps_of_e2e(case), E2E, null_rates(case))

    output = case["output"]
    assert event_facts(made.events) == expected_events(output.get("event_level_results", []))
    expected = output.get("aggregatable_results", [])
    assert all(result["report_url"].endswith(AGGREGATE_PATH) for result in expected)
    assert all(result["report_url"].endswith(PATH) for result in output.get("event_level_results", []))
    assert aggregatable_facts(made.browsers) == expected_aggregatable(expected, lambda key: int(key, 16))


@pytest.mark.parametrize("name", sorted(CLAIMED))
def test_every_trigger_that_asks_for_a_report_has_exactly_one(name):
    case = load(CASES[name])
    steps = [step for step in steps_of_e2e(case) if not step.is_source]
    asking = [s for s in steps if s.fields.get("aggregatable_values") or s.fields.get("aggregatable_trigger_data")]

    assert len(Run(steps_of_e2e(case), E2E).ours) == len(asking)
