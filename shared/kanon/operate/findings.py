"""The findings of ``kanon doctor``, each with a verdict and what to do."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import wraps
from typing import Any, ParamSpec

from botocore.exceptions import BotoCoreError, ClientError
from pydantic import BaseModel

from kanon.errors import ConfigurationError
from kanon.operate.stacks import reason

P = ParamSpec("P")
PAGE = "docs/guides/operate.md"


class Verdict(StrEnum):
    """``NOT_SEEN`` is neither good nor bad: a permission is missing, or there is nothing to see yet."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"
    NOT_SEEN = "not seen"


class Section(StrEnum):
    """The sections of the runbook that a finding may point to."""

    EVALUATION_STOPPED = "evaluationstopped"
    JOINS_REFUSED = "joinsrefused"
    QUERIES_REFUSED = "queriesrefused"
    TYPE_MISSING = "a-type-is-missing"
    NOISE_KEYS = "rotating-the-noise-key"
    ROLLED_BACK = "a-deployment-was-rolled-back"
    TABLE_REPLACED = "a-table-was-replaced"
    GIVING_UP = "giving-up-steps"
    KEY = "the-key-of-the-tables"
    MIXTURE = "tables-of-different-times"
    EVALUATION_LATE = "evaluationlate"
    LEASE = "a-lease-is-held-for-too-long"
    PUBLISH_LATE = "publishlate"
    DEAD_LETTERS = "deadletterswaiting"
    STUCK_JOBS = "stuckjobs"
    KEYS_MISSING = "keysmissing"
    BUDGET_TABLE_REPLACED = "budgettablereplaced"
    JOB_TABLE_LOST = "the-table-of-jobs-was-lost"
    PUBLICATION_FAILED = "a-publication-failed"
    HELD_BUDGET = "budget-of-no-live-job"
    REPORT_DEAD_LETTERS = "reportdeadletterswaiting"
    REPORT_FUNCTION_ERRORS = "reportfunctionerrors"
    REPORT_TABLE_COPIES = "copies-of-the-report-tables"


@dataclass(frozen=True)
class Finding:
    """The result of a check; ``advice`` says what to do, ``section`` is the section of the runbook."""

    check: str
    verdict: Verdict
    seen: str
    advice: str = ""
    section: Section | None = None

    @property
    def page(self) -> str:
        """The address of the section; empty if there is nothing to do."""
        return f"{PAGE}#{self.section}" if self.section else ""

    @property
    def wrong(self) -> bool:
        """Whether an operator must act."""
        return self.verdict in (Verdict.WARN, Verdict.FAIL)


def moment(time: float) -> str:
    """A Unix time (s) as text."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC"


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
