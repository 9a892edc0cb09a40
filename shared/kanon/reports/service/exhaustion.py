"""Units that have less budget left than a job asks for, in the aggregation service's shape."""

from collections.abc import Collection, Sequence
from typing import Any

from kanon.reports.account import HOUR, Source, units
from kanon.reports.parameters import written
from kanon.reports.service.committing import MOST_EXHAUSTED, exhausted
from kanon.reports.storage.budgets import Amount, Budgets


def named_exhausted(
    budgets: Budgets,
    sources: Collection[Source],
    filtering_ids: Sequence[int],
    amount: Amount,
    most: int = MOST_EXHAUSTED,
) -> list[dict[str, Any]]:
    """The first units that are short of budget, in the aggregation service's shape, with what is left of each."""
    of_unit = {unit: (source, number) for source in sources for number in filtering_ids
               for unit in units([source], [number])}  # fmt: skip
    found = []
    for unit, left in exhausted(budgets, sorted(of_unit), amount)[:most]:
        source, filtering_id = of_unit[unit]
        fields = {
            "api": source.api,
            "attribution_destination": source.attribution_destination,
            "reporting_origin": source.reporting_origin,
            "scheduled_report_time": float(source.hour * HOUR),
            "source_registration_time": source.source_registration_time,
            "version": source.version,
        }
        found.append(
            {
                "aggregateable_input_budget_id": {
                    "filtering_id": filtering_id,
                    "relevant_shared_info": {name: value for name, value in fields.items() if value is not None},
                },
                "epsilon_left": written(left.exact[0]),
                "delta_left": written(left.exact[1]),
                "jobs": sorted(job for job, hours, _ in budgets.taken(unit.row) if unit.hour % 24 in hours),
            }
        )
    return found
