"""Range files are read as the shared vectors say, and are those that the service writes."""

from hashlib import sha256
from typing import Any

import pytest

from kanon.client import ranges
from kanon.client.ranges import Ranges
from kanon.gate.ranges import ListStep, encode
from tests.unit.client.vectors import VECTORS

FILES = VECTORS["rangeFiles"]


def _digest(text: str) -> bytes:
    return sha256(text.encode()).digest()


def _list_of(vector: dict[str, Any]) -> Ranges:
    return Ranges(vector["step"], vector["bits"], 0.0)


@pytest.mark.parametrize("vector", VECTORS["rangeNames"])
def test_the_file_of_a_value_has_the_name_of_the_vectors(vector: dict[str, Any]) -> None:
    found = Ranges(1, vector["bits"], 0.0)
    assert found.name(_digest(vector["text"])) == vector["name"]
    names = list(found.names())
    assert vector["name"] in names
    assert len(names) == len(set(names)) == 1 << vector["bits"]


@pytest.mark.parametrize("vector", FILES, ids=lambda vector: str(vector["name"]))
def test_a_file_has_the_values_of_the_vectors_and_no_others(vector: dict[str, Any]) -> None:
    found = _list_of(vector)
    found.files[vector["name"]] = ranges.read(bytes.fromhex(vector["hex"]), vector["type"], found)
    looked = [*vector["listed"], *vector["notListed"]]
    if vector["bits"]:
        assert {found.name(_digest(text)) for text in looked} == {vector["name"]}
    assert [text for text in looked if found.has(_digest(text))] == vector["listed"]


@pytest.mark.parametrize("vector", FILES, ids=lambda vector: str(vector["name"]))
def test_the_service_writes_the_bytes_of_the_vectors(vector: dict[str, Any]) -> None:
    of = ListStep(vector["type"], vector["step"], vector["nextUpdate"])
    assert encode(of, vector["bits"], sorted(map(_digest, vector["listed"]))).hex() == vector["hex"]


@pytest.mark.parametrize("vector", VECTORS["refusedRangeFiles"], ids=lambda vector: str(vector["why"]))
def test_what_is_no_file_of_the_list_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="another list, or a damaged one"):
        ranges.read(bytes.fromhex(vector["hex"]), FILES[1]["type"], _list_of(FILES[1]))


def test_before_the_first_list_no_value_is_listed() -> None:
    assert not Ranges(None, 0, 0.0).has(_digest("hello"))
