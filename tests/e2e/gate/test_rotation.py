"""The noise key rotated as docs/guides/operate.md says: each instance keeps the key of its first step."""

import json
import random
from collections.abc import Iterator

import pytest

from kanon.errors import ConfigurationError
from kanon.gate.fingerprints import noise_key_fingerprints, refuse_without_key
from kanon.gate.settings import NoiseKeyEntry
from kanon.gate.types import read_types
from kanon.keys import Secret
from kanon.local import Stack
from kanon.noise.words import NoiseKey
from kanon.operate.noise_key import NoiseKeyKeptError, refuse_needed
from tests.conftest import START
from tests.e2e.gate.operating import deploy, mark, stops
from tests.e2e.gate.oracle import Oracle, laws
from tests.integration.gate.doctor_view import findings, operate, seen, wrong
from tests.integration.gate.test_destroying_noise_keys import remove_old_versions

LAWS = laws("two-sided", "0.4", 5, 5)
WINDOW = 6
ALLOWANCE = 48
"""Steps of the outage allowance of a stack."""
SETS = [b"set %d" % n for n in range(16)]


class Rotating:
    """A stack in use whose keys are changed while joins go on."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.random = random.Random(1)
        self.oracle, self.old_key_alone = Oracle(stack), Oracle(stack)
        self.different = False
        self.steps(2)

    def steps(self, count: int) -> None:
        """Some steps with joins; every answer is that of the naive algorithm with the keys by instance."""
        for _ in range(count):
            joins = [("a", name, f"c{self.random.randrange(14)}") for name in SETS for _ in range(2)]
            self.oracle.join_all(joins)
            self.old_key_alone.hear(joins)
            self.different |= self.old_key_alone.pass_step() != self._finish()

    def _finish(self) -> dict[tuple[str, bytes], bool]:
        step = self.oracle.now_step
        self.stack.advance_to((step + 1) * 3600 + 1800)
        expected = self.oracle.pass_step()
        assert self.oracle.answers(step) == expected
        return expected

    @property
    def step(self) -> int:
        """The current step."""
        return int(self.stack.clock.now() // 3600)

    def put_keys(self, **texts: str) -> None:
        """Write the secret."""
        manager = self.stack.session.client("secretsmanager")
        manager.put_secret_value(SecretId=self.arn, SecretString=json.dumps(texts))

    @property
    def arn(self) -> str:
        """The secret of the noise keys."""
        return self.stack.functions["evaluate"].environment["KANON_NOISE_KEY_SECRET"]

    def remove_old_versions(self, seconds: float) -> None:
        """Remove old versions as Secrets Manager does, which keeps the newest hundred."""
        assert seconds == 600
        remove_old_versions(self.arn)

    def deploy(self, *entries: tuple[str, int]) -> None:
        """Deploy with these entries of the parameter NoiseKeys."""
        value = json.dumps([{"id": key_id, "from_step": first} for key_id, first in entries])
        deploy(self.stack, "evaluate", KANON_NOISE_KEYS=value)


TYPE = {"k": 12, "window": WINDOW, "laws": LAWS}
HOLD, EPOCH = 7, 16


@pytest.fixture
def rotating() -> Iterator[Rotating]:
    with Stack({"Types": json.dumps({"a": TYPE})}, start=START, seed=8) as stack:
        yield Rotating(stack)


@pytest.fixture
def after_crossings() -> Iterator[Rotating]:
    types = {"a": {**TYPE, "restart": "crossing", "hold": HOLD, "epoch": EPOCH}}
    with Stack({"Types": json.dumps(types), "OutageAllowance": "172800"}, start=START, seed=8) as stack:
        yield Rotating(stack)


def old(rotating: Rotating) -> str:
    text: str = json.loads(rotating.stack.storage.secrets["NoiseKey"])["1"]
    return text


def rotate(rotating: Rotating) -> int:
    """Steps 1 to 3 of the runbook; the first step of the new key."""
    first = rotating.step + 2 * WINDOW + 1  # evaluate starts in the next step
    rotating.put_keys(**{"1": old(rotating), "2": "n" * 64})
    rotating.deploy(("1", 0), ("2", first))
    rotating.oracle.begin_key("2", first)
    return first


def test_rotating_a_noise_key_and_destroying_the_old_one_changes_no_answer(
    rotating: Rotating, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rotate(rotating)
    rotating.steps(2 * WINDOW + 1)
    assert not rotating.different
    needed = f"key 1 is needed until every slot is evaluated through step {first + WINDOW} "
    assert findings(rotating.stack)["noise keys"][0].seen.startswith(needed)
    rotating.deploy(("2", first))
    code, output = operate(rotating.stack, "destroy-noise-key", "1", "--yes")
    needed = f"noise key 1 is needed until every slot is evaluated through step {first + WINDOW}: run the command then"
    assert (code, needed in output) == (2, True), output
    rotating.deploy(("1", 0), ("2", first))
    rotating.steps(WINDOW + 1)
    assert rotating.different  # so the example distinguishes the keys
    assert findings(rotating.stack)["noise keys"][0].seen == "key 1 is no longer needed: it can be destroyed"

    assert operate(rotating.stack, "destroy-noise-key", "1", "--yes") == (
        2,
        "kanon operate destroy-noise-key: noise key 1 is configured: first remove it from NoiseKeys and deploy\n",
    )
    rotating.deploy(("2", first))
    rotating.steps(2)
    monkeypatch.setattr("time.sleep", rotating.remove_old_versions)
    code, output = operate(rotating.stack, "destroy-noise-key", "1", answer="y\n")
    assert (code, output.splitlines()[-1]) == (0, "No version of the secret holds key 1."), output
    assert json.loads(
        rotating.stack.session.client("secretsmanager").get_secret_value(SecretId=rotating.arn)["SecretString"]
    ) == {"2": "n" * 64}
    rotating.stack.restart("evaluate")
    rotating.steps(2 * WINDOW)
    assert wrong(rotating.stack) == {}


def test_with_restart_after_the_crossing_a_search_keeps_its_key_and_the_key_is_kept_for_it(
    after_crossings: Rotating, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotating = after_crossings
    first = rotate(rotating)
    rotating.steps(2 * WINDOW + 1 + EPOCH)
    assert rotating.different  # so the example distinguishes the keys
    kept = EPOCH + 48  # and the outage allowance
    needed = f"key 1 is needed until every slot is evaluated through step {first + kept} "
    assert findings(rotating.stack)["noise keys"][0].seen.startswith(needed)
    rotating.deploy(("2", first))
    refused = f"noise key 1 is needed until every slot is evaluated through step {first + kept}: run the command then"
    code, output = operate(rotating.stack, "destroy-noise-key", "1", "--yes")
    assert (code, refused in output) == (2, True), output
    rotating.deploy(("1", 0), ("2", first))
    rotating.steps(first + kept - rotating.step)
    rotating.deploy(("2", first))
    assert refused in operate(rotating.stack, "destroy-noise-key", "1", "--yes")[1]  # one step too early
    rotating.steps(1)
    monkeypatch.setattr("time.sleep", rotating.remove_old_versions)
    code, output = operate(rotating.stack, "destroy-noise-key", "1", answer="y\n")
    assert (code, output.splitlines()[-1]) == (0, "No version of the secret holds key 1."), output
    rotating.stack.restart("evaluate")
    rotating.steps(WINDOW)
    assert wrong(rotating.stack) == {}


def test_a_key_that_starts_too_early_is_refused_and_the_error_names_the_first_allowed_step(rotating: Rotating) -> None:
    rotating.put_keys(**{"1": old(rotating), "2": "n" * 64})
    rotating.stack.advance(1800)  # into a step whose predecessor is not evaluated yet
    least = rotating.step + 2 * WINDOW
    rotating.deploy(("1", 0), ("2", least - 1))
    reason = stops(rotating.stack)
    assert reason == (
        f"noise key 2 begins at step {least - 1}: a new key must begin at step {least} or later (now plus two windows)"
    )
    (finding,) = findings(rotating.stack)["noise keys"]
    assert (finding.verdict, finding.seen, finding.section) == ("FAIL", reason, "rotating-the-noise-key")
    rotating.deploy(("1", 0), ("2", least))
    rotating.oracle.begin_key("2", least)
    rotating.steps(2)


def test_removing_an_old_key_too_early_stops_evaluation_until_it_is_restored(rotating: Rotating) -> None:
    first = rotate(rotating)
    rotating.steps(2 * WINDOW + 2)

    rotating.oracle.join_all([("a", name, "x") for name in SETS])
    rotating.deploy(("2", first))
    rotating.stack.advance(2000)  # the schedule fires; the tick is still to come
    reason = stops(rotating.stack)
    assert reason.startswith("no noise key covers what began before step ")
    assert "put the removed key back" in reason
    rotating.deploy(("1", 0), ("2", first))
    rotating.put_keys(**{"2": "n" * 64})  # out of the secret, but still configured
    rotating.stack.restart("evaluate")
    assert stops(rotating.stack) == "the noise key secret lacks key 1: add it to the secret first"

    rotating.put_keys(**{"1": old(rotating), "2": "n" * 64})
    rotating.stack.restart("evaluate")
    assert rotating.oracle.finish_step() == 0
    rotating.steps(WINDOW)


def test_a_key_in_use_and_its_first_step_cannot_be_changed(rotating: Rotating) -> None:
    first = rotating.step + 3 * WINDOW
    rotating.put_keys(**{"1": old(rotating), "2": "n" * 64})
    rotating.deploy(("1", 0), ("2", first))
    rotating.steps(1)
    rotating.stack.advance(3600)
    rotating.deploy(("1", 0), ("2", first + 1))
    assert "differ from what this deployment started with" in stops(rotating.stack)
    assert findings(rotating.stack, secrets=False)["noise keys"][0].seen == "changed since first used: noise-key 2"
    rotating.put_keys(**{"1": old(rotating), "2": "o" * 64})
    rotating.deploy(("1", 0), ("2", first))
    assert "differ from what this deployment started with" in stops(rotating.stack)
    assert findings(rotating.stack)["noise keys"][0].seen == "changed since first used: noise-key 2"


def test_after_a_rollback_the_newer_key_is_read_from_the_secret_and_never_replaced_by_the_older_one(
    rotating: Rotating,
) -> None:
    """The worker of the old version is warm: it started before the new version recorded its key."""
    first = rotating.step + 2 * WINDOW + 1
    rotating.put_keys(**{"1": old(rotating), "2": "n" * 64})
    rotating.oracle.begin_key("2", first)
    key = NoiseKey("2", Secret.derived("noise-key/2", "n" * 64).key)
    named = noise_key_fingerprints([NoiseKeyEntry(id="2", from_step=first)], {"2": key})
    seen(rotating.stack).control.check("evaluate", named)
    finding = findings(rotating.stack)["noise keys"][0]
    value = f'[{{"id":"1","from_step":0}},{{"id":"2","from_step":{first}}}]'
    assert (finding.verdict, finding.advice) == ("WARN", f"deploy again with NoiseKeys='{value}'")
    with pytest.raises(NoiseKeyKeptError, match="because a deployment was rolled back: it is in force"):
        refuse_needed(seen(rotating.stack), "2")
    rotating.steps(first - rotating.step - WINDOW)

    rotating.put_keys(**{"1": old(rotating)})
    for _ in range(WINDOW + 1):
        rotating.oracle.join_all([("a", name, f"c{n}") for name in SETS for n in range(2)])
        rotating.oracle.pass_step()
        rotating.stack.advance(3600)
    for other in ({}, {"2": "o" * 64}):
        rotating.put_keys(**{"1": old(rotating), **other})
        assert findings(rotating.stack)["noise keys"][0].verdict == "FAIL"
        assert stops(rotating.stack) == (
            f"the noise key that begins at step {first} is not in its secret as it was recorded: restore it"
        )
        assert mark(rotating.stack) < first
    rotating.put_keys(**{"1": old(rotating), "2": "n" * 64})
    rotating.stack.tick()
    rotating.oracle.pass_step()
    rotating.stack.advance(3600)  # what is more than a window behind waits for a tick
    rotating.steps(2)
    assert mark(rotating.stack) > first


def test_a_type_is_not_added_before_a_key_covers_all_its_searches(rotating: Rotating) -> None:
    """Evaluation stops when it reads the types, before it evaluates or records anything, and goes on without it."""
    first = rotate(rotating)
    rotating.steps(2 * WINDOW + 1 + WINDOW + 1)
    rotating.deploy(("2", first))
    rotating.steps(1)
    types = json.dumps({"a": TYPE, "b": {**TYPE, "window": 2 * WINDOW}})
    before = rotating.stack.functions["evaluate"].environment["KANON_TYPES"]
    deploy(rotating.stack, "evaluate", KANON_TYPES=types)
    rotating.stack.advance(1800)
    recorded = seen(rotating.stack).control.recorded("evaluate")
    for _ in range(2):  # it is refused each time: nothing is recorded
        reason = stops(rotating.stack)
        assert reason == (
            f"type 'b' cannot be added before step {first + 2 * WINDOW + ALLOWANCE}: a search of it might have begun"
            f" before step {first}, and the noise key of such searches was removed"
        )
        (finding,) = findings(rotating.stack, secrets=False)["noise keys"]
        assert (finding.verdict, finding.seen) == ("FAIL", reason)
        rotating.stack.restart("evaluate")
    assert seen(rotating.stack).control.recorded("evaluate") == recorded
    deploy(rotating.stack, "evaluate", KANON_TYPES=before)
    rotating.stack.tick()
    rotating.steps(1)
    assert wrong(rotating.stack) == {}


@pytest.mark.parametrize("early", [0, 1])
def test_a_type_is_accepted_from_the_step_on_that_the_refusal_names(early: int) -> None:
    entries, types = [NoiseKeyEntry(id="2", from_step=1000)], read_types(json.dumps({"b": TYPE}), 3600)
    if early:
        with pytest.raises(ConfigurationError, match=f"cannot be added before step {1000 + WINDOW}: "):
            refuse_without_key({}, entries, types, 1000 + WINDOW - early)
    else:
        refuse_without_key({}, entries, types, 1000 + WINDOW)
    refuse_without_key({"type b": "known"}, entries, types, 0)
    refuse_without_key({}, [NoiseKeyEntry(id="1", from_step=0), *entries], types, 0)
