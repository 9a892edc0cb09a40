"""Joins without a name (experimental): a credential in a file, which counts a person once in each set.

It needs the extra ``anonymous``. ``Anonymous.enrol`` names the account, so call it once a week at another time than
joins: a random one on Monday or Tuesday (UTC). ``Client(..., anonymous=...)`` joins with it, and names nobody.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from base64 import b32encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kanon.client.answers import Request, of, read_object, reading, request
from kanon.client.auth import Auth, Headers
from kanon.client.connection import Connection, Reply
from kanon.client.errors import KeysDifferError, RefusedError
from kanon.client.values import SetId, Value, decoded, encoded, value_id
from kanon.client.waiting import chance
from kanon.clock import DAY, end_of_week, valid_weeks, week_of
from kanon.disk import put_file
from kanon.errors import Error
from kanon.noise.words import length_prefixed

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    from kanon.client.relaying import RelayedConnection
    from kanon.credentials import arc
    from kanon.credentials.contexts import attested, credential_context, session, tag_context
    from kanon.credentials.p256 import CredentialError
except ImportError as missing:
    raise ImportError(f"{missing.name} is missing: pip install 'kanon-dp[anonymous]'", name=missing.name) from missing

PATH = "/v1/credentials"
_KEYS, _ACCOUNT, _DELETE = request("GET", f"{PATH}/keys"), request("GET", PATH), request("DELETE", PATH)
CODE_BYTES, NONCE_BYTES = 20, 12
SEALED_BYTES = NONCE_BYTES + arc.SECRETS_BYTES + 16
"""The secrets, encrypted with one key. What the service stores has them so for a code, a browser's passkey, or both."""
WEEKS_KEPT = 2


class EnrolmentError(Error, RuntimeError):
    """There is no credential for now, or none can be had. The text says what to do."""


def recovery_code() -> str:
    """A new recovery code: 160 random bits, as 8 groups of 4 letters and digits. It is as secret as the file."""
    text = b32encode(secrets.token_bytes(CODE_BYTES)).decode()
    return "-".join(text[at : at + 4] for at in range(0, len(text), 4))


@dataclass(frozen=True)
class Attested:
    """Names an account by the device: for ``auth`` of an enrolment at a service with a verifier of attestations.

    Attributes:
        deployment: the name of the deployment, as ``GET /v1/credentials/keys`` shows it.
        attest: the attestation of 32 bytes by this device, at most 6,000 bytes.
        now: Unix seconds.
    """

    deployment: str
    attest: Callable[[bytes], bytes] = field(repr=False)
    now: Callable[[], float] = field(default=time.time, repr=False)

    def __call__(self, method: str, _url: str, body: bytes, headers: Headers) -> Headers:
        """The headers with an attestation of this request."""
        at = int(self.now())
        attestation = self.attest(attested(self.deployment, at, method, body))
        return {**headers, "Authorization": f"Bearer {at}.{encoded(attestation)}"}


@dataclass(frozen=True, repr=False)
class _Wallet:
    """What the file holds: the secrets of the person, and the last credentials by week, each with its key."""

    deployment: str
    secrets: arc.Secrets
    credentials: Mapping[int, tuple[bytes, arc.Credential]]

    def encode(self) -> bytes:
        weeks = {week: [encoded(key), encoded(held.encode())] for week, (key, held) in self.credentials.items()}
        held = {"format": 1, "deployment": self.deployment, "secrets": encoded(self.secrets.encode()), "weeks": weeks}
        return json.dumps(held).encode()

    @classmethod
    def decode(cls, content: bytes) -> _Wallet:
        found = json.loads(content)
        if found["format"] != 1:
            raise ValueError("another format")
        weeks = {
            int(week): (_bytes(key), arc.Credential.decode(_bytes(held)))
            for week, (key, held) in found["weeks"].items()
        }
        return cls(found["deployment"], arc.Secrets.decode(_bytes(found["secrets"])), weeks)


@dataclass(frozen=True)
class _Key:
    """The key of the week, as relay and service show it."""

    deployment: str
    epoch: int
    key: bytes


