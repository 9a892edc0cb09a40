"""The decryption of a report whose clear fields were accepted."""

from kanon.reports.acceptance import Rules
from kanon.reports.avro import Report
from kanon.reports.errors import Counter, RefusedError
from kanon.reports.hpke import DecryptionError, open_sealed


def open_report(report: Report, rules: Rules) -> bytes:
    """The cleartext of a report whose clear fields were accepted.

    Raises:
        RefusedError: the key is unknown, or the payload does not open.
    """
    if rules.keys is None:
        return report.payload
    key = rules.keys.get(report.key_id)
    if key is None:
        raise RefusedError(Counter.DECRYPTION_KEY_NOT_FOUND)
    try:
        return open_sealed(report.payload, key, report.shared_info)
    except DecryptionError:
        raise RefusedError(Counter.DECRYPTION_ERROR) from None
