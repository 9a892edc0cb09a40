import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.reports import histogram as module
from kanon.reports.avro import listed
from kanon.reports.errors import JobError
from kanon.reports.histogram import EMPTY, Histogram, distinct, exact_sums, partition_of, skip_lists
from tests.unit.reports.made import by_bucket, keys16

buckets = st.integers(0, 5) | st.sampled_from([1 << 64, 1 << 120, 2**128 - 256])
pairs = st.lists(st.tuples(buckets, st.integers(1, 2**32)))
SALT = bytes(range(32))


def histogram(contributions):
    return Histogram.of(keys16(*[key for key, _ in contributions]), np.array([v for _, v in contributions], np.int64))


def as_dict(summed):
    return by_bucket((summed.keys, summed.sums))


def plain(*lists):
    totals = Counter()
    for contributions in lists:
        for key, value in contributions:
            totals[key] += value
    return dict(totals)


@pytest.mark.slow
@given(pairs)
def test_values_are_added_up_by_key_in_ascending_order(contributions):
    summed = histogram(contributions)
    assert as_dict(summed) == plain(contributions)
    assert listed(summed.keys) == sorted(listed(summed.keys))


@pytest.mark.slow
@given(pairs, pairs, pairs)
def test_merging_gives_the_same_sums_as_adding_up_together(first, second, third):
    assert as_dict(Histogram.merged([histogram(each) for each in (first, second, third)])) == plain(
        first, second, third
    )


@pytest.mark.slow
@given(pairs, st.sets(st.integers(0, 8) | st.just(1 << 64)).map(sorted))
def test_a_missing_key_has_the_sum_0(contributions, asked):
    sums = histogram(contributions).at(keys16(*asked))
    assert sums.tolist() == [plain(contributions).get(key, 0) for key in asked]


@given(st.lists(st.integers(0, 9)))
def test_a_domain_is_a_set_in_ascending_order(keys):
    assert [int.from_bytes(key, "big") for key in listed(distinct(keys16(*keys)))] == sorted(set(keys))


def test_sums_of_2_to_the_62_are_refused_and_smaller_ones_exact():
    most = (1 << 62) - 1
    assert as_dict(Histogram.of(keys16(1, 1), np.array([most - 1, 1]))) == {1: most}
    with pytest.raises(JobError, match="split the reports"):
        Histogram.of(keys16(1, 1), np.array([most, 1]))


def test_the_digest_names_every_key_and_every_sum():
    base = histogram([(1, 5), (2, 7)])
    others = [histogram([(1, 5), (2, 8)]), histogram([(1, 5), (3, 7)]), histogram([(1, 5)]), EMPTY]
    assert len({each.digest() for each in (base, *others)}) == 5
    assert histogram([(2, 7), (1, 2), (1, 3)]).digest() == base.digest()


@pytest.mark.slow
@given(pairs, st.integers(1, 9))
def test_partitions_hold_every_key_once_in_ascending_order(contributions, partitions):
    parts = histogram(contributions).split(SALT, partitions)
    assert len(parts) == partitions
    assert as_dict(Histogram.merged(parts)) == plain(contributions)
    for number, part in enumerate(parts):
        assert set(partition_of(part.keys, SALT, partitions).tolist()) <= {number}
        assert listed(part.keys) == sorted(listed(part.keys))


def test_the_salt_decides_the_partition_and_spreads_keys_evenly():
    keys = keys16(*range(4096))
    of = partition_of(keys, SALT, 4)
    assert np.bincount(of, minlength=4).min() > 900
    assert (of != partition_of(keys, bytes(32), 4)).any()


ids = st.sampled_from([0, 1, 2, 1 << 124, 3 << 124, (15 << 124) + 1, 2**128 - 1])


@pytest.mark.slow
@given(st.lists(st.lists(ids, unique=True, max_size=5), max_size=4))
def test_every_shard_skips_what_an_earlier_one_has(shards):
    skipped = skip_lists([keys16(*shard) for shard in shards])
    seen = set()
    for shard, skip in zip(shards, skipped, strict=True):
        assert {int.from_bytes(key, "big") for key in skip} == seen & set(shard)
        seen |= set(shard)


@pytest.mark.parametrize("rows", [1, 3, 10**6])
def test_keys_have_the_same_sums_however_many_histograms_are_merged_at_once(rows, monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_A_TIME", rows)
    parts = [Histogram.of(keys16(n, n + 1, 9), np.array([n, 2 * n, 1])) for n in range(1, 7)]
    found = exact_sums(iter(parts), keys16(1, 2, 8, 9))
    assert found.sums.tolist() == [1, 2 * 1 + 2, 0, 6]
    every = exact_sums(iter(parts), None)
    assert listed(every.keys) == listed(keys16(*range(1, 8), 9))
    assert every.sums.tolist() == [1, 4, 7, 10, 13, 16, 12, 6]


def test_declared_keys_of_sums_too_large_are_refused(monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_A_TIME", 1)
    parts = [Histogram(keys16(1), np.array([1 << 61])) for _ in range(2)]
    with pytest.raises(JobError, match=r"2\^62"):
        exact_sums(iter(parts), keys16(1))


def test_only_the_given_keys_are_kept():
    found = Histogram.of(keys16(1, 3, 4, 9), np.array([10, 30, 40, 90])).only(keys16(2, 3, 5, 9))
    assert listed(found.keys) == listed(keys16(3, 9))
    assert found.sums.tolist() == [30, 90]


@pytest.mark.parametrize("declared", [False, True])
def test_no_more_histograms_are_kept_than_are_merged_at_once(declared, monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_A_TIME", 4_000)
    keys = keys16(*range(1_000))

    def peak(number):
        sums = (Histogram(keys.copy(), np.ones(1_000, np.int64)) for _ in range(number))
        tracemalloc.start()
        try:
            assert exact_sums(sums, keys if declared else None).sums.tolist() == [number] * 1_000
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(8), peak(80)
    assert many - few < 10 * 1_000 * 24, "ten histograms; 72 more were merged"