@dataclass
class Anonymous:
    """A person's credential for one service.

    Attributes:
        file: where it is kept, for this user alone. Somebody who reads it can test which sets the person has joined.
        now: Unix seconds.
        random: uniform in [0, 1).
    """

    file: Path | str
    now: Callable[[], float] = time.time
    random: Callable[[], float] = chance
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def _path(self) -> Path:
        return Path(self.file)

    def enrol(
        self,
        service: str,
        *,
        auth: Auth,
        relay: str | None = None,
        recovery: str | None = None,
        direct: bool = False,
    ) -> None:
        """Get the credential of this week for an account; nothing if the file has it and no code is given.

        The service learns that the account enrols now, and nothing that joins later show.

        Args:
            service: the address.
            auth: names the account. One account is one person, on all devices.
            relay: the address of a relay. Through it comes the key, to be compared with the one that the service shows
                directly, and so does the request. Without a relay a service could give one person an own key.
            recovery: a ``recovery_code``. The service stores the secrets, encrypted with it, and another device gets
                them with it. The code that was given last works, until the service forgets the account.
            direct: ask for the credential without the relay, which brings the key only. A service on AWS needs it.

        Raises:
            FileNotFoundError: the folder of the file does not exist.
            KeysDifferError: relay and service show two keys: the service may single out this person.
            EnrolmentError: the account is enrolled on another device, the code is wrong, or the service did not use the
                key that it shows.
            ApiError: as for all calls.
        """
        if not self._path.parent.is_dir():
            raise FileNotFoundError(f"{self.file}: its folder does not exist: make it first")
        through = nullcontext() if relay is None else closing(RelayedConnection(service, relay, None))
        with self._lock, closing(Connection(service)) as shown, through as hidden:
            key = _key_of(shown, hidden)
            with _account(service, None if direct else relay, auth, self.now) as account:
                self._enrol(account, key, recovery)

    def _enrol(self, account: _Call, key: _Key, recovery: str | None) -> None:
        wallet, stored = self._read(), None
        if wallet is None:
            stored = _stored(account)
            made = arc.Secrets.random() if stored is None else _opened(stored, key.deployment, recovery)
            # Two processes may begin at once: both go on with what is in the file, before anything is sent.
            put_file(self._path, _Wallet(key.deployment, made, {}).encode())
            wallet = self._existing()
        if wallet.deployment != key.deployment:
            raise EnrolmentError(f"{self.file} is for another service: give another file")
        if wallet.credentials.get(key.epoch, (b"",))[0] == key.key and recovery is None:
            return
        context = credential_context(key.deployment, key.epoch)
        asked = arc.request(wallet.secrets, context, context)
        body = {"epoch": key.epoch, "request": encoded(asked.message)}
        if kept := stored or _sealed(wallet, recovery):
            body["recovery"] = encoded(kept)
        call = request("POST", PATH, body)
        try:
            answer = read_object(call, account(call))
        except RefusedError as error:
            if error.code == 409:
                unused = "" if wallet.credentials else f"; delete first {self.file}, which was never used"
                raise EnrolmentError(error.message + unused) from None
            raise
        with reading(call):
            response = _bytes(of(str, answer["response"]))
        try:
            held = arc.finish(asked, arc.IssuerPublicKey.decode(key.key), response, context)
        except CredentialError:
            raise EnrolmentError("the service did not use the key that it shows: it may single you out") from None
        weeks = sorted({**wallet.credentials, key.epoch: (key.key, held)}.items())
        self._write(_Wallet(wallet.deployment, wallet.secrets, dict(weeks[-WEEKS_KEPT:])))

    def delete(self, service: str, *, auth: Auth, relay: str | None = None, direct: bool = False) -> None:
        """Let the service make no credential for the account any more. Then delete the file.

        It forgets the account when no credential of it can count any more; until then nobody can enrol it again.
        The arguments are those of ``enrol``.
        """
        with _account(service, None if direct else relay, auth, self.now) as account:
            read_object(_DELETE, account(_DELETE))

    def tag(self, type_: str, value: Value) -> str:
        """A line for ``kanon operate forget-tags``: what the service may forget of this person, in one set.

        It tells who reads it that somebody joined the set, and does not tell who. Send each line by itself, and none
        with a name.

        Raises:
            EnrolmentError: the file has no secrets.
        """
        wallet, set_id = self._existing(), str(value_id(value))
        return f"{type_} {set_id} {encoded(wallet.secrets.tag(tag_context(wallet.deployment, type_, _bytes(set_id))))}"

    def renew_at(self) -> float:
        """A random Unix time at which to enrol next: within a day after the end of this week."""
        return end_of_week(week_of(self.now())) + self.random() * DAY

    def presentation(self, type_: str, set_id: bytes, step: int, at: float) -> dict[str, Any]:
        """How a join at a time names its client.

        Raises:
            EnrolmentError: there is no credential for then.
        """
        wallet = self._read()
        weeks = [] if wallet is None else [week for week in valid_weeks(at) if week in wallet.credentials]
        if wallet is None or not weeks:
            raise EnrolmentError(f"{self.file} has no credential for now: call enrol, at another time than joins")
        week = weeks[-1]
        key, credential = wallet.credentials[week]
        bound = session(wallet.deployment, key, week, "POST", type_, set_id, step)
        proof = arc.present(credential, tag_context(wallet.deployment, type_, set_id), bound)
        return {"presentation": {"epoch": week, "step": step, "proof": encoded(proof)}}

    def _read(self) -> _Wallet | None:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return _Wallet.decode(content)
        except (ValueError, KeyError, TypeError):
            raise EnrolmentError(f"{self.file} is damaged: delete it, and enrol with the recovery code") from None

    def _existing(self) -> _Wallet:
        found = self._read()
        if found is None:
            raise EnrolmentError(f"{self.file} was deleted meanwhile: enrol again")
        return found

    def _write(self, wallet: _Wallet) -> None:
        """Replace the file, whole or not at all."""
        beside = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        put_file(beside, wallet.encode())
        beside.replace(self._path)


