"""Item sizes and capacity units by DynamoDB's documented rules (emulators report them wrongly).

Source: Amazon DynamoDB Developer Guide, "Item sizes and formats" and "Read and write capacity".
"""

from collections.abc import Mapping
from typing import Any

WRITE_UNIT = 1024
READ_UNIT = 4096


def item_size(item: Mapping[str, Mapping[str, Any]]) -> int:
    """Bytes of an item in DynamoDB's low-level form: attribute names in UTF-8 plus values."""
    return sum(len(name.encode()) + value_size(value) for name, value in item.items())


def value_size(value: Mapping[str, Any]) -> int:
    """Bytes of one attribute value ``{type: content}``.

    Raises:
        ValueError: the type is not one of DynamoDB's.
    """
    ((kind, content),) = value.items()
    match kind:
        case "S":
            return len(content.encode())
        case "B":
            return len(content)
        case "N":
            return number_size(content)
        case "BOOL" | "NULL":
            return 1
        case "L":
            return 3 + sum(1 + value_size(element) for element in content)
        case "M":
            return 3 + sum(1 + len(name.encode()) + value_size(element) for name, element in content.items())
        case "SS" | "BS" | "NS":
            return sum(value_size({kind[0]: element}) for element in content)
        case _:
            raise ValueError(f"unknown DynamoDB type {kind!r}")


def number_size(number: str) -> int:
    """Bytes of a number: about one per two significant digits, plus one, plus one for a minus sign; at most 21.

    The guide's rule is approximate. The pairs of an integer's digits are counted from its end: 12030 is 1 20 30 and
    takes a byte more than its four significant digits do. So an integer never takes more than this.
    """
    digits = number.lstrip("-+").partition("e")[0].partition("E")[0]
    whole, _, part = digits.partition(".")
    if part:
        pairs = (len((whole + part).strip("0")) + 1) // 2
    else:
        zeros = len(whole) - len(whole.rstrip("0"))
        pairs = max(0, (len(whole.lstrip("0")) + 1) // 2 - zeros // 2)
    return min(21, pairs + 1 + number.startswith("-"))


def write_units(size: int) -> int:
    """Write units for an item of ``size`` bytes: one per KB, at least one."""
    return max(1, -(-size // WRITE_UNIT))


def read_units(size: int, *, consistent: bool) -> float:
    """Read units for ``size`` bytes: one per 4 KB, at least one; half of that if eventually consistent."""
    return max(1, -(-size // READ_UNIT)) * (1.0 if consistent else 0.5)
