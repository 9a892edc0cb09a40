"""Enrolment over HTTP: one account is one person, on all devices, through losses, rotation, deletion and backups."""

import itertools
import json
import re
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kanon import clock
from kanon.cli.serve_data import Credentials
from kanon.client import Bearer, Connection, KeysDifferError, RefusedError, SetId, UnexpectedAnswerError, anonymous
from kanon.client.anonymous import EnrolmentError, recovery_code
from kanon.client.values import decoded
from kanon.clock import AFTER, LATE, WEEK, end_of_week, week_of
from kanon.credentials import arc
from kanon.errors import ConfigurationError, FingerprintMismatchError
from kanon.gate.models import ISSUER_KEYS
from kanon.keys import Secret
from kanon.serving import enrolment as serving_enrolment
from kanon.serving.access import AuthMode
from kanon.serving.api_keys import ApiKeys
from kanon.serving.backup import backup
from kanon.serving.directory import ACCOUNTS, CLOSED_UNTIL, Given, new_generation, open_directory
from kanon.serving.enrolment import open_credentials
from tests.integration.credentials.people import (
    PATH,
    TYPE,
    TYPES,
    account,
    asked,
    client_of,
    count,
    device,
    enrolment,
    issuer,
    presented,
    served,
    text,
)
from tests.integration.gateway.relayed import OBLIVIOUS, Relay, answer, inner, sent
from tests.integration.serving.machine import PERIOD, Machine

ENROL = "/v1/credentials"
WINDOW = (TYPES[TYPE]["window"] + 1) * PERIOD  # type: ignore[operator]


def _enrol(at: Machine, who: Bearer, secrets: arc.Secrets, week: int | None = None, **more: Any) -> tuple[int, str]:
    week = week_of(at.now) if week is None else week
    found = _call(at, who, "POST", {**asked(issuer(at).deployment, week, secrets), **more})
    return found.status, found.body.decode()


def _call(at: Machine, who: Bearer | None, method: str, body: Any = None) -> Any:
    headers = {} if who is None else dict(who(method, "", b"", {}))
    return at.request(method, ENROL, body, headers, key=False)


def _relayed(at: Machine, who: Bearer, method: str, body: Any = None, **fields: str) -> tuple[int, str]:
    """What the service answers through the gateway."""
    named = {"content_type": "application/json", **dict(who(method, "", b"", {}))}
    content = b"" if body is None else json.dumps(body).encode()
    found = sent(at, inner(method, ENROL, content, **{name.lower(): value for name, value in named.items()}, **fields))
    return found.status, found.content.decode()


def _held(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())  # type: ignore[no-any-return]


def test_an_account_is_needed_and_never_anybody(at: Machine) -> None:
    for method in ("POST", "GET", "DELETE"):
        for who in (None, Bearer("wrong"), Bearer("")):
            assert _call(at, who, method, {}).status == 401
    assert at.request("GET", ISSUER_KEYS, key=False).status == 200


def test_the_file_is_for_its_user_alone_and_holds_two_weeks(at: Machine, tmp_path: Path) -> None:
    one, me = device(at, tmp_path / "file"), account(at, "me")
    for _ in range(4):
        one.enrol(at.server.url, auth=me)
        at.now += WEEK
    assert stat.S_IMODE(one.file.stat().st_mode) == 0o600
    assert sorted(map(int, _held(one.file)["weeks"])) == [week_of(at.now) - 2, week_of(at.now) - 1]
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []
    one.file.write_text("{")
    with pytest.raises(EnrolmentError, match="damaged"):
        one.enrol(at.server.url, auth=me)


