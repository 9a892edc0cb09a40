"""The template, the reader of other forms and ``cbor2`` agree on every input; what is no report is refused."""

import random
import sys
from contextlib import contextmanager

import cbor2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kanon.reports.avro import listed
from kanon.reports.payload import (
    Contribution,
    PayloadError,
    PayloadLayout,
    _layout,
    decode,
    encode,
    layout_of,
    read_one,
)

layouts = st.builds(
    PayloadLayout, st.sampled_from([1, 2, 20, 23, 24, 100, 255, 256, 1000]), st.sampled_from([None, *range(1, 9)])
)

ONE = Contribution(1, 1)


@st.composite
def reports(draw):
    layout = draw(layouts)
    contribution = st.tuples(st.integers(0, 2**128 - 1), st.integers(0, 2**32 - 1), st.integers(0, layout.id_limit - 1))
    return layout, draw(st.lists(contribution, max_size=min(layout.slots, 6)))


def by_template(cleartext):
    """What the fast path reads; ``None`` if it leaves the report to ``read_one``."""
    template = layout_of(cleartext)
    if template is None:
        return None
    rows = np.frombuffer(cleartext, np.uint8)[None, :]
    if not template.matches(rows)[0]:
        return None
    return contributions_of(template.read(rows))


def contributions_of(slots):
    """The pairs of the first report."""
    numbers = [int.from_bytes(bucket, "big") for bucket in listed(slots.buckets[0])]
    rest = slots.values[0].tolist(), slots.filtering_ids[0].tolist()
    return tuple(map(Contribution._make, zip(numbers, *rest, strict=True)))


@pytest.mark.slow
@given(reports())
def test_encoded_reports_are_decoded_on_both_paths(made):
    layout, contributions = made
    cleartext = encode([Contribution(*each) for each in contributions], layout)
    padding = [Contribution(0, 0)] * (layout.slots - len(contributions))
    assert decode(cleartext) == ("histogram", (*contributions, *padding))
    assert by_template(cleartext) == (*contributions, *padding)
    assert layout.length == len(cleartext)


@pytest.mark.slow
@settings(max_examples=300)
@given(reports(), st.randoms(use_true_random=False), st.integers(0, 4))
def test_both_paths_agree_on_damaged_reports(made, randomness, changes):
    layout, contributions = made
    cleartext = bytearray(encode([Contribution(*each) for each in contributions], layout))
    for _ in range(changes):
        cleartext[randomness.randrange(min(len(cleartext), 120))] = randomness.randrange(256)
    agree(bytes(cleartext))


def agree(cleartext):
    fast = by_template(cleartext)
    if fast is not None:
        assert decode(cleartext) == ("histogram", fast)
        assert oracle(cleartext) == ("histogram", fast)
    slow = by_read_one(cleartext)
    if slow is not None:
        assert oracle(cleartext) == slow
        assert fast is None or slow == ("histogram", fast)


def by_read_one(cleartext):
    """What the reader of other forms reads; ``None`` if it refuses."""
    try:
        operation, slots = read_one(cleartext)
    except PayloadError:
        return None
    return operation, contributions_of(slots)


def oracle(cleartext):
    """What ``cbor2`` reads; ``None`` if it is no report."""
    report = cbor2.loads(cleartext, allow_duplicate_keys=False)
    pairs = [{name: int.from_bytes(field, "big") for name, field in pair.items()} for pair in report["data"]]
    return report["operation"], tuple(Contribution(pair["bucket"], pair["value"], pair.get("id", 0)) for pair in pairs)


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(cleartext):
    agree(cleartext)
    try:
        decode(cleartext)
    except PayloadError as error:
        assert len(str(error)) < 80  # noqa: PT017


@pytest.mark.prove
def test_both_paths_agree_on_every_changed_byte():
    for layout in (PayloadLayout(2), PayloadLayout(2, None), PayloadLayout(1, 8), PayloadLayout(24, 3)):
        whole = encode([Contribution(2**128 - 1, 2**32 - 1)], layout)
        for place in range(min(len(whole), 140)):
            for byte in range(256):
                agree(whole[:place] + bytes([byte]) + whole[place + 1 :])


