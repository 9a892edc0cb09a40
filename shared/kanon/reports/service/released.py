"""The keys of a job in mode kanon: values that the gate has released, pinned when the job is received.

A list of released values is a function of the gate's answers, so these keys depend on no report. A job that is
retried or continued uses the pinned ones. A newer list would be a second draw at the price of one.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, Self

from kanon.noise.bound import Bound
from kanon.noise.exact import written_up
from kanon.reports.storage.report_jobs import JobRow

RELEASED = "released"
"""The recorded value of a job."""


@dataclass(frozen=True)
class ReleasedKeys:
    """The keys of a job that the gate has released.

    Attributes:
        type_name: the listed type.
        step: of the list.
        count: the number of keys.
        name: of the keys in the job's work folder: 16 bytes each, ascending, each once.
        join: the gate's bound for one join, whose step may depend on a year of answers.
    """

    type_name: str
    step: int
    count: int
    name: str
    join: Bound

    @property
    def recorded(self) -> dict[str, Any]:
        """The recorded values of a job with these keys. Delta is rounded up: it may have thousands of digits."""
        epsilon, delta = str(self.join.epsilon), str(written_up(self.join.delta, 12))
        fields = {"type": self.type_name, "step": self.step, "count": self.count, "name": self.name}
        return {RELEASED: {**fields, "epsilon": epsilon, "delta": delta}}

    @classmethod
    def of(cls, row: JobRow) -> Self | None:
        """Those of a job; None in the other modes."""
        if RELEASED not in row.values:
            return None
        value = row.values[RELEASED]
        join = Bound(Fraction(value["epsilon"]), Fraction(value["delta"]))
        return cls(value["type"], value["step"], value["count"], value["name"], join)


class Lists(Protocol):
    """The published lists of a deployment."""

    def check(self, type_name: str) -> None:
        """Check that a type has a list with values.

        Raises:
            RequestRefusedError: it has none; the message says what to change.
        """

    def pinned(self, job: str, type_name: str) -> ReleasedKeys:
        """Write the keys of the newest list of a type into the work folder of a job.

        Raises:
            RequestRefusedError: there are none, or too many.
        """