def test_a_person_keeps_its_tag_when_the_key_of_the_issuer_changes(at: Machine, tmp_path: Path) -> None:
    at.now = end_of_week(week_of(at.now)) - 1
    one, me = device(at, tmp_path / "file"), account(at, "me")
    one.enrol(at.server.url, auth=me)
    with client_of(at, one) as client:
        client.join(TYPE, "a value")
        at.now += 2
        one.enrol(at.server.url, auth=me)
        assert len(_held(one.file)["weeks"]) == 2
        client.join(TYPE, "a value")
    rows = {row for step in at.directory.log.steps() for row in _entries(at, step)}
    assert len(at.directory.log.steps()) == 2
    assert len(rows) == 1


def _entries(at: Machine, step: int) -> list[bytes]:
    with closing(sqlite3.connect(at.directory.path / "log" / f"{step}.db")) as database:
        return [row[0] for row in database.execute("SELECT entry FROM joins")]


def test_a_second_m1_is_refused_until_no_join_of_the_first_one_can_count(at: Machine) -> None:
    me, first, second = account(at, "me"), arc.Secrets.random(), arc.Secrets.random()
    free = end_of_week(week_of(at.now)) + AFTER + WINDOW + LATE
    assert _enrol(at, me, first)[0] == 200
    assert _enrol(at, me, first)[0] == 200  # as a client does that got no answer
    status, refusal = _enrol(at, me, second)
    assert (status, "recovery code" in refusal, "deleted" in refusal) == (409, True, True)
    at.now = free - 1
    assert _enrol(at, me, second)[0] == 409
    at.now = free
    assert _enrol(at, me, second)[0] == 200
    assert _enrol(at, me, first)[0] == 409


def test_another_device_takes_over_the_secrets_with_the_recovery_code_alone(at: Machine, tmp_path: Path) -> None:
    code, me = recovery_code(), account(at, "me")
    first, second = device(at, tmp_path / "first"), device(at, tmp_path / "second")
    first.enrol(at.server.url, auth=me, recovery=code)
    for wrong, hint in ((None, "give its recovery code"), (recovery_code(), "not the one"), ("secret", "8 groups")):
        with pytest.raises(EnrolmentError, match=hint):
            second.enrol(at.server.url, auth=me, recovery=wrong)
        assert not second.file.exists()
    second.enrol(at.server.url, auth=me, recovery=code.lower().replace("-", " "))
    assert _held(first.file)["secrets"] == _held(second.file)["secrets"]
    stored = (at.directory.path / ACCOUNTS).read_bytes()
    assert decoded(_held(first.file)["secrets"])[:32] not in stored
    assert code.encode() not in stored


