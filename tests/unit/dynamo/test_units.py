"""Sizes and units by DynamoDB's documented rules."""

import pytest

from kanon.dynamo.units import item_size, number_size, read_units, value_size, write_units
from kanon.gate.slots import Layout
from kanon.gate.storage.aws.step_log import Row, pack
from tests.unit.examples import set_key

KB = 1024


@pytest.mark.parametrize(
    ("number", "size"),
    [
        ("0", 1),
        ("7", 2),  # one byte per two significant digits, and one
        ("42", 2),
        ("427", 3),
        ("1700000000", 2),  # zeros at the end are trimmed
        ("1700000001", 6),
        ("12030", 4),  # 1 20 30: pairs are counted from the end
        ("20470", 4),
        ("20400", 3),
        ("472010", 4),
        ("0042", 2),  # zeros at the front are trimmed
        ("0.0042", 2),
        ("42.00", 2),
        ("4.2", 2),
        ("10.01", 3),
        ("100", 2),
        ("-42", 3),  # and one for the sign
        ("4.2e17", 2),
        ("-1E-9", 3),
        ("9" * 38, 20),
        ("-" + "9" * 38, 21),
    ],
)
def test_a_number_takes_a_byte_per_two_significant_digits_and_one_more(number: str, size: int) -> None:
    assert number_size(number) == size


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ({"S": ""}, 0),
        ({"S": "kanon"}, 5),
        ({"S": "Größe"}, 7),  # UTF-8
        ({"B": b"\x00" * 33}, 33),  # raw bytes, not base64
        ({"BOOL": False}, 1),
        ({"NULL": True}, 1),
        ({"L": []}, 3),  # a list or a map costs 3 bytes, and 1 for every element
        ({"M": {}}, 3),
        ({"L": [{"N": "42"}, {"S": "abc"}]}, 3 + (1 + 2) + (1 + 3)),
        ({"M": {"ab": {"N": "42"}, "c": {"BOOL": True}}}, 3 + (1 + 2 + 2) + (1 + 1 + 1)),
        ({"L": [{"M": {"a": {"L": []}}}]}, 3 + 1 + (3 + 1 + 1 + 3)),
        ({"SS": ["ab", "c"]}, 3),
        ({"NS": ["42", "427"]}, 5),
        ({"BS": [b"ab", b"c"]}, 3),
    ],
)
def test_each_kind_of_value_has_its_documented_size(value: dict[str, object], size: int) -> None:
    assert value_size(value) == size


def test_an_unknown_kind_of_value_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^unknown DynamoDB type 'X'$"):
        value_size({"X": 1})


def test_the_size_of_an_item_adds_up_its_names_in_utf_8_and_its_values() -> None:
    # The guide's example: a name of 14 bytes with a string of 100.
    assert item_size({"shirt-color-id": {"S": "x" * 100}}) == 114
    assert item_size({"é": {"N": "42"}, "b": {"BOOL": True}}) == (2 + 2) + (1 + 1)
    assert item_size({}) == 0


@pytest.mark.parametrize(
    ("size", "units"),
    [(0, 1), (1, 1), (512, 1), (KB, 1), (KB + 1, 2), (2 * KB, 2), (3 * KB + 512, 4), (400 * KB, 400)],
)
def test_a_write_takes_a_unit_per_started_kilobyte(size: int, units: int) -> None:
    assert write_units(size) == units


@pytest.mark.parametrize(
    ("size", "units"), [(0, 1), (1, 1), (3500, 1), (4 * KB, 1), (4 * KB + 1, 2), (8 * KB, 2), (10 * KB, 3)]
)
def test_a_consistent_read_takes_one_unit_per_started_4_kilobytes_and_other_reads_half_a_unit(
    size: int, units: int
) -> None:
    assert read_units(size, consistent=True) == units
    assert read_units(size, consistent=False) == units / 2


def test_each_item_of_a_batch_is_rounded_separately() -> None:
    # The guide's example for BatchGetItem: items of 1.5 KB and 6.5 KB are read as 4 KB + 8 KB, not as 8 KB.
    assert sum(read_units(size, consistent=True) for size in (1536, 6656)) == 3


def test_the_items_of_a_query_are_rounded_together() -> None:
    # The guide's example for Query: 40.8 KB are read as 44 KB.
    assert read_units(int(40.8 * KB), consistent=True) == 11
    assert read_units(1500 * 64, consistent=True) == 24  # 1,500 items of 64 bytes are read as 96 KB


def test_a_join_takes_one_write_unit() -> None:
    join = pack(Row(472_000, set_key(1), 7, "a" * 64, 1_700_000_001), Layout(1, 0))
    assert write_units(item_size(join)) == 1
