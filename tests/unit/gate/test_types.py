"""The type document: valid and invalid ones."""

import json
import re
from fractions import Fraction
from typing import Any

import pytest

from kanon.errors import ConfigurationError
from kanon.gate.mechanism.parameters import CrossingRestart, Parameters, profile, profile_restart
from kanon.gate.types import Type, read_types
from kanon.noise.laws import one_sided, two_sided

ENTRY: dict[str, Any] = {"k": 50, "window": 720, "profile": "published"}
LAWS: dict[str, Any] = {
    "threshold": {"shape": "one-sided", "epsilon": "0.9", "truncation": 15},
    "query": {"shape": "two-sided", "epsilon": "1.25", "truncation": 14},
}


def test_a_type_with_a_profile_takes_its_laws_from_it() -> None:
    assert read_types(json.dumps({"fledge": ENTRY}), 3600) == {
        "fledge": Type("fledge", Parameters(50, 720, 3600, *profile("published", 720)), "published")
    }


def test_a_type_with_custom_laws_has_no_profile() -> None:
    entry = {"k": 50, "window": 24, "laws": LAWS, "client_bits": 12, "phase": "zero"}
    (own,) = read_types(json.dumps({"own": entry}), 60).values()
    laws = one_sided(Fraction(9, 10), 15), two_sided(Fraction(5, 4), 14)
    assert own == Type("own", Parameters(50, 24, 60, *laws, client_bits=12, phase="zero"), None)


@pytest.mark.parametrize("epsilon", ['"0.9"', "0.9", '"0.90"'])
def test_an_epsilon_is_the_decimal_that_is_written_and_not_the_nearest_float(epsilon: str) -> None:
    document = json.dumps({"own": {"k": 50, "window": 24, "laws": LAWS}}).replace('"0.9"', epsilon)
    assert read_types(document, 60)["own"].parameters.threshold_law.epsilon == Fraction(9, 10)


def test_a_profile_is_chosen_for_the_window_of_its_type() -> None:
    document = json.dumps({n: {"k": 50, "window": w, "profile": "sharp"} for n, w in (("week", 168), ("month", 720))})
    types = read_types(document, 3600)
    assert types["month"].parameters.query_law.truncation > types["week"].parameters.query_law.truncation


def restart_of(**entry: Any) -> CrossingRestart | None:
    (found,) = read_types(json.dumps({"own": {"k": 50, "window": 24, **entry}}), 3600).values()
    return found.parameters.restart