def test_a_device_that_enrols_beside_another_one_says_what_to_delete(
    at: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, one = account(at, "me"), device(at, tmp_path / "file")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(anonymous, "_stored", lambda _: _enrol(at, me, arc.Secrets.random()) and None)
        with pytest.raises(EnrolmentError, match=r"; delete first .*/file, which was never used"):
            one.enrol(at.server.url, auth=me)
    one.file.unlink()
    with pytest.raises(EnrolmentError, match="enrolled on another device"):
        one.enrol(at.server.url, auth=me)


def test_the_code_that_was_given_last_is_the_one_that_works(at: Machine, tmp_path: Path) -> None:
    me, one, numbers = account(at, "me"), device(at, tmp_path / "first"), itertools.count()

    def works(code: str) -> bool:
        try:
            device(at, tmp_path / str(next(numbers))).enrol(at.server.url, auth=me, recovery=code)
        except EnrolmentError:
            return False
        return True

    first, second, third = recovery_code(), recovery_code(), recovery_code()
    one.enrol(at.server.url, auth=me)
    one.enrol(at.server.url, auth=me, recovery=first)
    assert works(first)
    one.enrol(at.server.url, auth=me, recovery=second)
    assert (works(first), works(second)) == (False, True)
    at.now = end_of_week(week_of(at.now))
    one.enrol(at.server.url, auth=me)
    assert works(second)
    one.enrol(at.server.url, auth=me, recovery=third)
    assert (works(second), works(third)) == (False, True)


def test_a_folder_that_does_not_exist_is_refused_before_anybody_is_asked(at: Machine, tmp_path: Path) -> None:
    one = device(at, tmp_path / "missing" / "file")
    with pytest.raises(FileNotFoundError, match="missing/file: its folder does not exist"):
        one.enrol("http://127.0.0.1:1", auth=account(at, "me"))


def test_a_lost_device_without_a_code_waits(at: Machine, tmp_path: Path) -> None:
    me, one = account(at, "me"), device(at, tmp_path / "file")
    one.enrol(at.server.url, auth=me)
    one.file.unlink()
    with pytest.raises(EnrolmentError, match="another device"):
        one.enrol(at.server.url, auth=me)
    assert _enrol(at, me, arc.Secrets.random())[0] == 409
    at.now = end_of_week(week_of(at.now)) + AFTER + WINDOW + LATE
    assert _enrol(at, me, arc.Secrets.random())[0] == 200


def test_a_deleted_account_gets_nothing_until_its_row_is_free(at: Machine, tmp_path: Path) -> None:
    me, one = account(at, "me"), device(at, tmp_path / "file")
    free = end_of_week(week_of(at.now)) + AFTER + WINDOW + LATE
    one.enrol(at.server.url, auth=me, recovery=recovery_code())
    one.delete(at.server.url, auth=me)
    one.delete(at.server.url, auth=me)
    assert _call(at, me, "GET").status == 404
    own = arc.Secrets.decode(decoded(_held(one.file)["secrets"]))
    for secrets in (own, arc.Secrets.random()):
        at.now = free - 1
        assert _enrol(at, me, secrets)[0] == 409
    at.now = free
    assert _enrol(at, me, arc.Secrets.random())[0] == 200


def _recorded(relay: Relay) -> bytes:
    """The last request that somebody at the relay has seen."""
    return [body for _, path, body in relay.seen if path == "/v1/gateway"][-1]


def _replayed(at: Machine, message: bytes) -> None:
    with closing(Connection(at.server.url)) as connection:
        assert connection("POST", "/v1/gateway", message, OBLIVIOUS).status == 200  # what it says inside is encrypted


@pytest.mark.parametrize("into", [0, PERIOD // 2])
def test_a_recorded_deletion_deletes_nobody_who_enrols_again_later(
    at: Machine, relay: Relay, tmp_path: Path, into: int
) -> None:
    me, how = account(at, "me"), {"relay": relay.url}
    old, new = device(at, tmp_path / "old"), device(at, tmp_path / "new")
    old.enrol(at.server.url, auth=me, **how)
    at.now = end_of_week(week_of(at.now)) + AFTER + WINDOW + PERIOD - at.now % PERIOD + into
    old.delete(at.server.url, auth=me, **how)
    deletion = _recorded(relay)
    _replayed(at, deletion)
    assert _call(at, me, "GET").status == 404
    at.now += PERIOD + LATE
    new.enrol(at.server.url, auth=me, **how)
    _replayed(at, deletion)
    assert _call(at, me, "GET").status == 200
    at.now += WEEK
    new.enrol(at.server.url, auth=me, **how)
    assert len(_held(new.file)["weeks"]) == 2


def test_a_recorded_enrolment_puts_nothing_back_later(at: Machine, relay: Relay, tmp_path: Path) -> None:
    me, code = account(at, "me"), recovery_code()
    device(at, tmp_path / "file").enrol(at.server.url, auth=me, relay=relay.url, recovery=code)
    enrolment_, first = _recorded(relay), _call(at, me, "GET").body
    _replayed(at, enrolment_)
    assert _call(at, me, "GET").body == first
    at.now += PERIOD + LATE
    own = arc.Secrets.decode(decoded(_held(tmp_path / "file")["secrets"]))
    assert _enrol(at, me, own, recovery=text(bytes(92)))[0] == 200
    second = _call(at, me, "GET").body
    _replayed(at, enrolment_)
    assert _call(at, me, "GET").body == second != first


def test_through_the_gateway_what_changes_an_account_names_its_step_and_reading_does_not(at: Machine) -> None:
    me, now, week = account(at, "me"), int(at.now // PERIOD), week_of(at.now)
    body = asked(issuer(at).deployment, week)
    wrong: list[dict[str, str]] = [{}, {"kanon_step": str(now - 2)}, {"kanon_step": str(now + 1)}]
    for fields in wrong:
        status, refusal = _relayed(at, me, "POST", body, **fields)
        assert (status, "kanon-step" in refusal, "join" in refusal) == (400, True, False)
    assert _relayed(at, me, "GET")[0] == 404
    assert _relayed(at, me, "POST", body, kanon_step=str(now))[0] == 200
    for fields in wrong:
        assert _relayed(at, me, "DELETE", **fields)[0] == 400
    assert _relayed(at, me, "GET")[0] == 200
    assert [_relayed(at, me, "DELETE", kanon_step=str(now))[0] for _ in range(2)] == [200] * 2
    assert _relayed(at, me, "GET")[0] == 404
    assert _relayed(at, me, "PUT", body, kanon_step=str(now))[0] == 404


def test_an_account_is_forgotten_when_its_row_is_free(at: Machine) -> None:
    me, other = account(at, "me"), account(at, "other")
    assert _enrol(at, me, arc.Secrets.random(), recovery=text(bytes(92)))[0] == 200
    assert _call(at, me, "GET").body == b'{"recovery": "%b"}' % text(bytes(92)).encode()
    at.now = end_of_week(week_of(at.now)) + AFTER + WINDOW + LATE
    assert _enrol(at, other, arc.Secrets.random())[0] == 200
    assert _call(at, me, "GET").status == 404


def test_nothing_of_an_account_is_stored_or_logged_but_its_hmac(at: Machine, tmp_path: Path) -> None:
    me, one = account(at, "somebody with a name"), device(at, tmp_path / "file")
    one.enrol(at.server.url, auth=me)
    stored = b"".join(file.read_bytes() for file in at.directory.path.glob(f"{ACCOUNTS}*"))
    key = me.token
    assert isinstance(key, str)
    for secret in (b"somebody", key.encode(), key[6:].encode()):
        assert secret not in stored
    assert at.logs.getvalue() == ""


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"request": "A" * 302}, "epoch"),
        ({"epoch": 1, "request": "A" * 302}, "epoch"),
        ({"epoch": None, "request": "A" * 301}, "request"),
        ({"epoch": None, "request": "A" * 303}, "request"),
        ({"epoch": None, "request": "A" * 302}, "request"),
        ({"epoch": None, "request": "A" * 302, "recovery": ""}, "recovery"),
        ({"epoch": None, "request": "A" * 302, "recovery": "A" * 684}, "recovery"),
        ({"epoch": None, "request": "A" * 302, "more": 1}, "unknown"),
    ],
)
def test_a_malformed_request_is_refused_and_records_nothing(at: Machine, body: dict[str, Any], field: str) -> None:
    me = account(at, "me")
    if "epoch" in body and body["epoch"] is None:
        body = {**body, "epoch": week_of(at.now)}
    found = _call(at, me, "POST", body)
    assert found.status == 400
    assert field in found.body.decode()
    assert _call(at, me, "GET").status == 404


