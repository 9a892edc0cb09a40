"""Every call that changes something needs a key or a token, and so does whatever nobody listed as open."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kanon.errors import ConfigurationError
from kanon.gate.storage.disk.control import ControlFile
from kanon.http.bodies import RequestError
from kanon.serving.access import Access, AuthMode
from kanon.serving.api_keys import ApiKeys

JOIN = "/v1/types/fledge/sets/aGVsbG8:join"
NOW = 1_800_000_000.0


def event(method: str, path: str, authorization: str | None = None) -> dict[str, Any]:
    headers = {} if authorization is None else {"authorization": authorization}
    return {"rawPath": path, "headers": headers, "requestContext": {"http": {"method": method, "path": path}}}


def access(join: AuthMode = AuthMode.KEY, batch: AuthMode = AuthMode.KEY) -> Access:
    return Access(join, batch, {AuthMode.KEY: "a key".__eq__, AuthMode.JWT: "a token".__eq__})


def admitted(guard: Access, method: str, path: str, authorization: str | None = None) -> bool:
    try:
        guard.check(event(method, path, authorization))
    except RequestError as error:
        return {401: False}[error.answer.error.code]
    return True


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1:query"),
        ("POST", "/v1:validateHashes"),
        ("GET", "/v1/types"),
        ("GET", "/v1/types/fledge/sets/aGVsbG8"),
        ("GET", "/openapi.json"),
        ("GET", "/docs"),
        ("GET", "/healthz"),
        ("HEAD", "/healthz"),
        ("GET", "/nowhere"),
    ],
)
def test_anybody_may_read_answers_and_descriptions(method: str, path: str) -> None:
    assert admitted(access(), method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", JOIN),
        ("POST", "/v1:batchJoin"),
        ("POST", "/v1:batchQuery"),
        ("GET", "/metrics"),
        ("POST", "/metrics"),
        ("POST", "/v1:batchJoin/"),
        ("POST", "/v1:query/"),
        ("POST", "//v1:query"),
        ("PUT", JOIN),
        ("DELETE", "/v1/types/fledge"),
        ("POST", "/a/route/of/tomorrow"),
    ],
)
@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer a token", "Basic a key", "a key"]
)
def test_nobody_else_without_a_valid_key(method: str, path: str, authorization: str | None) -> None:
    assert not admitted(access(), method, path, authorization)
    assert admitted(access(), method, path, "Bearer a key")
    assert admitted(access(), method, path, "bearer  a key ")


def test_each_way_takes_its_own_credentials() -> None:
    guard = access(AuthMode.JWT, AuthMode.KEY)
    assert admitted(guard, "POST", JOIN, "Bearer a token")
    assert not admitted(guard, "POST", JOIN, "Bearer a key")
    assert not admitted(guard, "POST", "/v1:batchJoin", "Bearer a token")
    assert admitted(guard, "POST", "/v1:batchJoin", "Bearer a key")


def test_open_opens_the_single_join_alone() -> None:
    guard = access(AuthMode.OPEN)
    assert admitted(guard, "POST", JOIN)
    for path in ("/v1:batchJoin", "/v1/types/fledge/sets/a/b:join", f"{JOIN}/x", "/v1:batchQuery"):
        assert not admitted(guard, "POST", path)


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[ApiKeys]:
    with closing(ControlFile(tmp_path)) as control:
        yield ApiKeys(lambda: control.database)


def test_a_key_is_valid_until_it_is_revoked(keys: ApiKeys) -> None:
    name, key = keys.make(None, NOW)
    _, another = keys.make(None, NOW + 1)
    assert [one.name for one in keys.all()] == [name, "key-2"] == ["key-1", "key-2"]
    assert keys.has(key)
    assert keys.has(another)
    keys.revoke(name)
    assert not keys.has(key)
    assert keys.has(another)
    assert keys.make(None, NOW + 2)[0] == "key-1"


def test_wrong_keys_are_refused(keys: ApiKeys) -> None:
    assert not keys.has("")
    _, key = keys.make("mine", NOW)
    for wrong in ("", key[:-1], f"{key}x", key.upper(), "kanon_", "\N{SNOWMAN}"):
        assert not keys.has(wrong)


def test_a_name_is_used_once_and_an_unknown_one_is_named(keys: ApiKeys) -> None:
    keys.make("mine", NOW)
    with pytest.raises(ConfigurationError, match="there is a key mine: choose another name, or revoke it first"):
        keys.make("mine", NOW)
    with pytest.raises(ConfigurationError, match="there is no key yours: there is mine"):
        keys.revoke("yours")
    keys.revoke("mine")
    with pytest.raises(ConfigurationError, match="there is no key at all"):
        keys.revoke("mine")


def test_the_directory_holds_no_key(tmp_path: Path) -> None:
    with closing(ControlFile(tmp_path)) as control:
        _, key = ApiKeys(lambda: control.database).make("mine", NOW)
        content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"mine" in content
    secret = key.removeprefix("kanon_").encode()
    assert secret not in content
    assert secret[:16] not in content


def test_keys_are_compared_in_constant_time_and_all_of_them(keys: ApiKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [keys.make(None, NOW)[1] for _ in range(3)]
    seen: list[bytes] = []

    def compare(a: bytes, b: bytes) -> bool:
        seen.append(b)
        return a == b

    monkeypatch.setattr("hmac.compare_digest", compare)
    for key in (*made, "wrong"):
        seen.clear()
        assert keys.has(key) == (key in made)
        assert len(seen) == 3
