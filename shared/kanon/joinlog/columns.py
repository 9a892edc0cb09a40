"""Reads columns of cells at once, with pyarrow. It must agree with ``kanon.joinlog.rows`` on every cell.

What is not in a plain form is left to the definition, row by row. So each function here returns values and a mask of
the cells that it has read; the values of other cells have no meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kanon.joinlog.values import DAY, LARGEST_NUMBER, MICRO, YEAR_10000
from kanon.joinlog.wanted import Kind, Wanted

Mask = NDArray[np.bool_]
_DECIMAL = pa.decimal128(38, 18)
_PLAIN_NUMBER = "^[+-]?[0-9]{1,18}([.][0-9]{1,18})?$"
_PLAIN_SECONDS = "^[0-9]{1,11}$"
_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,6})?"
_PLAIN_TIMES = (
    (f"^{_DATE}[T ]{_CLOCK}(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$", "UTC", "1970-01-01T00:00:00Z"),
    (f"^{_DATE}([T ]{_CLOCK})?$", None, "1970-01-01"),
)
SCHEMA = {"text": pa.string(), "optional": pa.string(), "number": pa.int64(), "time": pa.int64(), "day": pa.int64()}


def schema(wanted: Wanted) -> pa.Schema:
    """The fields of a result: the columns in order, named by their positions."""
    return pa.schema([(str(i), SCHEMA[column.kind]) for i, column in enumerate(wanted.columns)])


def read_columns(cells: Mapping[str, Any], wanted: Wanted) -> tuple[pa.Table, Mask, Mask]:
    """The columns of a result; the rows that were read; the rows that are used, as far as they were read.

    Args:
        cells: arrays of text or of a plain type, by the name of the column. Bytes are text that may be invalid.
        wanted: what is read of them.
    """
    number = len(next(iter(cells.values())))
    used, sure = np.ones(number, bool), np.ones(number, bool)
    for name, equal, text in wanted.conditions:
        texts, valid = _texts(cells[name])
        used &= (_numpy(pc.equal(texts, text)) == equal) | ~valid
        sure &= valid
    if wanted.days is not None:
        micros, valid = _times(cells[wanted.time])
        days = micros // (DAY * MICRO)
        used &= np.any([(days >= start) & (days < end) for start, end in wanted.days], axis=0) | ~valid
        sure &= valid | ~used
    arrays = []
    for column in wanted.columns:
        values, valid = _READERS[column.kind](cells[column.name], wanted)
        arrays.append(values)
        sure &= valid | ~used
    return pa.Table.from_arrays(arrays, schema=schema(wanted)), sure, used


def _read_text(column: Any, _: Wanted) -> tuple[Any, Mask]:
    texts, valid = _texts(column)
    return texts, valid & ~_blank(texts)


def _read_optional(column: Any, _: Wanted) -> tuple[Any, Mask]:
    texts, valid = _texts(column)
    blank = _blank(texts)
    return pc.if_else(pa.array(blank), pa.scalar(None, pa.string()), texts) if blank.any() else texts, valid


def _read_number(column: Any, wanted: Wanted) -> tuple[Any, Mask]:
    texts, valid = _texts(column)
    texts = pc.ascii_trim(texts, " \t\r\n\v\f")
    places, read = wanted.scale or 0, _numpy(pc.match_substring_regex(texts, _PLAIN_NUMBER)) & valid
    exact = _where(texts, read, "0").cast(_DECIMAL)
    rounded = pc.round(exact, places, "half_to_even")
    if wanted.scale is None:
        read &= _numpy(pc.equal(rounded, exact))
    # The two halves of 128-bit integers, ``value * 10**scale``.
    halves = np.frombuffer(rounded.cast(pa.decimal128(38, places)).buffers()[1], np.int64)[: 2 * len(texts)]
    low, high = halves[0::2], halves[1::2]
    read &= (high == low >> 63) & (low >= -LARGEST_NUMBER) & (low <= LARGEST_NUMBER)
    return pa.array(low), read


def _read_time(column: Any, _: Wanted) -> tuple[Any, Mask]:
    micros, read = _times(column)
    return pa.array(micros), read


def _read_day(column: Any, _: Wanted) -> tuple[Any, Mask]:
    micros, read = _times(column)
    return pa.array(micros // (DAY * MICRO)), read


_READERS: dict[Kind, Callable[[Any, Wanted], tuple[Any, Mask]]] = {
    "text": _read_text, "optional": _read_optional, "number": _read_number, "time": _read_time, "day": _read_day,
}  # fmt: skip


def as_texts(column: Any) -> Any:
    """A column of a plain type as text; None as an empty text."""
    return _texts(column)[0]


def _texts(column: Any) -> tuple[Any, Mask]:
    """The texts of a column, and where they are valid."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):  # pandas writes numbers that are missing as NaN
        column = pc.if_else(pc.is_nan(column.cast(pa.float64())), pa.scalar(None, column.type), column)
    valid, cells = np.ones(len(column), bool), column
    if not pa.types.is_string(column.type):
        try:
            column = column.cast(pa.string())
        except pa.ArrowInvalid:  # not UTF-8
            decoded = [_decoded(cell) for cell in column.to_pylist()]
            valid = np.array([cell is not None for cell in decoded], bool)
            column = pa.array(decoded, pa.string())
    column = column.fill_null("") if column.null_count else column
    if pa.types.is_floating(cells.type) and (long := _numpy(pc.match_substring_regex(column, "[0-9]e"))).any():
        digits = [_digits(x) if e else None for x, e in zip(cells.to_pylist(), long, strict=True)]
        column = pc.coalesce(pa.array(digits, pa.string()), column)
    return column, valid