def test_a_request_with_a_wrong_proof_does_not_lock_its_account(at: Machine) -> None:
    me, week = account(at, "me"), week_of(at.now)
    assert _call(at, me, "POST", asked("another", week)).status == 400
    assert _enrol(at, me, arc.Secrets.random())[0] == 200


def test_an_issuer_with_a_key_for_one_person_is_noticed(at: Machine, relay: Relay, tmp_path: Path) -> None:
    """The relay shows all clients of it one key; the service, which sees the address, shows this person another."""
    one, me, routes = device(at, tmp_path / "file"), account(at, "me"), enrolment(at)
    honest = issuer(at)
    own = replace(honest, secret=Secret.derived("issuer-key", "for one person"))
    shown = iter([own, honest])  # directly, then through the relay
    real = type(routes).keys

    def keys(_: Any) -> Any:
        return real(replace(routes, enrolling=replace(routes.enrolling, issuer=next(shown))))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(routes), "keys", keys)
        at.service._of_thread = type(at.service._of_thread)()
        with pytest.raises(KeysDifferError):
            one.enrol(at.server.url, auth=me, relay=relay.url)
    assert not one.file.exists()
    assert _call(at, me, "GET").status == 404


def test_an_issuer_that_signs_with_another_key_than_it_shows_is_noticed(
    at: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = arc.IssuerKey.derive(b"for one person".ljust(32))
    monkeypatch.setattr("kanon.credentials.enrolling.issue", lambda _, *of: arc.issue(other, *of))
    one = device(at, tmp_path / "file")
    with pytest.raises(EnrolmentError, match="did not use the key"):
        one.enrol(at.server.url, auth=account(at, "me"))
    assert _held(one.file)["weeks"] == {}


def test_a_relay_that_answers_for_the_service_is_noticed(at: Machine, relay: Relay, tmp_path: Path) -> None:
    relay.answers = [None, answer(200, b"{}")]
    with pytest.raises(UnexpectedAnswerError, match="the address is a relay's"):
        device(at, tmp_path / "file").enrol(at.server.url, auth=account(at, "me"), relay=relay.url)
    assert not (tmp_path / "file").exists()


def test_the_key_is_published_with_its_hash_and_kept_until_the_end_of_its_week(at: Machine) -> None:
    at.now = end_of_week(week_of(at.now)) - 10
    found = at.request("GET", ISSUER_KEYS, key=False)
    shown = json.loads(found.body)
    assert shown["sha256"] == sha256(decoded(shown["key"])).hexdigest()
    assert (shown["epoch"], shown["deployment"]) == (week_of(at.now), at.directory.settings.deployment)
    assert dict(found.headers)["Cache-Control"] == "public, max-age=10"
    at.now += 10
    assert json.loads(at.request("GET", ISSUER_KEYS, key=False).body)["key"] != shown["key"]


def public_keys(folder: Path, private: Ed25519PrivateKey) -> Path:
    """The file of public keys of an issuer of tokens."""
    public = {**json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(private.public_key())), "kid": "1"}
    jwks = folder / "jwks.json"
    jwks.write_text(json.dumps({"keys": [public]}))
    return jwks


