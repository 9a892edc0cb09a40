"""Lambda function `issuer`: makes credentials for accounts. It sees no join, and `join` sees no account.

A schedule lets it forget the accounts of which no join can count any more.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from kanon import aws, clock
from kanon.credentials.enrolling import Enrolling, free_through
from kanon.dynamo.fingerprints import DEPLOYMENT
from kanon.errors import kind_and_place, texts_withheld
from kanon.gate.admitting import ACCOUNT_KEY, ISSUER_KEY, issuer_of
from kanon.gate.attesting import DeviceAccounts, NoVerdictError
from kanon.gate.enrol_routes import EnrolRoutes
from kanon.gate.issuer_settings import IssuerSettings
from kanon.gate.storage.aws.accounts import Accounts
from kanon.gate.storage.aws.control import Control
from kanon.gate.storage.aws.opening import NAMED_BY, Opening
from kanon.http.edge import handle, refused, resolver
from kanon.http.origin import edge_of
from kanon.keys import fetch_secret
from kanon.starting import Once

SETTINGS = IssuerSettings.from_environment()
LONGEST = SETTINGS.longest
MOST_SECONDS = 840
"""For which one run deletes rows. The function may take a minute more."""

ORIGIN = edge_of(SETTINGS.edge_secret)

logger = Logger()
metrics = Metrics()


class Account(NamedTuple):
    """An account, and who gives accounts their names: with somebody else everybody would have a second account."""

    name: str
    named_by: str


def account_of(event: Mapping[str, Any]) -> Account | None:
    """The account that API Gateway has checked. A role or user is one; the names of its sessions do not count.

    A guest of Cognito is none: anybody gets any number of such identities. Nor is a token without ``sub``.
    """
    checked = event["requestContext"].get("authorizer") or {}
    if "jwt" in checked:
        claims = checked["jwt"]["claims"]
        return Account(f"JWT {claims['sub']}", f"JWT {claims.get('iss')}") if claims.get("sub") else None
    if "iam" not in checked:
        return None
    signed = checked["iam"]
    person = signed.get("cognitoIdentity") or {}
    if "unauthenticated" in (person.get("amr") or ()):
        return None
    return Account(f"IAM {person.get('identityId') or signed['userId'].partition(':')[0]}", "IAM")


lambda_client = Once(aws.functions)


def asked_verifier(question: bytes) -> bytes:
    """The answer of the operator's function, which is asked once.

    Raises:
        NoVerdictError: it gives none in time, or fails.
    """
    try:
        reply = lambda_client().invoke(FunctionName=SETTINGS.enrol_verifier, Payload=question)
        answer: bytes = reply["Payload"].read()
    except Exception:  # noqa: BLE001, it is the operator's, and what it says may name an account
        raise NoVerdictError from None
    if reply.get("FunctionError"):
        raise NoVerdictError
    return answer


def finder() -> Callable[[Mapping[str, Any]], Account | None]:
    """Finds the account of an event: API Gateway has checked it, or the verifier says whose attestation it has."""
    if not SETTINGS.enrol_verifier:
        return account_of
    attested = DeviceAccounts(enrolling()[0].issuer.deployment, asked_verifier)
    named_by = f"VERIFIER {':'.join(SETTINGS.enrol_verifier.split(':')[:7])}"  # the function, whatever its alias

    def identify(event: Mapping[str, Any]) -> Account | None:
        name = attested(event)
        return None if name is None else Account(f"VERIFIER {name}", named_by)

    return identify


@Once
def enrolling() -> tuple[Enrolling, Accounts]:
    """The use case and its rows, built once per execution environment."""
    dynamodb = aws.dynamodb()
    secret = fetch_secret(aws.secrets_manager(), ISSUER_KEY, SETTINGS.issuer_key_secret)
    opening, accounts = Opening(dynamodb, SETTINGS.control_table), Accounts(dynamodb, SETTINGS.accounts_table)
    issuer = issuer_of(secret, SETTINGS.deployment)
    closed_until = partial(opening.closed_until, SETTINGS.accounts_table)
    return Enrolling(issuer, accounts, LONGEST, closed_until), accounts


@Once
def app() -> APIGatewayHttpResolver:
    """The routes with their secrets. Another key or other names of accounts are an error: one could enrol twice."""
    account_key = fetch_secret(aws.secrets_manager(), ACCOUNT_KEY, SETTINGS.account_key_secret)
    control = Control(aws.dynamodb(), SETTINGS.control_table)
    control.check("issuer", {DEPLOYMENT: SETTINGS.deployment, f"key {ACCOUNT_KEY}": account_key.fingerprint})

    account_in = finder()

    @lru_cache(maxsize=1)
    def check(named_by: str) -> None:
        control.check("issuer", {NAMED_BY: named_by})

    def identify(event: Mapping[str, Any]) -> str | None:
        account = account_in(event)
        if account is None:
            return None
        check(account.named_by)
        return account.name

    made = resolver(logger)
    EnrolRoutes(enrolling()[0], account_key, identify).add_to(made)
    return made


def resolved(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """The answer to a request, also if the secrets or Control cannot be read or have changed."""
    try:
        routes = app()
    except Exception as error:  # noqa: BLE001, the one place that answers and logs errors of the start
        return refused(error, logger)
    return handle(routes, event, context, logger, ORIGIN)


@metrics.log_metrics
def answered(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """The answer to a request, counted."""
    result = resolved(event, context)
    status = result["statusCode"]
    outcome = "EnrolmentsFailed" if status >= 500 else "RequestsRejected" if status >= 400 else "EnrolmentsAnswered"
    metrics.add_metric(outcome, MetricUnit.Count, 1)
    return result


def forget() -> None:
    """Delete the accounts of which no join counts any more. What fails, or takes too long, is done the next day."""
    started = clock.now()
    try:
        enrolling()[1].forget(free_through(started, LONGEST), lambda: clock.now() < started + MOST_SECONDS)
    except Exception as error:
        logger.error("accounts are not forgotten", **kind_and_place(error))
        raise


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any] | None:
    """Entry point: the API calls it, and a schedule once a day."""
    if "schedule" in event:
        forget()
        return None
    result: dict[str, Any] = answered(event, context)
    return result
