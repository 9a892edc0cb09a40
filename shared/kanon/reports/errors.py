"""Errors of reports and of jobs. No message holds a bucket, a sum, an origin or a report id."""

from collections import Counter as Tally
from collections.abc import Mapping
from enum import StrEnum
from fractions import Fraction
from typing import Any

from kanon.errors import ConfigurationError, FingerprintMismatchError, KanonError, UnreadableMessageError

STOPS = ConfigurationError, FingerprintMismatchError, UnreadableMessageError
"""Errors after which a worker goes on only if an operator acts."""


class Counter(StrEnum):
    """Why a report is not accepted. The names are the aggregation service's, except for the last two.

    Shards that an earlier version has mapped count the two mismatches. Now reports of other origins are no errors.
    """

    REQUIRED_SHAREDINFO_FIELD_INVALID = "REQUIRED_SHAREDINFO_FIELD_INVALID"
    UNSUPPORTED_SHAREDINFO_VERSION = "UNSUPPORTED_SHAREDINFO_VERSION"
    UNSUPPORTED_REPORT_API_TYPE = "UNSUPPORTED_REPORT_API_TYPE"
    INVALID_REPORT_ID = "INVALID_REPORT_ID"
    ATTRIBUTION_REPORT_TO_MALFORMED = "ATTRIBUTION_REPORT_TO_MALFORMED"
    ATTRIBUTION_REPORT_TO_MISMATCH = "ATTRIBUTION_REPORT_TO_MISMATCH"
    REPORTING_SITE_MISMATCH = "REPORTING_SITE_MISMATCH"
    ORIGINAL_REPORT_TIME_TOO_OLD = "ORIGINAL_REPORT_TIME_TOO_OLD"
    DECRYPTION_KEY_NOT_FOUND = "DECRYPTION_KEY_NOT_FOUND"
    DECRYPTION_ERROR = "DECRYPTION_ERROR"
    REPORT_PARSING_ERROR = "REPORT_PARSING_ERROR"
    UNSUPPORTED_OPERATION = "UNSUPPORTED_OPERATION"
    REPORT_TIME_IN_FUTURE = "REPORT_TIME_IN_FUTURE"
    CONTRIBUTION_BUDGET_EXCEEDED = "CONTRIBUTION_BUDGET_EXCEEDED"


class ReportRefusedError(KanonError):
    """One report is not accepted; the job continues without it."""

    def __init__(self, counter: Counter) -> None:
        super().__init__(counter.value)
        self.counter = counter


class JobError(KanonError):
    """The job ends without a result, and nothing is spent.

    Args:
        code: the return code, such as ``INPUT_DATA_READ_FAILED``.
        message: what to change.
        errors: reports that are not accepted, if the job ends for them.
    """

    def __init__(self, code: str, message: str, errors: Mapping[Counter, int] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.errors = errors

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error: worker processes pass it to their parent."""
        return JobError, (self.code, str(self), self.errors)


def check_errors(errors: Tally[Counter], reports: int, most: Fraction | None, option: str) -> None:
    """Check the share of the reports that are in error.

    Args:
        errors: reports that are not accepted, by counter.
        reports: all reports but those that are left out.
        most: percent; None: all but one, because anybody can send reports in error.
        option: what the user may raise.

    Raises:
        JobError: the share is larger than ``most``.
    """
    total = errors.total()
    if (0 < total == reports) if most is None else (100 * total > most * reports):
        share = "so none counts" if most is None else f"more than {float(most):g} percent"
        counted = ", ".join(f"{counter} {count}" for counter, count in sorted(errors.items()))
        raise JobError(
            "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD",
            f"{total} of {reports} reports are in error ({counted}), {share}: fix the reports, or raise {option}",
            errors,
        )
