"""The findings of ``kanon doctor``, each with a verdict and what to do."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

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
    STATES = "states-are-lost-or-wrong"
    EVALUATION_LATE = "evaluationlate"
    ACCOUNTS = "the-table-of-accounts-was-replaced"
    GATEWAY_FAILING = "gatewayfailing"
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
