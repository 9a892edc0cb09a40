"""`kanon operate forget` on a stack: the client is found nowhere, and no count and no answer is another one."""

import json
import random
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path
from secrets import randbits
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.client import BaseClient

from kanon.findings import Verdict
from kanon.gate.fingerprints import FORGETTING
from kanon.gate.forgetting import Replacements, Token
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.names import client_token, set_key
from kanon.gate.parts import Part, decode
from kanon.gate.storage.aws.control import Progress
from kanon.keys import Secret
from kanon.local import Stack
from kanon.operate import forgetting
from tests.conftest import START
from tests.e2e.gate.backups import objects, parts_of, rows, states
from tests.e2e.gate.oracle import Oracle
from tests.e2e.gate.test_mixtures import SETS, TYPES
from tests.faults.fault_injector import ProcessDied
from tests.integration.gate.doctor_view import findings, operate, seen, wrong
from tests.integration.gate.tables import joins_of
from tests.snapshot import Snapshot

WHO, STEPS, LATER = "who", 4, 7
SLOTS = [{"slots": 2, "from_step": 0}, {"slots": 4, "partitions": 4, "from_step": int(START) // 3600 + 2}]
TOKENS = 24
"""The client's joins are in this many sets."""


def join_some(oracle: Oracle, chance: random.Random, *clients: str) -> None:
    """Batches, which are packed, and single joins."""
    joins = [("ac"[n % 2], name, f"c{chance.randrange(18)}") for n, name in enumerate(SETS) for _ in range(2)]
    oracle.join_all(joins + [("ac"[n % 2], name, client) for client in clients for n, name in enumerate(SETS)])
    for place in joins[:6]:
        oracle.join_all([place])
    for client in clients:
        oracle.join_all([("a", SETS[0], client)])


@pytest.fixture(scope="module")
def used() -> Iterator[Snapshot[Oracle]]:
    """A stack whose slots have changed, with joins that are evaluated, and others that are not."""
    parameters = {
        "Types": json.dumps(TYPES),
        "OutageAllowance": "172800",
        "Slots": json.dumps(SLOTS, separators=(",", ":")),
    }
    with Stack(parameters, start=START, seed=8) as stack:
        oracle, chance = Oracle(stack), random.Random(1)
        for step in range(STEPS):
            join_some(oracle, chance, *([WHO] if step != 1 else []))
            assert oracle.finish_step() == 0
        join_some(oracle, chance, WHO)
        yield Snapshot(stack, oracle)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    file = tmp_path / "sets.txt"
    file.write_text("".join(f"{name.decode()}\n" for name in SETS))
    return file


def forget(oracle: Oracle, listed: Path, client: str = WHO) -> tuple[int, str]:
    return operate(oracle.stack, "forget", "--client", client, "--sets", str(listed), "--yes")


def tokens(stack: Stack, client: str) -> set[tuple[bytes, int]]:
    """The set key and token of a client in every set."""
    storage, types = stack.storage, seen(stack).evaluate.read_types()
    pepper = Secret.derived("set-pepper", storage.secrets["SetPepper"])
    client_key = Secret.derived("client-key", storage.secrets["ClientKey"])
    keys = [(set_key(pepper, name, set_id), types[name].parameters.client_bits) for name in types for set_id in SETS]
    return {(key, client_token(client_key, key, "client", client.encode(), bits)) for key, bits in keys}


def members_of(parts: Iterable[Part]) -> list[tuple[bytes, int]]:
    return [
        (key.ljust(32, b"\0"), token)
        for part in parts
        for key, token in zip(part.keys.repeat(part.sizes).tolist(), part.tokens.tolist(), strict=True)
    ]


def joined(stack: Stack) -> list[tuple[bytes, int]]:
    """Every join in the log."""
    return [(key, token) for item in rows(stack, "StepLog") for _, key, token in joins_of(item)]


def occurrences(stack: Stack) -> int:
    """How often the client's tokens are in any object of the bucket, and in the log. Control has none."""
    assert FORGETTING not in seen(stack).control.recorded("evaluate")
    parts = (decode(content) for name, content in objects(stack).items() if name.endswith(".part"))
    own = tokens(stack, WHO)
    return sum(place in own for place in [*members_of(parts), *joined(stack)])


def others(stack: Stack) -> list[tuple[bytes, int]]:
    """What the states in use and the log have of another client."""
    own = tokens(stack, "c3")
    return sorted(place for place in [*members_of(parts_of(stack)), *joined(stack)] if place in own)


def counts(stack: Stack) -> dict[Any, Any]:
    """What must not change: the clients that joined each set in each step, and the members of each by last steps."""
    log: dict[Any, set[int]] = {}
    for item in rows(stack, "StepLog"):
        for name, key, token in joins_of(item):
            place = item["step_slot"]["B"][:8], name, key, item["ttl"]["N"]
            log.setdefault(place, set()).add(token)
    of_sets = {
        key: (number, _ages(state), state.crossings, state.wake_up) for key, (number, state) in states(stack).items()
    }
    return {**{place: len(different) for place, different in log.items()}, **of_sets}


def _ages(state: SetState) -> tuple[int, list[int]]:
    """The number of different members, and their last joins."""
    return len({member.token for member in state.members}), sorted(member.last for member in state.members)


def later_answers(oracle: Oracle) -> list[dict[tuple[str, bytes], bool]]:
    chance, found = random.Random(2), []
    for _ in range(LATER):
        oracle.finish_step()
        found.append(oracle.answered)
        join_some(oracle, chance)
    return found


def test_the_client_is_gone_and_every_later_answer_is_the_same(used: Snapshot[Oracle], listed: Path) -> None:
    oracle = used.restore()
    expected = later_answers(oracle)
    assert any(any(each.values()) for each in expected)
    assert any(not all(each.values()) for each in expected)
    oracle = used.restore()
    stack = oracle.stack
    before, statuses, of_others = counts(stack), rows(stack, "Statuses"), others(stack)
    assert occurrences(stack) > 3 * TOKENS
    assert any("joins" in item for item in rows(stack, "StepLog"))
    assert forget(oracle, listed) == (0, forgot(listed, TOKENS))
    assert occurrences(stack) == 0
    assert (counts(stack), rows(stack, "Statuses"), others(stack)) == (before, statuses, of_others)
    assert wrong(stack) == {}
    assert forget(oracle, listed) == (0, forgot(listed, 0))
    assert later_answers(oracle) == expected
    code, output = operate(stack, "replay", "--yes")  # from the states of that time: log and states agree
    assert (code, "Every released crossing is the same." in output) == (0, True), output


def forgot(listed: Path, found: int) -> str:
    told = f"Sets: {len(listed.read_text().splitlines())}. In each the client's token becomes a random one, which"
    rest = (
        " stays until its joins would have left the window. A token is short: another client may have the same one in a"
        " set, and is forgotten there too. Recovery can no longer start from earlier states. Backups keep the token."
        f" This cannot be undone.\nTokens that were found and replaced: {found}.\n"
    )
    return told + rest


def test_no_other_member_has_the_new_token(
    used: Snapshot[Oracle], listed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = used.restore()
    stack, real = oracle.stack, Replacements.add
    before, everything = counts(stack), [*members_of(parts_of(stack)), *joined(stack)]

    def unlucky(self: Replacements, token: Token, *given: Any) -> None:
        """Draws every token of the set before another one."""
        draws = chain([each for key, each in everything if key == token.key], map(randbits, repeat(16)))
        with monkeypatch.context() as patch:
            patch.setattr("kanon.gate.forgetting.secrets", SimpleNamespace(randbits=lambda _: next(draws)))
            real(self, token, *given)

    monkeypatch.setattr(Replacements, "add", unlucky)
    assert forget(oracle, listed)[0] == 0
    first, after = SLOTS[1]["from_step"], counts(stack)  # nobody evaluates the steps of the layout before any more
    evaluated = {place for place in after if isinstance(place, tuple) and int.from_bytes(place[0], "big") < first}
    assert len(evaluated) > len(SETS)
    assert {each: after[each] for each in after.keys() - evaluated} == {
        each: before[each] for each in before.keys() - evaluated
    }


def test_only_the_sets_that_are_named_are_changed(used: Snapshot[Oracle], listed: Path) -> None:
    oracle = used.restore()
    listed.write_text(f"{SETS[0].decode()}\nno such set\n")
    before = occurrences(oracle.stack)
    assert forget(oracle, listed)[1].endswith("replaced: 1.\n")
    assert 0 < occurrences(oracle.stack) < before


@pytest.mark.parametrize("has_begun", ["to decide", "to read"])
def test_a_client_is_not_forgotten_while_a_slot_is_evaluated(
    used: Snapshot[Oracle], listed: Path, has_begun: str
) -> None:
    oracle = used.restore()
    stack, place = oracle.stack, max(seen(oracle.stack).control.rows())[0]
    before = [rows(stack, table) for table in ("StepLog", "Statuses")], objects(stack)
    control, now = seen(stack).control, stack.clock.now()
    row = control.lease(place, "worker", now, now + 150)
    assert row is not None
    code, output = forget(oracle, listed)
    assert (code, f"a worker or a command holds slot {place.slot}: wait until its lease expires" in output) == (2, True)
    step = (row.evaluated_through or 0) + 1
    if has_begun == "to decide":
        control.record_decided(place, row.run, step, Progress(row.manifest or "", "draft", 0))
    else:
        control.record_gathered(place, row.run, f"0/0/{step}-{row.run}-0-digest.read")
    control.release(place, row.run)
    code, output = forget(oracle, listed)
    assert (code, f"slot {place.slot}: step {step} is begun and not complete" in output) == (2, True)
    assert ([rows(stack, table) for table in ("StepLog", "Statuses")], objects(stack)) == before
    assert FORGETTING not in control.recorded("evaluate")


def test_objects_that_stay_are_named_in_one_line_and_go_with_the_next_run(
    used: Snapshot[Oracle], listed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = used.restore()
    real = BaseClient._make_api_call  # type: ignore[attr-defined]  # as botocore's own stubber does

    def refused(client: Any, operation: str, given: Any) -> Any:
        errors = {"Errors": [{"Code": "SlowDown"}]}
        return errors if operation == "DeleteObjects" else real(client, operation, given)

    with monkeypatch.context() as patch:
        patch.setattr(BaseClient, "_make_api_call", refused)
        code, output = forget(oracle, listed)
    assert (code, "objects were not deleted; repeat it" in output) == (2, True), output
    assert forget(oracle, listed)[0] == 0
    assert occurrences(oracle.stack) == 0


@pytest.fixture(scope="module")
def after_a_pause(used: Snapshot[Oracle]) -> list[dict[tuple[str, bytes], bool]]:
    """The answers after three hours in which nothing was evaluated, and nobody was forgotten."""
    oracle = used.restore()
    oracle.stack.advance(3 * 3600)
    return after_three_hours(oracle)


@pytest.mark.parametrize("stopped", ["states", "joins"])
def test_nothing_is_evaluated_until_a_client_is_forgotten_everywhere(
    used: Snapshot[Oracle],
    listed: Path,
    monkeypatch: pytest.MonkeyPatch,
    after_a_pause: list[dict[tuple[str, bytes], bool]],
    stopped: str,
) -> None:
    oracle = used.restore()
    stack, name = oracle.stack, {"states": "_put_states", "joins": "_by_slot"}[stopped]
    real = getattr(forgetting, name)
    calls = iter(range(100))

    def stops(*given: Any) -> Any:
        if next(calls) > 3:
            raise ProcessDied
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(forgetting, name, stops)
        with pytest.raises(ProcessDied):
            forget(oracle, listed)
    assert FORGETTING in seen(stack).control.recorded("evaluate")
    marks = seen(stack).marks
    stack.advance(3 * 3600)
    assert seen(stack).marks == marks
    (finding,) = findings(stack)["forgetting"]
    assert (finding.verdict, finding.section) == (Verdict.FAIL, "evaluationstopped")
    assert finding.seen.startswith("a client is not forgotten everywhere yet")
    assert forget(oracle, listed)[0] == 0
    assert occurrences(stack) == 0
    assert "forgetting" not in findings(stack)
    assert after_three_hours(oracle) == after_a_pause


def after_three_hours(oracle: Oracle) -> list[dict[tuple[str, bytes], bool]]:
    """The answers after a pause."""
    for _ in range(3):
        oracle.pass_step()
    return later_answers(oracle)
