"""The findings of ``kanon doctor``, each with a verdict and what to do."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from kanon.operate.stacks import reason

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
