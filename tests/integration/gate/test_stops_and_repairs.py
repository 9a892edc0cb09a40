"""Errors that stop the service until an operator acts: the functions that stop, and the repair by the runbook."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kanon.client import encoded
from kanon.gate.names import set_key
from kanon.keys import fetch_secret
from kanon.local import Stack
from kanon.operate.changes import REPAIR, newest_change
from tests.conftest import START
from tests.e2e.gate.oracle import Oracle
from tests.integration.gate.doctor_view import operate, seen, wrong
from tests.snapshot import Snapshot

LAWS = {
    "threshold": {"shape": "two-sided", "epsilon": "0.7", "truncation": 3},
    "query": {"shape": "two-sided", "epsilon": "0.7", "truncation": 4},
}
TYPES = {"a": {"k": 8, "window": 12, "laws": LAWS}, "b": {"k": 9, "window": 12, "laws": LAWS}}
DOCUMENT = json.dumps(TYPES)
SETS = [b"set %d" % n for n in range(20)]


@pytest.fixture(scope="module")
def used_stack() -> Iterator[Snapshot[Oracle]]:
    """A stack after two steps in which each set of each type was joined."""
    with Stack({"Types": DOCUMENT, "OutageAllowance": "604800"}, start=START, seed=2) as stack:
        oracle = Oracle(stack)
        for step in range(2):
            joins = [(t, name, f"c{c}") for t in TYPES for n, name in enumerate(SETS) for c in range(step, 2 + n)]
            oracle.join_all(joins)
            assert oracle.finish_step() == 0
        yield Snapshot(stack, oracle)


@pytest.fixture
def oracle(used_stack: Snapshot[Oracle]) -> Oracle:
    """The right answers of the used stack, which is restored."""
    return used_stack.restore()


@pytest.fixture
def stack(oracle: Oracle) -> Stack:
    """The used stack."""
    return oracle.stack


def deploy(stack: Stack, **variables: str) -> None:
    """Give every function other variables, as a deployment does."""
    for name, function in stack.functions.items():
        function.environment.update(variables)  # type: ignore[attr-defined]
        stack.restart(name)


def set_secret(stack: Stack, secret: str, value: str) -> None:
    """Another value of a secret, which the next cold starts read."""
    stack.session.client("secretsmanager").put_secret_value(SecretId=arn(stack, secret), SecretString=value)
    for name in stack.functions:
        stack.restart(name)


def arn(stack: Stack, secret: str) -> str:
    return str(stack.template.resolve({"Ref": secret}))


def join(stack: Stack, type_name: str = "a") -> int:
    return stack.request("POST", f"/v1/types/{type_name}/sets/bmV3:join", {"client": "x"}).status


def query(stack: Stack) -> int:
    return stack.request("GET", "/v1/types/a/sets/bmV3").status


def evaluates(stack: Stack) -> bool:
    """Whether the schedule's next evaluation makes progress."""
    before = mark(stack)
    stack.advance(3600)
    return mark(stack) > before


def mark(stack: Stack) -> int:
    (progress,) = seen(stack).control.progress()
    assert progress.evaluated_through is not None
    return progress.evaluated_through


def stopped(stack: Stack) -> list[dict[str, Any]]:
    """What evaluate logged when it stopped."""
    lines = stack.logs.getvalue().splitlines()  # type: ignore[attr-defined]
    return [json.loads(line) for line in lines if '"evaluation stopped"' in line]


def catches_up(oracle: Oracle) -> int:
    """Let the next tick come, after a time without evaluation and joins; how many answers differ."""
    last = int(oracle.stack.clock.now() // oracle.period)
    oracle.stack.advance_to((last + 1) * oracle.period + oracle.publish_delay)
    while oracle.now_step <= last:
        expected = oracle.pass_step()
    answered = oracle.answers(last)
    return sum(answered[place] != expected[place] for place in expected)


# Fingerprints


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KANON_TYPES", DOCUMENT.replace('"k": 8', '"k": 10')),
        ("KANON_SLOTS", "2"),
        ("KANON_PERIOD", "1800"),
        ("KANON_DEPLOYMENT", "another"),
    ],
)
def test_a_changed_type_slot_count_period_or_deployment_stops_all_functions_until_it_is_reverted(
    stack: Stack, oracle: Oracle, variable: str, value: str
) -> None:
    before = stack.functions["join"].environment[variable]
    deploy(stack, **{variable: value})
    assert (join(stack), query(stack), evaluates(stack)) == (503, 503, False)
    assert {line["kind"] for line in stopped(stack)} == {"FingerprintMismatchError"}
    deploy(stack, **{variable: before})
    assert catches_up(oracle) == 0
    assert (join(stack), query(stack)) == (200, 200)
    assert set(wrong(stack)) <= {"dead letters"}


