"""Record and replay: the whole service on a log D and on D' with one join removed, under the same keys.

This observes the assumptions of the proof on the running service: both runs read the same noise, and their counts
differ by at most one, on one contiguous run of at most w steps of one set.
"""

import csv
import gzip
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple
from zlib import crc32

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import kanon.gate.merging
from kanon.client import encoded
from kanon.gate.deciding import NoiseKeys
from kanon.gate.evaluation import DeploymentRecord, Evaluation
from kanon.gate.joining import Join, Joining
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.columns import States
from kanon.gate.mechanism.members import count_since
from kanon.gate.mechanism.parameters import Parameters, profile
from kanon.gate.mechanism.searches import Searches
from kanon.gate.mechanism.steps import end_of, instance_of, phase_of
from kanon.gate.mechanism.tape import Tapes
from kanon.gate.names import set_key
from kanon.gate.querying import Querying
from kanon.gate.schedule import Schedule
from kanon.gate.types import Type
from kanon.keys import Secret
from kanon.local import Stack
from kanon.noise.words import WORD_BYTES
from tests.integration.gate.tables import Running, fresh, joins_of, running
from tests.paths import REAL_LOG
from tests.unit.examples import CROSSING, KEY, ONE_SIDED, SMALL

HOUR, DAY = 3600, 86_400
START = 472_000
PEPPER, CLIENT_KEY = Secret("set-pepper", bytes(32)), Secret("client-key", bytes(range(32)))


class Event(NamedTuple):
    """One join of a log: a client joins a set in a step."""

    step: int
    type_name: str
    set_id: bytes
    client: str


class Place(NamedTuple):
    """The place of a word of noise."""

    key_id: str
    deployment: str
    type_name: str
    fingerprint: bytes
    set_key: bytes
    search: int
    page: int
    word: int