def test_tokens_name_accounts_by_their_subject(tmp_path: Path) -> None:
    private = Ed25519PrivateKey.generate()
    jwks = public_keys(tmp_path, private)
    claims = {"iss": "https://issuer", "aud": "kanon", "exp": 4_000_000_000}

    def token(**more: Any) -> Bearer:
        return Bearer(jwt.encode({**claims, **more}, private, "EdDSA", {"kid": "1"}))

    credentials = Credentials(AuthMode.KEY, AuthMode.KEY, jwks, "https://issuer", "kanon", enrol=AuthMode.JWT)
    with served(tmp_path / "data", credentials=credentials) as at:
        one, two = arc.Secrets.random(), arc.Secrets.random()
        assert _enrol(at, token(sub="me"), one)[0] == 200
        assert _enrol(at, token(sub="me", iat=1), two)[0] == 409
        assert _enrol(at, token(sub="other"), two)[0] == 200
        assert _enrol(at, token(), two)[0] == 401
        assert _enrol(at, Bearer(at.key), two)[0] == 401


def test_an_api_key_that_is_made_again_under_its_name_is_the_same_account(at: Machine) -> None:
    keys = ApiKeys(lambda: at.directory.control.database)
    assert _enrol(at, account(at, "me"), arc.Secrets.random())[0] == 200
    keys.revoke("me")
    assert _enrol(at, account(at, "me"), arc.Secrets.random())[0] == 409


