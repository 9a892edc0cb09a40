"""Nothing can change under a name that was paid for: every field moves a digest, so equal noise means equal data."""

from dataclasses import fields, replace
from fractions import Fraction
from hashlib import sha256
from typing import get_args

import pyarrow as pa
import pytest

from kanon.release import Ledger, Spec, release
from kanon.release.accounting import Period
from kanon.release.aggregates import AutomaticSum, Quantiles, TotalsAggregate
from kanon.release.bounding import LEFT_OUT, Bins, Cells, Clamped, Condition, Measure
from kanon.release.errors import InputError, SpecificationError
from kanon.release.mechanism import Mechanism
from kanon.release.noising import Group, PrivateTable, _in_pieces, keyed_digest, publish
from kanon.release.tape import Tape
from tests.unit.release.made import Given, spec

KEY = b"k" * 32
USED_BY = {
    "weights": {"aggregates": ("rows:3",)}, "values_per_group": {"aggregates": ("distinct:page",)},
    "scale": {"aggregates": ("sum:x:0:9",)}, "cells": {"aggregates": ("max:x:0:9",)},
    "time": {"unit": "user-day"}, "dates": {"period": Period.read("2026-01")},
}  # fmt: skip
"""Fields that need another one to have an effect."""
OTHER = {
    "groups": ("set", "country"), "epsilon": Fraction(2), "delta": Fraction("2e-5"), "user": "member",
    "unit": "user-day", "groups_per_user": 2, "floor": 2, "aggregates": ("rows:3",), "weights": (2, 1),
    "values_per_group": 2, "scale": 1, "cells": 8, "noise": "laplace", "only_groups": True,
    "public_groups": (("a",),), "period": Period.read("2026-01"), "where": (Condition("page", equal=True, text="p"),),
    "time": "created", "dates": "mdy", "skip_bad_rows": True,
}  # fmt: skip


def test_every_field_of_a_specification_changes_its_digest() -> None:
    assert OTHER.keys() == {field.name for field in fields(Spec)}
    for name, value in OTHER.items():
        without = spec(**USED_BY.get(name, {}))
        assert replace(without, **{name: value}).digest != without.digest, name
    digests = {spec(**USED_BY.get(name, {}), **{name: value}).digest for name, value in OTHER.items()}
    assert len(digests) == len(OTHER)
    whole = spec(**USED_BY["scale"])
    assert whole.digest == replace(whole, scale=0).digest  # whole values: the same values in both


@pytest.mark.parametrize("name", USED_BY)
def test_a_field_without_effect_is_refused_for_it_would_make_the_same_release_cost_again(name: str) -> None:
    with pytest.raises(SpecificationError, match=r"has no effect without .*: leave it out"):
        spec(**{name: OTHER[name][:1] if name == "weights" else OTHER[name]})


@pytest.mark.parametrize(
    ("more", "digest"),
    [
        ({}, "f53b5e96d30767be67842afc87b479f8e4d5ecedaa5bc03ad1dd3f163cfbb13b"),
        (
            {
                "aggregates": ("mean:x:0:9", "quantile:x:0:9:0.5"), "weights": (2, 1, 1), "values_per_group": 2,
                "scale": 1, "cells": 8, "noise": "laplace", "groups_per_user": 3,
            },
            "633ea2563ccf3f99ce290c7df7ace7e07247c35c24d2ffca8cef6e24ada72330",
        ),
        (
            {"unit": "user-month", "period": Period.read("2026-01"), "time": "created", "dates": "mdy"},
            "b4b9799f588f5910ff2ed91b8459e26ce835a340b074f4783c0cfbc5ddd70974",
        ),
        ({"only_groups": True, "floor": 2}, "e21c1a82444e5d88113a1084b46fa85009ddf090d860ac2b6f5202a660adecb0"),
        (
            {"public_groups": (("a",), ("b",)), "where": (Condition("page", equal=True, text="p"),)},
            "34278e1462525fdad36e6caa0f90db1da311d03ba55d1e31f2acd684f6344c4d",
        ),
    ],
)  # fmt: skip
def test_the_digest_of_a_specification_is_that_of_earlier_versions(more, digest) -> None:
    """Recorded: a release that was paid for is found by it."""
    assert spec(**more).digest == digest


