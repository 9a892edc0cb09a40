"""One machine with the secrets of a stack gives the answers recorded in the stack's replay, bit for bit."""

import hashlib
import json
import os
from pathlib import Path

import pytest

import kanon.disk
from kanon.client import encoded
from kanon.gate.joining import Join
from kanon.gate.mechanism.steps import end_of
from kanon.gate.publishing import tick_of
from kanon.local.stack import Stack
from kanon.serving.directory import Given, open_directory
from kanon.serving.secret_files import CLIENT_KEY, DEPLOYMENT, FIRST_KEY, NOISE_KEYS, PEPPER
from tests.e2e.gate.test_equality import FIRST_STEP, SIX_DAYS_PACKED, TWELVE_DAYS, Recorded, real_joins
from tests.paths import REAL_LOG

PERIOD = 3600
RECORDED = [
    pytest.param(SIX_DAYS_PACKED, id="6 days"),
    pytest.param(TWELVE_DAYS, id="12 days", marks=pytest.mark.replay),
]
pytestmark = pytest.mark.skipif(not REAL_LOG.exists(), reason="the real join log is not part of the project")


@pytest.fixture(scope="module")
def secrets() -> dict[str, str]:
    """What a stack of the replays has drawn, by the names that a directory has for it."""
    with Stack({"Types": json.dumps({"fledge": TWELVE_DAYS.type})}, start=PERIOD * FIRST_STEP, seed=1) as stack:
        texts = stack.storage.secrets
        return {
            DEPLOYMENT: stack.functions["evaluate"].environment["KANON_DEPLOYMENT"],
            PEPPER: texts["SetPepper"],
            CLIENT_KEY: texts["ClientKey"],
            NOISE_KEYS: json.loads(texts["NoiseKey"])[FIRST_KEY],
        }


@pytest.fixture(autouse=True)
def not_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine loses power in these tests."""
    monkeypatch.setattr(kanon.disk, "SYNCHRONOUS", "OFF")
    monkeypatch.setattr(os, "fsync", lambda _: None)


def answers_digest(recorded: Recorded, path: Path, secrets: dict[str, str]) -> str:
    """The digest of all answers of a directory that is closed and opened once a day, in the form of the replay."""
    joins, asked, digest = real_joins(FIRST_STEP, recorded.days), dict[tuple[str, bytes], None](), hashlib.sha256()
    given = Given(PERIOD, json.dumps({"fledge": recorded.type}), secrets.__getitem__)
    for day in range(recorded.days):
        with open_directory(path, given, PERIOD * (FIRST_STEP + 24 * day)) as directory:
            for at in range(24 * day, 24 * (day + 1)):
                step = FIRST_STEP + at
                own = [Join(name, set_id, "client", client.encode()) for name, set_id, client in joins[step]]
                assert all(directory.joining.join_all(own, PERIOD * step))
                asked |= dict.fromkeys((join.type_name, join.set_id) for join in own)
                directory.evaluate(end_of(step, PERIOD) + directory.settings.grace)
                answer = directory.querying.query([*asked], tick_of(step, PERIOD, directory.settings.publish_delay))
                assert not asked or answer.step == step
                true = sorted(encoded(set_id) for (_, set_id), above in zip(asked, answer.above, strict=True) if above)
                digest.update(f"{at} {' '.join(true)}\n".encode())
    return digest.hexdigest()


@pytest.mark.parametrize("recorded", RECORDED)
def test_the_answers_of_one_machine_on_a_real_log_equal_those_of_the_replay_over_http(
    recorded: Recorded, tmp_path: Path, secrets: dict[str, str]
) -> None:
    assert answers_digest(recorded, tmp_path / "data", secrets) == recorded.answers


def test_the_secrets_of_another_deployment_give_other_answers(tmp_path: Path, secrets: dict[str, str]) -> None:
    other = secrets | {DEPLOYMENT: "another"}
    assert answers_digest(SIX_DAYS_PACKED, tmp_path / "data", other) != SIX_DAYS_PACKED.answers
