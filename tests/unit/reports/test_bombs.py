"""Small files that would take much memory: they are refused, or read in bounded memory."""

import tracemalloc
import zlib
from io import BytesIO

import fastavro
import pytest

from kanon.reports import aggregate, avro
from kanon.reports.errors import JobError
from tests.unit.reports import made

MEBIBYTE = 1 << 20


def number(n):
    """A number as Avro writes it."""
    n, out = 2 * n, b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def deflated(schema, row, rows, blocks=1):
    """A file of equal rows, which compress a thousandfold."""
    file = BytesIO()
    fastavro.writer(file, schema, [], codec="deflate")
    deflate = zlib.compressobj(9, wbits=-15)
    block = deflate.compress(row * rows) + deflate.flush()
    sync = file.getvalue()[-16:]
    return BytesIO(file.getvalue() + (number(rows) + number(len(block)) + block + sync) * blocks)


def peak(do):
    """The largest memory in use meanwhile, in MiB."""
    tracemalloc.start()
    try:
        do()
        return tracemalloc.get_traced_memory()[1] / MEBIBYTE
    finally:
        tracemalloc.stop()


FILES = {
    "one large block": (16, 1),
    "many blocks": (1, 12),
}
READERS = {
    "domain": (avro.DOMAIN, number(16) + bytes(16), avro.read_domain),
    "reports": (
        avro.REPORTS,
        number(1 << 10) + bytes(1 << 10) + number(0) * 2,
        lambda at: [len(one.payload) for one in avro.read_reports(at)],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("mebibytes", "blocks"), FILES.values(), ids=FILES)
@pytest.mark.parametrize("reader", READERS)
def test_a_small_file_that_decompresses_to_much_is_refused(monkeypatch, reader, mebibytes, blocks):
    monkeypatch.setattr(avro, "MOST_BLOCK", MEBIBYTE)
    schema, row, read = READERS[reader]
    file = deflated(schema, row, mebibytes * MEBIBYTE // len(row), blocks)
    assert len(file.getvalue()) < 100_000

    def refused():
        with pytest.raises(JobError, match="too large when it is decompressed") as caught:
            read(file)
        assert caught.value.code == "INPUT_DATA_READ_FAILED"

    assert peak(refused) < 5


def read_until_refused(file, why):
    """The number of rows that are read before the file is refused."""
    rows = []
    with pytest.raises(JobError, match=why):
        rows.extend(avro.read_reports(file))
    return len(rows)


def test_blocks_of_empty_rows_are_refused_before_a_row_is_read(monkeypatch):
    """Once, twelve such blocks of 16 KB took 12 seconds to read and a minute to map."""
    monkeypatch.setattr(avro, "MOST_BLOCK", MEBIBYTE)
    file = deflated(avro.REPORTS, number(0) * 3, MEBIBYTE // 3, 12)
    assert read_until_refused(file, "rows have less than 64 bytes each") == 0


def test_a_file_that_may_be_decompressed_has_no_more_rows_than_honest_ones(monkeypatch):
    monkeypatch.setattr(avro, "MOST_BLOCK", MEBIBYTE)
    row = number(0) + number(61) + bytes(61) + number(0)
    assert len(row) == avro.LEAST_REPORT
    file = deflated(avro.REPORTS, row, MEBIBYTE // len(row), 12)
    assert read_until_refused(file, "too large when it is decompressed") == MEBIBYTE // avro.LEAST_REPORT


@pytest.mark.parametrize(("more", "refused"), [(97, False), (98, True)])
def test_a_file_of_many_fields_without_bytes_is_refused(more, refused):
    fields = [*avro.REPORTS["fields"], *({"name": f"more{n}", "type": "null"} for n in range(more))]
    file = deflated({"type": "record", "name": "A", "fields": fields}, number(0) * 2 + number(70) + b"a" * 70, 1)
    if refused:
        assert read_until_refused(file, "more than 100 fields") == 0
    else:
        assert len(list(avro.read_reports(file))) == 1


@pytest.mark.slow
def test_a_compressed_file_of_sorted_keys_is_read(monkeypatch):
    monkeypatch.setattr(avro, "MOST_BLOCK", 1 << 16)
    file = BytesIO()
    rows = [{"bucket": n.to_bytes(16, "big")} for n in range(100_000)]
    fastavro.writer(file, avro.DOMAIN, rows, codec="deflate")
    assert len(file.getvalue()) < 17 * len(rows) / 3
    file.seek(0)
    assert len(avro.read_domain(file)) == len(rows)


def test_a_domain_stops_at_the_largest_number_of_keys():
    file = BytesIO()
    avro.write_domain(file, made.keys16(*range(1, 12)))
    for most in (10, 11):
        file.seek(0)
        if most == 11:
            assert len(avro.read_domain(file, most)) == 11
        else:
            with pytest.raises(JobError, match="at most 10 keys"):
                avro.read_domain(file, most)


def test_a_field_of_things_without_bytes_is_refused():
    fields = [{"name": "bucket", "type": "bytes"}, {"name": "more", "type": {"type": "array", "items": "null"}}]
    file = BytesIO()
    fastavro.writer(file, {"type": "record", "name": "A", "fields": fields}, [{"bucket": b"key", "more": [None] * 9}])
    file.seek(0)
    with pytest.raises(JobError, match="complex type: leave out more"):
        avro.read_domain(file)


def test_a_nullable_field_that_is_not_needed_is_left_out():
    fields = [{"name": "bucket", "type": "bytes"}, {"name": "note", "type": ["null", "string"]}]
    file = BytesIO()
    fastavro.writer(file, {"type": "record", "name": "A", "fields": fields}, [{"bucket": b"key", "note": None}])
    file.seek(0)
    assert avro.listed(avro.read_domain(file)) == [b"key".rjust(16, b"\0")]


def memory_of(folder, files):
    """The peak of a job whose reports have ten other keys each, of which one is declared."""
    names = []
    for file in range(files):
        reports = [
            made.report([(1, 5), *((10 * (100 * file + n) + slot + 2, 5) for slot in range(9))], 100 * file + n)
            for n in range(100)
        ]
        avro.write_reports(folder / f"{file:03}.avro", reports)
        names.append(folder / f"{file:03}.avro")
    job = made.job(folder, [], domain=[1])
    job = aggregate.replace(job, reports=tuple(names))
    return peak(lambda: aggregate.aggregate(job, made.SECRETS))


@pytest.mark.slow
def test_the_histograms_of_files_are_not_kept(tmp_path):
    _, few, many = (memory_of(tmp_path, files) for files in (1, 2, 8))
    assert many - few < 6 * 100 * 100 / MEBIBYTE, "below 100 bytes a report"