@pytest.mark.parametrize("field", [field.name for field in fields(Condition)])
def test_every_field_of_a_condition_and_every_public_group_changes_the_digest(field: str) -> None:
    one = Condition("page", equal=True, text="p")
    other = replace(one, **{field: {"column": "x", "equal": False, "text": "q"}[field]})
    assert spec(where=(one,)).digest != spec(where=(other,)).digest
    lists = [(("a",),), (("b",),), (("a",), ("b",)), (("a\n1:b",),)]
    assert len({spec(public_groups=listed).digest for listed in lists}) == len(lists)


AGGREGATES = (
    "rows:3", "sum:x:0:9", "mean:x:0:9:per-user", "mean:x:0:9", "var:x:0:9", "quantile:x:0:9:0.5", "distinct:page",
    "sum:x:auto",
)  # fmt: skip
CELL = {
    "quantile:x:0:9:0.5": ("0:60,7:40", "0:61,7:39"),
    "sum:x:auto": ("3:600:1800,4:400:3000", "3:600:1800,4:400:3001"),
}


def measures(text: str) -> list[Measure]:
    (asked,) = spec(aggregates=(text,)).asked
    if isinstance(asked, TotalsAggregate):
        return [need.measure for need in asked.needs]
    assert isinstance(asked, Quantiles | AutomaticSum)
    return [asked.measure]


def test_the_aggregates_here_need_every_kind_of_measure() -> None:
    kinds = {*get_args(Measure), *Clamped.__subclasses__()} - {Clamped}
    assert {type(measure) for text in AGGREGATES for measure in measures(text)} == kinds


@pytest.mark.parametrize("text", AGGREGATES)
def test_one_changed_measure_under_the_same_name_is_refused(text, tmp_path) -> None:
    """With the same noise, the published number would move by exactly the change."""
    asked, ledger = spec(aggregates=(text,)), Ledger.at(tmp_path / "l")
    bins = {"x": {3: 600, 4: 400}}
    for place in range(len(measures(text))):
        rows = [("a", 1000, *(CELL.get(text, ("300", "301"))[i == changed] for i in range(len(measures(text)))))
                for changed in (None, place)]  # fmt: skip
        release([], asked, ledger, dataset="d", name=f"{place}", engine=Given(rows[0], bins=bins))
        with pytest.raises(InputError, match="made from other data"):
            release([], asked, ledger, dataset="d", name=f"{place}", engine=Given(rows[1], bins=bins))


def table(rows, bins=None) -> str:
    return keyed_digest(
        PrivateTable.of_rows(spec(aggregates=("rows:3",)).bounding, lambda: iter(rows), bins or {}), KEY
    )


def test_every_field_of_a_group_changes_the_digest_of_the_input() -> None:
    row = dict(zip((field.name for field in fields(Group)), ("a", 7, 9), strict=True))
    changed = [{**row, name: {"name": "b", "users": 8, "measures": 10}[name]} for name in row]
    assert len({table([tuple(one.values())]) for one in (row, *changed)}) == 1 + len(fields(Group))


def test_every_part_of_the_bins_and_every_row_changes_the_digest_of_the_input() -> None:
    row = ("a", 7, 9)
    bins = [{}, {"x": {3: 7}}, {"x": {3: 8}}, {"x": {4: 7}}, {"y": {3: 7}}, {"x": {3: 7, 4: 0}}, {LEFT_OUT: {0: 7}}]
    digests = [table([row], one) for one in bins] + [
        table([]),
        table([row, ("b", 7, 9)]),
        table([("a7", 7, 9)]),
    ]
    assert len(set(digests)) == len(digests)
    same = PrivateTable.of_rows(spec(aggregates=("rows:3",)).bounding, lambda: iter([row]), {})
    assert keyed_digest(same, KEY) == table([row]) != keyed_digest(same, b"o" * 32)


