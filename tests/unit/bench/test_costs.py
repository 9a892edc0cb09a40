"""`kanon cost` uses the processor times that stand in the table of `make bench`."""

import json
import re

import pytest

from bench.costs import MEASURED, PAGE, times, with_times

TEXT, ROWS = MEASURED.read_text(), PAGE.read_text()
ENTRIES = json.loads(TEXT)["values"]


def test_the_times_of_kanon_cost_equal_those_of_the_performance_page() -> None:
    assert with_times(TEXT, ROWS) == TEXT, "run `python -m bench.costs` and `make reference`"


def test_every_value_from_make_bench_has_its_row() -> None:
    named = {name for name, entry in ENTRIES.items() if entry["from"].startswith("make bench")}
    assert set(times(ENTRIES, ROWS)) == named
    assert len(named) == 7


def test_the_test_finds_another_time_on_the_page() -> None:
    other = re.sub(
        r"^(\| join, a request \|.*\| )[\d.]+ ms a request", r"\g<1>1.5 ms a request", ROWS, flags=re.MULTILINE
    )
    made = json.loads(with_times(TEXT, other))["values"]
    assert {name for name in made if made[name] != ENTRIES[name]} == {"join_ms"}
    assert made["join_ms"]["value"] == 1.5


def test_a_time_is_converted_to_ms_and_a_hash_costs_the_difference_to_a_minimal_request() -> None:
    entries = {
        "a_ms": {"from": "make bench, row `a (b)`"},
        "query_ms": {"from": "make bench: the other side of the row `c`"},
        "hash_ms": {"from": "make bench, row `d`, less query_ms, by 100"},
        "assumed": {"from": "assumption"},
    }
    page = """
| a (b) | x | y | 1.47 | 1, 2 | 164 us a set, against 110 us | - | - |
| c | x | y | 1.15 | 1, 2 | 2 ms a request, against 1.5 ms | - | - |
| d | x | y | 1.15 | 1, 2 | 0.0045 s a request, against 900 ns | - | - |
"""
    assert times(entries, page) == {"a_ms": 0.164, "query_ms": 1.5, "hash_ms": 0.03}


def test_a_row_that_is_not_on_the_page_is_named() -> None:
    with pytest.raises(ValueError, match="0 rows of the page are called 'nowhere'"):
        times({"a_ms": {"from": "make bench, row `nowhere`"}}, ROWS)
