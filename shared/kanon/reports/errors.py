"""Errors of reports and of jobs. No message holds a bucket, a sum, an origin or a report id."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from kanon.errors import ConfigurationError, FingerprintMismatchError, KanonError, UnreadableMessageError

STOPS = ConfigurationError, FingerprintMismatchError, UnreadableMessageError
"""Errors after which a worker goes on only if an operator acts."""
REPLACED, NOT_WRITTEN = "PRIVACY_BUDGET_ERROR", "RESULT_WRITE_ERROR"
"""Return codes of jobs: a table was replaced, or is of an earlier time; the summary could not be written."""


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
