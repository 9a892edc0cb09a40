"""The error of ``kanon.risk``."""


class RiskError(ValueError):
    """A log, a sketch file or an option cannot be used; the message says what to change.

    The message never holds a value or a user of the log.
    """
