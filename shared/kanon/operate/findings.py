"""Findings about parts of a running stack, for ``kanon doctor``."""

from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any, ParamSpec

from botocore.exceptions import BotoCoreError, ClientError
from pydantic import BaseModel

from kanon.errors import ConfigurationError
from kanon.findings import Finding, Section, Verdict
from kanon.operate.stacks import reason

P = ParamSpec("P")


def readable(
    check: str, section: Section | None = None
) -> Callable[[Callable[P, Iterable[Finding]]], Callable[P, list[Finding]]]:
    """Make a finding named ``check`` of an error that ends a check.

    NOT_SEEN means that a call was refused. FAIL means that evaluation refuses the configuration, in a check with a
    ``section``.
    """

    def with_errors(findings: Callable[P, Iterable[Finding]]) -> Callable[P, list[Finding]]:
        @wraps(findings)
        def found(*args: P.args, **kwargs: P.kwargs) -> list[Finding]:
            try:
                return list(findings(*args, **kwargs))
            except ConfigurationError as error:
                if section is None:
                    raise
                return [Finding(check, Verdict.FAIL, str(error), "nothing is evaluated until then", section)]
            except (BotoCoreError, ClientError) as error:
                return [Finding(check, Verdict.NOT_SEEN, reason(error))]

        return found

    return with_errors


def environment_finding(
    check: str, settings: Collection[BaseModel], names: Iterable[str], good: str, section: Section
) -> Finding:
    """A finding about the settings of functions: an interrupted deployment leaves some of these names inconsistent."""
    differing = [name for name in names if len({getattr(each, name) for each in settings if hasattr(each, name)}) > 1]
    if differing:
        seen = f"the functions have inconsistent environments: {', '.join(differing)}"
        return Finding(check, Verdict.FAIL, seen, "deploy again: a deployment was interrupted", section)
    return Finding(check, Verdict.OK, good)


def queue_finding(check: str, client: Any, url: str, most: int, advice: str, section: Section) -> Finding:
    """A finding about the messages that wait in a queue: more than ``most`` are a warning."""
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    try:
        attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=list(names))["Attributes"]
    except (BotoCoreError, ClientError) as error:
        return Finding(check, Verdict.NOT_SEEN, reason(error))
    waiting, in_hand = (int(attributes.get(name, 0)) for name in names)
    seen = f"{waiting} waiting, {in_hand} in progress or waiting for redelivery"
    return Finding(check, Verdict.WARN, seen, advice, section) if waiting > most else Finding(check, Verdict.OK, seen)


def schedule_finding(check: str, client: Any, name: str | None, advice: str, section: Section) -> Finding:
    """A finding about a schedule of EventBridge: it fails if it is off. Without a name, it cannot be seen."""
    if name is None:
        return Finding(check, Verdict.NOT_SEEN, "not found, or not readable")
    try:
        state = client.get_schedule(Name=name)["State"]
    except (BotoCoreError, ClientError) as error:
        return Finding(check, Verdict.NOT_SEEN, reason(error))
    off = Finding(check, Verdict.FAIL, state.lower(), advice, section)
    return Finding(check, Verdict.OK, "enabled") if state == "ENABLED" else off
