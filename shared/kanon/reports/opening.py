"""The decryption of a report whose clear fields were accepted. Its key and its size are clear, too."""

from kanon.reports.acceptance import Rules
from kanon.reports.avro import Report
from kanon.reports.errors import Counter, RefusedError
from kanon.reports.hpke import OVERHEAD, DecryptionError, open_sealed
from kanon.reports.payload import MOST_BYTES


def check_key(report: Report, rules: Rules) -> None:
    """Check that a report can be opened at all.

    Raises:
        RefusedError: the key is unknown.
    """
    if rules.keys is not None and report.key_id not in rules.keys:
        raise RefusedError(Counter.DECRYPTION_KEY_NOT_FOUND)


def open_report(report: Report, rules: Rules) -> bytes:
    """The cleartext of a report whose clear fields were accepted.

    Raises:
        RefusedError: the key is unknown, the payload is too long, or does not open.
    """
    check_key(report, rules)
    if len(report.payload) > MOST_BYTES + OVERHEAD:
        raise RefusedError(Counter.REPORT_PARSING_ERROR)
    if rules.keys is None:
        return report.payload
    key = rules.keys[report.key_id]
    try:
        return open_sealed(report.payload, key, report.shared_info)
    except DecryptionError:
        raise RefusedError(Counter.DECRYPTION_ERROR) from None
