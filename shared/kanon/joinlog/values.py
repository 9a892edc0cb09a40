"""What a cell of a log may hold: text, numbers, times. The definition for every reader.

A cell that cannot be read raises :class:`Unreadable`. Its reason says what to change and never holds the cell.
"""

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Literal

from kanon.errors import Error

SPACES = " \t\r\n\v\f"
LARGEST_NUMBER = 1 << 62
YEAR_10000 = 253_402_300_800
DAY = 86_400
MICRO = 1_000_000
Dates = Literal["mdy", "dmy"]

EMPTY = "it is empty: fill it in"
NOT_UTF8 = "not UTF-8: convert the log to UTF-8"
NOT_PLAIN = "neither text nor a number: write one of them"
NOT_A_NUMBER = "not a number: write 1234.50, without currency signs, thousands separators or a decimal comma"
TOO_LARGE = "a number beyond 2^62: correct it, or name a smaller --scale"
DECIMALS = "numbers with decimals: name --scale, the decimal places to keep (rounded half to even)"
NOT_A_TIME = "not a time: write Unix seconds, or ISO 8601 as 2026-01-31T12:00:00Z"
OUTSIDE = "a time before 1970 or after 9999: write Unix seconds, or ISO 8601 as 2026-01-31T12:00:00Z"
EIGHT_DIGITS = "eight digits, a date or Unix seconds: write dates as 2026-01-31"
WHICH_DATE = "a date such as 01/02/2026: say --dates mdy (month first) or --dates dmy, or write 2026-02-01"
WRONG_DATE = "a date that does not exist in this order of day and month: check --dates"

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_UNIX = re.compile(r"-?[0-9]{1,19}(\.[0-9]{1,18})?")
_OFFSET = r"(Z|[+-]([01][0-9]|2[0-3])(:?[0-5][0-9])?)?"
_ISO = re.compile(
    r"[0-9]{4}(-?)[0-9]{2}\1[0-9]{2}"
    rf"([T ]([01][0-9]|2[0-3])(:?[0-5][0-9](:?[0-5][0-9]([.,][0-9]{{1,9}})?)?)?{_OFFSET})?"
)
_DATE = re.compile(
    r"([0-9]{1,2})([/.-])([0-9]{1,2})\2([0-9]{4})"
    r"(?:,?[T ]([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.[0-9]{1,9})?)?(?: ?([ap])m)?)?",
    re.IGNORECASE,
)
_THOUSANDTHS = {12: 1, 13: 1, 15: 2, 16: 2, 18: 3, 19: 3}
"""By the number of digits: milli-, micro- or nanoseconds. 14 digits are a date such as 20260131120000."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WIDE = Context(prec=60, rounding=ROUND_HALF_EVEN)


class Unreadable(Error, ValueError):  # noqa: N818, a state of a cell
    """A cell or a line cannot be read; ``str()`` is the reason."""


def text(cell: str) -> str:
    """The cell, if it has more than spaces."""
    if not cell.strip(SPACES):
        raise Unreadable(EMPTY)
    return cell


def number(cell: str, scale: int | None) -> int:
    """``value * 10**scale``, rounded half to even; without a scale the value must be whole."""
    cell = text(cell).strip(SPACES)
    if not _NUMBER.fullmatch(cell):
        raise Unreadable(NOT_A_NUMBER)
    value, places = Decimal(cell), scale or 0
    if value and value.adjusted() + places > 19:
        raise Unreadable(TOO_LARGE)
    rounded = value.quantize(Decimal(1).scaleb(-places), context=_WIDE)
    if scale is None and rounded != value:
        raise Unreadable(DECIMALS)
    scaled = int(rounded.scaleb(places, context=_WIDE))
    if abs(scaled) > LARGEST_NUMBER:
        raise Unreadable(TOO_LARGE)
    return scaled


def moment(cell: str, dates: Dates | None) -> int:
    """Microseconds since 1970, UTC if the cell names no offset.

    A number counts seconds, or from the year 10000 on milli-, micro- or nanoseconds, by its number of digits.
    """
    cell = text(cell).strip(SPACES)
    if _UNIX.fullmatch(cell):
        return _unix(cell)
    iso = cell.replace("/", "-") if cell[4:5] == "/" else cell
    iso = iso.removesuffix("UTC").rstrip() + "Z" if iso.endswith("UTC") else iso
    try:
        if _ISO.fullmatch(iso):
            found = datetime.fromisoformat(iso)
        elif parts := _DATE.fullmatch(cell):
            found = _dated(parts, dates)
        else:
            raise Unreadable(NOT_A_TIME)
        micros = (found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH
    except Unreadable:
        raise
    except (ValueError, OverflowError):
        raise Unreadable(NOT_A_TIME) from None
    return within(micros // timedelta(microseconds=1))


def within(micros: int) -> int:
    """The time, if it lies in the years 1970 to 9999."""
    if not 0 <= micros < YEAR_10000 * MICRO:
        raise Unreadable(OUTSIDE)
    return micros


def _unix(cell: str) -> int:
    if len(cell) == 8 and _is_date(cell):
        raise Unreadable(EIGHT_DIGITS)
    value = Decimal(cell)
    if abs(value) >= YEAR_10000:
        digits = len(cell.partition(".")[0].lstrip("0"))
        if digits not in _THOUSANDTHS:
            raise Unreadable(OUTSIDE)
        value = value.scaleb(-3 * _THOUSANDTHS[digits], context=_WIDE)
    return within(math.floor(value.scaleb(6, context=_WIDE)))


def _is_date(digits: str) -> bool:
    try:
        return 1970 <= datetime.strptime(digits, "%Y%m%d").replace(tzinfo=UTC).year < 2100
    except ValueError:
        return False


def _dated(parts: re.Match[str], dates: Dates | None) -> datetime:
    if dates is None:
        raise Unreadable(WHICH_DATE)
    first, second = int(parts[1]), int(parts[3])
    month, day = (first, second) if dates == "mdy" else (second, first)
    hour, half = int(parts[5] or 0), (parts[8] or "").lower()
    if half and not 1 <= hour <= 12:
        raise Unreadable(NOT_A_TIME)
    hour = hour % 12 + 12 * (half == "p") if half else hour
    try:
        return datetime(int(parts[4]), month, day, hour, int(parts[6] or 0), int(parts[7] or 0), tzinfo=UTC)
    except ValueError:
        raise Unreadable(WRONG_DATE) from None
