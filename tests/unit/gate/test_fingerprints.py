"""Fingerprints of immutable values: one for each, compared together; noise keys are only added far ahead."""

from collections.abc import Iterable, Mapping, Sequence

import pytest

from kanon.errors import ConfigurationError
from kanon.gate.fingerprints import (
    check_evaluate,
    check_join,
    fingerprints,
    missing_layouts,
    missing_noise_keys,
    retire,
    unchanged_keys,
)
from kanon.gate.settings import EvaluateSettings, JoinSettings, NoiseKeyEntry, QuerySettings, SlotsEntry
from kanon.gate.slots import Layout, Layouts
from kanon.gate.types import Type
from kanon.keys import Secret
from kanon.noise.words import NoiseKey
from tests.unit.examples import ONE_SIDED, SMALL

TYPES = {"a": Type("a", SMALL, None), "b": Type("b", ONE_SIDED, None)}  # windows of 6 and 4 steps
KEYS = {key_id: NoiseKey(key_id, bytes([n]) * 32) for n, key_id in enumerate("1234")}


class Recorded:
    """Control as far as the noise keys see it."""

    def __init__(self) -> None:
        self.items: dict[str, str] = {}
        self.for_join: dict[str, str] = {}

    def recorded(self, owner: str) -> dict[str, str]:
        return dict(self.items if owner == "evaluate" else self.for_join)

    def check(self, owner: str, named: Mapping[str, str]) -> None:
        if owner == "join":
            self.for_join.update(named)
            return
        for name, value in named.items():
            assert self.items.setdefault(name, value) == value


def _evaluate(
    noise_keys: Iterable[tuple[str, int]] = (("1", 0),), slots: Iterable[tuple[int, int]] = ((8, 0),)
) -> EvaluateSettings:
    """Settings with these noise keys and layouts, each with its first step."""
    return EvaluateSettings.model_construct(
        slots=tuple(SlotsEntry(slots=number, from_step=first) for number, first in slots),
        deployment="stack",
        outage_allowance=7,
        period=3600,
        publish_delay=1800,
        noise_keys=tuple(NoiseKeyEntry(id=key_id, from_step=first) for key_id, first in noise_keys),
        log_generations=(),
    )


def _check(control: Recorded, entries: list[tuple[str, int]], step: int, types: Mapping[str, Type] = TYPES) -> None:
    check_evaluate(control, _evaluate(entries), types, KEYS, step, {})  # type: ignore[arg-type]


def test_types_slots_deployment_keys_and_lifetimes_of_rows_have_a_fingerprint_each() -> None:
    pepper = Secret.derived("set-pepper", "text")
    query = QuerySettings.model_construct(
        slots=(SlotsEntry(slots=8, from_step=0),), deployment="stack", publish_delay=1800
    )
    join = JoinSettings.model_construct(
        slots=(SlotsEntry(slots=8, from_step=0),), deployment="stack", outage_allowance=604_800
    )
    named = fingerprints(query, TYPES, [pepper])
    assert named.pop("publish-delay") == "1800"
    assert fingerprints(join, TYPES, [pepper]) == {**named, "outage-allowance": "604800"}
    assert named == {
        "slots": "8",
        "deployment": "stack",
        "type a": SMALL.fingerprint.hex(),
        "type b": ONE_SIDED.fingerprint.hex(),
        "key set-pepper": pepper.fingerprint,
    }


def test_the_first_noise_keys_may_begin_at_any_step() -> None:
    control = Recorded()
    _check(control, [("1", 0), ("2", 101)], 100)
    assert [name for name in control.items if name.startswith("noise-key")] == ["noise-key 1", "noise-key 2"]
    assert control.items["noise-key 2"].endswith(" 101")
    assert KEYS["2"].secret.hex() not in control.items["noise-key 2"]


def test_a_new_key_must_begin_two_of_the_longest_windows_ahead() -> None:
    control = Recorded()
    _check(control, [("1", 0)], 100)
    with pytest.raises(ConfigurationError) as error:
        _check(control, [("1", 0), ("2", 111)], 100)
    assert str(error.value) == (
        "noise key 2 begins at step 111: a new key must begin at step 112 or later (now plus two windows)"
    )
    _check(control, [("1", 0), ("2", 112)], 100)


def test_a_known_key_stays_when_its_first_step_has_come() -> None:
    control = Recorded()
    _check(control, [("1", 0)], 100)
    _check(control, [("1", 0), ("2", 112)], 100)
    _check(control, [("1", 0), ("2", 112)], 500)


def test_the_oldest_keys_can_be_removed() -> None:
    control = Recorded()
    _check(control, [("1", 0), ("2", 112)], 100)
    _check(control, [("2", 112)], 500)


@pytest.mark.parametrize(
    ("left", "missing"),
    [([("1", 0)], ["2", "3"]), ([("1", 0), ("3", 150)], ["2"]), ([("2", 112)], ["3"]), ([("3", 150)], [])],
)
def test_a_newer_key_that_a_rollback_left_out_stays_in_force_and_none_is_added_meanwhile(
    left: list[tuple[str, int]], missing: list[str]
) -> None:
    control = Recorded()
    _check(control, [("1", 0), ("2", 112), ("3", 150)], 100)
    _check(control, left, 500)
    entries = [NoiseKeyEntry(id=key_id, from_step=start) for key_id, start in left]
    found = missing_noise_keys(control.items, entries)
    assert [entry.id for entry in found] == missing
    wrong = {**KEYS, "2": NoiseKey("2", b"other" * 6 + b"ab")}
    assert unchanged_keys(control.items, found, {id_: wrong[id_] for id_ in missing}).keys() == set(missing) - {"2"}
    if missing:
        with pytest.raises(ConfigurationError, match=rf"^noise-key {missing[0]} begins .* is missing: put it back;"):
            _check(control, [*left, ("4", 900)], 500)
    assert "noise-key 4" not in control.items


