"""Standard JSON only, and no number that is rounded."""

import pytest

from kanon import strict_json


@pytest.mark.parametrize(
    "text", ["0." + "9" * 500_000, "0.99999999999999999", "1.00000000000000000001", "1e-400", "1e-" + "9" * 30]
)
def test_a_number_that_would_be_rounded_to_an_integer_is_refused(text: str) -> None:
    with pytest.raises(strict_json.NotJSONError, match="a number has too many digits"):
        strict_json.parse(f'{{"shortClientIdentifier": {text}}}')


@pytest.mark.parametrize(
    ("text", "number"), [("2.0", 2), ("1e3", 1000), ("0.5", 0.5), ("0.1", 0.1), ("-0.0", 0), ("1e23", 1e23)]
)
def test_an_exact_number_is_read(text: str, number: float) -> None:
    assert strict_json.parse(text) == number


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', "NaN", "[Infinity]", "-Infinity"])
def test_text_that_python_accepts_and_json_forbids_is_refused(text: str) -> None:
    with pytest.raises(strict_json.NotJSONError):
        strict_json.parse(text)
