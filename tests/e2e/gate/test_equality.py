"""Equal to the published algorithm, bit for bit: every set, every step, over HTTP, idle sets included."""

import csv
import gzip
import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kanon.client import encoded
from kanon.gate.generations import TABLES
from kanon.local.stack import Stack
from tests.e2e.gate.oracle import Oracle, laws
from tests.paths import REAL_LOG

START = datetime(2026, 3, 1, tzinfo=UTC).timestamp()


TYPES = {
    "short": {"k": 8, "window": 5, "laws": laws("two-sided", "0.7", 3, 4)},
    "zero-phase": {"k": 10, "window": 7, "laws": laws("one-sided", "0.8", 4, 6), "phase": "zero"},
    "few-bits": {"k": 9, "window": 11, "laws": laws("one-sided", "0.5", 5, 5), "client_bits": 8},
    "published": {"k": 50, "window": 12, "profile": "published"},
    "crossing": {"k": 8, "window": 5, "laws": laws("one-sided", "0.7", 3, 4), "restart": "crossing", "epoch": 17},
    "long-hold": {"k": 30, "window": 6, "profile": "crossing", "hold": 13, "epoch": 9},
    "sharp": {"k": 30, "window": 24, "profile": "sharp"},
}


@pytest.fixture(scope="module")
def oracle():
    with Stack({"Types": json.dumps(TYPES)}, start=START, seed=7) as stack:
        yield Oracle(stack)


events = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 1, 2, 5, 11, 26]),  # steps of silence before; 26 is longer than 2w of some
        st.sampled_from(sorted(TYPES)),
        st.integers(0, 2),  # which set
        st.integers(0, 60),  # first client: overlaps make rejoins
        st.sampled_from([1, 2, 3, 6, 9, 25, 40, 70]),  # burst
    ),
    min_size=5,
    max_size=25,
)


def check_generated_logs(oracle, number):
    """Compare every status of every step with the reference, on the given number of logs."""

    @settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(events=events, example=st.uuids())
    def check(events, example):
        oracle.forget()
        for silence, type_name, which, first, burst in events:
            for _ in range(silence):
                assert oracle.finish_step() == 0
            joins = [(type_name, example.bytes + bytes([which]), f"c{n}") for n in range(first, first + burst)]
            oracle.join_all(joins)
        for _ in range(14):  # idle sets cross too, by their wake-ups
            assert oracle.finish_step() == 0

    check()


def test_every_status_equals_the_reference_algorithm_on_generated_logs(oracle):
    check_generated_logs(oracle, 2)


@pytest.mark.replay
def test_every_status_equals_the_reference_algorithm_on_many_generated_logs(oracle):
    check_generated_logs(oracle, 16)


@dataclass(frozen=True)
class Recorded:
    """A replay of a log, and its recorded results.

    Attributes:
        days: how many, from 1 July 2017 on.
        type: the configuration of the one type.
        answers: SHA-256 of every answer. It never changes.
        rows: SHA-256 of every row left in the tables, which name the states by their digests. It changes only in a
            commit that changes a row's form.
        units: the write units the replay takes.
        slots: the parameter; a plain number is the first form of the log, without packed items.
    """

    days: int
    type: dict[str, object]
    answers: str
    rows: str
    units: int
    slots: str = "1"


GENERATED = Recorded(
    days=2,
    type={"k": 14, "window": 12, "profile": "sharp"},
    answers="947a901f2c1a41a3f339e2f123f04fe5d5641d9bb5173f849fa54034c33aaf3b",
    rows="2f8184f38bb9666c05fd77cdc28b64e32e14679f8ac12b0999046912b598791a",
    units=559,
    slots='[{"slots":1,"partitions":1,"from_step":0}]',
)
SIX_DAYS_PACKED = Recorded(
    days=6,
    type={"k": 14, "window": 48, "profile": "sharp"},
    answers="f21f3d3ef9d51355c25c6c83633e9f137b673b465d19fafc14bd2cf5aeee6257",
    rows="4ca133a91d6ac6c1789ec301f73b6a18bd0c79eba55e34290927da459470bd7e",
    units=1_269,
    slots='[{"slots":1,"partitions":1,"from_step":0}]',
)
PACKED = Recorded(
    days=12,
    type={"k": 14, "window": 48, "profile": "sharp"},
    answers="aa2856d917ae5dcce1ebd61b54ccd41882ae327fd2974fd77c4712826140f927",
    rows="d49615f0bfe8187db6b2456df926275215efa4541dc2ccaa738f6f224b1f3b04",
    units=3_053,
    slots='[{"slots":1,"partitions":1,"from_step":0}]',
)
TWELVE_DAYS = Recorded(
    days=12,
    type={"k": 14, "window": 48, "profile": "sharp"},
    answers="aa2856d917ae5dcce1ebd61b54ccd41882ae327fd2974fd77c4712826140f927",
    rows="3b8d065039aa712d338ef9b50879e9667d14b5decaf2a1f01ccb2185019d7a21",
    units=3_334,
)
SIXTY_DAYS = Recorded(
    days=60,
    type={"k": 50, "window": 720, "profile": "published"},
    answers="addfd191956981e13b8a94ffa919e1bd953bbe4a154bf396be1863dda54f4ddc",
    rows="1e29e6dbf1427071454d05561bd65da1cc2705039f3dca6a9ff12dcb1871f4e8",
    units=20_986,
)


