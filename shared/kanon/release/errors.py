"""Errors of a release. Messages say what to change; none holds a group, a user, a value or a row."""

from kanon.errors import Error


class ReleaseError(Error):
    """Base of all errors of a release; ``status`` is the exit status of the command."""

    status = 2


class SpecificationError(ReleaseError, ValueError):
    """An option, a budget or a bound is impossible."""


class NoBoundsError(ReleaseError):
    """Automatic bounds found no bin above their threshold. The whole cost of the release is spent."""

    status = 3


class OverBudgetError(ReleaseError):
    """The release would pass the budget. Nothing was drawn."""

    status = 4


class InputError(ReleaseError):
    """The input cannot be read, or this release was made from another input."""

    status = 5


class LedgerError(ReleaseError):
    """The ledger or its secrets are damaged or cannot be written."""

    status = 6
