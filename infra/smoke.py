"""Sends every kind of request to a deployed service once and checks the answers: ``python -m infra.smoke URL``.

Two clients join one set with a random name; nothing else is written. Requests that need a signature are signed with
the AWS credentials of the shell, if there are any. Exits with a status other than 0 if a check fails.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.credentials import Credentials

from infra.openapi import GATE, WITH_REPORTS
from kanon import clock
from kanon.client import ApiError, Connection, Headers, NoAnswerError, RefusedError, encoded
from kanon.client.relaying import RelayedConnection
from kanon.client.signing import SigV4

DESCRIPTIONS = [json.loads(file.read_text()) for file in (*GATE.files, *WITH_REPORTS.files)]
SECONDS = 30  # for one request, a cold start included
_JSON = {"Content-Type": "application/json"}


class WrongError(Exception):
    """A check failed; the message says why."""


class SkippedError(Exception):
    """A check cannot run here; the message says why."""


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body, which must be an object."""
        try:
            value = json.loads(self.body)
        except ValueError as error:
            raise WrongError(f"{self.status} with a body that is not JSON") from error
        if not isinstance(value, dict):
            raise WrongError(f"{self.status} with a body that is not an object")
        return value

    def expect(self, status: int) -> dict[str, Any]:
        """The body of an answer that must have this status."""
        if self.status != status:
            raise WrongError(f"expected {status}, got {self.status}: {self.body[:200].decode(errors='replace')}")
        return self.json()

    def expect_error(self, code: int, status: str) -> None:
        """Check that the answer is an error in the format of the service."""
        error = self.expect(code).get("error")
        if not isinstance(error, dict) or (error.get("code"), error.get("status")) != (code, status):
            raise WrongError(f"{code} does not have the form of the service's errors with status {status}")
        if not error.get("message"):
            raise WrongError(f"{code} has no message")

    def expect_refused(self, calls: str) -> None:
        """Check that a request without a signature was refused."""
        if self.status not in (401, 403):
            raise WrongError(f"answered {self.status} without a signature: anyone may send {calls}")

    def expect_cached_until(self, moment: str) -> None:
        """Check that ``Cache-Control`` lets caches keep the answer until the next update, but no longer."""
        left = datetime.fromisoformat(moment).timestamp() - clock.now()
        found = re.fullmatch(r"max-age=(\d+)", self.headers.get("cache-control", ""))
        if not found:
            raise WrongError(f"Cache-Control is {self.headers.get('cache-control')!r} instead of max-age=...")
        # The clocks of the service and of this machine may differ, and the answer took some time.
        if abs(int(found[1]) - left) > SECONDS:
            raise WrongError(f"max-age is {found[1]} s, but nextUpdate is in {left:.0f} s")


