"""Fingerprints of the immutable values of reports, compared with Control when a function starts.

The guarantee is a sum over all releases, so its inputs must never change: the contribution bound, the caps, the
threshold rule, and the largest age of a report.
"""

from kanon.dynamo.fingerprints import DEPLOYMENT, Fingerprints
from kanon.reports.account import MAX_AGE
from kanon.reports.parameters import CONTRIBUTION_BOUND
from kanon.reports.settings import Jobs

RULE = "sharp"
"""The rule of every deployed stack; the local tool offers the paper's rule, too."""


class Recorded(Fingerprints):
    """The recorded values of the functions of reports."""

    changed = (
        "EpsilonCap, DeltaCap, the contribution bound, the threshold rule or the age of reports differ from what this"
        " deployment started with; restore them, or deploy another stack for the new values"
    )

    def compare(self, function: str, settings: Jobs) -> None:
        """Compare the immutable values of a function with those recorded, and record them at its first start.

        Raises:
            FingerprintMismatchError: one of them has changed.
        """
        self.check(function, fingerprints(settings))


def fingerprints(settings: Jobs) -> dict[str, str]:
    """The immutable values, by the name of an attribute in Control."""
    return {
        DEPLOYMENT: settings.deployment,
        "contribution-bound": str(CONTRIBUTION_BOUND),
        "epsilon-cap": str(settings.epsilon_cap),
        "delta-cap": str(settings.delta_cap),
        "threshold-rule": RULE,
        "report-age": str(MAX_AGE),
    }