def test_a_type_is_on_the_grid_unless_it_or_its_profile_restarts_after_crossings() -> None:
    assert restart_of(laws=LAWS) is restart_of(laws=LAWS, restart="grid") is restart_of(profile="sharp-2") is None
    assert restart_of(laws=LAWS, restart="crossing", epoch=100) == CrossingRestart(24, 100)
    assert restart_of(profile="sharp-2", restart="crossing", hold=48, epoch=100) == CrossingRestart(48, 100)
    assert restart_of(profile="crossing") == restart_of(profile="crossing", restart="crossing")
    assert restart_of(profile="crossing") == profile_restart("crossing", 24)
    assert restart_of(profile="crossing", hold=30, epoch=60) == CrossingRestart(30, 60)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"laws": LAWS, "hold": 24}, "hold and epoch are for restart 'crossing'"),
        ({"laws": LAWS, "restart": "grid", "epoch": 99}, "hold and epoch are for restart 'crossing'"),
        ({"laws": LAWS, "restart": "crossing"}, "restart 'crossing' without a profile for it needs an epoch (steps)"),
        ({"profile": "crossing", "restart": "grid"}, "profile 'crossing' is for restart 'crossing': leave out restart"),
        ({"profile": "crossing", "hold": 23}, "hold must lie between the window of 24 steps"),
        ({"profile": "crossing", "epoch": 24}, "epoch must be longer than the window of 24 steps"),
        ({"laws": LAWS, "restart": "always"}, "restart: Input should be 'grid' or 'crossing'"),
    ],
)
def test_a_restart_that_does_not_fit_is_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        restart_of(**entry)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "the type document is not valid JSON: Expecting property name enclosed in double quotes"),
        ('{"a": {}, "a": {}}', "the type document is not valid JSON: a key is given twice"),
        ('{"a": {"k": 50, "k": 60}}', "the type document is not valid JSON: a key is given twice"),
        ("[]", "the type document must be a JSON object with at least one type"),
        ("{}", "the type document must be a JSON object with at least one type"),
        ("null", "the type document must be a JSON object with at least one type"),
    ],
)
def test_a_document_that_is_not_an_object_of_types_is_refused(document: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{re.escape(message)}"):
        read_types(document, 3600)


@pytest.mark.parametrize("name", ["", "Fledge", "-a", "_a", "a b", "a.b", "é", "a\n", "a" * 65])
def test_a_type_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^type name .* must match \^\[a-z0-9\]"):
        read_types(json.dumps({name: ENTRY}), 3600)


@pytest.mark.parametrize("name", ["a", "0", "search-term", "a_b", "a" * 64])
def test_a_type_name_may_hold_lower_case_letters_digits_dashes_and_underscores(name: str) -> None:
    assert list(read_types(json.dumps({name: ENTRY}), 3600)) == [name]


def _without(entry: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != name}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ([], "type 'a': Input should be a valid dictionary"),
        (_without(ENTRY, "k"), "type 'a': k: Field required"),
        (_without(ENTRY, "window"), "type 'a': window: Field required"),
        ({"kk": 50} | _without(ENTRY, "k"), "type 'a': there is no field 'kk' (did you mean k?)"),
        ({**ENTRY, "k": "50"}, "type 'a': k: Input should be a valid integer"),
        ({**ENTRY, "k": True}, "type 'a': k: Input should be a valid integer"),
        ({**ENTRY, "k": 0}, "type 'a': k: Input should be greater than or equal to 1"),
        ({**ENTRY, "k": 10**7}, "type 'a': k: Input should be less than or equal to 1000000"),
        ({**ENTRY, "window": 1}, "type 'a': window: Input should be greater than or equal to 2"),
        ({**ENTRY, "window": 65_536}, "type 'a': window: Input should be less than or equal to 65535"),
        ({**ENTRY, "windows": 1}, "type 'a': there is no field 'windows' (did you mean window?): it has k, window, "),
        ({**ENTRY, "client_bits": 7}, "type 'a': client_bits: Input should be greater than or equal to 8"),
        ({**ENTRY, "client_bits": 33}, "type 'a': client_bits: Input should be less than or equal to 32"),
        ({**ENTRY, "phase": "random"}, "type 'a': phase: Input should be 'hash' or 'zero'"),
        (_without(ENTRY, "profile"), "type 'a': give either a profile or laws"),
        ({**ENTRY, "laws": LAWS}, "type 'a': give either a profile or laws"),
        (
            {**ENTRY, "profile": "soft"},
            (
                "type 'a': profile must be one of balanced, balanced-2, crossing, published, returning, sharp, sharp-2,"
                " not 'soft'"
            ),
        ),
        ({**ENTRY, "k": 40}, "type 'a': an empty set could be released as true: "),
        ({**ENTRY, "k": 90_000}, "type 'a': a set would keep 90049 members, more than the 80000 that fit"),
        ({**ENTRY, "client_bits": 8}, "type 'a': client_bits must lie between 10 "),
    ],
)
def test_an_invalid_type_is_refused_with_its_name_and_what_to_change(entry: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{re.escape(message)}"):
        read_types(json.dumps({"a": entry}), 3600)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": "flat"}, "laws.threshold.shape: Input should be 'two-sided' or 'one-sided'"),
        ({"epsilon": "0"}, "laws.threshold.epsilon: Input should be greater than 0"),
        ({"epsilon": "21"}, "laws.threshold.epsilon: Input should be less than or equal to 20"),
        ({"epsilon": "0.1234567890123"}, "laws.threshold.epsilon: Decimal input should have no more than 12 digits"),
        ({"epsilon": "NaN"}, "laws.threshold.epsilon: Input should be a finite number"),
        ({"epsilon": "0.0001"}, "the epsilon of a noise distribution must lie between 0.001 and 20"),
        ({"truncation": 0}, "laws.threshold.truncation: Input should be greater than or equal to 1"),
        ({"truncation": 10_001}, "laws.threshold.truncation: Input should be less than or equal to 10000"),
        ({"truncation": 100}, "truncation 100 is too large for epsilon 0.9"),
        ({"truncation": 15.0}, "laws.threshold.truncation: Input should be a valid integer"),
        ({"delta": 1}, "laws.threshold: there is no field 'delta': it has shape, epsilon, truncation"),
    ],
)
def test_an_invalid_noise_distribution_is_refused_with_its_place(change: dict[str, Any], message: str) -> None:
    laws = {**LAWS, "threshold": {**LAWS["threshold"], **change}}
    with pytest.raises(ConfigurationError, match=f"^type 'own': {re.escape(message)}"):
        read_types(json.dumps({"own": {"k": 50, "window": 24, "laws": laws}}), 60)
