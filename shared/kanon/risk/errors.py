"""The error of ``kanon.risk``."""

from kanon.errors import Error


class RiskError(Error, ValueError):
    """A log, a sketch file or an option cannot be used; the message says what to change.

    The message never holds a value or a user of the log.
    """
