"""Errors that stop the service until an operator acts: the functions that stop, and the repair by the runbook."""

import json
from collections.abc import Callable, Iterator

import pytest

from kanon.client import encoded
from kanon.gate.merging import UNKNOWN
from kanon.gate.storage.aws.control import Place
from kanon.local import Stack
from kanon.operate.repair import damaged
from tests.conftest import START
from tests.e2e.gate.backups import objects, put_object, states
from tests.e2e.gate.operating import deploy, key_of, mark, stopped
from tests.e2e.gate.oracle import Oracle, laws
from tests.integration.gate.doctor_view import operate, seen, wrong
from tests.snapshot import Snapshot

LAWS = laws("two-sided", "0.7", 3, 4)
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
    ("variable", "value", "queries"),
    [
        ("KANON_TYPES", DOCUMENT.replace('"k": 8', '"k": 10'), 503),
        ("KANON_SLOTS", "2", 503),
        ("KANON_PERIOD", "1800", 503),
        ("KANON_DEPLOYMENT", "another", 503),
        ("KANON_OUTAGE_ALLOWANCE", "172800", 200),
        ("KANON_OUTAGE_ALLOWANCE", "2592000", 200),
    ],
)
def test_a_changed_parameter_stops_the_functions_that_depend_on_it_until_it_is_reverted(
    stack: Stack, oracle: Oracle, variable: str, value: str, queries: int
) -> None:
    before = stack.functions["join"].environment[variable]
    deploy(stack, **{variable: value})
    assert (join(stack), query(stack), evaluates(stack)) == (503, queries, False)
    assert {line["kind"] for line in stopped(stack)} == {"FingerprintMismatchError"}
    refused = stack.logs.getvalue().count("fingerprint mismatch")  # type: ignore[attr-defined]
    assert refused == 1 + (queries == 503)
    deploy(stack, **{variable: before})
    assert catches_up(oracle) == 0
    assert (join(stack), query(stack)) == (200, 200)
    assert set(wrong(stack)) <= {"dead letters"}


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
    assert {line["kind"] for line in stopped(stack)} == (set() if evaluated else {"FingerprintMismatchError"})
    logged = stack.logs.getvalue()  # type: ignore[attr-defined]
    assert logged.count("fingerprint mismatch") == (joins == 503) + (queries == 503)
    assert before not in logged
    assert "x" * 64 not in logged
    set_secret(stack, secret, before)
    assert catches_up(oracle) == 0
    assert (join(stack), query(stack)) == (200, 200)
    stack.advance(2 * 3600)
    assert set(wrong(stack)) <= {"dead letters"}


# States that cannot be read


def damage(stack: Stack, change: Callable[[bytes], bytes | None], *, the_list: bool = False) -> tuple[str, bytes]:
    """Change the object with the states, or the list of them; its name, and its content as it was."""
    manifest = seen(stack).control.row(Place(0, 0)).manifest or ""
    (piece,) = seen(stack).parts(Place(0, 0)).list_of(manifest).pieces
    name = manifest if the_list else piece.name
    content = objects(stack)[name]
    put_object(stack, name, change(content))
    return name, content


@pytest.mark.parametrize("the_list", [True, False], ids=["list", "part"])
@pytest.mark.parametrize(
    "change", [lambda _: None, lambda b: b[:-1], lambda _: b"", lambda b: b[:40] + b"?" + b[41:]],
    ids=["missing", "cut", "empty", "changed"],
)  # fmt: skip
def test_unreadable_states_stop_their_slot_and_no_log_line_names_a_set(
    stack: Stack, oracle: Oracle, change: Callable[[bytes], bytes | None], the_list: bool
) -> None:
    name, content = damage(stack, change, the_list=the_list)
    oracle.join_all([("a", SETS[7], "new")])
    assert not evaluates(stack)
    assert (join(stack), query(stack)) == (200, 200)
    assert {line["kind"] for line in stopped(stack)} == {"UndecodableMembersError"}
    text = stack.logs.getvalue()  # type: ignore[attr-defined]
    key = key_of(stack, "a", SETS[7])
    shown = json.dumps(repr(key))[1:-1]  # as a line of JSON holds it
    assert not [each for each in (key.hex(), shown, encoded(SETS[7])) if each in text]
    put_object(stack, name, content)  # nothing was lost
    assert catches_up(oracle) == 0


