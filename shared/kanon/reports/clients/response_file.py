"""The file of randomised responses: one output for every source, with the parameters that estimates need."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kanon.errors import Error
from kanon.reports.clients.encrypt import SECOND
from kanon.reports.clients.events import EventSpec, TriggerSpec
from kanon.reports.clients.outputs import Output
from kanon.reports.clients.response import MAX_EPSILON, Estimate, Response
from kanon.reports.parameters import decimal, written
from kanon.strict_json import parse

FIELDS = {"epsilon", "data", "windows", "reports", "responses"}


class ResponseError(Error, ValueError):
    """A file or a parameter of randomised responses is invalid; the message says what to change."""


@dataclass(frozen=True)
class Reporting:
    """What every source may report, and how it is protected.

    Attributes:
        epsilon: of the randomised response of one source, above 0 and at most 14.
        data: trigger data are 0 to ``data - 1``.
        windows: ends of the report windows, in seconds after the source.
        reports: the most reports of one source. Each trigger makes one report while there are some left.

    Raises:
        ResponseError: a parameter is out of range.
    """

    epsilon: Fraction
    data: int
    windows: tuple[int, ...]
    reports: int

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= MAX_EPSILON:
            raise ResponseError(f"epsilon must be above 0 and at most {MAX_EPSILON}")
        if not 1 <= self.data <= 32 or not 1 <= self.reports <= 20 or len(self.windows) > 5:
            raise ResponseError("a source has 1 to 32 data, 1 to 20 reports and 1 to 5 windows")
        try:
            _ = self.spec
        except ValueError as error:
            raise ResponseError(str(error)) from error

    @property
    def spec(self) -> EventSpec:
        """The event-level reports of one source."""
        ends = tuple(end * SECOND for end in self.windows)
        return EventSpec((TriggerSpec(tuple(range(self.data)), ends, tuple(range(1, self.reports + 1))),), self.reports)

    @property
    def response(self) -> Response:
        """The randomised response of one source."""
        return Response(self.spec.outputs, self.epsilon)

    def estimates(self, told: Sequence[Output]) -> list[list[Estimate]]:
        """Estimates of the true numbers of reports, by datum and window."""
        return self.response.estimates(told)


def document(reporting: Reporting, told: Sequence[Output]) -> bytes:
    """The JSON of responses, one line for each source."""
    fields = {
        "epsilon": written(reporting.epsilon),
        "data": reporting.data,
        "windows": reporting.windows,
        "reports": reporting.reports,
    }
    lines = ",\n".join(json.dumps(output) for output in told)
    return ("{\n" + "".join(f'  "{k}": {json.dumps(v)},\n' for k, v in fields.items())).encode() + (
        f'  "responses": [\n{lines}\n]}}\n'.encode()
    )


def read(text: str) -> tuple[Reporting, list[Output]]:
    """Read a file of responses.

    Raises:
        ResponseError: it is not such a file, or a response is not a possible output.
    """
    try:
        found = parse(text)
        names = set(found) - {"written_by"}
        if names != FIELDS:
            raise ResponseError(f"a file of responses has the fields {', '.join(sorted(FIELDS))} and no others")
        numbers = [found["data"], found["reports"], *found["windows"]]
        if not all(_is_number(number) for number in numbers):
            raise ResponseError("data, reports and windows are whole numbers")
        epsilon = decimal(found["epsilon"], "epsilon")
        reporting = Reporting(epsilon, found["data"], tuple(found["windows"]), found["reports"])
        return reporting, [_output(reporting, one) for one in found["responses"]]
    except ResponseError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise ResponseError("this is not a file of responses: write one with `kanon reports respond`") from error


def _output(reporting: Reporting, rows: Any) -> Output:
    output = tuple(tuple(row) for row in rows)
    shape = [len(reporting.windows)] * reporting.data
    counts = [count for row in output for count in row]
    if [len(row) for row in output] != shape or not all(map(_is_number, counts)) or sum(counts) > reporting.reports:
        raise ResponseError("a response is not an output that a source of these parameters can have")
    return output


def _is_number(value: Any) -> bool:
    return type(value) is int and value >= 0