def test_the_digest_and_the_rows_are_those_of_earlier_versions() -> None:
    """Recorded. A release that was paid for with an earlier version is found by them, and has its noise again."""
    asked = spec(aggregates=AGGREGATES, epsilon=Fraction(9))
    text = {Cells: "7:40,0:60", Bins: "4:400:3000,-3:600:-1800"}
    rows = [
        (name, users, *(text.get(type(one), 100 * (i + users) - 250) for i, one in enumerate(asked.measures)))
        for name, users in (("", 3), ("a", 1000), ("b\n", 1), ("é,1", 70))
    ]
    given = PrivateTable.of_rows(asked.bounding, lambda: rows, {"x": {3: 600, -4: 400}})
    assert keyed_digest(given, KEY) == "865b6e8f417b8ce7124e6992c4d16e37deaf4f4cc3e0008eea6bd1d32715ef60"
    made = publish(given, Mechanism(asked), Tape(b"7" * 32, "id"))
    content = repr(vars(made)).encode()
    assert sha256(content).hexdigest() == "2fb14545098bc17ca7a7a08c459f0499222a689d39de76901b8b7c770470bc45"


def test_the_digest_is_of_sorted_groups_and_the_released_rows_are_the_same_in_any_order() -> None:
    rows, asked = [("a", 100), ("b", 90), ("c", 80)], spec()
    sorted_rows = PrivateTable.of_rows(asked.bounding, lambda: rows, {})
    pieces = {"by name": rows, "any": rows[::-1]}
    given = PrivateTable(asked.bounding, lambda sorting: _in_pieces(pieces[sorting], ()), {})
    assert keyed_digest(given, KEY) == keyed_digest(sorted_rows, KEY)
    made = [publish(one, Mechanism(asked), Tape(b"7" * 32, "id")) for one in (given, sorted_rows)]
    assert made[0] == made[1]
    assert len(made[0].rows) == 3


def test_the_words_of_many_groups_are_those_of_each() -> None:
    tape, groups = Tape(b"7" * 32, "id"), ["", "a", "é,1", "b\n", "x" * 300]
    for role in ("users", "0/rows:3"):
        assert tape.words(role, pa.array(groups)).tolist() == [tape.word(role, group) for group in groups]


LAW, GAUSSIAN = (Mechanism(spec(delta=Fraction("2e-5"), groups_per_user=3, noise=n)) for n in ("laplace", "gaussian"))
RULES = {"counted": {}, "optimal": {"only_groups": True}, "gaussian": {"noise": "gaussian", "groups_per_user": 3}}


@pytest.mark.parametrize("asked", RULES.values(), ids=RULES)
def test_every_field_of_a_rule_changes_the_digest_of_the_mechanism(asked) -> None:
    """A program with other tables would repeat a release with the words of its noise and other numbers."""
    mechanism = Mechanism(spec(**asked))
    other = {"law": (GAUSSIAN if "noise" in asked else LAW).rule.law, "floor": 2, "threshold": 99, "weights": (0, 1)}
    for field in fields(mechanism.rule):
        if field.name == "epsilon":
            continue  # of the optimal rule: its weights follow from it
        changed = Mechanism(mechanism.spec)
        changed.__dict__["rule"] = replace(mechanism.rule, **{field.name: other[field.name]})
        assert changed.digest != mechanism.digest, field.name


@pytest.mark.parametrize("text", [*AGGREGATES, "all-users"])
def test_every_table_of_an_aggregate_changes_the_digest_of_the_mechanism(text) -> None:
    """The weights keep the share of the count, so that only the tables of the aggregates differ."""
    asked = [Mechanism(spec(aggregates=(text, "rows:2"), weights=(8, 4 + i, 4 - i))) for i in range(3)]
    assert len({one.rule.law.digest for one in asked}) == 1
    assert len({one.digest for one in asked}) == 3
