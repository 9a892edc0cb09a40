"""The number of an output of event-level reports, as the inverse of ``Outputs.unrank``."""

from bisect import bisect_left

from kanon.reports.clients.events import Output, Outputs


def number_of(outputs: Outputs, output: Output) -> int:
    """The number with this output; numbers follow the order of the outputs."""
    number = bisect_left(range(outputs.count), output, key=outputs.unrank)
    assert outputs.unrank(number) == output
    return number
