"""Names of sets and clients: keyed, apart from each other, and never in clear."""

import hmac
import json
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.errors import ConfigurationError
from kanon.gate.names import client_token, set_key
from kanon.gate.slots import Layout
from kanon.keys import Secret, fetch_noise_keys, fetch_secret

PEPPER = Secret.derived("set-pepper", "a" * 64)
CLIENT_KEY = Secret.derived("client-key", "b" * 64)


class Secrets:
    """Secrets Manager with secrets by ARN."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts

    def get_secret_value(self, SecretId: str) -> dict[str, str]:  # noqa: N803 - the name AWS gives it
        return {"SecretString": self.texts[SecretId]}


def test_a_secret_depends_on_its_text_and_on_its_name() -> None:
    keys = {Secret.derived(name, text).key for name in ("set-pepper", "client-key") for text in ("a" * 64, "b" * 64)}
    assert len(keys) == 4
    assert all(len(key) == 32 for key in keys)
    assert Secret.derived("set-pepper", "a" * 64) == PEPPER


def test_a_fingerprint_recognises_a_key_and_is_not_part_of_it() -> None:
    again = Secret.derived("set-pepper", "a" * 64)
    assert PEPPER.fingerprint == again.fingerprint
    assert len(PEPPER.fingerprint) == 32
    others = {CLIENT_KEY.fingerprint, Secret("client-key", PEPPER.key).fingerprint, PEPPER.key.hex()[:32]}
    assert PEPPER.fingerprint not in others
    assert PEPPER.fingerprint != sha256(PEPPER.key).hexdigest()[:32]


def test_a_secret_does_not_show_its_key() -> None:
    assert repr(PEPPER) == "Secret('set-pepper')"


def test_a_set_key_is_an_hmac_of_the_length_prefixed_type_and_set_id() -> None:
    message = (6).to_bytes(8, "big") + b"fledge" + (2).to_bytes(8, "big") + b"id"
    assert set_key(PEPPER, "fledge", b"id") == hmac.digest(PEPPER.key, message, "sha256")


def test_another_pepper_type_or_set_id_has_another_key() -> None:
    keys = [
        set_key(PEPPER, "ab", b"c"),
        set_key(PEPPER, "a", b"bc"),
        set_key(PEPPER, "ab", b"d"),
        set_key(CLIENT_KEY, "ab", b"c"),
    ]
    assert len(set(keys)) == 4


SET = set_key(PEPPER, "fledge", b"set")


def test_a_client_has_another_token_in_every_set_and_under_every_key() -> None:
    other = set_key(PEPPER, "fledge", b"another set")
    tokens = [
        client_token(CLIENT_KEY, SET, "client", b"2", 32),
        client_token(CLIENT_KEY, other, "client", b"2", 32),
        client_token(PEPPER, SET, "client", b"2", 32),
        client_token(CLIENT_KEY, SET, "client", b"3", 32),
    ]
    assert len(set(tokens)) == 4


def test_a_client_and_a_short_identifier_of_the_same_text_are_two_clients() -> None:
    assert client_token(CLIENT_KEY, SET, "client", b"2", 32) != client_token(CLIENT_KEY, SET, "short", b"2", 32)


@given(st.binary(max_size=20), st.integers(8, 32))
def test_a_token_is_the_beginning_of_the_longer_token(client: bytes, bits: int) -> None:
    longest = client_token(CLIENT_KEY, SET, "client", client, 32)
    token = client_token(CLIENT_KEY, SET, "client", client, bits)
    assert token == longest >> (32 - bits)
    assert 0 <= token < 1 << bits


def test_the_tokens_of_many_clients_use_every_bit() -> None:
    tokens = {client_token(CLIENT_KEY, SET, "client", str(n).encode(), 8) for n in range(4000)}
    assert tokens == set(range(256))


@given(st.binary(min_size=32, max_size=32), st.integers(0, 8))
def test_the_slot_is_the_leading_bits_of_the_set_key(key: bytes, bits: int) -> None:
    assert Layout(1 << bits, 0).slot_of(key) == int.from_bytes(key, "big") >> (256 - bits)


def test_a_fetched_secret_is_the_one_derived_from_its_text() -> None:
    assert fetch_secret(Secrets(arn="a" * 64), "set-pepper", "arn") == PEPPER  # type: ignore[arg-type]


def test_the_noise_keys_are_read_by_id_and_two_ids_never_share_a_key() -> None:
    secrets = Secrets(arn=json.dumps({"1": "same", "2": "same", "3": "unused"}))
    keys = fetch_noise_keys(secrets, "arn", ["1", "2"])  # type: ignore[arg-type]
    assert {key_id: key.id for key_id, key in keys.items()} == {"1": "1", "2": "2"}
    assert keys["1"].secret != keys["2"].secret


def test_of_the_noise_keys_that_a_secret_may_lack_those_that_it_has_are_read() -> None:
    secrets = Secrets(arn=json.dumps({"1": "one", "2": "two", "3": "three"}))
    wanted = fetch_noise_keys(secrets, "arn", ["1", "2", "3"])  # type: ignore[arg-type]
    assert fetch_noise_keys(secrets, "arn", ["1"], ["9", "3", "2"]) == wanted  # type: ignore[arg-type]
    assert fetch_noise_keys(secrets, "arn", [], ["9"]) == {}  # type: ignore[arg-type]


def test_a_missing_noise_key_is_refused_with_its_id_and_without_any_text() -> None:
    secrets = Secrets(arn=json.dumps({"1": "secret text"}))
    with pytest.raises(ConfigurationError) as error:
        fetch_noise_keys(secrets, "arn", ["1", "2", "3"])  # type: ignore[arg-type]
    assert str(error.value) == "the noise key secret lacks key 2, key 3: add it to the secret first"


@pytest.mark.parametrize("text", ["", "secret", "[]", '["1"]', "{}", '{"1": ""}', '{"1": 7}', '{"1": null}'])
def test_a_guessable_or_unreadable_noise_key_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="the noise key secret must be a JSON object"):
        fetch_noise_keys(Secrets(arn=text), "arn", ["1"])  # type: ignore[arg-type]
