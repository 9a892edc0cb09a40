from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.joinlog import LogReading
from kanon.noise.words import length_prefixed
from kanon.risk import scan
from kanon.risk.errors import RiskError
from kanon.risk.hashing import HashKey
from kanon.risk.sketching import sketches
from tests.unit.risk.made import as_dictionary, sketch_of_file
from tests.unit.risk.naive import naive_sketch

KEY = HashKey(bytes(range(32)))
words = st.sampled_from(["", "a", "b", "ab", "ü", "1", "01"])
logs = st.lists(st.tuples(words, words, words), min_size=1, max_size=40)


def written(folder: Path, rows: list[tuple[str, str, str]]) -> Path:
    path = folder / "log.csv"
    path.write_text("a,b,client\n" + "".join(",".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def hashed(rows: list[tuple[str, ...]], columns: int) -> list[tuple[int, int]]:
    """The rows that are whole, as hashes of value and user."""
    whole = [[word.encode() for word in row] for row in rows if all(row)]
    values = [row[0] if columns == 1 else length_prefixed(*row[:-1]) for row in whole]
    return list(zip(KEY.values(values, columns).tolist(), KEY.users(row[-1] for row in whole).tolist(), strict=True))


@pytest.mark.slow
@given(logs, st.integers(1, 6), st.sampled_from([3, 8, 1000]))
def test_sketches_of_columns_and_combinations_equal_sketches_of_their_hashes(rows, size, batch) -> None:
    from tempfile import TemporaryDirectory

    asked = {("a",): (0, 2), ("a", "b"): (0, 1, 2), ("b", "a"): (1, 0, 2), ("b", "client"): (1, 2, 2)}
    rows = [*rows, ("a", "b", "1")]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "ROWS_IN_BATCH", batch)
        patch.setattr("kanon.joinlog.batches.BLOCK_BYTES", 64)
        log, leave_out = written(Path(folder), rows), LogReading(skip=True)
        made = sketches(log, list(asked), "client", key=KEY, size=size, reading=leave_out)
    for one, places in zip(made, asked.values(), strict=True):
        picked = [tuple(row[place] for place in places) for row in rows]
        expected = hashed(picked, len(places) - 1)
        assert as_dictionary(one.sketch) == naive_sketch(expected, size)
        assert (one.sketch.total_rows, one.left_out) == (len(expected), len(rows) - len(expected))


def test_a_log_without_a_whole_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RiskError, match="has no row with a a and a client"):
        sketch_of_file(written(tmp_path, [("", "w", "c"), ("", "w", "d")]), ("a",), KEY)
    with pytest.raises(RiskError, match="has no row with a a and a b and a client"):
        sketch_of_file(written(tmp_path, []), ("a", "b"), KEY)
