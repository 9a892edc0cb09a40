"""`kanon simulate` with the keys of a stack gives the answers recorded in its replay, bit for bit."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from kanon.client import encoded
from kanon.cost.billing import read_measured, read_prices
from kanon.cost.evaluating import written_units
from kanon.gate.mechanism.tape import Tapes
from kanon.gate.types import Type, read_types
from kanon.joinlog.numbered import Texts
from kanon.keys import fetch_noise_keys, fetch_secret
from kanon.local.stack import Stack
from kanon.simulate.part import KeysAndTokens, LogPart, PartKeys, noisy_crossings, outcomes
from kanon.simulate.presence import runs_of
from kanon.simulate.table import Pricing, cost_of
from tests.e2e.gate.test_equality import SIXTY_DAYS, TWELVE_DAYS, Recorded, real_joins
from tests.paths import REAL_LOG

START = int(datetime(2017, 7, 1, tzinfo=UTC).timestamp())


def keys_of(stack: Stack) -> PartKeys:
    """The keys that a stack of the tests uses. No command can do this."""
    join, evaluate = stack.functions["join"].environment, stack.functions["evaluate"].environment
    secrets = stack.session.client("secretsmanager")
    return PartKeys(
        fetch_secret(secrets, "set-pepper", join["KANON_SET_PEPPER_SECRET"]),
        fetch_secret(secrets, "client-key", join["KANON_CLIENT_KEY_SECRET"]),
        fetch_noise_keys(secrets, evaluate["KANON_NOISE_KEY_SECRET"], ["1"])["1"],
        evaluate["KANON_DEPLOYMENT"],
    )


@pytest.fixture(scope="module", params=[TWELVE_DAYS, SIXTY_DAYS], ids=["12 days", "60 days"])
def stack_of_a_replay(request):
    """A stack with the types and the seed of a recorded replay, without joins."""
    with Stack({"Types": json.dumps({"fledge": request.param.type})}, start=START, seed=1) as stack:
        yield request.param, stack


def numbered(column: Iterable[str]) -> Texts:
    texts = [text.encode() for text in column]
    return Texts(np.arange(len(texts)), texts)


def joined(recorded: Recorded) -> LogPart:
    """The joins that the replay sends."""
    log = real_joins(START // 3600, recorded.days)
    joins = [(step, set_id, client) for step, joins in log.items() for _, set_id, client in joins]
    return LogPart.of(
        np.array([step for step, _, _ in joins]),
        numbered(set_id.hex() for _, set_id, _ in joins),
        numbered(client for _, _, client in joins),
    )


def answers_digest(recorded: Recorded, keys: PartKeys, type_: Type) -> str:
    """The digest of all answers, in the form of the replay over HTTP."""
    first, part = START // 3600, joined(recorded)
    keyed, runs = KeysAndTokens(part, "fledge", keys), runs_of(part.joins, type_.parameters.window)
    crossings = noisy_crossings(part, keyed, type_, keys, runs, first + 24 * recorded.days)
    ids = [encoded(from_hex(text)) for text in part.sets]
    digest = hashlib.sha256()
    for at in range(24 * recorded.days):
        true = crossings.sets[(crossings.begins <= first + at) & (first + at < crossings.ends)]
        digest.update(f"{at} {' '.join(sorted(ids[number] for number in true.tolist()))}\n".encode())
    return digest.hexdigest()


def from_hex(text: bytes) -> bytes:
    """The replay's set ids are bytes; the log of this test holds them in hexadecimal."""
    return bytes.fromhex(text.decode())


@pytest.fixture(autouse=True)
def set_ids_of_the_replay(monkeypatch):
    monkeypatch.setattr("kanon.simulate.part.digest", from_hex)


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the real join log is not part of the project")
def test_the_answers_on_a_real_log_equal_the_answers_of_the_replay_over_http(stack_of_a_replay):
    recorded, stack = stack_of_a_replay
    type_ = _type_of(stack)
    assert answers_digest(recorded, keys_of(stack), type_) == recorded.answers


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the real join log is not part of the project")
def test_other_noise_gives_other_answers(stack_of_a_replay, monkeypatch):
    recorded, stack = stack_of_a_replay
    words = Tapes.words
    monkeypatch.setattr(Tapes, "words", lambda self, key, instance, count: words(self, key, instance + 1, count))
    assert answers_digest(recorded, keys_of(stack), _type_of(stack)) != recorded.answers


def _type_of(stack: Stack) -> Type:
    join = stack.functions["join"].environment
    return read_types(join["KANON_TYPES"], int(join["KANON_PERIOD"]))["fledge"]


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the real join log is not part of the project")
def test_the_write_units_of_the_model_are_those_of_the_replay(stack_of_a_replay):
    """The model has steady joins. The log has days without any, after which a slot's row names fewer manifests."""
    recorded, stack = stack_of_a_replay
    assert model_units(recorded, stack) == pytest.approx(recorded.units, rel=0.05)


def model_units(recorded: Recorded, stack: Stack) -> float:
    steps = range(START // 3600, START // 3600 + 24 * recorded.days)
    type_ = _type_of(stack)
    (outcome,) = outcomes(joined(recorded), [type_], keys_of(stack), steps)
    cost = cost_of(type_.parameters, outcome, steps, Pricing(read_prices(), read_measured()))
    distinct = sum(len({*joins}) for joins in real_joins(START // 3600, recorded.days).values())
    load = replace(cost.workload, joins=distinct / (3600 * len(steps)), slots=1)  # as the replay sends them
    return len(steps) * written_units(load, read_measured(), len(steps))