@pytest.mark.parametrize("seconds", ["172800", "2592000"])
def test_a_changed_outage_allowance_stops_join_and_evaluate_until_it_is_reverted(
    stack: Stack, oracle: Oracle, seconds: str
) -> None:
    before = stack.functions["join"].environment["KANON_OUTAGE_ALLOWANCE"]
    deploy(stack, KANON_OUTAGE_ALLOWANCE=seconds)
    assert (join(stack), query(stack), evaluates(stack)) == (503, 200, False)
    deploy(stack, KANON_OUTAGE_ALLOWANCE=before)
    assert catches_up(oracle) == 0
    assert (join(stack), query(stack)) == (200, 200)


@pytest.mark.parametrize(
    ("secret", "joins", "queries", "evaluated"),
    [("SetPepper", 503, 503, True), ("ClientKey", 503, 200, True), ("NoiseKey", 200, 200, False)],
)
def test_a_changed_key_stops_the_functions_that_read_it_until_it_is_restored(
    stack: Stack, oracle: Oracle, secret: str, joins: int, queries: int, evaluated: bool
) -> None:
    before = stack.storage.secrets[secret]
    set_secret(stack, secret, json.dumps({"1": "x" * 64}) if secret == "NoiseKey" else "x" * 64)
    assert (join(stack), query(stack), evaluates(stack)) == (joins, queries, evaluated)
    logged = stack.logs.getvalue()  # type: ignore[attr-defined]
    assert before not in logged
    assert "x" * 64 not in logged
    set_secret(stack, secret, before)
    assert catches_up(oracle) == 0
    assert (join(stack), query(stack)) == (200, 200)
    stack.advance(2 * 3600)
    assert set(wrong(stack)) <= {"dead letters"}


# Members that cannot be decoded


def damage(stack: Stack, name: bytes, change: Callable[[bytes], bytes]) -> tuple[bytes, dict[str, Any]]:
    """Change the packed members of a set of type ``a``; its key and the item as it was."""
    pepper = fetch_secret(stack.session.client("secretsmanager"), "set-pepper", arn(stack, "SetPepper"))
    key, client = set_key(pepper, "a", name), stack.session.client("dynamodb")
    place = {"TableName": stack.storage.tables["Members"], "Key": {"set_key": {"B": key}}}
    item: dict[str, Any] = client.get_item(**place)["Item"]
    client.put_item(
        TableName=stack.storage.tables["Members"],
        Item={**item, "members": {"B": change(bytes(item["members"]["B"]))}},
    )
    return key, item


@pytest.mark.parametrize(
    "change",
    [lambda b: b"\x02" + b[1:], lambda b: b[:-1], lambda _: b"", lambda b: b[:4]],
    ids=["newer format", "cut inside a member", "empty", "cut inside the head"],
)
def test_unreadable_members_stop_their_slot_and_no_log_line_names_a_set(
    stack: Stack, oracle: Oracle, change: Callable[[bytes], bytes]
) -> None:
    key, item = damage(stack, SETS[7], change)
    oracle.join_all([("a", SETS[7], "new")])
    assert not evaluates(stack)
    assert (join(stack), query(stack)) == (200, 200)
    assert {line["kind"] for line in stopped(stack)} == {"UndecodableMembersError"}
    text = stack.logs.getvalue()  # type: ignore[attr-defined]
    shown = json.dumps(repr(key))[1:-1]  # as a line of JSON holds it
    assert not [name for name in (key.hex(), shown, urlsafe_b64encode(SETS[7]).decode()) if name in text]
    # The newer version that wrote the item reads it: nothing was lost.
    stack.session.client("dynamodb").put_item(TableName=stack.storage.tables["Members"], Item=item)
    assert catches_up(oracle) == 0