@pytest.mark.parametrize("the_list", [True, False], ids=["list", "part"])
def test_a_repair_resets_counts_keeps_statuses_and_resumes_the_slot(
    stack: Stack, oracle: Oracle, the_list: bool
) -> None:
    crossed = oracle.answers()
    assert {*crossed.values()} == {True, False}
    through = mark(stack)
    damage(stack, lambda _: None, the_list=the_list)
    joins = [(t, name, "one more") for t in TYPES for name in SETS]
    oracle.join_all(joins)
    assert not evaluates(stack)
    code, output = operate(stack, "repair", answer="n\n")
    assert (code, "First try `kanon operate replay`: it loses nothing. If a newer version" in output) == (1, True), (
        output
    )
    assert not evaluates(stack)
    code, output = operate(stack, "repair", "--yes")
    assert (code, "slot 0: " + ("the list of its parts" if the_list else "1 of 1 parts") in output) == (0, True), output
    assert damaged(seen(stack)) == {}
    assert len(seen(stack).control.row(Place(0, 0)).kept) == 1
    assert mark(stack) == through
    kept = states(stack)
    assert len(kept) == sum(crossed.values())
    assert {number for number, _ in kept.values()} == {UNKNOWN}

    rest = Oracle(stack)  # no earlier join counts
    rest.now_step = oracle.now_step
    rest.hear(joins)
    last, lasting = int(stack.clock.now() // 3600), {place for place, above in crossed.items() if above}
    stack.advance_to((last + 1) * 3600 + 1800)
    for step in range(oracle.now_step, last + 16):
        expected, _ = oracle.pass_step(), rest.pass_step()
        if step < last:
            continue
        if step > last:
            stack.advance(3600)
        true = {place for place, above in oracle.answers(step).items() if above}
        assert true <= {place for place, above in expected.items() if above}  # too low, never too high
        assert true <= lasting  # until its instance ends, and then no more
        lasting = true
    assert not lasting
    assert "states" not in wrong(stack)


def test_a_repair_without_damage_changes_nothing(stack: Stack) -> None:
    before = objects(stack)
    assert "Every object of states can be read: nothing was changed." in operate(stack, "repair")[1]
    assert objects(stack) == before


def test_a_suppressed_set_that_is_repaired_does_not_cross_a_second_time(stack: Stack, oracle: Oracle) -> None:
    name = next(n for n in SETS if oracle.answers()["a", n])
    key = key_of(stack, "a", name)
    before = states(stack)[key][1].crossings
    assert before
    damage(stack, lambda _: None)
    assert operate(stack, "suppress", f"a/{encoded(name)}", "--yes")[0] == 0
    assert operate(stack, "repair", "--yes")[0] == 0
    assert states(stack)[key][1].crossings == before
    oracle.join_all([("a", name, f"crowd {n}") for n in range(12)])
    assert evaluates(stack)
    number, state = states(stack)[key]
    assert (number != UNKNOWN, len(state.members) > 7, state.crossings) == (True, True, before)


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


def test_a_set_that_is_one_too_many_is_not_kept_as_suppressed(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kanon.gate.storage.aws.statuses.MOST_SUPPRESSED", 1)
    first, second = (f"a/{encoded(name)}" for name in SETS[:2])
    assert operate(stack, "suppress", first, "--yes")[0] == 0
    kept = objects(stack)
    assert sum(key.startswith("suppressed/") for key in kept) == 1
    code, output = operate(stack, "suppress", second, "--yes")
    assert (code, "unsuppress one" in output) == (2, True), output
    assert objects(stack) == kept


def test_a_set_of_a_retired_type_makes_room_for_another_one(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kanon.gate.storage.aws.statuses.MOST_SUPPRESSED", 1)
    old, new = f"b/{encoded(SETS[0])}", f"a/{encoded(SETS[0])}"
    assert operate(stack, "suppress", old, "--yes")[0] == 0
    deploy(stack, KANON_TYPES=json.dumps({"a": TYPES["a"]}))
    assert operate(stack, "retire", "b", "--yes")[0] == 0
    code, output = operate(stack, "suppress", new, "--yes")
    assert (code, "unsuppress one (retired types count)" in output) == (2, True), output
    assert operate(stack, "unsuppress", old, "--yes")[0] == 0
    assert operate(stack, "suppress", new, "--yes")[0] == 0


def test_a_missing_object_is_no_matter_of_permissions(stack: Stack) -> None:
    damage(stack, lambda _: None)
    code, output = operate(stack, "new-generation", "--yes")
    last = "an object of the bucket of states is missing: `kanon operate replay` computes the states again\n"
    assert (code, output.endswith(last)) == (2, True), output
    assert operate(stack, "replay", "--yes")[0] == 0  # no generation is begun that would keep it from this


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