@dataclass
class Service:
    """The service at an address, and the results that later checks need."""

    url: str
    credentials: Credentials | None = None
    region: str | None = None
    type_name: str = ""
    client: str = field(default_factory=lambda: secrets.token_hex(8))
    set_id: str = field(default_factory=lambda: encoded(secrets.token_bytes(32)))

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("https", "http") or not parts.hostname or parts.query:
            raise ValueError(f"{self.url!r} is not an address: give the output ApiUrl, https://...")
        if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "localhost"):
            raise ValueError("http:// only for this machine: give an https:// address")
        self.url = self.url.rstrip("/")
        regional = re.search(r"\.execute-api\.([a-z0-9-]+)\.amazonaws\.", parts.hostname)
        self.region = regional[1] if regional else self.region

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] = _JSON,
        signed: bool = False,
    ) -> Answer:
        """Send one request; ``body`` is bytes or a value to send as JSON."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        auth = self._sign if signed else None
        with closing(Connection(self.url, timeout=SECONDS, auth=auth)) as connection:
            try:
                answer = connection(method, path, data, headers if data else {})
            except NoAnswerError as error:
                raise WrongError(str(error)) from error
        return Answer(answer.status, {name.lower(): value for name, value in answer.headers}, answer.body)

    def _sign(self, method: str, url: str, data: bytes, headers: Headers) -> Headers:
        if self.credentials is None:
            raise SkippedError("the request needs a signature, and there are no AWS credentials here")
        if self.region is None:
            raise SkippedError("the request needs a signature, and the region is unknown: set AWS_REGION")
        return SigV4(self.credentials, self.region)(method, url, data, headers)

    @property
    def set_path(self) -> str:
        """The path of the random set."""
        return f"/v1/types/{self.type_name}/sets/{self.set_id}"


def types(service: Service) -> str:
    """The list of types, and one type; the other checks use the first one."""
    found = service.ask("GET", "/v1/types").expect(200).get("types")
    if not isinstance(found, list) or not found:
        raise WrongError("GET /v1/types lists no types")
    first = found[0]
    if not {"type", "k", "window", "period", "bounds", "surelyTrueFrom"} <= first.keys():
        raise WrongError(f"a type lacks some parameters; it has {sorted(first)}")
    service.type_name = first["type"]
    if service.ask("GET", f"/v1/types/{service.type_name}").expect(200) != first:
        raise WrongError("one type asked by its name differs from the list")
    return ", ".join(f"{t['type']} (k {t['k']}, {t['window']} steps of {t['period']} s)" for t in found)


def description(service: Service) -> str:
    """The OpenAPI description is the one of this checkout."""
    served = service.ask("GET", "/openapi.json").expect(200)
    if served not in DESCRIPTIONS:
        raise WrongError("/openapi.json is not that of this checkout: another version is deployed")
    return f"OpenAPI {served['openapi']}, {len(served['paths'])} paths"


def page(service: Service) -> None:
    """The page at /docs may load nothing from other origins."""
    answer = service.ask("GET", "/docs")
    if answer.status != 200 or not answer.headers.get("content-type", "").startswith("text/html"):
        raise WrongError(f"/docs is {answer.status} {answer.headers.get('content-type')}")
    if "default-src 'none'" not in answer.headers.get("content-security-policy", ""):
        raise WrongError("/docs has no Content-Security-Policy")


def join(service: Service) -> str:
    """A join on the path with a colon."""
    return _join(service, f"{service.set_path}:join", {"client": service.client})


def encoded_colon(service: Service) -> str:
    """A join with an escaped colon, which some clients send: the path is the same."""
    return _join(service, f"{service.set_path}%3Ajoin", {"client": service.client})


def lenient_body(service: Service) -> str:
    """A join with the relaxed JSON body that browsers send."""
    return _join(service, f"{service.set_path}:join", b"{name: 'type/any/sets/any', shortClientIdentifier: 2}")


def _join(service: Service, path: str, body: object) -> str:
    """Send a join, signed if the service requires it."""
    answer, remark = service.ask("POST", path, body), "open to anyone"
    if answer.status == 403:
        answer, remark = service.ask("POST", path, body, signed=True), "signed; unsigned is refused"
    if answer.expect(200) != {}:
        raise WrongError("a join was not answered {}")
    return remark


def batch_refused(service: Service) -> None:
    """A batch that is not signed never reaches the service."""
    service.ask("POST", "/v1:batchJoin", {"joins": []}).expect_refused("batches")


def batch(service: Service) -> None:
    """A signed batch; an invalid join does not affect the other one."""
    good = {"type": service.type_name, "set": service.set_id, "client": service.client}
    joins = [good, {**good, "set": "?"}]
    results = service.ask("POST", "/v1:batchJoin", {"joins": joins}, signed=True).expect(200).get("results")
    if not isinstance(results, list) or len(results) != 2 or results[0] != {}:
        raise WrongError(f"results are {results}")
    if results[1].get("error", {}).get("code") != 400:
        raise WrongError("the invalid join of the batch is not answered 400")


def query(service: Service) -> str:
    """A query; caches may keep it until the next update."""
    asked = {"setsForType": [{"type": service.type_name, "hashes": [service.set_id]}]}
    answer = service.ask("POST", "/v1:query", asked)
    body = answer.expect(200)
    if body.get("kAnonymousSets") != [{"type": service.type_name, "hashes": []}]:
        raise WrongError("a set of two clients is not reported as not k-anonymous")
    answer.expect_cached_until(body["nextUpdate"])
    if body["step"] is None:
        return "no step yet; the first is seen at its tick"
    return f"step {body['step']}, next update {body['nextUpdate']}"


def batch_query(service: Service) -> None:
    """A signed query for many hashes; without a signature it is refused."""
    asked = {"setsForType": [{"type": service.type_name, "hashes": [service.set_id] * 1000}]}
    service.ask("POST", "/v1:batchQuery", asked).expect_refused("large queries")
    service.ask("POST", "/v1:batchQuery", asked, signed=True).expect(200)


def validate(service: Service) -> None:
    """The same query in the format of Bidding and Auction servers."""
    asked = {"sets": [{"type": service.type_name, "hashes": [service.set_id]}]}
    service.ask("POST", "/v1:validateHashes", asked).expect(200)


def one_set(service: Service) -> None:
    """The status of one set."""
    answer = service.ask("GET", service.set_path)
    body = answer.expect(200)
    if body.get("kAnonymous") is not False:
        raise WrongError("a set of two clients is not reported as not k-anonymous")
    answer.expect_cached_until(body["nextUpdate"])


def errors(service: Service) -> str:
    """Invalid requests get errors in the format of the service, which no cache keeps."""
    ask = service.ask
    wrong = [
        (ask("POST", "/v1:query", b"{"), 400, "INVALID_ARGUMENT"),
        (ask("POST", "/v1:query", {"setsForType": [{"type": "a", "hashes": ["?"]}]}), 400, "INVALID_ARGUMENT"),
        (ask("POST", "/v1:query", b"x", headers={"Content-Type": "text/plain"}), 415, "UNSUPPORTED_MEDIA_TYPE"),
        (ask("POST", "/v1:query", b" " * (1024 * 1024 + 1)), 413, "PAYLOAD_TOO_LARGE"),
        (ask("GET", "/v1/types/no-such-type"), 404, "NOT_FOUND"),
        (ask("GET", f"{service.set_path}:join"), 404, "NOT_FOUND"),
    ]
    for answer, code, status in wrong:
        answer.expect_error(code, status)
        if answer.headers.get("cache-control") != "no-store":
            raise WrongError(f"caches may keep a {code}")
    ask("GET", "/v1/no-such-call").expect(404)
    return f"{len(wrong)} kinds"


def relays(service: Service) -> str:
    """A join through the gateway, as a relay passes it on."""
    if service.ask("GET", "/v1/proxy/keys").status == 404:
        raise SkippedError("the service has no gateway for relays")
    path, body = f"{service.set_path}:join", json.dumps({"client": service.client}).encode()
    try:
        with closing(RelayedConnection(service.url, service.url, None, clock.now)) as relayed:
            reply = relayed("POST", path, body, _JSON, SECONDS)
    except RefusedError as error:
        if error.code == 403:
            raise SkippedError("its gateway answers only relays with the secret") from error
        raise WrongError(str(error)) from error
    except ApiError as error:
        raise WrongError(str(error)) from error
    if (reply.status, reply.body) != (200, b"{}"):
        raise WrongError(f"a join through the gateway got {reply.status}: {reply.body[:200].decode(errors='replace')}")
    return "open to any relay"


def credentials(service: Service) -> str:
    """The issuer's key is whole and of this week, and an account is named. Nobody enrols: it would be the operator."""
    answer = service.ask("GET", "/v1/credentials/keys")
    if answer.status == 404:
        raise SkippedError("the service has no issuer of credentials")
    key = answer.expect(200)
    if hashlib.sha256(base64.urlsafe_b64decode(key["key"] + "==")).hexdigest() != key["sha256"]:
        raise WrongError("the key is not the one whose SHA-256 is shown")
    if key["epoch"] not in clock.valid_weeks(clock.now()):
        raise WrongError(f"the key is of week {key['epoch']}, which is not valid now")
    service.ask("GET", "/v1/credentials").expect_refused("requests about accounts")
    account = service.ask("GET", "/v1/credentials", signed=True)
    if account.status in (401, 403):
        return "accounts are named by tokens or attestations"
    if account.status != 404 and "recovery" not in account.expect(200):
        raise WrongError("an account is answered without what its devices share")
    return "accounts are named by signatures"