def _opened(path: Path, at: float) -> Any:
    return open_directory(path, Given(PERIOD, json.dumps(TYPES)), at)


def test_a_backup_has_the_accounts_and_no_key_and_voids_what_was_signed(tmp_path: Path) -> None:
    one = tmp_path / "file"
    with served(tmp_path / "data") as at:
        me, late = account(at, "me"), account(at, "late")
        person = device(at, one)
        person.enrol(at.server.url, auth=me)
        with client_of(at, person) as client:
            client.join(TYPE, SetId("aGVsbG8"))
        backup(tmp_path / "data", tmp_path / "copy")
        assert _enrol(at, late, arc.Secrets.random())[0] == 200
        before = presented(at, _credential_of(one, at))
        now = at.now
    assert not (tmp_path / "copy" / "secrets" / "issuer-key").exists()
    new_generation(tmp_path / "copy")
    with served(tmp_path / "copy") as at:
        at.now = now
        assert at.request("POST", PATH, before, key=False).status == 400
        assert _enrol(at, me, arc.Secrets.random())[0] == 409
        assert _enrol(at, late, arc.Secrets.random())[0] == 200  # nothing that it got before counts here
        person = device(at, one)
        person.enrol(at.server.url, auth=me)
        with client_of(at, person) as client:
            client.join(TYPE, SetId("aGVsbG8"))
        assert count(at) == 1


def _credential_of(file: Path, at: Machine) -> arc.Credential:
    _, encoded = _held(file)["weeks"][str(week_of(at.now))]
    return arc.Credential.decode(decoded(encoded))


def _put_back(path: Path) -> None:
    shutil.copyfile(path / ACCOUNTS, path / "older")
    _remove(path)
    (path / "older").replace(path / ACCOUNTS)


def _remove(path: Path) -> None:
    for each in path.glob(f"{ACCOUNTS}*"):
        each.unlink()