_Call = Callable[[Request], Reply]


@contextmanager
def _account(service: str, relay: str | None, auth: Auth, now: Callable[[], float]) -> Iterator[_Call]:
    """Calls with the name of the account, through the relay if there is one."""
    connection = Connection(service, auth=auth) if relay is None else RelayedConnection(service, relay, auth, now)
    with closing(connection):
        yield lambda call: connection(*call, call.headers, None)


def _key_of(direct: Connection, hidden: RelayedConnection | None) -> _Key:
    """The key that the service shows, if the relay brings the same.

    Raises:
        KeysDifferError: it does not.
    """
    answers = [read_object(_KEYS, each(*_KEYS, _KEYS.headers, None)) for each in (direct, hidden) if each is not None]
    if answers[0] != answers[-1]:
        raise KeysDifferError
    with reading(_KEYS):
        shown = answers[0]
        return _Key(of(str, shown["deployment"]), of(int, shown["epoch"]), _bytes(of(str, shown["key"])))


def _stored(account: _Call) -> bytes | None:
    """What another device of the account has stored; None if the account is new."""
    reply = account(_ACCOUNT)
    if reply.status == 404:
        return None
    answer = read_object(_ACCOUNT, reply)
    with reading(_ACCOUNT):
        return _bytes(of(str, answer["recovery"]))


def _opened(stored: bytes, deployment: str, recovery: str | None) -> arc.Secrets:
    """The secrets that the code opens. Some of what is stored may be for a passkey.

    Raises:
        EnrolmentError: it opens none.
    """
    if recovery is None:
        raise EnrolmentError("this account is enrolled on another device: give its recovery code")
    if not stored:
        raise EnrolmentError("this account is enrolled on another device, without a recovery code: use that device")
    key = AESGCM(_code_key(deployment, recovery))
    for at in range(0, len(stored), SEALED_BYTES):
        sealed = stored[at : at + SEALED_BYTES]
        with suppress(InvalidTag, ValueError):
            return arc.Secrets.decode(key.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None))
    raise EnrolmentError("the recovery code is not the one of this account")


def _sealed(wallet: _Wallet, recovery: str | None) -> bytes:
    """The secrets for other devices, encrypted; empty without a code."""
    if recovery is None:
        return b""
    nonce, key = os.urandom(NONCE_BYTES), AESGCM(_code_key(wallet.deployment, recovery))
    return nonce + key.encrypt(nonce, wallet.secrets.encode(), None)


def _code_key(deployment: str, recovery: str) -> bytes:
    """The key of a code. Its bits are random, so no slow function is needed.

    Raises:
        EnrolmentError: it was not made by ``recovery_code``.
    """
    code = "".join(recovery.upper().replace("-", " ").split())
    if len(code) != CODE_BYTES * 8 // 5 or not code.isalnum():
        raise EnrolmentError("a recovery code is what recovery_code() makes: 8 groups of 4 letters and digits")
    info = length_prefixed(b"kanon recovery 1", deployment.encode())
    return HKDF(SHA256(), 32, None, info).derive(code.encode())


def _bytes(text: str) -> bytes:
    return decoded(SetId(text))