@dataclass
class Recording:
    """The record of one run of the service, by set key.

    ``words``: the noise it read. ``rows``: the tokens in the log by step. ``states``: the sets as evaluated, by
    step. ``crossings``: when each set crossed. ``answers``: the statuses as published, by step.
    """

    words: dict[Place, bytes] = field(default_factory=dict)
    rows: dict[bytes, dict[int, set[int]]] = field(default_factory=dict)
    states: dict[bytes, dict[int, SetState]] = field(default_factory=dict)
    crossings: dict[bytes, set[int]] = field(default_factory=dict)
    answers: dict[int, dict[bytes, bool]] = field(default_factory=dict)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record every word of noise read, and every decision, of whatever runs in this process."""
        read, decide = Tapes.words, kanon.gate.merging.evaluate_columns

        def words(tapes: Tapes, key: bytes, place: int, count: int, page: int = 0) -> bytes:
            tape = read(tapes, key, place, count, page)
            name = (tapes.key.id, tapes.deployment, tapes.type_name, tapes.parameters.fingerprint, key, place, page)
            for n in range(count):
                word = tape[WORD_BYTES * n : WORD_BYTES * (n + 1)]
                assert self.words.setdefault(Place(*name, n), word) == word, "a word of noise was drawn twice"
            return tape

        def evaluate_columns(parameters: Any, tapes_of: Any, step: int, before: States, *more: Any) -> States:
            after = decide(parameters, tapes_of, step, before, *more)
            for key, old, state in zip(before.keys, before.states(), after.states(), strict=True):
                self.states.setdefault(key, {})[step] = state
                if state.crossings != old.crossings:
                    self.crossings.setdefault(key, set()).add(step)
            return after

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Tapes, "words", words)
            patch.setattr(kanon.gate.merging, "evaluate_columns", evaluate_columns)
            yield

    def read_log(self, items: list[dict[str, Any]]) -> None:
        """Take the rows of StepLog."""
        for item in items:
            step = int.from_bytes(item["step_slot"]["B"][:8], "big")
            for _, key, token in joins_of(item):
                self.rows.setdefault(key, {}).setdefault(step, set()).add(token)

    def count(self, key: bytes, step: int, window: int) -> int:
        """Distinct tokens of a set with a row in ``(step - window, step]``."""
        by_step = self.rows.get(key, {})
        return len(set().union(*(by_step[at] for at in range(step - window + 1, step + 1) if at in by_step)))

    def counted(self, key: bytes, step: int, since: int) -> int:
        """The joins from a step on that the service decides with at a step: of the last state not after it."""
        known = [at for at in self.states.get(key, {}) if at <= step]
        return count_since(self.states[key][max(known)].members, since) if known else 0

    def counts_from(self, parameters: Parameters, key: bytes, step: int) -> int:
        """The first step whose joins count at a step: that of the window, or after the end of the last search."""
        crossing = max((at for at in self.crossings.get(key, ()) if at < step), default=None)
        searches = Searches.of(parameters, key)
        return searches.counts_from(searches.at(step, crossing), step)


def record(moto: Running, types: dict[str, Type], events: Sequence[Event], steps: range) -> Recording:
    """Run joining, evaluation and querying on fresh tables: every step is joined, evaluated, published and queried."""
    tables = fresh(moto)
    period = next(iter(types.values())).parameters.period
    schedule = Schedule(period, 120, 150, 1800, 60, 400 * DAY)
    joining = Joining(types, PEPPER, CLIENT_KEY, tables.log, period, schedule.outage_allowance)
    evaluation = Evaluation(
        types, {}, frozenset(), NoiseKeys(((0, KEY),)), "deployment", schedule,
        tables.log, tables.parts, tables.statuses, tables.control,
        lambda: DeploymentRecord(tables.control.type_numbers(types), frozenset()),
    )  # fmt: skip
    querying = Querying(types, PEPPER, tables.statuses, period, tables.layouts, schedule.publish_delay, 24)
    tables.mark(0, steps.start - 1)
    sets = sorted({(event.type_name, event.set_id) for event in events})
    keys = [set_key(PEPPER, *name) for name in sets]
    recording = Recording()
    with recording.listening():
        for step in steps:
            joins = [Join(e.type_name, e.set_id, "client", e.client.encode()) for e in events if e.step == step]
            assert all(joining.join_all(joins, step * period + 1.0))
            closed = end_of(step, period) + 180.0
            evaluation.run(0, f"worker {step}", lambda closed=closed: closed, lambda: 1e9)
            answer = querying.query(sets, end_of(step, period) + schedule.publish_delay)
            assert answer.step == (step if sets else None)
            recording.answers[step] = dict(zip(keys, answer.above, strict=True))
    recording.read_log(tables.items("StepLog"))
    return recording


def assert_neighbours(
    types: dict[str, Type], pepper: Secret, one: Recording, other: Recording, removed: Event, steps: range
) -> int:
    """Compare the run on D with that on D', the join ``removed`` less; return how many steps differ in count.

    With restart after the crossing a moved crossing moves the searches after it, so only the beginning is compared.
    """
    parameters = types[removed.type_name].parameters
    window, changed = parameters.window, set_key(pepper, removed.type_name, removed.set_id)
    phase, grid = phase_of(changed, window, parameters.phase), parameters.restart is None

    # The same noise wherever both look; where only one looks is the removed join's set, near its instances.
    common = one.words.keys() & other.words.keys()
    assert all(one.words[place] == other.words[place] for place in common), "the noise differs"
    met = range(instance_of(removed.step, phase, window), instance_of(removed.step + window - 1, phase, window) + 1)
    assert len(met) <= 2
    for place in one.words.keys() ^ other.words.keys():
        assert place.set_key == changed
        if grid:
            assert place.search in range(met.start, met.stop + 1), "the look-ahead reaches one instance further"
        else:
            assert place.search + parameters.cycle > removed.step, "a search that ended before the join"

    # Counts: one more, on one run of at most a window, in one set.
    differing = []
    for key in one.rows.keys() | other.rows.keys():
        if key != changed:
            assert one.rows.get(key) == other.rows.get(key)
            continue
        for step in range(steps.start, steps.stop + window):
            difference = one.count(key, step, window) - other.count(key, step, window)
            assert difference in (0, 1)
            if difference:
                differing.append(step)
    assert differing == list(range(differing[0], differing[-1] + 1)) if differing else True
    assert all(removed.step <= step < removed.step + window for step in differing), (removed, window, differing)

    # The counts used for decisions are those of the log, capped where more cannot matter.
    for recording in (one, other):
        for step in steps:
            since = recording.counts_from(parameters, changed, step)
            logged = min(recording.count(changed, step, step + 1 - since), parameters.members_kept)
            assert recording.counted(changed, step, since) == logged

    # Answers: nothing before the join, nothing in other sets, nothing beyond the two instances.
    assert {k: v for k, v in one.crossings.items() if k != changed} == {
        k: v for k, v in other.crossings.items() if k != changed
    }
    moved = one.crossings.get(changed, set()) ^ other.crossings.get(changed, set())
    assert all(step >= removed.step and (not grid or instance_of(step, phase, window) in met) for step in moved)
    for step in steps:
        different = {key for key, above in one.answers[step].items() if above != other.answers[step].get(key, False)}
        assert different <= {changed}
        if step < removed.step or (grid and instance_of(step, phase, window) not in met):
            assert not different
    return len(differing)


@pytest.fixture(scope="module")
def moto() -> Iterator[Running]:
    with running("moto", small_pages=False) as running_:  # thousands of rows; the other tests read them one by one
        yield running_


# ------------------------------------------------------------------------------------ generated logs

TYPES = {
    "small": Type("small", SMALL, None),
    "one-sided": Type("one-sided", replace(ONE_SIDED, period=HOUR), None),
    "crossing": Type("crossing", CROSSING, None),
}
STEPS = range(START, START + 18)

generated = st.lists(
    st.tuples(
        st.integers(STEPS.start, STEPS.start + 11),
        st.sampled_from(sorted(TYPES)),
        st.integers(0, 1),  # which set
        st.integers(0, 6),  # first client: overlaps make rejoins
        st.integers(1, 5),  # how many
    ),
    min_size=1,
    max_size=14,
)


@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(bursts=generated, choose=st.integers(0, 10**6))
def test_one_join_changes_one_set_for_one_window_and_no_noise(moto, bursts, choose):
    log = list(
        dict.fromkeys(
            Event(step, type_name, bytes([which]), f"client {first + n}")
            for step, type_name, which, first, size in bursts
            for n in range(size)
        )
    )
    removed = log[choose % len(log)]
    one = record(moto, TYPES, log, STEPS)
    other = record(moto, TYPES, [event for event in log if event != removed], STEPS)
    assert_neighbours(TYPES, PEPPER, one, other, removed, STEPS)


def test_the_comparison_finds_a_join_that_changes_an_answer(moto):
    sets = [f"set {n}".encode() for n in range(6)]
    log = [Event(START + n % 3, "small", set_id, f"client {n}") for set_id in sets for n in range(SMALL.k)]
    one = record(moto, TYPES, log, STEPS)
    changes = 0
    for set_id in sets[:3]:
        removed = Event(START + 1, "small", set_id, "client 1")
        other = record(moto, TYPES, [event for event in log if event != removed], STEPS)
        assert assert_neighbours(TYPES, PEPPER, one, other, removed, STEPS) == SMALL.window
        assert one.words.keys() & other.words.keys()
        changes += one.answers != other.answers
    assert changes, "if no join changed an answer the comparison saw nothing"


def test_the_comparison_finds_noise_that_is_drawn_again(moto, monkeypatch):
    log = [Event(START, "small", b"set", f"client {n}") for n in range(4)]
    one = record(moto, TYPES, log, STEPS)
    assert_neighbours(TYPES, PEPPER, one, record(moto, TYPES, log[1:], STEPS), log[0], STEPS)
    original = Tapes.words
    monkeypatch.setattr(Tapes, "words", lambda tapes, key, *place: original(tapes, key[::-1], *place))
    with pytest.raises(AssertionError, match="the noise differs"):
        assert_neighbours(TYPES, PEPPER, one, record(moto, TYPES, log[1:], STEPS), log[0], STEPS)


# ------------------------------------------------------------------------------------- the whole stack


def serve(log: Sequence[Event], types: dict[str, dict[str, Any]], steps: range) -> tuple[Recording, Secret]:
    """Run handlers, queue and schedule over HTTP; stacks of one seed and name have the same keys."""
    recording = Recording()
    sets = sorted({(event.type_name, event.set_id) for event in log})
    parameters = {"Types": json.dumps(types), "OutageAllowance": str(20 * DAY)}
    with Stack(parameters, start=steps.start * HOUR + 1.0, seed=11, name="replay") as stack, recording.listening():
        pepper = Secret.derived("set-pepper", stack.storage.secrets["SetPepper"])
        stack.session.client("dynamodb").update_item(  # nothing is left to evaluate before the first step
            TableName=stack.storage.tables["Control"],
            Key={"name": {"S": "slot#0#0"}},
            UpdateExpression="SET evaluated_through = :before",
            ExpressionAttributeValues={":before": {"N": str(steps.start - 1)}},
        )
        for step in steps:
            joins = [{"type": e.type_name, "set": encoded(e.set_id), "client": e.client} for e in log if e.step == step]
            if joins:
                assert json.loads(stack.request("POST", "/v1:batchJoin", {"joins": joins}).body) == {
                    "results": [{}] * len(joins)
                }
            stack.advance_to((step + 1) * HOUR + 1800)
            asked = [{"type": name, "hashes": [encoded(set_id)]} for name, set_id in sets]
            answer = json.loads(stack.request("POST", "/v1:query", {"setsForType": asked}).body)
            assert answer["step"] == step
            true = [bool(entry["hashes"]) for entry in answer["kAnonymousSets"]]
            recording.answers[step] = {set_key(pepper, *name): above for name, above in zip(sets, true, strict=True)}
        table = stack.storage.tables["StepLog"]
        recording.read_log(stack.session.client("dynamodb").scan(TableName=table)["Items"])
    return recording, pepper


def test_over_http_one_join_changes_one_set_for_one_window_and_no_noise():
    laws = {"shape": "two-sided", "epsilon": "0.5"}
    configured = {
        "small": {
            "k": 4,
            "window": 6,
            "laws": {"threshold": {**laws, "truncation": 1}, "query": {**laws, "truncation": 2}},
            "client_bits": 16,
        }
    }
    types = {"small": Type("small", replace(SMALL, client_bits=16), None)}
    random_ = random.Random(5)
    log = sorted(
        {
            Event(START + random_.randrange(12), "small", bytes([which]), f"client {random_.randrange(8)}")
            for which in range(3)
            for _ in range(9)
        }
    )
    one, pepper = serve(log, configured, STEPS)
    assert any(one.crossings.values())
    removed = log[len(log) // 2]
    other, same_pepper = serve([event for event in log if event != removed], configured, STEPS)
    assert same_pepper.key == pepper.key
    assert assert_neighbours(types, pepper, one, other, removed, STEPS) > 0


# --------------------------------------------------------------------------------------- the real log


def real_log(first: datetime, days: int, period: int) -> tuple[list[Event], range]:
    """The joins of the real log from a day on."""
    begin = int(first.timestamp()) // period
    steps = range(begin, begin + days * DAY // period)
    with gzip.open(REAL_LOG, "rt") as lines:
        rows = ((int(row["time"]) // period, row) for row in csv.DictReader(lines))
        events = [Event(step, "real", row["set"].encode()[-64:], row["client"]) for step, row in rows if step in steps]
    return list(dict.fromkeys(events)), steps


def replay_real_log(
    moto: Running, parameters: Parameters, first: datetime, days: int, removals: int, one_set_in: int = 1
) -> None:
    types = {"real": Type("real", parameters, None)}
    log, steps = real_log(first, days, parameters.period)
    log = [event for event in log if crc32(event.set_id) % one_set_in == 0]
    one = record(moto, types, log, steps)
    assert one.crossings, "a log in which nothing crosses shows nothing"
    # Joins of sets near the threshold: there an answer can change.
    near = sorted(
        event
        for event in log
        if one.crossings.get(set_key(PEPPER, event.type_name, event.set_id))
        and event.step < steps.stop - parameters.window
    )
    for removed in random.Random(1).sample(near, removals):
        other = record(moto, types, [event for event in log if event != removed], steps)
        assert_neighbours(types, PEPPER, one, other, removed, steps)


with_real_log = pytest.mark.skipif(
    not REAL_LOG.exists(),
    reason="the real join log is not part of the project: put it beside the checkout to replay it",
)


@with_real_log
def test_on_the_real_log_one_join_changes_one_set_for_one_window_and_no_noise(moto):
    parameters = replace(SMALL, k=5, period=DAY, client_bits=16)
    replay_real_log(moto, parameters, datetime(2016, 11, 7, tzinfo=UTC), days=14, removals=1, one_set_in=5)


@with_real_log
@pytest.mark.audit
def test_a_replay_of_half_a_year_of_the_real_log_with_the_published_laws_is_exact(moto):
    parameters = Parameters(50, 30, DAY, *profile("published", 30))
    replay_real_log(moto, parameters, datetime(2017, 3, 1, tzinfo=UTC), days=180, removals=3)