@pytest.mark.parametrize("lost", [_put_back, _remove])
def test_accounts_that_were_put_back_or_removed_close_enrolment_until_no_join_counts(
    tmp_path: Path, lost: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    with served(path) as at:
        me, now = account(at, "me"), at.now
        assert _enrol(at, me, arc.Secrets.random())[0] == 200
    lost(path)
    with _opened(path, now) as directory, pytest.raises(ConfigurationError, match="new-generation"):
        open_credentials(directory)
    monkeypatch.setattr(clock, "now", lambda: now)
    new_generation(path)
    with served(path) as at:
        status, refusal = _enrol(at, me, arc.Secrets.random())
        assert (status, "opens when" in refusal) == (400, True)
        at.now = now + WINDOW + LATE - 1
        assert _enrol(at, me, arc.Secrets.random())[0] == 400
        at.now += 1
        assert _enrol(at, me, arc.Secrets.random())[0] == 200
    with served(path) as at:
        at.now = now + WINDOW + LATE
        assert _enrol(at, me, arc.Secrets.random())[0] == 409


def test_a_whole_copy_keeps_its_accounts(tmp_path: Path) -> None:
    with served(tmp_path / "data") as at:
        me = account(at, "me")
        assert _enrol(at, me, arc.Secrets.random())[0] == 200
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    new_generation(tmp_path / "copy")
    with served(tmp_path / "copy") as at:
        key = "secrets/issuer-key"
        assert (tmp_path / "copy" / key).read_text() != (tmp_path / "data" / key).read_text()
        assert at.directory.control.text(CLOSED_UNTIL) is None
        assert _enrol(at, me, arc.Secrets.random())[0] == 409


def test_another_account_key_is_refused(tmp_path: Path) -> None:
    with served(tmp_path / "data") as at:
        now = at.now
    key = tmp_path / "data" / "secrets" / "account-key"
    key.write_text("another text, with which each account would be a new one")
    with _opened(tmp_path / "data", now) as directory, pytest.raises(FingerprintMismatchError):
        open_credentials(directory)
    key.unlink()
    with _opened(tmp_path / "data", now) as directory, pytest.raises(ConfigurationError, match="put it back"):
        open_credentials(directory)


OF_TOKENS = {"issuer": "https://a", "audience": "kanon", "enrol": AuthMode.JWT}
OF_KEYS = {"issuer": None, "audience": None}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (OF_KEYS, OF_TOKENS),
        (OF_TOKENS, {**OF_TOKENS, "issuer": "https://b"}),
        ({**OF_KEYS, "verifier": "https://verifier.example"}, OF_KEYS),
    ],
)
def test_accounts_with_other_names_are_refused_until_an_operator_goes_on(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise everybody has a second account, beside joins of the first one."""
    path, now = tmp_path / "data", 1_800_000_000.0

    def start(how: dict[str, Any]) -> None:
        given = {**how, "jwks": public_keys(tmp_path, Ed25519PrivateKey.generate()) if how["issuer"] else None}
        with _opened(path, now) as directory:
            Credentials(AuthMode.KEY, AuthMode.KEY, **given).enrolment(
                directory, ApiKeys(lambda: directory.control.database)
            )

    for _ in range(2):
        start(before)
        with pytest.raises(ConfigurationError, match="start with the options that they had"):
            start(after)
    _remove(path)
    monkeypatch.setattr(clock, "now", lambda: now)
    new_generation(path)
    start(after)
    with _opened(path, now) as directory:
        assert float(str(directory.control.text(CLOSED_UNTIL))) == now + WINDOW + LATE


@pytest.mark.parametrize("call", ["secret_of", "AccountsFile", "accounts_place", "Issuer"])
def test_a_first_start_that_is_killed_goes_on_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    class KilledError(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> Any:
        raise KilledError

    now = 1_800_000_000.0
    with monkeypatch.context() as patch, _opened(tmp_path / "data", now) as directory:
        patch.setattr(serving_enrolment, call, killed)
        with pytest.raises(KilledError):
            open_credentials(directory)
    with _opened(tmp_path / "data", now) as directory:
        open_credentials(directory)


def test_two_processes_that_begin_with_one_file_are_one_person(
    at: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one enrols after this one has found neither a file nor an account."""
    me, one, other = account(at, "me"), device(at, tmp_path / "file"), device(at, tmp_path / "file")
    real = anonymous._stored

    def found(*of: Any) -> Any:
        monkeypatch.setattr(anonymous, "_stored", real)
        stored = real(*of)
        other.enrol(at.server.url, auth=me)
        return stored

    monkeypatch.setattr(anonymous, "_stored", found)
    one.enrol(at.server.url, auth=me)
    assert len(_held(one.file)["weeks"]) == 1


def test_a_file_belongs_to_one_service(at: Machine, tmp_path: Path) -> None:
    one = device(at, tmp_path / "file")
    one.enrol(at.server.url, auth=account(at, "me"))
    one.file.write_text(one.file.read_text().replace(at.directory.settings.deployment, "another"))
    with pytest.raises(EnrolmentError, match="another service"):
        one.enrol(at.server.url, auth=account(at, "me too"))


def test_renewals_come_at_a_random_time_of_monday(at: Machine, tmp_path: Path) -> None:
    one = device(at, tmp_path / "file")
    one.random = lambda: 0.5
    assert one.renew_at() == end_of_week(week_of(at.now)) + AFTER / 2


def test_a_call_that_the_service_refuses_says_why(at: Machine, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="401"):
        device(at, tmp_path / "file").enrol(at.server.url, auth=Bearer("wrong"))
    assert re.fullmatch("(?:[A-Z2-7]{4}-){7}[A-Z2-7]{4}", recovery_code())
