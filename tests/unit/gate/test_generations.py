"""Log generations: Control and the parameter must agree, and the tables must be those recorded."""

import re
from collections.abc import Mapping

import pytest

from kanon.errors import ConfigurationError
from kanon.gate.generations import as_recorded, in_force, recorded_generations, refuse_log_generations, replaced_tables
from kanon.gate.mechanism.tape import LogGeneration
from kanon.gate.settings import LogGenerationEntry

FIRST = {"Control": "c", "Members": "m", "Statuses": "s", "StepLog": "l"}
SECOND = {**FIRST, "StepLog": "l2"}
THIRD = {**FIRST, "StepLog": "l2", "Members": "m3"}
RECORDED = {"slots": "1", **as_recorded(90, SECOND), **as_recorded(0, FIRST), **as_recorded(100, THIRD)}


def entries(*listed: tuple[str, int]) -> tuple[LogGenerationEntry, ...]:
    return tuple(LogGenerationEntry(log=log, from_step=step) for log, step in listed)


def test_generations_are_read_oldest_first() -> None:
    assert list(recorded_generations(RECORDED).items()) == [(0, FIRST), (90, SECOND), (100, THIRD)]
    assert recorded_generations({"slots": "1"}) == {}


def test_the_newest_generation_is_in_force_and_the_first_has_no_name() -> None:
    assert in_force(()) is None
    assert in_force(entries(("l2", 90), ("l2", 100))) == LogGeneration("l2", 100)


@pytest.mark.parametrize("listed", [entries(("l2", 90), ("l2", 100)), entries(("l2", 100))])
def test_the_configuration_may_name_all_generations_or_only_the_newest(listed: tuple[LogGenerationEntry, ...]) -> None:
    refuse_log_generations(RECORDED, listed, THIRD)


def test_a_deployment_without_generations_is_not_refused() -> None:
    refuse_log_generations({}, (), FIRST)
    refuse_log_generations(as_recorded(0, FIRST), (), FIRST)


@pytest.mark.parametrize(
    ("recorded", "listed", "reason"),
    [
        (RECORDED, entries(("l2", 90), ("l2", 100), ("l2", 101)), "begins at step 101 was not started: run `kanon op"),
        ({}, entries(("l2", 90)), "begins at step 90 was not started"),
        (RECORDED, entries(("other", 90), ("l2", 100)), "begins at step 90 was started on another log: put its entry"),
        (RECORDED, entries(("l2", 90), ("other", 100)), "begins at step 100 was started on another log"),
        (RECORDED, entries(("l2", 91), ("l2", 100)), "begins at step 91 was not started"),
        (RECORDED, entries(("l2", 90)), "begins at step 100 is missing from LogGenerations: put it there"),
        (RECORDED, (), "begins at step 90 is missing from LogGenerations"),
    ],
)
def test_a_generation_that_was_not_begun_or_is_changed_or_removed_is_refused(
    recorded: Mapping[str, str], listed: tuple[LogGenerationEntry, ...], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(reason)):
        refuse_log_generations(recorded, listed, THIRD)


@pytest.mark.parametrize("name", list(FIRST))
def test_every_replaced_table_is_named(name: str) -> None:
    ids = {**FIRST, name: "another"}
    assert replaced_tables(FIRST, ids) == [name]
    with pytest.raises(
        ConfigurationError, match=f"^another table is in the place of {name} .* operate new-generation`$"
    ):
        refuse_log_generations(as_recorded(0, FIRST), (), ids)


def test_the_tables_of_older_generations_are_not_compared() -> None:
    refuse_log_generations(RECORDED, entries(("l2", 100)), THIRD)
    with pytest.raises(ConfigurationError, match="in the place of Members and StepLog "):
        refuse_log_generations(RECORDED, entries(("l2", 100)), FIRST)
