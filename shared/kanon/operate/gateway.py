"""The gateway of a running stack, for ``kanon doctor``: whether clients are given the key that opens their requests."""

from collections.abc import Iterator
from contextlib import closing

from kanon.client import Connection, NoAnswerError
from kanon.clock import BEFORE
from kanon.findings import Finding, Section, Verdict
from kanon.keys import fetch_secret
from kanon.operate.findings import readable
from kanon.operate.stacks import RunningStack

CHECK = "key of relays"
KEYS = "/v1/proxy/keys"
SECONDS = 10
NO_DIRECT_CALLS = (401, 403)
"""Statuses behind an edge, which alone may call the API."""


@readable(CHECK)
def examine_gateway(stack: RunningStack, now: float, *, secrets: bool) -> Iterator[Finding]:
    """The finding about the key that the gateway serves at ``now`` (Unix s); with ``secrets`` it is computed again."""
    if stack.gateway is None:
        return
    if not stack.url:
        yield Finding(CHECK, Verdict.NOT_SEEN, "the address of the API is not known")
        return
    try:
        with closing(Connection(stack.url, timeout=SECONDS)) as connection:
            answer = connection("GET", KEYS, b"", {})
    except NoAnswerError:
        yield Finding(CHECK, Verdict.NOT_SEEN, f"no answer from {stack.url}")
        return
    if answer.status == 200:
        yield _finding(stack, answer.body, now, secrets=secrets)
    elif answer.status in NO_DIRECT_CALLS:
        yield Finding(CHECK, Verdict.NOT_SEEN, f"GET {KEYS} is {answer.status}: only the edge may call")
    else:
        yield _wrong(f"GET {KEYS} is {answer.status}", "read the log of gateway")


def _finding(stack: RunningStack, served: bytes, now: float, *, secrets: bool) -> Finding:
    try:
        from kanon.gateway.epochs import Epochs, id_of_week
        from kanon.gateway.oblivious import read_config
    except ImportError:  # cryptography
        return Finding(CHECK, Verdict.NOT_SEEN, "pip install 'kanon-dp[relay]' reads it")
    moments = (now - BEFORE, now, now + BEFORE)  # the clocks of the service and of this machine may differ
    try:
        config = read_config(served)
    except ValueError as error:
        return _wrong(f"what GET {KEYS} answers is no key: {error}", "find what answers in place of gateway")
    if config.id not in map(id_of_week, moments):
        return _wrong("it is that of another week", "let no cache keep it for longer than Cache-Control says")
    if not secrets or stack.gateway is None:
        return Finding(CHECK, Verdict.OK, "that of this week; compared with its secret only with --secrets")
    client = stack.client("secretsmanager")
    epochs = Epochs(fetch_secret(client, "gateway-key", stack.gateway.gateway_key_secret))
    if served not in [epochs.current(moment).encode() for moment in moments]:
        return _wrong("it is not made of the secret", "deploy gateway again, and empty the caches in front of it")
    return Finding(CHECK, Verdict.OK, "that of this week, made of the secret")


def _wrong(seen: str, advice: str) -> Finding:
    return Finding(CHECK, Verdict.FAIL, seen, f"clients of relays cannot call: {advice}", Section.GATEWAY_FAILING)