def _without_ids(item: dict[str, object]) -> dict[str, object]:
    """The item without the ids of tables and without the random key of a packed item."""
    random = {"set_token"} if "joins" in item else set()
    return {name: value for name, value in item.items() if not name.startswith(TABLES) and name not in random}


def rows_digest(stack: Stack) -> str:
    """SHA-256 of all items of all tables, in the order of their text; without the ids of the tables, which differ in
    every run."""
    client = stack.session.client("dynamodb")
    rows = [
        f"{logical_id} {json.dumps(_without_ids(item), sort_keys=True, default=bytes.hex)}"
        for logical_id, table in stack.storage.tables.items()
        for page in client.get_paginator("scan").paginate(TableName=table)
        for item in page["Items"]
    ]
    return hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest()


Joins = dict[int, list[tuple[str, bytes, str]]]
"""The joins of each step."""


def real_joins(first: int, days: int) -> Joins:
    """The joins of the given number of days of the real log."""
    joins = defaultdict(list)
    with gzip.open(REAL_LOG, "rt") as lines:
        for row in csv.DictReader(lines):
            step = int(row["time"]) // 3600
            if 0 <= step - first < 24 * days:
                joins[step].append(("fledge", row["set"].encode()[-64:], row["client"]))
    return joins


def generated_joins(first: int, days: int) -> Joins:
    """Joins of twelve sets, the same in every run. Each set has busy days and idle days; clients join again."""
    joins = defaultdict(list)
    for hour in range(24 * days):
        for name in range(12):
            if (hour // 24 + name) % 3:
                for n in range(below(2 + name, hour, name)):
                    client = below(20 + 3 * name, hour, name, n)
                    joins[first + hour].append(("fledge", f"set {name}".encode(), f"c{client}"))
    return joins


def below(limit: int, *place: int) -> int:
    """An integer from 0 to ``limit`` - 1 for a place."""
    return int.from_bytes(hashlib.sha256(repr(place).encode()).digest()) % limit


FIRST_STEP = int(datetime(2017, 7, 1, tzinfo=UTC).timestamp()) // 3600


def test_a_replay_of_a_generated_log_equals_the_reference_algorithm_and_its_recorded_digests():
    check_replay(GENERATED, generated_joins(FIRST_STEP, GENERATED.days))


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the real join log is not part of the project")
@pytest.mark.parametrize(
    "recorded",
    [
        pytest.param(SIX_DAYS_PACKED, id="6 days, packed"),
        pytest.param(PACKED, id="12 days, packed", marks=pytest.mark.replay),
        pytest.param(TWELVE_DAYS, id="12 days", marks=pytest.mark.replay),
        pytest.param(SIXTY_DAYS, id="60 days", marks=pytest.mark.replay),
    ],
)
def test_a_replay_of_a_real_log_equals_the_reference_algorithm_and_its_recorded_digests(recorded):
    check_replay(recorded, real_joins(FIRST_STEP, recorded.days))


@pytest.mark.replay
@pytest.mark.skipif(not REAL_LOG.exists(), reason="the real join log is not part of the project")
def test_a_real_log_has_the_recorded_answers_though_its_slots_change():
    changes = zip((1, 16, 64, 16), (0, *range(FIRST_STEP + 36, FIRST_STEP + 144, 36)), strict=True)
    entries = [{"slots": slots, "partitions": 1, "from_step": first} for slots, first in changes]
    recorded = replace(SIX_DAYS_PACKED, slots=json.dumps(entries, separators=(",", ":")))
    assert replayed(recorded, real_joins(FIRST_STEP, recorded.days)).answers == recorded.answers


def check_replay(recorded: Recorded, joins: Joins) -> None:
    """Compare every answer of a replay with the reference, and all answers, rows and units with the recorded ones."""
    assert replayed(recorded, joins) == recorded


def replayed(recorded: Recorded, joins: Joins) -> Recorded:
    """Replay a log, and compare every answer with the reference. Returns what it leaves."""
    start = 3600 * FIRST_STEP
    answers = hashlib.sha256()
    changes, before = 0, set()
    parameters = {"Types": json.dumps({"fledge": recorded.type}), "Slots": recorded.slots, "OutageAllowance": "604800"}
    with Stack(parameters, start=start, seed=1) as stack:
        oracle = Oracle(stack)
        for at in range(24 * recorded.days):
            stack.clock.set(max(stack.clock.now(), start + 3600 * at))
            oracle.join_all(joins[oracle.now_step])
            assert oracle.finish_step() == 0
            true = sorted(encoded(set_id) for (_, set_id), status in oracle.answered.items() if status)
            answers.update(f"{at} {' '.join(true)}\n".encode())
            changes, before = changes + len(before.symmetric_difference(true)), set(true)
        assert changes > len(true) > 0  # sets turn true, and some of them false again
        units = sum(stack.meter.written.values())
        return replace(recorded, answers=answers.hexdigest(), rows=rows_digest(stack), units=units)