def _decoded(cell: bytes) -> str | None:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return None


def _digits(x: float) -> str:
    """The shortest digits that read as x, without an exponent."""
    return np.format_float_positional(x, trim="-")


def _blank(texts: Any) -> Mask:
    return _numpy(pc.or_(pc.equal(texts, ""), pc.ascii_is_space(texts)))


def _times(column: Any) -> tuple[NDArray[np.int64], Mask]:
    """Microseconds since 1970, and which were read: of one of the plain forms, that of most logs."""
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return _typed_times(column)
    texts, valid = _texts(column)
    read = _numpy(pc.match_substring_regex(texts, _PLAIN_SECONDS)) & valid
    if read.any():
        seconds = _where(texts, read, "0").cast(pa.int64()).to_numpy()
        eight_digits = (seconds >= 10**7) & (seconds < 10**8)  # perhaps a date
        return seconds * MICRO, read & ~eight_digits
    for form, zone, otherwise in _PLAIN_TIMES:
        read = _numpy(pc.match_substring_regex(texts, form)) & valid
        if read.any():
            with suppress(pa.ArrowInvalid):  # a day that does not exist
                micros = _where(texts, read, otherwise).cast(pa.timestamp("us", zone)).cast(pa.int64()).to_numpy()
                return micros, read & _within(micros)
    return np.zeros(len(texts), np.int64), np.zeros(len(texts), bool)


def _typed_times(column: Any) -> tuple[NDArray[np.int64], Mask]:
    """Python's ``datetime`` has no nanoseconds, so finer times are cut."""
    kind = column.type
    fine = pa.types.is_timestamp(kind) and kind.unit == "ns"
    try:
        times = column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=not fine)
    except pa.ArrowInvalid:  # beyond 64 bits
        return np.zeros(len(column), np.int64), np.zeros(len(column), bool)
    micros = times.cast(pa.int64()).fill_null(-1).to_numpy()
    return micros, _within(micros)


def _within(micros: NDArray[np.int64]) -> Mask:
    return (micros >= 0) & (micros < YEAR_10000 * MICRO)


def _where(texts: Any, read: Mask, otherwise: str) -> Any:
    """The texts that can be read, and a harmless one in place of the others."""
    return texts if read.all() else pc.if_else(pa.array(read), texts, otherwise)


def _numpy(mask: Any) -> Mask:
    return cast(Mask, mask.to_numpy(zero_copy_only=False))
