"""The issuer of credentials of a stack: its secret, which exists before the stack does, and its accounts."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kanon.clock import AFTER, LATE, end_of_week, week_of
from kanon.errors import ConfigurationError
from kanon.findings import Finding, Section, Verdict, moment
from kanon.gate.issuer_settings import IssuerSettings
from kanon.gate.storage.aws.control import Control
from kanon.gate.storage.aws.opening import NAMED_BY, Opening
from kanon.keys import fetch_secret
from kanon.operate.findings import readable
from kanon.operate.stacks import RunningStack

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient

CHECK = "accounts"
OWNER, ACCOUNT_KEY = "issuer", "key account-key"
"""Where Control has the fingerprint of the key that names accounts."""


def issuer_key(client: "SecretsManagerClient", stack: str, draw: Callable[[], str], *, new: bool = False) -> str:
    """The ARN of the last secret of a stack's issuer: the parameter ``IssuerKeySecret``.

    If there is none, or with ``new``, another one gets a text of at least 256 random bits, which ``draw`` makes.
    """
    name, last, number = f"kanon/{stack}/issuer-key", "", 1
    while True:
        of_number = f"{name}-{number}"
        try:
            last = client.describe_secret(SecretId=of_number)["ARN"]
        except client.exceptions.ResourceNotFoundException:
            break
        number += 1
    if last and not new:
        return last
    return client.create_secret(
        Name=of_number, Description=f"Key that makes any number of people of {stack}", SecretString=draw()
    )["ARN"]


def issuer_of(stack: RunningStack) -> IssuerSettings:
    """The settings of a stack's issuer.

    Raises:
        ConfigurationError: it has none.
    """
    if stack.issuer is None:
        raise ConfigurationError("the stack issues no credentials: deploy it with IssuerKeySecret")
    return stack.issuer


@readable(CHECK)
def examine_issuer(stack: RunningStack, now: float, *, secrets: bool) -> Iterator[Finding]:
    """Whether accounts may enrol at ``now`` (Unix s); with ``secrets`` also whether their key is as it was recorded."""
    if stack.issuer is None:
        return
    settings, client = stack.issuer, stack.client("dynamodb")
    try:
        until = Opening(client, settings.control_table).recorded(settings.accounts_table)
    except ConfigurationError as error:
        yield Finding(CHECK, Verdict.FAIL, str(error), "joins go on, enrolment does not", Section.ACCOUNTS)
    else:
        yield _finding(until, now)
    if secrets:
        key = fetch_secret(stack.client("secretsmanager"), "account-key", settings.account_key_secret)
        recorded = Control(client, settings.control_table).recorded(OWNER).get(ACCOUNT_KEY)
        if recorded not in (None, key.fingerprint):
            seen = "the key of accounts is another one: nobody can enrol"
            yield Finding(CHECK, Verdict.FAIL, seen, "restore it, or kanon operate new-accounts", Section.ACCOUNTS)


def _finding(until: float | None, now: float) -> Finding:
    if until is None:
        return Finding(CHECK, Verdict.NOT_SEEN, "nobody has enrolled yet")
    if now < until:
        return Finding(CHECK, Verdict.WARN, f"nobody can enrol before {moment(until)}", "wait", Section.ACCOUNTS)
    return Finding(CHECK, Verdict.OK, "the table is the recorded one")


def opens_at(settings: IssuerSettings, now: float) -> int:
    """When no join counts any more that an account may have made whose row is missing at ``now``, in Unix seconds."""
    return end_of_week(week_of(now)) + AFTER + settings.longest + LATE


def new_accounts(stack: RunningStack, now: float) -> int:
    """Take table, key and names of accounts as they are. Returns the Unix time from which accounts may enrol.

    Raises:
        ConfigurationError: the stack has no issuer.
    """
    settings = issuer_of(stack)
    client, until = stack.client("dynamodb"), opens_at(settings, now)
    Opening(client, settings.control_table).begin_again(settings.accounts_table, until)
    for name in (ACCOUNT_KEY, NAMED_BY):
        Control(client, settings.control_table).erase(OWNER, name)
    return until