def test_repairing_damaged_members_resets_their_count_and_resumes_their_slot(stack: Stack, oracle: Oracle) -> None:
    crossed = oracle.answers()
    true, false = (next(n for n in SETS if crossed["a", n] is value) for value in (True, False))
    for name in (true, false):
        damage(stack, name, lambda packed: packed[:-1])
    oracle.join_all([("a", name, "one more") for name in (true, false)])
    assert not evaluates(stack)
    assert operate(stack, "repair", answer="n\n")[0] == 1
    assert not evaluates(stack)
    code, output = operate(stack, "repair", "--yes")
    assert (code, "2 Members items cannot be decoded" in output) == (0, True), output
    assert "newer version" not in output

    rest = Oracle(stack)  # for the two sets no earlier join counts
    rest.now_step = oracle.now_step
    rest.hear([("a", name, "one more") for name in (true, false)])
    last = int(stack.clock.now() // 3600)
    stack.advance_to((last + 1) * 3600 + 1800)
    was_true = True
    for step in range(oracle.now_step, last + 16):
        expected, anew = oracle.pass_step(), rest.pass_step()
        if step < last:
            continue
        if step > last:
            stack.advance(3600)
        answered = oracle.answers(step)
        for name in (true, false):
            assert not answered["a", name] or expected["a", name]  # too low, never too high
        was_true &= answered["a", true]  # until its instance ends, and then no more
        assert answered["a", true] is was_true
        assert answered["a", false] is anew["a", false] is False
        others = [place for place in expected if place not in (("a", true), ("a", false))]
        assert [answered[place] for place in others] == [expected[place] for place in others]
    assert not was_true


def test_a_repaired_set_is_as_new_as_its_slot_of_any_layout_and_outlives_an_instance(stack: Stack) -> None:
    through = mark(stack)
    (entry,) = json.loads(stack.functions["evaluate"].environment["KANON_SLOTS"])
    deploy(stack, KANON_SLOTS=json.dumps([entry, {**entry, "slots": 2, "from_step": through + 1}]))
    seen(stack).control.advance(1, None, through + 5)
    keys = [damage(stack, name, lambda packed: packed[:-1])[0] for name in SETS]
    assert operate(stack, "repair", "--yes")[0] == 0
    assert newest_change(seen(stack).control) == (through + 6, REPAIR), "the step that a worker may have begun"
    items = {item["set_key"]["B"]: item for item in seen(stack).members.items()}
    newest = {0: through, 1: through + 5}
    slots = {key: seen(stack).evaluate.layouts.entries[1].slot_of(key) for key in keys}
    assert set(slots.values()) == set(newest)
    for key, slot in slots.items():
        assert int(items[key]["evaluated"]["N"]) == newest[slot]
        assert int(items[key]["ttl"]["N"]) == seen(stack).schedule.expiry(newest[slot] + 1 + TYPES["a"]["window"])


def test_a_suppressed_set_that_is_repaired_does_not_cross_a_second_time(stack: Stack, oracle: Oracle) -> None:
    crossed = oracle.answers()
    name = next(n for n in SETS if crossed["a", n])
    key, item = damage(stack, name, lambda packed: packed[:-1])
    assert operate(stack, "suppress", f"a/{encoded(name)}", "--yes")[0] == 0
    assert operate(stack, "repair", "--yes")[0] == 0
    (state,) = seen(stack).members.read([key]).states()
    assert state.crossings == tuple(int(step["N"]) for step in item["crossings"]["L"])


def test_a_repair_warns_about_members_that_a_newer_version_wrote(stack: Stack, oracle: Oracle) -> None:
    assert oracle.types
    damage(stack, SETS[0], lambda packed: b"\x02" + packed[1:])
    _, output = operate(stack, "repair", answer="n\n")
    assert "1 of them have the format of a newer version" in output
    assert operate(stack, "repair", "--yes")[0] == 0
    assert "Every Members item can be decoded" in operate(stack, "repair")[1]


# Sets that are suppressed


def test_a_suppressed_set_reads_false_through_every_instance_until_it_is_unsuppressed(
    stack: Stack, oracle: Oracle
) -> None:
    name = SETS[0]
    place = f"a/{encoded(name)}"
    crowd = [("a", name, f"crowd {n}") for n in range(12)]  # surely true
    assert operate(stack, "suppress", place, answer="n\n")[0] == 1
    assert operate(stack, "suppress", place, "--yes")[0] == 0
    for _ in range(30):
        oracle.join_all(crowd)
        step = oracle.now_step
        stack.advance_to((step + 1) * 3600 + 1800)
        answered, expected = oracle.answers(step), oracle.pass_step()
        assert answered == {**expected, ("a", name): False}
    assert expected["a", name]
    assert operate(stack, "unsuppress", place, "--yes")[0] == 0
    assert oracle.finish_step() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["suppress", "c/YQ"], "a type that is configured"),
        (["suppress", "a"], "must be base64url"),
        (["suppress", "a/Y Q"], "must be base64url"),
        (["unsuppress", "a/YQ"], "this set is not suppressed"),
    ],
)
def test_suppressing_a_set_that_does_not_exist_is_refused(stack: Stack, arguments: list[str], said: str) -> None:
    code, output = operate(stack, *arguments, "--yes")
    assert (code, said in output) == (2, True), output


