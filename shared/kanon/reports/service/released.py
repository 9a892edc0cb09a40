"""The keys of a job in mode kanon: values that the gate has released, of the list that is the newest on its receipt.

A list of released values is a function of the gate's answers, so these keys depend on no report. The new job's row
names the list, and no other one is read for it. The plan pins the keys. A newer list would be a second draw at the
price of one. A job whose list is gone before it is planned ends, and spends nothing.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

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
        count: the number of its values.
        join: the gate's bound for one join, whose step may depend on a year of answers.
        name: of the keys in the job's work folder, 16 bytes each, ascending, each once; "" if the plan reads the list.
        bits, run: where the list is (:class:`kanon.gate.lists.Found`).
    """

    type_name: str
    step: int
    count: int
    join: Bound
    name: str = ""
    bits: int = 0
    run: str = ""

    @property
    def recorded(self) -> dict[str, Any]:
        """The recorded values of a job with these keys. Delta is rounded up: it may have thousands of digits."""
        epsilon, delta = str(self.join.epsilon), str(written_up(self.join.delta, 12))
        fields = {"type": self.type_name, "step": self.step, "count": self.count, "name": self.name}
        return {RELEASED: {**fields, "epsilon": epsilon, "delta": delta, "bits": self.bits, "run": self.run}}

    @classmethod
    def of(cls, row: JobRow) -> Self | None:
        """Those of a job; None in the other modes."""
        if RELEASED not in row.values:
            return None
        value = row.values[RELEASED]
        join = Bound(Fraction(value["epsilon"]), Fraction(value["delta"]))
        place = {name: value[name] for name in ("name", "bits", "run") if name in value}
        return cls(value["type"], value["step"], value["count"], join, **place)