CHECKS: dict[str, Callable[[Service], str | None]] = {
    "types": types,
    "description": description,
    "page": page,
    "join": join,
    "join with %3A": encoded_colon,
    "join as browsers send it": lenient_body,
    "batchJoin refused unsigned": batch_refused,
    "batchJoin": batch,
    "query": query,
    "batchQuery": batch_query,
    "validateHashes": validate,
    "one set": one_set,
    "errors": errors,
    "relays": relays,
    "credentials": credentials,
}


@dataclass(frozen=True)
class Result:
    """The result of a check: ``ok``, ``FAIL`` or ``skip``."""

    name: str
    verdict: str
    remark: str

    def __str__(self) -> str:
        return f"{self.verdict:<5} {self.name}{self.remark and ': ' + self.remark}"


def run(service: Service) -> Iterator[Result]:
    """Run every check in turn; stop if no type is known."""
    for name, check in CHECKS.items():
        try:
            yield Result(name, "ok", check(service) or "")
        except SkippedError as error:
            yield Result(name, "skip", str(error))
        except WrongError as error:
            yield Result(name, "FAIL", str(error))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            yield Result(name, "FAIL", f"the answer does not have the form of the description ({error!r})")
        if not service.type_name:
            return


def main(arguments: list[str]) -> int:
    """Run all checks and return the exit status."""
    if len(arguments) != 1:
        print("usage: python -m infra.smoke https://...", file=sys.stderr)
        return 2
    session = boto3.Session()
    try:
        service = Service(arguments[0], session.get_credentials(), session.region_name)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    failed = skipped = 0
    for result in run(service):
        print(result, flush=True)
        failed += result.verdict == "FAIL"
        skipped += result.verdict == "skip"
    print(f"{failed} failed, {skipped} skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
