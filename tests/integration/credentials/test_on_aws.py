"""Credentials on AWS: `issuer` makes them, `join` checks them, relays bring joins. People use the client over HTTP."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from botocore.client import BaseClient
from botocore.credentials import Credentials

from kanon.client import Client, KeysDifferError, RefusedError
from kanon.client.anonymous import Anonymous, EnrolmentError, recovery_code
from kanon.client.signing import SigV4
from kanon.clock import AFTER, DAY, LATE, end_of_week, week_of
from kanon.credentials import arc
from kanon.findings import Verdict
from kanon.local import Stack
from kanon.operate.issuer import examine_issuer, issuer_key, new_accounts
from kanon.operate.stacks import described_stack
from tests.e2e.gate.backups import states
from tests.integration.credentials.people import PATH, TYPE, TYPES, asked, text
from tests.integration.credentials.test_accounts import create
from tests.integration.gateway.relayed import inner
from tests.integration.gateway.test_on_aws import relay, sent
from tests.monitor.monitor import Monitor
from tests.moto_engine import ENGINES
from tests.table_ids import give_ids

HOUR = 3600
ON = {"Types": json.dumps(TYPES), "Gateway": "ON"}
ENROL = "/v1/credentials"
ISSUER = "KANON_ISSUER_KEY_SECRET"


@pytest.fixture
def stack(new_stack: Callable[..., Stack]) -> Stack:
    return new_stack(ON)


def account(name: str) -> SigV4:
    """Signs as an IAM user of this name."""
    return SigV4(Credentials(name, "secret"), "us-east-1")


def device(stack: Stack, file: Path) -> Anonymous:
    return Anonymous(file, now=stack.clock.now)


@contextmanager
def client_of(stack: Stack, address: str, one: Anonymous, through: str | None) -> Iterator[Client]:
    with Client(address, anonymous=one, relay=through, sleep=lambda _: None, deadline=0) as made:
        made._calls.now, made._calls.random = stack.clock.now, lambda: 0.0
        if through is not None:
            made._connection._relaying.now = stack.clock.now  # type: ignore[union-attr]
        yield made


def logged(stack: Stack) -> str:
    logs: Any = stack.logs
    return str(logs.getvalue())


def rows(stack: Stack) -> list[dict[str, Any]]:
    """The joins in the log."""
    table = stack.storage.tables["StepLog"]
    found: list[dict[str, Any]] = stack.session.client("dynamodb").scan(TableName=table)["Items"]
    return found


def table(stack: Stack, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stack.session.client("dynamodb").scan(TableName=stack.storage.tables[name])["Items"]
    return found


def deployment(stack: Stack) -> str:
    return str(stack.request("GET", f"{ENROL}/keys").json()["deployment"])


def signed(name: str) -> dict[str, str]:
    return {"authorization": f"AWS4-HMAC-SHA256 Credential={name}/20231114/us-east-1/execute-api/aws4_request, ..."}


def enrol(stack: Stack, name: str, secrets: arc.Secrets) -> int:
    body = asked(deployment(stack), week_of(stack.clock.now()), secrets)
    return stack.request("POST", ENROL, body, signed(name)).status


@pytest.mark.parametrize("engine", ["moto", "ministack"])
def test_an_account_is_one_person_on_three_devices(
    new_stack: Callable[..., Stack], engine: str, tmp_path: Path
) -> None:
    stack, code = new_stack(ON, engine=ENGINES[engine]), recovery_code()
    server = stack.serve()
    with relay(stack, server.url) as through:
        for number in range(3):
            one = device(stack, tmp_path / f"device {number}")
            one.enrol(server.url, auth=account("me"), relay=through, recovery=code, direct=True)
            with client_of(stack, server.url, one, through) as client:
                client.join(TYPE, "a value")
        assert len(rows(stack)) == 1
        for number in range(3):
            other = device(stack, tmp_path / f"account {number}")
            other.enrol(server.url, auth=account(f"account-{number}"), relay=through, direct=True)
            with client_of(stack, server.url, other, through) as client:
                client.join(TYPE, "a value")
                client.join(TYPE, "a value")
    server.close()
    assert len(rows(stack)) == 4
    assert not stack.failures


def test_joins_of_one_account_from_three_devices_are_one_member_of_their_set(
    stack: Stack, address: str, tmp_path: Path
) -> None:
    code, devices, evaluated = recovery_code(), [device(stack, tmp_path / str(number)) for number in range(3)], []
    with relay(stack, address) as through:
        for each in devices:
            each.enrol(address, auth=account("me"), relay=through, recovery=code, direct=True)
        for _ in range(3):
            for each in devices:
                with client_of(stack, address, each, through) as client:
                    for _ in range(4):
                        client.join(TYPE, "a value")
            stack.advance(HOUR)
            evaluated.append(members(stack))
    assert evaluated == [[1]] * 3
    other = device(stack, tmp_path / "other")
    other.enrol(address, auth=account("another"))
    with client_of(stack, address, other, None) as client:
        client.join(TYPE, "a value")
    stack.advance(HOUR)
    assert members(stack) == [2]


def members(stack: Stack) -> list[int]:
    """Of each set those in its newest state."""
    return [len(state.members) for _, state in states(stack).values()]


def test_only_if_asked_an_account_is_named_beside_the_relay(stack: Stack, address: str, tmp_path: Path) -> None:
    one = device(stack, tmp_path / "file")
    with relay(stack, address) as through, pytest.raises(RefusedError, match="404"):
        one.enrol(address, auth=account("me"), relay=through)
    assert table(stack, "Accounts") == []
    with relay(stack, address) as through:
        one.enrol(address, auth=account("me"), relay=through, direct=True)
        with pytest.raises(RefusedError, match="404"):
            one.delete(address, auth=account("me"), relay=through)
        assert [row["deleted"]["BOOL"] for row in table(stack, "Accounts")] == [False]
        one.delete(address, auth=account("me"), relay=through, direct=True)
    assert [row["deleted"]["BOOL"] for row in table(stack, "Accounts")] == [True]


def test_without_a_relay_whoever_joins_is_named_by_nothing_either(
    new_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    stack = new_stack({"Types": ON["Types"], "JoinAuth": "OPEN"})
    server = stack.serve()
    one = device(stack, tmp_path / "file")
    one.enrol(server.url, auth=account("me"))
    with client_of(stack, server.url, one, None) as client:
        client.join(TYPE, "a value")
    server.close()
    (row,) = rows(stack)
    assert {*row} == {"step_slot", "set_token", "type", "ttl"}


def test_a_recorded_join_is_refused_after_its_step(stack: Stack, address: str, tmp_path: Path) -> None:
    one = device(stack, tmp_path / "file")
    one.enrol(address, auth=account("me"))
    step = int(stack.clock.now() // HOUR)
    join = one.presentation(TYPE, b"hello", step, stack.clock.now())
    message = inner("POST", PATH, json.dumps(join).encode(), content_type="application/json", kanon_step=str(step))
    assert [sent(stack, message).status for _ in range(2)] == [200, 200]
    assert [stack.request("POST", PATH, join).status for _ in range(2)] == [200, 200]
    assert len(rows(stack)) == 1
    stack.clock.set(stack.clock.now() + 2 * HOUR)
    later = inner("POST", PATH, json.dumps(join).encode(), content_type="application/json", kanon_step=str(step + 2))
    for status, content in (
        ((s := sent(stack, later)).status, s.content),
        (
            (direct := stack.request("POST", PATH, join)).status,
            direct.body,
        ),
    ):
        assert (status, b"name the current step" in content) == (400, True)
    assert len(rows(stack)) == 1


def test_a_type_with_credentials_takes_no_batch_and_no_client(stack: Stack) -> None:
    batch = json.dumps({"joins": [{"type": TYPE, "set": "aGVsbG8=", "client": "me"}]}).encode()
    step = str(int(stack.clock.now() // HOUR))
    inside = sent(stack, inner("POST", "/v1:batchJoin", batch, content_type="application/json", kanon_step=step))
    outside = stack.request("POST", "/v1:batchJoin", batch, {"content-type": "application/json"})
    for content in (inside.content, outside.body):
        assert b"join one set a request" in content
    assert stack.request("POST", PATH, {"client": "me"}).status == 400
    assert rows(stack) == []


def test_a_person_keeps_its_tag_when_the_key_changes(stack: Stack, address: str, tmp_path: Path) -> None:
    stack.clock.set(end_of_week(week_of(stack.clock.now())) - 60)
    one, keys = device(stack, tmp_path / "file"), []
    for _ in range(2):
        one.enrol(address, auth=account("me"))
        keys.append(stack.request("GET", f"{ENROL}/keys").json()["key"])
        with client_of(stack, address, one, None) as client:
            client.join(TYPE, "a value")
        stack.clock.set(stack.clock.now() + 120)
    assert keys[0] != keys[1]
    assert len(rows(stack)) == 2  # of two steps
    assert len({row["set_token"]["B"] for row in rows(stack)}) == 1


def test_a_second_m1_is_refused_until_the_first_one_cannot_count(stack: Stack) -> None:
    window = (TYPES[TYPE]["window"] + 1) * HOUR  # type: ignore[operator]
    free = end_of_week(week_of(stack.clock.now())) + AFTER + window + LATE
    mine, other = arc.Secrets.random(), arc.Secrets.random()
    assert [enrol(stack, "me", each) for each in (mine, mine, other)] == [200, 200, 409]
    assert stack.request("DELETE", ENROL, headers=signed("me")).status == 200
    assert stack.request("GET", ENROL, headers=signed("me")).status == 404
    stack.clock.set(free - 1)
    assert [enrol(stack, "me", each) for each in (mine, other)] == [409, 409]
    assert len(table(stack, "Accounts")) == 1
    stack.clock.set(free)
    assert enrol(stack, "me", other) == 200


def test_the_schedule_forgets_accounts_that_are_free(stack: Stack) -> None:
    assert enrol(stack, "me", arc.Secrets.random()) == 200
    for _ in range(7):
        stack.invoke("issuer", {"schedule": True})
        assert len(table(stack, "Accounts")) == 1
        stack.clock.set(stack.clock.now() + DAY)
    stack.clock.set(stack.clock.now() + 3 * DAY)
    stack.invoke("issuer", {"schedule": True})
    assert table(stack, "Accounts") == []


def test_nobody_enrols_without_a_checked_account(stack: Stack) -> None:
    week = week_of(stack.clock.now())
    for method in ("POST", "GET", "DELETE"):
        body = asked(deployment(stack), week) if method == "POST" else None
        assert stack.request(method, ENROL, body).status == 401
        answer = sent(
            stack,
            inner(method, ENROL, json.dumps(body).encode(), content_type="application/json", authorization="Bearer x"),
        )
        assert answer.status == 404  # the gateway passes no identity on
    assert table(stack, "Accounts") == []


IAM = {"accessKey": "A", "accountId": "1", "callerId": "AROA:s", "userArn": "arn:x", "userId": "AROA:s"}
NAMED: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"iam": IAM}, {"iam": {**IAM, "userId": "AROA:another session"}}, True),
    ({"iam": IAM}, {"iam": {**IAM, "userId": "AROB:s"}}, False),
    (
        {"iam": {**IAM, "cognitoIdentity": {"identityId": "1"}}},
        {"iam": {**IAM, "cognitoIdentity": {"identityId": "2"}}},
        False,
    ),
    ({"jwt": {"claims": {"sub": "me"}}}, {"jwt": {"claims": {"sub": "me", "aud": "x"}}}, True),
    ({"jwt": {"claims": {"sub": "me"}}}, {"jwt": {"claims": {"sub": "you"}}}, False),
]


@pytest.mark.parametrize(("one", "other", "same"), NAMED)
def test_what_an_account_is(stack: Stack, one: dict[str, Any], other: dict[str, Any], same: bool) -> None:
    """A role is one account: those who may take it choose the names of its sessions."""
    assert [enrol_as(stack, caller) for caller in (one, other)] == [200, 409 if same else 200]
    assert len(table(stack, "Accounts")) == (1 if same else 2)


def enrol_as(stack: Stack, caller: dict[str, Any]) -> int:
    """The answer to a new m1 of an account as API Gateway names it."""
    event = {
        "version": "2.0", "rawPath": ENROL, "headers": {"content-type": "application/json"},
        "requestContext": {"stage": "$default", "http": {"method": "POST", "path": ENROL}, "authorizer": caller},
        "body": json.dumps(asked(deployment(stack), week_of(stack.clock.now()), arc.Secrets.random())),
    }  # fmt: skip
    status: int = stack.invoke("issuer", event)["statusCode"]
    return status


@pytest.mark.parametrize(
    "nobody",
    [
        {"iam": {**IAM, "cognitoIdentity": {"identityId": "guest", "amr": ["unauthenticated"]}}},
        {"jwt": {"claims": {"client_id": "a service"}}},
        {"jwt": {"claims": {"sub": ""}}},
    ],
)
def test_who_can_have_any_number_of_names_is_no_account(stack: Stack, nobody: dict[str, Any]) -> None:
    """Anybody gets guests of Cognito in any number."""
    assert enrol_as(stack, nobody) == 401
    assert table(stack, "Accounts") == []
    person = {"identityId": "1", "amr": ["authenticated", "pool"]}
    assert enrol_as(stack, {"iam": {**IAM, "cognitoIdentity": person}}) == 200


ISSUER_A, ISSUER_B = ({"jwt": {"claims": {"iss": f"https://{name}", "sub": name}}} for name in "ab")


@pytest.mark.parametrize(
    ("before", "after"), [(ISSUER_A, ISSUER_B), ({"iam": IAM}, ISSUER_A), (ISSUER_A, {"iam": IAM})]
)
def test_accounts_with_other_names_are_refused_until_an_operator_goes_on(
    stack: Stack, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """With another EnrolAuth or JwtIssuer everybody has a second account, beside joins of the first one."""
    assert enrol_as(stack, before) == 200
    for restarted in (False, True):
        if restarted:
            stack.restart("issuer")
        assert enrol_as(stack, after) == 503
    assert enrol_as(stack, before) == 409
    assert len(table(stack, "Accounts")) == 1
    stack.restart("issuer")
    until = new_accounts(described_stack(stack.describe(), stack.session, None), stack.clock.now())
    assert [enrol_as(stack, caller) for caller in (after, before)] == [400, 503]
    stack.clock.set(until)
    assert enrol_as(stack, after) == 200


def test_nothing_of_an_account_or_a_proof_is_stored_or_logged(stack: Stack, address: str, tmp_path: Path) -> None:
    one = device(stack, tmp_path / "file")
    one.enrol(address, auth=account("AKIDSOMEBODY"), recovery=recovery_code())
    step = int(stack.clock.now() // HOUR)
    join = one.presentation(TYPE, b"hello", step, stack.clock.now())
    assert stack.request("POST", PATH, join).status == 200
    proof = base64.urlsafe_b64decode(join["presentation"]["proof"] + "=")
    (kept,) = table(stack, "Accounts")
    assert {name: set(value) for name, value in kept.items()} == {
        "account": {"B"}, "commitment": {"B"}, "last_week": {"N"}, "deleted": {"BOOL"}, "recovery": {"B"},
    }  # fmt: skip
    stored = repr([table(stack, name) for name in stack.storage.tables]).encode() + logged(stack).encode()
    for secret in (b"AKIDSOMEBODY", proof, proof[99:132], proof[100:132]):
        for form in (secret, repr(secret)[2:-1].encode(), text(secret).encode(), secret.hex().encode()):
            assert form not in stored
    actions = {(call.function, call.action) for call in Monitor.of(stack).calls}
    assert not {one for one in actions if one[0] == "issuer" and "BatchWrite" in one[1]}
    assert ("issuer", "dynamodb:PutItem") in actions


def left(stack: Stack, body: dict[str, Any], path: str = PATH) -> tuple[Any, ...]:
    """What a join leaves: its calls, answer and rows, less step and ttl, and log and metrics, less times and ids."""
    calls: list[Any] = []
    real = BaseClient._make_api_call  # type: ignore[attr-defined]

    def recorded(client: Any, operation: str, given: dict[str, Any]) -> Any:
        calls.append((operation, without_step(given)))
        return real(client, operation, given)

    before, start = rows(stack), len(logged(stack))
    with mock.patch("botocore.client.BaseClient._make_api_call", recorded):
        answer = stack.request("POST", path, body)
    lines = [without_step(json.loads(line)) for line in logged(stack)[start:].splitlines()]
    added = [without_step(row) for row in rows(stack) if row not in before]
    return calls, (answer.status, answer.body, answer.headers), added, lines


VARYING = {"step_slot", "ttl", "timestamp", "Timestamp", "function_request_id", "xray_trace_id"}


def without_step(content: Any) -> Any:
    if isinstance(content, list):
        return [without_step(each) for each in content]
    if not isinstance(content, dict):
        return content
    return {name: without_step(value) for name, value in content.items() if name not in VARYING}


def test_what_a_join_leaves_is_a_function_of_its_tag_alone(stack: Stack, address: str, tmp_path: Path) -> None:
    """Two devices of one person, with credentials of their own, in steps of their own; then somebody else."""
    code, devices = recovery_code(), [device(stack, tmp_path / str(number)) for number in range(3)]
    for who, each in zip(("me", "me", "another"), devices, strict=True):
        each.enrol(address, auth=account(who), recovery=code)
    found, proofs = [], []
    for each in devices:
        step = int(stack.clock.now() // HOUR)
        body = each.presentation(TYPE, b"hello", step, stack.clock.now())
        proofs.append(body["presentation"]["proof"])
        stack.restart("join")  # or its metrics wait
        found.append(left(stack, body))
        stack.clock.set(stack.clock.now() + HOUR)
    assert len({*proofs}) == 3
    assert found[0] == found[1] != found[2]
    assert found[0][3] == found[2][3] != []
    (row,) = found[0][2]
    assert {*row} == {"set_token", "type"}


def test_a_join_with_a_credential_makes_the_calls_of_any_join(stack: Stack, address: str, tmp_path: Path) -> None:
    one, plain = device(stack, tmp_path / "file"), PATH.replace(TYPE, "fledge")
    one.enrol(address, auth=account("me"))
    step = int(stack.clock.now() // HOUR)
    first, body = (one.presentation(TYPE, value, step, stack.clock.now()) for value in (b"hellp", b"hello"))
    for path, given in ((PATH.replace("G8:", "HA:"), first), (plain, {"client": "the first one"})):
        assert stack.request("POST", path, given).status == 200  # the function has started, and its key is read
    found = [left(stack, body), left(stack, {"client": "me"}, plain)]
    ((operation, _),) = found[0][0]
    assert operation == "PutItem"
    assert sizes(found[0]) == sizes(found[1])


def sizes(content: Any) -> Any:
    """The content with the length of each binary value in its place, and one name for all types."""
    if isinstance(content, dict):
        return {name: sizes(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [sizes(each) for each in content]
    return len(content) if isinstance(content, bytes) else "type" if content in TYPES else content


@contextmanager
def issuer_of_one(stack: Stack, patch: pytest.MonkeyPatch, chosen: Callable[[Any], bool]) -> Iterator[None]:
    """Some calls of the issuer, by their events, are answered with another key."""
    client, arn = stack.session.client("secretsmanager"), stack.functions["issuer"].environment[ISSUER]
    real = client.get_secret_value(SecretId=arn)["SecretString"]
    client.put_secret_value(SecretId=arn, SecretString="for one person " * 4)
    stack.restart("issuer")
    assert stack.request("GET", f"{ENROL}/keys").status == 200  # it has read its key
    other, invoke = stack._warm["issuer"], stack.invoke
    client.put_secret_value(SecretId=arn, SecretString=real)
    stack.restart("issuer")

    def invoked(name: str, event: Any) -> Any:
        return other.invoke(event) if name == "issuer" and chosen(event) else invoke(name, event)

    with patch.context() as here:
        here.setattr(stack, "invoke", invoked)
        yield


def is_relayed(event: Any) -> bool:
    return "relayed" in event["requestContext"]


@pytest.mark.parametrize("relayed", [False, True])
def test_an_issuer_with_a_key_for_one_person_is_noticed(
    stack: Stack, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, relayed: bool
) -> None:
    one = device(stack, tmp_path / "file")
    with relay(stack, address) as through:
        with (
            issuer_of_one(stack, monkeypatch, lambda event: is_relayed(event) == relayed),
            pytest.raises(KeysDifferError),
        ):
            one.enrol(address, auth=account("me"), relay=through, direct=True)
        assert not one.file.exists()
        assert table(stack, "Accounts") == []
        one.enrol(address, auth=account("me"), relay=through, direct=True)
    assert len(table(stack, "Accounts")) == 1


def test_an_issuer_that_signs_with_another_key_than_it_shows_is_noticed(
    stack: Stack, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = device(stack, tmp_path / "file")
    signs = issuer_of_one(stack, monkeypatch, lambda event: event["requestContext"]["http"]["method"] == "POST")
    with relay(stack, address) as through, signs, pytest.raises(EnrolmentError, match="did not use the key"):
        one.enrol(address, auth=account("me"), relay=through, direct=True)
    assert json.loads(one.file.read_text())["weeks"] == {}


def test_a_credential_holds_for_its_week_and_a_day_and_for_clocks_that_differ(
    stack: Stack, address: str, tmp_path: Path
) -> None:
    one, end = device(stack, tmp_path / "file"), end_of_week(week_of(stack.clock.now()))
    held = end - 1
    for moments in (
        ((end - 1, 200), (end, 200), (end + DAY - 1, 200), (end + DAY, 400)),
        ((end - 299, 200), (end - 301, 400)),  # a client whose clock is ahead, with a credential of the next week
    ):
        stack.clock.set(held)
        one.enrol(address, auth=account("me"))
        for moment, status in moments:
            stack.clock.set(moment)
            body = one.presentation(TYPE, b"hello", int(moment // HOUR), held)
            assert stack.request("POST", PATH, body).status == status, moment - end
        held = end


MINUTES_APART = [(0, -59), (0, 59), (118, -59), (118, 59), (HOUR - 1, -59), (HOUR - 1, 59)]


@pytest.mark.parametrize("through_relay", [False, True])
def test_a_join_counts_in_the_step_of_its_receipt_for_clocks_a_minute_apart(
    stack: Stack, address: str, tmp_path: Path, *, through_relay: bool
) -> None:
    one, start = device(stack, tmp_path / "file"), int(stack.clock.now() // HOUR)
    one.enrol(address, auth=account("me"))
    with relay(stack, address) as url, client_of(stack, address, one, url if through_relay else None) as client:
        for number, (second, ahead) in enumerate(MINUTES_APART, 1):
            stack.clock.set((start + number) * HOUR + second)
            client._calls.now = lambda ahead=ahead: stack.clock.now() + ahead  # type: ignore[misc]
            if through_relay:
                client._connection._relaying.now = client._calls.now  # type: ignore[union-attr]
            client.join(TYPE, "a value")
    assert steps(stack) == [start + number for number in range(1, len(MINUTES_APART) + 1)]


def steps(stack: Stack) -> list[int]:
    return sorted(int.from_bytes(row["step_slot"]["B"][:8]) for row in rows(stack))


@pytest.mark.parametrize("credential", [False, True])
def test_the_step_that_a_join_carries_decides_only_whether_it_is_taken(
    stack: Stack, address: str, tmp_path: Path, *, credential: bool
) -> None:
    one, step = device(stack, tmp_path / "file"), int(stack.clock.now() // HOUR)
    one.enrol(address, auth=account("me"))
    body: dict[str, Any] = {"client": "me"}
    if credential:
        body = one.presentation(TYPE, b"hello", step, stack.clock.now())
    path = PATH if credential else PATH.replace(TYPE, "fledge")
    message = inner("POST", path, json.dumps(body).encode(), content_type="application/json", kanon_step=str(step))
    for second, status in ((-1, 200), (119, 200), (120, 400)):
        stack.clock.set((step + 1) * HOUR + second)
        assert sent(stack, message).status == status
        if credential:
            assert stack.request("POST", path, body).status == status
    assert steps(stack) == [step, step + 1]


def test_a_replaced_table_closes_enrolment_until_no_join_counts(
    new_stack: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_ids(monkeypatch)
    stack = new_stack(ON)
    assert enrol(stack, "me", arc.Secrets.random()) == 200
    client, name = stack.session.client("dynamodb"), stack.storage.tables["Accounts"]
    client.delete_table(TableName=name)
    create(client, name)
    assert enrol(stack, "me", arc.Secrets.random()) == 503
    running = described_stack(stack.describe(), stack.session, None)
    assert [each.verdict for each in examine_issuer(running, stack.clock.now(), secrets=True)] == [Verdict.FAIL]
    until = new_accounts(running, stack.clock.now())
    assert [each.verdict for each in examine_issuer(running, stack.clock.now(), secrets=True)] == [Verdict.WARN]
    window = (TYPES[TYPE]["window"] + 1) * HOUR  # type: ignore[operator]
    assert until == end_of_week(week_of(stack.clock.now())) + AFTER + window + LATE
    assert enrol(stack, "me", arc.Secrets.random()) == 400
    stack.clock.set(until)
    assert enrol(stack, "me", arc.Secrets.random()) == 200
    assert [each.verdict for each in examine_issuer(running, until, secrets=True)] == [Verdict.OK]


def test_another_key_of_accounts_is_refused_until_an_operator_goes_on(stack: Stack) -> None:
    assert enrol(stack, "me", arc.Secrets.random()) == 200
    arn = stack.functions["issuer"].environment["KANON_ACCOUNT_KEY_SECRET"]
    stack.session.client("secretsmanager").put_secret_value(SecretId=arn, SecretString="another " * 8)
    stack.restart("issuer")
    assert stack.request("GET", f"{ENROL}/keys").status == 503
    running = described_stack(stack.describe(), stack.session, None)
    assert Verdict.FAIL in [each.verdict for each in examine_issuer(running, stack.clock.now(), secrets=True)]
    stack.clock.set(new_accounts(running, stack.clock.now()))
    stack.restart("issuer")
    assert enrol(stack, "me", arc.Secrets.random()) == 200


def test_a_key_of_the_issuer_is_made_once_and_again_only_if_asked(stack: Stack) -> None:
    client = stack.session.client("secretsmanager")
    first = issuer_key(client, "a stack", lambda: "x" * 64)
    assert issuer_key(client, "a stack", lambda: "y" * 64) == first
    second = issuer_key(client, "a stack", lambda: "y" * 64, new=True)
    assert second != first
    assert issuer_key(client, "a stack", lambda: "z" * 64) == second
    assert client.get_secret_value(SecretId=second)["SecretString"] == "y" * 64


def test_credentials_of_a_leaked_key_end_with_it(stack: Stack, address: str, tmp_path: Path) -> None:
    one = device(stack, tmp_path / "file")
    one.enrol(address, auth=account("me"))
    with client_of(stack, address, one, None) as client:
        client.join(TYPE, "a value")
        arn = stack.functions["issuer"].environment[ISSUER]
        stack.session.client("secretsmanager").put_secret_value(SecretId=arn, SecretString="another " * 8)
        for function in ("issuer", "join"):
            stack.restart(function)
        with pytest.raises(RefusedError, match="proof does not hold"):
            client.join(TYPE, "another value")
        one.enrol(address, auth=account("me"))
        client.join(TYPE, "another value")
    assert len(rows(stack)) == 2