def test_a_template_refuses_every_change_of_a_fixed_byte():
    """A template that compares too little would read what ``read_one`` refuses."""
    layout = PayloadLayout(3)
    cleartext = encode([], layout)
    variable = set()
    for place in range(len(cleartext)):
        changed = bytearray(cleartext)
        changed[place] ^= 1
        if layout.matches(np.frombuffer(bytes(changed), np.uint8)[None, :])[0]:
            variable.add(place)
    assert len(variable) == 3 * (16 + 4 + 1)


@pytest.mark.parametrize("cleartext", [
    b"", b"\xa0", b"\x80", cbor2.dumps({"data": [], "operation": 7}),
    cbor2.dumps({"data": {}, "operation": "histogram"}), cbor2.dumps({"data": [7], "operation": "histogram"}),
    cbor2.dumps({"operation": "histogram"}),
    *(cbor2.dumps({"data": [pair], "operation": "histogram"}) for pair in (
        {"value": b"\1"}, {"bucket": b"\1"}, {"bucket": b"", "value": b"\1"}, {"bucket": b"\1" * 17, "value": b"\1"},
        {"bucket": b"\1", "value": b"\1" * 5}, {"bucket": 1, "value": b"\1"}, {"bucket": b"\1", "value": "1"},
        {"bucket": b"\1", "value": b"\1", "id": b""}, {"bucket": b"\1", "value": b"\1", "id": b"\1" * 9},
    )),
    b"\x81" * 100_000, b"\x9b" + b"\xff" * 8, b"\xa2ddata\x80ddata\x80",
    cbor2.dumps({"data": [{"bucket": b"\1", "value": b"\1", "other": 1}], "operation": "histogram"}),
    cbor2.dumps({"data": [], "operation": "histogram", "other": 1}), cbor2.dumps({"data": [], "operation": "x" * 24}),
    cbor2.dumps({"data": [{"bucket": b"\1", "value": b"\1"}] * 257, "operation": "histogram"}),
    b"\xa2ddata\x81\xa2evalueA\1fbucketA\1ioperationihistogram" + b"\0", b"\xa2ddata\x80ioperationa\xff",
    b"\xa2ddata\x81\xa2evalueA\1evalueA\1ioperationihistogram", b"\xbfddata\x80ioperationihistogram",
    b"\xa2ddata\x9f\xa2evalueA\1fbucketA\1\xffioperationihistogram", b"\xa2ddata\x80ioperation\x7fahah\xff",
    b"\xa2ddata\x81\xa2evalueA\1fbucket_A\1\xffioperationihistogram", b"\xa2ioperation", b"\xa2ioperation\x77",
])  # fmt: skip
def test_a_payload_that_is_not_a_report_is_refused(cleartext):
    with pytest.raises(PayloadError):
        decode(cleartext)


def test_short_numbers_and_entries_in_any_order_are_read():
    pair = {"value": b"\x0f\x42\x40", "bucket": b"key1"}
    cleartext = cbor2.dumps({"operation": "histogram", "data": [pair]})
    assert decode(cleartext).contributions == ((0x6B657931, 1_000_000, 0),)
    assert by_template(cleartext) is None


def test_maps_of_indefinite_length_are_read():
    """The aggregation service's own tools write them."""
    pair = b"\xbffbucketDkey1evalueD\0\0\0\5\xff"
    assert decode(b"\xbfddata\x82" + 2 * pair + b"ioperationihistogram\xff") == ("histogram", ((0x6B657931, 5, 0),) * 2)


FIELDS = st.fixed_dictionaries(
    {"bucket": st.binary(min_size=1, max_size=16), "value": st.binary(min_size=1, max_size=4)},
    optional={"id": st.binary(min_size=1, max_size=8)},
)


@pytest.mark.slow
@given(st.lists(FIELDS, max_size=30), st.randoms(use_true_random=False), st.integers(0, 2), st.text(max_size=5))
def test_every_form_of_a_report_is_read_as_cbor2_reads_it(pairs, randomness, changes, operation):
    shuffled = [dict(randomness.sample(list(pair.items()), len(pair))) for pair in pairs]
    report = {"data": shuffled, "operation": operation}
    whole = cbor2.dumps(dict(randomness.sample(list(report.items()), 2)))
    assert by_read_one(whole) == oracle(whole)
    changed = bytearray(whole)
    for _ in range(changes):
        changed[randomness.randrange(len(changed))] = randomness.randrange(256)
    agree(bytes(changed))