# Types that are taken out


def test_a_missing_type_stops_evaluation_and_nothing_is_lost_when_it_is_restored(stack: Stack, oracle: Oracle) -> None:
    oracle.join_all([("b", SETS[2], f"late {n}") for n in range(6)])
    deploy(stack, KANON_TYPES=json.dumps({"a": TYPES["a"]}))
    for _ in range(3):
        assert not evaluates(stack)
    assert "type 'b' is no longer configured: put it back, or retire it permanently" in stopped(stack)[-1]["reason"]
    assert (join(stack, "a"), join(stack, "b")) == (200, 404)
    asked = {"setsForType": [{"type": "b", "hashes": ["bmV3"]}]}
    assert stack.request("POST", "/v1:query", asked).status == 404
    assert stack.request("GET", "/v1/types/b/sets/bmV3").status == 404
    assert "type-is-missing" in wrong(stack)["types"][1]
    deploy(stack, KANON_TYPES=DOCUMENT)
    assert catches_up(oracle) == 0
    for _ in range(14):
        assert oracle.finish_step() == 0


C = {**TYPES, "c": TYPES["a"]}
NAMED_C = "the log has joins of type 'c', which is not configured"


@pytest.fixture
def taken_back(stack: Stack) -> Stack:
    """A deployment added the type c and accepted joins, and was rolled back before ``evaluate`` started."""
    deploy(stack, KANON_TYPES=json.dumps(C))
    joins = [stack.request("POST", "/v1/types/c/sets/bmV3:join", {"client": f"client {n}"}) for n in range(18)]
    assert {answer.status for answer in joins} == {200}
    deploy(stack, KANON_TYPES=DOCUMENT)
    assert join(stack, "c") == 404
    assert not evaluates(stack)
    assert NAMED_C in stopped(stack)[-1]["reason"]
    assert "type-is-missing" in wrong(stack)["types"][1]
    return stack


def test_the_joins_of_a_type_that_a_deployment_took_back_count_when_the_type_is_deployed_again(
    oracle: Oracle, taken_back: Stack
) -> None:
    deploy(taken_back, KANON_TYPES=json.dumps(C))
    assert catches_up(oracle) == 0
    answer = taken_back.request("GET", "/v1/types/c/sets/bmV3")
    assert (answer.status, answer.json()["kAnonymous"]) == (200, True)
    assert "types" not in wrong(taken_back)


def test_the_joins_of_a_type_that_a_deployment_took_back_are_skipped_once_it_is_retired(
    oracle: Oracle, taken_back: Stack
) -> None:
    assert operate(taken_back, "retire", "c", "--yes")[0] == 0
    assert catches_up(oracle) == 0
    assert "types" not in wrong(taken_back)
    deploy(taken_back, KANON_TYPES=json.dumps(C))
    assert not evaluates(taken_back)
    assert stopped(taken_back)[-1]["reason"] == "type 'c' was retired permanently: give the new type another name"


def test_a_retired_type_is_skipped_with_a_warning_and_cannot_be_added_again(stack: Stack, oracle: Oracle) -> None:
    oracle.join_all([("b", SETS[2], f"late {n}") for n in range(6)])
    deploy(stack, KANON_TYPES=json.dumps({"a": TYPES["a"]}))
    assert not evaluates(stack)
    assert operate(stack, "retire", "b", answer="n\n")[0] == 1
    assert not evaluates(stack)
    code, output = operate(stack, "retire", "b", "--yes")
    assert (code, "Type b is retired" in output) == (0, True), output
    assert evaluates(stack)
    assert "rows of types no longer configured were skipped" in stack.logs.getvalue()  # type: ignore[attr-defined]
    assert '"SlotsWithRowsSkipped":[1.0]' in stack.logs.getvalue()  # type: ignore[attr-defined]
    assert "types" not in wrong(stack)
    code, output = operate(stack, "retire", "b", "--yes")
    assert (code, "already retired" in output) == (2, True)

    deploy(stack, KANON_TYPES=DOCUMENT)
    assert not evaluates(stack)
    assert stopped(stack)[-1]["reason"] == "type 'b' was retired permanently: give the new type another name"
    renamed = {"a": TYPES["a"], "b2": TYPES["b"]}
    deploy(stack, KANON_TYPES=json.dumps(renamed))
    assert evaluates(stack)
