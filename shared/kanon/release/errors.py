"""What can be wrong with a release. Messages say what to change; none holds a group, a user, a value or a row."""


class ReleaseError(Exception):
    """Base of all errors of a release; ``status`` is the exit status of the command."""

    status = 2


class SpecificationError(ReleaseError, ValueError):
    """The question itself is impossible: an option, a budget or a bound."""


class NoBoundsError(ReleaseError):
    """Automatic bounds found no bin above their threshold. The whole cost of the release stands."""

    status = 3


class OverBudgetError(ReleaseError):
    """The release would pass the budget. Nothing was drawn."""

    status = 4


class InputError(ReleaseError):
    """The input cannot be read, or it is not the input that this release was made from."""

    status = 5


class LedgerError(ReleaseError):
    """The ledger or its secrets are broken or cannot be written."""

    status = 6
