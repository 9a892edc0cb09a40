"""The picture of budgets: what the jobs of reports took of each unit's epsilon, day by day."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from kanon.pictures import BLUE, GREEN, ORANGE, PINK, SKY, TEXT, YELLOW, panels, saved

COLOURS = (BLUE, YELLOW, GREEN, PINK, SKY)


@dataclass(frozen=True)
class BudgetsAfterJobs:
    """What the service says of the budgets after some jobs, and the job that it refused.

    Attributes:
        answers: of getBudget, one for each day; at least one.
        window: hours from a unit to the next one.
        refused: the name of the job.
        asked: the epsilon that it asked of every unit.
    """

    answers: Sequence[Mapping[str, Any]]
    window: int
    refused: str
    asked: Fraction

    @property
    def cap(self) -> Fraction:
        """The epsilon that jobs may take from each unit."""
        return Fraction(self.answers[0]["epsilon_cap"])

    def taken(self) -> dict[str, dict[datetime, Fraction]]:
        """The epsilon that each job took from each hour; the jobs that took from the most hours first."""
        found: dict[str, dict[datetime, Fraction]] = defaultdict(dict)
        for answer in self.answers:
            day = datetime.fromisoformat(answer["day"]).replace(tzinfo=UTC)
            for job in answer["jobs"]:
                for hour in job["hours"]:
                    found[job["job_request_id"]][day + timedelta(hours=hour)] = Fraction(job["epsilon"])
        return {job: found[job] for job in sorted(found, key=lambda job: (-len(found[job]), job))}


def draw(budgets: BudgetsAfterJobs) -> bytes:
    """The picture as PNG."""
    return saved(figure_of(budgets))


def figure_of(budgets: BudgetsAfterJobs) -> Any:
    """A bar for each unit, of what each job took; above it, pale, what the refused job asked for."""
    figure, axes = panels(1, 1, (11, 4.6))
    panel, top = axes[0, 0], defaultdict[datetime, Fraction](Fraction)

    def stack(job: str, parts: Mapping[datetime, Fraction], **look: Any) -> None:
        under = [float(top[hour]) for hour in parts]
        width = timedelta(hours=0.8 * budgets.window)
        panel.bar(list(parts), list(map(float, parts.values())), width=width, bottom=under, label=job, **look)
        for hour, part in parts.items():
            top[hour] += part

    for number, (job, parts) in enumerate(budgets.taken().items()):
        stack(job, parts, color=COLOURS[number % len(COLOURS)])
    asked = dict.fromkeys(list(top), budgets.asked)
    stack(f"{budgets.refused}: asked for, and refused", asked, color=ORANGE, alpha=0.2)
    cap = float(budgets.cap)
    panel.axhline(cap, color=TEXT, linewidth=1.5, label=f"cap of each unit: {cap:g}")
    panel.set_ylim(0, 1.05 * float(max(top.values(), default=budgets.cap)))
    panel.margins(x=0.01)
    panel.set_ylabel("epsilon")
    panel.set_xlabel("time of the reports (UTC)")
    panel.set_title("What jobs took from each unit's budget", loc="left", color=TEXT)
    panel.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    figure.set_layout_engine("constrained")
    return figure
