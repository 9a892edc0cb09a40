"""The one error a user of ``kanon.risk`` can cause."""


class RiskError(ValueError):
    """A log, a sketch file or an option cannot be used; the message says what to change.

    It never holds a value or a user of the log.
    """
