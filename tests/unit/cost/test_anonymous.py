"""The table of `kanon cost --table anonymous`: joins without a name, and enrolments."""

import base64

import pytest

from kanon.cost.anonymous import CREDENTIAL_BYTES, enrolments, table
from kanon.cost.billing import read_measured, read_prices
from kanon.credentials import arc
from tests.unit.examples import PUBLISHED

MEASURED, PRICES = read_measured(None), read_prices(None)


def test_each_way_costs_more_than_the_one_before_and_an_enrolment_more_than_a_join() -> None:
    dollars = dict(table(PUBLISHED, MEASURED, PRICES))
    assert [*dollars.values()] == sorted(dollars.values())
    assert len(dollars) == 5
    assert min(dollars.values()) > 1
    assert max(dollars.values()) < 10


def test_an_enrolment_is_three_requests_one_write_and_two_strong_reads() -> None:
    one, two = enrolments(1, MEASURED), enrolments(2, MEASURED)
    assert two == {name: pytest.approx(2 * quantity) for name, quantity in one.items()}
    counted = {name: one[name] for name in ("apigateway.http", "lambda.requests", "dynamodb.write", "dynamodb.read")}
    assert counted == {"apigateway.http": 3, "lambda.requests": 3, "dynamodb.write": 1, "dynamodb.read": 2}


def test_the_time_to_make_a_credential_is_billed_at_the_share_of_a_processor() -> None:
    slower = enrolments(10**6, {**MEASURED, "issue_ms": MEASURED["issue_ms"] + 1})
    more = slower["lambda.arm64"] - enrolments(10**6, MEASURED)["lambda.arm64"]
    assert more == pytest.approx(10**6 * 1769 / 1024 / 1000)  # GB-seconds of a whole processor for a millisecond


def test_the_bytes_of_a_credential_are_those_that_the_issuer_sends() -> None:
    secrets, key = arc.Secrets.random(), arc.IssuerKey.derive(bytes(32))
    response = arc.issue(key, arc.request(secrets, b"epoch").message)
    assert len(base64.urlsafe_b64encode(response).rstrip(b"=")) == CREDENTIAL_BYTES