# Types that are no longer configured


def test_a_type_that_is_missing_is_refused_and_nothing_is_lost_when_it_is_put_back() -> None:
    control = Recorded()
    _check(control, [("1", 0)], 100)
    with pytest.raises(ConfigurationError) as error:
        _check(control, [("1", 0)], 101, {"a": TYPES["a"]})
    assert str(error.value) == (
        "type 'b' is no longer configured: put it back, or retire it permanently with `kanon operate retire b`"
    )
    _check(control, [("1", 0)], 102)


def test_a_retired_type_may_be_removed_and_its_name_cannot_be_used_again() -> None:
    control = Recorded()
    _check(control, [("1", 0)], 100)
    retire(control, "b")  # type: ignore[arg-type]
    _check(control, [("1", 0)], 101, {"a": TYPES["a"]})
    with pytest.raises(ConfigurationError) as error:
        _check(control, [("1", 0)], 102)
    assert str(error.value) == "type 'b' was retired permanently: give the new type another name"


def test_a_type_retired_before_its_first_evaluation_cannot_be_added_again() -> None:
    control = Recorded()
    _check(control, [("1", 0)], 100)
    retire(control, "c")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"^type 'c' was retired permanently"):
        _check(control, [("1", 0)], 101, {**TYPES, "c": TYPES["a"]})


def test_a_restored_table_is_refused_until_a_log_generation_is_recorded() -> None:
    control, settings = Recorded(), _evaluate()
    ids = dict.fromkeys(("StepLog", "Members", "Statuses", "Control"), "id")
    with pytest.raises(
        ConfigurationError, match=r"^tables made from a backup: Control, StepLog; .*kanon operate new-generation`$"
    ):
        check_evaluate(control, settings, TYPES, KEYS, 100, ids, ["Control", "StepLog"])  # type: ignore[arg-type]
    assert not any(name.startswith("tables") for name in control.items)
    check_evaluate(control, settings, TYPES, KEYS, 100, ids)  # type: ignore[arg-type]
    check_evaluate(control, settings, TYPES, KEYS, 100, ids, ["StepLog"])  # type: ignore[arg-type]


# Slots


def _check_slots(control: Recorded, entries: list[tuple[int, int]], step: int) -> None:
    check_evaluate(control, _evaluate(slots=entries), TYPES, KEYS, step, {})  # type: ignore[arg-type]


def test_the_first_number_of_slots_is_recorded_as_before_and_later_ones_by_their_step() -> None:
    control = Recorded()
    _check_slots(control, [(1, 0)], 100)
    assert control.for_join == {}
    _check_slots(control, [(1, 0), (16, 102)], 100)
    assert {name: value for name, value in control.items.items() if name.startswith("slots")} == {
        "slots": "1",
        "slots 102": "16",
    }
    assert control.for_join == {"slots": "1", "slots 102": "16"}  # join may start for the first time at step 200


def test_a_new_number_of_slots_must_begin_two_steps_ahead_and_stays_when_it_has_begun() -> None:
    control = Recorded()
    _check_slots(control, [(1, 0)], 100)
    with pytest.raises(ConfigurationError) as error:
        _check_slots(control, [(1, 0), (16, 101)], 100)
    assert str(error.value) == "the entry of Slots that begins at step 101 is new: let it begin at step 102 or later"
    assert "slots 101" not in control.items
    _check_slots(control, [(1, 0), (16, 102)], 100)
    _check_slots(control, [(1, 0), (16, 102)], 500)
    _check_slots(control, [(16, 102)], 500)


def test_a_number_of_slots_that_join_recorded_in_time_is_accepted_later() -> None:
    control = Recorded()
    _check_slots(control, [(1, 0)], 100)
    control.for_join["slots 101"] = "16"
    _check_slots(control, [(1, 0), (16, 101)], 100)
    assert control.items["slots 101"] == "16"


@pytest.mark.parametrize(
    ("left", "missing"),
    [([(1, 0)], [200, 300]), ([(1, 0), (2, 300)], [200]), ([(16, 200)], [300]), ([(2, 300)], [])],
)
def test_a_number_of_slots_that_a_rollback_left_out_is_known_and_none_is_added_meanwhile(
    left: list[tuple[int, int]], missing: list[int]
) -> None:
    control = Recorded()
    _check_slots(control, [(1, 0), (16, 200), (2, 300)], 100)
    _check_slots(control, left, 500)
    layouts = Layouts(tuple(Layout(slots, first) for slots, first in left))
    assert [*missing_layouts(control.items, layouts)] == missing
    if missing:
        with pytest.raises(ConfigurationError) as error:
            _check_slots(control, [*left, (4, 900)], 500)
        assert str(error.value) == (
            f"the entry of Slots that begins at step {missing[0]} is missing: put it back; only entries older than all"
            " others may be removed"
        )
    assert "slots 900" not in control.items


def test_join_refuses_a_new_number_of_slots_that_begins_too_early() -> None:
    class Noted:
        def check(self, owner: str, named: Mapping[str, str], old: Sequence[str]) -> None:
            self.seen = owner, set(old) & set(named)

    control = Noted()
    settings = JoinSettings.model_construct(
        slots=tuple(SlotsEntry(slots=2, from_step=first) for first in (0, 90, 101, 102)),
        deployment="stack",
        outage_allowance=7,
        period=3600,
    )
    check_join(control, settings, TYPES, (), 100)  # type: ignore[arg-type]
    assert control.seen == ("join", {"slots 90", "slots 101"})