def bombs():
    """Payloads of the accepted size that took seconds, or would take a lot of memory."""
    size = 48_000
    inside = [
        b"\xd8\x24" * (size // 2) + b"\x60",
        b"\xc4\x82\x1a\x7f\xff\xff\xff\x01",
        b"\x81" * size,
        b"\xa1\x01" * (size // 2),
    ]
    inside += [
        b"\xc2\x5a\0\0\xbb\x80" + b"\xff" * size,
        b"\xd9\x01\x00" * (size // 3),
        b"\x9f" * size,
        b"\x5f" + b"\x41\1" * (size // 2),
    ]
    inside += [b"\x9b\0\0\0\x7f\xff\xff\xff\xff", b"\xbf" * size, b"\xd8\x1d\0" * (size // 3), b"\xfb" + bytes(8)]
    yield from inside
    for one in inside:
        yield b"\xa2ddata" + one + b"ioperationihistogram"
        yield b"\xa2ddata\x81\xa2evalueA\1fbucket" + one + b"ioperationihistogram"
        yield b"\xa2ioperation" + one + b"ddata\x80"
    yield b"\xa2ddata\x99\x01\0" + b"\xa3evalueA\1fbucketA\1bidA" * (size // 25) + b"ioperationihistogram"
    yield b"\xa2ddata\x99\xff\xff" + (b"\xa2evalueA\1fbucketA\1" * 2666)[:size] + b"ioperationihistogram"


@contextmanager
def noted_calls():
    """The calls that are made meanwhile."""
    calls = []
    before = sys.getprofile()
    sys.setprofile(lambda _, event, __: calls.append(event) if event in {"call", "c_call"} else None)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("bomb", list(bombs()))
def test_a_bomb_is_refused_without_work(bomb):
    """Counted in calls, which are the same on every machine. ``cbor2`` made up to 10^6 of them."""
    with noted_calls() as calls, pytest.raises(PayloadError):
        decode(bomb)
    assert len(calls) < 150


def test_a_template_of_the_most_pairs_is_made_by_few_calls():
    """A sender may choose another layout for each report."""
    _layout.cache_clear()
    cleartext = b"\xa2ddata\x99" + (999).to_bytes(2, "big") + b"\xa3bidA" + bytes(999 * 48)
    with noted_calls() as calls:
        layout_of(cleartext)
    assert len(calls) < 50


@pytest.mark.parametrize(("contributions", "layout"), [
    ([ONE] * 3, PayloadLayout(2)), ([ONE._replace(bucket=2**128)], PayloadLayout(2)),
    ([ONE._replace(value=2**32)], PayloadLayout(2)),
    ([ONE._replace(value=-1)], PayloadLayout(2)), ([ONE._replace(filtering_id=256)], PayloadLayout(2)),
    ([ONE._replace(filtering_id=1)], PayloadLayout(2, None)),
])  # fmt: skip
def test_contributions_that_do_not_fit_are_refused(contributions, layout):
    with pytest.raises(PayloadError):
        encode(contributions, layout)


@pytest.mark.parametrize("arguments", [(0,), (1001,), (1, 0), (1, 9)])
def test_a_layout_out_of_range_is_refused(arguments):
    with pytest.raises(ValueError, match="must have 1 to"):
        PayloadLayout(*arguments)


@pytest.mark.parametrize(("layout", "length"), [
    (PayloadLayout(20, None), 747), (PayloadLayout(20), 847), (PayloadLayout(20, 2), 867),
    (PayloadLayout(20, 8), 987), (PayloadLayout(100), 4128), (PayloadLayout(1000), 41_029),
])  # fmt: skip
def test_lengths_equal_those_of_the_design(layout, length):
    assert layout.length == length


def test_many_reports_of_several_layouts_are_distinguished():
    randomness = random.Random(5)
    rows = [encode([Contribution(randomness.getrandbits(128), 5)], PayloadLayout(20)) for _ in range(50)]
    rows[7] = rows[7][:100] + b"\xff" + rows[7][101:]
    matches = PayloadLayout(20).matches(np.frombuffer(b"".join(rows), np.uint8).reshape(50, -1))
    assert matches.sum() in {49, 50}
    for row, match in zip(rows, matches, strict=True):
        assert (by_template(row) is not None) == match
